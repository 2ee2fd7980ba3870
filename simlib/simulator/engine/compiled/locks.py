# SPDX-License-Identifier: BSD-3-Clause
"""Lock words, their cache lines, and the rules of every lock discipline."""

import numpy as np

from simlib.model.locks import COHORT_PASSES, Discipline
from simlib.model.steps import Clock, LockScope, Mode
from simlib.simulator.engine.compiled import calendar, statistics
from simlib.simulator.engine.compiled.clock import BROADCAST, LINE, WAIT, change_running, run_ahead
from simlib.simulator.engine.compiled.inline import always_inline, bit_length, inlined_at_caller, item, outlined
from simlib.simulator.engine.compiled.state import BITS, LOCK_STATISTICS
from simlib.simulator.engine.limits import HORIZON_PS

ACQUISITIONS, CONTENDED, WAIT_PS, WAIT_MAX_PS, HOLD_PS, HOLD_MAX_PS = range(LOCK_STATISTICS)
"""A lock's statistics, in the order of `simlib.simulator.engine.result.LOCK_COLUMNS`."""

ASLEEP = -1
"""Returned in place of a thread's clock: the thread sleeps until another thread wakes it."""


@always_inline
def transfer(world, cpus, owner, number):
    """Time of one operation by thread `number` on a cache line last owned by the CPU of `owner`."""
    if owner == number or owner < 0:
        return world.local_ps
    return item(cpus.transfer_ps, item(cpus.row, owner) + item(cpus.place, number))


@always_inline
def use_lock_word(world, cpus, lock, number, at):
    """Perform an operation, requested at time `at`, on the lock word; returns the time at which it is done."""
    if lock.kind == Discipline.SERVER:
        return at
    done = max(at, lock.line_free) + transfer(world, cpus, lock.line_owner, number)
    lock.line_free = done
    lock.line_owner = number
    return done


@always_inline
def touch(world, cpus, trace, line, thread, number, now):
    """Modify a shared cache line; returns the time at which the operation is done."""
    done = max(now, line.free) + transfer(world, cpus, line.owner, number)
    line.free = done
    line.owner = number
    thread.spent[LINE] += done - now
    statistics.record_event(world, trace, now, number, statistics.TOUCH, done - now)
    thread.pc += 1
    return done


@always_inline
def waiter(waiting, index, lock, place):
    """Thread at a place in the queue."""
    ring = waiting.shape[1]
    slot = lock.head + place
    return waiting[np.uint64(index), np.uint64(slot - ring if slot >= ring else slot)]


@always_inline
def admits(lock, mode):
    """True if a thread may hold the lock in this mode together with its current holders."""
    if mode == Mode.READ and (lock.kind == Discipline.QUEUED_RW or lock.kind == Discipline.FAIR_RW):
        return lock.holders >= 0
    return lock.holders == 0


@outlined
def successor_in_cohort(sockets, waiting, index, lock, by):
    """Place in the queue of the thread that gets a cohort lock when `by` drops it."""
    stays = lock.count < COHORT_PASSES
    for place in range(lock.length):
        if (sockets[waiter(waiting, index, lock, place)] == sockets[by]) == stays:
            return place
    return 0


@always_inline
def successor(cpus, waiting, index, lock, by):
    """Place in the queue of the thread that gets the lock when `by` drops it."""
    if lock.kind == Discipline.COHORT:
        return successor_in_cohort(cpus.socket, waiting, index, lock, by)
    return 0


@outlined
def poll_sweep(world, cpus, waiting, index, lock, by, number):
    """Time that all waiters of a ticket lock take to read the word, beginning with thread `number`."""
    time = transfer(world, cpus, by, number)
    for place in range(lock.length):
        time += transfer(world, cpus, by, waiter(waiting, index, lock, place))
    return time


@always_inline
def pass_to_successor(world, cpus, waiting, index, lock, number, by, at):
    """Time at which thread `number`, already out of the queue, sees that it owns the lock."""
    if lock.kind == Discipline.SERVER:
        return at
    if lock.kind == Discipline.TICKET:
        # All waiters poll the word; on average, the successor's read comes halfway through their reads.
        lock.line_free = at + (poll_sweep(world, cpus, waiting, index, lock, by, number) >> 1)
        lock.line_owner = number
        return lock.line_free
    owned_at = use_lock_word(world, cpus, lock, number, at)
    if lock.kind == Discipline.COHORT:
        lock.count = lock.count + 1 if cpus.socket[by] == cpus.socket[number] else 0
        return owned_at
    if lock.length > 0:
        # The thread fetches the queue node of the next waiter, to make that waiter the head of the queue.
        owned_at += transfer(world, cpus, waiter(waiting, index, lock, 0), number)
        owned_at += item(cpus.queue_length_penalty_ps, lock.length)
    if lock.kind == Discipline.QUEUED_RW:
        # The next waiter then reaches the word, which it must fetch; if threads take turns, in its turn.
        lock.comes_at = HORIZON_PS
        if world.turn_ps == 0 and lock.length > 0:
            lock.comes_at = owned_at + transfer(world, cpus, lock.line_owner, waiter(waiting, index, lock, 0))
    return owned_at


@outlined
def move_up(waiting, index, lock, place):
    """Shift the waiters before a place in the queue by one slot, over that place."""
    ring = waiting.shape[1]
    for position in range(place, 0, -1):
        slot = lock.head + position
        waiting[index, slot - ring if slot >= ring else slot] = waiter(waiting, index, lock, position - 1)


@always_inline
def begin_hold(thread, at):
    """Count one more lock held by the thread; the acquisition time of the enclosing lock is saved."""
    if thread.holds > 0:
        thread.outer = thread.acquired
    thread.acquired = at
    thread.holds += 1


@always_inline
def record_acquisition(world, counters, index, lock, number, thread, mode, at):
    """Make the thread a holder of the lock at time `at`."""
    lock.busy_since = at if lock.holders == 0 else min(lock.busy_since, at)
    thread.pc += 1
    lock.holders += 1 if mode == Mode.READ else -1
    if lock.kind == Discipline.SERVER:
        thread.served = at
    else:
        begin_hold(thread, at)
    thread.asleep = 0
    wait = at - thread.tried
    first = LOCK_STATISTICS * mode
    lock.stats[np.uint64(first + ACQUISITIONS)] += 1
    lock.stats[np.uint64(first + WAIT_PS)] += wait
    lock.stats[np.uint64(first + WAIT_MAX_PS)] = max(lock.stats[np.uint64(first + WAIT_MAX_PS)], wait)
    lock.waits[np.uint64(BITS * mode + bit_length(wait))] += 1
    statistics.record_event(world, counters.trace, at, number, statistics.ACQUIRED, index, mode)


@always_inline
def may_bypass_queue(run, index, lock, mode, at):
    """True if a thread that reaches the lock word at `at` may ignore the queue.

    It may do so until the head of the queue reaches the word; a reader also while the head is a reader.
    """
    if lock.length == 0 or lock.kind != Discipline.QUEUED_RW:
        return lock.length == 0
    head = item(run.threads, waiter(run.waiting, index, lock, 0))
    return at < lock.comes_at or (mode == Mode.READ and head.mode == Mode.READ)


@always_inline
def lock_index(thread, number, step):
    """Index of the lock that a TAKE or DROP refers to."""
    if step.c == LockScope.ALL:
        return step.a
    return step.a + number if step.c == LockScope.THREAD else thread.region_lock


@inlined_at_caller
def take(run, thread, number, step, now):
    """Request a lock; returns the thread's clock, or ASLEEP."""
    world, counters = run.worlds[0], run.counters
    if step.c == LockScope.REGION:
        thread.region_lock = step.a + min(thread.page, world.pages - 1) // world.lock_pages
    index = lock_index(thread, number, step)
    lock, mode = item(run.locks, index), step.b
    thread.tried = now
    thread.mode = mode
    statistics.record_event(world, counters.trace, now, number, statistics.TRY, index, mode)
    if lock.kind == Discipline.LOCKLESS:
        thread.version_read = lock.count
        begin_hold(thread, now)
        thread.pc += 1
        return now
    done = use_lock_word(world, run.cpus, lock, number, now)
    if may_bypass_queue(run, index, lock, mode, done) and admits(lock, mode):
        thread.spent[LINE] += done - now
        if lock.kind == Discipline.COHORT:
            lock.count = 0
        record_acquisition(world, counters, index, lock, number, thread, mode, done)
        return done
    lock.stats[np.uint64(LOCK_STATISTICS * mode + CONTENDED)] += 1
    ring = run.waiting.shape[1]
    slot = lock.head + lock.length
    run.waiting[np.uint64(index), np.uint64(slot - ring if slot >= ring else slot)] = number
    statistics.add_queue_time(world, counters.progress, counters.queue_ps, index, lock, now, 1)
    if lock.length == 1:
        lock.comes_at = done if world.turn_ps == 0 else HORIZON_PS
    if world.clock == Clock.SERIAL_YIELD:
        change_running(world, now, -1)
    thread.asleep = 1
    return ASLEEP if world.turn_ps == 0 else now + world.enqueue_ps


@inlined_at_caller
def drop(run, thread, number, step, now):
    """Drop a lock, or publish a lockless update, and grant the lock to waiters. Returns the thread's clock."""
    world, counters = run.worlds[0], run.counters
    index = lock_index(thread, number, step)
    lock, mode = item(run.locks, index), step.b
    first = LOCK_STATISTICS * mode
    if lock.length > 0:  # the successor polls the word: its cache line must be fetched back
        place = successor(run.cpus, run.waiting, index, lock, number)
        lock.line_owner = waiter(run.waiting, index, lock, place)
    done = use_lock_word(world, run.cpus, lock, number, now)
    thread.spent[LINE] += done - now
    since = thread.served
    if lock.kind != Discipline.SERVER:
        since = thread.acquired
        thread.holds -= 1
        if thread.holds > 0:
            thread.acquired = thread.outer
    if lock.kind == Discipline.LOCKLESS:
        if lock.count != thread.version_read:
            lock.stats[np.uint64(first + CONTENDED)] += 1
            statistics.record_event(world, counters.trace, done, number, statistics.RETRY, index, mode)
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
    statistics.record_event(world, counters.trace, done, number, statistics.RELEASED, index, mode)
    thread.pc += 1
    lock.last, lock.freed = number, done
    if lock.length > 0 and world.turn_ps == 0:  # if threads take turns, waiters poll in their turns
        grant(run, index, lock, number, now, max(done, lock.comes_at))
    return done


@outlined
def poll(run, thread, number, step):
    """Let a waiting thread check, in its turn, whether it gets the lock; returns its clock, or ASLEEP."""
    index, now = lock_index(thread, number, step), run.worlds[0].now
    lock = item(run.locks, index)
    by = lock.last
    place = successor(run.cpus, run.waiting, index, lock, by)
    if waiter(run.waiting, index, lock, place) != number:
        return ASLEEP
    lock.comes_at = now
    if not admits(lock, thread.mode):
        return ASLEEP
    statistics.record_event(run.worlds[0], run.counters.trace, now, number, statistics.POLL, index, thread.mode)
    run.worlds[0].failed_polls = 0
    return grant_to(run, index, lock, place, number, thread, by, now, max(now, lock.freed))


@inlined_at_caller
def grant(run, index, lock, by, now, at):
    """Grant the lock, which is free at time `at`, to its next holders: one writer, or consecutive readers."""
    while lock.length > 0:
        place = successor(run.cpus, run.waiting, index, lock, by)
        number = waiter(run.waiting, index, lock, place)
        thread = item(run.threads, number)
        if not admits(lock, thread.mode):
            return
        at = grant_to(run, index, lock, place, number, thread, by, now, at)
        clock = run_ahead(run.steps, run.quantiles, thread, at)
        calendar.wake(run.tree, number, calendar.key_of(clock, number))
        if thread.mode == Mode.WRITE:  # exclusive
            return


@always_inline
def grant_to(run, index, lock, place, number, thread, by, now, at):
    """Grant the lock, which is free at time `at`, to a waiter; returns the time at which the waiter owns it."""
    world, counters = run.worlds[0], run.counters
    statistics.add_queue_time(world, counters.progress, counters.queue_ps, index, lock, now, -1)
    if place > 0:
        move_up(run.waiting, index, lock, place)
    lock.head = 0 if lock.head + 1 == run.waiting.shape[1] else lock.head + 1
    if world.clock == Clock.SERIAL_YIELD:
        change_running(world, now, 1)
    owned_at = pass_to_successor(world, run.cpus, run.waiting, index, lock, number, by, at)
    thread.spent[BROADCAST if lock.kind == Discipline.SERVER else WAIT] += at - thread.tried
    thread.spent[LINE] += owned_at - at
    record_acquisition(world, counters, index, lock, number, thread, thread.mode, owned_at)
    return owned_at


@always_inline
def count_waiters_below(waiting, index, lock, below):
    """Number of waiting threads whose thread number is below `below`."""
    count = 0
    for place in range(lock.length):
        if waiter(waiting, index, lock, place) < below:
            count += 1
    return count
