# SPDX-License-Identifier: BSD-3-Clause
"""Rounds, each consisting of the steps between two hits of one ACCESS, traced once and then added up."""

from simlib.model.steps import Block, Page, Quantity, Step
from simlib.simulator.engine.compiled import calendar
from simlib.simulator.engine.compiled.clock import HOLD, RUN
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.logs import ring_is_full
from simlib.simulator.engine.compiled.memory import NO_FAULT, fault_of
from simlib.simulator.engine.compiled.static_analysis import HIT
from simlib.simulator.engine.compiled.statistics import bin_of, lap_bin

_ROUND_STEPS = 64
"""Maximum number of steps of a round that is traced."""

_NONE = -1
_ALL_WRITABLE = Page.WRITABLE * 0x0101010101010101
_ALL_STATES = 3 * 0x0101010101010101


@always_inline
def add_step(step, round_):
    """Add a step to a round; returns True if the step is the same in every round, as a closed form requires.

    A round may have one LAP, one ADVANCE, and TESTs of flags and of the end of the extent, which is not reached.
    """
    kind = step.kind
    if kind <= Step.HOLD:
        round_.time += step.a
        if kind == Step.RUN:
            round_.run += step.a
        else:
            round_.hold += step.a
        return step.b == 0
    if kind == Step.LAP:
        is_first = round_.lap == _NONE
        round_.events += 1
        round_.lap, round_.lap_at = step.a, round_.time
        return is_first
    if kind == Step.ADVANCE:
        is_first = round_.stride == 0
        round_.stride, round_.advance_at, round_.extent = step.a, round_.time, step.b
        return is_first
    if kind == Step.REPEAT:
        if round_.counter == _NONE:
            round_.counter, round_.period = step.c, step.b
        elif round_.other == _NONE and step.c != round_.counter:
            round_.other, round_.other_period = step.c, step.b
        else:
            return False  # a round has no field for a third counter
        return True
    if kind == Step.TEST and step.b == Quantity.FLAG:
        round_.events += 1
        return True
    tests_end = kind == Step.TEST and step.b == Quantity.DONE and step.d == 1 and step.c == round_.extent
    return kind == Step.JUMP or tests_end


@always_inline
def jumps(world, step, expires):
    """True if a step of a round jumps to its target."""
    if step.kind == Step.REPEAT:
        return step.c != expires
    if step.kind == Step.TEST and step.b == Quantity.FLAG:
        return world.flags[step.c] < step.d
    return step.kind == Step.JUMP or step.kind == Step.TEST


@outlined
def trace_round(world, steps, first, expires, round_):
    """Trace the steps from a hit of an ACCESS to the next hit and add up their times; True if there is a closed form.

    The extent must not end on the way, and no counter except `expires` runs out.
    """
    round_.time, round_.events, round_.run, round_.hold, round_.stride = 0, 1, 0, 0, 0
    round_.lap, round_.lap_at, round_.advance_at = _NONE, 0, 0
    round_.extent, round_.counter, round_.other = _NONE, _NONE, _NONE
    pc = first + 1
    for _ in range(_ROUND_STEPS):
        step = steps[pc]
        if step.kind == Step.ACCESS:
            return pc == first and round_.time > 0 and round_.stride > 0
        if not add_step(step, round_):
            return False
        pc = step.a if jumps(world, step, expires) else pc + 1
    return False


@always_inline
def shape_of(round_):
    """All fields of a round except its number of events."""
    times = round_.time, round_.run, round_.hold, round_.advance_at, round_.lap, round_.lap_at
    return times, (round_.stride, round_.extent, round_.counter, round_.other)


@outlined
def learn_rounds(world, steps, rounds):
    """Trace a round from every ACCESS, with the current flags.

    If the expiry of a counter only adds events (such as testing a flag now and then), this counter becomes `counter`,
    and its expiries are counted instead of ending a run of rounds.
    """
    for pc in range(steps.shape[0]):
        if steps[pc].ahead != HIT:
            continue
        round_, expiring_round = rounds[pc], rounds[steps.shape[0]]
        round_.known, round_.free = int(trace_round(world, steps, pc, _NONE, round_)), 0
        for counter in (round_.counter, round_.other):
            if not round_.known or round_.free or counter == _NONE:
                continue
            has_form = trace_round(world, steps, pc, counter, expiring_round)
            if has_form and shape_of(round_) == shape_of(expiring_round):
                round_.free, round_.extra = 1, expiring_round.events - round_.events
                if counter == round_.other:
                    round_.counter, round_.other = round_.other, round_.counter
                    round_.period, round_.other_period = round_.other_period, round_.period


@always_inline
def writable_pages(words, page, count):
    """Number of consecutive writable pages from `page` (a multiple of 8), in multiples of 8, at most `count`."""
    word, end = page >> 3, (page + count) >> 3
    first = word
    while word + 8 <= end:
        mismatch = (words[word] & _ALL_STATES) ^ _ALL_WRITABLE
        for i in range(1, 8):
            mismatch |= (words[word + i] & _ALL_STATES) ^ _ALL_WRITABLE
        if mismatch:
            break
        word += 8
    while word < end and (words[word] & _ALL_STATES) == _ALL_WRITABLE:
        word += 1
    return (word - first) << 3


@always_inline
def scan_hits(world, pages, words, blocks, page, stride, most):
    """Number of consecutive hits of accesses that begin at `page` and are `stride` pages apart; at most `most`."""
    count = 0
    while count < most:
        if stride == 1:
            block = page >> world.block_shift
            remaining = min(most - count, ((block + 1) << world.block_shift) - page)
            hits = 0
            if blocks[block] == Block.WRITABLE:
                hits = remaining
            elif blocks[block] == Block.TABLE and not page & 7:
                hits = writable_pages(words, page, remaining)
            if hits > 0:
                count += hits
                page += hits
                continue
        if fault_of(world, pages, blocks, page) != NO_FAULT:
            break
        count += 1
        page += stride
    return count


@always_inline
def count_hits(world, pages, words, blocks, thread, stride, most):
    """Number of consecutive hits from the current page, at most `most`; reuses scans until an entry is withdrawn."""
    page = thread.page
    known = thread.hits_since == world.withdrawn
    if known and stride == 1 and thread.hits_from <= page < thread.hits_to:
        return min(most, thread.hits_to - page)
    hits = scan_hits(world, pages, words, blocks, page, stride, most)
    if stride == 1:
        if not known or page != thread.hits_to:
            thread.hits_from, thread.hits_since = page, world.withdrawn
        thread.hits_to = page + hits
    return hits


@always_inline
def add_progress(world, progress, queue, number, at, every, times, pages):
    """Add `pages` to the progress `times` times, at intervals of `every`."""
    bin_of(world, progress, queue, at + (times - 1) * every)
    done = 0
    while done < times:
        time_bin = (at + done * every) >> world.shift
        edge = (time_bin + 1) << world.shift
        until = min(times, (edge - at + every - 1) // every)
        progress[number, time_bin] += (until - done) * pages
        done = until


@always_inline
def add_laps(thread, laps, gap, times):
    """Record the same lap `times` times."""
    if times > 0:
        thread.lap_max = max(thread.lap_max, gap)
        laps[lap_bin(gap)] += times


@always_inline
def max_repeats(round_, thread, time, horizon):
    """Number of rounds before the horizon, the end of the extent or the expiry of a counter that must not run out."""
    most = (thread.end[round_.extent] - 1 - thread.page) // round_.stride
    most = min(most, ((horizon >> calendar.THREAD_BITS) - 1 - time) // round_.time)
    if round_.other != _NONE:
        most = min(most, round_.other_period - 1 - thread.counters[round_.other])
    if round_.counter != _NONE and not round_.free:
        most = min(most, round_.period - 1 - thread.counters[round_.counter])
    return most


@always_inline
def advance_counters(round_, thread, rounds):
    """Advance the counters by `rounds` rounds; returns the number of events that the expiries of a free counter add."""
    if round_.other != _NONE:
        thread.counters[round_.other] += rounds
    if round_.counter == _NONE:
        return 0
    count = thread.counters[round_.counter] + rounds
    if not round_.free:
        thread.counters[round_.counter] = count
        return 0
    thread.counters[round_.counter] = count % round_.period
    return count // round_.period * round_.extra


@always_inline
def skip_rounds(run, thread, number, time, horizon):
    """Add up all identical rounds that begin at an ACCESS; returns the time at which they end."""
    world, counters, round_ = run.worlds[0], run.counters, item(run.rounds, thread.pc)
    if thread.kick or thread.pause or thread.interrupted or thread.kicked or ring_is_full(world, thread):
        return time
    if fault_of(world, run.pages, run.blocks, thread.page) != NO_FAULT:
        return time
    most = max_repeats(round_, thread, time, horizon)
    if most <= 0:
        return time
    rounds = count_hits(world, run.pages, run.words, run.blocks, thread, round_.stride, most)
    at = time + round_.advance_at
    add_progress(world, counters.progress, counters.queue_ps, number, at, round_.time, rounds, round_.stride)
    thread.page += rounds * round_.stride
    thread.spent[RUN] += rounds * round_.run
    thread.spent[HOLD] += rounds * round_.hold
    if round_.lap != _NONE:
        if round_.lap:
            add_laps(thread, counters.lap_histogram, time + round_.lap_at - thread.lap_from, 1)
            add_laps(thread, counters.lap_histogram, round_.time, rounds - 1)
        thread.lap_from = time + (rounds - 1) * round_.time + round_.lap_at
    events = rounds * round_.events + advance_counters(round_, thread, rounds)
    world.events += events
    world.stop_at += events - 1 - (rounds >> 7)  # the cost of adding them up, in events
    return time + rounds * round_.time
