# SPDX-License-Identifier: BSD-3-Clause
"""KVM's dirty log, as pieces of programs: enabling it, GET, CLEAR, the dirty ring's reset, and eager splitting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import Map, Mode, Scan, Step, Whose
from simlib.workloads.kernel import Kernel


@dataclass
class DirtyLog(Kernel):
    """A kernel that logs which pages its guest writes."""

    @property
    def initially_set(self) -> bool:
        """Whether every page is dirty when logging begins: a part of manual protection, which those two do without."""
        workload = self.scenario.workload
        return workload.initially_set and workload.clear_when not in ("at_get", "ring")

    @property
    def splits_eagerly(self) -> bool:
        """Whether KVM splits blocks before the guest's writes do."""
        return bool(self.policy.eager_split) and self.scenario.guest.mapped_as_blocks

    def enable_log(self) -> None:
        """Turn dirty logging on for the slot: every bit set; or every block split and every page write-protected.

        Source: arch/x86/kvm/x86.c kvm_mmu_slot_apply_flags; arch/arm64/kvm/mmu.c kvm_arch_commit_memory_region.
        """
        program, costs, mode = self.program, self.costs, self.policy.facts.enable_lock
        if self.initially_set:
            self._scan_all(Scan.SET)
            return
        if self.splits_eagerly:
            program.add(Step.MORE, self._sweep(mode, self.block_pages, self._split_eagerly))
        start = self._sweep(mode, WORD_PAGES, lambda *_: program.add(Step.SCAN, costs.enable_page or 0, Scan.PROTECT))
        self.flush()
        program.add(Step.MORE, start)

    def _scan_all(self, action: Scan) -> None:
        """Walk the slot's bitmap without a lock."""
        word = self.program.add(Step.SCAN, 0, action)
        self.program.add(Step.NEXT, word, WORD_PAGES)
        self.program.add(Step.MORE, word)

    def _sweep(self, mode: str, stride: int, body: Callable[[int, Mode, Whose], object]) -> int:
        """Walk the slot in one hold, or in one for each region with a lock of its own; returns the first step."""
        program = self.program
        lock, how, whose = self.lock(mode, regions=True)
        region = self.region_pages if whose == Whose.REGION else 0
        take = program.add(Step.TAKE, lock, how, whose)
        here = program.here()
        body(lock, how, whose)
        program.add(Step.NEXT, here, stride, region)
        program.add(Step.DROP, lock, how, whose)
        if region:
            program.add(Step.RUN, self.costs.reacquire or 0)
            program.add(Step.NEXT, take, 0)
        return take

    def send_all(self) -> None:
        """Put every page into userspace's bitmap: all have yet to be sent, whatever the log has of them."""
        self._scan_all(Scan.ALL)

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
        """GET without manual protection: it write-protects what it finds; or the dirty ring's reset, which does.

        GET does it in one hold, or in batches. The ring's reset takes the lock for each run of entries that lie within
        64 pages; runs are taken for words, or for single pages where the guest does not write page after page.

        Source: virt/kvm/kvm_main.c kvm_get_dirty_log_protect; virt/kvm/dirty_ring.c kvm_dirty_ring_reset.
        """
        program, workload = self.program, self.scenario.workload
        ring = workload.clear_when == "ring"
        if not ring and not self.policy.get_batch_pages:
            start = self._sweep(self.policy.clear_lock, WORD_PAGES, self._get_and_clear_word)
        else:
            pages = WORD_PAGES if ring else self._batch(self.policy.get_batch_pages, self.slot_pages)
            start = program.here()
            program.add(Step.SCAN, 0, Scan.COLLECT)
            program.add(Step.NEXT, start, WORD_PAGES, pages)
            program.add(Step.BACK, pages)
            self._clear_runs(pages, 1 if ring and workload.access != "sequential" else pages)
            program.add(Step.NEXT, start, 0)
        self.flush()
        program.add(Step.MORE, start)

    def _get_and_clear_word(self, *_: object) -> None:
        self.program.add(Step.SCAN, 0, Scan.COLLECT)
        self.clear_word()

    def _clear_runs(self, pages: int, run: int) -> None:
        """Clear so many pages in holds of a run each, leaving out those that have nothing set."""
        program = self.program
        lock, mode, whose = self.lock(self.policy.clear_lock, regions=True)
        peek = program.add(Step.PEEK, 0, run)
        program.add(Step.TAKE, lock, mode, whose)
        word = program.here()
        self.clear_word(Scan.CLEAR_PAGE if run == 1 else Scan.CLEAR)
        program.add(Step.NEXT, word, min(run, WORD_PAGES), run)
        program.add(Step.DROP, lock, mode, whose)
        program.add(Step.RUN, self.costs.reacquire or 0)
        more = program.add(Step.NEXT, peek, 0, pages)
        over = program.add(Step.JUMP)
        program.patch(peek, a=program.add(Step.NEXT, program.here() + 1, run))
        program.add(Step.JUMP, more)
        program.patch(over, a=program.here())

    def clear_word(self, action: Scan = Scan.CLEAR) -> None:
        """Write-protect what the bitmap's word has, and take it out of the log."""
        costs = self.costs
        self.program.add(Step.SCAN, costs.clear_page or 0, action, costs.clear_word or 0, costs.clear_unsplit or 0)

    @property
    def chunk(self) -> int:
        """Pages of one CLEAR ioctl."""
        given = self.scenario.workload.clear_chunk
        return given // self.scenario.guest.page_size if given else self.slot_pages

    def _batch(self, pages: int, *starts: int) -> int:
        """Pages of one hold: at most so many, and none that reaches beyond a region with a lock of its own.

        `starts`: where sequences of holds begin, at multiples of these numbers of pages.
        """
        if self.policy.lock_regions > 1:
            return math.gcd(pages, self.region_pages, *(start for start in starts if start < self.slot_pages))
        return pages

    def clear_log(self, part: int = 0) -> None:
        """CLEAR what the last GET gave, ioctl by ioctl; `part`: pages of this thread's region, if not all."""
        ioctl = self.program.here()
        self.clear_chunk(min(self.chunk, part or self.slot_pages), part or self.slot_pages)
        self.program.add(Step.MORE, ioctl)

    def clear_chunk(self, chunk: int, part: int = 0) -> None:
        """One CLEAR ioctl, of the chunk that begins here; within it, a hold for each batch that has anything set.

        Parameters
        ----------
        chunk : int
            Its pages.
        part : int
            Pages of the thread's region, which begins at a multiple of it; if not all.

        Notes
        -----
        Source: virt/kvm/kvm_main.c kvm_clear_dirty_log_protect; kernel-patches/ 0007 for batches, 0011 for yielding,
        0012 for what an eager split allocates.
        """
        program, costs, policy = self.program, self.costs, self.policy
        lock, mode, whose = self.lock(policy.clear_lock, regions=True)
        batch = self._batch(min(chunk, policy.clear_batch_pages or chunk), chunk, part or self.slot_pages)
        if costs.clear_ioctl:
            program.add(Step.RUN, costs.clear_ioctl)
        peek = program.add(Step.PEEK, 0, batch) if batch < chunk else None
        take = program.add(Step.TAKE, lock, mode, whose)
        word = program.here()
        if self.splits_eagerly:
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
            if policy.yield_on != "never":
                program.patch(again, a=program.here())
                program.add(Step.NEXT, word, 0, policy.yield_pages, chunk)
                crowd = self.scenario.guest.vcpus if policy.yield_on == "vcpus" else 0
                program.add(Step.QUIET, word, -1 if whose == Whose.REGION else lock, policy.yield_waiters, crowd)
                program.add(Step.JUMP, drop)
            program.patch(over, a=program.here())
        self.flush()

    def _split_eagerly(self, lock: int, mode: Mode, whose: Whose) -> None:
        """Before its first page is cleared, replace a block by a table.

        Source: arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_split_huge_pages_root and tdp_mmu_alloc_sp_for_split.
        """
        program, costs, alloc = self.program, self.costs, self.policy.split_alloc
        dropped = alloc == "drop" or (alloc == "under_read_lock" and mode == Mode.WRITE)
        split = program.add(Step.SPLIT)
        if dropped:
            program.add(Step.DROP, lock, mode, whose)
        program.add(Step.RUN if dropped else Step.HOLD, costs.split_alloc or 0)
        if dropped:
            program.add(Step.TAKE, lock, mode, whose)
        program.add(Step.HOLD, costs.split_block or 0)
        program.add(Step.MAP, Map.EAGER)
        program.patch(split, a=program.here())
