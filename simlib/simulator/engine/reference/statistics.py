# SPDX-License-Identifier: BSD-3-Clause
"""What is written down: time bins, the trace, the ledger and stamps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simlib.model.job import Job
from simlib.model.steps import Mode
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.locks import SimulatedLock
from simlib.simulator.engine.reference.threads import SimulatedThread
from simlib.simulator.engine.result import BINS, EVENTS, FIRST_SHIFT, LAP_BINS, LEDGER


class Statistics:
    """What a run leaves behind beside what its threads and locks know."""

    def __init__(self, job: Job, trace: int, ledger: int) -> None:
        threads, locks, stamps = len(job.entry), len(job.locks), len(job.stamps)
        self.vcpus = job.vcpus
        self.room = {"trace": trace, "ledger": ledger}
        self.trace: list[tuple[int, int, int, int, int]] = []
        self.ledger: list[tuple[int, int, int, int, int]] = []
        self.shift = FIRST_SHIFT
        self.queue = np.zeros((locks, BINS), dtype=np.int64)
        self.progress = np.zeros((threads, BINS), dtype=np.int64)
        self.laps = np.zeros(LAP_BINS, dtype=np.int64)
        self.stamp_ps = np.zeros(stamps, dtype=np.int64)
        self.stamp_sums = np.zeros((stamps, 12), dtype=np.int64)
        self.stamp_own = np.zeros((stamps, 7), dtype=np.int64)
        self.stamp_waits = np.zeros(stamps, dtype=np.int64)
        self.stamp_locks = np.zeros((stamps, locks, 2, 2), dtype=np.int64)

    def note(self, time: int, thread: SimulatedThread, kind: str, argument: int, mode: int) -> None:
        """Write down one trace event, if a trace is wanted."""
        if self.room["trace"]:
            self.trace.append((time, thread.number, EVENTS.index(kind), argument, mode))

    def enter(self, time: int, thread: SimulatedThread, what: str, page: int, count: int) -> None:
        """Enter into the ledger what happened to a page, or to those of a word, if a ledger is wanted."""
        if self.room["ledger"]:
            self.ledger.append((time, thread.number, LEDGER.index(what), page, count))

    def bin_of(self, time: int) -> int:
        """Index of a time's bin; the bins' width doubles until the time fits."""
        while time >> self.shift >= BINS:
            self.shift += 1
            for rows in (self.queue, self.progress):
                rows[:, : BINS // 2] = rows[:, 0::2] + rows[:, 1::2]
                rows[:, BINS // 2 :] = 0
        return time >> self.shift

    def queue_changes(self, index: int, lock: SimulatedLock, now: int) -> None:
        """Add the queue's length since its last change to the time bins; call before it changes."""
        last = self.bin_of(now)
        t = lock.changed
        while t < now and lock.waiting:
            b = t >> self.shift
            until = now if b == last else (b + 1) << self.shift
            self.queue[index, b] += len(lock.waiting) * (until - t)
            t = until
        lock.changed = now

    def stamp(
        self,
        which: int,
        now: int,
        shown: int,
        thread: SimulatedThread,
        threads: Sequence[SimulatedThread],
        locks: Sequence[SimulatedLock],
    ) -> None:
        """Write down what the clock shows, and all counters."""
        self.stamp_ps[which] = shown
        for index, lock in enumerate(locks):
            self.stamp_locks[which, index] = [lock.stats[mode][:2] for mode in Mode]
        self.stamp_sums[which, :6] = np.sum([t.spent for t in threads], axis=0)
        self.stamp_sums[which, 6:11] = np.sum([t.faults for t in threads], axis=0)
        self.stamp_sums[which, 11] = self.progress[: self.vcpus].sum()
        self.stamp_own[which] = [*thread.spent, thread.bitmap]
        waiting = [other for lock in locks for other in lock.waiting if other.number < self.vcpus]
        self.stamp_waits[which] = sum(now - other.tried for other in waiting)

    def check_room(self) -> None:
        """Refuse records that are longer than was asked for.

        Raises `HorizonError`.
        """
        limits.check_room("trace events", len(self.trace), self.room["trace"])
        limits.check_room("ledger entries", len(self.ledger), self.room["ledger"])
