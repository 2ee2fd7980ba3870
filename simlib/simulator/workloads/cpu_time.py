# SPDX-License-Identifier: BSD-3-Clause
"""CPU time that dirty logging takes, by part: enabling, CLEAR, faults.

The parts are counted in the engine's picoseconds over one span, so that their sum does not change if a
policy moves work from one part to another.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import ACTIVITIES, PS, EngineResult
from simlib.simulator.workloads.metrics import Metric

AWAKE = slice(0, ACTIVITIES.index("idle"))
"""Activities that are CPU time: a thread that waits for a lock spins."""

ENABLED = Stamp("enabled")


def cpu_metrics(begin: str, end: str, scaling: str = "same") -> tuple[Metric, ...]:
    """Metrics of `cpu_times`, the sum first.

    - `begin`, `end`: the span over which all of them are counted, as text.
    - `scaling`: `Metric.scaling`.
    """
    return (
        Metric("logging_cpu_time", "s", f"Total CPU time of dirty logging, from {begin} to {end}.", scaling),
        Metric("enable_cpu_time", "s", "CPU time of the thread that enables the log: work, waiting for locks, "
               "TLB flushes.", scaling),
        Metric("clear_cpu_time", "s", "CPU time of the threads that run GET, CLEAR or the ring's reset: work, waiting "
               "for locks, TLB flushes.", scaling),
        Metric("fault_cpu_time", "s", "CPU time of the vCPUs beyond their undisturbed accesses: exits, holds, waiting "
               "for locks, cache lines, invalidations, kicks.", scaling),
    )  # fmt: skip


def cpu_times(
    scenario: Scenario, job: Job, raw: EngineResult, span: tuple[Stamp, Stamp], access: int, uncounted: int = 0
) -> dict[str, float]:
    """Values of `cpu_metrics`, s.

    - `span`: first and last stamp; the thread that stamps enables the log first, and then clears.
    - `access`: duration of an undisturbed access of the guest, ps.
    - `uncounted`: accesses in the span that are not among the pages done.
    """
    first, enabled, last = (job.stamps.index(stamp) for stamp in (span[0], ENABLED, span[1]))
    stamper = raw.stamp_thread[:, AWAKE].sum(axis=1)
    helpers = int(raw.thread_ps[job.vcpus + 1 :, AWAKE].sum())  # they only clear within the span
    all_threads = raw.stamp_sums[last] - raw.stamp_sums[first]
    guest = int(all_threads[AWAKE].sum() - (stamper[last] - stamper[first])) - helpers
    guest += int(raw.stamp_waits[last] - raw.stamp_waits[first])
    enable, clear = (int(stamper[enabled] - stamper[first]), int(stamper[last] - stamper[enabled]) + helpers)
    # An access counts as done when its vCPU begins the next one: each vCPU has one under way at either end.
    fault = max(0, guest - undisturbed_work(scenario, int(all_threads[-1]) + uncounted, access))
    parts = {"enable_cpu_time": enable, "clear_cpu_time": clear, "fault_cpu_time": fault}
    return {"logging_cpu_time": sum(parts.values()) * PS} | {name: time * PS for name, time in parts.items()}


def undisturbed_work(scenario: Scenario, accesses: int, access: int) -> int:
    """Time of `accesses` accesses when no other thread takes a lock, slow faults included, ps.

    >>> undisturbed_work(Scenario(), 1000, 2_000_000)
    2000000000
    """
    costs, workload = scenario.host_costs, scenario.workload
    if not (workload.slow_fault_every and workload.keeps_accessing):
        return accesses * access
    slow_fault = (costs.fault_unlocked or 0) + (costs.fault_hold or 0)
    return accesses * access + accesses * slow_fault // workload.slow_fault_every
