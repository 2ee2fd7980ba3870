# SPDX-License-Identifier: BSD-3-Clause
"""Steps at which a thread waits: barriers, sleep, and idling until work is due."""

from __future__ import annotations

from simlib.model.steps import Clock
from simlib.simulator.engine.reference.access import Access
from simlib.simulator.engine.reference.interpreter import Interpreter
from simlib.simulator.engine.reference.threads import IDLE, RUN, SimulatedThread


class WaitSteps(Interpreter, Access):
    """Barriers, sleep and idling.

    A step returns the thread's clock, or None if it parks at a barrier or yields its turn.
    """

    def barrier(self, thread: SimulatedThread, index: int, parties: int, *_: int) -> int | None:
        """Wait for the other threads; the last one wakes them and continues at once."""
        now = self.now
        thread.pc += 1
        self.record_event(now, thread, "barrier", index)
        parked = self.parked[index]
        if len(parked) + 1 < parties:
            parked.append(thread)
            thread.tried = now
            self.clock.change_running(-1)
            thread.asleep = True
            return None
        self.clock.change_running(len(parked))
        for other in parked:
            other.asleep = False
            other.spent[IDLE] += now - other.tried
            if self.turns is None:
                self.rouse(other, self.run_ahead(other, now))
        parked.clear()
        return now

    def fall_asleep(self, thread: SimulatedThread, time: int, *_: int) -> int:
        """Fall asleep: the clock continues with one running thread fewer."""
        thread.alarm = self.clock.shown_time() + time
        self.clock.change_running(-1)
        thread.pc += 1
        return self.now

    def wake(self, thread: SimulatedThread, *_: int) -> int | None:
        """Read the clock; before the alarm, sleep until the alarm would be due if all threads ran meanwhile."""
        remaining = thread.alarm - self.clock.shown_time()
        if remaining <= 0:
            if thread.sleeping:
                thread.spent[IDLE] += self.now - thread.tried
            thread.sleeping = False
            self.clock.change_running(1)
            thread.pc += 1
            return self.now
        if self.turns is not None:
            thread.sleeping, thread.tried = True, self.now
            return None
        wait = -(-remaining // (1 if self.job.clock == Clock.WALL else len(self.threads)))
        thread.spent[IDLE] += wait
        return self.now + wait

    def pace(self, thread: SimulatedThread, interval: int, entry: int, *_: int) -> int | None:
        """Idle until the time that is due; a late thread continues at once. This step is retaken until then."""
        shown = self.clock.shown_time()
        if not thread.idle:
            thread.due = shown if thread.due < 0 else thread.due + interval
            self.record_entry(self.now, thread, "pace", thread.number, max(0, thread.due - shown))
            if thread.due <= shown:
                thread.pc += 1
                return self.now
            thread.idle, thread.alarm = 1, thread.due
            if left := self.leave_to_idle(thread, entry):
                return self.now + left
        if thread.idle == 1:
            thread.idle = 2
            self.clock.change_running(-1)
        if thread.alarm <= shown:
            thread.idle = 0
            if thread.alarm > thread.due:
                thread.lap_from = thread.due
                self.read_stopwatch(thread)
        return self.wake(thread)

    def leave_to_idle(self, thread: SimulatedThread, entry: int) -> int:
        """Leave the guest, empty the log buffer, and begin a throttle's pending sleep; returns the time it takes."""
        time = thread.kick + self.empty_buffer(thread) * entry
        thread.kick = 0
        thread.spent[RUN] += time
        if thread.pause:
            self.sleep_idle(thread, thread.pause, time)
            thread.pause = 0
        return time

    def sleep_idle(self, thread: SimulatedThread, pause: int, kick: int = 0) -> None:
        """Let an idle vCPU sleep for a throttle after the time of a kick; it idles until the later of both ends."""
        thread.alarm = max(thread.alarm, self.now + kick + pause)
        self.statistics.counters.throttled_ps[thread.number] += pause
        self.record_event(self.now, thread, "pause", pause)
        self.record_entry(self.now, thread, "pause", kick, pause)
