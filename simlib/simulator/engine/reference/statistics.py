# SPDX-License-Identifier: BSD-3-Clause
"""Records of a run: time bins, the trace, the ledger and stamps."""

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
    """Records of a run besides the state of its threads and locks."""

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
        self.stamp_thread = np.zeros((stamps, 7), dtype=np.int64)
        self.stamp_waits = np.zeros(stamps, dtype=np.int64)
        self.stamp_locks = np.zeros((stamps, locks, 2, 2), dtype=np.int64)

    def record_event(self, time: int, thread: SimulatedThread, kind: str, argument: int, mode: int) -> None:
        """Append an event to the trace, if a trace is kept."""
        if self.room["trace"]:
            self.trace.append((time, thread.number, EVENTS.index(kind), argument, mode))

    def record_entry(self, time: int, thread: SimulatedThread, kind: str, page: int, count: int) -> None:
        """Append an entry to the ledger, if one is kept: what happened to a page, or to those of a word."""
        if self.room["ledger"]:
            self.ledger.append((time, thread.number, LEDGER.index(kind), page, count))

    def bin_of(self, time: int) -> int:
        """Index of the bin of a time; doubles the width of the bins until the time fits."""
        while time >> self.shift >= BINS:
            self.shift += 1
            for rows in (self.queue, self.progress):
                rows[:, : BINS // 2] = rows[:, 0::2] + rows[:, 1::2]
                rows[:, BINS // 2 :] = 0
        return time >> self.shift

    def add_queue_time(self, index: int, lock: SimulatedLock, now: int) -> None:
        """Add the queue's length since its last change to the time bins; to be called before it changes."""
        last = self.bin_of(now)
        begin = lock.changed
        while begin < now and lock.waiting:
            time_bin = begin >> self.shift
            until = now if time_bin == last else (time_bin + 1) << self.shift
            self.queue[index, time_bin] += len(lock.waiting) * (until - begin)
            begin = until
        lock.changed = now

    def stamp(
        self,
        stamp: int,
        now: int,
        shown: int,
        thread: SimulatedThread,
        threads: Sequence[SimulatedThread],
        locks: Sequence[SimulatedLock],
    ) -> None:
        """Record the time shown by the clock, and all counters."""
        self.stamp_ps[stamp] = shown
        for lock_index, lock in enumerate(locks):
            self.stamp_locks[stamp, lock_index] = [lock.stats[mode][:2] for mode in Mode]
        self.stamp_sums[stamp, :6] = np.sum([t.spent for t in threads], axis=0)
        self.stamp_sums[stamp, 6:11] = np.sum([t.faults for t in threads], axis=0)
        self.stamp_sums[stamp, 11] = self.progress[: self.vcpus].sum()
        self.stamp_thread[stamp] = [*thread.spent, thread.bitmap]
        waiting = [other for lock in locks for other in lock.waiting if other.number < self.vcpus]
        self.stamp_waits[stamp] = sum(now - other.tried for other in waiting)

    def check_room(self) -> None:
        """Refuse records that are longer than requested.

        Raises `HorizonError`.
        """
        limits.check_room("trace events", len(self.trace), self.room["trace"])
        limits.check_room("ledger entries", len(self.ledger), self.room["ledger"])
