# SPDX-License-Identifier: BSD-3-Clause
"""KVM's locks, page faults and TLB flushes, as pieces of programs, and the job that they end up in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simlib.model.costs import Costs
from simlib.model.pagetable import PageTable
from simlib.model.scenario import Policy, Scenario
from simlib.model.steps import Clock, Discipline, Job, Map, Mode, Program, Stamp, Step, Whose

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
    stamps : list of Stamp
        Those so far.
    """

    scenario: Scenario
    program: Program = field(default_factory=Program)
    stamps: list[Stamp] = field(default_factory=list)

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

    def stamp(self, phase: str, number: int = 0) -> None:
        """Write down the time at which a phase ends, or a round of it."""
        self.program.add(Step.STAMP, len(self.stamps))
        self.stamps.append(Stamp(phase, number))

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
        slow, fast = policy.fault_lock_sections, self.scenario.policy.fault_lock_sections or 1
        # Only an entry that was valid can be cached by a TLB, and only some architectures broadcast.
        flush = costs.tlb_invalidate or 0 if policy.facts.fault_flush == "broadcast" else 0
        whole = Map.BLOCK if self.scenario.guest.mapped_as_blocks else Map.PAGE
        kinds = (
            (policy.translation_fault, hold, 0, Map.PAGE, slow),
            (policy.write_protect_fault, hold, flush, Map.PAGE, fast),
            (policy.split_fault, split, flush, Map.SPLIT, slow),
            (policy.translation_fault, hold, 0, whole, slow),
        )
        entries, ends = [], []
        for mode, time, invalidate, action, sections in kinds:
            entries.append(self.program.here())
            ends.append(self._fault(mode, time, invalidate, action, sections, logging))
        return tuple(entries), ends

    def _fault(self, mode: str, hold: int, invalidate: int, action: Map, sections: int, logging: bool) -> int:
        """One fault; returns the jump at its end."""
        program = self.program
        lock, how, own = self.lock(mode, regions=True)
        program.add(Step.RUN, self.costs.fault_exit or 0, _JITTER)
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

    def flush(self, held: bool = False) -> None:
        """Flush all TLBs: it takes the caller's time, and interrupts the vCPUs; `held`: with the lock held."""
        costs = self.costs
        time = (costs.flush or 0) + self.scenario.guest.vcpus * (costs.flush_per_vcpu or 0)
        self.program.add(Step.HOLD if held else Step.RUN, time)
        if costs.kick:
            self.program.add(Step.KICK, costs.kick)

    @property
    def region_pages(self) -> int:
        """Pages of one region with a lock of its own; a multiple of a block, so that no fault spans two."""
        regions = -(-self.slot_pages // self.policy.lock_regions)
        return -(-regions // self.block_pages) * self.block_pages

    def job(
        self, vcpu: int, main: int, barriers: int, populated: bool = False, helpers: Sequence[int] = (), parts: int = 1
    ) -> Job:
        """All that an engine needs: as many vCPU threads as the guest has, one main thread, and what helps it.

        Parameters
        ----------
        vcpu, main : int
            First step of each.
        barriers : int
        populated : bool
            Whether all memory is mapped from the beginning.
        helpers : sequence of int
            First steps of further threads.
        parts : int
            Into how many parts the memory is divided, of which each further thread walks the next one.
        """
        guest, costs, machine, policy = self.scenario.guest, self.costs, self.scenario.machine, self.policy
        per_vcpu, pages = guest.pages_per_vcpu, self.slot_pages
        first = np.arange(guest.vcpus, dtype=np.int64) * per_vcpu
        last = first + per_vcpu
        if self.scenario.workload.kind in ("migration", "zap") and self.scenario.workload.shared:
            first, last = np.zeros_like(first), np.full_like(last, pages)
        near = machine.line_transfer_local if machine.line_transfer_local is not None else costs.line_transfer or 0
        far = machine.line_transfer_remote if machine.line_transfer_remote is not None else near
        threads = guest.vcpus + 1 + len(helpers)
        part = pages // parts
        walks = [(0, pages), *((i % parts * part, (i % parts + 1) * part) for i in range(len(helpers)))]
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
            region=np.vstack([np.column_stack([first, last]), walks]).astype(np.int64),
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
