# SPDX-License-Identifier: BSD-3-Clause
"""Metrics of a workload, as data: each workload declares them next to the function that reads them from a run.

A metric measured per round, such as ``dirty_memory_time``, is the sum over all rounds; ``dirty_memory_time[2]`` selects
one of them.
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
from simlib.simulator.workloads.horizon import check_passes

Values = Mapping[str, "float | Sequence[float]"]
"""Values of a run by metric; for a metric with rounds, one value per round."""

_NAME = re.compile(r"(\w+)(?:\[([0-9]{1,4})\])?", re.ASCII)


@dataclass(frozen=True)
class Metric:
    """One quantity that a run of a workload yields.

    - `definition`: definition of the quantity, as in docs/metrics.md.
    - `scaling`: relation of its value for a part of the memory to the whole: ``proportional``, ``same``, or ``whole``
      (the whole memory must be simulated).
    - `rounds`: whether it is the sum over rounds that can be selected.
    - `integer`: whether its values are integers.
    """

    name: str
    unit: str
    definition: str
    scaling: str = "same"
    rounds: bool = False
    integer: bool = False

    def within(self, low: float, high: float, least: float = 0.0) -> tuple[float, float]:
        """Clip an interval to the possible values: not below `least`; no share above 1.

        >>> Metric("guest_throughput", "share", "").within(-0.1, 1.2)
        (0.0, 1.0)
        """
        return max(low, least), min(high, 1.0) if self.unit in ("share", "0 or 1") else high


LOCKS = (
    Metric("contentions", "count", "Acquisitions of mmu_lock that had to wait, times `workload.lock_stat_runs`.",
           "proportional"),
    Metric("lock_acquisitions", "count", "Acquisitions of mmu_lock.", "proportional"),
    Metric("mmu_lock_utilisation", "share", "Share of the run's duration for which a thread held mmu_lock."),
)  # fmt: skip
"""Metrics of every workload."""


def lock_metrics(scenario: Scenario, raw: EngineResult) -> dict[str, float]:
    """Values of `LOCKS`."""
    stats = raw.lock_stats[0]
    return {
        "contentions": float(stats[:, 1].sum() * scenario.workload.lock_stat_runs),
        "lock_acquisitions": float(stats[:, 0].sum()),
        "mmu_lock_utilisation": float(raw.busy_ps[0] / max(1, raw.end_ps)),
    }


def phase_seconds(job: Job, raw: EngineResult, phase: str) -> list[float]:
    """Return the duration of each round of a phase, s: the time since the preceding stamp."""
    ends = [i for i, stamp in enumerate(job.stamps) if stamp.phase == phase]
    return [float(raw.stamp_ps[i] - raw.stamp_ps[i - 1]) * PS for i in ends]


def return_nothing(*_: object) -> tuple[str, ...]:
    """Return neither errors nor warnings."""
    return ()


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload: its programs, and the metrics of a run.

    - `name`: its ``workload.kind``.
    - `build`: scenario to programs.
    - `default_metrics`: metrics that `simlib.predict` returns by default.
    - `measure`: (scenario, job, result) to `Values`.
    - `check_horizon`: raises `simlib._lib.errors.HorizonError` for a scenario that would exceed the simulated time.
    - `sample`: (scenario, pages per vCPU, divisor of these) to a scenario with less memory and its scale factor.
    - `warnings`: (scenario, job, result, scale factor) to warnings for a reader of the result.
    - `curve`: (scenario, job, result) to the guest's throughput over time, if the guest keeps running.
    - `dirtying_phase`: the phase in which the guest dirties its memory, if there is one.
    - `included_costs`: costs that others include in its programs: charged only if they have a value, and never sampled.
    - `lower_bounds`: scenario to lower bounds of metrics by name; 0 for the others.
    """

    name: str
    build: Callable[[Scenario], Job]
    metrics: tuple[Metric, ...]
    default_metrics: tuple[str, ...]
    measure: Callable[[Scenario, Job, EngineResult], Values]
    check_horizon: Callable[[Scenario], object] = check_passes
    sample: Callable[[Scenario, int, int], tuple[Scenario, float]] = lambda scenario, *_: (scenario, 1.0)
    warnings: Callable[[Scenario, Job, EngineResult, float], tuple[str, ...]] = return_nothing
    curve: Callable[[Scenario, Job, EngineResult], pd.DataFrame] | None = None
    dirtying_phase: str = ""
    included_costs: tuple[str, ...] = ()
    lower_bounds: Callable[[Scenario], Mapping[str, float]] = lambda _: {}

    def find(self, name: str, rounds: int) -> tuple[Metric, int]:
        """Return a metric by its name, and the selected round (0: all rounds).

        Raises `InputError` if the workload has no such metric, or fewer rounds.
        """
        base, number = split_name(name)
        metric = next((known for known in self.metrics if known.name == base), None)
        if metric is None:
            raise InputError("metric", name, f"{self.name} has no metric of this name",
                             nearest(base, (known.name for known in self.metrics)))  # fmt: skip
        if number is None:
            return metric, 0
        if not metric.rounds:
            names = ", ".join(known.name for known in self.metrics if known.rounds) or "none"
            raise InputError("metric", name, f"{base} has no iterations in {self.name}", f"with iterations: {names}")
        if not 1 <= number <= rounds:
            raise InputError("metric", name, f"the workload has iterations 1 to {rounds}",
                             f"select one of them, or {base} for their sum")  # fmt: skip
        return metric, number

    def scale_to_whole(self, measured: Values, scale: float) -> dict[str, np.ndarray]:
        """Scale values of a part of the memory to the whole, which is `scale` times as large.

        Metrics that need the whole memory are omitted.
        """
        factors = {"proportional": scale, "same": 1.0} | ({"whole": 1.0} if scale == 1.0 else {})
        factor = {metric.name: factors[metric.scaling] for metric in self.metrics if metric.scaling in factors}
        return {name: np.asarray(value, float) * factor[name] for name, value in measured.items() if name in factor}


def split_name(name: str) -> tuple[str, int | None]:
    """Name of a metric, and the iteration that it selects.

    Raises `InputError` if the string is not of this form.

    >>> split_name("dirty_memory_time[2]"), split_name("contentions")
    (('dirty_memory_time', 2), ('contentions', None))
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError("metric", name, "must be a name, or a name with an iteration", "write dirty_memory_time[2]")
    return match[1], None if match[2] is None else int(match[2])
