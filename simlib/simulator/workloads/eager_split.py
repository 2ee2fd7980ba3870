# SPDX-License-Identifier: BSD-3-Clause
"""Eager splitting on arm64, table walk by table walk, as programs: when dirty logging is enabled, or during CLEAR.

The steps are those of the selftest dirty_log_perf_test with one slot. Memory is mapped when the run begins. Without
KVM_DIRTY_LOG_INITIALLY_SET, enabling write-protects the slot and then splits it; with the flag, CLEAR write-protects
and splits 64 pages (a word) at once. A walk takes the time of its visits (`simlib.model.pagetable.PageTable.walked`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.errors import InputError
from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.program import REGION, Extent, Lock, Thread, mapped_by_block
from simlib.model.quantities import format_size
from simlib.model.scenario import Scenario
from simlib.model.steps import Map, Scan
from simlib.simulator.engine.result import PS, EngineResult
from simlib.simulator.workloads.cpu_time import cpu_metrics, cpu_times
from simlib.simulator.workloads.degradation import UNDISTURBED
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import STOP
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds

_GO, _DIRTIED = range(2)

IPA_BITS = 48
"""Size of the intermediate physical address (IPA) space, bits, which determines the number of levels."""


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    Stamps are ``start``, ``undisturbed``, ``enabled`` and, for every round i, ``dirtied i`` and ``cleared i``. Raises
    `InputError` if `policy.split_chunk` or the memory is not a multiple of the blocks.
    """
    kernel = EagerSplit(scenario)
    kernel.check()
    vcpu = _parked_vcpu(kernel) if scenario.workload.parked else running_vcpu(kernel, logging=True)
    return kernel.job(vcpu, _main(kernel), barriers=2, populated=True, shared=scenario.workload.shared)


def _parked_vcpu(kernel: EagerSplit) -> Thread:
    """Program of a vCPU of the selftest, from the moment at which all memory is mapped."""
    program, parties = kernel.program, kernel.scenario.guest.vcpus + 1
    with program.thread() as vcpu, program.repeat(kernel.scenario.workload.iterations):
        program.barrier(_GO, parties)
        kernel.touch_region(logging=True)
        program.barrier(_DIRTIED, parties)
    return vcpu


def _main(kernel: EagerSplit) -> Thread:
    program, workload = kernel.program, kernel.scenario.workload
    parties = kernel.scenario.guest.vcpus + 1
    with program.thread() as main:
        kernel.stamp("start")
        if not workload.parked:
            program.sleep(workload.warm_up)
        kernel.stamp("undisturbed")
        kernel.enable()
        kernel.stamp("enabled")
        for number in range(1, workload.iterations + 1):
            if workload.parked:
                program.barrier(_GO, parties)
                program.barrier(_DIRTIED, parties)
            else:
                program.sleep(workload.pause)
            kernel.stamp("dirtied", number)
            kernel.get_log(anew=True)
            kernel.clear(first=number == 1)
            kernel.stamp("cleared", number)
        program.signal(STOP)
    return main


@dataclass
class EagerSplit(DirtyLog):
    """An arm64 kernel in which a stage-2 table walk takes the time of its visits to entries."""

    def __post_init__(self) -> None:
        """Determine the levels and blocks that map the memory."""
        super().__post_init__()
        guest = self.scenario.guest
        self.table = PageTable(guest.page_size)
        self.levels = self.table.levels(IPA_BITS)
        self.height = self.table.block_height(guest.backing if guest.mapped_as_blocks else "4k")
        self.leaf_pages = self.table.pages_per_block(self.height)
        chunk = self.policy.split_chunk
        self.chunk_pages = chunk // guest.page_size if chunk else self.table.largest_block

    @property
    def faults_split(self) -> bool:
        """True if a write may meet a block, because the lock is dropped between write-protecting and splitting it."""
        return self.scenario.guest.mapped_as_blocks and not (self.splits_eagerly and self.scenario.workload.parked)

    def check(self) -> None:
        """Refuse scenarios whose walks are not simulated."""
        pages, chunk = self.slot_pages, self.chunk_pages
        if chunk % max(self.leaf_pages, self.block_pages):
            raise InputError(
                "policy.split_chunk", format_size(chunk * self.table.page_bytes),
                "must be a multiple of the size of the blocks that map the memory",
                "omit it; a smaller chunk splits a 1 GiB block in two steps, which is not simulated",
            )  # fmt: skip
        if pages % self.leaf_pages:
            raise InputError(
                "guest.memory", format_size(pages * self.table.page_bytes),
                f"must be a multiple of the block size, {format_size(self.leaf_pages * self.table.page_bytes)}",
            )  # fmt: skip
        if self.height == 3 and self.chunk % self.leaf_pages:
            raise InputError(
                "workload.clear_chunk", format_size(self.chunk * self.table.page_bytes), "must be a multiple of 1G",
                "use 1G or more: a smaller CLEAR splits a whole block, and the next ones find nothing to split",
            )  # fmt: skip

    def _visits(self, pages: int, height: int) -> int:
        """Time in ps of a walk over `pages` pages from the first page of a block, with leaves at `height`."""
        return self.costs.walk_entry * self.table.walked(0, pages, height, self.levels)

    def _split_visits(self, pages: int, height: int) -> int:
        """Time in ps of such a walk that also splits."""
        walk = self.policy.split_walk
        return self.costs.walk_entry * self.table.split_walked(0, pages, height, walk, self.levels)

    def enable(self) -> None:
        """Enable dirty logging: set every bit; or write-protect the slot, flush TLBs, and split the slot.

        Source: arch/arm64/kvm/mmu.c kvm_arch_commit_memory_region, kvm_mmu_wp_memory_region and
        kvm_mmu_split_memory_region (6.12).
        """
        program, lock = self.program, self.lock(self.policy.facts.enable_lock)
        program.note("enable dirty logging")
        if self.initially_set:
            self.scan_all(Scan.SET)
            return
        ranges = min(self.table.largest_block, self.slot_pages)
        with program.holding(lock), program.loop(until=REGION.done()):
            with program.extent(ranges) as extent:
                self._protect(extent, ranges)
            with program.when(~REGION.done() & lock.waiters(1)), program.dropping(lock):
                program.run(self.costs.reacquire)
        program.back(REGION)
        self.flush()
        if self.policy.eager_split:
            with program.holding(lock):
                self._split_region(lock)
            program.back(REGION)

    def _protect(self, extent: Extent, pages: int) -> None:
        """Write-protect the entries that map a range: each 1 GiB block once, although the engine scans its parts."""
        program, entry_ps = self.program, self.costs.protect_entry
        program.hold(self._visits(pages, self.height))
        if self.height == 3:
            program.hold(entry_ps * (pages // self.leaf_pages))
            entry_ps = 0
        with program.loop(until=extent.done()):
            program.scan(Scan.PROTECT, entry_ps)
            program.advance(self.block_pages if self.height > 1 else WORD_PAGES, extent)

    def _split_region(self, lock: Lock) -> None:
        """Split all blocks, chunk by chunk; before each chunk, drop mmu_lock to allocate tables, or if a thread waits.

        Source: arch/arm64/kvm/mmu.c kvm_mmu_split_huge_pages and need_split_memcache_topup_or_resched (6.12).
        """
        program, chunk = self.program, min(self.chunk_pages, self.slot_pages)
        blocks = chunk // self.leaf_pages if self.height > 1 else 0
        with program.loop(until=REGION.done()), program.extent(chunk) as extent:
            if blocks:
                self._allocate(lock, blocks)
            else:
                self._drop_if_contended(lock)
            program.hold(self._split_visits(chunk, self.height))
            if blocks:
                self._make_tables(blocks)
                with program.loop(until=extent.done()):
                    program.map(Map.EAGER)
                    program.advance(self.block_pages, extent)
            else:
                program.skip(extent)

    def _drop_if_contended(self, lock: Lock) -> None:
        """Drop mmu_lock if a thread waits for it."""
        with self.program.when(lock.waiters(1)), self.program.dropping(lock):
            self.program.run(self.costs.reacquire)

    def _allocate(self, lock: Lock, blocks: int) -> None:
        """Drop mmu_lock to allocate the tables for `blocks` blocks."""
        tables = blocks * self.table.new_entries(self.height) // self.table.entries
        with self.program.dropping(lock):
            self.program.run(self.costs.reacquire + self.costs.value_if_set("split_alloc") * tables)

    def _make_tables(self, blocks: int) -> None:
        """Fill tables for `blocks` blocks, and install them in place of the blocks."""
        entries = self.table.new_entries(self.height)
        self.program.hold(blocks * (self.costs.table_entry * entries + self.costs.value_if_set("split_block")))

    def clear(self, first: bool) -> None:
        """CLEAR the whole slot, `clear_chunk` at a time.

        Each word with a dirty page is write-protected and then split, if a block still maps it. A walk covers the pages
        from the word's first dirty one to its last, assumed to be all 64. In the first round, pages that come from a
        block are assumed to be write-protected already.

        Source: virt/kvm/kvm_main.c kvm_clear_dirty_log_protect; arch/arm64/kvm/mmu.c
        kvm_arch_mmu_enable_log_dirty_pt_masked (6.12).
        """
        program, lock = self.program, self.lock(self.policy.clear_lock)
        splits = self.initially_set and bool(self.policy.eager_split)
        program.note("KVM_CLEAR_DIRTY_LOG")
        with program.loop(until=REGION.done()), program.extent(self.chunk) as chunk:
            if self.costs.clear_ioctl:
                program.run(self.costs.clear_ioctl)
            with program.holding(lock):
                if splits and first and self.height > 1:
                    self._clear_and_split(chunk, lock)
                else:
                    self._clear_words(chunk, lock, splits, self.costs.protect_entry)
            self.flush()
        program.back(REGION)

    def _clear_words(self, extent: Extent, lock: Lock, splits: bool, protect: int | None) -> None:
        """CLEAR word by word, after all blocks have been split."""
        program = self.program
        with program.loop(until=extent.done()), program.extent(WORD_PAGES) as word:
            with program.when(word.collected()):
                if splits or self.height == 1:
                    program.hold(self._visits(WORD_PAGES, 1))
                else:
                    with program.when(mapped_by_block(), otherwise=lambda: program.hold(self._visits(WORD_PAGES, 1))):
                        program.hold(self._visits(WORD_PAGES, self.height))  # of a word, or of a part of a block
                program.scan(Scan.CLEAR, protect, self.costs.clear_word)
                if splits:
                    self._drop_if_contended(lock)
                    program.hold(self._split_visits(WORD_PAGES, 1))
            program.skip(word)

    def _clear_and_split(self, chunk: Extent, lock: Lock) -> None:
        """Make the first CLEAR: every page is dirty, so each block is split at its first word."""
        program, size = self.program, max(self.leaf_pages, self.block_pages)
        with program.loop(until=chunk.done()), program.extent(size, aligned=True) as block:
            with program.when(mapped_by_block()):
                program.hold(self._visits(WORD_PAGES, self.height))
                program.scan(Scan.CLEAR, self.costs.protect_entry, self.costs.clear_word)
                self._allocate(lock, 1)
                program.hold(self._split_visits(WORD_PAGES, self.height))
                self._make_tables(1)
                with program.loop(until=block.done()):
                    program.scan(Scan.PROTECT)
                    program.map(Map.EAGER)
                    program.advance(self.block_pages, block)
                program.back(block)
                program.advance(WORD_PAGES, block)
            self._clear_words(block, lock, splits=True, protect=0)


METRICS = (
    Metric("enable_time", "s", "Time taken to enable dirty logging."),
    Metric("clear_dirty_log_time", "s", "Time of GET and CLEAR over the slot.", rounds=True),
    Metric("longest_stall", "s", "Longest time that one access took; 0 if the vCPUs are parked.", "whole"),
    *cpu_metrics("the beginning of enabling", "the last CLEAR"),
    *LOCKS,
)  # fmt: skip
"""Metrics of eager splitting."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    workload, parked = scenario.workload, scenario.host_costs.guest_access or 0
    access = parked if workload.parked else workload.access_work
    return {
        "enable_time": phase_seconds(job, raw, "enabled"),
        "clear_dirty_log_time": phase_seconds(job, raw, "cleared"),
        "longest_stall": float(raw.lap_max_ps.max()) * PS,
        **cpu_times(scenario, job, raw, (UNDISTURBED, job.stamps[-1]), access),
        **lock_metrics(scenario, raw),
    }


_DEFAULT = ("enable_time", "clear_dirty_log_time", "longest_stall")
KIND = WorkloadKind("eager_split", build, METRICS, _DEFAULT, measure, included_costs=("split_alloc", "split_block"))
