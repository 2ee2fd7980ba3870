# SPDX-License-Identifier: BSD-3-Clause
"""Static analysis of the programs: what each thread can reach, and with which threads it shares memory."""

from simlib.model.locks import Discipline
from simlib.model.steps import LockScope, Map, Quantity, Scan, Step
from simlib.simulator.engine.compiled.inline import always_inline, outlined
from simlib.simulator.engine.compiled.memory import WORD_PAGES

NEVER, ALWAYS, PRIVATE_MEMORY, HIT, PRIVATE_BITMAP = range(5)
"""Values of a step's `ahead`, the condition under which a thread takes it ahead of the calendar: never; always; if no
other thread touches its memory; in that case or if it is a hit; if no other thread uses the bitmap.
"""

_CHANGES, _ACCESSES, _TOUCHES, _SPLITS, _SCANS, _COUNTS, _LEAVES = (1 << i for i in range(7))
"""Bits of the effects that a thread can reach: change what others see, or observe what they did; access memory; access
or map it; split a block; use the bitmap; count the bitmap's pages, which a TEST may do out of order; touch memory
outside the thread's region.
"""

_FIRST_BARRIER, _BARRIERS = 8, 48
"""First of the bits for the barriers that a thread can reach, and the number of these bits."""

_CHANGERS = (Step.SCAN, Step.STAMP, Step.SIGNAL, Step.KICK, Step.HARVEST, Step.RESET, Step.DIRTY_LIMIT_UPDATE)
"""Steps, besides THROTTLE_CHECK, THROTTLE and a Map.ZAP, that change what others see or observe what they did."""

_CHANGED_BY_CHANGERS = (Quantity.FLAG, Quantity.CLOCK, Quantity.LOGGED, Quantity.RING)
"""Quantities that only changers change for other threads."""

_NO_SUCCESSOR = -1


@always_inline
def effects_of(steps, pc, blocks, inside_region):
    """Effects of one step as bits; `blocks`: whether the job has any blocks that a split could replace."""
    step = steps[pc]
    kind = step.kind
    bits = 0
    if kind in _CHANGERS or kind == Step.THROTTLE_CHECK or kind == Step.THROTTLE:
        bits = _CHANGES | _SCANS if kind == Step.SCAN else _CHANGES
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
    tests_block = kind == Step.TEST and step.b == Quantity.BLOCK
    if inside_region[pc] == 0 and (tests_block or kind == Step.ACCESS or kind == Step.MAP):
        bits |= _LEAVES
    return bits


@always_inline
def successor_step(steps, locks, pc, which):
    """Index of the `which`-th step that may follow step `pc`; `_NO_SUCCESSOR` if there is none."""
    step = steps[pc]
    kind = step.kind
    if which == 0:
        if kind == Step.JUMP:
            return step.a
        return _NO_SUCCESSOR if kind == Step.END or kind == Step.ACCESS else pc + 1
    if which == 1:
        if kind == Step.REPEAT or kind == Step.TEST or kind == Step.ACCESS or kind == Step.RESET:
            return step.a
        if kind == Step.DROP:
            last = step.a + 1 if step.c == LockScope.ALL else locks.shape[0]
            for lock in range(step.a, last):
                if locks[lock].kind == Discipline.LOCKLESS:
                    return step.d
        return _NO_SUCCESSOR
    if kind != Step.ACCESS:
        return _NO_SUCCESSOR
    return (step.b, step.c, step.d, step.e, pc + 1)[which - 2]


_SUCCESSORS = 7


@outlined
def find_steps_in_region(steps, locks, threads, inside_region):
    """Mark the steps at which a thread's current page is always in its region with 1, and the others with 0.

    Before the first step, the page is in the region. ADVANCE may leave the region; SEEK, and BACK to the region, return
    to it; an extent that is not done is within it.
    """
    inside_region[:] = 2  # not reached
    for thread in threads:
        inside_region[thread.pc] = 1
    changed = True
    while changed:
        changed = False
        for pc in range(steps.shape[0]):
            if inside_region[pc] == 2:
                continue
            step = steps[pc]
            kind = step.kind
            inside_after = inside_region[pc]
            if kind == Step.SEEK:
                inside_after = 1
            elif kind == Step.BACK:
                inside_after = int(step.a == 0)
            elif kind == Step.ADVANCE:
                inside_after = 0
            for which in range(_SUCCESSORS):
                target = successor_step(steps, locks, pc, which)
                if target != _NO_SUCCESSOR:
                    inside_target = inside_after
                    if which == 1 and kind == Step.TEST and step.b == Quantity.DONE and step.d == 1:
                        inside_target = 1
                    if inside_region[target] > inside_target:
                        inside_region[target] = inside_target
                        changed = True


@outlined
def find_reachable_effects(steps, locks, blocks, inside_region, effects):
    """Compute for every step the effects of the step and of all steps that can follow it, as bits."""
    for pc in range(steps.shape[0]):
        if steps[pc].kind == Step.MAP and steps[pc].a == Map.BLOCK:
            blocks = 1
    for pc in range(steps.shape[0]):
        effects[pc] = effects_of(steps, pc, blocks, inside_region)
    changed = True
    while changed:
        changed = False
        for pc in range(steps.shape[0] - 1, -1, -1):
            bits = effects[pc]
            for which in range(_SUCCESSORS):
                target = successor_step(steps, locks, pc, which)
                if target != _NO_SUCCESSOR:
                    bits |= effects[target]
            if bits != effects[pc]:
                effects[pc] = bits
                changed = True


@always_inline
def regions_overlap(world, thread, bits, other, other_bits):
    """True if two threads' regions share a block; a thread that may leave its region may be anywhere."""
    if (bits | other_bits) & _LEAVES:
        return True
    shift = world.block_shift
    return (thread.begin[0] >> shift) <= ((other.end[0] - 1) >> shift) and (other.begin[0] >> shift) <= (
        (thread.end[0] - 1) >> shift
    )


@outlined
def find_sharers(world, threads, effects, changers):
    """Find the changers, and for each thread whether it may run ahead and whether its memory and bitmap are private."""
    count = threads.shape[0]
    scanners = 0
    for number in range(count):
        bits = effects[threads[number].pc]
        scanners += int(bits & _SCANS > 0)
        if bits & _CHANGES:
            changers[world.changers] = number
            world.changers += 1
    for number in range(count):
        thread = threads[number]
        bits = effects[thread.pc]
        thread.owns_bitmap = int(scanners == int(bits & _SCANS > 0))
        thread.barriers = bits >> _FIRST_BARRIER
        thread.memory_private = 1 - int(bits & _LEAVES > 0)
        shares = False
        for j in range(count):
            other_bits = effects[threads[j].pc]
            if j == number or other_bits & _CHANGES or not other_bits & _TOUCHES:
                continue
            if regions_overlap(world, thread, bits, threads[j], other_bits):
                thread.memory_private = 0
                shares |= bits & _ACCESSES > 0 and other_bits & _SPLITS > 0
        thread.runs_ahead = int(not shares and (bits & _COUNTS == 0 or thread.owns_bitmap > 0))


@outlined
def find_full_barriers(steps, threads, is_full):
    """Find the barriers that open only when every thread that can reach them has arrived."""
    for barrier in range(is_full.shape[0]):
        reaching, parties = 0, threads.shape[0] + 1
        for thread in threads:
            reaching += (thread.barriers >> barrier) & 1
        for step in steps:
            if step.kind == Step.BARRIER and step.a == barrier:
                parties = min(parties, step.b)
        is_full[barrier] = int(barrier < _BARRIERS and reaching <= parties)


@outlined
def locks_are_private(steps, locks, count, lock):
    """True if the per-thread locks beginning at number `lock` are lockless, and each is used by its own thread only."""
    for step in steps:
        if step.kind == Step.TAKE or step.kind == Step.DROP:
            if step.c == LockScope.THREAD:
                if step.a != lock and abs(step.a - lock) < count:
                    return False
            elif step.c == LockScope.REGION:
                if step.a < lock + count:
                    return False
            elif lock <= step.a < lock + count:
                return False
    lockless = True
    for number in range(lock, lock + count):
        lockless &= locks[number].kind == Discipline.LOCKLESS
    return lockless


@always_inline
def lookahead_condition(steps, locks, count, buffers, step):
    """Condition under which a thread may take a step ahead of the calendar; `buffers`: pages of a log buffer."""
    kind = step.kind
    if kind == Step.LAP:
        return ALWAYS
    if kind == Step.PACE:  # empties the log buffer; only changers see that a thread is idle, or make it sleep
        return PRIVATE_MEMORY if buffers > 0 else ALWAYS
    if kind == Step.ACCESS:
        return HIT
    if kind == Step.MAP or kind == Step.DRAIN or kind == Step.LOG:
        return PRIVATE_MEMORY
    if kind == Step.TEST:
        if step.b in _CHANGED_BY_CHANGERS:
            return ALWAYS
        return PRIVATE_MEMORY if step.b == Quantity.DIRTY or step.b == Quantity.BLOCK else NEVER
    if kind == Step.SCAN:
        return PRIVATE_BITMAP if step.a == Scan.SEND or step.a == Scan.ALL else NEVER
    by_thread = (kind == Step.TAKE or kind == Step.DROP) and step.c == LockScope.THREAD
    return PRIVATE_MEMORY if by_thread and locks_are_private(steps, locks, count, step.a) else NEVER


@outlined
def find_clear_sweeps(steps, block_shift, rounds):
    """Find the SCANs that clear an extent word by word and do nothing else."""
    for pc in range(steps.shape[0] - 2):
        step, advance, test = steps[pc], steps[pc + 1], steps[pc + 2]
        advances = advance.kind == Step.ADVANCE and advance.a == WORD_PAGES and test.kind == Step.TEST and test.a == pc
        tests_end = test.b == Quantity.DONE and test.c == advance.b and test.d == 1
        clears = step.kind == Step.SCAN and step.a == Scan.CLEAR and 1 << block_shift >= WORD_PAGES
        if clears and advances and tests_end:
            rounds[pc].page_ps, rounds[pc].extent = min(step.b, step.d), advance.b
