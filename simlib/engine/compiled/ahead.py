# SPDX-License-Identifier: BSD-3-Clause
"""What cannot matter is not simulated: a thread runs ahead of the calendar through what nobody else can see.

A vCPU's access that does not fault changes nothing; a look at a stopwatch is the thread's own. Such steps need no
event each: the thread takes them, one behind the other, as long as its key (time, number) is below its *horizon*, the
least key at which another thread could change what it sees, or could see what it did. Everything comes out as if each
step had been an event, counters included. Why this is exact:

- Only some threads can change what others see, or look at what others did: those from whose first step a SCAN, STAMP,
  SIGNAL, KICK, a Map.ZAP or a look at the page table or log can be reached (`changers`). They do so at their
  next event at the earliest.
- A changer that waits for a lock or at a barrier is woken by another thread's event, and acts at that event's time at
  the earliest; so the next event of any other thread bounds it. A barrier that this very thread must come to first
  does not open before it, which is no bound at all.
- A thread whose memory nobody else but changers touches (`alone`) may even fault, take a lockless lock that only it
  takes, and map. Where others map the same memory, they turn faults into hits, never the reverse, unless they split a
  block (then a thread does not run ahead); so a hit stays one, and a fault waits for its time.
- A changer that clears an extent word after word comes to a thread's region, or to its extent's end, no sooner than the
  pages take that stand in log and bitmap on the way; as long as it is the only changer, no page leaves them before.
- A bitmap that only one thread scans is that thread's own: it sends word after word.
- A thread may stop anywhere and come back at its time, so what is not known to be safe is an event.

A *round* is what lies between two hits of one ACCESS. As long as nothing but the page and the time differs, rounds are
alike: `learn` walks through one of each at the start, and `skip` adds up as many at once as there are hits in a row.

With a trace, a ledger or another clock than the world's every step is an event.
"""

from __future__ import annotations

import numpy as np

from simlib.engine.compiled import calendar
from simlib.engine.compiled.clock import HOLD, RUN
from simlib.engine.compiled.inline import apart, item, small
from simlib.engine.compiled.memory import WORD_PAGES, fault_of
from simlib.engine.compiled.statistics import bin_of, lap_bin
from simlib.engine.limits import HORIZON_PS
from simlib.model.locks import Discipline
from simlib.model.steps import Block, Clock, Map, Page, Quantity, Scan, Step, Whose

NEVER, ALWAYS, ALONE, HIT, BITMAP = range(5)
"""Values of a step's `ahead`: who may take it ahead of the calendar. Nobody; everybody; who is alone with its memory;
the same, and everybody if it is a hit; who is alone with the bitmap."""

_NO_FAULT = -1

_CHANGES, _ACCESSES, _TOUCHES, _SPLITS, _SCANS, _COUNTS, _LEAVES = (1 << i for i in range(7))
"""Bits of what a thread can come to: change what others see, or see what they did; access memory; access or map it;
split a block; use the bitmap; count in it, which is asked for at no time of its own; touch memory beyond its region."""

_FIRST_BARRIER, _BARRIERS = 8, 48
"""Bits of the barriers that it can come to."""

_ROUND_STEPS = 64
"""Steps of the longest round that is learnt."""

_NOWHERE = -1
_NONE = -1
_ALL_WRITABLE = Page.WRITABLE * 0x0101010101010101
_ALL_STATES = 3 * 0x0101010101010101
_ALL_DIRTY = Page.DIRTY * 0x0101010101010101
_FROM_COLLECTED = 1
"""Bits that lie between those of a page of the bitmap and of the log."""


# -- what a thread can come to ---------------------------------------------------------------------------


@small
def bits_of(steps, pc, blocks, inside):
    """What one step does, as bits; `blocks`: whether the job has any that a split could replace."""
    step = steps[pc]
    kind = step.kind
    bits = 0
    if kind == Step.SCAN:
        bits = _CHANGES | _SCANS
    elif kind == Step.STAMP or kind == Step.SIGNAL or kind == Step.KICK:
        bits = _CHANGES
    elif kind == Step.MAP:
        bits = _TOUCHES
        if step.a == Map.ZAP:
            bits |= _CHANGES
        elif step.a == Map.SPLIT and blocks:
            bits |= _SPLITS
    elif kind == Step.ACCESS:
        bits = _ACCESSES | _TOUCHES
    elif kind == Step.BARRIER:
        bits = 1 << (_FIRST_BARRIER + step.a) if step.a < _BARRIERS else 0
    elif kind == Step.TEST:
        if step.b == Quantity.COLLECTED:
            bits = _SCANS | _COUNTS
        elif step.b == Quantity.DIRTY or step.b == Quantity.BLOCK or step.b == Quantity.GUESTS:
            bits = _CHANGES
    asks = kind == Step.TEST and step.b == Quantity.BLOCK
    if inside[pc] == 0 and (asks or kind == Step.ACCESS or kind == Step.MAP):
        bits |= _LEAVES
    return bits


@small
def successor(steps, locks, pc, which):
    """The step that may follow one, by number 0 to 4; or `_NOWHERE`."""
    step = steps[pc]
    kind = step.kind
    if which == 0:
        if kind == Step.JUMP:
            return step.a
        return _NOWHERE if kind == Step.END or kind == Step.ACCESS else pc + 1
    if which == 1:
        if kind == Step.REPEAT or kind == Step.TEST or kind == Step.ACCESS:
            return step.a
        if kind == Step.DROP:
            last = step.a + 1 if step.c == Whose.ALL else locks.shape[0]
            for lock in range(step.a, last):
                if locks[lock].kind == Discipline.LOCKLESS:
                    return step.d
        return _NOWHERE
    if kind != Step.ACCESS:
        return _NOWHERE
    if which == 2:
        return step.b
    if which == 3:
        return step.c
    return step.d if which == 4 else pc + 1


_SUCCESSORS = 6


@apart
def find_inside(steps, locks, threads, inside):
    """Which steps a thread always comes to with a page of its region as its current one: 1; 0 if not known.

    Before its first step it is at one; ADVANCE may leave, SEEK, BACK and an extent that is not done are within.
    """
    inside[:] = 2  # not come to
    for thread in threads:
        inside[thread.pc] = 1
    changed = True
    while changed:
        changed = False
        for pc in range(steps.shape[0]):
            if inside[pc] == 2:
                continue
            step = steps[pc]
            kind = step.kind
            after = inside[pc]
            if kind == Step.SEEK:
                after = 1
            elif kind == Step.BACK:
                after = int(step.a == 0)
            elif kind == Step.ADVANCE:
                after = 0
            for which in range(_SUCCESSORS):
                to = successor(steps, locks, pc, which)
                if to != _NOWHERE:
                    there = after
                    if which == 1 and kind == Step.TEST and step.b == Quantity.DONE and step.d == 1:
                        there = 1
                    if inside[to] > there:
                        inside[to] = there
                        changed = True


@apart
def find_reach(steps, locks, blocks, inside, reach):
    """For every step, the bits of all that can follow it."""
    for pc in range(steps.shape[0]):
        if steps[pc].kind == Step.MAP and steps[pc].a == Map.BLOCK:
            blocks = 1
    for pc in range(steps.shape[0]):
        reach[pc] = bits_of(steps, pc, blocks, inside)
    changed = True
    while changed:
        changed = False
        for pc in range(steps.shape[0] - 1, -1, -1):
            bits = reach[pc]
            for which in range(_SUCCESSORS):
                to = successor(steps, locks, pc, which)
                if to != _NOWHERE:
                    bits |= reach[to]
            if bits != reach[pc]:
                reach[pc] = bits
                changed = True


@small
def memory_meets(world, one, bits, other, others_bits):
    """Whether two threads' regions have a block in common; one that may leave its own may be anywhere."""
    if (bits | others_bits) & _LEAVES:
        return True
    shift = world.block_shift
    return (one.begin[0] >> shift) <= ((other.end[0] - 1) >> shift) and (other.begin[0] >> shift) <= (
        (one.end[0] - 1) >> shift
    )


@apart
def find_company(world, threads, reach, changers):
    """Which threads are changers; and of each thread whether it may run ahead, and with whom it shares memory."""
    count = threads.shape[0]
    scanners = 0
    for number in range(count):
        bits = reach[threads[number].pc]
        scanners += int(bits & _SCANS > 0)
        if bits & _CHANGES:
            changers[world.changers] = number
            world.changers += 1
    for number in range(count):
        thread = threads[number]
        bits = reach[thread.pc]
        thread.owns_bitmap = int(scanners == int(bits & _SCANS > 0))
        thread.barriers = bits >> _FIRST_BARRIER
        thread.alone = 1 - int(bits & _LEAVES > 0)
        shares = False
        for j in range(count):
            theirs = reach[threads[j].pc]
            if j == number or theirs & _CHANGES or not theirs & _TOUCHES:
                continue
            if memory_meets(world, thread, bits, threads[j], theirs):
                thread.alone = 0
                shares |= bits & _ACCESSES > 0 and theirs & _SPLITS > 0
        thread.runs_ahead = int(not shares and (bits & _COUNTS == 0 or thread.owns_bitmap > 0))


@apart
def find_gatherings(steps, threads, gathers):
    """Which barriers open only when every thread that can come to them has come."""
    for barrier in range(gathers.shape[0]):
        users, parties = 0, threads.shape[0] + 1
        for thread in threads:
            users += (thread.barriers >> barrier) & 1
        for step in steps:
            if step.kind == Step.BARRIER and step.a == barrier:
                parties = min(parties, step.b)
        gathers[barrier] = int(barrier < _BARRIERS and users <= parties)


@apart
def is_own(steps, locks, count, lock):
    """Whether the locks by thread that begin at a number are lockless, and nobody's but that thread's."""
    for step in steps:
        if step.kind == Step.TAKE or step.kind == Step.DROP:
            if step.c == Whose.THREAD:
                if step.a != lock and abs(step.a - lock) < count:
                    return False
            elif step.c == Whose.REGION:
                if step.a < lock + count:
                    return False
            elif lock <= step.a < lock + count:
                return False
    lockless = True
    for number in range(lock, lock + count):
        lockless &= locks[number].kind == Discipline.LOCKLESS
    return lockless


@small
def who_may(steps, locks, count, step):
    """Who may take a step ahead of the calendar."""
    kind = step.kind
    if kind == Step.LAP:
        return ALWAYS
    if kind == Step.ACCESS:
        return HIT
    if kind == Step.MAP:
        return ALONE
    if kind == Step.TEST:
        if step.b == Quantity.FLAG or step.b == Quantity.CLOCK:
            return ALWAYS
        return ALONE if step.b == Quantity.DIRTY or step.b == Quantity.BLOCK else NEVER
    if kind == Step.SCAN:
        return BITMAP if step.a == Scan.SEND or step.a == Scan.ALL else NEVER
    if (kind == Step.TAKE or kind == Step.DROP) and step.c == Whose.THREAD and is_own(steps, locks, count, step.a):
        return ALONE
    return NEVER


@apart
def find_sweeps(steps, block_shift, rounds):
    """Which SCANs clear an extent word after word, without doing anything else."""
    for pc in range(steps.shape[0] - 2):
        step, after, test = steps[pc], steps[pc + 1], steps[pc + 2]
        goes_on = after.kind == Step.ADVANCE and after.a == WORD_PAGES and test.kind == Step.TEST and test.a == pc
        asks = test.b == Quantity.DONE and test.c == after.b and test.d == 1
        if step.kind == Step.SCAN and step.a == Scan.CLEAR and goes_on and asks and 1 << block_shift >= WORD_PAGES:
            rounds[pc].page_ps, rounds[pc].extent = min(step.b, step.d), after.b


@apart
def prepare(run):
    """Before the first event: what follows from the programs alone."""
    world = run.worlds[0]
    world.prepared = 1
    if world.recorded or world.clock != Clock.WALL:
        return
    steps, locks, threads = run.steps, run.locks, run.threads
    find_inside(steps, locks, threads, run.inside)
    find_reach(steps, locks, world.as_blocks, run.inside, run.reach)
    find_company(world, threads, run.reach, run.changers)
    find_gatherings(steps, threads, run.gathers)
    for step in steps:
        step.ahead = who_may(steps, locks, threads.shape[0], step)
    learn(world, steps, run.rounds)
    find_sweeps(steps, world.block_shift, run.rounds)


# -- how far ahead ---------------------------------------------------------------------------------------


@apart
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


@apart
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


@small
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


@small
def passes(run, thread, step):
    """Whether the thread may take a step ahead of the calendar."""
    who = step.ahead
    if who == ALWAYS:
        return True
    if who == BITMAP:
        return thread.owns_bitmap > 0
    if thread.alone:
        return True
    return who == HIT and fault_of(run.worlds[0], run.pages, run.blocks, thread.page) == _NO_FAULT


@small
def reaches(run, thread, number, step, time, horizon):
    """Whether the thread may take a step ahead of the calendar, at a time."""
    world = run.worlds[0]
    if calendar.key_of(time, number) >= horizon or world.events >= world.stop_at:
        return False
    return passes(run, thread, step)


# -- rounds ----------------------------------------------------------------------------------------------


@small
def begin_round(found):
    """A round of which nothing is known but that it begins with an ACCESS."""
    found.time, found.events, found.run, found.hold, found.stride = 0, 1, 0, 0, 0
    found.lap, found.lap_at, found.advance_at = _NONE, 0, 0
    found.extent, found.counter, found.other = _NONE, _NONE, _NONE


@small
def spend_in_round(step, found):
    """RUN or HOLD in a round; returns whether they always take as long."""
    found.time += step.a
    if step.kind == Step.RUN:
        found.run += step.a
    else:
        found.hold += step.a
    return step.b == 0


@small
def count_in_round(step, found):
    """REPEAT in a round; returns whether there is room for its counter."""
    if found.counter == _NONE:
        found.counter, found.period = step.c, step.b
    elif found.other == _NONE and step.c != found.counter:
        found.other, found.other_period = step.c, step.b
    else:
        return False
    return True


@small
def lap_in_round(step, found):
    """LAP in a round; returns whether it is the first."""
    first = found.lap == _NONE
    found.events += 1
    found.lap, found.lap_at = step.a, found.time
    return first


@small
def advance_in_round(step, found):
    """ADVANCE in a round; returns whether it is the first."""
    first = found.stride == 0
    found.stride, found.advance_at, found.extent = step.a, found.time, step.b
    return first


@small
def ask_in_round(step, found):
    """TEST in a round; returns whether its answer is known: a flag's, or that the extent does not end."""
    if step.b == Quantity.FLAG:
        found.events += 1
        return True
    return step.b == Quantity.DONE and step.d == 1 and step.c == found.extent


@small
def jumps_in_round(world, step, expires):
    """Whether a step of a round goes to its target."""
    if step.kind == Step.REPEAT:
        return step.c != expires
    if step.kind == Step.TEST and step.b == Quantity.FLAG:
        return world.flags[step.c] < step.d
    return step.kind == Step.JUMP or step.kind == Step.TEST


@apart
def walk_round(world, steps, first, expires, found):
    """Walk from a hit of an ACCESS to the next, and write down what is spent on the way; True if it has a closed form.

    The extent does not end on the way, and no counter runs out but that of number `expires`.
    """
    begin_round(found)
    pc = first + 1
    for _ in range(_ROUND_STEPS):
        step = steps[pc]
        kind = step.kind
        if kind == Step.ACCESS:
            return pc == first and found.time > 0 and found.stride > 0
        known = kind == Step.JUMP
        if kind <= Step.HOLD:
            known = spend_in_round(step, found)
        elif kind == Step.REPEAT:
            known = count_in_round(step, found)
        elif kind == Step.TEST:
            known = ask_in_round(step, found)
        elif kind == Step.ADVANCE:
            known = advance_in_round(step, found)
        elif kind == Step.LAP:
            known = lap_in_round(step, found)
        if not known:
            return False
        pc = step.a if jumps_in_round(world, step, expires) else pc + 1
    return False


@small
def alike(one, other):
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


@apart
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
        if not usual.known or usual.counter == _NONE:
            continue
        if walk_round(world, steps, pc, usual.counter, late) and alike(usual, late):
            usual.free, usual.extra = 1, late.events - usual.events
        elif usual.other != _NONE and walk_round(world, steps, pc, usual.other, late) and alike(usual, late):
            usual.free, usual.extra = 1, late.events - usual.events
            usual.counter, usual.other = usual.other, usual.counter
            usual.period, usual.other_period = usual.other_period, usual.period


@small
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


@small
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
        if fault_of(world, pages, blocks, page) != _NO_FAULT:
            break
        found += 1
        page += stride
    return found


@small
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


@small
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


@small
def count_laps(thread, laps, number, gap, times):
    """Write down the same lap so many times."""
    if times > 0:
        thread.lap_max = max(thread.lap_max, gap)
        laps[number, lap_bin(gap)] += times


@small
def fitting(usual, thread, time, horizon):
    """How many rounds fit before the horizon, the extent's end and the end of a counter that must not run out."""
    most = (thread.end[usual.extent] - 1 - thread.page) // usual.stride
    most = min(most, ((horizon >> calendar.THREAD_BITS) - 1 - time) // usual.time)
    if usual.other != _NONE:
        most = min(most, usual.other_period - 1 - thread.counters[usual.other])
    if usual.counter != _NONE and not usual.free:
        most = min(most, usual.period - 1 - thread.counters[usual.counter])
    return most


@small
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


@small
def skip(run, thread, number, time, horizon):
    """Add up all rounds alike that begin at an ACCESS; returns the time of the first one that is not among them."""
    world, books, usual = run.worlds[0], run.books, item(run.rounds, thread.pc)
    if thread.kick or thread.interrupted or fault_of(world, run.pages, run.blocks, thread.page) != _NO_FAULT:
        return time
    most = fitting(usual, thread, time, horizon)
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
            count_laps(thread, books.laps, number, time + usual.lap_at - thread.lap_from, 1)
            count_laps(thread, books.laps, number, usual.time, rounds - 1)
        thread.lap_from = time + (rounds - 1) * usual.time + usual.lap_at
    events = rounds * usual.events + turn_counters(usual, thread, rounds)
    world.events += events
    world.stop_at += events - 1 - (rounds >> 7)  # what it took to add them up, in events
    return time + rounds * usual.time
