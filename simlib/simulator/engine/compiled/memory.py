# SPDX-License-Identifier: BSD-3-Clause
"""The page table, KVM's dirty log, and userspace's bitmap."""

from simlib.model.steps import STATE, Block, Map, Page, Scan
from simlib.simulator.engine.compiled.clock import HOLD, IDLE, RUN
from simlib.simulator.engine.compiled.inline import always_inline, item, outlined
from simlib.simulator.engine.compiled.statistics import FIRST_SCAN, MAPPED, SCAN, WRITE, record_entry, record_event
from simlib.simulator.engine.limits import PADDING

_BITS = int(Page.DIRTY | Page.COLLECTED)
NO_FAULT, LOGGED = -1, 4
"""Results of `fault_of` besides the four kinds of fault: no fault; no fault, but a write that hardware logs."""

WORD_PAGES = 64
"""Number of pages in a word of the bitmap."""

_PROTECTS = (Scan.CLEAR, Scan.PROTECT, Scan.PROTECT_RUN)
"""Scans that withdraw write permission."""


@always_inline
def is_written(world, page):
    """True if the guest writes this page; it writes `write_percent` % of all pages, evenly spread."""
    percent = world.write_percent
    return percent >= 100 or ((page + 1) * percent) // 100 != (page * percent) // 100


@always_inline
def fault_of(world, pages, blocks, page):
    """Kind of fault that an access to a page causes, or `NO_FAULT`, or `LOGGED`."""
    block = item(blocks, page >> world.block_shift)
    if block == Block.TABLE:
        state = item(pages, page) & STATE
        if state == Page.ABSENT:
            return 0
        if state == Page.PROTECTED and is_written(world, page):
            return LOGGED if world.dirty_bits else 1
    elif block == Block.PROTECTED and is_written(world, page):
        return 2
    elif block == Block.ABSENT:
        return 3
    return NO_FAULT


@outlined
def fill_table(pages, block, block_shift, state):
    """Set the state of every page of a block; their bits in the log and the bitmap do not change."""
    first = block << block_shift
    for page in range(first, min(first + (1 << block_shift), pages.shape[0] - PADDING)):
        pages[page] = (pages[page] & _BITS) | state


@always_inline
def map_page(world, trace, ledger, pages, blocks, thread, number, step):
    """Change the entry of the current page and make the access that faulted; True if the write must be logged."""
    page, action = thread.page, step.a
    block = page >> world.block_shift
    written = is_written(world, page)
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
        record_entry(world, ledger, number, WRITE, page, 1)
    record_event(world, trace, world.now, number, MAPPED, page)
    thread.pc += 1
    return written and step.b > 0 and action <= Map.SPLIT


@outlined
def scan_word(pages, first, action, in_table):
    """Scan the 64 pages from `first`; returns the numbers of pages that matched and that the bitmap gained."""
    matched = added = 0
    for page in range(first, first + WORD_PAGES):
        bits = item(pages, page)
        state = bits & STATE
        if action == Scan.CLEAR:
            if (bits & _BITS) == _BITS:
                matched += 1
                pages[page] = (Page.PROTECTED if state == Page.WRITABLE else state) | Page.COLLECTED
        elif action == Scan.COLLECT or action == Scan.TAKE:
            if bits & Page.DIRTY:
                matched += 1
                added += 0 if bits & Page.COLLECTED else 1
                pages[page] = (state if action == Scan.TAKE else bits) | Page.COLLECTED
        elif action == Scan.SEND:
            if bits & Page.COLLECTED:
                matched += 1
                added -= 1
                pages[page] = state | (bits & Page.DIRTY)
        elif action == Scan.SET:
            pages[page] = bits | Page.DIRTY
        elif action == Scan.ALL:
            added += 0 if bits & Page.COLLECTED else 1
            pages[page] = bits | Page.COLLECTED
        elif in_table and state == Page.WRITABLE:  # PROTECT, SYNC
            matched += 1
            pages[page] = bits | Page.DIRTY if action == Scan.SYNC else (bits & _BITS) | Page.PROTECTED
    return matched, added


@outlined
def protect_run(world, pages, blocks, thread):
    """Write-protect the run taken out of a ring; returns the numbers of pages, entries, and pages of unsplit blocks."""
    matched = entries = unsplit = 0
    previous = -1
    for i in range(WORD_PAGES):
        if not (thread.run_mask >> i) & 1:
            continue
        page = thread.run_first + i
        block = page >> world.block_shift
        matched += 1
        if pages[page] & STATE == Page.WRITABLE:
            pages[page] = (pages[page] & _BITS) | Page.PROTECTED
        if blocks[block] == Block.TABLE:
            entries += 1
            continue
        unsplit += 1
        entries += 1 if block != previous else 0
        previous = block
        if blocks[block] == Block.WRITABLE:
            blocks[block] = Block.PROTECTED
    return matched, entries, unsplit


@outlined
def scan(world, trace, ledger, pages, blocks, thread, number, step):
    """Scan the 64 pages of a bitmap word; returns the thread's clock."""
    action = step.a
    if thread.pc == world.sweep_at and thread.page == world.sweep_page:
        world.sweep_page += WORD_PAGES
    else:
        world.sweep_at = -1  # the counts may no longer be valid
    added = 0
    if action == Scan.PROTECT_RUN:
        matched, entries, unsplit = protect_run(world, pages, blocks, thread)
    else:
        block = thread.page >> world.block_shift
        in_table = blocks[block] == Block.TABLE
        matched, added = scan_word(pages, thread.page, action, in_table)
        entries, unsplit = matched, 0
        if not in_table and (action == Scan.CLEAR or action == Scan.PROTECT):  # the block has one entry
            writable = blocks[block] == Block.WRITABLE
            entries = int(matched > 0 if action == Scan.CLEAR else writable)
            unsplit = matched if action == Scan.CLEAR else 0
            if entries > 0 and writable:
                blocks[block] = Block.PROTECTED
    if entries > 0 and action in _PROTECTS:
        world.withdrawn += 1
    time = entries * step.b + unsplit * step.d + (step.c if entries > 0 else 0)
    thread.bitmap += added
    if action == Scan.COLLECT or action == Scan.TAKE:
        thread.spent[RUN] += time
        thread.newly_dirty += added
    elif action == Scan.SEND:
        thread.spent[IDLE] += time
        thread.pages_sent += matched
    else:
        thread.spent[HOLD] += time
    record_event(world, trace, world.now, number, SCAN, entries)
    record_entry(world, ledger, number, FIRST_SCAN + action, thread.page, matched)
    thread.pc += 1
    return world.now + time


@always_inline
def count_set_bits(pages, thread, extent, bit, least):
    """Number of pages from the current one to the extent's end that have `bit` set; stops counting at `least`."""
    count = 0
    for page in range(thread.page, thread.end[extent]):
        if pages[page] & bit:
            count += 1
            if count >= least:
                break
    return count


@always_inline
def mapped_by_block(world, blocks, thread):
    """1 if a block maps the current page, otherwise 0."""
    return int(blocks[thread.page >> world.block_shift] >= Block.PROTECTED)
