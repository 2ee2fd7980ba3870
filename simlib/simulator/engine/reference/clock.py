# SPDX-License-Identifier: BSD-3-Clause
"""Clocks and random draws: the duration of a step, and the page that the guest touches."""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.steps import Clock
from simlib.simulator.engine import limits
from simlib.simulator.engine.random import (
    FIXED_POINT_BITS,
    SCATTER,
    SEEK_BITS,
    TABLE_BITS,
    WITHIN_BITS,
    draw,
    seek_tables,
    tables,
)
from simlib.simulator.engine.reference.calendar import Calendar
from simlib.simulator.engine.reference.threads import SimulatedThread


class ShownClock:
    """The clock that threads read: the world's time, or that of the processor on which all threads take turns."""

    def __init__(self, job: Job, env: Calendar) -> None:
        self.env, self.fluid = env, job.clock != Clock.WALL and not job.turn_ps
        self.base = self.since = 0
        self.running = len(job.entry) if self.fluid else 1

    def shown_time(self) -> int:
        """Time that the clock shows."""
        return self.base + max(1, self.running) * (int(self.env.now) - self.since)

    def change_running(self, threads: int) -> None:
        """Change the number of running threads by `threads`, which may be negative."""
        if self.fluid:
            self.base, self.since = self.shown_time(), int(self.env.now)
            self.running += threads


class Chance:
    """The random draws of all threads, with a separate stream for each thread."""

    def __init__(self, job: Job) -> None:
        self.times = tables(job.cvs)
        self.places = seek_tables(job.places, limits.vcpu_pages(job))
        limits.check_times(job, self.times)

    def bits(self, thread: SimulatedThread) -> int:
        """Next 64 random bits of the thread."""
        thread.draws += 1
        return draw(thread.key, thread.draws - 1)

    def duration(self, thread: SimulatedThread, mean: int, table: int) -> int:
        """Draw a duration: the mean, or the mean times a random entry of a quantile table."""
        if table == 0:
            return mean
        return (mean * int(self.times[table, self.bits(thread) >> (64 - TABLE_BITS)])) >> FIXED_POINT_BITS

    def page(self, thread: SimulatedThread, multiple: int, table: int) -> int:
        """Random page of the thread's region."""
        first, places = thread.begin[0], (thread.end[0] - thread.begin[0]) // multiple
        bits = self.bits(thread)
        number = bits >> (64 - SEEK_BITS)
        within = bits >> (64 - SEEK_BITS - WITHIN_BITS) & ((1 << WITHIN_BITS) - 1)
        low, high = (int(self.places[table, number + i]) for i in (0, 1))
        rank = min((low + ((high - low) * within >> WITHIN_BITS)) * places >> 32, places - 1)
        return first + (rank * SCATTER % places if self.places[table, -1] else rank) * multiple
