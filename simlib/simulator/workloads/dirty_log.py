# SPDX-License-Identifier: BSD-3-Clause
"""KVM's dirty log, as pieces of programs: enabling it, GET, CLEAR, the dirty ring's reset, and eager splitting."""

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
    """A kernel that logs which pages its guest writes."""

    @property
    def initially_set(self) -> bool:
        """Whether every page is dirty when logging begins: a part of manual protection, which those two do without."""
        workload = self.scenario.workload
        manual = workload.facts.manual and workload.clear_when not in ("at_get", "ring")
        return workload.initially_set and manual

    @property
    def splits_eagerly(self) -> bool:
        """Whether KVM splits blocks before the guest's writes do."""
        return bool(self.policy.eager_split) and self.scenario.guest.mapped_as_blocks

    @property
    def faults_split(self) -> bool:
        """Whether a write, or CLEAR, may meet a block that was not split before."""
        return super().faults_split and not self.splits_eagerly

    def enable_log(self) -> None:
        """Turn dirty logging on for the slot: every bit set; or every block split and every page write-protected.

        Source: arch/x86/kvm/x86.c kvm_mmu_slot_apply_flags; arch/arm64/kvm/mmu.c kvm_arch_commit_memory_region. Blocks
        were dropped by arch/x86/kvm/mmu.c spte_write_protect as of 3.11.
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
                with program.when(mapped_by_block()):  # what CLEAR takes for a word of such a block
                    program.hold(WORD_PAGES * self.costs.clear_unsplit + self.costs.clear_page)
            program.scan(Scan.PROTECT, self.costs.enable_page)

        self._sweep(lock, WORD_PAGES, protect)
        self.flush()

    def _sweep(self, lock: Lock, stride: int, act: Callable[[], None]) -> None:
        """Walk the slot in one hold, or in one for each region with a lock of its own."""
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
        """Do the block for all pages of the extent, or for those of each region with a lock of its own, in turn."""
        if self.policy.lock_regions == 1:
            yield within
            return
        with self.program.loop(until=within.done()), self.program.extent(self.region_pages, aligned=True) as region:
            yield region

    def scan_all(self, *actions: Scan) -> None:
        """Walk the slot's bitmap without a lock."""
        with self.program.loop(until=REGION.done()):
            for action in actions:
                self.program.scan(action)
            self.program.advance(WORD_PAGES)
        self.program.back(REGION)

    def get_log(self, anew: bool = False) -> None:
        """GET the slot's bitmap, which with manual protection takes no lock; what it costs is not modelled.

        A migration adds it to what it has yet to send; `anew`: what an earlier GET gave is forgotten, as the
        selftests' is.
        """
        self.program.note("KVM_GET_DIRTY_LOG")
        looks = self.sync_log()
        self.scan_all(*([Scan.SEND] if anew else []), *looks, Scan.COLLECT)

    def get_and_clear_log(self) -> None:
        """GET without manual protection: it write-protects what it finds.

        Source: virt/kvm/kvm_main.c kvm_get_dirty_log_protect; kernel-patches/ 0007 for letting go, 0017 for doing
        without the lock. TLBs were flushed under it by arch/x86/kvm/x86.c kvm_vm_ioctl_get_dirty_log as of 3.11.
        """
        program, policy, lock = self.program, self.policy, self.clear_lock
        flush_held = policy.get_flush == "under_lock" and lock is not None
        program.note("KVM_GET_DIRTY_LOG, which clears")
        if looks := self.sync_log():
            self.scan_all(*looks)

        def get_word(extent: Extent) -> None:
            program.scan(Scan.COLLECT)
            self.clear_word()
            program.advance(WORD_PAGES, extent)

        last = (lambda: self.flush(held=True)) if flush_held else None
        self._in_holds(lock, REGION, policy.get_drop_when, Extent.dirty, get_word, last)
        if not flush_held:
            self.flush()
        program.back(REGION)

    def leave(self, timed: bool) -> Callable[[], None] | None:
        """What a vCPU does whose log buffer or dirty ring is full; None: it has neither."""
        return (lambda: self._make_room(timed)) if self.drains or self.ring_entries else None

    def _make_room(self, timed: bool) -> None:
        """Empty the log buffer; where the ring is full, go to userspace and have all rings reset.

        Source: arch/x86/kvm/vmx/vmx.c handle_pml_full, virt/kvm/dirty_ring.c kvm_dirty_ring_check_request (6.12); QEMU
        accel/kvm/kvm-all.c kvm_cpu_exec, KVM_EXIT_DIRTY_RING_FULL.
        """
        program, costs = self.program, self.costs
        program.note("the log buffer or the dirty ring is full")
        if timed:
            program.start_stopwatch()
        if self.drains:
            with program.when(in_buffer(self.buffer_entries)):
                program.run(costs.log_exit, JITTER)
            self.drain()
        if self.ring_entries:
            with program.when(in_ring(self.scenario.ring_full)):
                program.run(costs.ring_exit, JITTER)
                self.reap()
                if self.throttle is not None and self.throttle.limit:
                    program.nap()
        if timed:
            self.read_stopwatch()

    def sync_log(self) -> list[Scan]:
        """Learn what hardware knows of the guest's writes, before GET or CLEAR looks; returns the scans that need that.

        The vCPUs give their log buffers; without any, every entry of the page table is visited.
        """
        program, costs = self.program, self.costs
        self.sync_buffers()
        if self.buffer_entries or not self.tracking.dirty_bits:
            return []
        self._sweep(self.lock("write", regions=True), WORD_PAGES, lambda: program.hold(WORD_PAGES * costs.walk_entry))
        return [Scan.SYNC]

    def sync_buffers(self) -> None:
        """Ask every vCPU for its log buffer, if it has one, and wait for none.

        Source: arch/x86/kvm/x86.c kvm_arch_sync_dirty_log (6.12).
        """
        if self.buffer_entries:
            self.program.run(self.scenario.guest.vcpus * self.costs.log_kick)
            self.kick(self.costs.log_exit, self.drained)

    def sync_rings(self) -> None:
        """Userspace has every vCPU leave the guest, one after another, and reaps the rings.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_flush.
        """
        program, costs = self.program, self.costs
        program.note("reap all dirty rings")
        with program.holding(Lock(USERSPACE, Mode.WRITE)):
            program.run(self.scenario.guest.vcpus * costs.ring_exit)
            self.kick(costs.ring_exit, self.drained)
            self._reap()
            self.scan_all(Scan.TAKE)

    def last_rings(self) -> None:
        """What the rings have when the guest has been stopped; what harvesting that costs is not modelled."""
        with self.program.holding(Lock(USERSPACE, Mode.WRITE)):
            self.kick(0)
            self.program.harvest(0)
            self.scan_all(Scan.TAKE)

    def reap(self) -> None:
        """Harvest the rings of all vCPUs, and have them reset."""
        with self.program.holding(Lock(USERSPACE, Mode.WRITE)):
            self._reap()

    def _reap(self) -> None:
        """The same, with userspace's lock held. The reset takes mmu_lock for each run of entries within 64 pages.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_reap; virt/kvm/dirty_ring.c kvm_dirty_ring_reset (6.12).
        """
        program, costs, lock = self.program, self.costs, self.clear_lock
        program.harvest(costs.ring_entry)
        with program.each_run(costs.reset_entry):
            with nullcontext() if lock is None else program.holding(lock):
                self.clear_word(Scan.PROTECT_RUN)
            program.run(0 if lock is None else costs.reacquire)
        self.flush()

    def reaper(self, first: int | None = None) -> Thread:
        """Userspace's thread that reaps the rings now and then, until the flag `STOP` is raised.

        Source: QEMU accel/kvm/kvm-all.c kvm_dirty_ring_reaper_thread.

        - `first`: when it does so first, ps; None: after a whole sleep.
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
        """The lock under which pages are write-protected; None: they are without one."""
        mode = self.policy.clear_lock
        return None if mode == "lockless" else self.lock(mode, regions=True)

    def clear_word(self, action: Scan = Scan.CLEAR) -> None:
        """Write-protect what the bitmap's word has, and take it out of the log."""
        costs = self.costs
        page = costs.either("lockless_page", "clear_page") if self.clear_lock is None else costs.clear_page
        self.program.scan(action, page, costs.clear_word, costs.clear_unsplit if self.faults_split else 0)

    @property
    def chunk(self) -> int:
        """Pages of one CLEAR ioctl."""
        given = self.scenario.workload.clear_chunk
        return given // self.scenario.guest.page_size if given else self.slot_pages

    def clear_log(self) -> None:
        """CLEAR what the last GET gave in the thread's region, ioctl by ioctl."""
        program = self.program
        with program.loop(until=REGION.done()), program.extent(self.chunk) as chunk:
            self.clear_chunk(chunk)
        program.back(REGION)

    def clear_chunk(self, chunk: Extent) -> None:
        """One CLEAR ioctl, of what is left of a chunk.

        Source: virt/kvm/kvm_main.c kvm_clear_dirty_log_protect; kernel-patches/ 0007 and 0011 for letting go, 0012 for
        what an eager split allocates.
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
        clear_drop_when: Condition,
        some: Callable[[Extent], Condition],
        act: Callable[[Extent], None],
        last: Callable[[], None] | None = None,
    ) -> None:
        """Do something to each word of an extent with the lock held, for as long at a time as the strategy says.

        `last` is what is done at the end of each hold. Without a lock nothing is held.

        If the strategy never lets go, the lock is taken once, whatever there is to do. Else a hold begins at the first
        word in which there is some, as in kernel-patches/ 0007.
        """
        program = self.program
        if lock is None:
            with program.loop(until=extent.done()):
                act(extent)
            return
        if isinstance(clear_drop_when, strategy.NeverDrop):
            with self._lock_regions(extent) as region:
                with program.holding(lock):
                    with program.loop(until=region.done()):
                        act(region)
                    if last is not None:
                        last()
                if region is not extent:
                    program.run(self.costs.reacquire)
            return
        with self._lock_regions(extent) as region, program.loop(until=region.done()), program.extent(ALL) as hold:
            ends = hold.done() | strategy.bind(clear_drop_when, hold, lock, self.block_pages)
            with program.extent(WORD_PAGES) as word, program.when(some(word), otherwise=lambda: program.skip(word)):
                with program.holding(lock):
                    with program.loop(until=ends):
                        act(hold)
                    if last is not None:
                        last()
                    self.adapt(clear_drop_when, lock)
                program.run(self.costs.reacquire)

    def _split_eagerly(self, lock: Lock | None) -> None:
        """Before its first page is cleared, replace a block by a table; without a lock, one is taken for that.

        Source: arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_split_huge_pages_root and tdp_mmu_alloc_sp_for_split.
        """
        program = self.program
        with program.when(mapped_by_block()):
            if lock is not None:
                self._split(lock)
                return
            own = self.lock("write", regions=True)
            with program.holding(own):
                self._split(own)

    def _split(self, lock: Lock) -> None:
        """Replace the block by a table, with a lock held."""
        program, costs, alloc = self.program, self.costs, self.policy.split_alloc
        if alloc == "drop" or (alloc == "under_read_lock" and lock.mode is Mode.WRITE):
            with program.letting_go(lock):
                program.run(costs.split_alloc)
        else:
            program.hold(costs.split_alloc)
        program.hold(costs.split_block)
        program.map(Map.EAGER)
