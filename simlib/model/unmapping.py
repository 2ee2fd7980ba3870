# SPDX-License-Identifier: BSD-3-Clause
"""Counts of the actions that unmap an arm64 stage 2: entries, cache lines and TLB invalidations, and their time.

No other thread runs, so the time is a sum. The workload ``teardown`` performs the same actions step by step.

Source: arch/arm64/kvm/hyp/pgtable.c stage2_unmap_walker, stage2_unmap_put_pte, kvm_pgtable_stage2_unmap, and
arch/arm64/kvm/mmu.c stage2_apply_range (6.12); before 5.10 virt/kvm/arm/mmu.c unmap_stage2_ptes, unmap_stage2_pmds,
clear_stage2_pmd_entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlib.model.costs import Costs
from simlib.model.pagetable import IPA_BITS, LINE_BYTES, PageTable
from simlib.model.policy import Policy


@dataclass(frozen=True)
class Unmapping:
    """Counts of the actions that unmap all memory once.

    - `entries`: entries removed, of pages or blocks and of tables.
    - `lines`: data cache lines cleaned.
    - `invalidations`: broadcast TLB invalidations of one entry, one table or one range.
    - `flushes`: TLB invalidations of the whole VM.
    """

    entries: int
    lines: int
    invalidations: int
    flushes: int

    def time_ps(self, costs: Costs, vcpus: int = 1) -> int:
        """Time of the unmap, ps; a cost without a value is 0.

        >>> Unmapping(entries=2, lines=64, invalidations=1, flushes=0).time_ps(Costs(unmap_entry=100, clean_line=10))
        840
        """
        flush = (costs.flush or 0) + vcpus * (costs.flush_per_vcpu or 0)
        work = self.entries * (costs.unmap_entry or 0) + self.lines * (costs.clean_line or 0)
        return work + self.invalidations * (costs.tlb_invalidate or 0) + self.flushes * flush


def unmapping(table: PageTable, size: int, leaf: int, policy: Policy, ipa_bits: int = IPA_BITS) -> Unmapping:
    """Count the actions that unmap memory from address 0.

    - `size`: bytes.
    - `leaf`: level that maps the memory; 1: pages, 2: blocks.
    - `policy`: only ``teardown_cache`` and ``teardown_tlb`` are used.
    - `ipa_bits`: width of the guest's physical addresses, which determines the levels of stage 2.

    >>> policy = Policy(teardown_cache="entry", teardown_tlb="entry")
    >>> unmapping(PageTable(4096), 64 * 2**30, 1, policy)
    Unmapping(entries=16810048, lines=1073741824, invalidations=16810048, flushes=0)
    >>> unmapping(PageTable(4096), 64 * 2**30, 2, Policy(teardown_tlb="range")).invalidations
    128
    """
    entries = table.stage2_entries(size, leaf, ipa_bits)
    total, leaves = sum(entries.values()), entries[leaf]
    ranges = -(-size // (table.largest_block * table.page_bytes))
    invalidations = {"entry": total, "range": total - leaves + ranges}.get(policy.teardown_tlb, 0)
    lines = size // LINE_BYTES if policy.teardown_cache == "entry" else 0
    return Unmapping(total, lines, invalidations, int(policy.teardown_tlb == "vm"))
