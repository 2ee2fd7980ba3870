# SPDX-License-Identifier: BSD-3-Clause
"""The turns of an emulator's one processor: whose turn it is, and until when.

As QEMU's single-threaded TCG gives them with the lab's plugin (``simlib/lab/slices.c``): round and round, a turn ends
after a random number of instructions, and who gives the rest of a turn away hands it to the next one.
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
        self.last, self.end, self.vain = threads[-1], 0, 0
        self.whose: SimulatedThread | None = None
        self.look, self.chance = job.look_ps, chance
        self.tick, self.work, self.table = job.tick_ps, job.tick_work_ps, job.tick_table
        for thread in threads:
            thread.tick_at = first_tick(self.key, job.tick_ps)

    def spend(self, thread: SimulatedThread, time: int) -> Generator[simpy.Event, None, None]:
        """The thread's own time passes in its turns."""
        while thread is not self.whose or time > self.end - self.env.now:
            if thread is self.whose:
                time -= self.end - self.env.now
                yield Wake(self.env, thread.number, self.end - self.env.now)
                self.pass_on()
            yield from self.wait(thread)
        yield Wake(self.env, thread.number, time)

    def wait(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """Until it is the thread's turn again, and what interrupted it is over."""
        while thread is not self.whose:
            thread.roused = self.env.event()
            yield thread.roused
        if thread.owed:
            time, thread.owed = thread.owed, 0
            yield from self.spend(thread, time)

    def give_away(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """It cannot go on: the next one has the rest of the turn, unless it is spun away."""
        if thread.spins:
            left = max(0, self.end - self.env.now)
            yield Wake(self.env, thread.number, min(self.look, left) if self.yields else left)
        self.pass_on(self.vain + 1 if thread.spins else 0)
        yield from self.wait(thread)

    def pass_on(self, vain: int = 0) -> None:
        """The next one's turn: of those that can go on, or look whether they can. Nobody looks in vain for ever."""
        count, now = len(self.threads), int(self.env.now)
        self.vain, self.whose = vain, None
        in_order = [self.threads[(self.last.number + i) % count] for i in range(1, count + 1)]
        ready = [thread for thread in in_order if thread.can_run(now) and not (thread.spins and self.vain > count)]
        if ready:
            self.begin(ready[0])
            return
        sleepers = [thread for thread in in_order if thread.rests]
        if sleepers:
            first = min(sleepers, key=lambda thread: thread.alarm)
            self.end += first.alarm - now  # nobody runs meanwhile
            Wake(self.env, first.number, first.alarm - now).callbacks.append(lambda _: self.begin(first))

    def begin(self, thread: SimulatedThread) -> None:
        """It is this thread's turn; where the last turn is over, another one begins."""
        if self.env.now >= self.end:
            bits = draw(self.key, self.draws) >> (64 - TURN_BITS)
            self.end = int(self.env.now) + max(1, self.mean // 2 + (bits * self.mean >> TURN_BITS))
            self.draws += 1
        late = int(self.env.now) - thread.tick_at
        if self.tick and late >= 0:
            thread.owed += self.chance.duration(thread, self.work, self.table)
            thread.tick_at += (late // self.tick + 1) * self.tick
        if not thread.spins:
            self.vain = 0
        self.whose = self.last = thread
        if not thread.roused.triggered:
            thread.roused.succeed()
