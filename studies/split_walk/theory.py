# SPDX-License-Identifier: BSD-3-Clause
"""Exact counts of the operations of arm64's eager split without contention; times are sums of counts times costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simlib._lib.errors import InputError
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.quantities import format_size

COSTS = ("walk_entry", "protect_entry", "table_entry", "split_block", "clear_word")
"""Names of the counted operations' costs in `simlib.model.costs.Costs`."""

PROTECT_VISIT = "protect_visit"
"""Name of an additional count: leaves that the write-protecting walk visits, whether or not it changes them."""

Counts = Mapping[str, int]
"""Operation counts, keyed by cost name (one of `COSTS`) or `PROTECT_VISIT`."""


@dataclass(frozen=True)
class SplitCounts:
    """Counts for a memory slot, its backing, and the guest that writes it.

    - `memory`: bytes of the slot.
    - `backing`: as `simlib.model.scenario.Guest.backing`.
    - `page_size`: page size of the host, bytes, which stage 2 and the dirty log use.
    - `guest_page_size`: page size of the guest, bytes. The selftest writes one word of each guest page
      (lib/memstress.c memstress_guest_code), so only the first of several host pages is ever accessed.
    - `ipa_bits`: bits of the guest's physical addresses, which determine the number of levels.
    - `chunk`: bytes that KVM splits at a time; None: the largest block.

    >>> thp = SplitCounts(2**30, "thp")
    >>> thp.enable()["walk_entry"] - thp.enable("skip_levels")["walk_entry"]
    262144
    >>> thp.clear()["table_entry"] == thp.enable()["table_entry"] == 2**18
    True
    """

    memory: int
    backing: str
    page_size: int = 4096
    guest_page_size: int = 4096
    ipa_bits: int = 48
    chunk: int | None = None

    def __post_init__(self) -> None:
        """Reject values that would give fractional counts."""
        if self.guest_page_size < 4096 or self.guest_page_size & (self.guest_page_size - 1):
            raise InputError("guest_page_size", self.guest_page_size, "must be a power of two of at least 4096 bytes")
        if WORD_PAGES % self.pages_per_guest_page:
            size = format_size(self.guest_page_size)
            raise InputError("guest_page_size", size, "must be at most 64 pages of the host")
        largest = self._table.largest_block * self.page_size
        least = max(self._table.block_bytes(self._height), WORD_PAGES * self.page_size)
        unit = largest if self.memory > largest else least
        if self.memory % unit or not self.memory:
            raise InputError("memory", format_size(self.memory), f"must be a multiple of {format_size(unit)}")

    @property
    def _table(self) -> PageTable:
        return PageTable(self.page_size)

    @property
    def _height(self) -> int:
        return self._table.block_height(self.backing)

    @property
    def pages(self) -> int:
        """Number of host pages of the slot."""
        return self.memory // self.page_size

    @property
    def pages_per_guest_page(self) -> int:
        """Number of host pages in a guest page; at least 1."""
        return max(1, self.guest_page_size // self.page_size)

    @property
    def _steps(self) -> list[tuple[int, int]]:
        """Heights and numbers of the blocks that are split; with a small chunk, 1 GiB is split in two steps."""
        first = [(self._height, self.pages // self._table.pages_per_block(self._height))] if self._height > 1 else []
        chunk = self.chunk // self.page_size if self.chunk else self._table.largest_block
        if self._height == 3 and chunk < self._table.pages_per_block(3):
            return [*first, (2, self.pages // self._table.pages_per_block(2))]
        return first

    def _counts(self, **counts: int) -> Counts:
        """Add the counts of making all tables to `counts`."""
        height, table = self._height, self._table
        entries = self.pages // table.pages_per_block(height) * table.new_entries(height)
        splits = sum(number for _, number in self._steps)
        return dict.fromkeys(COSTS, 0) | {"table_entry": entries, "split_block": splits} | counts

    def counts_of(self, ioctl: str, walk: str = "all") -> Counts:
        """Counts of ``enable`` or ``clear``."""
        return self.enable(walk) if ioctl == "enable" else self.clear(walk)

    def enable(self, walk: str = "all") -> Counts:
        """Counts of enabling the log, which write-protects the slot and then splits its blocks.

        `walk` is one of `simlib.model.pagetable.SPLIT_WALKS`.
        """
        table, levels, height = self._table, self._table.levels(self.ipa_bits), self._height
        largest = min(table.largest_block, self.pages)  # of one walk
        protect = self.pages // largest * table.walked(0, largest, height, levels)
        chunk = min(self.chunk // self.page_size if self.chunk else largest, self.pages)
        split = self.pages // chunk * table.split_walked(0, chunk, height, walk, levels)
        leaves = self.pages // table.pages_per_block(height)
        mapped = leaves // (self.pages_per_guest_page if height == 1 else 1)
        return self._counts(walk_entry=protect + split, protect_entry=mapped, protect_visit=leaves)

    def clear(self, walk: str = "all", iterations: int = 2) -> Counts:
        """Total counts of `iterations` CLEARs with KVM_DIRTY_LOG_INITIALLY_SET; the guest writes between them.

        In the first CLEAR all pages are dirty, and only this CLEAR splits. In later ones a word's walks extend from the
        first to the last page that the guest wrote. `walk` is as for `enable`.
        """
        stride, words = self.pages_per_guest_page, self.pages // WORD_PAGES
        written, span = self.pages // stride, WORD_PAGES - stride + 1
        blocks = dict(self._steps)
        first = words - max(blocks.values(), default=0)  # words of pages, in the first iteration
        visits = first * self._word(WORD_PAGES, 1, walk) + (iterations - 1) * words * self._word(span, 1, walk)
        done = 0
        for height, number in blocks.items():
            visits += (number - done) * self._word(WORD_PAGES, height, walk)
            done = number
        protected = (next(iter(blocks.values())) if blocks else written) + (iterations - 1) * written
        leaves = first * WORD_PAGES + (words - first) + (iterations - 1) * words * span
        words *= iterations
        return self._counts(walk_entry=visits, protect_entry=protected, clear_word=words, protect_visit=leaves)

    def _word(self, pages: int, height: int, walk: str) -> int:
        """Entries that both walks over `pages` pages of a word visit."""
        table, levels = self._table, self._table.levels(self.ipa_bits)
        return table.walked(0, pages, height, levels) + table.split_walked(0, pages, height, walk, levels)


def total_time(counts: Counts, costs: Mapping[str, float | None]) -> float:
    """Sum of counts times costs, in the unit of the costs; a cost without a value counts as 0.

    >>> total_time({"walk_entry": 3, "clear_word": 2}, {"walk_entry": 5.0, "clear_word": 100.0})
    215.0
    """
    return sum(number * (costs.get(name) or 0) for name, number in counts.items())
