# SPDX-License-Identifier: BSD-3-Clause
"""What the guest, hardware and KVM do to memory and to what is written down of it."""

from __future__ import annotations

from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import Map, Scan
from simlib.simulator.engine.reference.memory import LOGGED
from simlib.simulator.engine.reference.threads import HOLD, IDLE, RUN, SimulatedThread
from simlib.simulator.engine.reference.world import World
from simlib.simulator.engine.result import lap_bin

KICKED, SLEPT = 1, 2
"""Values of a thread's `interrupted`."""

SCAN_ACTIVITY = {Scan.COLLECT: RUN, Scan.TAKE: RUN, Scan.SEND: IDLE}
"""Of scans that take no lock; the others are HOLD."""


class Access(World):
    """Steps that touch memory: each returns the thread's clock."""

    def access(self, thread: SimulatedThread, *faults: int) -> int:
        """The guest touches its page: a hit goes on, a fault jumps. One that is interrupted is made afterwards."""
        if (thread.kick and not thread.interrupted) or (thread.pause and thread.interrupted != SLEPT):
            return self.interrupt(thread)
        if thread.interrupted == SLEPT:
            thread.pause = 0
        thread.interrupted = 0
        fault, time = self.memory.fault(thread.page), 0
        if self.logs.leaves(thread.number, fault == LOGGED):
            self.note(self.now, thread, "leave", thread.page)
            thread.pc = faults[-1]
        elif fault is None or fault == LOGGED:
            thread.pc += 1
            if thread.kicked:
                self.read_stopwatch(thread)
            if fault == LOGGED:
                time = self.job.dirty_set_ps
                thread.faults[LOGGED] += 1
                thread.spent[RUN] += time
                self.logs.write(thread.number, thread.page)
            if self.memory.writes(thread.page):
                self.books.enter(self.now, thread, "write", thread.page, 2 * (fault == LOGGED))
        else:
            thread.faults[fault] += 1
            self.note(self.now, thread, "fault", fault)
            thread.pc = faults[fault]
        return self.now + time

    def interrupt(self, thread: SimulatedThread) -> int:
        """The vCPU leaves the guest for a kick, for a sleep, or for both, and enters it again."""
        kick, thread.kick = thread.kick, 0
        if thread.pause:
            kick += self.empty_buffer(thread) * self.pause_entry
        thread.interrupted = SLEPT if thread.pause else KICKED
        thread.spent[RUN] += kick
        thread.spent[IDLE] += thread.pause
        if thread.pause or thread.kick_stalls:
            thread.kicked, thread.lap_from = True, self.clock()
        if thread.pause:
            self.note(self.now, thread, "pause", thread.pause)
            self.books.enter(self.now, thread, "pause", kick, thread.pause)
        return self.now + kick + thread.pause

    def map(self, thread: SimulatedThread, action: int, logging: int, *_: int) -> int:
        """Change the entry of the current page."""
        if self.memory.map(thread.page, Map(action), bool(logging)):
            self.logs.mark(thread.number, thread.page, self.now)
        if self.memory.writes(thread.page) and action <= Map.BLOCK:
            self.books.enter(self.now, thread, "write", thread.page, 1)
        self.note(self.now, thread, "mapped", thread.page)
        thread.pc += 1
        return self.now

    def scan(self, thread: SimulatedThread, action: int, cost: int, word_cost: int, unsplit_cost: int, _e: int) -> int:
        """Walk the 64 pages of a bitmap word; every entry acted on costs time, and so does a word that has any."""
        word = range(thread.page, thread.page + WORD_PAGES)
        found = self.memory.scan(thread.run if action == Scan.PROTECT_RUN else list(word), Scan(action))
        time = found.entries * cost + found.unsplit * unsplit_cost + (word_cost if found.entries else 0)
        thread.bitmap += found.more
        if action in (Scan.COLLECT, Scan.TAKE):
            thread.came += found.more
        elif action == Scan.SEND:
            thread.went += found.pages
        thread.spent[SCAN_ACTIVITY.get(Scan(action), HOLD)] += time
        self.note(self.now, thread, "scan", found.entries)
        self.books.enter(self.now, thread, Scan(action).name.lower(), thread.page, found.pages)
        thread.pc += 1
        return self.now + time

    def read_stopwatch(self, thread: SimulatedThread) -> None:
        """Write down the time since the stopwatch was last looked at, and go on."""
        gap = self.clock() - thread.lap_from
        thread.lap_max = max(thread.lap_max, gap)
        self.books.laps[lap_bin(gap)] += 1
        self.note(self.now, thread, "lap", gap)
        thread.kicked, thread.lap_from = False, self.clock()

    def empty_buffer(self, thread: SimulatedThread) -> int:
        """Empty a thread's log buffer; returns how many pages it had."""
        entries = self.logs.drain(thread.number, self.now)
        if entries:
            self.books.enter(self.now, thread, "drain", thread.number, entries)
        return entries

    def log(self, thread: SimulatedThread, target: int, *_: int) -> int:
        """Put the current page into the thread's log buffer."""
        if self.logs.full(thread.number):
            thread.pc = target
        else:
            self.logs.buffers[thread.number].append(thread.page)
            thread.pc += 1
        return self.now

    def drain(self, thread: SimulatedThread, entry: int, *_: int) -> int:
        """The thread's own buffer."""
        entries = self.empty_buffer(thread)
        return self.log_maintenance(thread, "drain", entries, entry)

    def harvest(self, thread: SimulatedThread, entry: int, *_: int) -> int:
        """Set the dirty bits of what is new in all dirty rings."""
        entries = 0
        for owner in range(len(self.threads)):
            if found := self.logs.harvest(owner):
                self.books.enter(self.now, thread, "harvest", owner, found)
                entries += found
        return self.log_maintenance(thread, "harvest", entries, entry)

    def reset(self, thread: SimulatedThread, target: int, entry: int, *_: int) -> int:
        """Take the next run of harvested entries out of a ring."""
        taken = self.logs.take_run()
        if taken is None:
            thread.pc = target
            return self.now
        self.books.enter(self.now, thread, "reset", taken.owner, taken.entries)
        thread.run = [taken.first + i for i in range(WORD_PAGES) if taken.mask >> i & 1]
        return self.log_maintenance(thread, "reset", taken.entries, entry)

    def log_maintenance(self, thread: SimulatedThread, what: str, entries: int, each: int) -> int:
        """Entries of a log were dealt with, each of which takes time."""
        thread.spent[RUN] += entries * each
        self.note(self.now, thread, what, entries)
        thread.pc += 1
        return self.now + entries * each
