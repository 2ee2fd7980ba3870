# SPDX-License-Identifier: BSD-3-Clause
"""Lock words and their cache lines, and the rules of every lock discipline."""

from __future__ import annotations

import numpy as np

from simlib.model.locks import COHORT_PASSES, Discipline
from simlib.model.steps import Clock, Mode, Whose
from simlib.simulator.engine.compiled import calendar
from simlib.simulator.engine.compiled.clock import BROADCAST, LINE, WAIT, run_ahead, starts
from simlib.simulator.engine.compiled.inline import always_inline, bit_length, inlined_at_caller, item, outlined
from simlib.simulator.engine.compiled.state import BITS, LOCK_STATISTICS
from simlib.simulator.engine.compiled.statistics import (
    ACQUIRED,
    LOOK,
    RELEASED,
    RETRY,
    TOUCH,
    TRY,
    note,
    queue_changes,
)
from simlib.simulator.engine.limits import HORIZON_PS

ACQUISITIONS, CONTENDED, WAIT_PS, WAIT_MAX_PS, HOLD_PS, HOLD_MAX_PS = range(LOCK_STATISTICS)
"""A lock's statistics, in the order of `simlib.simulator.engine.result.LOCK_COLUMNS`."""

ASLEEP = -1
"""Instead of a thread's clock: it sleeps until somebody wakes it."""


@always_inline
def transfer(world, cpus, owner, number):
    """One operation by a thread on a cache line that the owner's CPU had last."""
    if owner == number or owner < 0:
        return world.local_ps
    return item(cpus.transfer_ps, item(cpus.row, owner) + item(cpus.place, number))


@always_inline
def reach(world, cpus, lock, number, at):
    """An operation on the lock word, asked for at a time; returns when it is done."""
    if lock.kind == Discipline.SERVER:
        return at
    done = max(at, lock.line_free) + transfer(world, cpus, lock.line_owner, number)
    lock.line_free = done
    lock.line_owner = number
    return done


@always_inline
def touch(world, cpus, trace, line, thread, number, now):
    """Change a cache line that threads share; returns when it is done."""
    done = max(now, line.free) + transfer(world, cpus, line.owner, number)
    line.free = done
    line.owner = number
    thread.spent[LINE] += done - now
    note(world, trace, now, number, TOUCH, done - now)
    thread.pc += 1
    return done


@always_inline
def waiter(waiting, index, lock, place):
    """The thread at a place in the queue."""
    ring = waiting.shape[1]
    slot = lock.head + place
    return waiting[np.uint64(index), np.uint64(slot - ring if slot >= ring else slot)]


@always_inline
def admits(lock, mode):
    """Whether a thread may hold the lock in this mode beside those that hold it now."""
    if mode == Mode.READ and (lock.kind == Discipline.QUEUED_RW or lock.kind == Discipline.FAIR_RW):
        return lock.holders >= 0
    return lock.holders == 0


@outlined
def successor_in_cohort(sockets, waiting, index, lock, by):
    """Whose turn it is when `by` lets a cohort lock go: a place in the queue."""
    stays = lock.count < COHORT_PASSES
    for place in range(lock.length):
        if (sockets[waiter(waiting, index, lock, place)] == sockets[by]) == stays:
            return place
    return 0


@always_inline
def successor(cpus, waiting, index, lock, by):
    """Whose turn it is when `by` lets go: a place in the queue."""
    if lock.kind == Discipline.COHORT:
        return successor_in_cohort(cpus.socket, waiting, index, lock, by)
    return 0


@outlined
def sweep(world, cpus, waiting, index, lock, by, number):
    """All waiters of a ticket lock read the word, `number` first."""
    time = transfer(world, cpus, by, number)
    for place in range(lock.length):
        time += transfer(world, cpus, by, waiter(waiting, index, lock, place))
    return time


@always_inline
def pass_to_successor(world, cpus, waiting, index, lock, number, by, at):
    """A thread, out of the queue already, sees that the lock is its own; returns when."""
    if lock.kind == Discipline.SERVER:
        return at
    if lock.kind == Discipline.TICKET:
        # All waiters poll the word; the read of the one whose turn it is comes, on average, halfway.
        lock.line_free = at + (sweep(world, cpus, waiting, index, lock, by, number) >> 1)
        lock.line_owner = number
        return lock.line_free
    owned = reach(world, cpus, lock, number, at)
    if lock.kind == Discipline.COHORT:
        lock.count = lock.count + 1 if cpus.socket[by] == cpus.socket[number] else 0
        return owned
    if lock.length > 0:
        # The next one's queue node is fetched, to pass the queue's head on.
        owned += transfer(world, cpus, waiter(waiting, index, lock, 0), number)
        owned += item(cpus.queue_length_penalty_ps, lock.length)
    if lock.kind == Discipline.QUEUED_RW:
        # The next one in the queue then comes to the word, which it must fetch, or when it is its turn.
        lock.comes_at = HORIZON_PS
        if world.turn_ps == 0 and lock.length > 0:
            lock.comes_at = owned + transfer(world, cpus, lock.line_owner, waiter(waiting, index, lock, 0))
    return owned


@outlined
def move_up(waiting, index, lock, place):
    """Those before a place in the queue move up by one."""
    ring = waiting.shape[1]
    for before in range(place, 0, -1):
        slot = lock.head + before
        waiting[index, slot - ring if slot >= ring else slot] = waiter(waiting, index, lock, before - 1)


@always_inline
def take_out(waiting, index, lock, place):
    """Take the thread at a place out of the queue; those before it move up by one."""
    ring = waiting.shape[1]
    if place > 0:
        move_up(waiting, index, lock, place)
    lock.head = 0 if lock.head + 1 == ring else lock.head + 1


@always_inline
def hold_since(thread, at):
    """The thread has one lock more; when it got the one around is kept."""
    if thread.holds > 0:
        thread.outer = thread.acquired
    thread.acquired = at
    thread.holds += 1


@always_inline
def record_acquisition(world, books, index, lock, number, thread, mode, at):
    """The thread holds the lock from a time on."""
    lock.busy_since = at if lock.holders == 0 else min(lock.busy_since, at)
    thread.pc += 1
    lock.holders += 1 if mode == Mode.READ else -1
    if lock.kind == Discipline.SERVER:
        thread.served = at
    else:
        hold_since(thread, at)
    thread.asleep = 0
    wait = at - thread.tried
    first = LOCK_STATISTICS * mode
    lock.stats[np.uint64(first + ACQUISITIONS)] += 1
    lock.stats[np.uint64(first + WAIT_PS)] += wait
    lock.stats[np.uint64(first + WAIT_MAX_PS)] = max(lock.stats[np.uint64(first + WAIT_MAX_PS)], wait)
    lock.waits[np.uint64(BITS * mode + bit_length(wait))] += 1
    note(world, books.trace, at, number, ACQUIRED, index, mode)


@always_inline
def unguarded(run, index, lock, mode, at):
    """Whether a thread that comes to the lock word at a time need not heed the queue.

    It need not until the queue's head comes to the word, nor does a reader while the head is one itself.
    """
    if lock.length == 0 or lock.kind != Discipline.QUEUED_RW:
        return lock.length == 0
    head = item(run.threads, waiter(run.waiting, index, lock, 0))
    return at < lock.comes_at or (mode == Mode.READ and head.mode == Mode.READ)


@always_inline
def lock_index(thread, number, step):
    """Which lock a TAKE or DROP means."""
    if step.c == Whose.ALL:
        return step.a
    return step.a + number if step.c == Whose.THREAD else thread.region_lock


@inlined_at_caller
def take(run, thread, number, step, now):
    """Ask for a lock; returns the thread's clock, or ASLEEP."""
    world, books = run.worlds[0], run.books
    if step.c == Whose.REGION:
        thread.region_lock = step.a + min(thread.page, world.pages - 1) // world.lock_pages
    index = lock_index(thread, number, step)
    lock, mode = item(run.locks, index), step.b
    thread.tried = now
    thread.mode = mode
    note(world, books.trace, now, number, TRY, index, mode)
    if lock.kind == Discipline.LOCKLESS:
        thread.seen = lock.count
        hold_since(thread, now)
        thread.pc += 1
        return now
    done = reach(world, run.cpus, lock, number, now)
    if unguarded(run, index, lock, mode, done) and admits(lock, mode):
        thread.spent[LINE] += done - now
        if lock.kind == Discipline.COHORT:
            lock.count = 0
        record_acquisition(world, books, index, lock, number, thread, mode, done)
        return done
    lock.stats[np.uint64(LOCK_STATISTICS * mode + CONTENDED)] += 1
    ring = run.waiting.shape[1]
    slot = lock.head + lock.length
    run.waiting[np.uint64(index), np.uint64(slot - ring if slot >= ring else slot)] = number
    queue_changes(world, books.progress, books.queue, index, lock, now, 1)
    if lock.length == 1:
        lock.comes_at = done if world.turn_ps == 0 else HORIZON_PS
    if world.clock == Clock.SERIAL_YIELD:
        starts(world, now, -1)
    thread.asleep = 1
    return ASLEEP if world.turn_ps == 0 else now + world.queue_ps


@inlined_at_caller
def drop(run, thread, number, step, now):
    """Let a lock go, or publish a lockless update; hand the lock on. Returns the thread's clock."""
    world, books = run.worlds[0], run.books
    index = lock_index(thread, number, step)
    lock, mode = item(run.locks, index), step.b
    first = LOCK_STATISTICS * mode
    if lock.length > 0:  # the one whose turn is next polls the word: the line must be fetched back
        place = successor(run.cpus, run.waiting, index, lock, number)
        lock.line_owner = waiter(run.waiting, index, lock, place)
    done = reach(world, run.cpus, lock, number, now)
    thread.spent[LINE] += done - now
    since = thread.served
    if lock.kind != Discipline.SERVER:
        since = thread.acquired
        thread.holds -= 1
        if thread.holds > 0:
            thread.acquired = thread.outer
    if lock.kind == Discipline.LOCKLESS:
        if lock.count != thread.seen:
            lock.stats[np.uint64(first + CONTENDED)] += 1
            note(world, books.trace, done, number, RETRY, index, mode)
            thread.pc = step.d
            return done
        lock.count += 1
        lock.stats[np.uint64(first + ACQUISITIONS)] += 1
    else:
        lock.holders -= 1 if mode == Mode.READ else -1
        if lock.holders == 0:
            lock.busy += done - lock.busy_since
    held = done - since
    lock.stats[np.uint64(first + HOLD_PS)] += held
    lock.stats[np.uint64(first + HOLD_MAX_PS)] = max(lock.stats[np.uint64(first + HOLD_MAX_PS)], held)
    lock.holds[np.uint64(BITS * mode + bit_length(held))] += 1
    note(world, books.trace, done, number, RELEASED, index, mode)
    thread.pc += 1
    lock.last, lock.freed = number, done
    if lock.length > 0 and world.turn_ps == 0:  # else whoever waits looks when it is its turn
        grant(run, index, lock, number, now, max(done, lock.comes_at))
    return done


@outlined
def poll(run, thread, number, step):
    """A thread that waits for a lock looks whether it has it now, when it is its turn; returns its clock, or ASLEEP."""
    index, now = lock_index(thread, number, step), run.worlds[0].now
    lock = item(run.locks, index)
    by = lock.last
    place = successor(run.cpus, run.waiting, index, lock, by)
    if waiter(run.waiting, index, lock, place) != number:
        return ASLEEP
    lock.comes_at = now
    if not admits(lock, thread.mode):
        return ASLEEP
    note(run.worlds[0], run.books.trace, now, number, LOOK, index, thread.mode)
    run.worlds[0].vain = 0
    return grant_to(run, index, lock, place, number, thread, by, now, max(now, lock.freed))


@inlined_at_caller
def grant(run, index, lock, by, now, at):
    """Give the lock, free from `at` on, to those whose turn it is: one writer, or readers in a row."""
    while lock.length > 0:
        place = successor(run.cpus, run.waiting, index, lock, by)
        number = waiter(run.waiting, index, lock, place)
        thread = item(run.threads, number)
        if not admits(lock, thread.mode):
            return
        at = grant_to(run, index, lock, place, number, thread, by, now, at)
        clock = run_ahead(run.steps, run.quantiles, thread, at)
        calendar.wake(run.tree, number, calendar.key_of(clock, number))
        if thread.mode == Mode.WRITE:  # nobody beside it
            return


@always_inline
def grant_to(run, index, lock, place, number, thread, by, now, at):
    """One that waited has the lock, which is free from `at` on; returns when it sees that."""
    world, books = run.worlds[0], run.books
    queue_changes(world, books.progress, books.queue, index, lock, now, -1)
    take_out(run.waiting, index, lock, place)
    if world.clock == Clock.SERIAL_YIELD:
        starts(world, now, 1)
    owned = pass_to_successor(world, run.cpus, run.waiting, index, lock, number, by, at)
    thread.spent[BROADCAST if lock.kind == Discipline.SERVER else WAIT] += at - thread.tried
    thread.spent[LINE] += owned - at
    record_acquisition(world, books, index, lock, number, thread, thread.mode, owned)
    return owned


@always_inline
def waiting_below(waiting, index, lock, below):
    """Threads with lower numbers that wait for a lock."""
    found = 0
    for place in range(lock.length):
        if waiter(waiting, index, lock, place) < below:
            found += 1
    return found
