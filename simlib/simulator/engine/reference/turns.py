# SPDX-License-Identifier: BSD-3-Clause
"""Turns on an emulator's single processor: which thread runs, and until when.

They follow QEMU's single-threaded TCG with the lab's plugin (``simlib/lab/slices.c``): threads run round robin, a turn
ends after a random number of instructions, and a thread that gives up the remainder of a turn passes it to the next.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy

from simlib.model.job import Job
from simlib.model.steps import Clock
from simlib.simulator.engine.random import TURN_BITS, draw, first_tick, thread_keys
from simlib.simulator.engine.reference.calendar import Calendar, Wake
from simlib.simulator.engine.reference.clock import Chance
from simlib.simulator.engine.reference.threads import SimulatedThread


class Turns:
    """Gives the processor to one thread after another."""

    def __init__(self, job: Job, seed: int, env: Calendar, threads: Sequence[SimulatedThread], chance: Chance) -> None:
        self.mean, self.yields = job.turn_ps, job.clock == Clock.SERIAL_YIELD
        self.env, self.threads = env, threads
        self.key, self.draws = int(thread_keys(seed, len(threads) + 1)[-1]), 0
        self.last, self.end, self.failed_polls = threads[-1], 0, 0
        self.running: SimulatedThread | None = None
        self.poll_ps, self.chance = job.poll_ps, chance
        self.tick, self.work, self.table = job.tick_ps, job.tick_work_ps, job.tick_table
        for thread in threads:
            thread.tick_at = first_tick(self.key, job.tick_ps)

    def spend(self, thread: SimulatedThread, time: int) -> Generator[simpy.Event, None, None]:
        """Let the thread's own time pass in its turns."""
        while thread is not self.running or time > self.end - self.env.now:
            if thread is self.running:
                time -= self.end - self.env.now
                yield Wake(self.env, thread.number, self.end - self.env.now)
                self.next_turn()
            yield from self.wait(thread)
        yield Wake(self.env, thread.number, time)

    def wait(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """Wait until it is the thread's turn again and its interrupts are over."""
        while thread is not self.running:
            thread.roused = self.env.event()
            yield thread.roused
        if thread.owed:
            time, thread.owed = thread.owed, 0
            yield from self.spend(thread, time)

    def yield_turn(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """Give up a turn: the next thread gets the remainder, unless this thread spins until the turn ends."""
        if thread.spins:
            remaining = max(0, self.end - self.env.now)
            yield Wake(self.env, thread.number, min(self.poll_ps, remaining) if self.yields else remaining)
        self.next_turn(self.failed_polls + 1 if thread.spins else 0)
        yield from self.wait(thread)

    def next_turn(self, failed_polls: int = 0) -> None:
        """Give the turn to the next thread that can continue or, if progress is possible, poll a lock."""
        count, now = len(self.threads), int(self.env.now)
        self.failed_polls, self.running = failed_polls, None
        in_order = [self.threads[(self.last.number + i) % count] for i in range(1, count + 1)]
        ready = [thread for thread in in_order if thread.can_run(now) and not (thread.spins and failed_polls > count)]
        if ready:
            self.begin_turn(ready[0])
            return
        sleepers = [thread for thread in in_order if thread.sleeping]
        if sleepers:
            first = min(sleepers, key=lambda thread: thread.alarm)
            self.end += first.alarm - now  # no thread runs meanwhile
            Wake(self.env, first.number, first.alarm - now).callbacks.append(lambda _: self.begin_turn(first))

    def begin_turn(self, thread: SimulatedThread) -> None:
        """Begin a thread's turn; if the time slice is over, draw a new one."""
        if self.env.now >= self.end:
            bits = draw(self.key, self.draws) >> (64 - TURN_BITS)
            self.end = int(self.env.now) + max(1, self.mean // 2 + (bits * self.mean >> TURN_BITS))
            self.draws += 1
        late = int(self.env.now) - thread.tick_at
        if self.tick and late >= 0:
            thread.owed += self.chance.duration(thread, self.work, self.table)
            thread.tick_at += (late // self.tick + 1) * self.tick
        if not thread.spins:
            self.failed_polls = 0
        self.running = self.last = thread
        if not thread.roused.triggered:
            thread.roused.succeed()
