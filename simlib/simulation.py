# SPDX-License-Identifier: BSD-3-Clause
"""Run a scenario: build its programs, run an engine, name what came out."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from simlib.engine import compiled, limits, reference
from simlib.engine.result import ACTIVITIES, PS, EngineResult
from simlib.errors import HorizonError
from simlib.model.costs import Costs
from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_bandwidth
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.workloads import build, guest_metrics
from simlib.workloads.migration import page_time

Engine = Literal["compiled", "reference"]
_ENGINES = {"compiled": compiled.run, "reference": reference.run}

UNITS = {"dirty_memory_time": "s", "populate_time": "s", "clear_dirty_log_time": "s",
         "longest_stall": "s", "contentions": "count",
         "lock_acquisitions": "count", "mmu_lock_utilisation": "share"} | guest_metrics.UNITS  # fmt: skip
"""Metrics of a run, with their units."""

_RUNNING = {"migration": guest_metrics.migration_metrics, "zap": guest_metrics.zap_metrics}
"""Metrics of workloads whose guest works on, by kind."""


@dataclass(frozen=True)
class SimulationResult:
    """One simulated run. Nothing in it was measured.

    Attributes
    ----------
    scenario : Scenario
        What was simulated (after sampling, if pages were sampled).
    job : Job
        The programs.
    raw : EngineResult
        Every counter of the engine.
    seed : int
    scale : float
        Pages of the scenario over pages simulated; 1 if nothing was sampled. Times and counts of
        `metrics` are multiplied by it.
    flags : tuple of str
        What to know before believing the result.
    """

    scenario: Scenario
    job: Job
    raw: EngineResult
    seed: int
    scale: float
    flags: tuple[str, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """The run's figures of merit, by the names of `UNITS`; NaN where a cost that decides it has no value."""
        stats = self.raw.lock_stats[0]
        locks = {
            "contentions": float(stats[:, 1].sum() * self.scale * self.scenario.workload.counted_runs),
            "lock_acquisitions": float(stats[:, 0].sum() * self.scale),
            "mmu_lock_utilisation": float(self.raw.busy_ps[0] / max(1, self.raw.end_ps)),
        }
        if self.scenario.workload.kind in _RUNNING:
            return _RUNNING[self.scenario.workload.kind](self.scenario, self.job, self.raw) | locks
        stamps = dict(zip(self.job.stamps, self.raw.stamp_ps.tolist(), strict=True))
        spent = {"dirtied": 0, "cleared": 0}
        for phase, end, begin in zip(self.job.stamps[1:], self.raw.stamp_ps[1:], self.raw.stamp_ps, strict=False):
            spent[phase.phase] = spent.get(phase.phase, 0) + int(end - begin)
        costs, unknown = self.scenario.costs, float("nan")
        values = {
            "dirty_memory_time": spent["dirtied"] * PS * self.scale,
            "populate_time": unknown if costs.populate_block is None else stamps[Stamp("populated")] * PS * self.scale,
            "clear_dirty_log_time": unknown if costs.clear_page is None else spent["cleared"] * PS * self.scale,
        } | locks
        if self.scenario.workload.kind == "clear_under_load":
            values["dirty_memory_time"] = unknown
            values["longest_stall"] = float(self.raw.lap_max_ps.max() * PS)
        return values

    def table(self) -> pd.DataFrame:
        """The metrics, tidy: metric, value, unit."""
        return pd.DataFrame(
            [{"metric": k, "value": v, "unit": UNITS[k]} for k, v in self.metrics.items() if np.isfinite(v)]
        )

    def locks(self) -> pd.DataFrame:
        """One row a lock and mode (see `EngineResult.locks`); counts as simulated, not scaled."""
        return self.raw.locks(self.job)

    def threads(self) -> pd.DataFrame:
        """One row a thread: seconds by activity, faults by kind."""
        return self.raw.threads(self.job)

    def phases(self) -> pd.DataFrame:
        """One row a phase between stamps: phase, start_s, seconds, faults, and mean microseconds by activity a fault.

        As simulated, not scaled. The time of a fault is summed over all threads and divided by the phase's
        faults; parked threads count as idle.
        """
        raw, names = self.raw, self.job.stamps
        rows = []
        for i in range(1, len(names)):
            sums = raw.stamp_sums[i] - raw.stamp_sums[i - 1]
            faults = int(sums[len(ACTIVITIES) :].sum())
            per_fault = sums[: len(ACTIVITIES)] * 1e-6 / max(1, faults)
            row = {"phase": str(names[i]), "start_s": raw.stamp_ps[i - 1] * PS,
                   "seconds": (raw.stamp_ps[i] - raw.stamp_ps[i - 1]) * PS, "faults": faults}  # fmt: skip
            rows.append(row | dict(zip(ACTIVITIES, per_fault.tolist(), strict=True)))
        return pd.DataFrame(rows)

    def time_per_fault(self) -> pd.DataFrame:
        """Mean microseconds of a fault while the guest dirties its memory: activity, microseconds_per_fault.

        Populating is left out, as in the selftest's dirty memory time.
        """
        phases = self.phases()
        dirtying = phases[phases["phase"].str.startswith("dirtied")]
        shares = dirtying["faults"].to_numpy() / max(1, int(dirtying["faults"].sum()))
        activities = [a for a in ACTIVITIES if a != "idle"]
        spent = [float((dirtying[a].to_numpy() * shares).sum()) for a in activities]
        return pd.DataFrame({"activity": activities, "microseconds_per_fault": spent})

    def _repr_html_(self) -> str:
        flags = "".join(f"<li>{html.escape(f)}</li>" for f in self.flags)
        return (
            f"<p><b>Simulated</b>, seed {self.seed}, {self.raw.events:,} events.</p><ul>{flags}</ul>"
            f"{self.table().to_html(index=False)}{self.locks().to_html(index=False)}"
        )


def sampled(scenario: Scenario, pages_per_vcpu: int) -> tuple[Scenario, float]:
    """The scenario with at most so many pages a vCPU, and the factor that scales its times and counts back.

    For dirty_log_perf_test, whose steady state makes its times and counts proportional to the pages; what is
    lost is the relative weight of start and end. Other workloads stay whole.

    Examples
    --------
    >>> small, scale = sampled(Scenario.parse({"guest": {"memory_per_vcpu": "2G"}}), 4096)
    >>> small.guest.pages_per_vcpu, scale
    (4096, 128.0)
    """
    guest = scenario.guest
    if scenario.workload.kind != "dirty_log_perf_test":  # what takes its time from a pause is not proportional
        return scenario, 1.0
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    pages = max(unit, pages_per_vcpu // unit * unit)
    if pages >= guest.pages_per_vcpu:
        return scenario, 1.0
    small = dataclasses.replace(guest, memory=None, memory_per_vcpu=pages * guest.page_size)
    total, was = pages * guest.vcpus * guest.page_size, guest.pages_per_vcpu * guest.vcpus * guest.page_size
    workload, costs = scenario.workload, scenario.costs
    chunk = workload.clear_chunk or was
    if chunk > total:
        # An ioctl that covers less than before flushes less often for its pages: shrink the flush alike.
        if workload.clear_chunk is not None:
            workload = dataclasses.replace(workload, clear_chunk=total)
        costs = dataclasses.replace(costs, flush=None if costs.flush is None else costs.flush * total // chunk)
    less = dataclasses.replace(scenario, guest=small, workload=workload, costs=costs)
    return less, guest.pages_per_vcpu / pages


def used_costs(scenario: Scenario) -> tuple[str, ...]:
    """Costs that decide how long the scenario's guest takes, so that a value must be known.

    Examples
    --------
    >>> used_costs(Scenario.parse({"policy": {"architecture": "arm64-2022"}}))
    ('fault_exit', 'fault_hold', 'line_transfer', 'tlb_invalidate')
    """
    names = ["fault_exit", "fault_hold", "line_transfer"]
    if scenario.machine.line_transfer_local is not None:
        names.remove("line_transfer")
    if scenario.policy.facts.fault_flush == "broadcast":
        names.append("tlb_invalidate")
    return tuple(names)


def flags_of(scenario: Scenario, scale: float = 1.0) -> tuple[str, ...]:
    """What a reader should know of a scenario's result before believing it."""
    given = scenario.costs.given()
    flags = []
    missing = [n for n in used_costs(scenario) if n not in given]
    if missing:
        flags.append(f"no value for {', '.join(missing)}: taken as 0, so times are too short")
    unknown = [f.name for f in dataclasses.fields(Costs) if f.name not in given and f.name not in used_costs(scenario)]
    if unknown:
        flags.append(f"not modelled (no value given): {', '.join(unknown)}")
    if scenario.guest.vcpus > scenario.machine.cores:
        flags.append(
            f"{scenario.guest.vcpus} vCPUs on {scenario.machine.cores} cores: each vCPU is given a core of its own"
        )
    if scale != 1.0:
        flags.append(f"one page in {scale:g} was simulated; times and counts are scaled")
    return tuple(flags)


def simulate(
    scenario: Scenario,
    *,
    engine: Engine = "compiled",
    seed: int = 1,
    trace: int = 0,
    pages_per_vcpu: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Simulate a scenario once.

    Parameters
    ----------
    scenario : Scenario
    engine : {"compiled", "reference"}
        Both give the same result; the reference engine is some hundred times slower.
    seed : int
    trace : int
        Keep up to this many trace events (the run fails if there are more).
    pages_per_vcpu : int, optional
        Simulate at most so many pages a vCPU and scale; by default every page.
    progress : callable, optional
        Called with (events, simulated picoseconds) from time to time.

    Returns
    -------
    SimulationResult

    Raises
    ------
    InputError, DeadlockError, HorizonError

    Examples
    --------
    >>> s = Scenario.parse({"guest": {"vcpus": 4, "memory_per_vcpu": "4M", "memslot_aligned": False},
    ...                     "policy": {"architecture": "arm64-2022"},
    ...                     "costs": {"fault_exit": "700ns", "fault_hold": "600ns", "tlb_invalidate": "480ns"}})
    >>> result = simulate(s)
    >>> result.metrics["lock_acquisitions"]
    8194.0
    >>> simulate(s, engine="reference").raw == result.raw
    True
    """
    scenario.policy.resolved()
    small, scale = (scenario, 1.0) if pages_per_vcpu is None else sampled(scenario, pages_per_vcpu)
    check_horizon(small)
    job = build(small)
    raw = _ENGINES[engine](job, seed, trace=trace, progress=progress)
    flags = flags_of(scenario, scale)
    if scenario.workload.kind == "migration":
        reason = guest_metrics.no_convergence(small, job, raw)
        flags = (reason, *flags) if reason else flags
    return SimulationResult(small, job, raw, seed, scale, flags)


def check_horizon(scenario: Scenario) -> None:
    """Refuse at once what would run past the simulated-time horizon.

    The bound is asymptotic: no vCPU is faster than its own faults one after another (Denning and Buzen 1978).

    Raises
    ------
    HorizonError

    Examples
    --------
    >>> check_horizon(Scenario.parse({"guest": {"memory_per_vcpu": "1T"}, "workload": {"iterations": 1000},
    ...                               "costs": {"fault_exit": "1us"}}))
    Traceback (most recent call last):
    ...
    simlib.errors.HorizonError: the run would take at least 268168 s of simulated time, ...
    """
    costs, workload = scenario.costs, scenario.workload
    if workload.kind == "migration":
        first = scenario.guest.pages_per_vcpu * scenario.guest.vcpus * page_time(scenario)
        if workload.warm_up + first > limits.HORIZON_PS:
            raise HorizonError(
                f"the first pass alone would take {first * PS:.0f} s over a link of {format_bandwidth(workload.link)}, "
                f"more than the {limits.HORIZON_PS * PS:.0f} s that are simulated; take less memory or a faster link"
            )
        longest = min(workload.pass_limit * first, workload.timeout + first)
        if workload.warm_up + longest > limits.HORIZON_PS:
            raise HorizonError(
                f"if it does not converge, its passes would take {longest * PS:.0f} s, more than the "
                f"{limits.HORIZON_PS * PS:.0f} s that are simulated; take a shorter timeout or fewer passes"
            )
        return
    if workload.kind == "zap":
        return
    passes = 1 + workload.iterations - (1 if workload.initially_set else 0)
    written = workload.write_percent / 100
    fault = (costs.fault_exit or 0) + (costs.fault_hold or 0)
    blocks = PageTable(scenario.guest.page_size).pages_per_block() if scenario.guest.mapped_as_blocks else 1
    pages = scenario.guest.pages_per_vcpu
    least = pages * (fault / blocks + (passes - 1) * written * fault + passes * (costs.guest_access or 0))
    if least > limits.HORIZON_PS:
        raise HorizonError(
            f"the run would take at least {least * PS:.0f} s of simulated time, more than the "
            f"{limits.HORIZON_PS * PS:.0f} s that are simulated; take less memory or fewer iterations, or sample "
            "the pages (--pages)"
        )
