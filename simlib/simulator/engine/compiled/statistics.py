# SPDX-License-Identifier: BSD-3-Clause
"""What is written down: time bins, the trace, the ledger, stamps and stopwatches."""

from __future__ import annotations

import numpy as np

from simlib.simulator.engine.compiled.clock import shown
from simlib.simulator.engine.compiled.inline import always_inline, bit_length, outlined
from simlib.simulator.engine.compiled.state import LOCK_STATISTICS
from simlib.simulator.engine.result import ACTIVITIES, BINS, EVENTS, LAP_BITS, LEDGER

(TRY, ACQUIRED, RELEASED, FAULT, MAPPED, RETRY, BARRIER, SCAN, STAMP, END, LAP, SIGNAL, KICK, TOUCH, LOOK, LEAVE,
 DRAIN, HARVEST, RESET, PAUSE, JUDGE, THROTTLE) = range(len(EVENTS))  # fmt: skip
"""Events of the trace, in the order of `simlib.simulator.engine.result.EVENTS`."""

WRITE = LEDGER.index("write")
FIRST_SCAN = WRITE + 1
"""In the ledger: a scan's kind is this much more than its number."""
DRAINED, HARVESTED, TAKEN = (LEDGER.index(name) for name in ("drain", "harvest", "reset"))
PAUSED, SINCE_CHECK, THROTTLED, LIMITED, NAPPED = (
    LEDGER.index(name) for name in ("pause", "judge", "throttle", "limit", "nap")
)

_ACTIVITIES, _FAULTS = len(ACTIVITIES), 5


@always_inline
def note(world, trace, time, number, event, argument, mode=0):
    """Write down one event of the trace, if there is one; `mode`: of a lock's."""
    if trace is not None:
        if world.traced < trace.shape[0]:
            row = world.traced
            trace[row, 0] = time
            trace[row, 1] = number
            trace[row, 2] = event
            trace[row, 3] = argument
            trace[row, 4] = mode
        world.traced += 1


@always_inline
def enter(world, ledger, number, what, page, count):
    """Enter into the ledger what happened to a page, or to those of a word, if there is one."""
    if ledger is not None:
        if world.ledgered < ledger.shape[0]:
            row = world.ledgered
            ledger[row, 0] = world.now
            ledger[row, 1] = number
            ledger[row, 2] = what
            ledger[row, 3] = page
            ledger[row, 4] = count
        world.ledgered += 1


@outlined
def widen(world, progress, queue):
    """Double the width of the time bins."""
    world.shift += 1
    half = BINS // 2
    for rows in (progress, queue):
        for r in range(rows.shape[0]):
            for b in range(half):
                rows[r, b] = rows[r, 2 * b] + rows[r, 2 * b + 1]
            rows[r, half:] = 0


@always_inline
def bin_of(world, progress, queue, time):
    """Index of a time's bin; the bins' width doubles until the time fits."""
    while (time >> world.shift) >= BINS:
        widen(world, progress, queue)
    return time >> world.shift


@outlined
def fill_bins(queue, index, length, shift, begin, last):
    """Add a queue's length to all time bins before the last one; returns when that one begins."""
    while begin >> shift < last:
        edge = ((begin >> shift) + 1) << shift
        queue[index, begin >> shift] += length * (edge - begin)
        begin = edge
    return begin


@always_inline
def queue_changes(world, progress, queue, index, lock, now, change):
    """Add the queue's length since its last change to the time bins, then change it."""
    last = bin_of(world, progress, queue, now)
    if lock.length > 0:
        since = lock.changed
        if since >> world.shift < last:
            since = fill_bins(queue, index, lock.length, world.shift, since, last)
        queue[np.uint64(index), np.uint64(last)] += lock.length * (now - since)
    lock.changed = now
    lock.length += change


@outlined
def stamp(run, thread, which):
    """Write down the time and all counters."""
    world, books = run.worlds[0], run.books
    books.stamp_ps[which] = shown(world, world.now)
    books.stamp_sums[which, :] = 0
    books.stamp_waits[which] = 0
    for index in range(run.locks.shape[0]):
        for place in range(run.locks[index].length):
            number = run.waiting[index, (run.locks[index].head + place) % run.waiting.shape[1]]
            if number < world.vcpus:
                books.stamp_waits[which] += world.now - run.threads[number].tried
        for mode in range(2):
            for column in range(2):
                books.stamp_locks[which, index, mode, column] = run.locks[index].stats[LOCK_STATISTICS * mode + column]
    for other in run.threads:
        for activity in range(_ACTIVITIES):
            books.stamp_sums[which, activity] += other.spent[activity]
        for fault in range(_FAULTS):
            books.stamp_sums[which, _ACTIVITIES + fault] += other.faults[fault]
    done = 0
    for number in range(world.vcpus):
        for time_bin in range(BINS):
            done += books.progress[number, time_bin]
    books.stamp_sums[which, _ACTIVITIES + _FAULTS] = done
    for activity in range(_ACTIVITIES):
        books.stamp_own[which, activity] = thread.spent[activity]
    books.stamp_own[which, _ACTIVITIES] = thread.bitmap


@always_inline
def lap_bin(gap):
    """Bin of a lap (`simlib.simulator.engine.result.lap_bin`)."""
    octave = max(0, bit_length(gap) - LAP_BITS - 1)
    return (octave << LAP_BITS) + (gap >> octave)


@always_inline
def lap(world, books, thread, number, reads):
    """Start the stopwatch, or write down its time; a fault's begins with the kick before it."""
    if reads > 1 and not thread.kicked:
        return
    now = shown(world, world.now)
    if reads:
        gap = now - thread.lap_from
        thread.lap_max = max(thread.lap_max, gap)
        books.laps[np.uint64(lap_bin(gap))] += 1
        note(world, books.trace, world.now, number, LAP, gap)
    if reads or not thread.kicked:
        thread.lap_from = now
    thread.kicked = 0


@outlined
def end_kick(world, books, thread, number):
    """Write down what a kick took, whose access has been made."""
    lap(world, books, thread, number, 1)
