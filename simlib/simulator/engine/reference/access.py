# SPDX-License-Identifier: BSD-3-Clause
"""Steps by which the guest, hardware and KVM access memory and its dirty log."""

from __future__ import annotations

from simlib.model.pagetable import WORD_PAGES
from simlib.model.steps import Map, Scan
from simlib.simulator.engine.reference.memory import LOGGED
from simlib.simulator.engine.reference.threads import HOLD, IDLE, RUN, SimulatedThread
from simlib.simulator.engine.reference.world import World
from simlib.simulator.engine.result import lap_bin

KICKED, SLEPT = 1, 2
"""Values of a thread's `interrupted`."""


class Access(World):
    """Steps that touch memory: each returns the thread's clock."""

    def access(self, thread: SimulatedThread, *faults: int) -> int:
        """Access the current page: a hit continues, a fault jumps to its handler. An interrupt comes first."""
        if (thread.kick and not thread.interrupted) or (thread.pause and thread.interrupted != SLEPT):
            return self.interrupt(thread)
        if thread.interrupted == SLEPT:
            thread.pause = 0
        thread.interrupted = 0
        fault, time = self.memory.fault(thread.page), 0
        if self.logs.must_leave_guest(thread.number, fault == LOGGED):
            self.record_event(self.now, thread, "leave", thread.page)
            thread.pc = faults[-1]
        elif fault is None or fault == LOGGED:
            thread.pc += 1
            if thread.kicked:
                self.read_stopwatch(thread)
            if fault == LOGGED:
                time = self.job.dirty_set_ps
                thread.faults[LOGGED] += 1
                thread.spent[RUN] += time
                self.logs.log_write(thread.number, thread.page)
            if self.memory.is_written(thread.page):
                self.record_entry(self.now, thread, "write", thread.page, 2 * (fault == LOGGED))
        else:
            thread.faults[fault] += 1
            self.record_event(self.now, thread, "fault", fault)
            thread.pc = faults[fault]
        return self.now + time

    def interrupt(self, thread: SimulatedThread) -> int:
        """Make the vCPU leave the guest for a kick, for a sleep, or for both, and enter it again."""
        kick, thread.kick = thread.kick, 0
        if thread.pause:
            kick += self.empty_buffer(thread) * self.pause_entry
        thread.interrupted = SLEPT if thread.pause else KICKED
        thread.spent[RUN] += kick
        thread.spent[IDLE] += thread.pause
        self.statistics.counters.throttled_ps[thread.number] += thread.pause
        if thread.pause or thread.kick_stalls:
            thread.kicked, thread.lap_from = True, self.clock.shown_time()
        if thread.pause:
            self.record_event(self.now, thread, "pause", thread.pause)
            self.record_entry(self.now, thread, "pause", kick, thread.pause)
        return self.now + kick + thread.pause

    def map(self, thread: SimulatedThread, action: int, logging: int, *_: int) -> int:
        """Change the entry of the current page."""
        if self.memory.map(thread.page, Map(action), bool(logging)):
            self.logs.mark_dirty(thread.number, thread.page, self.now)
        if self.memory.is_written(thread.page) and action <= Map.BLOCK:
            self.record_entry(self.now, thread, "write", thread.page, 1)
        return self.finish_step(thread, "mapped", thread.page)

    def scan(self, thread: SimulatedThread, action: int, cost: int, word_cost: int, unsplit_cost: int, _e: int) -> int:
        """Scan the 64 pages of a bitmap word; each matching entry takes time, and so does each word that has one."""
        word = range(thread.page, thread.page + WORD_PAGES)
        scanned = self.memory.scan(thread.run if action == Scan.PROTECT_RUN else list(word), Scan(action))
        time = scanned.entries * cost + scanned.unsplit * unsplit_cost + (word_cost if scanned.entries else 0)
        thread.bitmap += scanned.added
        activity = HOLD
        if action in (Scan.COLLECT, Scan.TAKE):
            activity = RUN
            thread.newly_dirty += scanned.added
        elif action == Scan.SEND:
            activity = IDLE
            thread.pages_sent += scanned.pages
        thread.spent[activity] += time
        self.record_entry(self.now, thread, Scan(action).name.lower(), thread.page, scanned.pages)
        return self.finish_step(thread, "scan", scanned.entries, time)

    def read_stopwatch(self, thread: SimulatedThread) -> None:
        """Record the time since the last reading of the stopwatch, and restart it."""
        gap = self.clock.shown_time() - thread.lap_from
        thread.lap_max = max(thread.lap_max, gap)
        self.statistics.counters.lap_histogram[lap_bin(gap)] += 1
        self.record_event(self.now, thread, "lap", gap)
        thread.kicked, thread.lap_from = False, self.clock.shown_time()

    def empty_buffer(self, thread: SimulatedThread) -> int:
        """Empty a thread's log buffer; returns the number of its pages."""
        entries = self.logs.drain(thread.number, self.now)
        if entries:
            self.record_entry(self.now, thread, "drain", thread.number, entries)
        return entries

    def log(self, thread: SimulatedThread, target: int, *_: int) -> int:
        """Append the current page to the thread's log buffer."""
        if self.logs.buffer_is_full(thread.number):
            thread.pc = target
        else:
            self.logs.buffers[thread.number].append(thread.page)
            thread.pc += 1
        return self.now

    def drain(self, thread: SimulatedThread, entry: int, *_: int) -> int:
        """Empty the thread's own log buffer."""
        return self.log_maintenance(thread, "drain", self.empty_buffer(thread), entry)

    def harvest(self, thread: SimulatedThread, entry: int, *_: int) -> int:
        """Set the dirty bits of the new entries of all dirty rings."""
        entries = 0
        for owner in range(len(self.threads)):
            if new := self.logs.harvest(owner):
                self.record_entry(self.now, thread, "harvest", owner, new)
                entries += new
        return self.log_maintenance(thread, "harvest", entries, entry)

    def reset(self, thread: SimulatedThread, target: int, entry: int, *_: int) -> int:
        """Take the next run of harvested entries out of a ring."""
        taken = self.logs.take_run()
        if taken is None:
            thread.pc = target
            return self.now
        owner, entries, thread.run = taken
        self.record_entry(self.now, thread, "reset", owner, entries)
        return self.log_maintenance(thread, "reset", entries, entry)

    def log_maintenance(self, thread: SimulatedThread, kind: str, entries: int, entry_ps: int) -> int:
        """Record a step on `entries` entries of a log, each of which takes time."""
        thread.spent[RUN] += entries * entry_ps
        return self.finish_step(thread, kind, entries, entries * entry_ps)
