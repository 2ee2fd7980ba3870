# SPDX-License-Identifier: BSD-3-Clause
"""Steps that throttle the vCPUs."""

from simlib.model.steps import Step
from simlib.simulator.engine.compiled import clock, statistics, waiting
from simlib.simulator.engine.compiled.inline import outlined
from simlib.simulator.engine.compiled.statistics import record_entry, record_event
from simlib.simulator.engine.throttle import dirty_rate_mib, fill_time_us, next_sleep_us, next_throttle, sleep_time


@outlined
def check_throttle(world, thread, begins):
    """If a check is due, compare the pages dirtied with those sent; start or raise the throttle, or start the limit."""
    if not begins and world.now - thread.checked_at < world.check_period:
        return
    if not begins and 100 * thread.newly_dirty > world.trigger * thread.pages_sent:
        thread.high_checks += 1
        if thread.high_checks >= world.times:
            thread.high_checks = 0
            if world.limit:
                world.throttle = 1
            else:
                world.throttle = next_throttle(
                    world.throttle, float(thread.newly_dirty), thread.pages_sent * world.trigger / 100, world.initial,
                    world.increment, False, world.most,
                )  # fmt: skip
    thread.checked_at = world.now
    thread.newly_dirty = thread.pages_sent = 0


@outlined
def throttle_vcpus(run, thread, number, pauses, entry):
    """Put the vCPUs and the thread to sleep for the same time, or only the thread while the vCPUs run."""
    world = run.worlds[0]
    time = sleep_time(world.slice, world.window, world.throttle)
    if pauses:
        world.pause_entry = entry
        record_event(world, run.counters.trace, world.now, number, statistics.THROTTLE, time)
        record_entry(world, run.counters.ledger, number, statistics.THROTTLED, world.throttle, time)
        for j in range(world.vcpus):
            vcpu = run.threads[j]
            if vcpu.idle > 0 and time > 0:
                waiting.sleep_idle(run, vcpu, j, time, 0)
            else:
                vcpu.pause = time
    else:
        time = world.slice if world.slice > 0 else world.window - time
    clock.fall_asleep(world, thread, time)


@outlined
def update_dirty_limit(run, number):
    """Measure each vCPU's dirty rate since the last update, and set its next sleep from the fastest rate seen."""
    world = run.worlds[0]
    for j in range(world.vcpus):
        vcpu = run.threads[j]
        rate = dirty_rate_mib(vcpu.pushed - vcpu.pushed_at_update, world.slice)
        vcpu.pushed_at_update = vcpu.pushed
        world.fastest = max(world.fastest, rate)
        if world.throttle > 0:
            fill_us = fill_time_us(world.ring_entries, world.fastest)
            vcpu.limit_sleep_us = next_sleep_us(vcpu.limit_sleep_us, world.limit, rate, fill_us)
        record_entry(world, run.counters.ledger, number, statistics.DIRTY_LIMIT_UPDATED, j, vcpu.limit_sleep_us)


@outlined
def throttle_step(run, thread, number, step):
    """Take a THROTTLE_CHECK, THROTTLE, DIRTY_LIMIT_UPDATE or DIRTY_LIMIT_SLEEP; returns the thread's clock."""
    world, counters = run.worlds[0], run.counters
    thread.pc += 1
    if step.kind == Step.THROTTLE_CHECK:
        check_throttle(world, thread, step.a)
        record_event(world, counters.trace, world.now, number, statistics.THROTTLE_CHECK, world.throttle)
        record_entry(world, counters.ledger, number, statistics.THROTTLE_CHECKED, world.throttle, step.a)
    elif step.kind == Step.THROTTLE:
        throttle_vcpus(run, thread, number, step.a, step.b)
    elif step.kind == Step.DIRTY_LIMIT_UPDATE:
        update_dirty_limit(run, number)
    else:
        record_entry(world, counters.ledger, number, statistics.DIRTY_LIMIT_SLEPT, number, thread.limit_sleep_us)
        counters.throttled_ps[number] += thread.limit_sleep_us * 1_000_000
        clock.fall_asleep(world, thread, thread.limit_sleep_us * 1_000_000)
    return world.now
