# SPDX-License-Identifier: BSD-3-Clause
"""The turns of an emulator's one processor: whose turn it is, and until when.

The calendar has the thread whose turn it is, and nobody else; of the others `left` says how much of their own time is
left until they do something.
"""

from __future__ import annotations

import numpy as np

from simlib.engine.compiled import calendar
from simlib.engine.compiled.clock import bits_of
from simlib.engine.compiled.inline import apart
from simlib.engine.compiled.state import DEADLOCK, FINISHED, PAST_HORIZON
from simlib.engine.limits import HORIZON_PS
from simlib.engine.random import TURN_BITS
from simlib.model.steps import Clock


@apart
def spins(thread):
    """Whether it waits for a lock."""
    return thread.asleep and thread.parked < 0 and thread.ended < 0


@apart
def can_run(thread, now):
    """Whether a turn is of use to it: it goes on, or looks whether it has the lock."""
    return thread.ended < 0 and thread.parked < 0 and not (thread.rests and thread.alarm > now)


@apart
def begin(world, threads, tree, number, now):
    """It is this thread's turn; where the last turn is over, another one begins."""
    if now >= world.turn_end:
        bits = np.int64(bits_of(world.turn_key, world.turn_draws) >> np.uint64(64 - TURN_BITS))
        world.turn_end = now + max(1, world.turn_ps // 2 + ((bits * world.turn_ps) >> TURN_BITS))
        world.turn_draws += 1
    if not spins(threads[number]):
        world.vain = 0
    world.turn_of = number
    calendar.wake(tree, number, calendar.key_of(now + threads[number].left, number))
    threads[number].left = 0


@apart
def pass_on(run):
    """The next one's turn: of those that can go on, or look whether they can. Nobody looks in vain for ever."""
    world, threads, tree = run.worlds[0], run.threads, run.tree
    count, whose, now = threads.shape[0], world.turn_of, world.now
    last = threads[whose]
    key = tree[(tree.shape[0] >> 1) + whose]
    world.stop_at -= 1
    if key != calendar.NEVER:
        now = world.turn_end
        last.left = (key >> calendar.THREAD_BITS) - now
        calendar.wake(tree, whose, calendar.NEVER)
    elif spins(last) and world.clock == Clock.SERIAL:
        now = max(now, world.turn_end)
    if now > HORIZON_PS:
        world.status = PAST_HORIZON
        return
    world.vain = world.vain + 1 if spins(last) else 0
    for i in range(1, count + 1):
        number = (whose + i) % count
        if can_run(threads[number], now) and not (world.vain > count and spins(threads[number])):
            begin(world, threads, tree, number, now)
            return
    first = -1
    for number in range(count):
        if threads[number].rests and (first < 0 or threads[number].alarm < threads[first].alarm):
            first = number
    if first < 0:
        world.status = FINISHED if world.live == 0 else DEADLOCK
        return
    world.turn_end += threads[first].alarm - now  # nobody runs meanwhile
    begin(world, threads, tree, first, threads[first].alarm)
