# SPDX-License-Identifier: BSD-3-Clause
"""The readable engine: what the step language means, written with SimPy.

This is the definition; `simlib.engine.compiled` must give the same trace to the
picosecond. Events at the same time happen in the order of the threads' numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
import simpy

from simlib.engine import compiled
from simlib.engine.random import (
    FIXED_POINT_BITS,
    SCATTER,
    SEEK_BITS,
    TABLE_BITS,
    draw,
    seek_tables,
    tables,
    thread_keys,
)
from simlib.engine.result import BINS, EVENTS, FIRST_SHIFT, LAP_BINS, EngineResult, lap_bin
from simlib.errors import InputError
from simlib.model.steps import FLAGS, SHARED, Block, Clock, Discipline, Job, Map, Mode, Page, Scan, Step, Whose

PROGRESS_EVENTS = 50_000
"""Events between two calls of the progress function."""


@dataclass
class Line:
    """A cache line: one atomic operation at a time, dearer when another CPU owned it last."""

    job: Job
    absent: bool = False
    free: int = 0
    owner: int | None = None

    def use(self, thread: int, at: int) -> int:
        """One operation, asked for at `at`; returns when it is done."""
        if self.absent:
            return at
        socket = self.job.socket
        if self.owner is None or self.owner == thread:
            cost = self.job.local_ps
        elif socket[self.owner] == socket[thread]:
            cost = self.job.near_ps
        else:
            cost = self.job.far_ps
        self.free = max(at, self.free) + cost
        self.owner = thread
        return self.free


@dataclass
class Lock:
    """A lock with its cache line, its queue of threads, and the statistics it keeps for each mode."""

    discipline: Discipline
    line: Line
    readers: int = 0
    writer: bool = False
    waiting: deque[Thread] = field(default_factory=deque)
    version: int = 0
    busy_since: int = 0
    busy: int = 0
    changed: int = 0
    stats: list[list[int]] = field(default_factory=lambda: [[0] * 6, [0] * 6])
    waits: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])
    holds: list[list[int]] = field(default_factory=lambda: [[0] * 65, [0] * 65])

    @property
    def free(self) -> bool:
        """True if nobody holds the lock."""
        return not self.writer and not self.readers

    def admits(self, mode: int) -> bool:
        """True if a thread may hold the lock in this mode beside those that hold it now."""
        return self.free or (mode == Mode.READ and not self.writer)

    def enter(self, mode: int, at: int) -> None:
        """One more holder, from `at` on."""
        if self.free:
            self.busy_since = at
        if mode == Mode.READ:
            self.readers += 1
        else:
            self.writer = True

    def leave(self, mode: int, at: int) -> None:
        """One holder less, from `at` on."""
        if mode == Mode.READ:
            self.readers -= 1
        else:
            self.writer = False
        if self.free:
            self.busy += at - self.busy_since


@dataclass
class Thread:
    """A thread's registers, and where its time went."""

    number: int
    pc: int
    first: int
    last: int
    key: int
    page: int = 0
    draws: int = 0
    counters: list[int] = field(default_factory=lambda: [0] * 4)
    tried: int = 0
    acquired: int = 0
    served: int = 0
    seen: int = 0
    mode: int = 0
    spent: list[int] = field(default_factory=lambda: [0] * 6)
    faults: list[int] = field(default_factory=lambda: [0] * 4)
    alarm: int = 0
    region_lock: int = 0
    bitmap: int = 0
    kick: int = 0
    asleep: bool = False
    lap_from: int = 0
    lap_max: int = 0
    laps: list[int] = field(default_factory=lambda: [0] * LAP_BINS)
    ended: int = -1
    wake: simpy.Event | None = None


RUN, WAIT, HOLD, LINE, BROADCAST, IDLE = range(6)
SCAN_ACTIVITY = {Scan.COLLECT: RUN, Scan.SEND: IDLE}
"""Of scans that take no lock; the others are HOLD."""
STATE = 3
"""Bits of a page that hold its entry's state."""
PERMISSION = {Block.PROTECTED: Page.PROTECTED, Block.WRITABLE: Page.WRITABLE}


class Simulation:
    """One run of a job."""

    def __init__(self, job: Job, seed: int, trace: int, progress: Callable[[int, int], None] | None) -> None:
        self.job, self.room, self.report = job, trace, progress
        self.env = simpy.Environment(initial_time=0)
        self.tables = tables(job.cvs)
        self.places = seek_tables(job.zipf, compiled.vcpu_pages(job))
        compiled.check_times(job, self.tables)
        keys = thread_keys(seed, len(job.entry))
        self.threads = [
            Thread(i, int(job.entry[i]), int(job.region[i, 0]), int(job.region[i, 1]), int(keys[i]))
            for i in range(len(job.entry))
        ]
        self.locks = [Lock(Discipline(int(k)), Line(job, absent=k == Discipline.SERVER)) for k in job.locks]
        page, block = compiled.first_states(job)
        self.pages = [int(page)] * (job.pages + compiled.PADDING)
        self.blocks = [block] * -(-(job.pages + compiled.PADDING) // job.block_pages)
        self.parked: list[list[Thread]] = [[] for _ in range(job.barriers)]
        self.trace: list[tuple[int, int, int, int]] = []
        self.flags = [False] * FLAGS
        self.traced = self.events = self.live = 0
        self.clock_base = self.clock_since = 0
        self.running = len(job.entry) if job.clock != Clock.WALL else 1
        self.shift = FIRST_SHIFT
        self.queue = np.zeros((len(self.locks), BINS), dtype=np.int64)
        self.progress = np.zeros((len(self.threads), BINS), dtype=np.int64)
        self.stamp_t = np.zeros(len(job.stamps), dtype=np.int64)
        self.stamp_s = np.zeros((len(job.stamps), 10), dtype=np.int64)
        self.stamp_own = np.zeros((len(job.stamps), 7), dtype=np.int64)
        self.stamp_l = np.zeros((len(job.stamps), len(self.locks), 2, 2), dtype=np.int64)

    # -- time and records ----------------------------------------------------------------------------

    def sleep(self, thread: Thread) -> simpy.Event:
        """An event on which the thread sleeps until somebody calls `rouse`."""
        thread.wake = simpy.Event(self.env)
        return thread.wake

    def rouse(self, thread: Thread, at: int) -> None:
        """Let a sleeping thread go on at a time; its number decides ties."""
        event = thread.wake
        assert event is not None  # noqa: S101  # a thread is roused only while it sleeps
        event._ok, event._value = True, None
        self.env.schedule(event, priority=thread.number + 2, delay=at - self.env.now)

    def clock(self) -> int:
        """What a clock shows: the world's time, or that of the one processor that runs all threads in turns."""
        return self.clock_base + max(1, self.running) * (int(self.env.now) - self.clock_since)

    def starts(self, threads: int) -> None:
        """So many more threads run from now on; fewer, if negative."""
        if self.job.clock != Clock.WALL:
            self.clock_base, self.clock_since = self.clock(), int(self.env.now)
            self.running += threads

    def note(self, time: int, thread: Thread, kind: str, argument: int) -> None:
        """Write down one trace event, if a trace is wanted."""
        if self.room:
            if self.traced < self.room:
                self.trace.append((time, thread.number, EVENTS.index(kind), argument))
            self.traced += 1

    def bin_of(self, time: int) -> int:
        """Index of a time's bin; the bins' width doubles until the time fits."""
        while time >> self.shift >= BINS:
            self.shift += 1
            for rows in (self.queue, self.progress):
                rows[:, : BINS // 2] = rows[:, 0::2] + rows[:, 1::2]
                rows[:, BINS // 2 :] = 0
        return time >> self.shift

    def queue_changes(self, index: int, lock: Lock, now: int) -> None:
        """Add the queue's length since its last change to the time bins; call before it changes."""
        last = self.bin_of(now)
        t = lock.changed
        while t < now and lock.waiting:
            b = t >> self.shift
            until = now if b == last else (b + 1) << self.shift
            self.queue[index, b] += len(lock.waiting) * (until - t)
            t = until
        lock.changed = now

    def sample(self, thread: Thread, mean: int, table: int) -> int:
        """A duration: the mean, or the mean times a random entry of a quantile table."""
        if table == 0:
            return mean
        bits = draw(thread.key, thread.draws)
        thread.draws += 1
        return (mean * int(self.tables[table, bits >> (64 - TABLE_BITS)])) >> FIXED_POINT_BITS

    def writes(self, page: int) -> bool:
        """Whether the guest writes this page; write_percent of the pages, evenly spread."""
        percent = self.job.write_percent
        return percent >= 100 or (page + 1) * percent // 100 != page * percent // 100

    # -- the interpreter -----------------------------------------------------------------------------

    def live_through(self, thread: Thread) -> Generator[simpy.Event, None, None]:
        """A thread's life: its own steps move its clock, a shared step waits until the world's clock is there."""
        thread.page = thread.first
        wake = self.sleep(thread)
        self.rouse(thread, 0)
        yield wake
        clock = own_steps = 0
        while True:
            kind, a, b, c, d = (int(x) for x in self.job.steps[thread.pc])
            own_steps += 1
            if own_steps > compiled.OWN_STEPS:
                compiled.check_end(self.job, 4, int(self.env.now), 0, 0, np.zeros(0, dtype=np.int64))
            if kind in SHARED:
                if clock > self.env.now:
                    wake = self.sleep(thread)
                    self.rouse(thread, clock)
                    yield wake
                    own_steps = 0
                self.events += 1
                if self.report is not None and self.events % PROGRESS_EVENTS == 0:
                    self.report(self.events, int(self.env.now))
                if kind == Step.END:
                    thread.ended, thread.asleep = int(self.env.now), True
                    self.live -= 1
                    self.starts(-1)
                    self.note(thread.ended, thread, "end", 0)
                    return
                done = SHARED_STEPS[Step(kind)](self, thread, a, b, c, d)
                if done is None:  # asleep, until a lock or a barrier lets it go on
                    yield thread.wake
                    clock, own_steps = int(self.env.now), 0
                else:
                    clock = done
            else:
                clock = self.own_step(thread, clock, kind, a, b, c, d)
                if clock > compiled.HORIZON_PS:  # never to be reached
                    wake = self.sleep(thread)
                    self.rouse(thread, clock)
                    yield wake

    def run_ahead(self, thread: Thread, clock: int) -> int:
        """Spend the time of the RUN and HOLD steps ahead; nobody can interfere with them."""
        while True:
            kind, a, b, c, d = (int(x) for x in self.job.steps[thread.pc])
            if kind not in (Step.RUN, Step.HOLD):
                return clock
            clock = self.own_step(thread, clock, kind, a, b, c, d)

    def own_step(  # noqa: PLR0912  # one branch a kind of step reads best
        self, thread: Thread, clock: int, kind: int, a: int, b: int, c: int, d: int
    ) -> int:
        """RUN, HOLD and the jumps: nobody else can see them. Returns the thread's clock."""
        thread.pc += 1
        if kind in (Step.RUN, Step.HOLD):
            time = self.sample(thread, a, b)
            thread.spent[RUN if kind == Step.RUN else HOLD] += time
            return clock + time
        if kind == Step.NEXT:
            thread.page = min(thread.page + b, thread.last)
            self.progress[thread.number, self.bin_of(clock)] += b
            offset = thread.page - thread.first
            offset = offset % d if d > 0 else offset
            if thread.page < thread.last and not (c > 0 and offset % c == 0):
                thread.pc = a
        elif kind == Step.MORE:
            if thread.page < thread.last:
                thread.pc = a
            else:
                thread.page = thread.first
        elif kind == Step.JUMP:
            thread.pc = a
        elif kind == Step.FEW:
            thread.pc = a if thread.bitmap <= b else thread.pc
        elif kind == Step.PEEK:
            ahead = self.pages[thread.page : min(thread.page + b, thread.last)]
            thread.pc = thread.pc if any(bits & Page.COLLECTED for bits in ahead) else a
        elif kind == Step.BACK:
            thread.page -= (thread.page - thread.first - 1) % a + 1 if thread.page > thread.first else 0
        elif kind == Step.SEEK:
            places = (thread.last - thread.first) // a
            bits = draw(thread.key, thread.draws)
            thread.draws += 1
            number, within = bits >> (64 - SEEK_BITS), bits >> (48 - SEEK_BITS) & 0xFFFF
            low, high = (int(self.places[b, number + i]) for i in (0, 1))
            rank = min((low + ((high - low) * within >> 16)) * places >> 32, places - 1)
            thread.page = thread.first + (rank * SCATTER % places if b else rank) * a
        else:  # REPEAT
            thread.counters[c] += 1
            if thread.counters[c] < b:
                thread.pc = a
            else:
                thread.counters[c] = 0
        return clock

    # -- shared steps: each returns the thread's clock, or None if the thread sleeps -----------------

    def take(self, thread: Thread, a: int, mode: int, whose: int, _d: int) -> int | None:
        """Ask for a lock."""
        now = int(self.env.now)
        if whose == Whose.REGION:
            thread.region_lock = a + min(thread.page, self.job.pages - 1) // self.job.lock_pages
        index = self.lock_index(thread, a, whose)
        lock = self.locks[index]
        thread.pc += 1
        thread.tried, thread.mode = now, mode
        self.note(now, thread, "try", index)
        if lock.discipline is Discipline.LOCKLESS:
            thread.seen, thread.acquired = lock.version, now
            return now
        done = lock.line.use(thread.number, now)
        if not lock.waiting and lock.admits(mode):
            thread.spent[LINE] += done - now
            self.own(index, thread, mode, done)
            return done
        lock.stats[mode][1] += 1
        self.queue_changes(index, lock, now)
        lock.waiting.append(thread)
        if self.job.clock == Clock.SERIAL_YIELD:
            self.starts(-1)
        thread.asleep = True
        self.sleep(thread)
        return None

    def lock_index(self, thread: Thread, a: int, whose: int) -> int:
        """Which lock a TAKE or DROP means."""
        return (a, a + thread.number, thread.region_lock)[whose]

    def own(self, index: int, thread: Thread, mode: int, at: int) -> None:
        """The thread holds the lock from `at` on."""
        lock = self.locks[index]
        thread.asleep = False
        lock.enter(mode, at)
        if lock.discipline is Discipline.SERVER:
            thread.served = at
        else:
            thread.acquired = at
        wait = at - thread.tried
        stats = lock.stats[mode]
        stats[0] += 1
        stats[2] += wait
        stats[3] = max(stats[3], wait)
        lock.waits[mode][wait.bit_length()] += 1
        self.note(at, thread, "acquired", index)

    def drop(self, thread: Thread, a: int, mode: int, whose: int, retry: int) -> int:
        """Let a lock go, or publish a lockless update; hand the lock on."""
        now = int(self.env.now)
        index = self.lock_index(thread, a, whose)
        lock = self.locks[index]
        if lock.discipline is Discipline.LOCKLESS:
            done = lock.line.use(thread.number, now)
            thread.spent[LINE] += done - now
            if lock.version != thread.seen:
                lock.stats[mode][1] += 1
                self.note(done, thread, "retry", index)
                thread.pc = retry
                return done
            lock.version += 1
            lock.stats[mode][0] += 1
            held = done - thread.acquired
        else:
            if lock.waiting:  # the head of the queue polls the word: its line must be fetched back
                lock.line.owner = lock.waiting[0].number
            done = lock.line.use(thread.number, now)
            thread.spent[LINE] += done - now
            held = done - (thread.served if lock.discipline is Discipline.SERVER else thread.acquired)
            lock.leave(mode, done)
        stats = lock.stats[mode]
        stats[4] += held
        stats[5] = max(stats[5], held)
        lock.holds[mode][held.bit_length()] += 1
        self.note(done, thread, "released", index)
        thread.pc += 1
        self.grant(index, now, done)
        return done

    def grant(self, index: int, now: int, at: int) -> None:
        """Give the lock, free from `at` on, to those whose turn it is: one writer, or readers in a row."""
        lock = self.locks[index]
        while lock.waiting and lock.admits(lock.waiting[0].mode):
            self.queue_changes(index, lock, now)
            thread = lock.waiting.popleft()
            if self.job.clock == Clock.SERIAL_YIELD:
                self.starts(1)
            left = len(lock.waiting)
            if lock.discipline is Discipline.TICKET:
                # All waiters poll the word; the read of the one whose turn it is comes, on average, halfway.
                sweep = self.job.near_ps * (left + 1)
                owned = at + sweep // 2
                lock.line.free, lock.line.owner = owned, thread.number
            else:
                owned = lock.line.use(thread.number, at)
                if left and lock.discipline is not Discipline.SERVER:
                    owned += self.job.near_ps  # fetch the successor's queue node, to pass the queue's head on
            thread.spent[BROADCAST if lock.discipline is Discipline.SERVER else WAIT] += at - thread.tried
            thread.spent[LINE] += owned - at
            self.own(index, thread, thread.mode, owned)
            self.rouse(thread, self.run_ahead(thread, owned))
            at = owned

    def access(self, thread: Thread, a: int, b: int, c: int, d: int) -> int:
        """The guest touches its page: a hit falls through, a fault jumps."""
        page = thread.page
        block = self.blocks[page // self.job.block_pages]
        state = self.pages[page] & STATE
        writes = self.writes(page)
        if block == Block.TABLE:
            fault = 0 if state == Page.ABSENT else 1 if writes and state == Page.PROTECTED else None
        else:
            fault = 3 if block == Block.ABSENT else 2 if writes and block == Block.PROTECTED else None
        if fault is None:
            thread.pc += 1
        else:
            thread.faults[fault] += 1
            self.note(int(self.env.now), thread, "fault", fault)
            thread.pc = (a, b, c, d)[fault]
        kick, thread.kick = thread.kick, 0
        thread.spent[RUN] += kick
        return int(self.env.now) + kick

    def map(self, thread: Thread, action: int, logging: int, _c: int, _d: int) -> int:
        """Change the entry of the current page, and mark the page dirty."""
        page, size = thread.page, self.job.block_pages
        block = page // size
        writes = self.writes(page)
        if action == Map.BLOCK:
            self.blocks[block] = Block.WRITABLE
        elif action == Map.ZAP:
            self.blocks[block] = Block.ABSENT
        elif action == Map.EAGER:
            if self.blocks[block] in PERMISSION:
                self.fill_table(block, PERMISSION[self.blocks[block]])
                self.blocks[block] = Block.TABLE
        else:
            if self.blocks[block] == Block.ABSENT or (action == Map.SPLIT and self.blocks[block] != Block.TABLE):
                self.blocks[block] = Block.TABLE
                self.fill_table(block, Page.ABSENT)
            bits = self.pages[page] & ~STATE | (Page.DIRTY if writes and logging else 0)
            self.pages[page] = bits | (Page.WRITABLE if writes or not logging else Page.PROTECTED)
        self.note(int(self.env.now), thread, "mapped", page)
        thread.pc += 1
        return int(self.env.now)

    def fill_table(self, block: int, state: Page) -> None:
        """Give every page of a block this state; what is written down about it stays."""
        size = self.job.block_pages
        for p in range(block * size, min((block + 1) * size, self.job.pages)):
            self.pages[p] = self.pages[p] & ~STATE | state

    def scan(self, thread: Thread, cost: int, action: int, word_cost: int, unsplit_cost: int) -> int:
        """Walk the 64 pages of a bitmap word; every entry acted on costs time, and so does a word that has any."""
        word = range(thread.page, thread.page + (1 if action == Scan.CLEAR_PAGE else 64))
        clears = action in (Scan.CLEAR, Scan.CLEAR_PAGE)
        block = thread.page // self.job.block_pages
        mapped = self.blocks[block]
        entries = unsplit = 0
        if action == Scan.PROTECT and mapped != Block.TABLE:
            entries = int(mapped == Block.WRITABLE)
        for p in word:
            bits = self.pages[p]
            if action == Scan.SET:
                self.pages[p] |= Page.DIRTY
            elif action == Scan.ALL:
                thread.bitmap += not bits & Page.COLLECTED
                self.pages[p] |= Page.COLLECTED
            elif action == Scan.COLLECT and bits & Page.DIRTY:
                entries += 1
                thread.bitmap += not bits & Page.COLLECTED
                self.pages[p] = bits | Page.COLLECTED
            elif action == Scan.SEND and bits & Page.COLLECTED:
                entries += 1
                thread.bitmap -= 1
                self.pages[p] = bits & ~Page.COLLECTED
            elif clears and bits & Page.DIRTY and bits & Page.COLLECTED:
                entries += 1
                self.pages[p] = self.protected(bits & ~Page.DIRTY)
            elif action == Scan.PROTECT and mapped == Block.TABLE and bits & STATE == Page.WRITABLE:
                entries += 1
                self.pages[p] = self.protected(bits)
        if (clears or action == Scan.PROTECT) and mapped != Block.TABLE and entries:
            unsplit = entries if clears else 0
            entries = 1  # the block has one entry
            if mapped == Block.WRITABLE:
                self.blocks[block] = Block.PROTECTED
        time = entries * cost + unsplit * unsplit_cost + (word_cost if entries else 0)
        thread.spent[SCAN_ACTIVITY.get(Scan(action), HOLD)] += time
        self.note(int(self.env.now), thread, "scan", entries)
        thread.pc += 1
        return int(self.env.now) + time

    @staticmethod
    def protected(bits: int) -> int:
        """The entry without its permission to write."""
        return bits & ~STATE | Page.PROTECTED if bits & STATE == Page.WRITABLE else bits

    def barrier(self, thread: Thread, which: int, parties: int, _c: int, _d: int) -> int | None:
        """Wait for the others; the last one wakes them and goes on at once."""
        now = int(self.env.now)
        thread.pc += 1
        self.note(now, thread, "barrier", which)
        parked = self.parked[which]
        if len(parked) + 1 < parties:
            parked.append(thread)
            thread.tried = now
            self.starts(-1)
            thread.asleep = True
            self.sleep(thread)
            return None
        self.starts(len(parked))
        for other in parked:
            other.asleep = False
            other.spent[IDLE] += now - other.tried
            self.rouse(other, self.run_ahead(other, now))
        parked.clear()
        return now

    def stamp(self, thread: Thread, which: int, _b: int, _c: int, _d: int) -> int:
        """Write down the time and the lock counters."""
        self.stamp_t[which] = self.clock()
        for index, lock in enumerate(self.locks):
            self.stamp_l[which, index] = [lock.stats[mode][:2] for mode in Mode]
        self.stamp_s[which, :6] = np.sum([t.spent for t in self.threads], axis=0)
        self.stamp_s[which, 6:] = np.sum([t.faults for t in self.threads], axis=0)
        self.stamp_own[which] = [*thread.spent, thread.bitmap]
        self.note(int(self.env.now), thread, "stamp", which)
        thread.pc += 1
        return int(self.env.now)

    def lap(self, thread: Thread, reads: int, flag: int, _c: int, _d: int) -> int:
        """Start the stopwatch, or write down its time."""
        if reads == 1 or (reads == 2 and self.flags[flag]):
            gap = self.clock() - thread.lap_from
            thread.lap_max = max(thread.lap_max, gap)
            thread.laps[lap_bin(gap)] += 1
            self.note(int(self.env.now), thread, "lap", gap)
        thread.lap_from = self.clock()
        thread.pc += 1
        return int(self.env.now)

    def signal(self, thread: Thread, flag: int, _b: int, _c: int, _d: int) -> int:
        """Raise a flag."""
        self.flags[flag] = True
        self.note(int(self.env.now), thread, "signal", flag)
        thread.pc += 1
        return int(self.env.now)

    def unless(self, thread: Thread, target: int, flag: int, _c: int, _d: int) -> int:
        """Jump unless a flag was raised."""
        thread.pc = thread.pc + 1 if self.flags[flag] else target
        return int(self.env.now)

    def past(self, thread: Thread, target: int, time: int, _c: int, _d: int) -> int:
        """Jump once the clock shows that time."""
        thread.pc = target if self.clock() >= time else thread.pc + 1
        return int(self.env.now)

    def quiet(self, thread: Thread, target: int, a: int, least: int, below: int) -> int:
        """Jump if fewer wait for the lock."""
        lock = self.locks[a if a >= 0 else thread.region_lock]
        crowd = [other for other in lock.waiting if below == 0 or other.number < below]
        thread.pc = target if len(crowd) < least else thread.pc + 1
        return int(self.env.now)

    def split(self, thread: Thread, target: int, _b: int, _c: int, _d: int) -> int:
        """Jump unless the current page is mapped by a block."""
        mapped = self.blocks[thread.page // self.job.block_pages] in PERMISSION
        thread.pc = thread.pc + 1 if mapped else target
        return int(self.env.now)

    def kick(self, thread: Thread, time: int, _b: int, _c: int, _d: int) -> int:
        """Interrupt every thread that is awake."""
        for other in self.threads:
            if other is not thread and not other.asleep:
                other.kick = time
        self.note(int(self.env.now), thread, "kick", time)
        thread.pc += 1
        return int(self.env.now)

    def rest(self, thread: Thread, time: int, _b: int, _c: int, _d: int) -> int:
        """Fall asleep: the clock goes on with one thread less."""
        thread.alarm = self.clock() + time
        self.starts(-1)
        thread.pc += 1
        return int(self.env.now)

    def awake(self, thread: Thread, _a: int, _b: int, _c: int, _d: int) -> int:
        """Look at the clock; sleep on for as long as it needs at least, which is when all threads run."""
        now, left = int(self.env.now), thread.alarm - self.clock()
        if left <= 0:
            self.starts(1)
            thread.pc += 1
            return now
        wait = -(-left // (1 if self.job.clock == Clock.WALL else len(self.threads)))
        thread.spent[IDLE] += wait
        return now + wait

    def run(self) -> EngineResult:
        """Let every thread live, and collect what they left."""
        self.live = len(self.threads)
        for thread in self.threads:
            self.env.process(self.live_through(thread))
        horizon = compiled.HORIZON_PS
        while self.env.peek() <= horizon:
            self.env.step()
        if self.live:
            stuck = self.env.peek() == simpy.core.Infinity
            compiled.check_end(
                self.job,
                2 if stuck else 3,
                int(self.env.now),
                0,
                0,
                np.array([t.ended for t in self.threads]),
            )
        compiled.check_end(self.job, 1, 0, self.traced, self.room, np.zeros(0, dtype=np.int64))
        return EngineResult(
            end_ps=max(t.ended for t in self.threads),
            events=self.events,
            lock_stats=np.array([lock.stats for lock in self.locks]),
            wait_histogram=np.array([lock.waits for lock in self.locks]),
            hold_histogram=np.array([lock.holds for lock in self.locks]),
            busy_ps=np.array([lock.busy for lock in self.locks]),
            queue_ps=self.queue,
            thread_ps=np.array([t.spent for t in self.threads]),
            thread_end_ps=np.array([t.ended for t in self.threads]),
            faults=np.array([t.faults for t in self.threads]),
            progress=self.progress,
            bin_ps=1 << self.shift,
            stamp_ps=self.stamp_t,
            stamp_locks=self.stamp_l,
            stamp_sums=self.stamp_s,
            stamp_own=self.stamp_own,
            lap_histogram=np.array([t.laps for t in self.threads]),
            lap_max_ps=np.array([t.lap_max for t in self.threads]),
            trace=np.array(self.trace, dtype=np.int64).reshape(-1, 4),
        )


SHARED_STEPS: dict[Step, Callable[[Simulation, Thread, int, int, int, int], int | None]] = {
    Step.TAKE: Simulation.take,
    Step.DROP: Simulation.drop,
    Step.ACCESS: Simulation.access,
    Step.MAP: Simulation.map,
    Step.SCAN: Simulation.scan,
    Step.BARRIER: Simulation.barrier,
    Step.STAMP: Simulation.stamp,
    Step.LAP: Simulation.lap,
    Step.SIGNAL: Simulation.signal,
    Step.UNLESS: Simulation.unless,
    Step.SLEEP: Simulation.rest,
    Step.WAKE: Simulation.awake,
    Step.PAST: Simulation.past,
    Step.QUIET: Simulation.quiet,
    Step.SPLIT: Simulation.split,
    Step.KICK: Simulation.kick,
}


def run(
    job: Job,
    seed: int = 1,
    *,
    trace: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> EngineResult:
    """Run a job with the reference engine; arguments, result and errors as `simlib.engine.compiled.run`.

    Examples
    --------
    >>> from simlib.engine.compiled import run as fast
    >>> from simlib.model.steps import Program
    >>> p = Program()
    >>> top = p.add(Step.RUN, 2000)
    >>> for step in (p.add(Step.TAKE, 0, 1), p.add(Step.HOLD, 1000), p.add(Step.DROP, 0, 1)): pass
    >>> _ = p.add(Step.REPEAT, top, 10), p.add(Step.END)
    >>> job = Job(np.array(p.rows), np.zeros(2, int), np.zeros((2, 2), int), np.zeros(1, int), 0, 0, 0,
    ...           np.zeros(2, int))
    >>> run(job, trace=1000) == fast(job, trace=1000)
    True
    """
    if len(job.entry) > compiled.MAX_THREADS:
        raise InputError("threads", len(job.entry), f"must be at most {compiled.MAX_THREADS}")
    return Simulation(job, seed, trace, progress).run()
