# SPDX-License-Identifier: BSD-3-Clause
"""What cannot matter is not simulated: a thread runs ahead of the calendar through what nobody else can see.

A vCPU's access that does not fault changes nothing; a look at a stopwatch is the thread's own. Such steps need no
event each: the thread takes them, one behind the other, as long as its key (time, number) is below its *horizon*, the
least key at which another thread could change what it sees, or could see what it did. Everything comes out as if each
step had been an event, counters included. Why this is exact:

- Only some threads can change what others see, or look at what others did: those from whose first step a SCAN, STAMP,
  SIGNAL, KICK, HARVEST, RESET, JUDGE, THROTTLE, LIMIT, a Map.ZAP or a look at the page table or log can be reached
  (`changers`). They do so at their next event at the earliest.
- A changer that waits for a lock or at a barrier is woken by another thread's event, and acts at that event's time at
  the earliest; so the next event of any other thread bounds it. A barrier that this very thread must come to first
  does not open before it, which is no bound at all.
- A thread whose memory nobody else but changers touches (`alone`) may even fault, take a lockless lock that only it
  takes, map, and log. Where others map the same memory, they turn faults into hits, never the reverse, unless they
  split a block (then a thread does not run ahead); so a hit stays one, and a fault waits for its time.
- A changer that clears an extent word after word comes to a thread's region, or to its extent's end, no sooner than the
  pages take that stand in log and bitmap on the way; as long as it is the only changer, no page leaves them before.
- A bitmap that only one thread scans is that thread's own: it sends word after word.
- A thread may stop anywhere and come back at its time, so what is not known to be safe is an event.

A *round* is what lies between two hits of one ACCESS. As long as nothing but the page and the time differs, rounds are
alike: `rounds.learn` walks through one of each at the start, and `rounds.skip` adds up as many at once as there are
hits in a row.

With a trace, a ledger or another clock than the world's every step is an event.
"""

from __future__ import annotations

import numpy as np

from simlib.model.steps import Clock, Page, Quantity, Step
from simlib.simulator.engine.compiled import calendar, static_analysis
from simlib.simulator.engine.compiled.clock import next_bits
from simlib.simulator.engine.compiled.fast_forward import learn
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.memory import NO_FAULT, WORD_PAGES, fault_of
from simlib.simulator.engine.limits import HORIZON_PS

_ALL_DIRTY = Page.DIRTY * 0x0101010101010101
_FROM_COLLECTED = 1
"""Bits that lie between those of a page of the bitmap and of the log."""


@outlined
def prepare(run):
    """Before the first event: what follows from the programs alone, and the bits of each stream's first draw."""
    world = run.worlds[0]
    world.prepared = 1
    for step in run.steps:
        step.shared = step.kind >= Step.TAKE or (step.kind == Step.TEST and step.b >= Quantity.WAITERS)
    next_bits(world)
    for thread in run.threads:
        next_bits(thread)
    if world.recorded or world.clock != Clock.WALL:
        return
    steps, locks, threads = run.steps, run.locks, run.threads
    static_analysis.find_inside(steps, locks, threads, run.inside)
    static_analysis.find_reach(steps, locks, world.as_blocks, run.inside, run.reach)
    static_analysis.find_sharers(world, threads, run.reach, run.changers)
    static_analysis.find_barriers(steps, threads, run.gathers)
    for step in steps:
        step.ahead = static_analysis.who_may(steps, locks, threads.shape[0], step)
    learn(world, steps, run.rounds)
    static_analysis.find_sweeps(steps, world.block_shift, run.rounds)


@outlined
def count_sweep(world, words, sweep, page, end):
    """For every block from a page to the end, how many pages before it are to be cleared."""
    first, last = page >> world.block_shift, end >> world.block_shift
    words_of_block = 1 << (world.block_shift - 3)
    count = 0
    sweep[first] = 0
    for block in range(first, last):
        for word in range(block * words_of_block, (block + 1) * words_of_block):
            both = words[word] & (words[word] >> np.uint64(_FROM_COLLECTED)) & np.uint64(_ALL_DIRTY)
            count += int((np.int64(both) // Page.DIRTY) % 255)  # the sum of its bytes
        sweep[block + 1] = count


@outlined
def sweep_comes(world, words, sweep, them, usual, thread, key):
    """The least key at which a thread that clears an extent word after word can matter to one that is alone.

    That is when it comes to the blocks of that one's region, or else to its extent's end; on the way no page leaves
    those to be cleared, and each takes its time.
    """
    page, end, shift = them.page, them.end[usual.extent], world.block_shift
    first = (thread.begin[0] >> shift) << shift
    if page < ((thread.end[0] - 1 >> shift) + 1) << shift:
        if first < page + WORD_PAGES:
            return key
        end = min(end, page + (first - page) // WORD_PAGES * WORD_PAGES)
    begin, last = (page >> shift) + 1, end >> shift
    if last <= begin:
        return key
    if world.sweep_at != them.pc or world.sweep_page != page or world.sweep_end != them.end[usual.extent]:
        world.sweep_at, world.sweep_page, world.sweep_end = them.pc, page, them.end[usual.extent]
        count_sweep(world, words, sweep, page, world.sweep_end)
    pages = min(sweep[last] - sweep[begin], HORIZON_PS // usual.page_ps)
    return max(key, calendar.key_of((key >> calendar.THREAD_BITS) + pages * usual.page_ps, 0))


@always_inline
def horizon(run, thread, number):
    """The key below which nothing that others do can matter to a thread, nor what it does to them."""
    tree, world = run.tree, run.worlds[0]
    leaves = tree.shape[0] >> 1
    least = (HORIZON_PS + 1) << calendar.THREAD_BITS
    by_any = False
    for i in range(world.changers):
        other = run.changers[i]
        if other == number:
            continue
        key = tree[leaves + other]
        them = run.threads[other]
        if key != calendar.NEVER:
            usual = item(run.rounds, them.pc)
            if usual.page_ps > 0 and thread.alone and world.changers == 1:
                key = sweep_comes(world, run.words, run.sweep, them, usual, thread, key)
            least = min(least, key)
            continue
        waits_for_me = them.parked >= 0 and run.gathers[them.parked] and (thread.barriers >> them.parked) & 1
        if them.ended < 0 and not waits_for_me:
            by_any = True
    if by_any:
        least = min(least, (calendar.least_rival(tree, number) >> calendar.THREAD_BITS) << calendar.THREAD_BITS)
    return least


@always_inline
def passes(run, thread, step):
    """Whether the thread may take a step ahead of the calendar."""
    who = step.ahead
    if who == static_analysis.ALWAYS:
        return True
    if who == static_analysis.BITMAP:
        return thread.owns_bitmap > 0
    if thread.alone:
        return True
    return who == static_analysis.HIT and fault_of(run.worlds[0], run.pages, run.blocks, thread.page) == NO_FAULT


@always_inline
def reaches(run, thread, number, step, time, horizon):
    """Whether the thread may take a step ahead of the calendar, at a time."""
    world = run.worlds[0]
    if calendar.key_of(time, number) >= horizon or world.events >= world.stop_at:
        return False
    return passes(run, thread, step)
