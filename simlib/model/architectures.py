# SPDX-License-Identifier: BSD-3-Clause
"""Facts about the use of mmu_lock for dirty logging on each architecture.

Each entry names its sources (kernel files and functions) and its kernel version, because the locking of every
architecture has changed over time. These values are the defaults of a scenario's policy, which may override each of
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.errors import InputError, nearest


@dataclass(frozen=True)
class Tracking:
    """A mechanism by which KVM learns which base pages the guest writes.

    - `dirty_bits`: hardware sets the dirty bit of an entry, so that the write does not fault.
    - `buffer_entries`: pages that hardware logs for each vCPU before a VM exit; 0: none, so that KVM must check every
      entry.
    """

    name: str
    title: str
    dirty_bits: bool
    buffer_entries: int
    sources: tuple[str, ...]


TRACKING: dict[str, Tracking] = {
    row.name: row
    for row in (
        Tracking("write_protect", "a page is write-protected, and the next write to it faults", False, 0,
                 ("Documentation/virt/kvm/api.rst 4.117",)),
        Tracking("pml", "Page Modification Logging: the CPU sets the dirty bit and logs the page", True, 512,
                 ("arch/x86/kvm/vmx/vmx.c enable_pml, vmx_flush_pml_buffer (6.12)",
                  "20260907063906.1964557 (AMD; in KVM's tree since 28 September 2026)")),
        Tracking("dbm", "the CPU sets the dirty state (FEAT_HAFDBS), and KVM checks every entry for it", True, 0,
                 ("20200616093553.27512-1-zhukeqian1@huawei.com (posted, not merged)",)),
        Tracking("hdbss", "the CPU sets the dirty state and logs the page (FEAT_HDBSS)", True, 512,
                 ("20260225040421.2683931-1-zhengtian10@huawei.com (v3; posted, not merged)",)),
    )
}  # fmt: skip
"""The mechanisms, by name."""


@dataclass(frozen=True)
class Architecture:
    """One architecture's use of mmu_lock.

    - `lock`: ``spin`` (queued spinlock), ``rwlock`` (queued rwlock) or ``none``: dirty logging does not take mmu_lock.
    - `write_protect_fault`: mode for a fault at a write-protected, already split page: ``lockless``, ``read``,
      ``write``, or ``none``: hardware records the write without a fault.
    - `translation_fault`: mode for installing a missing entry.
    - `split_fault`: mode for the first write to a write-protected block.
    - `clear_lock`: mode in which CLEAR (GET on architectures without CLEAR) write-protects pages; ``none``: without
      mmu_lock.
    - `fault_lock_sections`: number of times that one slow fault takes the lock.
    - `eager_split`: the places where blocks are split ahead of the guest's writes, and the lock mode.
    - `drop_points`: places where a long hold drops the lock.
    - `fault_flush`: invalidation that a permission fault needs, under the lock: ``none`` (lockless or not needed),
      ``local`` (this CPU's TLB) or ``broadcast`` (all CPUs: arm64's inner shareable TLBI, riscv's remote fence, POWER's
      tlbie).
    - `flush`: when TLBs are flushed, and whether the lock is then held.
    - `version`: kernel version of the facts.
    - `sources`: kernel files and functions.
    - `enable_lock`: mode in which enabling the log write-protects the slot, without KVM_DIRTY_LOG_INITIALLY_SET.
    - `splits_at_clear`: by default, CLEAR splits blocks eagerly after KVM_DIRTY_LOG_INITIALLY_SET.
    - `enable_by_rmap`: enabling the log looks up the reverse mapping of every page, also in blocks that are not split.
    - `data_lines`: cache lines other than the lock's that every fault under the lock changes, on every CPU.
    - `split_flush`: the fault that replaces a block by a table flushes all TLBs with the lock held.
    - `page_fence`: KVM requests every vCPU to drop an entry from its TLB as soon as the entry has changed.
    - `split_alloc`: an eager split allocates the new table ``under_lock``, or drops the lock to do so (``drop``).
    - `dirty_tracking`: the mechanisms of `TRACKING` that the architecture has, including posted ones; the first is the
      default.
    """

    name: str
    title: str
    lock: str
    write_protect_fault: str
    translation_fault: str
    split_fault: str
    clear_lock: str
    fault_lock_sections: int
    eager_split: str
    drop_points: str
    fault_flush: str
    flush: str
    version: str
    sources: tuple[str, ...]
    enable_lock: str = "write"
    splits_at_clear: bool = False
    split_alloc: str = "drop"
    data_lines: int = 0
    split_flush: bool = False
    enable_by_rmap: bool = False
    page_fence: bool = False
    dirty_tracking: tuple[str, ...] = ("write_protect",)


_GENERIC = "virt/kvm/kvm_main.c kvm_clear_dirty_log_protect"
_ONE_HOLD = "none: one hold for the whole ioctl"
_FLUSH_AFTER = "once per CLEAR, after the lock is dropped"

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture(
            "x86-tdp", "x86, TDP MMU", "rwlock", "lockless", "read", "read", "write", 1,
            "when the log is enabled, under the read lock; with KVM_DIRTY_LOG_INITIALLY_SET, in CLEAR, "
            "under the write lock",
            "at every split of a huge page since 6.11 (to allocate the table); none in later passes",
            "local", _FLUSH_AFTER, "6.11",
            ("arch/x86/kvm/mmu/mmu.c fast_page_fault", "arch/x86/kvm/mmu/mmu.c kvm_tdp_mmu_page_fault",
             "arch/x86/kvm/mmu/tdp_mmu.c clear_dirty_pt_masked",
             "arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_split_huge_pages_root",
             "arch/x86/kvm/mmu/mmu.c kvm_mmu_slot_remove_write_access", _GENERIC),
            enable_lock="read", splits_at_clear=True, dirty_tracking=("write_protect", "pml"),
            data_lines=1,  # kvm->stat.pages, since 5.15: arch/x86/kvm/mmu.h kvm_update_page_stats
        ),
        Architecture(
            "x86-shadow", "x86, shadow MMU over EPT or NPT (tdp_mmu=N)", "rwlock", "lockless", "write", "write",
            "write", 1, "none, except for nested guests", _ONE_HOLD, "local", _FLUSH_AFTER, "6.9",
            ("arch/x86/kvm/mmu/mmu.c fast_page_fault", "arch/x86/kvm/mmu/mmu.c direct_page_fault",
             "arch/x86/kvm/mmu/mmu.c kvm_mmu_write_protect_pt_masked", _GENERIC),
            data_lines=1, split_flush=True,
            enable_by_rmap=True,  # arch/x86/kvm/mmu/mmu.c kvm_mmu_slot_remove_write_access
            dirty_tracking=("write_protect", "pml")),
        Architecture(
            "x86-shadow-paging", "x86, shadow paging (ept=N, npt=0)", "rwlock", "write", "write", "write", "write", 1,
            "only for nested guests, under the write lock", _ONE_HOLD, "local", _FLUSH_AFTER, "6.9",
            ("arch/x86/kvm/mmu/mmu.c page_fault_can_be_fast", "arch/x86/kvm/mmu/paging_tmpl.h page_fault",
             "arch/x86/kvm/mmu/mmu.c kvm_mmu_write_protect_pt_masked", _GENERIC),
            data_lines=1, split_flush=True,
            enable_by_rmap=True,  # arch/x86/kvm/mmu/mmu.c kvm_mmu_slot_remove_write_access
        ),
        Architecture(
            "arm64", "arm64", "rwlock", "read", "read", "read", "write", 1,
            "when the log is enabled or, with KVM_DIRTY_LOG_INITIALLY_SET, in CLEAR; under the write lock; off "
            "unless a chunk size is set",
            "only in eager splitting, to refill the cache of tables or on contention", "local",
            "once per CLEAR, after the lock is dropped; broadcast invalidation under the lock for each split", "6.9",
            ("arch/arm64/kvm/mmu.c user_mem_abort", "arch/arm64/kvm/mmu.c kvm_arch_mmu_enable_log_dirty_pt_masked",
             "arch/arm64/kvm/mmu.c kvm_mmu_split_huge_pages",
             "arch/arm64/kvm/hyp/pgtable.c kvm_pgtable_stage2_relax_perms", _GENERIC),
            dirty_tracking=("write_protect", "dbm", "hdbss")),
        Architecture(
            "arm64-spinlock", "arm64 before the rwlock of January 2022", "spin", "write", "write", "write", "write", 1,
            "none", "per pgd entry, on contention or need_resched", "broadcast",
            "once per CLEAR, after the lock is dropped", "5.9",
            ("arch/arm64/kvm/mmu.c user_mem_abort", "arch/arm64/kvm/mmu.c stage2_wp_range",
             "arch/arm64/kvm/hyp/vhe/tlb.c __kvm_tlb_flush_vmid_ipa", _GENERIC)),
        Architecture(
            "arm64-2022", "arm64 with the fast path of January 2022", "rwlock", "read", "write", "write", "write", 1,
            "none", "per pgd entry, on contention or need_resched", "broadcast",
            "once per CLEAR, after the lock is dropped", "5.17 with the January 2022 series",
            ("arch/arm64/kvm/mmu.c user_mem_abort", "arch/arm64/kvm/hyp/pgtable.c kvm_pgtable_stage2_relax_perms",
             "arch/arm64/kvm/hyp/vhe/tlb.c __kvm_tlb_flush_vmid_ipa", _GENERIC)),
        Architecture(
            "riscv", "riscv (2026)", "rwlock", "read", "write", "write", "write", 1,
            "when the log is enabled or, with KVM_DIRTY_LOG_INITIALLY_SET, in CLEAR; under the write lock",
            "in eager splitting, on need_resched, on contention or to refill the cache of tables, after flushing",
            "broadcast", _FLUSH_AFTER, "tree of 2026",
            ("arch/riscv/kvm/mmu.c kvm_riscv_mmu_dirty_log_write_fault_fast", "arch/riscv/kvm/mmu.c kvm_riscv_mmu_map",
             "arch/riscv/kvm/mmu.c mmu_split_huge_pages", _GENERIC),
            splits_at_clear=True),
        Architecture(
            "riscv-spinlock", "riscv as of 6.12", "spin", "write", "write", "write", "write", 1,
            "none", _ONE_HOLD, "broadcast", _FLUSH_AFTER, "6.12",
            ("arch/riscv/kvm/mmu.c kvm_riscv_gstage_map", "arch/riscv/kvm/mmu.c gstage_remote_tlb_flush", _GENERIC),
            page_fence=True),
        Architecture(
            "loongarch", "LoongArch", "spin", "write", "write", "write", "write", 2,
            "none: the next write fault splits a huge page", _ONE_HOLD, "local",
            "a fault flushes its vCPU's TLB; CLEAR flushes all vCPUs' TLBs after the lock is dropped", "6.12",
            ("arch/loongarch/kvm/mmu.c kvm_map_page_fast", "arch/loongarch/kvm/mmu.c kvm_map_page", _GENERIC)),
        Architecture(
            "ppc-radix", "POWER, HV radix", "spin", "none", "write", "write", "write", 1,
            "none", "after every dirty entry: the lock is taken once per entry", "broadcast",
            "per dirty entry, under the lock", "5.8 (locking checked again in 6.12)",
            ("arch/powerpc/kvm/book3s_64_mmu_radix.c kvm_radix_test_clear_dirty",
             "arch/powerpc/kvm/book3s_64_mmu_radix.c kvmppc_hv_handle_set_rc")),
        Architecture(
            "s390", "s390", "none", "none", "none", "none", "none", 1,
            "not applicable", "reschedules after each segment", "none", "inside gmap_sync_dirty_log_pmd",
            "5.17 (absence of mmu_lock checked again in 6.12)",
            ("arch/s390/kvm/kvm-s390.c kvm_arch_sync_dirty_log",)),
    )
}  # fmt: skip
"""The facts, by the architecture's name: eight for current kernels, three for older kernels."""


def architecture(name: str) -> Architecture:
    """Return the facts of one architecture.

    Raises `InputError` if the name is unknown; the message names the most similar one.

    >>> architecture("arm64").write_protect_fault
    'read'
    """
    if name not in ARCHITECTURES:
        raise InputError("policy.architecture", name, "unknown architecture", nearest(name, ARCHITECTURES))
    return ARCHITECTURES[name]
