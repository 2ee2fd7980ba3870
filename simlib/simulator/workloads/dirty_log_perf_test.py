# SPDX-License-Identifier: BSD-3-Clause
"""KVM's selftest dirty_log_perf_test, as programs.

Source: tools/testing/selftests/kvm/dirty_log_perf_test.c `run_test` and `vcpu_worker`, lib/perf_test_util.c
`guest_code`. Each vCPU populates its region; dirty logging is enabled; then, in every iteration, all vCPUs touch
their pages in order and wait for each other, and the main thread does GET and CLEAR while they are parked, or has the
dirty rings reset.
"""

from __future__ import annotations

import dataclasses

from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.program import Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import EngineResult
from simlib.simulator.workloads.cpu_time import cpu_metrics, cpu_times
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds

_POPULATED, _GO, _DIRTIED = range(3)


def build(scenario: Scenario) -> Job:
    """Programs of the selftest for one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every iteration i, ``dirtied i`` and ``cleared i``.
    """
    kernel = DirtyLog(scenario)
    return kernel.job(_vcpu(kernel), _main(kernel), barriers=3)


def _vcpu(kernel: DirtyLog) -> Thread:
    program, parties = kernel.program, kernel.scenario.guest.vcpus + 1
    with program.thread() as vcpu:
        kernel.touch_region(logging=False)
        program.barrier(_POPULATED, parties)
        with program.repeat(kernel.scenario.workload.iterations):
            program.barrier(_GO, parties)
            kernel.touch_region(logging=True)
            program.barrier(_DIRTIED, parties)
    return vcpu


def _main(kernel: DirtyLog) -> Thread:
    program, parties = kernel.program, kernel.scenario.guest.vcpus + 1
    with program.thread() as main:
        kernel.stamp("start")
        program.barrier(_POPULATED, parties)
        kernel.stamp("populated")
        kernel.enable_log()
        kernel.stamp("enabled")
        for iteration in range(1, kernel.scenario.workload.iterations + 1):
            program.barrier(_GO, parties)
            program.barrier(_DIRTIED, parties)
            kernel.stamp("dirtied", iteration)
            if kernel.ring_entries:
                kernel.reap()
            else:
                kernel.get_log(anew=True)
                kernel.clear_log()
            kernel.stamp("cleared", iteration)
    return main


METRICS = (
    Metric("dirty_memory_time", "s", "From releasing the vCPUs until the last of them has accessed all its memory. "
           "Populating is not included.", "proportional", rounds=True),
    Metric("populate_time", "s", "From the start until every vCPU has accessed its memory once.", "proportional"),
    Metric("enable_time", "s", "Time taken to enable dirty logging.", "proportional"),
    Metric("clear_dirty_log_time", "s", "Time of GET and CLEAR over the slot, or of reaping the rings, while the vCPUs "
           "are parked.", "proportional", rounds=True),
    *cpu_metrics("the end of populating", "the last CLEAR", "proportional"),
    *LOCKS,
)  # fmt: skip
"""Metrics of the selftest."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    return {
        "dirty_memory_time": phase_seconds(job, raw, "dirtied"),
        "populate_time": phase_seconds(job, raw, "populated"),
        "enable_time": phase_seconds(job, raw, "enabled"),
        "clear_dirty_log_time": phase_seconds(job, raw, "cleared"),
        **cpu_times(scenario, job, raw, (Stamp("populated"), job.stamps[-1]), scenario.host_costs.guest_access or 0),
        **lock_metrics(scenario, raw),
    }


def sample(scenario: Scenario, pages_per_vcpu: int, fraction: int = 1) -> tuple[Scenario, float]:
    """Scenario with at most `pages_per_vcpu // fraction` pages per vCPU, and its scale factor.

    Pages are rounded down to whole blocks or bitmap words, but at least one. In the steady state, times and counts are
    proportional to the pages; the start and the end are not. Dirty rings require a simulation of the whole memory: the
    number of entries in them at the end of a round does not grow with the pages.
    """
    guest = scenario.guest
    unit = PageTable(guest.page_size).pages_per_block() if guest.backing != "4k" else WORD_PAGES
    pages = max(unit, pages_per_vcpu // fraction // unit * unit)
    if pages >= guest.pages_per_vcpu or scenario.workload.rings:
        return scenario, 1.0
    small = dataclasses.replace(guest, memory=None, memory_per_vcpu=pages * guest.page_size)
    total, memory = pages * guest.vcpus * guest.page_size, guest.pages * guest.page_size
    workload, costs = scenario.workload, scenario.costs
    chunk = workload.clear_chunk or memory
    if chunk > total:
        # An ioctl that covers less than before flushes more often per page: shrink the cost of its flush in
        # proportion. Faults that split a block flush as often per page as before: then the cost stays the same.
        if workload.clear_chunk is not None:
            workload = dataclasses.replace(workload, clear_chunk=total)
        policy, frequent = scenario.policy.resolved(), guest.mapped_as_blocks and guest.backing != "hugetlb_1gb"
        if not (policy.facts.split_flush and frequent and not policy.eager_split):
            known = {name: costs.given().get(name) for name in ("clear_ioctl", "flush", "flush_per_vcpu")}
            less = {name: round(cost * total / chunk) for name, cost in known.items() if cost is not None}
            costs = dataclasses.replace(costs, **less)
    part = dataclasses.replace(scenario, guest=small, workload=workload, costs=costs)
    return part, guest.pages_per_vcpu / pages


_DEFAULT = ("dirty_memory_time", "contentions")
KIND = WorkloadKind("dirty_log_perf_test", build, METRICS, _DEFAULT, measure, sample=sample, dirtying_phase="dirtied")
