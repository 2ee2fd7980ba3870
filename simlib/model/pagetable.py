# SPDX-License-Identifier: BSD-3-Clause
"""Geometry of a guest's page table, level by level: stage 2 and EPT."""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.errors import InputError, nearest
from simlib.model.quantities import format_size

ENTRY_BYTES = 8
"""Bytes of a page-table entry on every architecture modelled (arm64, x86-64, riscv64, LoongArch)."""

LINE_BYTES = 64
"""Bytes of a data cache line, arm64's unit of cache maintenance: CTR_EL0.DminLine of Cortex-A72 and Neoverse cores."""

IPA_BITS = 40
"""Width of a guest's physical addresses on arm64 unless userspace requests another width (KVM_PHYS_SHIFT), bits."""

WORD_PAGES = 64
"""Pages of one word of the dirty bitmap: BITS_PER_LONG, the unit of kvm_arch_mmu_enable_log_dirty_pt_masked."""

SPLIT_WALKS = ("all", "skip_levels", "skip_children", "skip_siblings")
"""Variants of arm64's eager-split walk, by the entries that it visits (`Policy.split_walk`).

``all``: all entries of the range, including those of tables that the walk has just created (6.12). ``skip_levels``: no
entries of the last level (flag KVM_PGTABLE_WALK_SKIP_LEVEL3, L. Bras, June 2026). ``skip_children``: no entries of a
table that the walk has just created (by the visitor's return value). ``skip_siblings``: neither these entries nor, in a
last-level table, those after the first (by both return values, L. Bras, RFC of 15 May 2026,
20260515195904.2466381-1-leo.bras@arm.com).
"""


@dataclass(frozen=True)
class PageTable:
    """Geometry of a radix page table with one page per table.

    - `page_bytes`: size of a base page: 4096, 16384 or 65536.

    >>> table = PageTable(4096)
    >>> table.entries, table.block_bytes(2) // 2**20, table.pages_per_block(2)
    (512, 2, 512)
    """

    page_bytes: int

    def __post_init__(self) -> None:
        """Check the page size."""
        if self.page_bytes not in (4096, 16384, 65536):
            raise InputError("guest.page_size", format_size(self.page_bytes), "must be 4K, 16K or 64K")

    @property
    def entries(self) -> int:
        """Number of entries in a table."""
        return self.page_bytes // ENTRY_BYTES

    def block_bytes(self, height: int = 2) -> int:
        """Bytes that an entry at this height maps; height 1: a page, 2: the lowest blocks (2 MiB with 4 KiB pages)."""
        return int(self.page_bytes * self.entries ** (height - 1))

    def pages_per_block(self, height: int = 2) -> int:
        """Number of base pages in a block."""
        return self.block_bytes(height) // self.page_bytes

    # -- arm64's stage 2: walks over ranges of pages -----------------------------------------------------

    def levels(self, ipa_bits: int = IPA_BITS) -> int:
        """Number of levels of arm64's stage 2 for intermediate physical addresses of this width.

        Its root may consist of up to 16 adjacent tables, which saves a level.

        Source: arch/arm64/include/asm/stage2_pgtable.h stage2_pgtable_levels, and kvm_get_vtcr for the minimum of two
        (6.12).

        >>> [PageTable(4096).levels(bits) for bits in (48, 40)]
        [4, 3]
        """
        return max(2, (ipa_bits - 8) // (self.entries.bit_length() - 1))

    def stage2_entries(self, size: int, leaf: int = 1, ipa_bits: int = IPA_BITS) -> dict[int, int]:
        """Valid entries of an arm64 stage 2 that maps memory from address 0, by level above the pages.

        - `size`: bytes mapped.
        - `leaf`: level that maps the memory; 1: pages, 2: blocks. An entry of a level above it points to a table.

        64 GiB with 4 KiB pages has 2²⁴ pages, 32,768 last-level tables, and 64 tables above them. The other results are
        for blocks, and for 16 KiB pages.

        >>> PageTable(4096).stage2_entries(64 * 2**30), PageTable(4096).stage2_entries(64 * 2**30, leaf=2)
        ({1: 16777216, 2: 32768, 3: 64}, {2: 32768, 3: 64})
        >>> PageTable(16384).stage2_entries(64 * 2**30)
        {1: 4194304, 2: 2048}
        """
        return {level: -(-size // self.block_bytes(level)) for level in range(leaf, self.levels(ipa_bits) + 1)}

    def block_height(self, backing: str) -> int:
        """Height of the entries that map memory with this backing; 1: pages, 2: the first block level, 3: the next.

        Only with 4 KiB pages does stage 2 have blocks of the second level (1 GiB).

        Source: arch/arm64/include/asm/kvm_pgtable.h KVM_PGTABLE_MIN_BLOCK_LEVEL (6.12).

        >>> [PageTable(page).block_height("hugetlb_1gb") for page in (4096, 16384)]
        [3, 2]
        """
        if backing == "4k":
            return 1
        return 3 if backing == "hugetlb_1gb" and self.page_bytes == 4096 else 2

    @property
    def largest_block(self) -> int:
        """Pages of the largest block of arm64's stage 2: 1 GiB, 32 MiB or 512 MiB with pages of 4, 16 or 64 KiB.

        It is also the largest range that a walk of KVM covers before the walk may drop the lock (arch/arm64/kvm/mmu.c
        stage2_apply_range, 6.12).
        """
        return self.pages_per_block(3 if self.page_bytes == 4096 else 2)

    def walked(self, first: int, pages: int, height: int = 1, levels: int = 4) -> int:
        """Number of entries that a walk over a range visits in a table whose leaves are at this height.

        - `first`, `pages`: the range. Each end may lie within a block, whose entry is then also visited.
        - `height`: 1: pages; 2, 3: blocks of the first or the second level.

        >>> PageTable(4096).walked(0, 64), PageTable(4096).walked(0, 64, height=2)
        (67, 3)
        """
        spans = (self.pages_per_block(h) for h in range(height, levels + 1))
        return sum(-(-(first + pages) // span) - first // span for span in spans)

    def split_walked(self, first: int, pages: int, height: int = 1, walk: str = "all", levels: int = 4) -> int:
        """Number of entries visited by the walk that splits the blocks of a range down to pages.

        After splitting a block, the walker reloads the entry, finds a table, and descends into it.

        - `first`, `pages`, `levels`: as for `walked`.
        - `height`: height of the present leaves; 1: the leaves are pages, and nothing is split.
        - `walk`: one of `SPLIT_WALKS`; raises `InputError` if it is not.

        Source: arch/arm64/kvm/hyp/pgtable.c stage2_split_walker (6.12).

        >>> table = PageTable(4096)
        >>> {walk: (table.split_walked(0, 512, 1, walk), table.split_walked(0, 512, 2, walk)) for walk in SPLIT_WALKS}
        {'all': (515, 515), 'skip_levels': (3, 3), 'skip_children': (515, 3), 'skip_siblings': (4, 3)}
        """
        if walk not in SPLIT_WALKS:
            raise InputError("policy.split_walk", walk, "unknown walk", nearest(walk, SPLIT_WALKS))
        if walk == "all":
            return self.walked(first, pages, 1, levels)
        if walk == "skip_levels":
            return self.walked(first, pages, 2, levels)
        if height > 1 or walk == "skip_children":
            return self.walked(first, pages, height, levels)
        tables = self.walked(first, pages, 2, levels) - self.walked(first, pages, 3, levels)
        return self.walked(first, pages, 2, levels) + tables

    def new_entries(self, height: int) -> int:
        """Total number of entries in the tables that replace one block of this height, down to pages.

        Source: arch/arm64/kvm/hyp/pgtable.c kvm_pgtable_stage2_create_unlinked with force_pte (6.12).

        >>> [PageTable(4096).new_entries(height) for height in (1, 2, 3)]
        [0, 512, 262656]
        """
        return sum(self.entries**h for h in range(1, height))
