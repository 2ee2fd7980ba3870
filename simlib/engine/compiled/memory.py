# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from __future__ import annotations

from simlib.engine.compiled.clock import HOLD, IDLE, RUN, shown
from simlib.engine.compiled.inline import apart, item, small
from simlib.engine.compiled.statistics import FAULT, FIRST_SCAN, MAPPED, SCAN, WRITE, end_kick, enter, note
from simlib.engine.limits import PADDING
from simlib.model.steps import STATE, Block, Map, Page, Scan

_LOGGED = int(Page.DIRTY | Page.COLLECTED)
NO_FAULT = -1

WORD_PAGES = 64
"""Pages of a bitmap's word."""


@small
def writes(world, page):
    """Whether the guest writes this page; write_percent of the pages, evenly spread."""
    percent = world.write_percent
    return percent >= 100 or ((page + 1) * percent) // 100 != (page * percent) // 100


@small
def fault_of(world, pages, blocks, page):
    """Which fault touching a page gives, or none."""
    block = item(blocks, page >> world.block_shift)
    if block == Block.TABLE:
        state = item(pages, page) & STATE
        if state == Page.ABSENT:
            return 0
        if state == Page.PROTECTED and writes(world, page):
            return 1
    elif block == Block.PROTECTED and writes(world, page):
        return 2
    elif block == Block.ABSENT:
        return 3
    return NO_FAULT


@small
def access(world, books, pages, blocks, thread, number, step):
    """The guest touches its page: a hit goes on, a fault jumps. Returns the thread's clock.

    An access that is interrupted is made afterwards.
    """
    if thread.kick and not thread.interrupted:
        kick = thread.kick
        thread.spent[RUN] += kick
        thread.kick = 0
        thread.interrupted = 1
        if thread.kick_stalls:
            thread.kicked = 1
            thread.lap_from = shown(world, world.now)
        return world.now + kick
    thread.interrupted = 0
    page = thread.page
    fault = fault_of(world, pages, blocks, page)
    if fault == NO_FAULT:
        thread.pc += 1
        if thread.kicked:
            end_kick(world, books, thread, number)
        if books.ledger is not None and writes(world, page):
            enter(world, books.ledger, number, WRITE, page, 0)
    else:
        thread.faults[fault] += 1
        note(world, books.trace, world.now, number, FAULT, fault)
        if fault == 0:
            thread.pc = step.a
        elif fault == 1:
            thread.pc = step.b
        elif fault == 2:
            thread.pc = step.c
        else:
            thread.pc = step.d
    return world.now


@apart
def fill_table(pages, block, block_shift, state):
    """Give every page of a block this state; what is written down about it stays."""
    first = block << block_shift
    for page in range(first, min(first + (1 << block_shift), pages.shape[0] - PADDING)):
        pages[page] = (pages[page] & _LOGGED) | state


@small
def map_page(world, trace, ledger, pages, blocks, thread, number, step):
    """Change the entry of the current page, and mark the page dirty; the access that faulted is made by that."""
    page, action = thread.page, step.a
    block = page >> world.block_shift
    written = writes(world, page)
    if action == Map.BLOCK:
        blocks[block] = Block.WRITABLE
    elif action == Map.ZAP:
        blocks[block] = Block.ABSENT
        world.withdrawn += 1
    elif action == Map.EAGER:
        if blocks[block] >= Block.PROTECTED:
            state = Page.WRITABLE if blocks[block] == Block.WRITABLE else Page.PROTECTED
            fill_table(pages, block, world.block_shift, state)
            blocks[block] = Block.TABLE
    elif action != Map.NONE:
        if blocks[block] == Block.ABSENT or (action == Map.SPLIT and blocks[block] != Block.TABLE):
            blocks[block] = Block.TABLE
            fill_table(pages, block, world.block_shift, Page.ABSENT)
            world.withdrawn += 1
        bits = pages[page] & _LOGGED
        if written and step.b:
            bits |= Page.DIRTY
        pages[page] = bits | (Page.WRITABLE if written or not step.b else Page.PROTECTED)
    if written and action <= Map.BLOCK:
        enter(world, ledger, number, WRITE, page, 1)
    note(world, trace, world.now, number, MAPPED, page)
    thread.pc += 1


@apart
def scan_word(pages, first, count, action, in_table):
    """What a scan does to the pages from one on.

    Returns how many it found as it looked for them, and how many pages more stand in the bitmap.
    """
    found = more = 0
    for page in range(first, first + count):
        bits = item(pages, page)
        state = bits & STATE
        if action == Scan.CLEAR or action == Scan.CLEAR_PAGE:
            if (bits & _LOGGED) == _LOGGED:
                found += 1
                pages[page] = (Page.PROTECTED if state == Page.WRITABLE else state) | Page.COLLECTED
        elif action == Scan.COLLECT:
            if bits & Page.DIRTY:
                found += 1
                more += 0 if bits & Page.COLLECTED else 1
                pages[page] = bits | Page.COLLECTED
        elif action == Scan.SEND:
            if bits & Page.COLLECTED:
                found += 1
                more -= 1
                pages[page] = state | (bits & Page.DIRTY)
        elif action == Scan.SET:
            pages[page] = bits | Page.DIRTY
        elif action == Scan.ALL:
            more += 0 if bits & Page.COLLECTED else 1
            pages[page] = bits | Page.COLLECTED
        elif in_table and state == Page.WRITABLE:
            found += 1
            pages[page] = (bits & _LOGGED) | Page.PROTECTED
    return found, more


@small
def scan(world, trace, ledger, pages, blocks, thread, number, step):
    """Walk the 64 pages of a bitmap word; returns the thread's clock."""
    action = step.a
    if thread.pc == world.sweep_at and thread.page == world.sweep_page:
        world.sweep_page += WORD_PAGES
    else:
        world.sweep_at = -1  # what was counted may not hold any more
    block = thread.page >> world.block_shift
    clears = action == Scan.CLEAR or action == Scan.CLEAR_PAGE
    in_table = blocks[block] == Block.TABLE
    found, more = scan_word(pages, thread.page, 1 if action == Scan.CLEAR_PAGE else WORD_PAGES, action, in_table)
    entries, unsplit = found, 0
    if not in_table and (clears or action == Scan.PROTECT):  # the block has one entry
        writable = blocks[block] == Block.WRITABLE
        entries = int(found > 0 if clears else writable)
        unsplit = found if clears else 0
        if entries > 0 and writable:
            blocks[block] = Block.PROTECTED
    if entries > 0 and (clears or action == Scan.PROTECT):
        world.withdrawn += 1
    time = entries * step.b + unsplit * step.d + (step.c if entries > 0 else 0)
    thread.bitmap += more
    if action == Scan.COLLECT:
        thread.spent[RUN] += time
    elif action == Scan.SEND:
        thread.spent[IDLE] += time
    else:
        thread.spent[HOLD] += time
    note(world, trace, world.now, number, SCAN, entries)
    enter(world, ledger, number, FIRST_SCAN + action, thread.page, found)
    thread.pc += 1
    return world.now + time


@small
def any_ahead(pages, thread, extent, bit, least):
    """How many pages from here to the extent's end have a bit set; counts no further than it must."""
    found = 0
    for page in range(thread.page, thread.end[extent]):
        if pages[page] & bit:
            found += 1
            if found >= least:
                break
    return found


@small
def mapped_by_block(world, blocks, thread):
    """1 if the current page is mapped by a block."""
    return int(blocks[thread.page >> world.block_shift] >= Block.PROTECTED)
