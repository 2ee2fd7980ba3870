# SPDX-License-Identifier: BSD-3-Clause
"""Steps that slow the vCPUs down."""

from __future__ import annotations

from simlib.model.steps import Step
from simlib.simulator.engine.compiled import clock
from simlib.simulator.engine.compiled.inline import outlined
from simlib.simulator.engine.compiled.statistics import (
    JUDGE,
    LIMITED,
    NAPPED,
    SINCE_CHECK,
    THROTTLE,
    THROTTLED,
    enter,
    note,
)
from simlib.simulator.engine.throttle import full_us, next_sleep_us, next_throttle, rate_mib, sleeps

_PS_PER_US = 1_000_000


@outlined
def judge(world, thread, begins):
    """Look at what the guest dirtied, if that is due, and throttle it, or have its vCPUs limited."""
    if not begins and world.now - thread.judged < world.judge_every:
        return
    if not begins and 100 * thread.came > world.trigger * thread.went:
        thread.high += 1
        if thread.high >= world.times:
            thread.high = 0
            if world.limit:
                world.throttle = 1
            else:
                world.throttle = next_throttle(
                    world.throttle, float(thread.came), thread.went * world.trigger / 100, world.initial,
                    world.increment, False, world.most,
                )  # fmt: skip
    thread.judged = world.now
    thread.came = thread.went = 0


@outlined
def pause(run, thread, number, pauses, entry):
    """Fall asleep while the vCPUs run, or have them sleep, and do so as long."""
    world = run.worlds[0]
    time = sleeps(world.slice, world.window, world.throttle)
    if pauses:
        world.pause_entry = entry
        for j in range(world.vcpus):
            run.threads[j].pause = time
        note(world, run.books.trace, world.now, number, THROTTLE, time)
        enter(world, run.books.ledger, number, THROTTLED, world.throttle, time)
    else:
        time = world.slice if world.slice > 0 else world.window - time
    clock.fall_asleep(world, thread, time)


@outlined
def limit(run, number):
    """Look at the rate of each vCPU, and at how fast a ring is filled at the highest that was seen."""
    world = run.worlds[0]
    for j in range(world.vcpus):
        vcpu = run.threads[j]
        rate = rate_mib(vcpu.pushed - vcpu.looked, world.slice)
        vcpu.looked = vcpu.pushed
        world.fastest = max(world.fastest, rate)
        if world.throttle > 0:
            vcpu.nap_us = next_sleep_us(vcpu.nap_us, world.limit, rate, full_us(world.ring_entries, world.fastest))
        enter(world, run.books.ledger, number, LIMITED, j, vcpu.nap_us)


@outlined
def slow_down(run, thread, number, step):
    """JUDGE, THROTTLE, LIMIT or NAP; returns the thread's clock."""
    world, books = run.worlds[0], run.books
    thread.pc += 1
    if step.kind == Step.THROTTLE_CHECK:
        judge(world, thread, step.a)
        note(world, books.trace, world.now, number, JUDGE, world.throttle)
        enter(world, books.ledger, number, SINCE_CHECK, world.throttle, step.a)
    elif step.kind == Step.THROTTLE:
        pause(run, thread, number, step.a, step.b)
    elif step.kind == Step.DIRTY_LIMIT_UPDATE:
        limit(run, number)
    else:
        enter(world, books.ledger, number, NAPPED, number, thread.nap_us)
        clock.fall_asleep(world, thread, thread.nap_us * _PS_PER_US)
    return world.now
