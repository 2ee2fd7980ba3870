# SPDX-License-Identifier: BSD-3-Clause
"""Rounds: what lies between two hits of one ACCESS, learnt once and then added up."""

from __future__ import annotations

from simlib.model.steps import Block, Page, Quantity, Step
from simlib.simulator.engine.compiled import calendar
from simlib.simulator.engine.compiled.clock import HOLD, RUN
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.logs import ring_is_full
from simlib.simulator.engine.compiled.memory import NO_FAULT, fault_of
from simlib.simulator.engine.compiled.static_analysis import HIT
from simlib.simulator.engine.compiled.statistics import bin_of, lap_bin

_ROUND_STEPS = 64
"""Steps of the longest round that is learnt."""

_NONE = -1
_ALL_WRITABLE = Page.WRITABLE * 0x0101010101010101
_ALL_STATES = 3 * 0x0101010101010101


@always_inline
def begin_round(found):
    """A round of which nothing is known but that it begins with an ACCESS."""
    found.time, found.events, found.run, found.hold, found.stride = 0, 1, 0, 0, 0
    found.lap, found.lap_at, found.advance_at = _NONE, 0, 0
    found.extent, found.counter, found.other = _NONE, _NONE, _NONE


@always_inline
def count_in_round(step, found):
    """REPEAT in a round; returns whether there is room for its counter."""
    if found.counter == _NONE:
        found.counter, found.period = step.c, step.b
    elif found.other == _NONE and step.c != found.counter:
        found.other, found.other_period = step.c, step.b
    else:
        return False
    return True


@always_inline
def known_in_round(step, found):
    """Write down what a step does in a round; returns whether it does the same in each, so that there is a closed form.

    One LAP and one ADVANCE may be in it; a TEST only of a flag, or of the extent's end, which does not come.
    """
    kind = step.kind
    if kind <= Step.HOLD:
        found.time += step.a
        if kind == Step.RUN:
            found.run += step.a
        else:
            found.hold += step.a
        return step.b == 0
    if kind == Step.LAP:
        first = found.lap == _NONE
        found.events += 1
        found.lap, found.lap_at = step.a, found.time
        return first
    if kind == Step.ADVANCE:
        first = found.stride == 0
        found.stride, found.advance_at, found.extent = step.a, found.time, step.b
        return first
    if kind == Step.REPEAT:
        return count_in_round(step, found)
    if kind == Step.TEST and step.b == Quantity.FLAG:
        found.events += 1
        return True
    return kind == Step.JUMP or (
        kind == Step.TEST and step.b == Quantity.DONE and step.d == 1 and step.c == found.extent
    )


@always_inline
def jumps_in_round(world, step, expires):
    """Whether a step of a round goes to its target."""
    if step.kind == Step.REPEAT:
        return step.c != expires
    if step.kind == Step.TEST and step.b == Quantity.FLAG:
        return world.flags[step.c] < step.d
    return step.kind == Step.JUMP or step.kind == Step.TEST


@outlined
def walk_round(world, steps, first, expires, found):
    """Walk from a hit of an ACCESS to the next, and write down what is spent on the way; True if it has a closed form.

    The extent does not end on the way, and no counter runs out but that of number `expires`.
    """
    begin_round(found)
    pc = first + 1
    for _ in range(_ROUND_STEPS):
        step = steps[pc]
        if step.kind == Step.ACCESS:
            return pc == first and found.time > 0 and found.stride > 0
        if not known_in_round(step, found):
            return False
        pc = step.a if jumps_in_round(world, step, expires) else pc + 1
    return False


@always_inline
def same_shape(one, other):
    """Whether two rounds differ in their events only."""
    return (
        one.time == other.time
        and one.run == other.run
        and one.hold == other.hold
        and one.stride == other.stride
        and one.advance_at == other.advance_at
        and one.lap == other.lap
        and one.lap_at == other.lap_at
        and one.extent == other.extent
        and one.counter == other.counter
        and one.other == other.other
    )


@outlined
def learn(world, steps, rounds):
    """Walk through a round from every ACCESS, with the flags as they are.

    If one counter's running out costs events only, as that of a look at a flag now and then, it becomes `counter`, and
    its rounds are counted, not waited for.
    """
    for pc in range(steps.shape[0]):
        if steps[pc].ahead != HIT:
            continue
        usual, late = rounds[pc], rounds[steps.shape[0]]
        usual.known, usual.free = int(walk_round(world, steps, pc, _NONE, usual)), 0
        for counter in (usual.counter, usual.other):
            if not usual.known or usual.free or counter == _NONE:
                continue
            if walk_round(world, steps, pc, counter, late) and same_shape(usual, late):
                usual.free, usual.extra = 1, late.events - usual.events
                if counter == usual.other:
                    usual.counter, usual.other = usual.other, usual.counter
                    usual.period, usual.other_period = usual.other_period, usual.period


@always_inline
def words_writable(words, page, count):
    """How many pages in a row are writable, in eights, from one that is a multiple of eight on; at most so many."""
    word, end = page >> 3, (page + count) >> 3
    first = word
    while word + 8 <= end:
        wrong = (words[word] & _ALL_STATES) ^ _ALL_WRITABLE
        for i in range(1, 8):
            wrong |= (words[word + i] & _ALL_STATES) ^ _ALL_WRITABLE
        if wrong:
            break
        word += 8
    while word < end and (words[word] & _ALL_STATES) == _ALL_WRITABLE:
        word += 1
    return (word - first) << 3


@always_inline
def hits(world, pages, words, blocks, page, stride, most):
    """How many accesses in a row are hits, from a page on, a stride between them; at most so many."""
    found = 0
    while found < most:
        if stride == 1:
            block = page >> world.block_shift
            left = min(most - found, ((block + 1) << world.block_shift) - page)
            many = 0
            if blocks[block] == Block.WRITABLE:
                many = left
            elif blocks[block] == Block.TABLE and not page & 7:
                many = words_writable(words, page, left)
            if many > 0:
                found += many
                page += many
                continue
        if fault_of(world, pages, blocks, page) != NO_FAULT:
            break
        found += 1
        page += stride
    return found


@always_inline
def count_hits(world, pages, words, blocks, thread, stride, most):
    """As `hits`, from the thread's page on; what it has seen and has not changed it does not look at again."""
    page = thread.page
    known = thread.hits_since == world.withdrawn
    if known and stride == 1 and thread.hits_from <= page < thread.hits_to:
        return min(most, thread.hits_to - page)
    found = hits(world, pages, words, blocks, page, stride, most)
    if stride == 1:
        if not known or page != thread.hits_to:
            thread.hits_from, thread.hits_since = page, world.withdrawn
        thread.hits_to = page + found
    return found


@always_inline
def count_progress(world, progress, queue, number, at, every, times, pages):
    """Write down so many pages at a time, and again after each period."""
    bin_of(world, progress, queue, at + (times - 1) * every)
    done = 0
    while done < times:
        time_bin = (at + done * every) >> world.shift
        edge = (time_bin + 1) << world.shift
        until = min(times, (edge - at + every - 1) // every)
        progress[number, time_bin] += (until - done) * pages
        done = until


@always_inline
def count_laps(thread, laps, gap, times):
    """Write down the same lap so many times."""
    if times > 0:
        thread.lap_max = max(thread.lap_max, gap)
        laps[lap_bin(gap)] += times


@always_inline
def max_repeats(usual, thread, time, horizon):
    """How many rounds fit before the horizon, the extent's end and the end of a counter that must not run out."""
    most = (thread.end[usual.extent] - 1 - thread.page) // usual.stride
    most = min(most, ((horizon >> calendar.THREAD_BITS) - 1 - time) // usual.time)
    if usual.other != _NONE:
        most = min(most, usual.other_period - 1 - thread.counters[usual.other])
    if usual.counter != _NONE and not usual.free:
        most = min(most, usual.period - 1 - thread.counters[usual.counter])
    return most


@always_inline
def turn_counters(usual, thread, rounds):
    """Count rounds; returns the events of a counter that ran out."""
    if usual.other != _NONE:
        thread.counters[usual.other] += rounds
    if usual.counter == _NONE:
        return 0
    count = thread.counters[usual.counter] + rounds
    if not usual.free:
        thread.counters[usual.counter] = count
        return 0
    thread.counters[usual.counter] = count % usual.period
    return count // usual.period * usual.extra


@always_inline
def skip(run, thread, number, time, horizon):
    """Add up all rounds alike that begin at an ACCESS; returns the time of the first one that is not among them."""
    world, books, usual = run.worlds[0], run.books, item(run.rounds, thread.pc)
    if thread.kick or thread.pause or thread.interrupted or thread.kicked or ring_is_full(world, thread):
        return time
    if fault_of(world, run.pages, run.blocks, thread.page) != NO_FAULT:
        return time
    most = max_repeats(usual, thread, time, horizon)
    if most <= 0:
        return time
    rounds = count_hits(world, run.pages, run.words, run.blocks, thread, usual.stride, most)
    count_progress(
        world, books.progress, books.queue, number, time + usual.advance_at, usual.time, rounds, usual.stride
    )
    thread.page += rounds * usual.stride
    thread.spent[RUN] += rounds * usual.run
    thread.spent[HOLD] += rounds * usual.hold
    if usual.lap != _NONE:
        if usual.lap:
            count_laps(thread, books.laps, time + usual.lap_at - thread.lap_from, 1)
            count_laps(thread, books.laps, usual.time, rounds - 1)
        thread.lap_from = time + (rounds - 1) * usual.time + usual.lap_at
    events = rounds * usual.events + turn_counters(usual, thread, rounds)
    world.events += events
    world.stop_at += events - 1 - (rounds >> 7)  # what it took to add them up, in events
    return time + rounds * usual.time
