# SPDX-License-Identifier: BSD-3-Clause
"""Stage-2 and EPT geometry: what a page table of a guest looks like, level by level."""

from __future__ import annotations

from dataclasses import dataclass

from simlib.errors import InputError
from simlib.model.quantities import format_size

ENTRY_BYTES = 8
"""Bytes of a page-table entry on every architecture modelled (arm64, x86-64, riscv64, LoongArch)."""

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
