# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a run, and the passing of time: each thread has a processor, or all threads take turns on one."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.steps import FLAGS, Step
from simlib.model.throttle import QEMU
from simlib.simulator.engine import limits
from simlib.simulator.engine.random import thread_keys
from simlib.simulator.engine.reference.calendar import Calendar, Wake
from simlib.simulator.engine.reference.clock import Chance, ShownClock
from simlib.simulator.engine.reference.locks import DISCIPLINES, CacheLine
from simlib.simulator.engine.reference.logs import Logs
from simlib.simulator.engine.reference.memory import Memory
from simlib.simulator.engine.reference.statistics import Statistics
from simlib.simulator.engine.reference.threads import SimulatedThread, initial_thread
from simlib.simulator.engine.reference.turns import Turns
from simlib.simulator.engine.result import Progress


class World:
    """The global state of a run, and the passing of its time."""

    def __init__(self, job: Job, seed: int, trace: int, ledger: int, progress: Progress | None) -> None:
        limits.check_size(job)
        self.job, self.report = job, progress
        self.env = Calendar(initial_time=0)
        self.steps = [(Step(kind), *arguments) for kind, *arguments in job.steps.tolist()]
        self.clock, self.chance = ShownClock(job, self.env), Chance(job)
        keys = thread_keys(seed, len(job.entry))
        self.threads = [initial_thread(job, i, int(keys[i]), self.env.event()) for i in range(len(job.entry))]
        self.locks = [DISCIPLINES[Discipline(kind)](CacheLine(job)) for kind in job.locks]
        self.lines = [CacheLine(job) for _ in range(job.lines)]
        self.memory = Memory(job)
        self.logs = Logs(job, self.memory)
        self.parked: list[list[SimulatedThread]] = [[] for _ in range(job.barriers)]
        self.statistics = Statistics(job, trace, ledger)
        self.record_event, self.record_entry = self.statistics.record_event, self.statistics.record_entry
        self.flags = [False] * FLAGS
        self.turns = Turns(job, seed, self.env, self.threads, self.chance) if job.turn_ps else None
        self.throttle = self.fastest = self.pause_entry = 0
        self.rule = job.throttle or QEMU  # used only by steps of a job with a throttle
        self.events = self.live_threads = 0

    @property
    def now(self) -> int:
        """The world's time."""
        return int(self.env.now)

    def spend(self, thread: SimulatedThread, time: int) -> Generator[simpy.Event, None, None]:
        """Let the thread's own time pass."""
        if self.turns is not None:
            yield from self.turns.spend(thread, time)
        else:
            yield Wake(self.env, thread.number, time)

    def sleep(self, thread: SimulatedThread) -> Generator[simpy.Event, None, None]:
        """Sleep until another thread calls `rouse`, or until it is the thread's turn to poll again."""
        if self.turns is not None:
            yield from self.turns.yield_turn(thread)
        else:
            yield thread.roused

    def rouse(self, thread: SimulatedThread, at: int) -> None:
        """Wake a sleeping thread at time `at`; at equal times the thread with the lower number comes first."""
        event = thread.roused
        Wake(self.env, thread.number, at - self.now).callbacks.append(lambda _: event.succeed())

    def finish_step(self, thread: SimulatedThread, kind: str, argument: int, time: int = 0) -> int:
        """Record an event, and continue with the next step; returns the thread's clock, `time` from now."""
        self.record_event(self.now, thread, kind, argument)
        thread.pc += 1
        return self.now + time

    def ends_at(self) -> int:
        """Time up to which a thread may advance its own clock, whatever other threads do."""
        return self.turns.end if self.turns is not None else limits.HORIZON_PS
