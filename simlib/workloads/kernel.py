# SPDX-License-Identifier: BSD-3-Clause
"""What KVM does, as pieces of programs: faults, enabling the log, CLEAR. Every workload is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.scenario import Costs, Policy, Scenario
from simlib.model.steps import Clock, Discipline, Job, Map, Mode, Program, Scan, Step, Whose

MMU_LOCK, INTERCONNECT, REGIONS = range(3)
"""Indices among a job's locks: mmu_lock; broadcast invalidations; the first region's, if there are several."""

_JITTER = 1
_DISCIPLINES = {"spin": Discipline.QUEUED_SPIN, "ticket": Discipline.TICKET, "rwlock": Discipline.QUEUED_RW}


@dataclass
class Kernel:
    """A scenario's kernel, writing its steps into a program.

    Parameters
    ----------
    scenario : Scenario

    Attributes
    ----------
    program : Program
    policy : Policy
        With every default replaced.
    stamps : list of str
        Names of the stamps so far.
    """

    scenario: Scenario
    program: Program = field(default_factory=Program)
    stamps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Resolve what the scenario leaves to the architecture."""
        self.policy: Policy = self.scenario.policy.resolved()
        self.block_pages = PageTable(self.scenario.guest.page_size).pages_per_block()

    @property
    def costs(self) -> Costs:
        """What actions cost."""
        return self.scenario.costs

    @property
    def slot_pages(self) -> int:
        """Pages of the whole slot."""
        return self.scenario.guest.pages_per_vcpu * self.scenario.guest.vcpus

    def stamp(self, name: str) -> None:
        """Write down the time under a name."""
        self.program.add(Step.STAMP, len(self.stamps))
        self.stamps.append(name)

    def lock(self, mode: str, regions: bool = False) -> tuple[int, Mode, Whose]:
        """Lock, mode and whose lock it is, for one of the policy's words; `regions`: that of the memory at hand."""
        if mode == "lockless":
            return self.first_own_lock, Mode.WRITE, Whose.THREAD
        exclusive = mode == "write" or self.policy.lock != "rwlock"
        how = Mode.WRITE if exclusive else Mode.READ
        if regions and self.policy.lock_regions > 1:
            return REGIONS, how, Whose.REGION
        return MMU_LOCK, how, Whose.ALL

    @property
    def first_own_lock(self) -> int:
        """Index of the first vCPU's own page-table word."""
        return REGIONS + (self.policy.lock_regions if self.policy.lock_regions > 1 else 0)

    def faults(self, logging: bool) -> tuple[tuple[int, ...], list[int]]:
        """The four kinds of fault, in the order of `Step.ACCESS`.

        Returns
        -------
        entries : tuple of int
            First step of each.
        ends : list of int
            Their last steps: jumps whose target the caller fills in.
        """
        costs, policy = self.costs, self.policy
        hold = costs.fault_hold or 0
        split = costs.split_hold if costs.split_hold is not None else hold
        # Only an entry that was valid can be cached by a TLB, and only some architectures broadcast.
        flush = costs.tlb_invalidate or 0 if policy.facts.fault_flush == "broadcast" else 0
        kinds = (
            (policy.translation_fault, hold, 0, Map.PAGE),
            (policy.write_protect_fault, hold, flush, Map.PAGE),
            (policy.split_fault, split, flush, Map.SPLIT),
            (policy.translation_fault, hold, 0, Map.BLOCK),
        )
        entries, ends = [], []
        for mode, time, invalidate, action in kinds:
            entries.append(self.program.here())
            ends.append(self._fault(mode, time, invalidate, action, logging))
        return tuple(entries), ends

    def _fault(self, mode: str, hold: int, invalidate: int, action: Map, logging: bool) -> int:
        """One fault; returns the jump at its end."""
        program = self.program
        lock, how, own = self.lock(mode, regions=True)
        program.add(Step.RUN, self.costs.fault_exit or 0, _JITTER)
        sections = self.policy.fault_lock_sections
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
        return program.add(Step.JUMP)

    def slow_fault(self) -> None:
        """A fault that takes the lock whatever the log says, and changes nothing that the log knows of."""
        program, costs = self.program, self.costs
        lock, mode, whose = self.lock(self.policy.translation_fault, regions=True)
        program.add(Step.LAP, 0)
        program.add(Step.RUN, costs.fault_exit or 0, _JITTER)
        take = program.add(Step.TAKE, lock, mode, whose)
        program.add(Step.HOLD, costs.fault_hold or 0, _JITTER)
        program.add(Step.DROP, lock, mode, whose, take)
        program.add(Step.LAP, 1)

    def touch_region(self, logging: bool) -> None:
        """Touch every page of the region once; the first time, the host finds the memory block by block."""
        program, costs = self.program, self.costs
        start = program.add(Step.JUMP)
        faults, ends = self.faults(logging)
        top = program.here()
        program.patch(start, a=top)
        batch = 0
        if not logging:
            batch = 1 if self.scenario.guest.backing == "4k" else self.block_pages
            program.add(Step.RUN, costs.populate_block or 0)
        page = program.here()
        if costs.guest_access:
            program.add(Step.RUN, costs.guest_access)
        program.add(Step.ACCESS, *faults)
        after = program.add(Step.NEXT, page, 1, batch)
        program.add(Step.MORE, top)
        for end in ends:
            program.patch(end, a=after)

    def enable_log(self) -> None:
        """Turn dirty logging on for the slot: every bit set, or every page write-protected in one hold."""
        program, costs = self.program, self.costs
        if self.scenario.workload.initially_set:
            word = program.add(Step.SCAN, 0, Scan.SET)
            program.add(Step.NEXT, word, WORD_PAGES)
        else:
            lock, mode, _ = self.lock(self.policy.facts.enable_lock)
            program.add(Step.TAKE, lock, mode)
            word = program.add(Step.SCAN, costs.enable_page or 0, Scan.PROTECT)
            program.add(Step.NEXT, word, WORD_PAGES)
            program.add(Step.DROP, lock, mode)
            self.flush()
        program.add(Step.MORE, word)

    def get_log(self, anew: bool = False) -> None:
        """GET the slot's bitmap, which with manual protection takes no lock; what it costs is not modelled.

        A migration adds it to what it has yet to send; `anew`: what an earlier GET gave is forgotten, as the
        selftests' is.
        """
        program = self.program
        word = program.here()
        if anew:
            program.add(Step.SCAN, 0, Scan.SEND)
        program.add(Step.SCAN, 0, Scan.COLLECT)
        program.add(Step.NEXT, word, WORD_PAGES)
        program.add(Step.MORE, word)

    def get_and_clear_log(self) -> None:
        """GET without manual protection: it write-protects what it finds, the whole slot in one hold."""
        program = self.program
        lock, mode, whose = self.lock(self.policy.clear_lock)
        program.add(Step.TAKE, lock, mode, whose)
        word = program.add(Step.SCAN, 0, Scan.COLLECT)
        self.clear_word()
        program.add(Step.NEXT, word, WORD_PAGES)
        program.add(Step.DROP, lock, mode, whose)
        self.flush()
        program.add(Step.MORE, word)

    def clear_word(self) -> None:
        """Write-protect what the bitmap's word has, and take it out of the log."""
        costs = self.costs
        self.program.add(Step.SCAN, costs.clear_page or 0, Scan.CLEAR, costs.clear_word or 0, costs.clear_unsplit or 0)

    def flush(self) -> None:
        """Flush all TLBs: it takes the caller's time, and interrupts the vCPUs."""
        costs = self.costs
        self.program.add(Step.RUN, (costs.flush or 0) + self.scenario.guest.vcpus * (costs.flush_per_vcpu or 0))
        if costs.kick:
            self.program.add(Step.KICK, costs.kick)

    @property
    def chunk(self) -> int:
        """Pages of one CLEAR ioctl."""
        given = self.scenario.workload.clear_chunk
        return min(self.slot_pages, given // self.scenario.guest.page_size if given else self.slot_pages)

    def clear_log(self) -> None:
        """CLEAR what the last GET gave, ioctl by ioctl."""
        ioctl = self.program.here()
        self.clear_chunk()
        self.program.add(Step.MORE, ioctl)

    def clear_chunk(self, part: int = 0) -> None:
        """One CLEAR ioctl, of the chunk that begins here; within it, a hold for each batch that has anything set.

        `part`: pages of it, if not those of a whole chunk.

        Source: virt/kvm/kvm_main.c kvm_clear_dirty_log_protect; kernel-patches/ 0007 for batches, 0011 for yielding,
        0012 for what an eager split allocates.
        """
        program, costs, policy, chunk = self.program, self.costs, self.policy, part or self.chunk
        lock, mode, whose = self.lock(policy.clear_lock, regions=True)
        batch = min(chunk, policy.clear_batch_pages or chunk)
        if whose == Whose.REGION:
            batch = min(batch, self.region_pages)
        if costs.clear_ioctl:
            program.add(Step.RUN, costs.clear_ioctl)
        peek = program.add(Step.PEEK, 0, batch) if batch < chunk else None
        take = program.add(Step.TAKE, lock, mode, whose)
        word = program.here()
        if policy.eager_split and self.scenario.guest.mapped_as_blocks:
            self._split_eagerly(lock, mode, whose)
        self.clear_word()
        again = program.add(Step.NEXT, word, WORD_PAGES, batch, chunk)
        drop = program.add(Step.DROP, lock, mode, whose)
        if costs.reacquire and (batch < chunk or policy.yield_on != "never"):
            program.add(Step.RUN, costs.reacquire)
        top = take if peek is None else peek
        more = program.add(Step.NEXT, top, 0, chunk)
        if peek is not None or policy.yield_on != "never":
            over = program.add(Step.JUMP)
            if peek is not None:
                program.patch(peek, a=program.add(Step.NEXT, program.here() + 1, batch))
                program.add(Step.JUMP, more)
            if policy.yield_on == "contended":
                program.patch(again, a=program.here())
                program.add(Step.NEXT, word, 0, policy.yield_pages, chunk)
                program.add(Step.QUIET, word, lock, 1, whose)
                program.add(Step.JUMP, drop)
            program.patch(over, a=program.here())
        self.flush()

    def _split_eagerly(self, lock: int, mode: Mode, whose: Whose) -> None:
        """Before its first page is cleared, replace a block by a table."""
        program, costs = self.program, self.costs
        dropped = self.policy.split_alloc == "drop"
        split = program.add(Step.SPLIT)
        if dropped:
            program.add(Step.DROP, lock, mode, whose)
        program.add(Step.RUN if dropped else Step.HOLD, costs.split_alloc or 0)
        if dropped:
            program.add(Step.TAKE, lock, mode, whose)
        program.add(Step.HOLD, costs.split_block or 0)
        program.add(Step.MAP, Map.EAGER)
        program.patch(split, a=program.here())

    @property
    def region_pages(self) -> int:
        """Pages of one region with a lock of its own; a multiple of a block, so that no fault spans two."""
        regions = -(-self.slot_pages // self.policy.lock_regions)
        return -(-regions // self.block_pages) * self.block_pages

    def job(self, vcpu: int, main: int, barriers: int, populated: bool = False, helpers: Sequence[int] = ()) -> Job:
        """All that an engine needs: as many vCPU threads as the guest has, one main thread, and what helps it.

        Parameters
        ----------
        vcpu, main : int
            First step of each.
        barriers : int
        populated : bool
            Whether all memory is mapped from the beginning.
        helpers : sequence of int
            First steps of further threads, which walk all of the memory.
        """
        guest, costs, machine, policy = self.scenario.guest, self.costs, self.scenario.machine, self.policy
        per_vcpu, pages = guest.pages_per_vcpu, self.slot_pages
        first = np.arange(guest.vcpus, dtype=np.int64) * per_vcpu
        last = first + per_vcpu
        if self.scenario.workload.kind == "migration" and self.scenario.workload.shared:
            first, last = np.zeros_like(first), np.full_like(last, pages)
        near = machine.line_transfer_local if machine.line_transfer_local is not None else costs.line_transfer or 0
        far = machine.line_transfer_remote if machine.line_transfer_remote is not None else near
        others = 1 + len(helpers)
        threads = guest.vcpus + others
        lockless = "lockless" in (policy.write_protect_fault, policy.translation_fault)
        words = threads if lockless else 0
        regions = policy.lock_regions if policy.lock_regions > 1 else 0
        names: Sequence[str] = [f"mmu_lock of region {i}" for i in range(regions)]
        names = [*names, *(f"page tables of thread {i}" for i in range(words))]
        discipline = _DISCIPLINES[policy.lock]
        locks = [discipline, Discipline.SERVER] + [discipline] * regions + [Discipline.LOCKLESS] * words
        return Job(
            steps=np.array(self.program.rows, dtype=np.int64),
            entry=np.array([vcpu] * guest.vcpus + [main, *helpers], dtype=np.int64),
            region=np.vstack([np.column_stack([first, last]), [[0, pages]] * others]).astype(np.int64),
            locks=np.array(locks, dtype=np.int64),
            local_ps=costs.line_local or 0,
            near_ps=near,
            far_ps=far,
            socket=(np.arange(threads, dtype=np.int64) % machine.cores) * machine.sockets // machine.cores,
            cvs=(0.0, float(costs.fault_jitter or 0.0)),
            zipf=(0.0, self.scenario.workload.zipf_exponent),
            pages=pages,
            block_pages=self.block_pages,
            mapped_as_blocks=guest.mapped_as_blocks,
            populated=populated,
            lock_pages=self.region_pages,
            write_percent=self.scenario.workload.write_percent,
            stamps=tuple(self.stamps),
            lock_names=("mmu_lock", "interconnect", *names),
            thread_names=(
                *(f"vcpu {i}" for i in range(guest.vcpus)),
                "main",
                *(f"clear {i}" for i in range(len(helpers))),
            ),
            barriers=barriers,
            clock=Clock[machine.clock.upper()],
        )
