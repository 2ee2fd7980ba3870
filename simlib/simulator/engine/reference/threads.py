# SPDX-License-Identifier: BSD-3-Clause
"""A thread's registers, and the activities on which it spends time."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from simlib.model.job import Job
from simlib.model.steps import COUNTERS, EXTENTS

RUN, WAIT, HOLD, LINE, BROADCAST, IDLE = range(6)
"""Activities, in the order of `simlib.simulator.engine.result.ACTIVITIES`."""


@dataclass
class SimulatedThread:
    """A thread's registers, and its time by activity."""

    number: int
    pc: int
    key: int
    page: int
    begin: list[int]
    end: list[int]
    batch: int
    roused: simpy.Event
    """Event that wakes the thread while it sleeps."""
    draws: int = 0
    counters: list[int] = field(default_factory=lambda: [0] * COUNTERS)
    tried: int = 0
    acquired: int = 0
    since: dict[int, int] = field(default_factory=dict)
    """Time at which it acquired each lock that it holds, in the order of acquisition."""
    version_read: int = 0
    mode: int = 0
    spent: list[int] = field(default_factory=lambda: [0] * 6)
    faults: list[int] = field(default_factory=lambda: [0] * 5)
    run: list[int] = field(default_factory=list)
    """Pages of the run that it last took out of a dirty ring."""
    alarm: int = 0
    region_lock: int = 0
    bitmap: int = 0
    newly_dirty: int = 0
    pages_sent: int = 0
    """Pages that entered its bitmap since its last throttle check, and pages that it sent."""
    checked_at: int = 0
    high_checks: int = 0
    """Time of that check, and number of checks with too many dirtied pages since the throttle was last raised."""
    pushed_at_update: int = 0
    limit_sleep_us: int = 0
    """Entries pushed to its ring up to the last DIRTY_LIMIT_UPDATE, and duration of its sleep at a full ring, µs."""
    kick: int = 0
    kick_stalls: bool = False
    asleep: bool = False
    spins: bool = False
    """True while it waits for a lock."""
    sleeping: bool = False
    """True while it sleeps until its alarm, if turns have a length."""
    holds: int = 0
    """Number of locks held, excluding servers, and of lockless updates under way."""
    pause: int = 0
    """Duration of a throttle's sleep, pending or under way."""
    due: int = -1
    """Time of its last PACE's end unless it is late; -1: before its first PACE."""
    idle: int = 0
    """1 while it leaves the guest to idle in a PACE, 2 while it idles."""
    interrupted: int = 0
    """1 while it returns from an interrupt, 2 while it returns from a sleep."""
    kicked: bool = False
    """True if its stopwatch has been running since a kick."""
    lap_from: int = 0
    lap_max: int = 0
    ended: int = -1
    tick_at: int = 0
    """Time of its next timer interrupt."""
    owed: int = 0
    """Time that timer interrupts take before the thread continues."""

    def can_run(self, now: int) -> bool:
        """True if it can use a turn: to continue, or to poll a lock."""
        return (self.spins or not self.asleep) and not (self.sleeping and self.alarm > now)

    @property
    def in_guest(self) -> bool:
        """True if it is in, entering or leaving the guest: without a lock, not waiting for one, neither interrupted nor
        idle.
        """
        return not (self.asleep or self.holds or self.interrupted or self.idle)


def initial_thread(job: Job, number: int, key: int, roused: simpy.Event) -> SimulatedThread:
    """A thread before its first step."""
    first, last = (int(page) for page in job.region[number])
    inner = [0] * (EXTENTS - 1)
    return SimulatedThread(
        number, int(job.entry[number]), key, first, [first, *inner], [last, *inner], job.first_batch, roused
    )
