# SPDX-License-Identifier: BSD-3-Clause
"""The fast engine: the step language interpreted by Numba.

`simlib.engine.reference` is the definition; this module computes the same thing,
event for event. A thread has at most one wake-up pending, so the calendar is a
winner tree over threads whose keys hold the time and the thread's number in
one integer: the least key is the next event, and ties go to the lower thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from simlib.engine.random import (
    FIXED_POINT_BITS,
    GAMMA,
    SCATTER,
    SEEK_BITS,
    TABLE_BITS,
    seek_tables,
    tables,
    thread_keys,
)
from simlib.engine.result import BINS, FIRST_SHIFT, LAP_BINS, EngineResult
from simlib.errors import DeadlockError, HorizonError, InputError
from simlib.model.steps import FLAGS, Block, Clock, Discipline, Job, Map, Mode, Page, Scan, Step, Whose

THREAD_BITS = 10
"""Low bits of a key that hold the thread's number."""

MAX_THREADS = 1 << THREAD_BITS
HORIZON_PS = (1 << (62 - THREAD_BITS)) - 1
"""Longest simulated time: 2**52 ps, about 75 minutes."""

OWN_STEPS = 1 << 26
"""Steps that a thread may take before it comes back at a later time; more is an endless loop."""

CHUNK = 2_000_000
"""Events between two looks at the keyboard and the progress display."""

PADDING = 64
"""Pages beyond the last one, which a thread that is done with its region may look at but never owns."""

# Numba turns module-level integers into constants.
_RUN, _HOLD, _TAKE, _DROP, _ACCESS, _MAP, _NEXT = (int(s) for s in list(Step)[:7])
_MORE, _REPEAT, _JUMP, _BARRIER, _SCAN, _STAMP, _END, _LAP, _SIGNAL, _UNLESS, _SLEEP, _WAKE, _SEEK = (
    int(s) for s in list(Step)[7:20]
)
_FEW, _PEEK, _BACK, _PAST, _QUIET, _SPLIT, _KICK_STEP = (int(s) for s in list(Step)[20:])
_OF_THREAD, _OF_REGION = int(Whose.THREAD), int(Whose.REGION)
_TICKET, _LOCKLESS, _SERVER = int(Discipline.TICKET), int(Discipline.LOCKLESS), int(Discipline.SERVER)
_READ, _WRITE = int(Mode.READ), int(Mode.WRITE)
_WALL, _SERIAL_YIELD = int(Clock.WALL), int(Clock.SERIAL_YIELD)
_ABSENT, _PROTECTED, _WRITABLE, _DIRTY, _COLLECTED = (int(p) for p in Page)
_STATE, _LOGGED = 3, _DIRTY | _COLLECTED  # bits of a page: its entry's state, and what is written down about it
_TABLE, _B_ABSENT, _B_PROTECTED, _B_WRITABLE = (int(b) for b in Block)
_MAP_SPLIT, _MAP_BLOCK, _MAP_EAGER, _MAP_ZAP = int(Map.SPLIT), int(Map.BLOCK), int(Map.EAGER), int(Map.ZAP)
_SCAN_CLEAR, _SCAN_PROTECT, _SCAN_SET, _SCAN_COLLECT, _SCAN_SEND, _SCAN_ALL, _SCAN_PAGE = (int(k) for k in Scan)

# Columns of the thread table.
_PC, _PAGE, _FIRST, _LAST, _DRAWS, _TRIED, _SEEN, _MODE, _ENDED = range(9)
_ACQUIRED = 9  # when the thread got the lock, and when the server, that it holds
_TIME = 11  # activities, in the order of `simlib.engine.result.ACTIVITIES`
_COUNTER = 17  # four counter registers
_LAP_FROM, _LAP_MAX, _ALARM, _REGION_LOCK, _BITMAP, _KICK, _ASLEEP = range(21, 28)
_THREAD_COLUMNS = 28
_T_RUN, _T_WAIT, _T_HOLD, _T_LINE, _T_BROADCAST, _T_IDLE = range(_TIME, _TIME + 6)
# Columns of the lock table.
_KIND, _HOLDERS, _HEAD, _LENGTH, _LINE_FREE, _LINE_OWNER, _VERSION, _BUSY_SINCE, _BUSY, _CHANGED = range(10)
_LOCK_COLUMNS = 10
# Scalars that live through chunks.
_NOW, _EVENTS, _LIVE, _SHIFT, _TRACED, _STATUS, _RUNNING_THREADS, _CLOCK_BASE, _CLOCK_SINCE = range(9)
_FLAG = 9  # the flags that SIGNAL raises
_SCALARS = _FLAG + FLAGS
_RUNNING, _FINISHED, _DEADLOCK, _PAST_HORIZON, _RUNAWAY = range(5)

_NEVER = np.iinfo(np.int64).max
_T_TRY, _T_ACQUIRED, _T_RELEASED, _T_FAULT, _T_MAPPED, _T_RETRY, _T_BARRIER, _T_SCAN, _T_STAMP, _T_END = range(10)
_T_LAP, _T_SIGNAL, _T_KICK = 10, 11, 12


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types of its own
def _bit_length(typingctx: Any, value: Any) -> Any:
    """Bits that a non-negative int64 needs (`int.bit_length`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.int64), codegen


@njit(inline="always", _nrt=False)
def _draw(th, i, keys):
    """The thread's next 64 random bits (SplitMix64, as `simlib.engine.random.draw`)."""
    z = keys[i] + np.uint64(th[i, _DRAWS] + 1) * np.uint64(GAMMA)
    th[i, _DRAWS] += 1
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always", _nrt=False)
def _sample(th, i, keys, tables, mean, table):
    if table == 0:
        return mean
    z = _draw(th, i, keys)
    return (mean * tables[table, np.int64(z >> np.uint64(64 - TABLE_BITS))]) >> FIXED_POINT_BITS


@njit(inline="always", _nrt=False)
def _line(lk, lock, i, t, local, near, far, socket):
    """One atomic operation by thread i on the lock word's cache line, asked for at t; returns its end."""
    if lk[lock, _KIND] == _SERVER:
        return t
    start = max(t, lk[lock, _LINE_FREE])
    owner = lk[lock, _LINE_OWNER]
    if owner == i or owner < 0:
        end = start + local
    elif socket[owner] == socket[i]:
        end = start + near
    else:
        end = start + far
    lk[lock, _LINE_FREE] = end
    lk[lock, _LINE_OWNER] = i
    return end


@njit(_nrt=False)
def _widen(sc, progress, queue):
    """Double the width of the time bins."""
    sc[_SHIFT] += 1
    half = BINS // 2
    for rows in (progress, queue):
        for r in range(rows.shape[0]):
            for b in range(half):
                rows[r, b] = rows[r, 2 * b] + rows[r, 2 * b + 1]
            rows[r, half:] = 0


@njit(inline="always", _nrt=False)
def _queue_changes(lk, sc, queue, progress, lock, now, change):
    """Add the queue's length since its last change to the time bins, then change it."""
    while (now >> sc[_SHIFT]) >= BINS:
        _widen(sc, progress, queue)
    t = lk[lock, _CHANGED]
    length = lk[lock, _LENGTH]
    if length > 0:
        shift = sc[_SHIFT]
        b = t >> shift
        last = now >> shift
        while b < last:
            edge = (b + 1) << shift
            queue[lock, b] += length * (edge - t)
            t = edge
            b += 1
        queue[lock, b] += length * (now - t)
    lk[lock, _CHANGED] = now
    lk[lock, _LENGTH] = length + change


@njit(inline="always", _nrt=False)
def _wake(tree, leaves, i, key):
    """Set a thread's key and play its matches again up to the root."""
    node = np.uint64(leaves + i)
    tree[node] = key
    while node > np.uint64(1):
        rival = tree[node ^ np.uint64(1)]
        key = min(key, rival)
        node >>= np.uint64(1)
        tree[node] = key


@njit(inline="always", _nrt=False)
def _key(t, i):
    """Key of a wake-up; a time past the horizon is cut, so that it cannot overflow."""
    return (min(t, HORIZON_PS + 1) << THREAD_BITS) | i


@njit(inline="always", _nrt=False)
def _clock(sc, now):
    """What a clock shows: the world's time, or that of the one processor that runs all threads in turns."""
    return sc[_CLOCK_BASE] + max(1, sc[_RUNNING_THREADS]) * (now - sc[_CLOCK_SINCE])


@njit(inline="always", _nrt=False)
def _starts(sc, now, threads, clock):
    """So many more threads run from now on; fewer, if negative."""
    if clock != _WALL:
        sc[_CLOCK_BASE] = _clock(sc, now)
        sc[_CLOCK_SINCE] = now
        sc[_RUNNING_THREADS] += threads


@njit(inline="always", _nrt=False)
def _note(trace, sc, t, i, kind, arg):
    n = sc[_TRACED]
    if n < trace.shape[0]:
        trace[n, 0] = t
        trace[n, 1] = i
        trace[n, 2] = kind
        trace[n, 3] = arg
    sc[_TRACED] = n + 1


@njit(inline="always", _nrt=False)
def _acquired(lk, stats, waits, th, lock, mode, i, now, t):
    """Thread i owns the lock from t on, after waiting since it tried."""
    if lk[lock, _HOLDERS] == 0:
        lk[lock, _BUSY_SINCE] = t
    lk[lock, _HOLDERS] += 1 if mode == _READ else -1
    th[i, _ACQUIRED + (1 if lk[lock, _KIND] == _SERVER else 0)] = t
    th[i, _ASLEEP] = 0
    wait = t - th[i, _TRIED]
    stats[lock, mode, 0] += 1
    stats[lock, mode, 2] += wait
    stats[lock, mode, 3] = max(stats[lock, mode, 3], wait)
    waits[lock, mode, _bit_length(wait)] += 1


@njit(_nrt=False)
def _fill_table(pages, block, block_shift, state):
    """Give every page of a block this state; what is written down about it stays."""
    first = block << block_shift
    for p in range(first, min(first + (1 << block_shift), pages.shape[0] - PADDING)):
        pages[p] = (pages[p] & _LOGGED) | state


@njit(_nrt=False)
def _scan(pages, blocks, block_shift, page, action):
    """What `Step.SCAN` does to the pages from this one on.

    Returns how many entries it acted on, how many pages of an unsplit block among them, and how many pages more stand
    in the bitmap.
    """
    block = page >> block_shift
    table = blocks[block] == _TABLE
    clears = action == _SCAN_CLEAR or action == _SCAN_PAGE
    entries = 0
    more = 0
    for p in range(page, page + (1 if action == _SCAN_PAGE else 64)):
        bits = pages[p]
        if clears:
            if (bits & _LOGGED) == _LOGGED:
                entries += 1
                state = bits & _STATE
                pages[p] = (_PROTECTED if state == _WRITABLE else state) | _COLLECTED
        elif action == _SCAN_COLLECT:
            if bits & _DIRTY:
                entries += 1
                if not bits & _COLLECTED:
                    more += 1
                pages[p] = bits | _COLLECTED
        elif action == _SCAN_SEND:
            if bits & _COLLECTED:
                entries += 1
                more -= 1
                pages[p] = bits & (_STATE | _DIRTY)
        elif action == _SCAN_SET:
            pages[p] = bits | _DIRTY
        elif action == _SCAN_ALL:
            if not bits & _COLLECTED:
                more += 1
            pages[p] = bits | _COLLECTED
        elif table and (bits & _STATE) == _WRITABLE:
            entries += 1
            pages[p] = (bits & _LOGGED) | _PROTECTED
    unsplit = 0
    if not table and (clears or action == _SCAN_PROTECT):
        unsplit = entries
        writable = blocks[block] == _B_WRITABLE
        entries = int(entries > 0 or (action == _SCAN_PROTECT and writable))  # the block has one entry
        if entries > 0 and writable:
            blocks[block] = _B_PROTECTED
    return entries, unsplit, more


@njit(inline="always", _nrt=False)
def _go_on(steps, th, keys, tables, i, t):
    """Spend the time of the RUN and HOLD steps ahead; returns the thread's clock."""
    while True:
        pc = th[i, _PC]
        kind = steps[pc, 0]
        if kind > _HOLD:
            return t
        d = _sample(th, i, keys, tables, steps[pc, 1], steps[pc, 2])
        th[i, _T_RUN if kind == _RUN else _T_HOLD] += d
        t += d
        th[i, _PC] = pc + 1


@njit(inline="always", _nrt=False)
def _grant(
    steps, th, lk, stats, waits, queue, progress, tree, leaves, waiting, sc, keys, tables, trace,
    lock, now, t, local, near, far, socket, clock, tracing,
):  # fmt: skip
    """Hand the lock, let go with effect at t, to the waiters whose turn it is."""
    ring = waiting.shape[1]
    while lk[lock, _LENGTH] > 0:
        j = waiting[lock, lk[lock, _HEAD]]
        mode = th[j, _MODE]
        holders = lk[lock, _HOLDERS]
        if holders < 0 or (holders > 0 and mode == _WRITE):
            return
        head = lk[lock, _HEAD] + 1
        lk[lock, _HEAD] = 0 if head == ring else head
        _queue_changes(lk, sc, queue, progress, lock, now, -1)
        if clock == _SERIAL_YIELD:
            _starts(sc, now, 1, clock)
        left = lk[lock, _LENGTH]
        kind = lk[lock, _KIND]
        if kind == _TICKET:
            # Every waiter polls the word: the read of the one whose turn it is comes, on average, halfway.
            sweep = near * (left + 1)
            owner = t + (sweep >> 1)
            lk[lock, _LINE_FREE] = owner
            lk[lock, _LINE_OWNER] = j
        else:
            owner = _line(lk, lock, j, t, local, near, far, socket)
            if left > 0 and kind != _SERVER:
                owner += near  # fetch the successor's queue node, to pass the queue's head on
        th[j, _T_BROADCAST if kind == _SERVER else _T_WAIT] += t - th[j, _TRIED]
        th[j, _T_LINE] += owner - t
        _acquired(lk, stats, waits, th, lock, mode, j, now, owner)
        if tracing:
            _note(trace, sc, owner, j, _T_ACQUIRED, lock)
        _wake(tree, leaves, j, _key(_go_on(steps, th, keys, tables, j, owner), j))
        t = owner
        if mode == _WRITE:
            return


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
def _advance(
    steps, th, lk, stats, waits, holds, queue, progress, tree, leaves, waiting, sc, keys, tables, trace,
    seeks,
    pages, blocks, block_shift, lock_pages, write_percent, faults, barrier_count, parked, stamp_t, stamp_l, stamp_s,
    stamp_own, laps, local, near, far, socket, clock, budget, tracing,
):  # fmt: skip
    """Run until every thread ended, nothing can happen, or `budget` events took place."""
    threads = th.shape[0]
    ring = waiting.shape[1]
    stop_at = sc[_EVENTS] + budget
    while sc[_EVENTS] < stop_at:
        key = tree[1]
        if key == _NEVER:
            sc[_STATUS] = _FINISHED if sc[_LIVE] == 0 else _DEADLOCK
            return
        now = key >> THREAD_BITS
        i = key & (MAX_THREADS - 1)
        if now > HORIZON_PS:
            sc[_STATUS] = _PAST_HORIZON
            return
        sc[_NOW] = now
        t = now
        asleep = False
        own_steps = 0
        while True:
            pc = th[i, _PC]
            kind = steps[pc, 0]
            own_steps += 1
            if own_steps > OWN_STEPS:
                sc[_STATUS] = _RUNAWAY
                return
            if kind <= _HOLD:
                t = _go_on(steps, th, keys, tables, i, t)
                if t > HORIZON_PS:
                    break
                continue
            if kind == _NEXT:
                stride = steps[pc, 2]
                batch = steps[pc, 3]
                page = min(th[i, _PAGE] + stride, th[i, _LAST])
                th[i, _PAGE] = page
                while (t >> sc[_SHIFT]) >= BINS:
                    _widen(sc, progress, queue)
                progress[i, t >> sc[_SHIFT]] += stride
                done = page >= th[i, _LAST]
                if batch > 0 and not done:
                    offset = page - th[i, _FIRST]
                    if steps[pc, 4] > 0:
                        offset %= steps[pc, 4]
                    done = offset % batch == 0
                if done:
                    th[i, _PC] = pc + 1
                else:
                    th[i, _PC] = steps[pc, 1]
                continue
            if kind == _MORE:
                if th[i, _PAGE] < th[i, _LAST]:
                    th[i, _PC] = steps[pc, 1]
                else:
                    th[i, _PAGE] = th[i, _FIRST]
                    th[i, _PC] = pc + 1
                continue
            if kind == _REPEAT:
                register = _COUNTER + steps[pc, 3]
                th[i, register] += 1
                if th[i, register] < steps[pc, 2]:
                    th[i, _PC] = steps[pc, 1]
                else:
                    th[i, register] = 0
                    th[i, _PC] = pc + 1
                continue
            if kind == _JUMP:
                th[i, _PC] = steps[pc, 1]
                continue
            if kind == _SEEK:
                places = (th[i, _LAST] - th[i, _FIRST]) // steps[pc, 1]
                table = steps[pc, 2]
                bits = _draw(th, i, keys)
                number = np.int64(bits >> np.uint64(64 - SEEK_BITS))
                within = np.int64((bits >> np.uint64(48 - SEEK_BITS)) & np.uint64(0xFFFF))
                low = seeks[table, number]
                rank = ((low + (((seeks[table, number + 1] - low) * within) >> 16)) * places) >> 32
                rank = min(rank, places - 1)
                if table > 0:
                    rank = (rank * SCATTER) % places
                th[i, _PAGE] = th[i, _FIRST] + rank * steps[pc, 1]
                th[i, _PC] = pc + 1
                continue
            if kind == _FEW:
                th[i, _PC] = steps[pc, 1] if th[i, _BITMAP] <= steps[pc, 2] else pc + 1
                continue
            if kind == _PEEK:
                th[i, _PC] = steps[pc, 1]
                for p in range(th[i, _PAGE], min(th[i, _PAGE] + steps[pc, 2], th[i, _LAST])):
                    if pages[p] & _COLLECTED:
                        th[i, _PC] = pc + 1
                        break
                continue
            if kind == _BACK:
                offset = th[i, _PAGE] - th[i, _FIRST]
                if offset > 0:
                    th[i, _PAGE] -= (offset - 1) % steps[pc, 1] + 1
                th[i, _PC] = pc + 1
                continue
            if t > now:
                break  # what follows is shared: come back at that time
            sc[_EVENTS] += 1

            if kind == _ACCESS:
                page = th[i, _PAGE]
                writes = write_percent >= 100 or ((page + 1) * write_percent) // 100 != (page * write_percent) // 100
                fault = -1
                block = blocks[page >> block_shift]
                if block == _TABLE:
                    state = pages[page] & _STATE
                    if state == _ABSENT:
                        fault = 0
                    elif writes and state == _PROTECTED:
                        fault = 1
                elif block == _B_PROTECTED and writes:
                    fault = 2
                elif block == _B_ABSENT:
                    fault = 3
                if fault < 0:
                    th[i, _PC] = pc + 1
                else:
                    faults[i, fault] += 1
                    if tracing:
                        _note(trace, sc, now, i, _T_FAULT, fault)
                    th[i, _PC] = steps[pc, 1 + fault]
                t = now + th[i, _KICK]
                th[i, _T_RUN] += th[i, _KICK]
                th[i, _KICK] = 0

            elif kind == _TAKE:
                lock = steps[pc, 1]
                if steps[pc, 3] == _OF_THREAD:
                    lock += i
                elif steps[pc, 3] == _OF_REGION:
                    lock += min(th[i, _PAGE], pages.shape[0] - PADDING - 1) // lock_pages
                    th[i, _REGION_LOCK] = lock
                mode = steps[pc, 2]
                th[i, _PC] = pc + 1
                th[i, _TRIED] = now
                th[i, _MODE] = mode
                if tracing:
                    _note(trace, sc, now, i, _T_TRY, lock)
                if lk[lock, _KIND] == _LOCKLESS:
                    th[i, _SEEN] = lk[lock, _VERSION]
                    th[i, _ACQUIRED] = now
                else:
                    t = _line(lk, lock, i, now, local, near, far, socket)
                    holders = lk[lock, _HOLDERS]
                    if lk[lock, _LENGTH] == 0 and (holders == 0 or (holders > 0 and mode == _READ)):
                        th[i, _T_LINE] += t - now
                        _acquired(lk, stats, waits, th, lock, mode, i, now, t)
                        if tracing:
                            _note(trace, sc, t, i, _T_ACQUIRED, lock)
                    else:
                        stats[lock, mode, 1] += 1
                        slot = lk[lock, _HEAD] + lk[lock, _LENGTH]
                        waiting[lock, slot - ring if slot >= ring else slot] = i
                        _queue_changes(lk, sc, queue, progress, lock, now, 1)
                        if clock == _SERIAL_YIELD:
                            _starts(sc, now, -1, clock)
                        th[i, _ASLEEP] = 1
                        asleep = True
                        break

            elif kind == _DROP:
                lock = steps[pc, 1]
                if steps[pc, 3] == _OF_THREAD:
                    lock += i
                elif steps[pc, 3] == _OF_REGION:
                    lock = th[i, _REGION_LOCK]
                mode = steps[pc, 2]
                if lk[lock, _KIND] == _LOCKLESS:
                    t = _line(lk, lock, i, now, local, near, far, socket)
                    th[i, _T_LINE] += t - now
                    if lk[lock, _VERSION] != th[i, _SEEN]:
                        stats[lock, mode, 1] += 1
                        if tracing:
                            _note(trace, sc, t, i, _T_RETRY, lock)
                        th[i, _PC] = steps[pc, 4]
                        continue
                    lk[lock, _VERSION] += 1
                    held = t - th[i, _ACQUIRED]
                    stats[lock, mode, 0] += 1
                else:
                    if lk[lock, _LENGTH] > 0:
                        # The waiter at the queue's head polls the word: the line must be fetched back.
                        lk[lock, _LINE_OWNER] = waiting[lock, lk[lock, _HEAD]]
                    t = _line(lk, lock, i, now, local, near, far, socket)
                    th[i, _T_LINE] += t - now
                    held = t - th[i, _ACQUIRED + (1 if lk[lock, _KIND] == _SERVER else 0)]
                    lk[lock, _HOLDERS] += -1 if mode == _READ else 1
                    if lk[lock, _HOLDERS] == 0:
                        lk[lock, _BUSY] += t - lk[lock, _BUSY_SINCE]
                stats[lock, mode, 4] += held
                stats[lock, mode, 5] = max(stats[lock, mode, 5], held)
                holds[lock, mode, _bit_length(held)] += 1
                if tracing:
                    _note(trace, sc, t, i, _T_RELEASED, lock)
                th[i, _PC] = pc + 1
                if lk[lock, _LENGTH] > 0:
                    _grant(
                        steps, th, lk, stats, waits, queue, progress, tree, leaves, waiting, sc, keys, tables,
                        trace, lock, now, t, local, near, far, socket, clock, tracing,
                    )  # fmt: skip

            elif kind == _MAP:
                page = th[i, _PAGE]
                action = steps[pc, 1]
                logging = steps[pc, 2]
                writes = write_percent >= 100 or ((page + 1) * write_percent) // 100 != (page * write_percent) // 100
                block = page >> block_shift
                if action == _MAP_BLOCK:
                    blocks[block] = _B_WRITABLE
                elif action == _MAP_ZAP:
                    blocks[block] = _B_ABSENT
                elif action == _MAP_EAGER:
                    if blocks[block] >= _B_PROTECTED:
                        state = _WRITABLE if blocks[block] == _B_WRITABLE else _PROTECTED
                        _fill_table(pages, block, block_shift, state)
                        blocks[block] = _TABLE
                else:
                    if blocks[block] == _B_ABSENT or (action == _MAP_SPLIT and blocks[block] != _TABLE):
                        blocks[block] = _TABLE
                        _fill_table(pages, block, block_shift, _ABSENT)
                    bits = pages[page] & _LOGGED
                    if writes and logging:
                        bits |= _DIRTY
                    pages[page] = bits | (_WRITABLE if writes or not logging else _PROTECTED)
                if tracing:
                    _note(trace, sc, now, i, _T_MAPPED, page)
                th[i, _PC] = pc + 1

            elif kind == _SCAN:
                action = steps[pc, 2]
                entries, unsplit, more = _scan(pages, blocks, block_shift, th[i, _PAGE], action)
                d = entries * steps[pc, 1] + unsplit * steps[pc, 4] + (steps[pc, 3] if entries else 0)
                th[i, _BITMAP] += more
                if action == _SCAN_COLLECT:
                    th[i, _T_RUN] += d
                elif action == _SCAN_SEND:
                    th[i, _T_IDLE] += d
                else:
                    th[i, _T_HOLD] += d
                t += d
                if tracing:
                    _note(trace, sc, now, i, _T_SCAN, entries)
                th[i, _PC] = pc + 1

            elif kind == _BARRIER:
                which = steps[pc, 1]
                th[i, _PC] = pc + 1
                if tracing:
                    _note(trace, sc, now, i, _T_BARRIER, which)
                barrier_count[which] += 1
                if barrier_count[which] < steps[pc, 2]:
                    parked[i] = which
                    th[i, _TRIED] = now
                    _starts(sc, now, -1, clock)
                    th[i, _ASLEEP] = 1
                    asleep = True
                    break
                _starts(sc, now, barrier_count[which] - 1, clock)
                barrier_count[which] = 0
                for j in range(threads):
                    if parked[j] == which:
                        parked[j] = -1
                        th[j, _ASLEEP] = 0
                        th[j, _T_IDLE] += now - th[j, _TRIED]
                        _wake(tree, leaves, j, _key(_go_on(steps, th, keys, tables, j, now), j))

            elif kind == _STAMP:
                which = steps[pc, 1]
                stamp_t[which] = _clock(sc, now)
                stamp_s[which, :] = 0
                for lock in range(lk.shape[0]):
                    for mode in range(2):
                        stamp_l[which, lock, mode, 0] = stats[lock, mode, 0]
                        stamp_l[which, lock, mode, 1] = stats[lock, mode, 1]
                for j in range(threads):
                    for activity in range(6):
                        stamp_s[which, activity] += th[j, _TIME + activity]
                    for fault in range(4):
                        stamp_s[which, 6 + fault] += faults[j, fault]
                for activity in range(6):
                    stamp_own[which, activity] = th[i, _TIME + activity]
                stamp_own[which, 6] = th[i, _BITMAP]
                if tracing:
                    _note(trace, sc, now, i, _T_STAMP, which)
                th[i, _PC] = pc + 1

            elif kind == _LAP:
                shown = _clock(sc, now)
                if steps[pc, 1] == 1 or (steps[pc, 1] == 2 and sc[_FLAG + steps[pc, 2]]):
                    gap = shown - th[i, _LAP_FROM]
                    th[i, _LAP_MAX] = max(th[i, _LAP_MAX], gap)
                    octave = max(0, _bit_length(gap) - 4)
                    laps[i, 8 * octave + (gap >> octave)] += 1
                    if tracing:
                        _note(trace, sc, now, i, _T_LAP, gap)
                th[i, _LAP_FROM] = shown
                th[i, _PC] = pc + 1

            elif kind == _SIGNAL:
                sc[_FLAG + steps[pc, 1]] = 1
                if tracing:
                    _note(trace, sc, now, i, _T_SIGNAL, steps[pc, 1])
                th[i, _PC] = pc + 1

            elif kind == _UNLESS:
                th[i, _PC] = pc + 1 if sc[_FLAG + steps[pc, 2]] else steps[pc, 1]

            elif kind == _PAST:
                th[i, _PC] = steps[pc, 1] if _clock(sc, now) >= steps[pc, 2] else pc + 1

            elif kind == _QUIET:
                lock = steps[pc, 2] if steps[pc, 2] >= 0 else th[i, _REGION_LOCK]
                crowd = lk[lock, _LENGTH]
                if steps[pc, 4] > 0:
                    for k in range(lk[lock, _LENGTH]):
                        slot = lk[lock, _HEAD] + k
                        if waiting[lock, slot - ring if slot >= ring else slot] >= steps[pc, 4]:
                            crowd -= 1
                th[i, _PC] = steps[pc, 1] if crowd < steps[pc, 3] else pc + 1

            elif kind == _SPLIT:
                th[i, _PC] = pc + 1 if blocks[th[i, _PAGE] >> block_shift] >= _B_PROTECTED else steps[pc, 1]

            elif kind == _KICK_STEP:
                for j in range(threads):
                    if j != i and th[j, _ASLEEP] == 0:
                        th[j, _KICK] = steps[pc, 1]
                if tracing:
                    _note(trace, sc, now, i, _T_KICK, steps[pc, 1])
                th[i, _PC] = pc + 1

            elif kind == _SLEEP:
                th[i, _ALARM] = _clock(sc, now) + steps[pc, 1]
                _starts(sc, now, -1, clock)
                th[i, _PC] = pc + 1

            elif kind == _WAKE:
                left = th[i, _ALARM] - _clock(sc, now)
                if left <= 0:
                    _starts(sc, now, 1, clock)
                    th[i, _PC] = pc + 1
                else:
                    d = -(-left // (1 if clock == _WALL else threads))
                    th[i, _T_IDLE] += d
                    t += d

            else:  # END
                th[i, _ENDED] = now
                th[i, _ASLEEP] = 1
                sc[_LIVE] -= 1
                _starts(sc, now, -1, clock)
                if tracing:
                    _note(trace, sc, now, i, _T_END, 0)
                asleep = True
                break
        _wake(tree, leaves, i, _NEVER if asleep else _key(t, i))


def run(
    job: Job,
    seed: int = 1,
    *,
    trace: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> EngineResult:
    """Run a job with the compiled engine.

    Parameters
    ----------
    job : Job
        Programs, threads and locks.
    seed : int
        Root of all random streams.
    trace : int
        Keep up to this many trace events; 0 keeps none.
    progress : callable, optional
        Called with (events, simulated time in ps) about every two million events.

    Returns
    -------
    EngineResult

    Raises
    ------
    DeadlockError
        If every thread that has not ended waits for another.
    HorizonError
        If simulated time passes 75 minutes, or the trace outgrows `trace`.
    InputError
        If the job has more than 1024 threads.

    Examples
    --------
    >>> from simlib.model.steps import Program, Step
    >>> import numpy as np
    >>> p = Program()
    >>> top = p.add(Step.RUN, 2000)
    >>> for step in (p.add(Step.TAKE, 0, 1), p.add(Step.HOLD, 1000), p.add(Step.DROP, 0, 1)): pass
    >>> _ = p.add(Step.REPEAT, top, 10), p.add(Step.END)
    >>> job = Job(np.array(p.rows), np.zeros(2, int), np.zeros((2, 2), int), np.zeros(1, int), 0, 0, 0,
    ...           np.zeros(2, int))
    >>> result = run(job)
    >>> result.end_ps, result.lock_stats[0, 1, :2].tolist()
    (31000, [20, 1])
    """
    threads = len(job.entry)
    if threads > MAX_THREADS:
        raise InputError("threads", threads, f"must be at most {MAX_THREADS}", "simulate fewer vCPUs")
    leaves = 1
    while leaves < threads:
        leaves *= 2
    tree = np.full(2 * max(leaves, 2), _NEVER, dtype=np.int64)
    leaves = max(leaves, 2)
    tree[leaves : leaves + threads] = np.arange(threads)
    for node in range(leaves - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])

    locks = len(job.locks)
    th = np.zeros((threads, _THREAD_COLUMNS), dtype=np.int64)
    th[:, _PC] = job.entry
    th[:, _ENDED] = -1
    th[:, _FIRST], th[:, _LAST] = job.region[:, 0], job.region[:, 1]
    th[:, _PAGE] = job.region[:, 0]
    lk = np.zeros((locks, _LOCK_COLUMNS), dtype=np.int64)
    lk[:, _KIND] = job.locks
    lk[:, _LINE_OWNER] = -1
    sc = np.zeros(_SCALARS, dtype=np.int64)
    sc[_LIVE], sc[_SHIFT] = threads, FIRST_SHIFT
    sc[_RUNNING_THREADS] = threads if job.clock != Clock.WALL else 1
    state = {
        "stats": np.zeros((locks, 2, 6), dtype=np.int64),
        "waits": np.zeros((locks, 2, 65), dtype=np.int64),
        "holds": np.zeros((locks, 2, 65), dtype=np.int64),
        "queue": np.zeros((locks, BINS), dtype=np.int64),
        "progress": np.zeros((threads, BINS), dtype=np.int64),
    }
    waiting = np.zeros((locks, threads), dtype=np.int64)
    events = np.zeros((trace, 4), dtype=np.int64)
    page, block = first_states(job)
    pages = np.full(job.pages + PADDING, page, dtype=np.uint8)
    blocks = np.full(-(-(job.pages + PADDING) // job.block_pages), block, dtype=np.uint8)
    faults = np.zeros((threads, 4), dtype=np.int64)
    stamp_t = np.zeros(len(job.stamps), dtype=np.int64)
    stamp_l = np.zeros((len(job.stamps), locks, 2, 2), dtype=np.int64)
    stamp_s = np.zeros((len(job.stamps), 10), dtype=np.int64)
    stamp_own = np.zeros((len(job.stamps), 7), dtype=np.int64)
    laps = np.zeros((threads, LAP_BINS), dtype=np.int64)
    draws = tables(job.cvs)
    check_times(job, draws)
    barriers = np.zeros(job.barriers, dtype=np.int64)
    parked = np.full(threads, -1, dtype=np.int64)
    while sc[_STATUS] == _RUNNING:
        _advance(
            job.steps, th, lk, *state.values(), tree, leaves, waiting, sc,
            thread_keys(seed, threads), draws, events,
            seek_tables(job.zipf, vcpu_pages(job)),
            pages, blocks, job.block_pages.bit_length() - 1, job.lock_pages, job.write_percent, faults, barriers,
            parked, stamp_t, stamp_l, stamp_s, stamp_own, laps,
            job.local_ps, job.near_ps, job.far_ps, job.socket, job.clock, CHUNK, trace > 0,
        )  # fmt: skip
        if progress is not None:
            progress(int(sc[_EVENTS]), int(sc[_NOW]))
    check_end(job, int(sc[_STATUS]), int(sc[_NOW]), int(sc[_TRACED]), trace, th[:, _ENDED])
    return EngineResult(
        end_ps=int(np.max(th[:, _ENDED])),
        events=int(sc[_EVENTS]),
        lock_stats=state["stats"],
        wait_histogram=state["waits"],
        hold_histogram=state["holds"],
        busy_ps=lk[:, _BUSY].copy(),
        queue_ps=state["queue"],
        thread_ps=th[:, _TIME : _TIME + 6].copy(),
        thread_end_ps=th[:, _ENDED].copy(),
        faults=faults,
        progress=state["progress"],
        bin_ps=1 << int(sc[_SHIFT]),
        stamp_ps=stamp_t,
        stamp_locks=stamp_l,
        stamp_sums=stamp_s,
        stamp_own=stamp_own,
        lap_histogram=laps,
        lap_max_ps=th[:, _LAP_MAX].copy(),
        trace=events[: int(sc[_TRACED])],
    )


def vcpu_pages(job: Job) -> int:
    """Pages of the smallest region: that of a vCPU, which is whose pages are sought."""
    return max(1, int(np.diff(job.region, axis=1).min()))


def first_states(job: Job) -> tuple[Page, Block]:
    """State of every page, and of every block, when the run begins."""
    if job.mapped_as_blocks:
        return Page.ABSENT, Block.WRITABLE if job.populated else Block.ABSENT
    return Page.WRITABLE if job.populated else Page.ABSENT, Block.TABLE


def check_times(job: Job, draws: NDArray[np.int64]) -> None:
    """Refuse steps whose time, or whose longest draw, is past the horizon.

    Raises
    ------
    HorizonError
    """
    longest = draws.max(axis=1)
    for index, (kind, a, b, c, d) in enumerate(job.steps.tolist()):
        worst = 64 * (a + d) + c if kind == Step.SCAN else a if kind in (Step.RUN, Step.HOLD, Step.SLEEP) else 0
        jittered = kind in (Step.RUN, Step.HOLD) and b > 0
        if worst > HORIZON_PS or (jittered and a * int(longest[b]) >= 2**62):
            limit = min(HORIZON_PS, 2**62 // int(longest[b])) if jittered else HORIZON_PS
            raise HorizonError(
                f"step {index} ({Step(kind).name}) takes {worst * 1e-12:.6g} s on average, longer than is simulated "
                f"({limit * 1e-12:.0f} s); shorten it"
            )


def check_end(job: Job, status: int, now: int, traced: int, room: int, ended: NDArray[np.int64]) -> None:
    """Raise what a run that did not end well deserves."""
    if status == _DEADLOCK:
        stuck = [name for name, t in zip(job.thread_names or map(str, range(len(ended))), ended, strict=True) if t < 0]
        names = ", ".join(stuck[:4]) + (" …" if len(stuck) > 4 else "")
        raise DeadlockError(
            f"deadlock at {now * 1e-12:.6g} s of simulated time: {len(stuck)} thread(s) wait for a lock or a "
            f"barrier that nobody will ever give ({names}); check that every TAKE has its DROP and every "
            "barrier its number of threads"
        )
    if status == _PAST_HORIZON:
        raise HorizonError(
            f"the run is still going after {HORIZON_PS * 1e-12:.0f} s of simulated time, the most that is "
            "simulated; take less memory, fewer iterations or fewer vCPUs"
        )
    if status == _RUNAWAY:
        raise HorizonError(
            f"a program takes more than {OWN_STEPS} steps at {now * 1e-12:.6g} s of simulated time without letting any "
            "pass: it loops for ever; give what it does there a cost, or check its JUMP and REPEAT steps"
        )
    if room and traced > room:
        raise HorizonError(
            f"the run has {traced} trace events, more than the {room} asked for; trace a smaller scenario"
        )
