# SPDX-License-Identifier: BSD-3-Clause
"""Stage-2 and EPT geometry: what a page table of a guest looks like, level by level."""

from __future__ import annotations

from dataclasses import dataclass

from simlib.errors import InputError
from simlib.model.quantities import format_size

ENTRY_BYTES = 8
"""Bytes of a page-table entry on every architecture modelled (arm64, x86-64, riscv64, LoongArch)."""

LINE_BYTES = 64
"""Bytes of a data cache line, by which arm64 cleans memory: CTR_EL0.DminLine of Arm's Cortex-A72 and Neoverse cores."""

IPA_BITS = 40
"""Size of a guest's physical address space on arm64 unless userspace asks for another (KVM_PHYS_SHIFT)."""

WORD_PAGES = 64
"""Pages of one word of the dirty bitmap: BITS_PER_LONG, the unit of kvm_arch_mmu_enable_log_dirty_pt_masked."""


@dataclass(frozen=True)
class PageTable:
    """Geometry of a radix page table with one page per table.

    Parameters
    ----------
    page_bytes : int
        Size of a base page: 4096, 16384 or 65536.

    Examples
    --------
    >>> table = PageTable(4096)
    >>> table.entries, table.block_bytes(2) // 2**20, table.pages_per_block(2)
    (512, 2, 512)
    >>> table.entries_visited(2 * 2**30)
    {4: 524288, 3: 1024, 2: 2, 1: 1}
    """

    page_bytes: int

    def __post_init__(self) -> None:
        """Check the page size."""
        if self.page_bytes not in (4096, 16384, 65536):
            raise InputError("guest.page_size", format_size(self.page_bytes), "must be 4K, 16K or 64K")

    @property
    def entries(self) -> int:
        """Entries of one table."""
        return self.page_bytes // ENTRY_BYTES

    def block_bytes(self, level_above_leaf: int = 2) -> int:
        """Bytes that one entry maps; 1: a page, 2: the first block level (2 MiB with 4 KiB pages), 3: the next."""
        return int(self.page_bytes * self.entries ** (level_above_leaf - 1))

    def pages_per_block(self, level_above_leaf: int = 2) -> int:
        """Base pages in one block."""
        return self.block_bytes(level_above_leaf) // self.page_bytes

    def entries_visited(self, size: int) -> dict[int, int]:
        """Entries that a walk of a fully split range visits, by depth (4 is the leaf of a four-level table)."""
        pages = -(-size // self.page_bytes)
        visited = {}
        for depth in (4, 3, 2, 1):
            visited[depth] = pages
            pages = -(-pages // self.entries)
        return visited

    def stage2_levels(self, ipa_bits: int = IPA_BITS) -> int:
        """Levels of an arm64 stage 2, of which up to 16 tables side by side stand at the first.

        Source: arch/arm64/include/asm/stage2_pgtable.h stage2_pgtable_levels, and kvm_get_vtcr for the least of two.
        """
        bits = self.entries.bit_length() - 1
        return max(2, -(-(ipa_bits - 4 - (self.page_bytes.bit_length() - 1)) // bits))

    def stage2_entries(self, size: int, leaf: int = 1, ipa_bits: int = IPA_BITS) -> dict[int, int]:
        """Valid entries of an arm64 stage 2 that maps memory from address 0 on, by level above the pages.

        Parameters
        ----------
        size : int
            Bytes mapped.
        leaf : int
            Level that maps the memory; 1: pages, 2: blocks. An entry of a level above it holds a table.
        ipa_bits : int

        Examples
        --------
        64 GiB with pages of 4 KiB: 2²⁴ of them, 32768 tables of them, and 64 of those; as blocks; with 16 KiB.

        >>> PageTable(4096).stage2_entries(64 * 2**30), PageTable(4096).stage2_entries(64 * 2**30, leaf=2)
        ({1: 16777216, 2: 32768, 3: 64}, {2: 32768, 3: 64})
        >>> PageTable(16384).stage2_entries(64 * 2**30)
        {1: 4194304, 2: 2048}
        """
        return {level: -(-size // self.block_bytes(level)) for level in range(leaf, self.stage2_levels(ipa_bits) + 1)}

    @property
    def unmap_bytes(self) -> int:
        """Bytes that an arm64 unmap does between two chances to let go of the lock: the largest block.

        Source: arch/arm64/kvm/mmu.c stage2_apply_range, KVM_PGTABLE_MIN_BLOCK_LEVEL (6.12). Before 5.10 it was an entry
        of the first level, which maps as much with 40 bits of address (virt/kvm/arm/mmu.c unmap_stage2_range).

        Examples
        --------
        >>> [PageTable(size).unmap_bytes // 2**20 for size in (4096, 16384, 65536)]
        [1024, 32, 512]
        """
        return self.block_bytes(3 if self.page_bytes == 4096 else 2)
