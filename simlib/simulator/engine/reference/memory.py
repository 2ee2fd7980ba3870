# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from simlib.model.job import Job
from simlib.model.steps import STATE, Block, Map, Page, Scan
from simlib.simulator.engine import limits

LOGGED = 4
"""Behind the four kinds of fault: no fault, but a write that hardware notices."""

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
        """Which fault touching a page gives, in the order of `Step.ACCESS`; `LOGGED`: hardware does it; None: none."""
        block, state = self.blocks[self.block_of(page)], self.pages[page] & STATE
        if block == Block.TABLE:
            clean = LOGGED if self.job.dirty_bits else 1
            return 0 if state == Page.ABSENT else clean if self.writes(page) and state == Page.PROTECTED else None
        return 3 if block == Block.ABSENT else 2 if self.writes(page) and block == Block.PROTECTED else None

    def map(self, page: int, action: Map, logging: bool) -> bool:
        """Change the entry of a page; the access that faulted is made by that. True if that is to be logged."""
        block, writes, marks = self.block_of(page), self.writes(page), False
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
                self.pages[page] = bits | (Page.WRITABLE if writes or not logging else Page.PROTECTED)
                marks = writes and logging
        return marks

    def fill_table(self, block: int, state: Page) -> None:
        """Give every page of a block this state; what is written down about it stays."""
        size = self.job.block_pages
        for p in range(block * size, min((block + 1) * size, self.job.pages)):
            self.pages[p] = self.pages[p] & ~STATE | state

    def scan(self, pages: list[int], action: Scan) -> Scanned:
        """Walk some pages: those of a bitmap word, or of a run."""
        size = self.job.block_pages
        parts = [self.scan_block(list(own), action) for _, own in itertools.groupby(pages, key=lambda p: p // size)]
        return Scanned(*(sum(part[i] for part in parts) for i in range(len(Scanned._fields))))

    def scan_block(self, pages: list[int], action: Scan) -> Scanned:
        """Walk pages of one block."""
        block = self.block_of(pages[0])
        before = sum(self.pages[p] & Page.COLLECTED > 0 for p in pages)
        entries = found = sum(self.scan_page(p, action) for p in pages)
        more = sum(self.pages[p] & Page.COLLECTED > 0 for p in pages) - before
        unsplit, clears = 0, action in (Scan.CLEAR, Scan.PROTECT_RUN)
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
            case Scan.CLEAR:
                found = bool(bits & Page.DIRTY and bits & Page.COLLECTED)
                if found:
                    self.pages[p] = self.protected(bits & ~Page.DIRTY)
            case Scan.PROTECT:
                in_table = self.blocks[self.block_of(p)] == Block.TABLE
                found = in_table and bits & STATE == Page.WRITABLE
                if found:
                    self.pages[p] = self.protected(bits)
            case Scan.PROTECT_RUN:
                found = True
                self.pages[p] = self.protected(bits)
            case Scan.SYNC:
                found = self.blocks[self.block_of(p)] == Block.TABLE and bits & STATE == Page.WRITABLE
                if found:
                    self.pages[p] = bits | Page.DIRTY
            case Scan.COLLECT | Scan.TAKE:
                found = bool(bits & Page.DIRTY)
                if found:
                    self.pages[p] = bits & ~(Page.DIRTY if action == Scan.TAKE else 0) | Page.COLLECTED
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
