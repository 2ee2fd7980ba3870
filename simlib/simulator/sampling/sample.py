# SPDX-License-Identifier: BSD-3-Clause
"""Several walks through the same migration: what they agree on, and how far they do."""

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
from simlib.model.quantities import format_size, say_size
from simlib.model.scenario import Scenario
from simlib.simulator.sampling.estimator import SampledRun, sample_once
from simlib.simulator.sampling.table import flags_of_runs, table_of
from simlib.simulator.workloads.migration import METRICS, page_time

SAMPLED_RUNS = 8
"""Walks unless told otherwise."""

WHOLE_PAGES = 2**18
"""Migrations of so few pages are simulated whole: 1 GiB."""

WINDOW_METRICS = tuple(
    metric.name for metric in METRICS if metric.name not in ("mmu_lock_utilisation", "throttle", "throttled_share")
)
"""Metrics of a migration that windows tell."""


def why_not(scenario: Scenario) -> str:
    """Why a migration cannot be sampled by windows; empty if it can.

    >>> why_not(Scenario.parse({"workload": {"kind": "migration", "access": "sequential"}}))
    'a guest that accesses its pages in order is not sampled (workload.access)'
    """
    workload, guest = scenario.workload, scenario.guest
    chunk = (workload.clear_chunk or guest.pages * guest.page_size) // guest.page_size
    unit = PageTable(guest.page_size).pages_per_block() if guest.mapped_as_blocks else WORD_PAGES
    reasons = {
        "only a migration is sampled by windows (workload.kind)": not workload.facts.by_chunk,
        "a guest that accesses its pages in order is not sampled (workload.access)": workload.access == "sequential",
        "only lazy clearing and rings are sampled (workload.clear_when)": workload.clear_when not in ("lazy", "ring"),
        "rings are sampled where blocks are split eagerly (policy.eager_split)": workload.rings
        and guest.mapped_as_blocks
        and not scenario.policy.resolved().eager_split,
        "with rings, a guest that is sent at once is not sampled (workload.downtime)": workload.rings
        and guest.pages <= workload.downtime // page_time(scenario),
        "a guest that is throttled is not sampled; simlib migrate has the course (workload.throttle)": workload.throttle
        != "none",
        "threads that only clear are not sampled (workload.clear_threads)": workload.clear_threads > 0,
        "enabling the log page by page is not sampled (workload.initially_set)": not (
            workload.initially_set or workload.rings
        ),
        "looking for dirty bits at every entry is not sampled (policy.dirty_tracking)": scenario.policy.dirty_tracking
        == "dbm",
        "locks by region are not sampled (policy.lock_regions)": scenario.policy.lock_regions > 1,
        f"a chunk must be a multiple of {format_size(unit * guest.page_size)} (workload.clear_chunk)": chunk % unit > 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, repr=False)
class SampleResult(Result):
    """A migration of which some windows were simulated. Nothing in it was measured.

    - `frame`: one row a metric: metric, value, standard_error, low, high, unit. The standard error is that of the
      sampling: it comes from the spread of the walks.
    - `curve`: the guest's throughput over time: time_s, width_s, throughput, degradation.
    - `walks`, `windows`, `events`: walks, and the windows and events of the engine in all of them.
    - `flags`: what to know before believing the result.
    - `journeys`: what each walk found.
    - `costs`: one row a cost that the programs spend, where they were looked for.
    """

    scenario: Scenario
    frame: pd.DataFrame
    curve: pd.DataFrame
    replications: int
    windows: int
    events: int
    seed: int
    flags: tuple[str, ...] = ()
    journeys: tuple[SampledRun, ...] = ()
    costs: pd.DataFrame | None = None

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "degradation_over_time": lambda run: run.curve.assign(series=run.scenario.policy.architecture)
    }

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics' values by name."""
        return {str(name): float(value) for name, value in zip(self.frame["metric"], self.frame["value"], strict=True)}

    def summary(self) -> str:
        """What was sampled, its metrics, and what to know of it."""
        guest, policy = self.scenario.guest, self.scenario.policy.resolved()
        memory = say_size(guest.pages * guest.page_size)
        return "\n".join(
            [f"Sampled: {self.scenario.workload.kind}, {guest.vcpus} vCPUs, {memory}, {policy.architecture} "
             f"({policy.lock} lock); {self.windows} windows of {self.replications} walks, seed {self.seed}, "
             f"{self.events:,} events", text_of(self.frame), *self.flags]
        )  # fmt: skip

    def table(self) -> pd.DataFrame:
        """The metrics."""
        return self.frame


def sample_migration(
    scenario: Scenario, *, replications: int = SAMPLED_RUNS, seed: int = 1, progress: parallel.Progress | None = None
) -> SampleResult:
    """Walk through a migration several times, with windows at other chunks each time.

    Raises `InputError` if it cannot be sampled; `why_not` says why.

    - `scenario`: with a value for each cost.
    - `walks`: at least 2.
    """
    reason = why_not(scenario)
    if reason:
        raise InputError("scenario", scenario.workload.kind, reason, "simulate all of it", "leave --sample out")
    if replications < 2:
        raise InputError("walks", replications, "must be at least 2", "one walk does not tell how far it may be off")
    found = parallel.run_all(_tasks(scenario, replications, seed), "sampling", progress)
    windows, events = sum(one.windows for one in found), sum(one.events for one in found)
    flags = flags_of_runs(scenario, found)
    table, curve = table_of(scenario, found), _curve(found)
    return SampleResult(scenario, table, curve, replications, windows, events, seed, flags, tuple(found))


def sample_several(
    scenario: Scenario, replications: int, seed: int, check: parallel.Check, only: int | None = None
) -> list[SampledRun]:
    """Walk through one migration several times, one after another, with windows spread over its chunks.

    - `only`: just this one of the walks.
    """
    tasks = _tasks(scenario, replications, seed)
    return [task(check) for task in (tasks if only is None else tasks[only : only + 1])]


def _tasks(scenario: Scenario, replications: int, seed: int) -> list[Callable[[parallel.Check], SampledRun]]:
    """Each walk begins at a chunk in its own part of the migration."""
    starts = (np.arange(replications) + np.random.default_rng(seed).random(replications)) / replications
    return [partial(sample_once, scenario, seed * 1000 + number, float(at)) for number, at in enumerate(starts)]


def _curve(runs: Sequence[SampledRun]) -> pd.DataFrame:
    """The mean throughput at each moment of the shortest walk."""
    curves = [walk.curve for walk in runs]
    ends = min(curves, key=lambda curve: float(curve[-1, 0]))[:, 0]
    throughput = np.mean([np.interp(ends, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
    widths = np.diff(ends, prepend=ends[0] - (ends[1] - ends[0] if len(ends) > 1 else ends[0]))
    return pd.DataFrame(
        {"time_s": ends - widths / 2, "width_s": widths, "throughput": throughput, "degradation": 1 - throughput}
    )
