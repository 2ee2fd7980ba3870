# SPDX-License-Identifier: BSD-3-Clause
"""Steps without an event: a thread runs ahead of the calendar through steps that no other thread can observe.

A vCPU's access that does not fault changes nothing; reading a stopwatch concerns only the thread itself. Such steps
need no event: the thread takes them in succession as long as its key (time, number) is below its *horizon*, the
smallest key at which another thread could change what this one sees, or could see what this one did. The result,
including the counters, is the same as if each step had been an event. This is exact for the following reasons:

- Only some threads, the *changers*, can change what others see, or observe what others did: those that can reach a
  SCAN, STAMP, SIGNAL, KICK, HARVEST, RESET, THROTTLE_CHECK, THROTTLE, DIRTY_LIMIT_UPDATE, a Map.ZAP or a test of the
  page table or the dirty log. They do so at their next event at the earliest.
- A changer that waits for a lock or at a barrier is woken by another thread's event, and acts at that event's time at
  the earliest; so the next event of any other thread is a bound for the changer. A barrier that waits for the thread
  itself does not open before the thread arrives, so a changer at such a barrier gives no bound.
- A thread whose memory only changers and the thread itself touch (`memory_private`) may even fault, take a lockless
  lock that only it takes, map, and log. If others map the same memory, they turn faults into hits, never the reverse,
  unless they split a block (it then does not run ahead); so a hit remains a hit, and a fault waits for its time.
- A changer that clears an extent word by word reaches a thread's region, or the end of its extent, only after it has
  cleared the pages before it that are both in the log and in the bitmap. As long as it is the only changer, no page
  leaves the log or the bitmap earlier.
- A thread that idles (PACE) concerns others only by where they see it, out of the guest, and only a THROTTLE prolongs
  its idle time. It looks again when its time is over, so a THROTTLE at or after the horizon finds it idle.
- A bitmap that only one thread scans is private to that thread, which may therefore run ahead as it sends pages.
- A thread may stop anywhere and continue at its own time, so every step not known to be safe is an event.

A *round* consists of the steps between two hits of one ACCESS. Rounds that differ only in page and time are
added up: `fast_forward.learn_rounds` traces one round of each ACCESS at the start, and `fast_forward.skip_rounds` adds
up as many rounds at once as there are consecutive hits.

With a trace, a ledger or a clock other than the world's, every step is an event.
"""

import numpy as np

from simlib.model.steps import Clock, Page, Quantity, Step
from simlib.simulator.engine.compiled import calendar, static_analysis
from simlib.simulator.engine.compiled.clock import next_bits
from simlib.simulator.engine.compiled.fast_forward import learn_rounds
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.memory import NO_FAULT, WORD_PAGES, fault_of
from simlib.simulator.engine.limits import HORIZON_PS

_ALL_DIRTY = Page.DIRTY * 0x0101010101010101
_FROM_COLLECTED = 1
"""Distance between a page's bit for the bitmap and its bit for the log, in bits."""


@outlined
def prepare(run):
    """Analyse the programs before the first event, and draw the first bits of each random stream."""
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
    static_analysis.find_steps_in_region(steps, locks, threads, run.inside_region)
    static_analysis.find_reachable_effects(steps, locks, world.as_blocks, run.inside_region, run.effects)
    static_analysis.find_sharers(world, threads, run.effects, run.changers)
    static_analysis.find_full_barriers(steps, threads, run.full_barriers)
    for step in steps:
        step.ahead = static_analysis.lookahead_condition(steps, locks, threads.shape[0], world.buffer_entries, step)
    learn_rounds(world, steps, run.rounds)
    static_analysis.find_clear_sweeps(steps, world.block_shift, run.rounds)


@outlined
def count_clearable(world, words, sweep, page, end):
    """For every block from `page` to `end`, count the pages to be cleared before that block."""
    first, last = page >> world.block_shift, end >> world.block_shift
    words_of_block = 1 << (world.block_shift - 3)
    count = 0
    sweep[first] = 0
    for block in range(first, last):
        for word in range(block * words_of_block, (block + 1) * words_of_block):
            in_log_and_bitmap = words[word] & (words[word] >> np.uint64(_FROM_COLLECTED)) & np.uint64(_ALL_DIRTY)
            count += int((np.int64(in_log_and_bitmap) // Page.DIRTY) % 255)  # the sum of its bytes
        sweep[block + 1] = count


@outlined
def earliest_sweep_effect(world, words, sweep, sweeper, sweep_round, thread, key):
    """Smallest key at which a thread that clears an extent word by word can affect a thread with private memory.

    Its time is when the sweep reaches the blocks of the affected thread's region, or the end of the extent. Until then,
    nothing else shrinks the set of pages to be cleared, and each page takes at least `page_ps`.
    """
    page, end, shift = sweeper.page, sweeper.end[sweep_round.extent], world.block_shift
    first = (thread.begin[0] >> shift) << shift
    if page < ((thread.end[0] - 1 >> shift) + 1) << shift:
        if first < page + WORD_PAGES:
            return key
        end = min(end, page + (first - page) // WORD_PAGES * WORD_PAGES)
    begin, last = (page >> shift) + 1, end >> shift
    if last <= begin:
        return key
    if world.sweep_at != sweeper.pc or world.sweep_page != page or world.sweep_end != sweeper.end[sweep_round.extent]:
        world.sweep_at, world.sweep_page, world.sweep_end = sweeper.pc, page, sweeper.end[sweep_round.extent]
        count_clearable(world, words, sweep, page, world.sweep_end)
    pages = min(sweep[last] - sweep[begin], HORIZON_PS // sweep_round.page_ps)
    return max(key, calendar.key_of((key >> calendar.THREAD_BITS) + pages * sweep_round.page_ps, 0))


@always_inline
def horizon_of(run, thread, number):
    """Horizon of a thread: below this key, no other thread affects it, and it affects no other thread."""
    tree, world = run.tree, run.worlds[0]
    leaves = tree.shape[0] >> 1
    least = (HORIZON_PS + 1) << calendar.THREAD_BITS
    any_event = False
    for i in range(world.changers):
        other = run.changers[i]
        if other == number:
            continue
        key = tree[leaves + other]
        changer = run.threads[other]
        if key != calendar.NEVER:
            changer_round = item(run.rounds, changer.pc)
            if changer_round.page_ps > 0 and thread.memory_private and world.changers == 1:
                key = earliest_sweep_effect(world, run.words, run.sweep, changer, changer_round, thread, key)
            least = min(least, key)
            continue
        waits = changer.parked >= 0 and run.full_barriers[changer.parked] and (thread.barriers >> changer.parked) & 1
        if changer.ended < 0 and not waits:
            any_event = True
    if any_event:
        least = min(least, (calendar.least_rival(tree, number) >> calendar.THREAD_BITS) << calendar.THREAD_BITS)
    return least


@always_inline
def may_run_ahead_at(run, thread, number, step, time, horizon):
    """True if the thread may take a step ahead of the calendar at `time`, below the horizon and the event budget."""
    world, condition = run.worlds[0], step.ahead
    if calendar.key_of(time, number) >= horizon or world.events >= world.stop_at:
        return False
    if condition == static_analysis.ALWAYS:
        return True
    if condition == static_analysis.PRIVATE_BITMAP:
        return thread.owns_bitmap > 0
    if thread.memory_private:
        return True
    return condition == static_analysis.HIT and fault_of(world, run.pages, run.blocks, thread.page) == NO_FAULT
