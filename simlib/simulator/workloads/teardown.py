# SPDX-License-Identifier: BSD-3-Clause
"""An arm64 stage 2 unmapped entry by entry, as programs: at the end of a VM, or while its guest runs.

Under the lock for write each entry is cleared, its TLB entry invalidated by a broadcast, which the interconnect serves
one CPU at a time, and the data cache cleaned of what it mapped, as far as the policy says. A table goes when its last
entry has gone. After each largest block the lock is let go if anybody waits for it.

Source: arch/arm64/kvm/mmu.c stage2_apply_range, kvm_pgtable_stage2_unmap (6.12). Today a VM that ends has its tables
freed without maintenance (kvm_free_stage2_pgd, kvm_pgtable_stage2_destroy): `teardown_cache` and `teardown_tlb` are
then "elided", and the walk goes without the lock. Unmapping a range in use still is as above.
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
from simlib.simulator.workloads.horizon import within_horizon
from simlib.simulator.workloads.kernel import INTERCONNECT, STOP, KernelProgram
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds


def build(scenario: Scenario) -> Job:
    """The programs of one scenario.

    All memory is mapped when the run begins. Stamps are ``start``, ``undisturbed`` and ``unmapped``. The vCPUs of a
    guest that has ended do nothing.
    """
    kernel = KernelProgram(scenario)
    vcpu = running_vcpu(kernel, logging=False) if scenario.workload.guest_runs else _ended_vcpu(kernel)
    main = _main(kernel)
    return kernel.job(vcpu, main, barriers=1, populated=True, shared=scenario.workload.shared)


def _ended_vcpu(kernel: KernelProgram) -> Thread:
    with kernel.program.thread() as vcpu:
        pass
    return vcpu


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
            with program.holding(lock):  # to take the tables away; nobody else knows of them then
                pass
            _walk(kernel, lock)
        kernel.stamp("unmapped")
        program.signal(STOP)
    return main


def _locked(policy: Policy) -> bool:
    """Whether the walk holds the lock: unless it only frees tables that nobody uses."""
    return (policy.teardown_cache, policy.teardown_tlb) != ("elided", "elided")


def _walk(kernel: KernelProgram, lock: Lock) -> None:
    """All of stage 2, by entries of the second level; if the lock is held it is let go after each largest block."""
    program, table = kernel.program, PageTable(kernel.scenario.guest.page_size)
    stretch = table.largest_block
    with program.loop(until=REGION.done()):
        with program.extent(stretch) as part:
            with program.loop(until=part.done()):
                _second_level(kernel, part)
        above = int(table.levels() > 2)
        _entries(kernel, above, tables=above, ranges=1)
        if _locked(kernel.policy) and kernel.scenario.workload.guest_runs and kernel.slot_pages > stretch:
            with program.when(~REGION.done() & lock.waiters(1)), program.letting_go(lock):
                program.run(kernel.costs.reacquire)


def _second_level(kernel: KernelProgram, part: Extent) -> None:
    """An entry of the second level: a block, or a table and its pages, fewer in the last one."""
    program, size = kernel.program, kernel.block_pages

    def unmap(pages: int) -> None:
        blocks = kernel.scenario.guest.mapped_as_blocks
        program.map(Map.ZAP)
        _entries(kernel, 1 if blocks else pages + 1, tables=int(not blocks), pages=pages)

    whole, rest = divmod(kernel.slot_pages, size)
    if rest and whole:
        with program.when(REGION.pages(whole * size), otherwise=lambda: unmap(size)):
            unmap(rest)
    else:
        unmap(size if whole else rest)
    program.advance(size, part)


def _entries(kernel: KernelProgram, entries: int, tables: int, pages: int = 0, ranges: int = 0) -> None:
    """Take out entries, `tables` of them of tables; the others map so many pages."""
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
    Metric("teardown_time", "s", "Until all memory is unmapped; it begins after the warm-up if the guest runs.",
           "proportional"),
    Metric("longest_stall", "s", "Longest time that one access took; 0 if the guest has ended.", "whole"),
    *LOCKS,
)  # fmt: skip
"""What a teardown measures."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """The values of `METRICS`."""
    return {
        "teardown_time": phase_seconds(job, raw, "unmapped"),
        "longest_stall": float(raw.lap_max_ps[: scenario.guest.vcpus].max()) * PS,
        **lock_metrics(scenario, raw),
    }


def counts(scenario: Scenario) -> Unmapping:
    """What tearing the scenario's memory down does, counted.

    >>> counts(Scenario.parse({"guest": {"memory": "64G"}, "workload": {"kind": "teardown"}})).entries
    32832
    """
    guest = scenario.guest
    size = guest.pages * guest.page_size
    return unmapping(PageTable(guest.page_size), size, 2 if guest.mapped_as_blocks else 1, scenario.policy)


def check_horizon(scenario: Scenario) -> None:
    """Refuse what takes longer than is simulated.

    Raises `HorizonError`.
    """
    time = counts(scenario).time_ps(scenario.host_costs, scenario.guest.vcpus)
    less = "take less memory, or count it (simlib.simulator.workloads.teardown.counts)"
    within_horizon("the teardown would take {}", time, less, beside=scenario.workload.warm_up)


KIND = WorkloadKind("teardown", build, METRICS, ("teardown_time",), measure, check_horizon)
