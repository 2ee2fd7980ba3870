# SPDX-License-Identifier: BSD-3-Clause
"""Named policies: ways of taking mmu_lock, from kernels, from kernel mails or hypothetical, with their sources.

A policy changes only one aspect of a scenario. For example, a policy for CLEAR's holds replaces the scenario's
condition for dropping the lock, but does not change eager splitting.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib.model.architectures import ARCHITECTURES
from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import format_size, parse_size
from simlib.model.scenario import Scenario
from simlib.model.strategy import every, strategy

BASELINE = "baseline"
"""Name of the scenario's own policy, without a change."""

Tables = Mapping[str, Mapping[str, Any]]
"""Values to replace, as the tables of a scenario file (`Scenario.changed`)."""


@dataclass(frozen=True)
class NamedPolicy:
    """A way of taking mmu_lock.

    - `exists`: ``upstream``: in Linux, now or earlier; ``posted``: in a mail; ``what-if``: in no kernel.
    - `changes`: values that the policy sets in a scenario.
    - `sources`: kernel file and function, commit, or Message-ID.
    - `architectures`: those to which `changes` apply; empty: all.
    - `elsewhere`: changes on the other architectures.
    - `settings`: settings of shipped software that select the policy, by architecture or its family; "": on every
      other one. An empty string: no shipped software has the policy there.
    - `patch`: patch that implements the policy; empty: no patch, except kernel-patches/ for a condition of CLEAR.
    - `imperative`: the change as an instruction, for `simlib choose`; empty: none.
    """

    name: str
    title: str
    exists: str
    changes: Tables
    sources: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    elsewhere: Tables = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""
    imperative: str = ""

    def to_do(self, architecture: str) -> tuple[str, bool]:
        """Return the settings or the patch that select the policy, as a phrase, and whether shipped software has it.

        >>> POLICIES["no-eager-split"].to_do("x86-tdp"), POLICIES["bounded-hold"].to_do("arm64")
        (('load kvm with eager_page_split=N', True), ('no kernel does this on arm64, nor is there a patch', False))
        """
        family = architecture.partition("-")[0]
        always = "" if self.settings or self.exists != "upstream" else "nothing: this is what Linux does"
        posted = "posted, but not merged; simlib policies names the mail" if self.exists == "posted" else ""
        shipped = next((self.settings[key] for key in (architecture, family, "") if key in self.settings), always)
        patch = self.patch or _kernel_patch(str(self.changes.get("policy", {}).get("clear_drop_when", "")))
        none = f"no kernel does this on {architecture}, nor is there a patch"
        return shipped or patch or posted or none, bool(shipped)

    def tables(self, architecture: str) -> Tables:
        """Return the policy's changes on one architecture.

        >>> POLICIES["arch-opt-in"].tables("arm64")["policy"]["clear_drop_when"]
        'never'
        """
        return self.changes if not self.architectures or architecture in self.architectures else self.elsewhere


_CLEAR = "virt/kvm/kvm_main.c kvm_clear_dirty_log_protect"
_GET = "virt/kvm/kvm_main.c kvm_get_dirty_log_protect"
_DROP_64 = "20240402213656.3068504-1-dmatlack@google.com"
_SPLIT_DROP = "20240509181133.837001-1-dmatlack@google.com"
_SPLIT = "arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_split_huge_pages_root"
_RESCHED = "arch/x86/kvm/mmu/tdp_mmu.c tdp_mmu_iter_cond_resched"
_NEEDBREAK = "include/linux/spinlock.h rwlock_needbreak (commit c793a62823d1)"
_LAB = "no kernel has this yet; the patch is kernel-patches/"
_NO_SHADOW_SPLIT = {"x86-shadow": "", "x86-shadow-paging": ""}
"""With tdp_mmu=N, `kvm_mmu_slot_try_split_huge_pages` splits only huge pages in the rmaps of nested guests."""
_X86 = tuple(name for name in ARCHITECTURES if name.startswith("x86"))


def _reply(day: str) -> str:
    return f"reply of {day} to {_DROP_64}"


def _split(**values: Any) -> dict[str, dict[str, Any]]:
    return {"policy": values}


def _clear(clear_drop_when: str, **others: Any) -> dict[str, dict[str, Any]]:
    return _split(clear_drop_when=clear_drop_when, **others)


def _kernel_patch(clear_drop_when: str) -> str:
    """Kernel patch, with its parameters, in which CLEAR drops mmu_lock on this condition; empty if there is none.

    >>> _kernel_patch("waiters >= 1 and pages >= 512")
    'no kernel has this yet; the patch is kernel-patches/0011, with kvm.mmu_lock_yield=contended and ...pages=512'
    """
    sorted_terms = " and ".join(sorted(clear_drop_when.split(" and ")))
    if match := re.fullmatch(r"(?:pages >= ([0-9]+) and )?waiters >= 1", sorted_terms):
        least = f" and kvm.mmu_lock_yield_pages={match[1]}" if match[1] else ""
        return f"{_LAB}0011, with kvm.mmu_lock_yield=contended{least}"
    pages = clear_drop_when.removeprefix("pages >= ")
    return f"{_LAB}0007, with kvm.dirty_log_clear_batch={pages}" if pages.isdecimal() else ""


POLICIES: dict[str, NamedPolicy] = {
    row.name: row
    for row in (
        NamedPolicy("whole-ioctl", "CLEAR holds the lock for the whole ioctl", "upstream",
                    _clear("never"), (_CLEAR,),
                    imperative="let CLEAR hold mmu_lock for the whole ioctl"),
        NamedPolicy("every-64", "CLEAR drops mmu_lock after each bitmap word with a set bit", "posted",
                    _clear("pages >= 64"), (_DROP_64,),
                    patch=f"{_LAB}0007, with kvm.dirty_log_clear_batch=64 (posted in April 2024, not merged)",
                    imperative="let CLEAR drop mmu_lock after every 64 pages"),
        NamedPolicy("arch-opt-in", "on x86, CLEAR and GET hold the lock for one bitmap word; elsewhere, for the "
                    "whole ioctl", "posted", _clear("pages >= 64", get_drop_when="pages >= 64"),
                    (_reply("4 April 2024"),), _X86,
                    _clear("never", get_drop_when="never"), patch=f"{_LAB}0008, with kvm.dirty_log_arch_lock=Y on x86"),
        NamedPolicy("needbreak-preemptible", "CLEAR drops mmu_lock on contention, as walks do with full preemption",
                    "what-if", _clear("waiters >= 1"), (_RESCHED, _NEEDBREAK, _reply("15 April 2024")),
                    imperative="let CLEAR drop mmu_lock if another thread waits for it"),
        NamedPolicy("needbreak-voluntary", "without full preemption, CLEAR ignores contention, as walks do",
                    "upstream", _clear("never"), (_NEEDBREAK, "20240312193911.1796717-3-seanjc@google.com")),
        NamedPolicy("yield-after-progress", "CLEAR drops mmu_lock on contention, but only after at least 512 pages",
                    "what-if",
                    _clear("pages >= 512 and waiters >= 1"), (_reply("15 April 2024"),),
                    imperative="let CLEAR drop mmu_lock if another thread waits for it, after at least 512 pages"),
        NamedPolicy("never-yield", "CLEAR never checks for contention", "what-if",
                    _clear("never"), (_reply("18 April 2024"),), patch=f"{_LAB}0011, with kvm.mmu_lock_yield=never"),
        NamedPolicy("yield-to-vcpus", "CLEAR drops mmu_lock if a vCPU waits for it", "what-if",
                    _clear("vcpus >= 1"), (_reply("15 April 2024"),),
                    imperative="let CLEAR drop mmu_lock if a vCPU waits for it"),
        NamedPolicy("adaptive-batch", "CLEAR drops mmu_lock if at least four threads wait for it", "what-if",
                    _clear("waiters >= 4"), (_reply("15 April 2024"),),
                    imperative="let CLEAR drop mmu_lock if at least four threads wait for it"),
        NamedPolicy("bounded-hold", "CLEAR drops mmu_lock after 50 us", "what-if",
                    _clear("held >= 50us"), ("no kernel",),
                    imperative="let CLEAR drop mmu_lock after 50 us"),
        NamedPolicy("bounded-hold-after-progress", "CLEAR drops mmu_lock after 50 us and at least 512 pages", "what-if",
                    _clear("held >= 50us and pages >= 512"), ("no kernel",),
                    imperative="let CLEAR drop mmu_lock after 50 us and at least 512 pages"),
        NamedPolicy("doubling-batch", "CLEAR drops mmu_lock after batches that halve on contention, otherwise double",
                    "what-if", _clear("pages >= adaptive(64, 32768)"), ("no kernel",)),
        NamedPolicy("eager-split-under-lock", "an eager split allocates the page table with the lock held", "upstream",
                    _split(eager_split=True, split_alloc="under_lock"),
                    (f"{_SPLIT} (before commit cf3ff0ee24d6, 6.11)", _reply("15 April 2024")),
                    settings={"x86": "run a kernel older than Linux 6.11, with eager_page_split=Y",
                              **_NO_SHADOW_SPLIT},
                    imperative="let an eager split allocate its table with mmu_lock held"),
        NamedPolicy("eager-split-drop", "an eager split drops mmu_lock to allocate the page table", "upstream",
                    _split(eager_split=True, split_alloc="drop"), (f"{_SPLIT} (commit cf3ff0ee24d6)", _SPLIT_DROP),
                    settings={"x86": "run Linux 6.11 or newer, with eager_page_split=Y", **_NO_SHADOW_SPLIT,
                              "arm64": "start QEMU with -accel kvm,eager-split-size=2M"},
                    imperative="let an eager split drop mmu_lock to allocate its table"),
        NamedPolicy("eager-split-shared-only", "an eager split drops mmu_lock to allocate the "
                    "page table, unless the lock is held for read", "posted",
                    _split(eager_split=True, split_alloc="under_read_lock"), (_reply("15 April 2024"),),
                    patch=f"{_LAB}0012, with kvm.split_alloc=drop_write on x86"),
        NamedPolicy("no-eager-split", "the guest's first write splits a huge page (x86) or block mapping (arm64)",
                    "upstream",
                    _split(eager_split=False),
                    ("arch/x86/kvm/mmu/mmu.c kvm_mmu_try_split_huge_pages (tdp_mmu=N or eager_page_split=N)",),
                    settings={"x86-tdp": "load kvm with eager_page_split=N",
                              "riscv": "load kvm with eager_page_split=N",
                              "x86": "nothing: with tdp_mmu=N Linux splits no huge page eagerly",
                              "": "nothing, unless QEMU's eager-split-size is set"}),
        NamedPolicy("nx-faults", "one access in 1000 is a slow fault, as with NX huge pages (an assumed rate)",
                    "upstream", {"workload": {"slow_fault_every": 1000}},
                    ("arch/x86/kvm/mmu/mmu.c kvm_recover_nx_huge_pages", _reply("15 April 2024"))),
        NamedPolicy("zap-batch-10", "zapping drops mmu_lock on contention, but only after at least 10 page tables",
                    "upstream",
                    {"workload": {"kind": "zap"}, "policy": {"zap_drop_when": "blocks >= 10 and waiters >= 1"}},
                    ("arch/x86/kvm/mmu/mmu.c kvm_zap_obsolete_pages", _reply("3 April 2024"))),
        NamedPolicy("loongarch-two-acquisitions",
                    "a fault takes the spinlock once if the page is only write-protected, and otherwise twice",
                    "upstream", _split(architecture="loongarch", lock="default", write_protect_fault="default",
                           translation_fault="default", split_fault="default", clear_lock="default",
                           eager_split=False, fault_lock_sections=0),
                    ("arch/loongarch/kvm/mmu.c kvm_map_page and kvm_map_page_fast", _reply("4 April 2024"))),
        NamedPolicy("read-lock-clear", "CLEAR holds the lock for read", "posted", _split(clear_lock="read"),
                    ("20230602160914.4011728-1-vipinsh@google.com",),
                    patch="no kernel has this yet; patches for arm64 were posted in June 2023, but not merged",
                    imperative="let CLEAR hold mmu_lock for read"),
        NamedPolicy("lockless-write-protect", "CLEAR, GET and the dirty ring's reset write-protect without mmu_lock",
                    "posted", _split(clear_lock="lockless"),
                    ("Xiao Guangrong's 2013 series", "kernel-patches/ 0016 and 0017"),
                    patch=f"{_LAB}0017, for x86's shadow MMU, with kvm.lockless_write_protect=Y"),
        NamedPolicy("fast-path-read-lock", "a fault on a write-protected page takes the lock for read", "posted",
                    _split(write_protect_fault="read"), (_reply("15 April 2024"),),
                    settings={"arm64": "run a kernel with the January 2022 series",
                              "riscv": "run a kernel whose mmu_lock is a rwlock (2026)"},
                    patch=f"{_LAB}0009, with kvm.fast_page_fault=read on x86"),
        NamedPolicy("get-clears", "without manual protection, GET write-protects the dirty pages in one hold",
                    "upstream", {"workload": {"clear_when": "at_get"}, "policy": {"get_drop_when": "never"}}, (_GET,),
                    settings={"": "have userspace leave KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 disabled"}),
        NamedPolicy("not-initially-set",
                    "without KVM_DIRTY_LOG_INITIALLY_SET, enabling the log write-protects all pages", "upstream",
                    {"workload": {"initially_set": False}}, ("arch/x86/kvm/x86.c kvm_mmu_slot_apply_flags",),
                    settings={"": "have userspace enable the log without KVM_DIRTY_LOG_INITIALLY_SET"}),
        NamedPolicy("write-protect", "a write to a clean page faults, even if the hardware can log writes", "upstream",
                    _split(dirty_tracking="write_protect"), ("arch/x86/kvm/vmx/vmx.c enable_pml",),
                    settings={"x86-tdp": "load kvm_intel (on AMD, kvm_amd) with pml=N; without PML, nothing",
                              "x86-shadow": "load kvm_intel (on AMD, kvm_amd) with pml=N; without PML, nothing",
                              "": "nothing: this is what Linux does"}),
        NamedPolicy("pml", "the CPU sets dirty bits and logs the pages; KVM clears the bits", "upstream",
                    _split(dirty_tracking="pml"), ("arch/x86/kvm/vmx/vmx.c vmx_flush_pml_buffer",),
                    settings={"x86-tdp": "load kvm_intel (on AMD, kvm_amd) with pml=Y, the default",
                              "x86-shadow": "load kvm_intel (on AMD, kvm_amd) with pml=Y, the default"}),
        NamedPolicy("hdbss", "arm64 with FEAT_HDBSS: the CPU sets the dirty state and logs the page", "posted",
                    _split(dirty_tracking="hdbss"), ("20260225040421.2683931-1-zhengtian10@huawei.com",)),
        NamedPolicy("lock-regions", "16 locks, each for a sixteenth of the memory", "what-if", _split(lock_regions=16),
                    ("no kernel",)),
        NamedPolicy("clear-threads-2", "two threads run CLEAR", "what-if", {"workload": {"clear_threads": 2}},
                    ("no kernel",)),
    )
}  # fmt: skip
"""The policies, by name. `policy` also accepts ``every-n`` for any multiple of 64 pages, ``chunk-SIZE``, and
``dirty-ring-n`` for a ring of n entries."""


def policy(name: str) -> NamedPolicy:
    """Return the policy with this name, or the policy of a condition such as ``held > 50us``.

    Raises `InputError` if the name is unknown (the message names the most similar one), the n of ``every-n`` is not a
    multiple of 64, the SIZE of ``chunk-SIZE`` is not a size, or the string is not a condition.

    >>> policy("every-512").changes["policy"]["clear_drop_when"]
    'pages >= 512'
    >>> policy("held > 50us or waiters >= 2").changes["policy"]["clear_drop_when"]
    'held >= 50.000001us or waiters >= 2'
    >>> policy("chunk-64M").title
    'each CLEAR covers 64M (QEMU, pages of 4 KiB: -global migration.x-clear-bitmap-shift=14)'
    >>> policy("every-forty")
    Traceback (most recent call last):
    ...
    simlib.InputError: policy = every-forty: unknown policy; did you mean 'every-64'? known: adaptive-batch, ...
    """
    name = "whole-ioctl" if name == "never" else name  # its name as a condition
    if name in POLICIES:
        return POLICIES[name]
    if "<" in name or ">" in name:
        text = str(strategy(name, "policy"))
        return NamedPolicy(text, f"CLEAR drops mmu_lock when {text}", "what-if", _clear(text), ("docs/policies.md",),
                           imperative=f"let CLEAR drop mmu_lock when {text}")  # fmt: skip
    if name.startswith("chunk-"):
        return _chunk(name, parse_size(name.removeprefix("chunk-"), "policy"))
    if ring := re.fullmatch(r"dirty-ring(?:-([0-9]{1,9}))?", name):
        return _ring(name, int(ring[1] or 4096))
    batch = re.fullmatch(r"every-([0-9]{1,12})", name)
    if batch is None:
        raise InputError("policy", name, "unknown policy", nearest(name, POLICIES))
    pages = int(batch[1])
    if not pages or pages % WORD_PAGES:
        raise InputError("policy", name, "must drop the lock after a multiple of 64 pages", "such as every-512")
    return NamedPolicy(name, f"CLEAR drops mmu_lock after every {pages} pages", "what-if", _clear(every(pages)),
                       ("kernel-patches/ 0007", _reply("3 April 2024")),
                       imperative=f"let CLEAR drop mmu_lock after every {pages} pages")  # fmt: skip


def _ring(name: str, entries: int) -> NamedPolicy:
    changes = {"workload": {"clear_when": "ring", "ring_entries": entries}}
    title = f"dirty rings of {entries} entries, reset in runs of neighbouring pages"
    return NamedPolicy(name, title, "upstream", changes, ("virt/kvm/dirty_ring.c kvm_dirty_ring_reset",),
                       settings={"": f"start QEMU with -accel kvm,dirty-ring-size={entries}"})  # fmt: skip


def _chunk(name: str, size: int) -> NamedPolicy:
    pages = size // 4096
    shift = f"-global migration.x-clear-bitmap-shift={pages.bit_length() - 1}"
    exact = size % 4096 == 0 and pages.bit_count() == 1
    option = f" (QEMU, pages of 4 KiB: {shift})" if exact else ""
    changes = {"workload": {"clear_chunk": size}}
    source = "QEMU migration/ram.c migration_clear_memory_region_dirty_bitmap"
    setting = f"start QEMU with {shift}" if exact else f"have userspace clear {format_size(size)} with each ioctl"
    return NamedPolicy(name, f"each CLEAR covers {format_size(size)}{option}", "upstream", changes, (source,),
                       settings={"": setting},
                       imperative=f"let CLEAR cover {format_size(size)} at a time")  # fmt: skip


def apply(scenario: Scenario, name: str) -> Scenario:
    """Apply one or several policies, with names joined by ``+``, to a scenario and each of its variants.

    Raises `InputError` if a name is unknown, or the changed scenario is invalid.

    >>> str(apply(Scenario.parse({"policy": {"architecture": "x86-tdp"}}), "arch-opt-in").policy.get_drop_when)
    'pages >= 64'
    """
    variants = {key: apply(variant, name) for key, variant in scenario.variants.items()}
    for part in name.split("+"):
        scenario = scenario.changed(policy(part.strip()).tables(scenario.policy.architecture))
    return dataclasses.replace(scenario, variants=variants)
