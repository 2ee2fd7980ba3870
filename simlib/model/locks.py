# SPDX-License-Identifier: BSD-3-Clause
"""Lock disciplines: how a lock behaves, by the words that a policy has for them."""

from __future__ import annotations

from enum import IntEnum


class Discipline(IntEnum):
    """How a lock behaves; each engine has one rule for each.

    Every operation occupies the lock word's cache line, at a cost that depends on who owned the line last, within a
    socket or across.

    Sources: kernel/locking/qspinlock.c `queued_spin_lock_slowpath`; the ticket lock as in
    Boyd-Wickizer et al. 2012, section 2; kernel/locking/qrwlock.c `queued_read_lock_slowpath`
    and `queued_write_lock_slowpath`; lockless: arch/x86/kvm/mmu/mmu.c `fast_page_fault`.
    """

    QUEUED_SPIN = 0
    """First come first served. The holder's store and the successor's read each move the lock's line, and a successor
    with waiters behind it fetches the next one's queue node, from where that one runs."""
    TICKET = 1
    """All waiters read the word after every hand-over, each from the one that let go; the read of the one whose turn it
    is comes, on average, halfway."""
    QUEUED_RW = 2
    """As Linux queues readers and writers. The head of the queue marks the lock word: a writer keeps everybody out, a
    reader new writers. Until a new head has come to the word, others pass it. That takes a line transfer, in which only
    readers come, since a drop decides who is next; or, where CPUs have turns, until its own, and whoever finds the word
    free takes it. Behind the head all are served as they came."""
    LOCKLESS = 3
    """An update is published by compare-and-swap, and retried if another one came between."""
    SERVER = 4
    """Not a lock: a part of the hardware that serves one CPU at a time, first come first served, such as the
    interconnect's handling of broadcast TLB invalidations. It has no lock word. A thread may hold one lock and
    one server at a time."""
    COHORT = 5
    """A what-if: hands over within a socket first, at most `COHORT_PASSES` times in a row (Dice, Marathe and Shavit
    2012, "Lock cohorting"). Of its two levels only the hand-over is modelled, with one line for both."""
    FAIR_RW = 6
    """A what-if: readers and writers first come first served; nobody passes the queue, and readers in a row enter one
    after another."""


COHORT_PASSES = 64
"""The paper's bound on consecutive hand-overs within a socket, which it leaves open; the value is our choice."""

LOCKS = {
    "spin": Discipline.QUEUED_SPIN,
    "ticket": Discipline.TICKET,
    "rwlock": Discipline.QUEUED_RW,
    "cohort": Discipline.COHORT,
    "fair-rwlock": Discipline.FAIR_RW,
}
"""What mmu_lock may be: the words of ``policy.lock``."""

SHARING = frozenset({Discipline.QUEUED_RW, Discipline.FAIR_RW})
"""Those that readers may hold together; the others know one mode."""
