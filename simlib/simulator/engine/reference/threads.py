# SPDX-License-Identifier: BSD-3-Clause
"""A thread's registers, and what its time is spent on."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from simlib.model.job import Job
from simlib.model.steps import COUNTERS, EXTENTS

RUN, WAIT, HOLD, LINE, BROADCAST, IDLE = range(6)
"""What time is spent on, in the order of `simlib.simulator.engine.result.ACTIVITIES`."""


@dataclass
class SimulatedThread:
    """A thread's registers, and where its time went."""

    number: int
    pc: int
    key: int
    page: int
    begin: list[int]
    end: list[int]
    batch: int
    roused: simpy.Event
    """What it waits for while it sleeps."""
    draws: int = 0
    counters: list[int] = field(default_factory=lambda: [0] * COUNTERS)
    tried: int = 0
    acquired: int = 0
    since: dict[int, int] = field(default_factory=dict)
    """When it got each lock that it has, in that order."""
    seen: int = 0
    mode: int = 0
    spent: list[int] = field(default_factory=lambda: [0] * 6)
    faults: list[int] = field(default_factory=lambda: [0] * 5)
    run: list[int] = field(default_factory=list)
    """Pages of the run that it took out of a dirty ring last."""
    alarm: int = 0
    region_lock: int = 0
    bitmap: int = 0
    came: int = 0
    went: int = 0
    """Pages that came into its bitmap since it judged, and that it sent."""
    judged: int = 0
    high: int = 0
    """When it did so, and how often the guest was found to dirty too much since it was throttled."""
    looked: int = 0
    nap_us: int = 0
    """Entries of its dirty ring at the last look, and for how long it sleeps when that is full, µs."""
    kick: int = 0
    kick_stalls: bool = False
    asleep: bool = False
    spins: bool = False
    """Whether it waits for a lock."""
    rests: bool = False
    """Whether it sleeps until its alarm, where turns have a length."""
    holds: int = 0
    """Locks that it has, and updates without one; but for servers."""
    pause: int = 0
    """For how long it sleeps before its next access, or does so now."""
    interrupted: int = 0
    """1: on its way back from an interrupt; 2: from a sleep."""
    kicked: bool = False
    """Whether its stopwatch runs since a kick."""
    lap_from: int = 0
    lap_max: int = 0
    ended: int = -1
    tick_at: int = 0
    """When a timer interrupts it next."""
    owed: int = 0
    """What time interrupts take of it before it goes on."""

    def can_run(self, now: int) -> bool:
        """Whether a turn is of use to it: it goes on, or looks whether it has the lock."""
        return (self.spins or not self.asleep) and not (self.rests and self.alarm > now)

    @property
    def in_guest(self) -> bool:
        """Whether it is in the guest, or on its way out or in: it has and awaits no lock, and is not interrupted."""
        return not (self.asleep or self.holds or self.interrupted)


def first_state(job: Job, number: int, key: int, roused: simpy.Event) -> SimulatedThread:
    """A thread before its first step."""
    first, last = (int(page) for page in job.region[number])
    rest = [0] * (EXTENTS - 1)
    return SimulatedThread(
        number, int(job.entry[number]), key, first, [first, *rest], [last, *rest], job.first_batch, roused
    )
