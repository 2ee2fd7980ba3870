# SPDX-License-Identifier: BSD-3-Clause
"""The turns of an emulator's one processor: whose turn it is, and until when.

As QEMU's single-threaded TCG gives them with the lab's plugin (``simlib/lab/slices.c``): round and round, a turn ends
after a random number of instructions, and who gives the rest of a turn away hands it to the next one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy

from simlib.engine.random import TURN_BITS, draw, thread_keys
from simlib.engine.reference.calendar import Calendar, Wake
from simlib.engine.reference.threads import Thread
from simlib.model.job import Job
from simlib.model.steps import Clock


class Turns:
    """Gives the processor to one thread after another."""

    def __init__(self, job: Job, seed: int, env: Calendar, threads: Sequence[Thread]) -> None:
        self.mean, self.yields = job.turn_ps, job.clock == Clock.SERIAL_YIELD
        self.env, self.threads = env, threads
        self.key, self.draws = int(thread_keys(seed, len(threads) + 1)[-1]), 0
        self.last, self.end, self.vain = threads[-1], 0, 0
        self.whose: Thread | None = None

    def spend(self, thread: Thread, time: int) -> Generator[simpy.Event, None, None]:
        """The thread's own time passes in its turns."""
        while thread is not self.whose or time > self.end - self.env.now:
            if thread is self.whose:
                time -= self.end - self.env.now
                yield Wake(self.env, thread.number, self.end - self.env.now)
                self.pass_on()
            yield from self.wait(thread)
        yield Wake(self.env, thread.number, time)

    def wait(self, thread: Thread) -> Generator[simpy.Event, None, None]:
        """Until it is the thread's turn again."""
        while thread is not self.whose:
            thread.roused = self.env.event()
            yield thread.roused

    def give_away(self, thread: Thread) -> Generator[simpy.Event, None, None]:
        """It cannot go on: the next one has the rest of the turn, unless it is spun away."""
        if thread.spins and not self.yields:
            yield Wake(self.env, thread.number, max(0, self.end - self.env.now))
        self.pass_on()
        yield from self.wait(thread)

    def pass_on(self) -> None:
        """The next one's turn: of those that can go on, or look whether they can. Nobody looks in vain for ever."""
        count, now = len(self.threads), int(self.env.now)
        self.vain = self.vain + 1 if self.last.spins else 0
        self.whose = None
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

    def begin(self, thread: Thread) -> None:
        """It is this thread's turn; where the last turn is over, another one begins."""
        if self.env.now >= self.end:
            bits = draw(self.key, self.draws) >> (64 - TURN_BITS)
            self.end = int(self.env.now) + max(1, self.mean // 2 + (bits * self.mean >> TURN_BITS))
            self.draws += 1
        if not thread.spins:
            self.vain = 0
        self.whose = self.last = thread
        if not thread.roused.triggered:
            thread.roused.succeed()
