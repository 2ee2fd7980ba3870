# SPDX-License-Identifier: BSD-3-Clause
"""What follows from the programs alone: what each thread can come to, and with whom it shares memory."""

from __future__ import annotations

from simlib.model.locks import Discipline
from simlib.model.steps import Map, Quantity, Scan, Step, Whose
from simlib.simulator.engine.compiled.inline import always_inline, outlined
from simlib.simulator.engine.compiled.memory import WORD_PAGES

NEVER, ALWAYS, ALONE, HIT, BITMAP = range(5)
"""Values of a step's `ahead`: who may take it ahead of the calendar. Nobody; everybody; who is alone with its memory;
the same, and everybody if it is a hit; who is alone with the bitmap."""

_CHANGES, _ACCESSES, _TOUCHES, _SPLITS, _SCANS, _COUNTS, _LEAVES = (1 << i for i in range(7))
"""Bits of what a thread can come to: change what others see, or see what they did; access memory; access or map it;
split a block; use the bitmap; count in it, which is asked for at no time of its own; touch memory beyond its region."""

_FIRST_BARRIER, _BARRIERS = 8, 48
"""Bits of the barriers that it can come to."""

_CHANGERS = (
    Step.STAMP,
    Step.SIGNAL,
    Step.KICK,
    Step.HARVEST,
    Step.RESET,
    Step.THROTTLE_CHECK,
    Step.THROTTLE,
    Step.DIRTY_LIMIT_UPDATE,
)
"""Steps, beside SCAN and a Map.ZAP, that change what others see, or see what they did."""

_BY_CHANGERS = (Quantity.FLAG, Quantity.CLOCK, Quantity.LOGGED, Quantity.RING)
"""What of others only changers change."""

_NOWHERE = -1


@always_inline
def bits_of(steps, pc, blocks, inside):
    """What one step does, as bits; `blocks`: whether the job has any that a split could replace."""
    step = steps[pc]
    kind = step.kind
    bits = 0
    if kind == Step.SCAN:
        bits = _CHANGES | _SCANS
    elif kind in _CHANGERS:
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
        elif step.b == Quantity.DIRTY or step.b == Quantity.BLOCK or step.b == Quantity.VCPUS_IN_GUEST:
            bits = _CHANGES
    asks = kind == Step.TEST and step.b == Quantity.BLOCK
    if inside[pc] == 0 and (asks or kind == Step.ACCESS or kind == Step.MAP):
        bits |= _LEAVES
    return bits


@always_inline
def successor(steps, locks, pc, which):
    """The step that may follow one, by number; or `_NOWHERE`."""
    step = steps[pc]
    kind = step.kind
    if which == 0:
        if kind == Step.JUMP:
            return step.a
        return _NOWHERE if kind == Step.END or kind == Step.ACCESS else pc + 1
    if which == 1:
        if kind == Step.REPEAT or kind == Step.TEST or kind == Step.ACCESS or kind == Step.RESET:
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
    if which == 4:
        return step.d
    return step.e if which == 5 else pc + 1


_SUCCESSORS = 7


@outlined
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


@outlined
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


@always_inline
def memory_meets(world, one, bits, other, others_bits):
    """Whether two threads' regions have a block in common; one that may leave its own may be anywhere."""
    if (bits | others_bits) & _LEAVES:
        return True
    shift = world.block_shift
    return (one.begin[0] >> shift) <= ((other.end[0] - 1) >> shift) and (other.begin[0] >> shift) <= (
        (one.end[0] - 1) >> shift
    )


@outlined
def find_sharers(world, threads, reach, changers):
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


@outlined
def find_barriers(steps, threads, gathers):
    """Which barriers open only when every thread that can come to them has come."""
    for barrier in range(gathers.shape[0]):
        users, parties = 0, threads.shape[0] + 1
        for thread in threads:
            users += (thread.barriers >> barrier) & 1
        for step in steps:
            if step.kind == Step.BARRIER and step.a == barrier:
                parties = min(parties, step.b)
        gathers[barrier] = int(barrier < _BARRIERS and users <= parties)


@outlined
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


@always_inline
def who_may(steps, locks, count, step):
    """Who may take a step ahead of the calendar."""
    kind = step.kind
    if kind == Step.LAP:
        return ALWAYS
    if kind == Step.ACCESS:
        return HIT
    if kind == Step.MAP or kind == Step.DRAIN or kind == Step.LOG:
        return ALONE
    if kind == Step.TEST:
        if step.b in _BY_CHANGERS:
            return ALWAYS
        return ALONE if step.b == Quantity.DIRTY or step.b == Quantity.BLOCK else NEVER
    if kind == Step.SCAN:
        return BITMAP if step.a == Scan.SEND or step.a == Scan.ALL else NEVER
    if (kind == Step.TAKE or kind == Step.DROP) and step.c == Whose.THREAD and is_own(steps, locks, count, step.a):
        return ALONE
    return NEVER


@outlined
def find_sweeps(steps, block_shift, rounds):
    """Which SCANs clear an extent word after word, without doing anything else."""
    for pc in range(steps.shape[0] - 2):
        step, after, test = steps[pc], steps[pc + 1], steps[pc + 2]
        goes_on = after.kind == Step.ADVANCE and after.a == WORD_PAGES and test.kind == Step.TEST and test.a == pc
        asks = test.b == Quantity.DONE and test.c == after.b and test.d == 1
        if step.kind == Step.SCAN and step.a == Scan.CLEAR and goes_on and asks and 1 << block_shift >= WORD_PAGES:
            rounds[pc].page_ps, rounds[pc].extent = min(step.b, step.d), after.b
