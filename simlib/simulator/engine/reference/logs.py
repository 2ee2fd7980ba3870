# SPDX-License-Identifier: BSD-3-Clause
"""Logs of a vCPU's writes: the log buffer, which hardware fills, and the dirty ring, which KVM fills."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from simlib.model.job import Job
from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import STATE, Page
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.memory import Memory


@dataclass
class Ring:
    """A dirty ring: its pages in order, of which the first `harvested` are harvested; `pushed`: total pushes."""

    pages: deque[int] = field(default_factory=deque)
    harvested: int = 0
    pushed: int = 0

    def __len__(self) -> int:
        return len(self.pages)

    def run(self) -> tuple[int, list[int]]:
        """Take the first harvested entries within 64 pages; returns their number, and the pages.

        Source: virt/kvm/dirty_ring.c kvm_dirty_ring_reset (6.12), which also extends a run downwards if no bit is lost.
        """
        first, mask, entries = self.pages.popleft(), 1, 1
        while entries < self.harvested:
            offset = self.pages[0] - first
            if 0 <= offset < WORD_PAGES:
                mask |= 1 << offset
            elif -WORD_PAGES < offset < 0 and mask << -offset < 1 << WORD_PAGES:
                first, mask = self.pages[0], mask << -offset | 1
            else:
                break
            self.pages.popleft()
            entries += 1
        self.harvested -= entries
        return entries, [first + i for i in range(WORD_PAGES) if mask >> i & 1]


class Logs:
    """The log buffers and dirty rings of all threads."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self.job, self.memory = job, memory
        logged = job.logged if job.logged is not None else np.zeros(len(job.entry), dtype=np.int64)
        self.buffers: list[list[int]] = [[0] * int(pages) for pages in logged]
        self.rings = [Ring() for _ in job.entry]

    def must_leave_guest(self, owner: int, logs: bool) -> bool:
        """True if a thread must leave the guest before its access: its ring or the log buffer that it needs is full."""
        buffer_is_full = self.job.buffer_entries > 0 and self.buffer_is_full(owner)
        return (logs and buffer_is_full) or 0 < self.job.ring_full <= len(self.rings[owner])

    def log_write(self, owner: int, page: int) -> None:
        """Set the dirty bit of a page's entry and log the page, as hardware does."""
        self.memory.pages[page] = self.memory.pages[page] & ~STATE | Page.WRITABLE
        if self.job.buffer_entries:
            self.buffers[owner].append(page)

    def buffer_is_full(self, owner: int) -> bool:
        """True if a log buffer has no room."""
        return len(self.buffers[owner]) >= self.job.buffer_entries

    def drain(self, owner: int, now: int) -> int:
        """Empty a log buffer; returns the number of its pages."""
        for page in self.buffers[owner]:
            self.mark_dirty(owner, page, now)
        entries, self.buffers[owner] = len(self.buffers[owner]), []
        return entries

    def mark_dirty(self, owner: int, page: int, now: int) -> None:
        """Add a page to the dirty log, or to the ring. Raises `HorizonError` if the ring has no room."""
        if not self.job.ring_entries:
            self.memory.pages[page] |= Page.DIRTY
        elif len(self.rings[owner]) == self.job.ring_entries:
            raise limits.ring_overflow(now)
        else:
            self.rings[owner].pages.append(page)
            self.rings[owner].pushed += 1

    def harvest(self, owner: int) -> int:
        """Set the dirty bits of a ring's new entries; returns their number."""
        ring = self.rings[owner]
        new = list(ring.pages)[ring.harvested :]
        for page in new:
            self.memory.pages[page] |= Page.DIRTY
        ring.harvested += len(new)
        return len(new)

    def take_run(self) -> tuple[int, int, list[int]] | None:
        """Take the next run of harvested entries from the first ring that has one: thread, number of entries, pages."""
        return next(((owner, *ring.run()) for owner, ring in enumerate(self.rings) if ring.harvested), None)
