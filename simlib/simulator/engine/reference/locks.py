# SPDX-License-Identifier: BSD-3-Clause
"""Cache lines, and a class a lock discipline: the queued spinlock, and where the others differ from it."""

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
    """A cache line: one atomic operation at a time, dearer when another CPU owned it last."""

    job: Job
    free: int = 0
    owner: int | None = None

    def transfer(self, owner: int | None, thread: int) -> int:
        """One operation on a line that the owner's CPU had last."""
        if owner is None or owner == thread:
            return self.job.local_ps
        job = self.job
        if job.cluster is not None and job.cluster[owner] == job.cluster[thread]:
            return job.cluster_ps
        return job.near_ps if job.socket[owner] == job.socket[thread] else job.far_ps

    def use(self, thread: int, at: int) -> int:
        """One operation, asked for at `at`; returns when it is done."""
        self.free = max(at, self.free) + self.transfer(self.owner, thread)
        self.owner = thread
        return self.free


@dataclass
class SimulatedLock:
    """A lock with its cache line, its queue of threads, and the statistics it keeps for each mode.

    This one is the queued spinlock; the others say where they differ.
    """

    line: CacheLine
    holders: list[int] = field(default_factory=lambda: [0, 0])
    waiting: deque[SimulatedThread] = field(default_factory=deque)
    last: SimulatedThread | None = None
    """Who let go last."""
    freed: int = 0
    """When that one's operation on the word was done."""
    busy_since: int = 0
    busy: int = 0
    changed: int = 0
    stats: list[list[int]] = field(default_factory=lambda: [[0] * 6, [0] * 6])
    waits: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])
    holds: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])

    def admits(self, mode: int) -> bool:
        """Whether a thread may hold the lock in this mode beside those that hold it now."""
        return not any(self.holders)

    comes_at: int = 0
    """When the head of the queue comes to the lock word, if that matters."""

    def unguarded(self, mode: int, at: int) -> bool:
        """Whether a thread that comes to the lock word at a time need not heed the queue."""
        return not self.waiting

    def successor(self, by: SimulatedThread) -> int:
        """Whose turn it is when `by` lets go: a place in the queue."""
        return 0

    def found_free(self) -> None:
        """A thread takes it without having waited."""

    def reach(self, thread: int, at: int) -> int:
        """An operation on the lock word; returns when it is done."""
        return self.line.use(thread, at)

    def pass_to_successor(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """The thread, out of the queue already, sees that the lock is its own; returns when.

        It reads the word; with others behind it, it also fetches the next one's queue node, to pass the head on, and
        takes longer the more they are.
        """
        owned = self.line.use(thread.number, at)
        if self.waiting:
            owned += self.line.transfer(self.waiting[0].number, thread.number)
            owned += round(self.line.job.queue_length_penalty_ps * math.log2(1 + len(self.waiting)))
        return owned

    def enter(self, mode: int, at: int) -> None:
        """One more holder, from `at` on."""
        self.busy_since = min(self.busy_since, at) if any(self.holders) else at
        self.holders[mode] += 1

    def leave(self, mode: int, at: int) -> None:
        """One holder less, from `at` on."""
        self.holders[mode] -= 1
        if not any(self.holders):
            self.busy += at - self.busy_since


class Ticket(SimulatedLock):
    """All waiters poll the word; the read of the one whose turn it is comes, on average, halfway."""

    def hand_over(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """Each waiter's read fetches the line from the one that let go."""
        sweep = sum(self.line.transfer(by.number, other.number) for other in (thread, *self.waiting))
        self.line.free, self.line.owner = at + sweep // 2, thread.number
        return self.line.free


class FairReadersWriters(SimulatedLock):
    """Readers may hold the lock together; those in a row enter one after another."""

    def admits(self, mode: int) -> bool:
        """A reader, unless there is a writer; a writer, if there is nobody."""
        return not self.holders[Mode.WRITE] and (mode == Mode.READ or not self.holders[Mode.READ])


@dataclass
class ReadersWriters(FairReadersWriters):
    """The same, but who finds the word free passes the queue until its head has come there, and marked the word."""

    def unguarded(self, mode: int, at: int) -> bool:
        """Until the head comes to the word, and then for readers while it is one itself."""
        return not self.waiting or at < self.comes_at or mode == self.waiting[0].mode == Mode.READ

    def hand_over(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """The next one in the queue then comes to the word, which it must fetch."""
        owned = super().pass_to_successor(thread, by, at)
        if self.line.job.turn_ps:
            self.comes_at = limits.HORIZON_PS
        elif self.waiting:
            self.comes_at = owned + self.line.transfer(self.line.owner, self.waiting[0].number)
        return owned


@dataclass
class NoLock(SimulatedLock):
    """No lock: a compare-and-swap that is done again if another one came between."""

    version: int = 0


class Server(SimulatedLock):
    """Hardware that serves one CPU at a time; there is no lock word."""

    def reach(self, thread: int, at: int) -> int:
        """There is nothing to move."""
        return at

    def hand_over(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """At once."""
        return at


@dataclass
class Cohort(SimulatedLock):
    """Hands over within the socket first, at most so many times in a row."""

    passes: int = 0

    def near(self, thread: SimulatedThread, other: SimulatedThread) -> bool:
        """Whether two threads are on one socket."""
        return bool(self.line.job.socket[thread.number] == self.line.job.socket[other.number])

    def successor(self, by: SimulatedThread) -> int:
        """The first in the queue on the socket, or on another one once it has been passed on so often here."""
        stays = self.passes < COHORT_PASSES
        return next((place for place, other in enumerate(self.waiting) if self.near(by, other) == stays), 0)

    def found_free(self) -> None:
        """Nobody passed it on."""
        self.passes = 0

    def hand_over(self, thread: SimulatedThread, by: SimulatedThread, at: int) -> int:
        """It reads the word; the queue on its socket has no head to pass on."""
        self.passes = self.passes + 1 if self.near(by, thread) else 0
        return self.reach(thread.number, at)


DISCIPLINES: dict[Discipline, type[SimulatedLock]] = {
    Discipline.QUEUED_SPIN: SimulatedLock,
    Discipline.TICKET: Ticket,
    Discipline.QUEUED_RW: ReadersWriters,
    Discipline.LOCKLESS: NoLock,
    Discipline.SERVER: Server,
    Discipline.COHORT: Cohort,
    Discipline.FAIR_RW: FairReadersWriters,
}
