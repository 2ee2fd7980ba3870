# SPDX-License-Identifier: BSD-3-Clause
"""Steps at which a thread waits: barriers, sleep, and idling until work is due."""

from simlib.model.steps import Clock
from simlib.simulator.engine.compiled import calendar, clock, logs, statistics
from simlib.simulator.engine.compiled.inline import outlined
from simlib.simulator.engine.compiled.locks import ASLEEP


@outlined
def wait_at_barrier(run, thread, number, step):
    """Wait for the other threads at a barrier; the last one wakes them. Returns the thread's clock, or ASLEEP."""
    world, barrier = run.worlds[0], step.a
    now = world.now
    thread.pc += 1
    statistics.record_event(world, run.counters.trace, now, number, statistics.BARRIER, barrier)
    run.arrived[barrier] += 1
    if run.arrived[barrier] < step.b:
        thread.parked = barrier
        thread.tried = now
        clock.change_running(world, now, -1)
        thread.asleep = 1
        return ASLEEP
    clock.change_running(world, now, run.arrived[barrier] - 1)
    run.arrived[barrier] = 0
    for j in range(run.threads.shape[0]):
        other = run.threads[j]
        if other.parked == barrier:
            other.parked = -1
            other.asleep = 0
            other.spent[clock.IDLE] += now - other.tried
            if world.turn_ps == 0:
                time = clock.run_ahead(run.steps, run.quantiles, other, now)
                calendar.wake(run.tree, j, calendar.key_of(time, j))
    return now


@outlined
def wake_or_sleep(run, thread):
    """Read the clock; before the alarm, sleep until the alarm would be due if all threads ran meanwhile."""
    world = run.worlds[0]
    now = world.now
    remaining = thread.alarm - clock.shown_time(world, now)
    if remaining <= 0:
        if thread.sleeping:
            thread.spent[clock.IDLE] += now - thread.tried
        thread.sleeping = 0
        clock.change_running(world, now, 1)
        thread.pc += 1
        return now
    if world.turn_ps > 0:
        thread.sleeping, thread.tried = 1, now
        return ASLEEP
    wait = -(-remaining // (1 if world.clock == Clock.WALL else run.threads.shape[0]))
    thread.spent[clock.IDLE] += wait
    return now + wait


@outlined
def sleep_idle(run, thread, number, pause, kick):
    """Let an idle vCPU sleep for a throttle after the time of a kick; it idles until the later of both ends."""
    world, counters = run.worlds[0], run.counters
    thread.alarm = max(thread.alarm, world.now + kick + pause)
    counters.throttled_ps[number] += pause
    statistics.record_event(world, counters.trace, world.now, number, statistics.PAUSE, pause)
    statistics.record_entry(world, counters.ledger, number, statistics.PAUSED, kick, pause)


@outlined
def leave_to_idle(run, thread, number, entry):
    """Leave the guest, empty the log buffer, and begin a throttle's pending sleep; returns the time it takes."""
    time = thread.kick + logs.drain(run, thread, number) * entry
    thread.kick = 0
    thread.spent[clock.RUN] += time
    if thread.pause > 0:
        sleep_idle(run, thread, number, thread.pause, time)
        thread.pause = 0
    return time


@outlined
def pace(run, thread, number, step):
    """Idle until the time that is due; a late thread continues at once. This step is retaken until then.

    Returns the thread's clock, or ASLEEP.
    """
    world, counters = run.worlds[0], run.counters
    now = world.now
    shown = clock.shown_time(world, now)
    if thread.idle == 0:
        thread.due = shown if thread.due < 0 else thread.due + step.a
        statistics.record_entry(world, counters.ledger, number, statistics.PACED, number, max(0, thread.due - shown))
        if thread.due <= shown:
            thread.pc += 1
            return now
        thread.idle, thread.alarm = 1, thread.due
        time = leave_to_idle(run, thread, number, step.b)
        if time > 0:
            return now + time
    if thread.idle == 1:
        thread.idle = 2
        clock.change_running(world, now, -1)
    if thread.alarm <= shown:
        thread.idle = 0
        if thread.alarm > thread.due:
            thread.lap_from = thread.due
            statistics.lap(world, counters, thread, number, 1)
    return wake_or_sleep(run, thread)
