# SPDX-License-Identifier: BSD-3-Clause
"""KVM's dirty log, as parts of programs: enabling it, GET, CLEAR, the reset of dirty rings, and eager splitting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from simlib.model import strategy
from simlib.model.conditions import Condition
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import REGION, Extent, Lock, Thread, in_buffer, in_ring, mapped_by_block, raised
from simlib.model.steps import ALL, Map, Mode, Scan
from simlib.simulator.workloads.kernel import JITTER, STOP, USERSPACE, KernelProgram


@dataclass
class DirtyLog(KernelProgram):
    """A kernel that logs the pages that its guest writes."""

    @property
    def initially_set(self) -> bool:
        """True if every page is dirty when logging begins, which needs manual protection (not `at_get`, `ring`)."""
        workload = self.scenario.workload
        manual = workload.facts.manual and workload.clear_when not in ("at_get", "ring")
        return workload.initially_set and manual

    @property
    def splits_eagerly(self) -> bool:
        """True if KVM splits blocks before the guest writes to them."""
        return bool(self.policy.eager_split) and self.scenario.guest.mapped_as_blocks

    @property
    def faults_split(self) -> bool:
        """True if a write, or CLEAR, may meet a block that was not split before."""
        return super().faults_split and not self.splits_eagerly

    def enable_log(self) -> None:
        """Enable dirty logging for the slot: set every bit, or write-protect every page (after an eager split).

        Source: arch/x86/kvm/x86.c kvm_mmu_slot_apply_flags; arch/arm64/kvm/mmu.c kvm_arch_commit_memory_region. In
        Linux 3.11, arch/x86/kvm/mmu.c spte_write_protect dropped blocks.
        """
        program, lock = self.program, self.lock(self.policy.facts.enable_lock, regions=True)
        program.note("enable dirty logging")
        if self.initially_set:
            self.scan_all(Scan.SET)
            return
        if self.splits_eagerly:
            self._sweep(lock, self.block_pages, lambda: self._split_eagerly(lock))

        def protect() -> None:
            if self.policy.enable_blocks == "drop":
                with program.when(mapped_by_block()):
                    program.hold(self.costs.enable_page)
                    program.map(Map.ZAP)
            if self.policy.facts.enable_by_rmap and self.faults_split:
                with program.when(mapped_by_block()):  # the cost of CLEAR for a word of such a block
                    program.hold(WORD_PAGES * self.costs.clear_unsplit + self.costs.clear_page)
            program.scan(Scan.PROTECT, self.costs.enable_page)

        self._sweep(lock, WORD_PAGES, protect)
        self.flush()

    def _sweep(self, lock: Lock, stride: int, act: Callable[[], None]) -> None:
        """Apply `act` to the slot in one hold, or in one hold for each region with a separate lock."""
        program = self.program
        with self._lock_regions() as extent:
            with program.holding(lock), program.loop(until=extent.done()):
                act()
                program.advance(stride, extent)
            if extent is not REGION:
                program.run(self.costs.reacquire)
        program.back(REGION)

    @contextmanager
    def _lock_regions(self, within: Extent = REGION) -> Iterator[Extent]:
        """Run the ``with`` block for all pages of the extent, or in turn for each region with a separate lock."""
        if self.policy.lock_regions == 1:
            yield within
            return
        with self.program.loop(until=within.done()), self.program.extent(self.region_pages, aligned=True) as region:
            yield region

    def scan_all(self, *actions: Scan) -> None:
        """Scan the slot's bitmap without a lock."""
        with self.program.loop(until=REGION.done()):
            for action in actions:
                self.program.scan(action)
            self.program.advance(WORD_PAGES)
        self.program.back(REGION)

    def get_log(self, anew: bool = False) -> None:
        """GET the slot's bitmap; with manual protection, it takes no lock. Its cost is not modelled.

        A migration adds the pages to those that it has yet to send. `anew`: forget the pages of earlier GETs, as the
        selftests do.
        """
        self.program.note("KVM_GET_DIRTY_LOG")
        scans = self.sync_log()
        self.scan_all(*([Scan.SEND] if anew else []), *scans, Scan.COLLECT)

    def get_and_clear_log(self) -> None:
        """GET without manual protection, which write-protects the pages that it finds.

        Source: virt/kvm/kvm_main.c kvm_get_dirty_log_protect; kernel-patches/ 0007 for dropping the lock, 0017 for
        GET without the lock. In 3.11, arch/x86/kvm/x86.c kvm_vm_ioctl_get_dirty_log flushed TLBs under the lock.
        """
        program, policy, lock = self.program, self.policy, self.clear_lock
        flush_held = policy.get_flush == "under_lock" and lock is not None
        program.note("KVM_GET_DIRTY_LOG, which clears")
        if scans := self.sync_log():
            self.scan_all(*scans)

        def get_word(extent: Extent) -> None:
            program.scan(Scan.COLLECT)
            self.clear_word()
            program.advance(WORD_PAGES, extent)

        at_end = (lambda: self.flush(held=True)) if flush_held else None
        self._in_holds(lock, REGION, policy.get_drop_when, Extent.dirty, get_word, at_end)
        if not flush_held:
            self.flush()
        program.back(REGION)

    def leave(self, timed: bool) -> Callable[[], None] | None:
        """Handler of a vCPU whose log buffer or dirty ring is full; None if it has neither."""
        return (lambda: self._make_room(timed)) if self.buffer_entries or self.ring_entries else None

    def _make_room(self, timed: bool) -> None:
        """Empty the log buffer; if the ring is full, exit to userspace and have all rings reset.

        Source: arch/x86/kvm/vmx/vmx.c handle_pml_full, virt/kvm/dirty_ring.c kvm_dirty_ring_check_request (6.12); QEMU
        accel/kvm/kvm-all.c kvm_cpu_exec, KVM_EXIT_DIRTY_RING_FULL.
        """
        program, costs = self.program, self.costs
        program.note("the log buffer or the dirty ring is full")
        if timed:
            program.start_stopwatch()
        if self.buffer_entries:
            with program.when(in_buffer(self.buffer_entries)):
                program.run(costs.log_exit, JITTER)
            self.drain()
        if self.ring_entries:
            with program.when(in_ring(self.scenario.ring_full)):
                program.run(costs.ring_exit, JITTER)
                self.reap()
                if self.throttle is not None and self.throttle.limit:
                    program.dirty_limit_sleep()
        if timed:
            self.read_stopwatch()

    def sync_log(self) -> list[Scan]:
        """Collect what hardware has logged before GET or CLEAR, and return the scans that this requires.

        The vCPUs flush their log buffers; without log buffers, every entry of the page table is visited.
        """
        program, costs = self.program, self.costs
        self.sync_buffers()
        if self.buffer_entries or not self.tracking.dirty_bits:
            return []
        self._sweep(self.lock("write", regions=True), WORD_PAGES, lambda: program.hold(WORD_PAGES * costs.walk_entry))
        return [Scan.SYNC]

    def sync_buffers(self) -> None:
        """Make every vCPU flush its log buffer, if it has one, without waiting.

        Source: arch/x86/kvm/x86.c kvm_arch_sync_dirty_log (6.12).
        """
        if self.buffer_entries:
            self.program.run(self.scenario.guest.vcpus * self.costs.log_kick)
            self.kick(self.costs.log_exit, self.drain_cost)

    def sync_rings(self) -> None:
        """Make every vCPU leave the guest, one after another, and reap the rings, as userspace does.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_flush.
        """
        program, costs = self.program, self.costs
        program.note("reap all dirty rings")
        with program.holding(Lock(USERSPACE, Mode.WRITE)):
            program.run(self.scenario.guest.vcpus * costs.ring_exit)
            self.kick(costs.ring_exit, self.drain_cost)
            self._reap()
            self.scan_all(Scan.TAKE)

    def harvest_stopped_rings(self) -> None:
        """Harvest the rings of the stopped guest; the cost is not modelled."""
        with self.program.holding(Lock(USERSPACE, Mode.WRITE)):
            self.kick(0)
            self.program.harvest(0)
            self.scan_all(Scan.TAKE)

    def reap(self) -> None:
        """Harvest the rings of all vCPUs, and have KVM reset them."""
        with self.program.holding(Lock(USERSPACE, Mode.WRITE)):
            self._reap()

    def _reap(self) -> None:
        """Reap with userspace's lock held; the reset takes mmu_lock for each run of entries within 64 pages.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_reap; virt/kvm/dirty_ring.c kvm_dirty_ring_reset (6.12).
        """
        program, costs, lock = self.program, self.costs, self.clear_lock
        program.harvest(costs.ring_entry)
        with program.for_each_run(costs.reset_entry):
            with nullcontext() if lock is None else program.holding(lock):
                self.clear_word(Scan.PROTECT_RUN)
            program.run(0 if lock is None else costs.reacquire)
        self.flush()

    def reaper(self, first: int | None = None) -> Thread:
        """Userspace's thread that reaps the rings periodically, until the flag `STOP` is raised.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_reaper_thread.

        - `first`: time of its first reap, ps; None: the end of a whole sleep.
        """
        program, every = self.program, self.scenario.workload.reap_every
        with program.thread("reap") as thread:
            program.sleep(every if first is None else first)
            with program.loop() as life:
                life.leave_if(raised(STOP))
                self.reap()
                program.sleep(every)
        return thread

    @property
    def clear_lock(self) -> Lock | None:
        """Lock held while pages are cleared; None: no lock."""
        mode = self.policy.clear_lock
        return None if mode == "lockless" else self.lock(mode, regions=True)

    def clear_word(self, action: Scan = Scan.CLEAR) -> None:
        """Write-protect the pages of the bitmap's word, or clear their dirty bits; remove them from the log."""
        costs = self.costs
        page = costs.value_or("lockless_page", "clear_page") if self.clear_lock is None else costs.clear_page
        self.program.scan(action, page, costs.clear_word, costs.clear_unsplit if self.faults_split else 0)

    @property
    def chunk(self) -> int:
        """Pages of one CLEAR ioctl."""
        clear_chunk = self.scenario.workload.clear_chunk
        return clear_chunk // self.scenario.guest.page_size if clear_chunk else self.slot_pages

    def clear_log(self) -> None:
        """CLEAR the pages of the last GET in the thread's region, ioctl by ioctl."""
        program = self.program
        with program.loop(until=REGION.done()), program.extent(self.chunk) as chunk:
            self.clear_chunk(chunk)
        program.back(REGION)

    def clear_chunk(self, chunk: Extent) -> None:
        """CLEAR the remainder of a chunk with one ioctl.

        Source: virt/kvm/kvm_main.c kvm_clear_dirty_log_protect; kernel-patches/ 0007 and 0011 for dropping the lock,
        0012 for the allocations of an eager split.
        """
        program, lock = self.program, self.clear_lock
        program.note("KVM_CLEAR_DIRTY_LOG")
        if self.costs.clear_ioctl:
            program.run(self.costs.clear_ioctl)
        self.sync_buffers()

        def clear(extent: Extent) -> None:
            if self.splits_eagerly:
                self._split_eagerly(lock)
            self.clear_word()
            program.advance(WORD_PAGES, extent)

        self._in_holds(lock, chunk, self.policy.clear_drop_when, Extent.collected, clear)
        self.flush()

    def _in_holds(
        self,
        lock: Lock | None,
        extent: Extent,
        drop_when: Condition,
        has_work: Callable[[Extent], Condition],
        act: Callable[[Extent], None],
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """Apply `act` to each word of an extent with the lock held; the strategy decides when a hold ends.

        `at_end` is called at the end of each hold. Without a lock there are no holds.

        If the strategy never drops the lock, the lock is taken once, even if there is nothing to do. Otherwise a hold
        begins at the first word that has something to do, as in kernel-patches/ 0007.
        """
        program = self.program
        if lock is None:
            with program.loop(until=extent.done()):
                act(extent)
            return
        if isinstance(drop_when, strategy.NeverDrop):
            with self._lock_regions(extent) as region:
                with program.holding(lock):
                    with program.loop(until=region.done()):
                        act(region)
                    if at_end is not None:
                        at_end()
                if region is not extent:
                    program.run(self.costs.reacquire)
            return
        with self._lock_regions(extent) as region, program.loop(until=region.done()), program.extent(ALL) as hold:
            ends = hold.done() | strategy.bind(drop_when, hold, lock, self.block_pages)
            with program.extent(WORD_PAGES) as word, program.when(has_work(word), otherwise=lambda: program.skip(word)):
                with program.holding(lock):
                    with program.loop(until=ends):
                        act(hold)
                    if at_end is not None:
                        at_end()
                    self.adapt(drop_when, lock)
                program.run(self.costs.reacquire)

    def _split_eagerly(self, lock: Lock | None) -> None:
        """Replace a block by a table before its first page is cleared; take a lock if none is held.

        Source: arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_split_huge_pages_root and tdp_mmu_alloc_sp_for_split.
        """
        program = self.program
        with program.when(mapped_by_block()):
            if lock is not None:
                self._split(lock)
                return
            split_lock = self.lock("write", regions=True)
            with program.holding(split_lock):
                self._split(split_lock)

    def _split(self, lock: Lock) -> None:
        """Replace the block by a table, with a lock held."""
        program, costs, alloc = self.program, self.costs, self.policy.split_alloc
        if alloc == "drop" or (alloc == "under_read_lock" and lock.mode is Mode.WRITE):
            with program.dropping(lock):
                program.run(costs.split_alloc)
        else:
            program.hold(costs.split_alloc)
        program.hold(costs.split_block)
        program.map(Map.EAGER)
