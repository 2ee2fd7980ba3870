# SPDX-License-Identifier: BSD-3-Clause
"""Turns on an emulator's single processor: which thread runs, and until when.

The calendar contains only the thread whose turn it is; for every other thread, `unspent` is the time that it must still
spend before its next step.
"""

import numpy as np

from simlib.model.steps import Clock
from simlib.simulator.engine.compiled import calendar
from simlib.simulator.engine.compiled.clock import next_bits, sample
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.state import DEADLOCK, FINISHED, PAST_HORIZON
from simlib.simulator.engine.limits import HORIZON_PS
from simlib.simulator.engine.random import TURN_BITS


@outlined
def next_turn(world, threads, tree, quantiles):
    """Give the turn to the next thread that can continue or, if progress is possible, poll a lock."""
    count, owner, now = threads.shape[0], world.turn_of, world.now
    last, chosen, sleeper = item(threads, owner), -1, -1
    spins = last.asleep and last.parked < 0 and last.ended < 0
    key = tree[(tree.shape[0] >> 1) + owner]
    world.stop_at -= 1
    if key != calendar.NEVER:
        now = world.turn_end
        last.unspent = (key >> calendar.THREAD_BITS) - now
        calendar.wake(tree, owner, calendar.NEVER)
    elif spins:
        now = max(now, world.turn_end if world.clock == Clock.SERIAL else min(now + world.poll_ps, world.turn_end))
    if now > HORIZON_PS:
        world.status = PAST_HORIZON
        return
    world.failed_polls = world.failed_polls + 1 if spins and key == calendar.NEVER else 0
    for i in range(owner + 1, owner + 1 + count):
        number = i if i < count else i - count
        thread = item(threads, number)
        if thread.ended >= 0 or thread.parked >= 0 or (thread.asleep and world.failed_polls > count):
            continue
        if not thread.sleeping or thread.alarm <= now:
            chosen = number
            break
        if sleeper < 0 or thread.alarm < item(threads, sleeper).alarm:
            sleeper = number
    if chosen < 0:
        if sleeper < 0:
            world.status = FINISHED if world.live_threads == 0 else DEADLOCK
            return
        chosen = sleeper
        world.turn_end += item(threads, chosen).alarm - now  # no thread runs meanwhile
        now = item(threads, chosen).alarm
    begin_turn(world, tree, quantiles, chosen, item(threads, chosen), now)


@always_inline
def begin_turn(world, tree, quantiles, number, thread, now):
    """Begin a thread's turn; if the time slice is over, draw a new one."""
    if now >= world.turn_end:
        bits = np.int64(next_bits(world) >> np.uint64(64 - TURN_BITS))
        world.turn_end = now + max(1, (world.turn_ps >> 1) + ((bits * world.turn_ps) >> TURN_BITS))
    if world.tick_ps > 0 and now >= thread.tick_at:
        thread.unspent += sample(thread, quantiles, world.tick_work_ps, world.tick_table)
        thread.tick_at += ((now - thread.tick_at) // world.tick_ps + 1) * world.tick_ps
    if not thread.asleep:
        world.failed_polls = 0
    world.turn_of = number
    calendar.wake(tree, number, calendar.key_of(now + thread.unspent, number))
    thread.unspent = 0
