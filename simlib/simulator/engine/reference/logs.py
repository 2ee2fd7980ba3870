# SPDX-License-Identifier: BSD-3-Clause
"""What hardware and KVM write down of a vCPU's writes: its log buffer, and its dirty ring."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import STATE, Page
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.memory import Memory


class Taken(NamedTuple):
    """A run of entries of a ring, of pages within 64: whose, how many entries, the first page, and a bit for each."""

    owner: int
    entries: int
    first: int
    mask: int


@dataclass
class Ring:
    """A dirty ring: pages in the order in which they were pushed; the first ones were harvested. `pushed`: ever."""

    pages: deque[int] = field(default_factory=deque)
    harvested: int = 0
    pushed: int = 0

    def __len__(self) -> int:
        return len(self.pages)

    def run(self) -> tuple[int, int, int]:
        """Take the first harvested entries that lie within 64 pages: how many, the first page, and a bit for each.

        Source: virt/kvm/dirty_ring.c kvm_dirty_ring_reset (6.12), which goes back, too, as long as no bit is lost.
        """
        first, mask, entries = self.pages.popleft(), 1, 1
        while entries < self.harvested:
            ahead = self.pages[0] - first
            if 0 <= ahead < WORD_PAGES:
                mask |= 1 << ahead
            elif -WORD_PAGES < ahead < 0 and mask << -ahead < 1 << WORD_PAGES:
                first, mask = self.pages[0], mask << -ahead | 1
            else:
                break
            self.pages.popleft()
            entries += 1
        self.harvested -= entries
        return entries, first, mask


class Logs:
    """The log buffers and dirty rings of all threads."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self.job, self.memory = job, memory
        logged = job.logged if job.logged is not None else np.zeros(len(job.entry), dtype=np.int64)
        self.buffers: list[list[int]] = [[0] * int(pages) for pages in logged]
        self.rings = [Ring() for _ in job.entry]

    def leaves(self, owner: int, logs: bool) -> bool:
        """Whether a thread must leave the guest before its next access: its ring is full, or its buffer if it logs."""
        job = self.job
        return (logs and job.buffer_entries > 0 and self.full(owner)) or 0 < job.ring_full <= len(self.rings[owner])

    def write(self, owner: int, page: int) -> None:
        """Hardware sets the dirty bit of a page's entry, and writes the page down."""
        self.memory.pages[page] = self.memory.pages[page] & ~STATE | Page.WRITABLE
        if self.job.buffer_entries:
            self.buffers[owner].append(page)

    def full(self, owner: int) -> bool:
        """Whether a buffer has no room."""
        return len(self.buffers[owner]) >= self.job.buffer_entries

    def drain(self, owner: int, now: int) -> int:
        """Empty a buffer; returns how many pages it had."""
        for page in self.buffers[owner]:
            self.mark(owner, page, now)
        entries = len(self.buffers[owner])
        self.buffers[owner].clear()
        return entries

    def mark(self, owner: int, page: int, now: int) -> None:
        """A page goes into the dirty log, or the ring.

        Raises `HorizonError` if the ring has no room.
        """
        if not self.job.ring_entries:
            self.memory.pages[page] |= Page.DIRTY
        elif len(self.rings[owner]) == self.job.ring_entries:
            raise limits.overflow(now)
        else:
            self.rings[owner].pages.append(page)
            self.rings[owner].pushed += 1

    def harvest(self, owner: int) -> int:
        """Set the dirty bits of a ring's new entries; returns how many they are."""
        ring = self.rings[owner]
        new = list(ring.pages)[ring.harvested :]
        for page in new:
            self.memory.pages[page] |= Page.DIRTY
        ring.harvested += len(new)
        return len(new)

    def take_run(self) -> Taken | None:
        """The next run of harvested entries, of the first thread that has any."""
        for owner, ring in enumerate(self.rings):
            if ring.harvested:
                return Taken(owner, *ring.run())
        return None
