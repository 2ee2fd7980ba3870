# SPDX-License-Identifier: BSD-3-Clause
"""Cache lines, and a class per lock discipline: the queued spinlock, and subclasses for the other disciplines."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from simlib.model.job import Job
from simlib.model.locks import COHORT_PASSES, Discipline
from simlib.model.steps import Mode
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.threads import SimulatedThread


@dataclass
class CacheLine:
    """A cache line; its atomic operations are serialised, and more expensive if another CPU owned it last."""

    job: Job
    free: int = 0
    owner: int | None = None

    def transfer(self, owner: int | None, thread: int) -> int:
        """Time of one operation on a line last owned by the CPU of `owner`."""
        if owner is None or owner == thread:
            return self.job.local_ps
        job = self.job
        if job.cluster is not None and job.cluster[owner] == job.cluster[thread]:
            return job.cluster_ps
        return job.near_ps if job.socket[owner] == job.socket[thread] else job.far_ps

    def use(self, thread: int, at: int) -> int:
        """Perform an operation, requested at time `at`, on the line; returns the time at which it is done."""
        self.free = max(at, self.free) + self.transfer(self.owner, thread)
        self.owner = thread
        return self.free


@dataclass
class SimulatedLock:
    """A lock with its cache line, its queue of threads, and statistics for each mode.

    This class is the queued spinlock; its subclasses override what differs.
    """

    line: CacheLine
    holders: list[int] = field(default_factory=lambda: [0, 0])
    waiting: deque[SimulatedThread] = field(default_factory=deque)
    last: SimulatedThread | None = None
    """The thread that dropped the lock last."""
    freed: int = 0
    """Time at which that thread's operation on the word was done."""
    busy_since: int = 0
    busy: int = 0
    changed: int = 0
    stats: list[list[int]] = field(default_factory=lambda: [[0] * 6, [0] * 6])
    waits: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])
    holds: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])

    def admits(self, mode: int) -> bool:
        """True if a thread may hold the lock in this mode together with its current holders."""
        return not any(self.holders)

    comes_at: int = 0
    """Time at which the head of the queue reaches the lock word, if the discipline depends on it."""

    def may_bypass_queue(self, mode: int, at: int) -> bool:
        """True if a thread that reaches the lock word at `at` may ignore the queue."""
        return not self.waiting

    def successor(self, by: SimulatedThread) -> int:
        """Place in the queue of the thread that gets the lock when `by` drops it."""
        return 0

    def acquire_uncontended(self) -> None:
        """Record that a thread takes the lock without having waited."""

    def use_word(self, thread: int, at: int) -> int:
        """Operate on the lock word; returns the time at which the operation is done."""
        return self.line.use(thread, at)

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Time at which the thread, already out of the queue, sees that it owns the lock.

        The thread reads the word. If others wait behind it, it also fetches the queue node of the next waiter, to make
        that waiter the head of the queue; this takes longer the longer the queue is.
        """
        owned_at = self.line.use(thread.number, at)
        if self.waiting:
            owned_at += self.line.transfer(self.waiting[0].number, thread.number)
            owned_at += round(self.line.job.queue_length_penalty_ps * math.log2(1 + len(self.waiting)))
        return owned_at

    def add_holder(self, mode: int, at: int) -> None:
        """Add a holder at time `at`."""
        self.busy_since = min(self.busy_since, at) if any(self.holders) else at
        self.holders[mode] += 1

    def remove_holder(self, mode: int, at: int) -> None:
        """Remove a holder at time `at`."""
        self.holders[mode] -= 1
        if not any(self.holders):
            self.busy += at - self.busy_since


class Ticket(SimulatedLock):
    """Ticket lock: all waiters poll the word; on average, the successor's read comes halfway through their reads."""

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Time at which the thread sees its ticket: each waiter fetches the line from the CPU that dropped the lock."""
        sweep = sum(self.line.transfer(by.number, other.number) for other in (thread, *self.waiting))
        self.line.free, self.line.owner = at + sweep // 2, thread.number
        return self.line.free


class FairReadersWriters(SimulatedLock):
    """Fair rwlock: readers may hold the lock together; consecutive readers enter one after another."""

    def admits(self, mode: int) -> bool:
        """True for a reader if there is no writer, and for a writer if there is no holder."""
        return not self.holders[Mode.WRITE] and (mode == Mode.READ or not self.holders[Mode.READ])


@dataclass
class ReadersWriters(FairReadersWriters):
    """Queued rwlock (qrwlock): a fair rwlock whose queue may be bypassed until its head has marked the word."""

    def may_bypass_queue(self, mode: int, at: int) -> bool:
        """True until the head of the queue reaches the word, and then for readers while the head is a reader."""
        return not self.waiting or at < self.comes_at or mode == self.waiting[0].mode == Mode.READ

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Time at which the thread owns the lock; the next waiter then reaches the word, which it must fetch."""
        owned_at = super().pass_to_successor(thread, by, at)
        if self.line.job.turn_ps:
            self.comes_at = limits.HORIZON_PS
        elif self.waiting:
            self.comes_at = owned_at + self.line.transfer(self.line.owner, self.waiting[0].number)
        return owned_at


@dataclass
class NoLock(SimulatedLock):
    """No lock: a compare-and-swap that is retried if another update intervened."""

    version: int = 0


class Server(SimulatedLock):
    """Hardware that serves one CPU at a time, without a lock word."""

    def use_word(self, thread: int, at: int) -> int:
        """Time `at`: there is no word to fetch."""
        return at

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Time `at`: the service begins at once."""
        return at


@dataclass
class Cohort(SimulatedLock):
    """Cohort lock: it is passed within the socket first, up to `COHORT_PASSES` times in a row."""

    passes: int = 0

    def near(self, thread: SimulatedThread, other: SimulatedThread) -> bool:
        """True if two threads are on one socket."""
        return bool(self.line.job.socket[thread.number] == self.line.job.socket[other.number])

    def successor(self, by: SimulatedThread) -> int:
        """Place of the first waiter on the socket, or on another one after `COHORT_PASSES` hand-offs in a row."""
        stays = self.passes < COHORT_PASSES
        return next((place for place, other in enumerate(self.waiting) if self.near(by, other) == stays), 0)

    def acquire_uncontended(self) -> None:
        """Reset the count of hand-offs within the socket."""
        self.passes = 0

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Time at which the thread has read the word; the queue of its socket has no head to pass on."""
        self.passes = self.passes + 1 if self.near(by, thread) else 0
        return self.use_word(thread.number, at)


DISCIPLINES: dict[Discipline, type[SimulatedLock]] = {
    Discipline.QUEUED_SPIN: SimulatedLock,
    Discipline.TICKET: Ticket,
    Discipline.QUEUED_RW: ReadersWriters,
    Discipline.LOCKLESS: NoLock,
    Discipline.SERVER: Server,
    Discipline.COHORT: Cohort,
    Discipline.FAIR_RW: FairReadersWriters,
}
