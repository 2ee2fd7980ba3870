# SPDX-License-Identifier: BSD-3-Clause
"""Unmapping of an arm64 stage 2 entry by entry, as programs: when a VM is destroyed, or while its guest runs.

With mmu_lock held for write, each entry is cleared. Depending on the policy, its TLB entry is then invalidated by a
broadcast, which the interconnect serves one CPU at a time, and the memory that it mapped is cleaned from the data
cache. A table is freed after its last entry. After each largest block, mmu_lock is dropped if a thread waits for it.

Source: arch/arm64/kvm/mmu.c stage2_apply_range, kvm_pgtable_stage2_unmap (6.12). When a VM is destroyed, that kernel
frees its tables without maintenance (kvm_free_stage2_pgd, kvm_pgtable_stage2_destroy): `teardown_cache` and
`teardown_tlb` are then "elided", and the walk runs without the lock. A range in use is unmapped as above.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.pagetable import LINE_BYTES, PageTable
from simlib.model.policy import Policy
from simlib.model.program import REGION, Extent, Lock, Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import Map, Mode
from simlib.model.unmapping import Unmapping, unmapping
from simlib.simulator.engine.result import PS, EngineResult
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.horizon import check_within_horizon
from simlib.simulator.workloads.kernel import INTERCONNECT, STOP, KernelProgram
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    All memory is mapped when the run begins. Stamps are ``start``, ``undisturbed`` and ``unmapped``. If the
    guest does not run, its vCPUs do nothing.
    """
    kernel = KernelProgram(scenario)
    if scenario.workload.guest_runs:
        vcpu = running_vcpu(kernel, logging=False)
    else:
        with kernel.program.thread() as vcpu:
            pass
    return kernel.job(vcpu, _main(kernel), barriers=1, populated=True, shared=scenario.workload.shared)


def _main(kernel: KernelProgram) -> Thread:
    program, workload, lock = kernel.program, kernel.scenario.workload, kernel.lock("write")
    with program.thread() as main:
        kernel.stamp("start")
        if workload.guest_runs:
            program.sleep(workload.warm_up)
        kernel.stamp("undisturbed")
        if _locked(kernel.policy):
            with program.holding(lock):
                _walk(kernel, lock)
                if kernel.policy.teardown_tlb == "vm":
                    kernel.flush(held=True)
        else:
            with program.holding(lock):  # to detach the tables, which are then private to this thread
                pass
            _walk(kernel, lock)
        kernel.stamp("unmapped")
        program.signal(STOP)
    return main


def _locked(policy: Policy) -> bool:
    """True if the walk holds mmu_lock: always, unless it only frees tables that are not in use."""
    return (policy.teardown_cache, policy.teardown_tlb) != ("elided", "elided")


def _walk(kernel: KernelProgram, lock: Lock) -> None:
    """Walk stage 2 by entries of the second level; if mmu_lock is held, it is dropped after each largest block."""
    program, table = kernel.program, PageTable(kernel.scenario.guest.page_size)
    largest = table.largest_block
    with program.loop(until=REGION.done()):
        with program.extent(largest) as part:
            with program.loop(until=part.done()):
                _second_level(kernel, part)
        above = int(table.levels() > 2)
        _entries(kernel, above, tables=above, ranges=1)
        if _locked(kernel.policy) and kernel.scenario.workload.guest_runs and kernel.slot_pages > largest:
            with program.when(~REGION.done() & lock.waiters(1)), program.dropping(lock):
                program.run(kernel.costs.reacquire)


def _second_level(kernel: KernelProgram, part: Extent) -> None:
    """Unmap an entry of the second level: a block, or a table and its pages (fewer in the last table)."""
    program, size = kernel.program, kernel.block_pages

    def unmap(pages: int) -> None:
        blocks = kernel.scenario.guest.mapped_as_blocks
        program.map(Map.ZAP)
        _entries(kernel, 1 if blocks else pages + 1, tables=int(not blocks), pages=pages)

    full_tables, last_pages = divmod(kernel.slot_pages, size)
    if last_pages and full_tables:
        with program.when(REGION.pages(full_tables * size), otherwise=lambda: unmap(size)):
            unmap(last_pages)
    else:
        unmap(size if full_tables else last_pages)
    program.advance(size, part)


def _entries(kernel: KernelProgram, entries: int, tables: int, pages: int = 0, ranges: int = 0) -> None:
    """Unmap `entries` entries, of which `tables` point to tables; the others map `pages` pages."""
    program, costs, policy = kernel.program, kernel.costs, kernel.policy
    lines = pages * kernel.scenario.guest.page_size // LINE_BYTES if policy.teardown_cache == "entry" else 0
    work = entries * costs.unmap_entry + (lines * costs.clean_line if lines else 0)
    if work:
        (program.hold if _locked(policy) else program.run)(work)
    invalidations = {"entry": entries, "range": tables + ranges}.get(policy.teardown_tlb, 0)
    if invalidations and costs.tlb_invalidate:
        with program.holding(Lock(INTERCONNECT, Mode.WRITE)):
            program.hold(invalidations * costs.tlb_invalidate)


METRICS = (
    Metric("teardown_time", "s", "Time until all memory is unmapped. If the guest runs, the time starts after "
           "the warm-up.", "proportional"),
    Metric("longest_stall", "s", "Longest time that one access took; 0 if the guest does not run.", "whole"),
    *LOCKS,
)  # fmt: skip
"""Metrics of a teardown."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    return {
        "teardown_time": phase_seconds(job, raw, "unmapped"),
        "longest_stall": float(raw.lap_max_ps[: scenario.guest.vcpus].max()) * PS,
        **lock_metrics(scenario, raw),
    }


def counts(scenario: Scenario) -> Unmapping:
    """Counts of the operations that unmap the scenario's memory.

    >>> counts(Scenario.parse({"guest": {"memory": "64G"}, "workload": {"kind": "teardown"}})).entries
    32832
    """
    guest = scenario.guest
    size = guest.pages * guest.page_size
    return unmapping(PageTable(guest.page_size), size, 2 if guest.mapped_as_blocks else 1, scenario.policy)


def check_horizon(scenario: Scenario) -> None:
    """Refuse a teardown that exceeds the longest simulated time. Raises `HorizonError`."""
    time = counts(scenario).time_ps(scenario.host_costs, scenario.guest.vcpus)
    hint = "use less memory, or count the operations (simlib.simulator.workloads.teardown.counts)"
    check_within_horizon("the teardown would take {}", time, hint, extra=scenario.workload.warm_up)


KIND = WorkloadKind("teardown", build, METRICS, ("teardown_time",), measure, check_horizon)
