# SPDX-License-Identifier: BSD-3-Clause
"""What a workload measures, as data: each names its metrics, beside the function that reads them from a run.

A metric that is measured round by round, such as ``dirty_memory_time``, is the sum over all of them; a single one is
asked for as ``dirty_memory_time[2]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS, EngineResult
from simlib.simulator.workloads.horizon import check_walks

Values = Mapping[str, "float | Sequence[float]"]
"""What a run measured, by metric; of a metric by rounds, one value each."""

_NAME = re.compile(r"(\w+)(?:\[([0-9]{1,4})\])?", re.ASCII)


@dataclass(frozen=True)
class Metric:
    """One quantity that a run of a workload gives.

    - `definition`: what exactly is measured, as docs/metrics.md has it.
    - `memory`: what a run of a part of the memory tells of it: ``proportional``, ``same``, or ``whole``: nothing.
    - `rounds`: whether it is the sum over rounds, of which one can be asked for.
    - `whole`: whether it comes in whole numbers only, so that nothing lies between two of them.
    """

    name: str
    unit: str
    definition: str
    memory: str = "same"
    rounds: bool = False
    whole: bool = False

    def within(self, low: float, high: float, least: float = 0.0) -> tuple[float, float]:
        """The ends of an interval where arithmetic allows them: not below the least, no share above all.

        >>> Metric("guest_throughput", "share", "").within(-0.1, 1.2)
        (0.0, 1.0)
        """
        return max(low, least), min(high, 1.0) if self.unit in ("share", "0 or 1") else high


LOCKS = (
    Metric("contentions", "count", "Acquisitions of mmu_lock that had to wait, times `workload.lock_stat_runs`.",
           "proportional"),
    Metric("lock_acquisitions", "count", "Acquisitions of mmu_lock.", "proportional"),
    Metric("mmu_lock_utilisation", "share", "Share of the run in which somebody held mmu_lock."),
)  # fmt: skip
"""Metrics that every workload has."""


def lock_metrics(scenario: Scenario, raw: EngineResult) -> dict[str, float]:
    """The values of `LOCKS`."""
    stats = raw.lock_stats[0]
    return {
        "contentions": float(stats[:, 1].sum() * scenario.workload.lock_stat_runs),
        "lock_acquisitions": float(stats[:, 0].sum()),
        "mmu_lock_utilisation": float(raw.busy_ps[0] / max(1, raw.end_ps)),
    }


def phase_seconds(job: Job, raw: EngineResult, phase: str) -> list[float]:
    """How long each round of a phase took, from the stamp before its own."""
    ends = [i for i, stamp in enumerate(job.stamps) if stamp.phase == phase]
    return [float(raw.stamp_ps[i] - raw.stamp_ps[i - 1]) * PS for i in ends]


def nothing(*_: object) -> tuple[str, ...]:
    """Nothing to refuse, and nothing to know."""
    return ()


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload: its programs, and what a run of them measures.

    - `name`: as ``workload.kind`` has it.
    - `build`: scenario to programs.
    - `default`: those that `simlib.predict` gives unless told otherwise.
    - `measure`: (scenario, job, result) to `Values`.
    - `check_horizon`: raises `simlib._lib.errors.HorizonError` for a scenario that would run past the simulated time.
    - `sample`: (scenario, pages a vCPU, one in how many of these) to a scenario of less memory and the factor between.
    - `warnings`: (scenario, job, result, factor of the sample) to what a reader of the result must know.
    - `curve`: (scenario, job, result) to the guest's throughput over time, if it works on.
    - `dirtying`: the phase in which the guest dirties its memory, if it has one of its own.
    - `contained`: costs that others contain in its programs: paid only where they have a value, so never drawn.
    - `least`: scenario to what metrics cannot be below, by their names; for those that are left out 0.
    """

    name: str
    build: Callable[[Scenario], Job]
    metrics: tuple[Metric, ...]
    default: tuple[str, ...]
    measure: Callable[[Scenario, Job, EngineResult], Values]
    check_horizon: Callable[[Scenario], object] = check_walks
    sample: Callable[[Scenario, int, int], tuple[Scenario, float]] = lambda scenario, *_: (scenario, 1.0)
    warnings: Callable[[Scenario, Job, EngineResult, float], tuple[str, ...]] = nothing
    curve: Callable[[Scenario, Job, EngineResult], pd.DataFrame] | None = None
    dirtying: str = ""
    contained: tuple[str, ...] = ()
    least: Callable[[Scenario], Mapping[str, float]] = lambda _: {}

    def find(self, name: str, rounds: int) -> tuple[Metric, int]:
        """A metric by its name, and which of its rounds is meant: 0, all of them.

        Raises `InputError` if the workload has no such metric, or not so many rounds.
        """
        base, number = split_name(name)
        found = {metric.name: metric for metric in self.metrics}.get(base)
        if found is None:
            raise InputError("metric", name, f"{self.name} has none of this name",
                             nearest(base, (metric.name for metric in self.metrics)))  # fmt: skip
        if number is None:
            return found, 0
        if not found.rounds:
            those = ", ".join(metric.name for metric in self.metrics if metric.rounds) or "none"
            raise InputError("metric", name, f"{base} has no iterations in {self.name}", f"those that do: {those}")
        if not 1 <= number <= rounds:
            raise InputError("metric", name, f"the workload has iterations 1 to {rounds}",
                             f"ask for one of them, or {base} for their sum")  # fmt: skip
        return found, number

    def of_all(self, measured: Values, scale: float) -> dict[str, np.ndarray]:
        """What a part of the memory measured, as all of it would, which is so many times as large.

        Left out is what a part does not tell.
        """
        factors = {"proportional": scale, "same": 1.0} | ({"whole": 1.0} if scale == 1.0 else {})
        told = {metric.name: factors[metric.memory] for metric in self.metrics if metric.memory in factors}
        return {name: np.asarray(measured[name], dtype=np.float64) * told[name] for name in measured if name in told}


def split_name(name: str) -> tuple[str, int | None]:
    """A metric's name, and the iteration that it asks for.

    Raises `InputError` if it is not written so.

    >>> split_name("dirty_memory_time[2]"), split_name("contentions")
    (('dirty_memory_time', 2), ('contentions', None))
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError("metric", name, "must be a name, or a name with an iteration", "write dirty_memory_time[2]")
    return match[1], None if match[2] is None else int(match[2])
