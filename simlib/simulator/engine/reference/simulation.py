# SPDX-License-Identifier: BSD-3-Clause
"""One run of a job: the life of its threads, and its result."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import simpy

from simlib.model.steps import Quantity, Step
from simlib.simulator.engine import limits
from simlib.simulator.engine.reference.access import Access
from simlib.simulator.engine.reference.locking import LockSteps
from simlib.simulator.engine.reference.threads import SimulatedThread
from simlib.simulator.engine.reference.throttling import ThrottleSteps
from simlib.simulator.engine.result import EngineResult


class Simulation(LockSteps, ThrottleSteps, Access):
    """One run of a job."""

    def live_through(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """Run a thread: private steps advance its own clock; a shared step waits for the world's time to reach it."""
        yield from self.spend(thread, 0)
        clock, private_steps = self.now, 0
        while True:
            if clock > self.ends_at():
                yield from self.spend(thread, clock - self.now)
                clock, private_steps = self.now, 0
            step, *arguments = self.steps[thread.pc]
            private_steps += 1
            if private_steps > limits.MAX_PRIVATE_STEPS:
                raise limits.runaway(self.now)
            if not (step.shared or (step is Step.TEST and Quantity(arguments[1]).shared)):
                clock = self.private_step(thread, clock, step, *arguments)
                continue
            if clock > self.now:
                yield from self.spend(thread, clock - self.now)
                clock, private_steps = self.now, 0
            self.events += 1
            if self.report is not None and self.events % 5_000 == 0:
                self.report(self.events, self.now)
            if step is Step.END:
                thread.ended, thread.asleep = self.now, True
                self.live_threads -= 1
                self.clock.change_running(-1)
                self.record_event(self.now, thread, "end", 0)
                if self.turns is not None:
                    self.turns.next_turn()
                return
            done = SHARED_STEPS[step](self, thread, *arguments)
            if done is None:  # asleep, until a lock or a barrier wakes it
                thread.roused = self.env.event()
                yield from self.sleep(thread)
                clock, private_steps = self.now, 0
            else:
                clock = done

    def stamp(self, thread: SimulatedThread, index: int, *_: int) -> int:
        """Record the time and all counters."""
        self.statistics.counters.stamp_ps[index] = self.clock.shown_time()
        self.statistics.stamp(index, self.now, thread, self.threads, self.locks)
        return self.finish_step(thread, "stamp", index)

    def lap(self, thread: SimulatedThread, reads: int, *_: int) -> int:
        """Start the stopwatch, or record its time; the lap of a fault begins with the kick before it."""
        if reads > 1 and not thread.kicked:
            pass
        elif reads:
            self.read_stopwatch(thread)
        elif thread.kicked:
            thread.kicked = False
        else:
            thread.lap_from = self.clock.shown_time()
        thread.pc += 1
        return self.now

    def signal(self, thread: SimulatedThread, flag: int, *_: int) -> int:
        """Raise a flag."""
        self.flags[flag] = True
        return self.finish_step(thread, "signal", flag)

    def kick(self, thread: SimulatedThread, mean: int, stalls: int, table: int, entry: int, _e: int) -> int:
        """Interrupt every other vCPU in the guest for a drawn time and the time to empty its log buffer."""
        time = self.chance.duration(thread, mean, table)
        for other in self.threads[: self.job.vcpus]:
            if other is not thread and other.in_guest:
                other.kick, other.kick_stalls = time + self.empty_buffer(other) * entry, bool(stalls)
        return self.finish_step(thread, "kick", time)

    def run(self) -> EngineResult:
        """Run all threads and collect the result."""
        self.live_threads = len(self.threads)
        for thread in self.threads:
            self.env.process(self.live_through(thread))
        if self.turns is not None:
            self.turns.next_turn()
        while self.env.peek() <= limits.HORIZON_PS:
            self.env.step()
        if self.live_threads:
            deadlocked = self.env.peek() == simpy.core.Infinity
            ended = np.array([t.ended for t in self.threads])
            raise limits.deadlock(self.job, self.now, ended) if deadlocked else limits.past_horizon()
        counters, trace, ledger = self.statistics.counters, self.statistics.trace, self.statistics.ledger
        limits.check_room("trace events", len(trace), self.statistics.room["trace"])
        limits.check_room("ledger entries", len(ledger), self.statistics.room["ledger"])
        trace_rows, ledger_rows = (np.array(rows, dtype=np.int64).reshape(-1, 5) for rows in (trace, ledger))
        return EngineResult(
            end_ps=max(t.ended for t in self.threads),
            events=self.events,
            lock_stats=np.array([lock.stats for lock in self.locks]),
            wait_histogram=np.array([lock.waits for lock in self.locks]),
            hold_histogram=np.array([lock.holds for lock in self.locks]),
            busy_ps=np.array([lock.busy for lock in self.locks]),
            thread_ps=np.array([t.spent for t in self.threads]),
            thread_end_ps=np.array([t.ended for t in self.threads]),
            faults=np.array([t.faults for t in self.threads]),
            bin_ps=1 << self.statistics.shift,
            lap_max_ps=np.array([t.lap_max for t in self.threads]),
            throttle=self.throttle,
            **counters._replace(trace=trace_rows, ledger=ledger_rows)._asdict(),
        )


_NAMES = {Step.SLEEP: "fall_asleep", Step.THROTTLE: "throttle_vcpus"}
SHARED_STEPS: dict[Step, Callable[..., int | None]] = {
    step: getattr(Simulation, _NAMES.get(step, step.name.lower()))
    for step in Step
    if step is Step.TEST or (step.shared and step is not Step.END)
}
"""Method of each shared step; all but two methods have the name of the step."""
