# SPDX-License-Identifier: BSD-3-Clause
"""Records of a run: time bins, the trace, the ledger, stamps and stopwatches."""

import numpy as np

from simlib.simulator.engine.compiled.clock import shown_time
from simlib.simulator.engine.compiled.inline import always_inline, bit_length, outlined
from simlib.simulator.engine.compiled.state import LOCK_STATISTICS
from simlib.simulator.engine.result import ACTIVITIES, BINS, EVENTS, LAP_BITS, LEDGER

(TRY, ACQUIRED, RELEASED, FAULT, MAPPED, RETRY, BARRIER, SCAN, STAMP, END, LAP, SIGNAL, KICK, TOUCH, POLL, LEAVE,
 DRAIN, HARVEST, RESET, PAUSE, THROTTLE_CHECK, THROTTLE) = range(len(EVENTS))  # fmt: skip
"""Events of the trace, in the order of `simlib.simulator.engine.result.EVENTS`."""

WRITE = LEDGER.index("write")
FIRST_SCAN = WRITE + 1  # a scan's kind is this plus its number
DRAINED, HARVESTED, TAKEN = (LEDGER.index(name) for name in ("drain", "harvest", "reset"))
PAUSED, THROTTLE_CHECKED, THROTTLED, DIRTY_LIMIT_UPDATED, DIRTY_LIMIT_SLEPT, PACED = range(
    LEDGER.index("pause"), len(LEDGER)
)

_ACTIVITIES, _FAULTS = len(ACTIVITIES), 5


@always_inline
def record_event(world, trace, time, number, event, argument, mode=0):
    """Append an event to the trace, if the run has one; `mode` is the mode of a lock event."""
    if trace is not None:
        if world.traced < trace.shape[0]:
            row = trace[world.traced]
            row[0], row[1], row[2], row[3], row[4] = time, number, event, argument, mode
        world.traced += 1


@always_inline
def record_entry(world, ledger, number, kind, page, count):
    """Append an entry to the ledger, if the run has one: what happened to a page, or to the pages of a word."""
    if ledger is not None:
        if world.ledgered < ledger.shape[0]:
            row = ledger[world.ledgered]
            row[0], row[1], row[2], row[3], row[4] = world.now, number, kind, page, count
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
    """Index of the bin of a time; doubles the width of the bins until the time fits."""
    while (time >> world.shift) >= BINS:
        widen(world, progress, queue)
    return time >> world.shift


@outlined
def fill_bins(queue, index, length, shift, begin, last):
    """Add a queue's length to all time bins before `last`; returns the beginning of the bin `last`."""
    while begin >> shift < last:
        edge = ((begin >> shift) + 1) << shift
        queue[index, begin >> shift] += length * (edge - begin)
        begin = edge
    return begin


@always_inline
def add_queue_time(world, progress, queue, index, lock, now, change):
    """Add the queue's length since its last change to the time bins, then change the length."""
    last = bin_of(world, progress, queue, now)
    if lock.length > 0:
        since = lock.changed
        if since >> world.shift < last:
            since = fill_bins(queue, index, lock.length, world.shift, since, last)
        queue[np.uint64(index), np.uint64(last)] += lock.length * (now - since)
    lock.changed = now
    lock.length += change


@outlined
def stamp(run, thread, index):
    """Record the time and all counters."""
    world, counters = run.worlds[0], run.counters
    counters.stamp_ps[index] = shown_time(world, world.now)
    counters.stamp_sums[index, :] = 0
    counters.stamp_waits[index] = 0
    for lock in range(run.locks.shape[0]):
        for place in range(run.locks[lock].length):
            number = run.waiting[lock, (run.locks[lock].head + place) % run.waiting.shape[1]]
            if number < world.vcpus:
                counters.stamp_waits[index] += world.now - run.threads[number].tried
        for mode in range(2):
            for column in range(2):
                counters.stamp_locks[index, lock, mode, column] = run.locks[lock].stats[LOCK_STATISTICS * mode + column]
    for other in run.threads:
        for activity in range(_ACTIVITIES):
            counters.stamp_sums[index, activity] += other.spent[activity]
        for fault in range(_FAULTS):
            counters.stamp_sums[index, _ACTIVITIES + fault] += other.faults[fault]
    pages = 0
    for number in range(world.vcpus):
        for time_bin in range(BINS):
            pages += counters.progress[number, time_bin]
    counters.stamp_sums[index, _ACTIVITIES + _FAULTS] = pages
    for activity in range(_ACTIVITIES):
        counters.stamp_thread[index, activity] = thread.spent[activity]
    counters.stamp_thread[index, _ACTIVITIES] = thread.bitmap


@always_inline
def lap_bin(gap):
    """Bin of a lap (`simlib.simulator.engine.result.lap_bin`)."""
    octave = max(0, bit_length(gap) - LAP_BITS - 1)
    return (octave << LAP_BITS) + (gap >> octave)


@always_inline
def lap(world, counters, thread, number, reads):
    """Start the stopwatch, or record its time; the lap of a fault begins with the kick before it."""
    if reads > 1 and not thread.kicked:
        return
    now = shown_time(world, world.now)
    if reads:
        gap = now - thread.lap_from
        thread.lap_max = max(thread.lap_max, gap)
        counters.lap_histogram[np.uint64(lap_bin(gap))] += 1
        record_event(world, counters.trace, world.now, number, LAP, gap)
    if reads or not thread.kicked:
        thread.lap_from = now
    thread.kicked = 0


@outlined
def end_kick(world, counters, thread, number):
    """Record the duration of a kick after the access that it delayed."""
    lap(world, counters, thread, number, 1)
