# SPDX-License-Identifier: BSD-3-Clause
"""KVM's selftest dirty_log_perf_test, as programs.

Source: tools/testing/selftests/kvm/dirty_log_perf_test.c `run_test` and
`vcpu_worker`, lib/perf_test_util.c `guest_code`. Each vCPU populates its own
region; dirty logging is enabled; then, in every iteration, all vCPUs touch
their pages in order and wait for each other, and the main thread does GET and
CLEAR while they are parked.
"""

from __future__ import annotations

import numpy as np

from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.scenario import Costs, Policy, Scenario
from simlib.model.steps import Discipline, Job, Map, Mode, Program, Scan, Step

MMU_LOCK, INTERCONNECT, PAGE_TABLES = range(3)
"""Indices among a job's locks: mmu_lock; broadcast invalidations; the first vCPU's own page-table word."""

_POPULATED, _GO, _DIRTIED = range(3)
_JITTER = 1
_DISCIPLINES = {"spin": Discipline.QUEUED_SPIN, "ticket": Discipline.TICKET, "rwlock": Discipline.QUEUED_RW}


def build(scenario: Scenario) -> Job:
    """The selftest's programs for one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every iteration i, ``dirtied i`` and
    ``cleared i``.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}}))
    >>> len(job.entry), job.pages, job.stamps[:4]
    (3, 2048, ('start', 'populated', 'enabled', 'dirtied 1'))
    """
    guest, costs = scenario.guest, scenario.costs
    policy = scenario.policy.resolved()
    block_pages = PageTable(guest.page_size).pages_per_block()
    program = Program()
    vcpu = _vcpu(program, scenario, policy, block_pages)
    main, stamps = _main(program, scenario, policy)
    per_vcpu = guest.pages_per_vcpu
    first = np.arange(guest.vcpus, dtype=np.int64) * per_vcpu
    pages = per_vcpu * guest.vcpus
    machine = scenario.machine
    near = machine.line_transfer_local if machine.line_transfer_local is not None else costs.line_transfer or 0
    far = machine.line_transfer_remote if machine.line_transfer_remote is not None else near
    threads = guest.vcpus + 1
    lockless = "lockless" in (policy.write_protect_fault, policy.translation_fault)
    words = threads if lockless else 0
    return Job(
        steps=np.array(program.rows, dtype=np.int64),
        entry=np.array([vcpu] * guest.vcpus + [main], dtype=np.int64),
        region=np.vstack([np.column_stack([first, first + per_vcpu]), [[0, pages]]]).astype(np.int64),
        locks=np.array([_DISCIPLINES[policy.lock], Discipline.SERVER] + [Discipline.LOCKLESS] * words, dtype=np.int64),
        local_ps=costs.line_local or 0,
        near_ps=near,
        far_ps=far,
        socket=(np.arange(threads, dtype=np.int64) % machine.cores) * machine.sockets // machine.cores,
        cvs=(0.0, float(costs.fault_jitter or 0.0)),
        pages=pages,
        block_pages=block_pages,
        mapped_as_blocks=guest.mapped_as_blocks,
        write_percent=scenario.workload.write_percent,
        stamps=stamps,
        lock_names=("mmu_lock", "interconnect", *(f"page tables of thread {i}" for i in range(words))),
        thread_names=(*(f"vcpu {i}" for i in range(guest.vcpus)), "main"),
        barriers=3,
    )


def _lock(policy: Policy, mode: str) -> tuple[int, Mode, int]:
    """Lock, mode and whether the lock is the thread's own, for one of the policy's words."""
    if mode == "lockless":
        return PAGE_TABLES, Mode.WRITE, 1
    exclusive = mode == "write" or policy.lock != "rwlock"
    return MMU_LOCK, Mode.WRITE if exclusive else Mode.READ, 0


def _fault(
    program: Program,
    costs: Costs,
    policy: Policy,
    mode: str,
    hold: int,
    invalidate: int,
    action: Map,
    logging: bool,
) -> int:
    """One fault, up to the jump back, which the caller patches; returns the fault's first step."""
    lock, how, own = _lock(policy, mode)
    entry = program.add(Step.RUN, costs.fault_exit or 0, _JITTER)
    sections = policy.fault_lock_sections
    for section in range(sections):
        take = program.add(Step.TAKE, lock, how, own)
        program.add(Step.HOLD, hold // sections, _JITTER)
        if section == sections - 1:
            if invalidate:
                program.add(Step.TAKE, INTERCONNECT, Mode.WRITE)
                program.add(Step.HOLD, invalidate, _JITTER)
                program.add(Step.DROP, INTERCONNECT, Mode.WRITE)
            program.add(Step.MAP, action, logging)
        program.add(Step.DROP, lock, how, own, take)
    program.add(Step.JUMP)
    return entry


def _touch_region(program: Program, scenario: Scenario, policy: Policy, block_pages: int, logging: bool) -> None:
    """Touch every page of the region once; the first time, the host finds the memory block by block."""
    costs = scenario.costs
    hold = costs.fault_hold or 0
    split = costs.split_hold if costs.split_hold is not None else hold
    # Only an entry that was valid can be cached by a TLB, and only some architectures broadcast.
    flush = costs.tlb_invalidate or 0 if policy.facts.fault_flush == "broadcast" else 0
    start = program.add(Step.JUMP)
    faults = (
        _fault(program, costs, policy, policy.translation_fault, hold, 0, Map.PAGE, logging),
        _fault(program, costs, policy, policy.write_protect_fault, hold, flush, Map.PAGE, logging),
        _fault(program, costs, policy, policy.split_fault, split, flush, Map.SPLIT, logging),
        _fault(program, costs, policy, policy.translation_fault, hold, 0, Map.BLOCK, logging),
    )
    end_of_faults = program.here()
    program.patch(start, a=end_of_faults)
    batch = 0
    top = end_of_faults
    if not logging:
        batch = 1 if scenario.guest.backing == "4k" else block_pages
        program.add(Step.RUN, costs.populate_block or 0)
    page = program.here()
    if costs.guest_access:
        program.add(Step.RUN, costs.guest_access)
    program.add(Step.ACCESS, *faults)
    after = program.add(Step.NEXT, page, 1, batch)
    program.add(Step.MORE, top)
    for index in range(start + 1, end_of_faults):
        if program.rows[index][0] == Step.JUMP:
            program.patch(index, a=after)


def _vcpu(program: Program, scenario: Scenario, policy: Policy, block_pages: int) -> int:
    parties = scenario.guest.vcpus + 1
    entry = program.here()
    _touch_region(program, scenario, policy, block_pages, logging=False)
    program.add(Step.BARRIER, _POPULATED, parties)
    iteration = program.add(Step.BARRIER, _GO, parties)
    _touch_region(program, scenario, policy, block_pages, logging=True)
    program.add(Step.BARRIER, _DIRTIED, parties)
    program.add(Step.REPEAT, iteration, scenario.workload.iterations)
    program.add(Step.END)
    return entry


def _main(program: Program, scenario: Scenario, policy: Policy) -> tuple[int, tuple[str, ...]]:
    costs, workload = scenario.costs, scenario.workload
    parties = scenario.guest.vcpus + 1
    stamps: list[str] = []

    def stamp(name: str) -> None:
        program.add(Step.STAMP, len(stamps))
        stamps.append(name)

    entry = program.here()
    stamp("start")
    program.add(Step.BARRIER, _POPULATED, parties)
    stamp("populated")
    if workload.initially_set:
        word = program.add(Step.SCAN, 0, Scan.SET)
        program.add(Step.NEXT, word, WORD_PAGES)
    else:
        program.add(Step.TAKE, MMU_LOCK, Mode.WRITE)
        word = program.add(Step.SCAN, costs.enable_page or 0, Scan.PROTECT)
        program.add(Step.NEXT, word, WORD_PAGES)
        program.add(Step.DROP, MMU_LOCK, Mode.WRITE)
        program.add(Step.RUN, costs.flush or 0)
    program.add(Step.MORE, word)
    stamp("enabled")
    lock, mode, _ = _lock(policy, policy.clear_lock)
    pages = scenario.guest.pages_per_vcpu * scenario.guest.vcpus
    chunk = min(pages, (workload.clear_chunk or pages * scenario.guest.page_size) // scenario.guest.page_size)
    batch = min(chunk, policy.clear_batch_pages or chunk)
    for iteration in range(1, workload.iterations + 1):
        program.add(Step.BARRIER, _GO, parties)
        program.add(Step.BARRIER, _DIRTIED, parties)
        stamp(f"dirtied {iteration}")
        take = program.add(Step.TAKE, lock, mode)
        word = program.add(Step.SCAN, costs.clear_page or 0, Scan.CLEAR)
        program.add(Step.NEXT, word, WORD_PAGES, batch, chunk)
        program.add(Step.DROP, lock, mode)
        program.add(Step.NEXT, take, 0, chunk)
        program.add(Step.RUN, costs.flush or 0)
        program.add(Step.MORE, take)
        stamp(f"cleared {iteration}")
    program.add(Step.END)
    return entry, tuple(stamps)
