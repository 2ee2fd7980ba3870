# SPDX-License-Identifier: BSD-3-Clause
"""Clocks, and how a thread's own time passes."""

from __future__ import annotations

import numpy as np

from simlib.model.steps import Step
from simlib.simulator.engine.compiled.inline import always_inline, item
from simlib.simulator.engine.random import FIXED_POINT_BITS, GAMMA, SCATTER, SEEK_BITS, TABLE_BITS, WITHIN_BITS

RUN, WAIT, HOLD, LINE, BROADCAST, IDLE = range(6)
"""What time is spent on, in the order of `simlib.simulator.engine.result.ACTIVITIES`."""


@always_inline
def shown(world, now):
    """What a clock shows: the world's time, or that of the one processor that runs all threads in turns."""
    return world.clock_base + max(1, world.running) * (now - world.clock_since)


@always_inline
def starts(world, now, threads):
    """So many more threads run from now on; fewer, if negative."""
    if world.fluid:
        world.clock_base = shown(world, now)
        world.clock_since = now
        world.running += threads


@always_inline
def fall_asleep(world, thread, time):
    """Sleep until the clock shows so much more."""
    thread.alarm = shown(world, world.now) + time
    starts(world, world.now, -1)


@always_inline
def mix(z):
    """64 random bits of a state (SplitMix64, as `simlib.simulator.engine.random.mix`)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@always_inline
def next_bits(whose):
    """A thread's next random bits, or the turns'; those after them are made here, where nothing waits for them."""
    bits, state = np.uint64(whose.bits), np.uint64(whose.stream) + np.uint64(GAMMA)
    whose.stream, whose.bits = np.int64(state), np.int64(mix(state))
    return bits


@always_inline
def sample(thread, quantiles, mean, table):
    """A duration: the mean, or the mean times a random entry of a quantile table."""
    if table == 0:
        return mean
    bits = next_bits(thread)
    return (mean * quantiles[np.uint64(table), bits >> np.uint64(64 - TABLE_BITS)]) >> FIXED_POINT_BITS


@always_inline
def place(thread, places, multiple, table):
    """A page of the region at random."""
    choices = (thread.end[0] - thread.begin[0]) // multiple
    bits = next_bits(thread)
    bin_ = np.int64(bits >> np.uint64(64 - SEEK_BITS))
    within = np.int64((bits >> np.uint64(64 - SEEK_BITS - WITHIN_BITS)) & np.uint64((1 << WITHIN_BITS) - 1))
    low = places[table, bin_]
    rank = ((low + (((places[table, bin_ + 1] - low) * within) >> WITHIN_BITS)) * choices) >> 32
    rank = min(rank, choices - 1)
    if places[table, -1] > 0:
        rank = (rank * SCATTER) % choices
    return thread.begin[0] + rank * multiple


@always_inline
def spend(quantiles, thread, step, time):
    """Spend the time of a RUN or HOLD step, and go on to the next; returns the thread's clock."""
    spent = sample(thread, quantiles, step.a, step.b)
    thread.spent[RUN if step.kind == Step.RUN else HOLD] += spent
    thread.pc += 1
    return time + spent


@always_inline
def run_ahead(steps, quantiles, thread, time):
    """Spend the time of the RUN and HOLD steps ahead; returns the thread's clock."""
    while True:
        step = item(steps, thread.pc)
        if step.kind > Step.HOLD:
            return time
        time = spend(quantiles, thread, step, time)
