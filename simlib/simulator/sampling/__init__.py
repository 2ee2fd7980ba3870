# SPDX-License-Identifier: BSD-3-Clause
"""Migrations of any size, estimated from simulated windows, with the error of the estimate.

Simulating a migration of hundreds of gigabytes takes hours, but nearly all of it is alike. `fluid_model` computes the
share of the memory that is write-protected at each moment, given the speed of the guest; `window` simulates a short
time page by page and measures the guest's speed, the duration of CLEAR and the waits of each vCPU; `estimator`
alternates between the two from pass to pass; `sample_migration` replicates this, and `table` derives the error from the
spread of the replications. docs/sampling.md compares the estimates with whole simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.figures.results import Result, text_of
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_size, size_text
from simlib.model.scenario import Scenario
from simlib.simulator.sampling.estimator import SampledRun, sample_once
from simlib.simulator.sampling.table import metric_table, validity_flags
from simlib.simulator.workloads.migration import METRICS, page_time

DEFAULT_REPLICATIONS = 8
"""Default number of sampled runs."""

WHOLE_PAGES = 2**18
"""Migrations of at most this many pages (1 GiB) are simulated as a whole."""

WINDOW_METRICS = tuple(
    metric.name for metric in METRICS if metric.name not in ("mmu_lock_utilisation", "throttle", "throttled_share")
)
"""Metrics of a migration that windows can estimate."""


def unsupported_reason(scenario: Scenario) -> str:
    """Reason why a migration cannot be sampled with windows; empty if it can.

    >>> unsupported_reason(Scenario.parse({"workload": {"kind": "migration", "access": "sequential"}}))
    'a guest that accesses its pages in order cannot be sampled (workload.access)'
    """
    workload, guest = scenario.workload, scenario.guest
    chunk = (workload.clear_chunk or guest.pages * guest.page_size) // guest.page_size
    unit = PageTable(guest.page_size).pages_per_block() if guest.mapped_as_blocks else WORD_PAGES
    rings, policy, clear_when = workload.rings, scenario.policy, workload.clear_when
    left_whole = guest.mapped_as_blocks and not policy.resolved().eager_split
    reasons = {
        "only migrations can be sampled (workload.kind)": not workload.facts.by_chunk,
        "a guest that accesses its pages in order cannot be sampled (workload.access)": workload.access == "sequential",
        "only lazy clearing and rings can be sampled (workload.clear_when)": clear_when not in ("lazy", "ring"),
        "rings can be sampled only if blocks are split eagerly (policy.eager_split)": rings and left_whole,
        "with rings, a guest that can be sent within the downtime limit cannot be sampled (workload.downtime)": rings
        and guest.pages <= workload.downtime // page_time(scenario),
        "a throttled guest cannot be sampled; simlib migrate computes pre-copy (workload.throttle)": workload.throttle
        != "none",
        "a guest that catches up after delays cannot be sampled (workload.cpu_use)": workload.cpu_use < 1,
        "threads that only run CLEAR cannot be sampled (workload.clear_threads)": workload.clear_threads > 0,
        "enabling page by page cannot be sampled (workload.initially_set)": not (workload.initially_set or rings),
        "scanning all entries for dirty bits cannot be sampled (policy.dirty_tracking)": policy.dirty_tracking == "dbm",
        "locks by region cannot be sampled (policy.lock_regions)": policy.lock_regions > 1,
        f"a chunk must be a multiple of {format_size(unit * guest.page_size)} (workload.clear_chunk)": chunk % unit > 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, repr=False)
class SampleResult(Result):
    """A migration estimated from simulated windows, without any measurement.

    - `frame`: one row per metric: metric, value, standard_error, low, high, unit. The standard error reflects only the
      sampling, and is computed from the spread of the replications.
    - `curve`: the guest's throughput over time: time_s, width_s, throughput, degradation.
    - `replications`, `windows`, `events`: number of sampled runs, and of windows and engine events in all of them.
    - `flags`: warnings about the validity of the result.
    - `runs`: the sampled runs.
    - `costs`: one row per cost that the programs use, if costs were looked up.
    """

    scenario: Scenario
    frame: pd.DataFrame
    curve: pd.DataFrame
    replications: int
    windows: int
    events: int
    seed: int
    flags: tuple[str, ...] = ()
    runs: tuple[SampledRun, ...] = ()
    costs: pd.DataFrame | None = None

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "degradation_over_time": lambda run: run.curve.assign(series=run.scenario.policy.architecture)
    }

    @property
    def metrics(self) -> dict[str, float]:
        """Values of the metrics by name."""
        return {str(name): float(value) for name, value in zip(self.frame["metric"], self.frame["value"], strict=True)}

    def summary(self) -> str:
        """Return the migration, its metrics and the warnings as text."""
        guest, policy = self.scenario.guest, self.scenario.policy.resolved()
        memory = size_text(guest.pages * guest.page_size)
        return "\n".join(
            [f"Sampled: {self.scenario.workload.kind}, {guest.vcpus} vCPU{'s' * (guest.vcpus > 1)}, {memory}, "
             f"{policy.architecture} ({policy.lock} lock); {self.windows} windows in {self.replications} replications, "
             f"seed {self.seed}, {self.events:,} events", text_of(self.frame), *self.flags]
        )  # fmt: skip

    def table(self) -> pd.DataFrame:
        """Return the metrics."""
        return self.frame


def sample_migration(
    scenario: Scenario,
    *,
    replications: int = DEFAULT_REPLICATIONS,
    seed: int = 1,
    progress: parallel.Progress | None = None,
) -> SampleResult:
    """Sample a migration several times, with windows at different chunks.

    Raises `InputError` if it cannot be sampled; `unsupported_reason` gives the reason.

    - `scenario`: with a value for each cost.
    - `replications`: at least 2.
    """
    if reason := unsupported_reason(scenario):
        raise InputError("scenario", scenario.workload.kind, reason, "simulate the whole migration", "omit --sample")
    if replications < 2:
        raise InputError("replications", replications, "must be at least 2", "a single run gives no error estimate")
    runs = parallel.run_all(_tasks(scenario, replications, seed), "sampling", progress)
    windows, events = sum(run.windows for run in runs), sum(run.events for run in runs)
    table, curve, flags = metric_table(scenario, runs), _curve(runs), validity_flags(scenario, runs)
    return SampleResult(scenario, table, curve, replications, windows, events, seed, flags, tuple(runs))


def sample_several(
    scenario: Scenario, replications: int, seed: int, check: parallel.Check, only: int | None = None
) -> list[SampledRun]:
    """Sample one migration several times, one run after another; `only`: run only the replication with this number."""
    tasks = _tasks(scenario, replications, seed)
    return [task(check) for task in (tasks if only is None else tasks[only : only + 1])]


def _tasks(scenario: Scenario, replications: int, seed: int) -> list[Callable[[parallel.Check], SampledRun]]:
    """One task per replication; each has its first window in a different part of the migration."""
    starts = (np.arange(replications) + np.random.default_rng(seed).random(replications)) / replications
    return [partial(sample_once, scenario, seed * 1000 + number, float(at)) for number, at in enumerate(starts)]


def _curve(runs: Sequence[SampledRun]) -> pd.DataFrame:
    """Mean throughput of the runs at each moment until the shortest run ends."""
    curves = [run.curve for run in runs]
    ends = min(curves, key=lambda curve: float(curve[-1, 0]))[:, 0]
    throughput = np.mean([np.interp(ends, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
    widths = np.diff(ends, prepend=ends[0] - (ends[1] - ends[0] if len(ends) > 1 else ends[0]))
    return pd.DataFrame(
        {"time_s": ends - widths / 2, "width_s": widths, "throughput": throughput, "degradation": 1 - throughput}
    )
