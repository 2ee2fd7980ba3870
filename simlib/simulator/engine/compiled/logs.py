# SPDX-License-Identifier: BSD-3-Clause
"""Logs of a vCPU's writes: the log buffer, which hardware fills, and the dirty ring, which KVM fills."""

import numpy as np

from simlib.model.steps import STATE, Page, Step
from simlib.simulator.engine.compiled import statistics
from simlib.simulator.engine.compiled.clock import RUN
from simlib.simulator.engine.compiled.inline import always_inline, noinline, outlined
from simlib.simulator.engine.compiled.memory import LOGGED, WORD_PAGES


@always_inline
def ring_is_full(world, thread):
    """True if a thread's ring has reached the number of entries at which the thread must leave the guest."""
    return 0 < world.ring_full <= thread.pushed - thread.reset


@always_inline
def must_leave_guest(world, thread, fault):
    """True if a thread must leave the guest before its access: its ring or the log buffer that it needs is full."""
    return (fault == LOGGED and 0 < world.buffer_entries <= thread.logged) or ring_is_full(world, thread)


@outlined
def append_to_buffer(logs, thread, number, page):
    """Append a page to a thread's log buffer, which must have room."""
    noinline()
    logs[np.uint64(number), np.uint64(thread.logged)] = page
    thread.logged += 1


@always_inline
def log_write(world, pages, logs, thread, number, page):
    """Set the dirty bit of a page's entry and log the page, as hardware does."""
    pages[page] = (pages[page] & ~STATE) | Page.WRITABLE
    thread.faults[LOGGED] += 1
    thread.spent[RUN] += world.dirty_set_ps
    if world.buffer_entries > 0:
        append_to_buffer(logs, thread, number, page)


@outlined
def push_to_ring(world, rings, thread, number, page):
    """Push a page to a thread's ring, which must have room."""
    noinline()
    rings[np.uint64(number), np.uint64(thread.pushed % world.ring_entries)] = page
    thread.pushed += 1


@always_inline
def mark_dirty(world, pages, rings, thread, number, page):
    """Add a page to the dirty log, or to the ring."""
    if world.ring_entries == 0:
        pages[page] |= Page.DIRTY
    elif thread.pushed - thread.reset == world.ring_entries:
        if world.overflow_at < 0:
            world.overflow_at = world.now
    else:
        push_to_ring(world, rings, thread, number, page)


@outlined
def drain(run, thread, number):
    """Empty a log buffer; returns the number of its pages."""
    world, entries = run.worlds[0], thread.logged
    for i in range(entries):
        mark_dirty(world, run.pages, run.rings, thread, number, run.logs[number, i])
    thread.logged = 0
    if entries > 0:
        statistics.record_entry(world, run.counters.ledger, number, statistics.DRAINED, number, entries)
    return entries


@outlined
def harvest(run, number):
    """Set the dirty bits of the new entries of all rings; returns their number."""
    world, entries = run.worlds[0], 0
    for owner in range(run.threads.shape[0]):
        other = run.threads[owner]
        new = other.pushed - other.harvested
        for i in range(other.harvested, other.pushed):
            run.pages[run.rings[owner, i % world.ring_entries]] |= Page.DIRTY
        other.harvested = other.pushed
        if new > 0:
            statistics.record_entry(world, run.counters.ledger, number, statistics.HARVESTED, owner, new)
            entries += new
    return entries


@outlined
def take_run(run, thread, number):
    """Take the next run of harvested entries out of a ring; returns their number."""
    world = run.worlds[0]
    for owner in range(run.threads.shape[0]):
        other = run.threads[owner]
        if other.reset == other.harvested:
            continue
        first, mask, entries = run.rings[owner, other.reset % world.ring_entries], np.uint64(1), 1
        while other.reset + entries < other.harvested:
            offset = run.rings[owner, (other.reset + entries) % world.ring_entries] - first
            shift = np.uint64(max(0, -offset))
            if 0 <= offset < WORD_PAGES:
                mask |= np.uint64(1) << np.uint64(offset)
            elif -WORD_PAGES < offset < 0 and (mask << shift) >> shift == mask:
                first += offset
                mask = (mask << shift) | np.uint64(1)
            else:
                break
            entries += 1
        other.reset += entries
        thread.run_first, thread.run_mask = first, np.int64(mask)
        statistics.record_entry(world, run.counters.ledger, number, statistics.TAKEN, owner, entries)
        return entries
    return 0


@outlined
def log_maintenance(run, thread, number, step):
    """Take a DRAIN, HARVEST, RESET or LOG step; returns the thread's clock."""
    world, kind = run.worlds[0], step.kind
    if kind == Step.LOG:
        if thread.logged < world.buffer_entries:
            append_to_buffer(run.logs, thread, number, thread.page)
            thread.pc += 1
        else:
            thread.pc = step.a
        return world.now
    if kind == Step.DRAIN:
        entries, entry_ps, event = drain(run, thread, number), step.a, statistics.DRAIN
    elif kind == Step.HARVEST:
        entries, entry_ps, event = harvest(run, number), step.a, statistics.HARVEST
    else:
        entries, entry_ps, event = take_run(run, thread, number), step.b, statistics.RESET
        if entries == 0:
            thread.pc = step.a
            return world.now
    thread.spent[RUN] += entries * entry_ps
    statistics.record_event(world, run.counters.trace, world.now, number, event, entries)
    thread.pc += 1
    return world.now + entries * entry_ps
