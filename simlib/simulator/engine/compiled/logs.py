# SPDX-License-Identifier: BSD-3-Clause
"""What hardware and KVM write down of a vCPU's writes: its log buffer, and its dirty ring."""

from __future__ import annotations

import numpy as np

from simlib.model.steps import STATE, Page, Step
from simlib.simulator.engine.compiled.clock import RUN
from simlib.simulator.engine.compiled.inline import always_inline, noinline, outlined
from simlib.simulator.engine.compiled.memory import LOGGED, WORD_PAGES
from simlib.simulator.engine.compiled.statistics import DRAIN, DRAINED, HARVEST, HARVESTED, RESET, TAKEN, enter, note


@always_inline
def ring_is_full(world, thread):
    """Whether so much of a thread's ring was not reset that it must leave the guest."""
    return 0 < world.ring_full <= thread.pushed - thread.reset


@always_inline
def leaves(world, thread, fault):
    """Whether a thread has to leave the guest before its next access: its ring is full, or its buffer if it logs."""
    return (fault == LOGGED and 0 < world.buffer_entries <= thread.logged) or ring_is_full(world, thread)


@outlined
def put(logs, thread, number, page):
    """A page goes into a thread's log buffer, which has room."""
    noinline()
    logs[np.uint64(number), np.uint64(thread.logged)] = page
    thread.logged += 1


@always_inline
def write(world, pages, logs, thread, number, page):
    """Hardware sets the dirty bit of a page's entry, and writes the page down."""
    pages[page] = (pages[page] & ~STATE) | Page.WRITABLE
    thread.faults[LOGGED] += 1
    thread.spent[RUN] += world.dirty_set_ps
    if world.buffer_entries > 0:
        put(logs, thread, number, page)


@outlined
def push(world, rings, thread, number, page):
    """A page goes into a thread's ring, which has room."""
    noinline()
    rings[np.uint64(number), np.uint64(thread.pushed % world.ring_entries)] = page
    thread.pushed += 1


@always_inline
def mark(world, pages, rings, thread, number, page):
    """A page goes into the dirty log, or the ring."""
    if world.ring_entries == 0:
        pages[page] |= Page.DIRTY
    elif thread.pushed - thread.reset == world.ring_entries:
        if world.overflow_at < 0:
            world.overflow_at = world.now
    else:
        push(world, rings, thread, number, page)


@outlined
def drain(run, thread, number):
    """Empty a buffer; returns how many pages it had."""
    world, entries = run.worlds[0], thread.logged
    for i in range(entries):
        mark(world, run.pages, run.rings, thread, number, run.logs[number, i])
    thread.logged = 0
    if entries > 0:
        enter(world, run.books.ledger, number, DRAINED, number, entries)
    return entries


@outlined
def harvest(run, number):
    """Set the dirty bits of what is new in all rings; returns how many entries they are."""
    world, entries = run.worlds[0], 0
    for owner in range(run.threads.shape[0]):
        other = run.threads[owner]
        new = other.pushed - other.harvested
        for i in range(other.harvested, other.pushed):
            run.pages[run.rings[owner, i % world.ring_entries]] |= Page.DIRTY
        other.harvested = other.pushed
        if new > 0:
            enter(world, run.books.ledger, number, HARVESTED, owner, new)
            entries += new
    return entries


@outlined
def take_run(run, thread, number):
    """Take the next run of harvested entries out of a ring; returns how many they are."""
    world = run.worlds[0]
    for owner in range(run.threads.shape[0]):
        other = run.threads[owner]
        if other.reset == other.harvested:
            continue
        first, mask, entries = run.rings[owner, other.reset % world.ring_entries], np.uint64(1), 1
        while other.reset + entries < other.harvested:
            ahead = run.rings[owner, (other.reset + entries) % world.ring_entries] - first
            back = np.uint64(max(0, -ahead))
            if 0 <= ahead < WORD_PAGES:
                mask |= np.uint64(1) << np.uint64(ahead)
            elif -WORD_PAGES < ahead < 0 and (mask << back) >> back == mask:
                first += ahead
                mask = (mask << back) | np.uint64(1)
            else:
                break
            entries += 1
        other.reset += entries
        thread.run_first, thread.run_mask = first, np.int64(mask)
        enter(world, run.books.ledger, number, TAKEN, owner, entries)
        return entries
    return 0


@outlined
def log_maintenance(run, thread, number, step):
    """DRAIN, HARVEST, RESET or LOG; returns the thread's clock."""
    world, kind = run.worlds[0], step.kind
    if kind == Step.LOG:
        if thread.logged < world.buffer_entries:
            put(run.logs, thread, number, thread.page)
            thread.pc += 1
        else:
            thread.pc = step.a
        return world.now
    if kind == Step.DRAIN:
        entries, each, event = drain(run, thread, number), step.a, DRAIN
    elif kind == Step.HARVEST:
        entries, each, event = harvest(run, number), step.a, HARVEST
    else:
        entries, each, event = take_run(run, thread, number), step.b, RESET
        if entries == 0:
            thread.pc = step.a
            return world.now
    thread.spent[RUN] += entries * each
    note(world, run.books.trace, world.now, number, event, entries)
    thread.pc += 1
    return world.now + entries * each
