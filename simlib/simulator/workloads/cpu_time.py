# SPDX-License-Identifier: BSD-3-Clause
"""What dirty logging takes of everybody's CPU time, and where: enabling, CLEAR, faults.

The parts are counted in the engine's picoseconds over one span, so that their sum holds all: what a policy moves from
one place to another stays in it.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import ACTIVITIES, PS, EngineResult
from simlib.simulator.workloads.metrics import Metric

AWAKE = slice(0, ACTIVITIES.index("idle"))
"""Activities that are CPU time: who waits for a lock spins."""

ENABLED = Stamp("enabled")


def cpu_metrics(begin: str, end: str, memory: str = "same") -> tuple[Metric, ...]:
    """The metrics of `cpu_times`, the sum first.

    - `begin`, `end`: the span over which all of them are counted, in words.
    - `memory`: as `Metric` has it.
    """
    return (
        Metric("logging_cpu_time", "s", f"CPU time of dirty logging, from {begin} to {end}.", memory),
        Metric("enable_cpu_time", "s", "The thread that enables the log: work, waiting for locks, TLB flushes.",
               memory),
        Metric("clear_cpu_time", "s", "The threads that do GET, CLEAR or the ring's reset: work, waiting for locks, "
               "TLB flushes.", memory),
        Metric("fault_cpu_time", "s", "The vCPUs, beyond what their accesses take undisturbed: exits, holds, waiting "
               "for locks, cache lines, invalidations, kicks.", memory),
    )  # fmt: skip


def cpu_times(
    scenario: Scenario, job: Job, raw: EngineResult, span: tuple[Stamp, Stamp], access: int, uncounted: int = 0
) -> dict[str, float]:
    """The values of `cpu_metrics`, s.

    - `span`: from which stamp to which; the thread that stamps enables the log first, and then clears.
    - `access`: what an access of the guest takes undisturbed, ps.
    - `uncounted`: accesses that were made in the span and are not among the pages done.
    """
    first, enabled, last = (job.stamps.index(stamp) for stamp in (span[0], ENABLED, span[1]))
    own = raw.stamp_own[:, AWAKE].sum(axis=1)
    helpers = int(raw.thread_ps[job.vcpus + 1 :, AWAKE].sum())  # they do nothing but clear within the span
    everybody = raw.stamp_sums[last] - raw.stamp_sums[first]
    guest = int(everybody[AWAKE].sum() - (own[last] - own[first])) - helpers
    guest += int(raw.stamp_waits[last] - raw.stamp_waits[first])
    enable, clear = int(own[enabled] - own[first]), int(own[last] - own[enabled]) + helpers
    # An access is counted as done as its vCPU begins the next one: each has one under way at either end.
    fault = max(0, guest - undisturbed_work(scenario, int(everybody[-1]) + uncounted, access))
    parts = {"enable_cpu_time": enable, "clear_cpu_time": clear, "fault_cpu_time": fault}
    return {"logging_cpu_time": sum(parts.values()) * PS} | {name: time * PS for name, time in parts.items()}


def undisturbed_work(scenario: Scenario, accesses: int, access: int) -> int:
    """What so many accesses take when nobody takes a lock from the guest, slow faults among them, ps.

    >>> undisturbed_work(Scenario(), 1000, 2_000_000)
    2000000000
    """
    costs, workload = scenario.host_costs, scenario.workload
    if not (workload.slow_fault_every and workload.keeps_touching):
        return accesses * access
    slow = (costs.fault_unlocked or 0) + (costs.fault_hold or 0)
    return accesses * access + accesses * slow // workload.slow_fault_every
