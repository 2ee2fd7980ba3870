# SPDX-License-Identifier: BSD-3-Clause
"""Lock disciplines, and their names in a policy."""

from enum import IntEnum


class Discipline(IntEnum):
    """Behaviour of a lock; each engine implements all disciplines.

    Every operation occupies the cache line of the lock word. Its time depends on whether the CPU that owned the line
    last is on the same socket.

    Sources: kernel/locking/qspinlock.c `queued_spin_lock_slowpath`; the ticket lock as in
    Boyd-Wickizer et al. 2012, section 2; kernel/locking/qrwlock.c `queued_read_lock_slowpath`
    and `queued_write_lock_slowpath`; lockless: arch/x86/kvm/mmu/mmu.c `fast_page_fault`.
    """

    QUEUED_SPIN = 0
    """First come, first served. The holder's store and the successor's read each move the lock word's cache line. A
    successor with waiters behind it also fetches the next waiter's queue node, from the CPU of that waiter."""
    TICKET = 1
    """All waiters read the word after every hand-off, each from the previous holder's CPU; on average, half of the
    reads are served before the next holder's read."""
    QUEUED_RW = 2
    """Queue of readers and writers, as in Linux. The head of the queue marks the lock word: a waiting writer blocks all
    other threads, and a waiting reader blocks new writers. Until a new head has marked the word, other threads may
    steal the lock. If CPUs do not take turns, marking takes a line transfer, during which only readers can steal the
    lock, because the next holder is known at the drop. If CPUs take turns, marking waits for the head's turn, and any
    thread that finds the word free takes the lock. Behind the head, threads are served in order of arrival."""
    LOCKLESS = 3
    """An update is published by compare-and-swap, and retried if another thread changed the entry in the meantime."""
    SERVER = 4
    """Not a lock: a part of the hardware that serves one CPU at a time, first come, first served, such as the
    interconnect's handling of broadcast TLB invalidations. It has no lock word. A thread may hold one lock and
    one server at a time."""
    COHORT = 5
    """A hypothetical lock, handed off within a socket first, up to `COHORT_PASSES` times in a row (Dice, Marathe
    and Shavit 2012, "Lock cohorting"). The model has one cache line for both levels of this lock."""
    FAIR_RW = 6
    """A hypothetical lock: readers and writers are served first come, first served, without lock stealing;
    consecutive readers enter one after another."""


COHORT_PASSES = 64
"""Limit on consecutive hand-offs within a socket; the paper does not fix it, so the value is an assumption."""

LOCKS = {"spin": Discipline.QUEUED_SPIN, "ticket": Discipline.TICKET, "rwlock": Discipline.QUEUED_RW}
LOCKS |= {"cohort": Discipline.COHORT, "fair-rwlock": Discipline.FAIR_RW}
"""Disciplines that mmu_lock may have, by their names in ``policy.lock``."""

SHARING = frozenset({Discipline.QUEUED_RW, Discipline.FAIR_RW})
"""Disciplines with a shared read mode; all other disciplines have a single mode."""
