# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from simlib.model.job import Job
from simlib.model.steps import STATE, Block, Map, Page, Scan
from simlib.simulator.engine import limits

LOGGED = 4
"""Result of `Memory.fault` besides the four kinds of fault: no fault, but a write that hardware logs."""

PERMISSION = {Block.PROTECTED: Page.PROTECTED, Block.WRITABLE: Page.WRITABLE}
"""Permission of a block that maps memory, as the state that the entries of its table would have."""


class Scanned(NamedTuple):
    """Result of a scan.

    `pages`: pages that matched; `entries`: page-table entries acted on, of which an unsplit block has one; `unsplit`:
    cleared pages that an unsplit block maps; `added`: increase of the number of pages in the bitmap.
    """

    pages: int
    entries: int
    unsplit: int
    added: int


class Memory:
    """The guest's memory as KVM sees it: a state per block, and per page a state and two bits."""

    def __init__(self, job: Job) -> None:
        first = limits.initial_memory(job)
        self.job = job
        self.pages: list[int] = first.pages.tolist()
        self.blocks = [Block(block) for block in first.blocks.tolist()]

    def block_of(self, page: int) -> int:
        """Number of the block that contains a page."""
        return page // self.job.block_pages

    def mapped_by_block(self, page: int) -> bool:
        """True if a block maps the page."""
        return self.blocks[self.block_of(page)] in PERMISSION

    def is_written(self, page: int) -> bool:
        """True if the guest writes this page; it writes `write_percent` % of all pages, evenly spread."""
        percent = self.job.write_percent
        return percent >= 100 or (page + 1) * percent // 100 != page * percent // 100

    def count(self, first: int, end: int, bit: Page) -> int:
        """Number of pages that have a bit set."""
        return sum(bits & bit > 0 for bits in self.pages[first:end])

    def fault(self, page: int) -> int | None:
        """Kind of fault of an access to a page, in the order of `Step.ACCESS`; `LOGGED`; None if it does not fault."""
        block, state = self.blocks[self.block_of(page)], self.pages[page] & STATE
        if block == Block.TABLE:
            clean = LOGGED if self.job.dirty_bits else 1
            return 0 if state == Page.ABSENT else clean if self.is_written(page) and state == Page.PROTECTED else None
        return 3 if block == Block.ABSENT else 2 if self.is_written(page) and block == Block.PROTECTED else None

    def map(self, page: int, action: Map, logging: bool) -> bool:
        """Change the entry of a page and make the access that faulted; True if the write must be logged."""
        block, written, must_log = self.block_of(page), self.is_written(page), False
        match action:
            case Map.BLOCK:
                self.blocks[block] = Block.WRITABLE
            case Map.NONE:
                pass
            case Map.ZAP:
                self.blocks[block] = Block.ABSENT
            case Map.EAGER:
                if self.blocks[block] in PERMISSION:
                    self.fill_table(block, PERMISSION[self.blocks[block]])
                    self.blocks[block] = Block.TABLE
            case _:
                if self.blocks[block] == Block.ABSENT or (action == Map.SPLIT and self.blocks[block] != Block.TABLE):
                    self.blocks[block] = Block.TABLE
                    self.fill_table(block, Page.ABSENT)
                bits = self.pages[page] & ~STATE
                self.pages[page] = bits | (Page.WRITABLE if written or not logging else Page.PROTECTED)
                must_log = written and logging
        return must_log

    def fill_table(self, block: int, state: Page) -> None:
        """Set the state of every page of a block; their bits in the log and the bitmap do not change."""
        size = self.job.block_pages
        for page in range(block * size, min((block + 1) * size, self.job.pages)):
            self.pages[page] = self.pages[page] & ~STATE | state

    def scan(self, pages: list[int], action: Scan) -> Scanned:
        """Scan some pages: those of a bitmap word, or of a run."""
        parts = [self.scan_block(list(group), action) for _, group in itertools.groupby(pages, key=self.block_of)]
        return Scanned(*(sum(part[i] for part in parts) for i in range(len(Scanned._fields))))

    def scan_block(self, pages: list[int], action: Scan) -> Scanned:
        """Scan pages of one block."""
        block = self.block_of(pages[0])
        before = sum(self.pages[page] & Page.COLLECTED > 0 for page in pages)
        entries = matched = sum(self.scan_page(page, action) for page in pages)
        added = sum(self.pages[page] & Page.COLLECTED > 0 for page in pages) - before
        unsplit, clears = 0, action in (Scan.CLEAR, Scan.PROTECT_RUN)
        if self.blocks[block] != Block.TABLE and (clears or action == Scan.PROTECT):
            writable = self.blocks[block] == Block.WRITABLE
            entries = int(matched > 0 if clears else writable)
            unsplit = matched if clears else 0
            if entries and writable:
                self.blocks[block] = Block.PROTECTED
        return Scanned(matched, entries, unsplit, added)

    def scan_page(self, page: int, action: Scan) -> bool:
        """Scan one page; True if it matched."""
        bits = self.pages[page]
        match action:
            case Scan.CLEAR:
                matched = bool(bits & Page.DIRTY and bits & Page.COLLECTED)
                after = self.protected(bits & ~Page.DIRTY)
            case Scan.PROTECT | Scan.SYNC:
                matched = self.blocks[self.block_of(page)] == Block.TABLE and bits & STATE == Page.WRITABLE
                after = self.protected(bits) if action == Scan.PROTECT else bits | Page.DIRTY
            case Scan.PROTECT_RUN:
                matched, after = True, self.protected(bits)
            case Scan.COLLECT | Scan.TAKE:
                matched = bool(bits & Page.DIRTY)
                after = bits & ~(Page.DIRTY if action == Scan.TAKE else 0) | Page.COLLECTED
            case Scan.SEND:
                matched, after = bool(bits & Page.COLLECTED), bits & ~Page.COLLECTED
            case _:  # SET and ALL
                self.pages[page] = bits | (Page.DIRTY if action == Scan.SET else Page.COLLECTED)
                return False
        if matched:
            self.pages[page] = after
        return matched

    @staticmethod
    def protected(bits: int) -> int:
        """Entry without write permission."""
        return bits & ~STATE | Page.PROTECTED if bits & STATE == Page.WRITABLE else bits
