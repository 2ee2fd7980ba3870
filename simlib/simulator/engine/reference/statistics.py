# SPDX-License-Identifier: BSD-3-Clause
"""Records of a run: time bins, the trace, the ledger and stamps."""

from __future__ import annotations

import numpy as np

from simlib.model.job import Job
from simlib.model.steps import Mode
from simlib.simulator.engine.reference.locks import SimulatedLock
from simlib.simulator.engine.reference.threads import SimulatedThread
from simlib.simulator.engine.result import BINS, EVENTS, FIRST_SHIFT, LEDGER, empty_counters


class Statistics:
    """Records of a run besides the state of its threads and locks."""

    def __init__(self, job: Job, trace: int, ledger: int) -> None:
        self.vcpus, self.counters = job.vcpus, empty_counters(job)
        self.room = {"trace": trace, "ledger": ledger}
        self.trace: list[tuple[int, int, int, int, int]] = []
        self.ledger: list[tuple[int, int, int, int, int]] = []
        self.shift = FIRST_SHIFT

    def record_event(self, time: int, thread: SimulatedThread, kind: str, argument: int, mode: int = 0) -> None:
        """Append an event to the trace, if the run has one; `mode` is the mode of a lock event."""
        if self.room["trace"]:
            self.trace.append((time, thread.number, EVENTS.index(kind), argument, mode))

    def record_entry(self, time: int, thread: SimulatedThread, kind: str, page: int, count: int) -> None:
        """Append an entry to the ledger, if the run has one: what happened to a page, or to the pages of a word."""
        if self.room["ledger"]:
            self.ledger.append((time, thread.number, LEDGER.index(kind), page, count))

    def bin_of(self, time: int) -> int:
        """Index of the bin of a time; doubles the width of the bins until the time fits."""
        while time >> self.shift >= BINS:
            self.shift += 1
            for rows in (self.counters.queue_ps, self.counters.progress):
                rows[:, : BINS // 2] = rows[:, 0::2] + rows[:, 1::2]
                rows[:, BINS // 2 :] = 0
        return time >> self.shift

    def add_queue_time(self, index: int, lock: SimulatedLock, now: int) -> None:
        """Add the queue's length since its last change to the time bins; call this before the length changes."""
        last = self.bin_of(now)
        begin = lock.changed
        while begin < now and lock.waiting:
            time_bin = begin >> self.shift
            until = now if time_bin == last else (time_bin + 1) << self.shift
            self.counters.queue_ps[index, time_bin] += len(lock.waiting) * (until - begin)
            begin = until
        lock.changed = now

    def stamp(
        self, stamp: int, now: int, thread: SimulatedThread, threads: list[SimulatedThread], locks: list[SimulatedLock]
    ) -> None:
        """Record all counters."""
        counters = self.counters
        for lock_index, lock in enumerate(locks):
            counters.stamp_locks[stamp, lock_index] = [lock.stats[mode][:2] for mode in Mode]
        counters.stamp_sums[stamp, :6] = np.sum([t.spent for t in threads], axis=0)
        counters.stamp_sums[stamp, 6:11] = np.sum([t.faults for t in threads], axis=0)
        counters.stamp_sums[stamp, 11] = counters.progress[: self.vcpus].sum()
        counters.stamp_thread[stamp] = [*thread.spent, thread.bitmap]
        waiting = [other for lock in locks for other in lock.waiting if other.number < self.vcpus]
        counters.stamp_waits[stamp] = sum(now - other.tried for other in waiting)
