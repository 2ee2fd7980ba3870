# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from __future__ import annotations

from typing import NamedTuple

from simlib.engine import limits
from simlib.model.job import Job
from simlib.model.steps import STATE, Block, Map, Page, Scan

PERMISSION = {Block.PROTECTED: Page.PROTECTED, Block.WRITABLE: Page.WRITABLE}
"""What a block that maps memory permits, as the entries of its table would."""


class Scanned(NamedTuple):
    """What a scan did.

    `pages`: how many it found as it looked for them; `entries`: how many entries of the page table it acted on, where a
    block that is not split has one; `unsplit`: of the pages that it cleared, how many such a block maps; `more`: how
    many more stand in the bitmap.
    """

    pages: int
    entries: int
    unsplit: int
    more: int


class Memory:
    """The guest's memory as KVM sees it: a state for each block, and for each page a state and two bits."""

    def __init__(self, job: Job) -> None:
        first = limits.first_memory(job)
        self.job = job
        self.pages: list[int] = first.pages.tolist()
        self.blocks = [Block(block) for block in first.blocks.tolist()]

    def block_of(self, page: int) -> int:
        """Number of the block around a page."""
        return page // self.job.block_pages

    def mapped_by_block(self, page: int) -> bool:
        """Whether a block maps the page."""
        return self.blocks[self.block_of(page)] in PERMISSION

    def writes(self, page: int) -> bool:
        """Whether the guest writes this page; write_percent of the pages, evenly spread."""
        percent = self.job.write_percent
        return percent >= 100 or (page + 1) * percent // 100 != page * percent // 100

    def count(self, first: int, end: int, bit: Page) -> int:
        """Pages that have a bit set."""
        return sum(bits & bit > 0 for bits in self.pages[first:end])

    def fault(self, page: int) -> int | None:
        """Which fault touching a page gives, in the order of `Step.ACCESS`; None: it gives none."""
        block, state = self.blocks[self.block_of(page)], self.pages[page] & STATE
        if block == Block.TABLE:
            return 0 if state == Page.ABSENT else 1 if self.writes(page) and state == Page.PROTECTED else None
        return 3 if block == Block.ABSENT else 2 if self.writes(page) and block == Block.PROTECTED else None

    def map(self, page: int, action: Map, logging: bool) -> None:
        """Change the entry of a page, and mark it dirty; the access that faulted is made by that."""
        block, writes = self.block_of(page), self.writes(page)
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
                bits = self.pages[page] & ~STATE | (Page.DIRTY if writes and logging else 0)
                self.pages[page] = bits | (Page.WRITABLE if writes or not logging else Page.PROTECTED)

    def fill_table(self, block: int, state: Page) -> None:
        """Give every page of a block this state; what is written down about it stays."""
        size = self.job.block_pages
        for p in range(block * size, min((block + 1) * size, self.job.pages)):
            self.pages[p] = self.pages[p] & ~STATE | state

    def scan(self, first: int, action: Scan) -> Scanned:
        """Walk the 64 pages of a bitmap word, or one page."""
        word = range(first, first + (1 if action == Scan.CLEAR_PAGE else 64))
        before = self.count(word.start, word.stop, Page.COLLECTED)
        entries = found = sum(self.scan_page(p, action) for p in word)
        more = self.count(word.start, word.stop, Page.COLLECTED) - before
        unsplit, block, clears = 0, self.block_of(first), action in (Scan.CLEAR, Scan.CLEAR_PAGE)
        if self.blocks[block] != Block.TABLE and (clears or action == Scan.PROTECT):
            writable = self.blocks[block] == Block.WRITABLE
            entries = int(found > 0 if clears else writable)
            unsplit = found if clears else 0
            if entries and writable:
                self.blocks[block] = Block.PROTECTED
        return Scanned(found, entries, unsplit, more)

    def scan_page(self, p: int, action: Scan) -> bool:
        """What a scan does to one page; True if it found it as it looked for it."""
        bits = self.pages[p]
        found = False
        match action:
            case Scan.CLEAR | Scan.CLEAR_PAGE:
                found = bool(bits & Page.DIRTY and bits & Page.COLLECTED)
                if found:
                    self.pages[p] = self.protected(bits & ~Page.DIRTY)
            case Scan.PROTECT:
                in_table = self.blocks[self.block_of(p)] == Block.TABLE
                found = in_table and bits & STATE == Page.WRITABLE
                if found:
                    self.pages[p] = self.protected(bits)
            case Scan.COLLECT:
                found = bool(bits & Page.DIRTY)
                if found:
                    self.pages[p] = bits | Page.COLLECTED
            case Scan.SEND:
                found = bool(bits & Page.COLLECTED)
                self.pages[p] = bits & ~Page.COLLECTED
            case Scan.SET:
                self.pages[p] = bits | Page.DIRTY
            case Scan.ALL:
                self.pages[p] = bits | Page.COLLECTED
        return found

    @staticmethod
    def protected(bits: int) -> int:
        """The entry without its permission to write."""
        return bits & ~STATE | Page.PROTECTED if bits & STATE == Page.WRITABLE else bits
