# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from __future__ import annotations

from simlib.model.steps import STATE, Block, Map, Page, Scan
from simlib.simulator.engine.compiled.clock import HOLD, IDLE, RUN
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.statistics import FIRST_SCAN, MAPPED, SCAN, WRITE, enter, note
from simlib.simulator.engine.limits import PADDING

_BITS = int(Page.DIRTY | Page.COLLECTED)
NO_FAULT, LOGGED = -1, 4
"""Beside the four kinds of fault: none; none, but a write that hardware notices."""

WORD_PAGES = 64
"""Pages of a bitmap's word."""

_PROTECTS = (Scan.CLEAR, Scan.PROTECT, Scan.PROTECT_RUN)
"""Scans that withdraw the permission to write without being noticed."""


@always_inline
def writes(world, page):
    """Whether the guest writes this page; write_percent of the pages, evenly spread."""
    percent = world.write_percent
    return percent >= 100 or ((page + 1) * percent) // 100 != (page * percent) // 100


@always_inline
def fault_of(world, pages, blocks, page):
    """Which fault touching a page gives, or none."""
    block = item(blocks, page >> world.block_shift)
    if block == Block.TABLE:
        state = item(pages, page) & STATE
        if state == Page.ABSENT:
            return 0
        if state == Page.PROTECTED and writes(world, page):
            return LOGGED if world.dirty_bits else 1
    elif block == Block.PROTECTED and writes(world, page):
        return 2
    elif block == Block.ABSENT:
        return 3
    return NO_FAULT


@outlined
def fill_table(pages, block, block_shift, state):
    """Give every page of a block this state; what is written down about it stays."""
    first = block << block_shift
    for page in range(first, min(first + (1 << block_shift), pages.shape[0] - PADDING)):
        pages[page] = (pages[page] & _BITS) | state


@always_inline
def map_page(world, trace, ledger, pages, blocks, thread, number, step):
    """Change the entry of the current page, by which the access that faulted is made. True if that is to be logged."""
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
        bits = pages[page] & _BITS
        pages[page] = bits | (Page.WRITABLE if written or not step.b else Page.PROTECTED)
    if written and action <= Map.BLOCK:
        enter(world, ledger, number, WRITE, page, 1)
    note(world, trace, world.now, number, MAPPED, page)
    thread.pc += 1
    return written and step.b > 0 and action <= Map.SPLIT


@outlined
def scan_word(pages, first, action, in_table):
    """What a scan does to the 64 pages from one on.

    Returns how many it found as it looked for them, and how many pages more stand in the bitmap.
    """
    found = more = 0
    for page in range(first, first + WORD_PAGES):
        bits = item(pages, page)
        state = bits & STATE
        if action == Scan.CLEAR:
            if (bits & _BITS) == _BITS:
                found += 1
                pages[page] = (Page.PROTECTED if state == Page.WRITABLE else state) | Page.COLLECTED
        elif action == Scan.COLLECT or action == Scan.TAKE:
            if bits & Page.DIRTY:
                found += 1
                more += 0 if bits & Page.COLLECTED else 1
                pages[page] = (state if action == Scan.TAKE else bits) | Page.COLLECTED
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
        elif in_table and state == Page.WRITABLE:  # PROTECT, SYNC
            found += 1
            pages[page] = bits | Page.DIRTY if action == Scan.SYNC else (bits & _BITS) | Page.PROTECTED
    return found, more


@outlined
def protect_run(world, pages, blocks, thread):
    """Write-protect the run that was taken out of a ring; returns pages, entries, and pages of unsplit blocks."""
    found = entries = unsplit = 0
    last = -1
    for i in range(WORD_PAGES):
        if not (thread.run_mask >> i) & 1:
            continue
        page = thread.run_first + i
        block = page >> world.block_shift
        found += 1
        if pages[page] & STATE == Page.WRITABLE:
            pages[page] = (pages[page] & _BITS) | Page.PROTECTED
        if blocks[block] == Block.TABLE:
            entries += 1
            continue
        unsplit += 1
        entries += 1 if block != last else 0
        last = block
        if blocks[block] == Block.WRITABLE:
            blocks[block] = Block.PROTECTED
    return found, entries, unsplit


@outlined
def scan(world, trace, ledger, pages, blocks, thread, number, step):
    """Walk the 64 pages of a bitmap word; returns the thread's clock."""
    action = step.a
    if thread.pc == world.sweep_at and thread.page == world.sweep_page:
        world.sweep_page += WORD_PAGES
    else:
        world.sweep_at = -1  # what was counted may not hold any more
    more = 0
    if action == Scan.PROTECT_RUN:
        found, entries, unsplit = protect_run(world, pages, blocks, thread)
    else:
        block = thread.page >> world.block_shift
        in_table = blocks[block] == Block.TABLE
        found, more = scan_word(pages, thread.page, action, in_table)
        entries, unsplit = found, 0
        if not in_table and (action == Scan.CLEAR or action == Scan.PROTECT):  # the block has one entry
            writable = blocks[block] == Block.WRITABLE
            entries = int(found > 0 if action == Scan.CLEAR else writable)
            unsplit = found if action == Scan.CLEAR else 0
            if entries > 0 and writable:
                blocks[block] = Block.PROTECTED
    if entries > 0 and action in _PROTECTS:
        world.withdrawn += 1
    time = entries * step.b + unsplit * step.d + (step.c if entries > 0 else 0)
    thread.bitmap += more
    if action == Scan.COLLECT or action == Scan.TAKE:
        thread.spent[RUN] += time
        thread.came += more
    elif action == Scan.SEND:
        thread.spent[IDLE] += time
        thread.went += found
    else:
        thread.spent[HOLD] += time
    note(world, trace, world.now, number, SCAN, entries)
    enter(world, ledger, number, FIRST_SCAN + action, thread.page, found)
    thread.pc += 1
    return world.now + time


@always_inline
def any_ahead(pages, thread, extent, bit, least):
    """How many pages from here to the extent's end have a bit set; counts no further than it must."""
    found = 0
    for page in range(thread.page, thread.end[extent]):
        if pages[page] & bit:
            found += 1
            if found >= least:
                break
    return found


@always_inline
def mapped_by_block(world, blocks, thread):
    """1 if the current page is mapped by a block."""
    return int(blocks[thread.page >> world.block_shift] >= Block.PROTECTED)
