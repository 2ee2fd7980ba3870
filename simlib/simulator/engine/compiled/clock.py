# SPDX-License-Identifier: BSD-3-Clause
"""Clocks, and the passing of a thread's own time."""

import numpy as np

from simlib.model.steps import Step
from simlib.simulator.engine.compiled.inline import always_inline, item
from simlib.simulator.engine.random import FIXED_POINT_BITS, GAMMA, SCATTER, SEEK_BITS, TABLE_BITS, WITHIN_BITS, mix_all

RUN, WAIT, HOLD, LINE, BROADCAST, IDLE = range(6)
"""Activities on which threads spend time, in the order of `simlib.simulator.engine.result.ACTIVITIES`."""


@always_inline
def shown_time(world, now):
    """Time that a clock shows: the world's time, or the time of the single processor that runs all threads in turns."""
    return world.clock_base + max(1, world.running) * (now - world.clock_since)


@always_inline
def change_running(world, now, threads):
    """Change the number of running threads by `threads`, which may be negative."""
    if world.fluid:
        world.clock_base = shown_time(world, now)
        world.clock_since = now
        world.running += threads


@always_inline
def fall_asleep(world, thread, time):
    """Put the thread to sleep until the clock has advanced by `time`."""
    thread.alarm = shown_time(world, world.now) + time
    change_running(world, world.now, -1)


mix = always_inline(mix_all)


@always_inline
def next_bits(source):
    """Next random bits of a thread or of the turns; computes the following bits in advance, off the critical path."""
    bits, state = np.uint64(source.bits), np.uint64(source.stream) + np.uint64(GAMMA)
    source.stream, source.bits = np.int64(state), np.int64(mix(state))
    return bits


@always_inline
def sample(thread, quantiles, mean, table):
    """Draw a duration: the mean, or the mean times a random entry of a quantile table."""
    if table == 0:
        return mean
    bits = next_bits(thread)
    return (mean * quantiles[np.uint64(table), bits >> np.uint64(64 - TABLE_BITS)]) >> FIXED_POINT_BITS


@always_inline
def random_page(thread, places, multiple, table):
    """Random page of the thread's region."""
    choices = (thread.end[0] - thread.begin[0]) // multiple
    bits = next_bits(thread)
    number = np.int64(bits >> np.uint64(64 - SEEK_BITS))
    within = np.int64((bits >> np.uint64(64 - SEEK_BITS - WITHIN_BITS)) & np.uint64((1 << WITHIN_BITS) - 1))
    low = places[table, number]
    rank = ((low + (((places[table, number + 1] - low) * within) >> WITHIN_BITS)) * choices) >> 32
    rank = min(rank, choices - 1)
    if places[table, -1] > 0:
        rank = (rank * SCATTER) % choices
    return thread.begin[0] + rank * multiple


@always_inline
def spend(quantiles, thread, step, time):
    """Spend the time of a RUN or HOLD step, and go on to the next step; returns the thread's clock."""
    spent = sample(thread, quantiles, step.a, step.b)
    thread.spent[RUN if step.kind == Step.RUN else HOLD] += spent
    thread.pc += 1
    return time + spent


@always_inline
def run_ahead(steps, quantiles, thread, time):
    """Spend the time of all consecutive RUN and HOLD steps; returns the thread's clock."""
    while True:
        step = item(steps, thread.pc)
        if step.kind > Step.HOLD:
            return time
        time = spend(quantiles, thread, step, time)
