# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes, as programs: the selftest mmu_lock_contention_test of ``kernel-patches/``.

Each vCPU populates its region. Then, beginning at a random page, it accesses the pages of the region in order,
again and again, until the rounds are over, and reads its stopwatch after every access; waits caused by enabling the log
are not counted. The main thread enables dirty logging; in every round it sleeps for a while, then does GET and CLEAR,
or leaves CLEAR to threads, one per part of the slot. A vCPU that shares a CPU with the main thread waits while the main
thread is awake. At the end, every vCPU makes one more access.
"""

from __future__ import annotations

from simlib._lib.errors import InputError
from simlib.model.conditions import Condition
from simlib.model.job import Job
from simlib.model.program import REGION, Thread, raised
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import PS, EngineResult, lap_quantile
from simlib.simulator.workloads.cpu_time import cpu_metrics, cpu_times
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds

_POPULATED, _GO, _CLEARED, _AWAY, _BACK = range(5)
_STOP, _MEASURE, _WAKES = range(3)
"""Flags; `_WAKES` is the flag of the first round."""


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every round i, ``rested i`` and ``cleared i``. Raises
    `InputError` if an access of the guest takes no time: it would loop for ever at one instant.
    """
    if scenario.costs.guest_access == 0:
        raise InputError("costs.guest_access", 0, "must be more than 0 for clear_under_load")
    kernel = DirtyLog(scenario)
    preempted = scenario.workload.preempted_vcpus
    vcpus = [_vcpu(kernel)] * (scenario.guest.vcpus - preempted)
    if preempted:
        vcpus += [_vcpu(kernel, preempted=True)] * preempted
    main = _main(kernel)
    threads = scenario.workload.clear_threads
    helpers = [_helper(kernel)] * threads if threads else []
    return kernel.job(vcpus, main, barriers=5, helpers=helpers, parts=max(1, threads))


def _vcpu(kernel: DirtyLog, preempted: bool = False) -> Thread:
    program, guest, workload = kernel.program, kernel.scenario.guest, kernel.scenario.workload
    parties = 1 + workload.preempted_vcpus
    with program.thread() as vcpu:
        kernel.touch_region(logging=False)
        program.barrier(_POPULATED, guest.vcpus + 1)
        program.seek()
        program.start_stopwatch()

        def work(until: Condition) -> None:
            with program.loop() as life:
                with program.loop(until=REGION.done()):
                    program.run(kernel.costs.guest_access)
                    kernel.access(logging=True)
                    with program.when(raised(_MEASURE), otherwise=program.start_stopwatch):
                        program.read_stopwatch()
                    life.leave_if(until)
                    if workload.flush_accesses:
                        with program.every(workload.flush_accesses):
                            program.run(kernel.costs.guest_flush)
                    program.advance(1)
                program.back(REGION)

        for number in range(workload.iterations if preempted else 0):
            work(until=raised(_WAKES + number))
            kernel.drain()
            program.barrier(_AWAY, parties)
            program.barrier(_BACK, parties)
        work(until=raised(_STOP))
    return vcpu


def _main(kernel: DirtyLog) -> Thread:
    program, workload = kernel.program, kernel.scenario.workload
    threads, parties = workload.clear_threads, 1 + workload.preempted_vcpus
    with program.thread() as main:
        kernel.stamp("start")
        program.barrier(_POPULATED, kernel.scenario.guest.vcpus + 1)
        kernel.stamp("populated")
        kernel.enable_log()
        kernel.stamp("enabled")
        for number in range(1, workload.iterations + 1):
            program.sleep(workload.pause)
            program.signal(_MEASURE)
            if workload.preempted_vcpus:
                program.signal(_WAKES + number - 1)
                program.barrier(_AWAY, parties)
            kernel.stamp("rested", number)
            kernel.get_log(anew=True)
            if threads:
                program.barrier(_GO, 1 + threads)
                program.barrier(_CLEARED, 1 + threads)
            else:
                kernel.clear_log()
            kernel.stamp("cleared", number)
            if workload.preempted_vcpus:
                program.barrier(_BACK, parties)
        program.signal(_STOP)
    return main


def _helper(kernel: DirtyLog) -> Thread:
    """A thread that clears its part of the slot in every round."""
    program, workload = kernel.program, kernel.scenario.workload
    with program.thread("clear") as helper, program.repeat(workload.iterations):
        program.barrier(_GO, 1 + workload.clear_threads)
        kernel.clear_log()
        program.barrier(_CLEARED, 1 + workload.clear_threads)
    return helper


METRICS = (
    Metric("clear_dirty_log_time", "s", "Time of GET and CLEAR over the slot while the guest writes.", rounds=True),
    Metric("longest_stall", "s", "Longest time that one access took after the first GET began.", "whole"),
    *(Metric(f"gap_p{digits}", "s",
             f"{title} of the gaps between successive accesses of a vCPU, from the start of the first GET.")
      for digits, title in (("50", "Median"), ("99", "99th percentile"), ("999", "99.9th percentile"))),
    Metric("populate_time", "s", "From the start until every vCPU has accessed its memory once."),
    *cpu_metrics("the end of populating", "the last CLEAR"),
    *LOCKS,
)  # fmt: skip
"""Metrics of CLEAR under load. A part of the memory does not represent the whole."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    workload, costs = scenario.workload, scenario.host_costs
    access = costs.guest_access or 0
    if workload.flush_accesses:
        access += round((costs.guest_flush or 0) / workload.flush_accesses)
    # A preempted vCPU accesses its page again later; its first access to it counts as under way.
    repeated = workload.preempted_vcpus * (workload.iterations - 1)
    laps = raw.lap_histogram
    return {
        "clear_dirty_log_time": phase_seconds(job, raw, "cleared"),
        "longest_stall": float(raw.lap_max_ps.max()) * PS,
        **{f"gap_p{digits}": lap_quantile(laps, float(f"0.{digits}")) for digits in ("50", "99", "999")},
        "populate_time": phase_seconds(job, raw, "populated"),
        **cpu_times(scenario, job, raw, (Stamp("populated"), job.stamps[-1]), access, repeated),
        **lock_metrics(scenario, raw),
    }


KIND = WorkloadKind("clear_under_load", build, METRICS, ("clear_dirty_log_time", "longest_stall"), measure)
