# SPDX-License-Identifier: BSD-3-Clause
"""Steps at which a thread waits: barriers and sleep."""

from __future__ import annotations

from simlib.model.steps import Clock
from simlib.simulator.engine.reference.interpreter import Interpreter
from simlib.simulator.engine.reference.threads import IDLE, SimulatedThread


class WaitSteps(Interpreter):
    """Barriers and sleep: a step returns the thread's clock, or None if it parks at a barrier or yields its turn."""

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
