# SPDX-License-Identifier: BSD-3-Clause
"""The interpreter: takes the next event from the calendar and runs its thread until the thread must wait."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from simlib._lib.jit import cached_njit
from simlib.model.steps import Adapt, Page, Quantity, Step
from simlib.simulator.engine.compiled import (
    calendar,
    clock,
    fast_forward,
    locks,
    logs,
    lookahead,
    memory,
    static_analysis,
    statistics,
    throttling,
    turns,
    waiting,
)
from simlib.simulator.engine.compiled.access import access, interrupt, must_leave_for_interrupt
from simlib.simulator.engine.compiled.inline import always_inline, call_at, inlined_at_caller, item, noinline, outlined
from simlib.simulator.engine.compiled.locks import ASLEEP
from simlib.simulator.engine.compiled.state import DEADLOCK, FINISHED, PAST_HORIZON, RUNAWAY, RUNNING
from simlib.simulator.engine.limits import HORIZON_PS, MAX_PRIVATE_STEPS, MAX_THREADS

UNKNOWN = -1
"""Value of a horizon that has not been computed yet."""


@always_inline
def quantity(pages, thread, step, time):
    """Value of a quantity that TEST reads and that only the thread itself changes."""
    kind, argument = step.b, step.c
    if kind == Quantity.DONE:
        return int(thread.page >= thread.end[argument])
    if kind == Quantity.PAGES:
        return thread.page - thread.begin[argument]
    if kind == Quantity.COLLECTED:
        return memory.count_set_bits(pages, thread, argument, Page.COLLECTED, step.d)
    if kind == Quantity.BEYOND:
        return thread.page - thread.begin[argument] - thread.batch
    if kind == Quantity.BITMAP:
        return thread.bitmap
    if kind == Quantity.SINCE_CHECK:
        return time - thread.checked_at
    return time - thread.acquired  # HELD


@always_inline
def in_guest(thread):
    """True if a vCPU is in, entering or leaving the guest: without a lock, not waiting for one, neither interrupted nor
    idle.
    """
    return thread.asleep == 0 and thread.holds == 0 and thread.interrupted == 0 and thread.idle == 0


@always_inline
def shared_quantity(world, threads, queues, waiting, pages, blocks, thread, step):
    """Value of a quantity that TEST reads and that other threads can change."""
    kind, argument = step.b, step.c
    if kind == Quantity.FLAG:
        return world.flags[argument]
    if kind == Quantity.BLOCK:
        return memory.mapped_by_block(world, blocks, thread)
    if kind == Quantity.CLOCK:
        return clock.shown_time(world, world.now)
    if kind == Quantity.VCPUS_IN_GUEST:
        count = 0
        for j in range(world.vcpus):
            count += in_guest(threads[j])
        return count
    if kind == Quantity.DIRTY:
        return memory.count_set_bits(pages, thread, argument, Page.DIRTY, step.d)
    if kind == Quantity.LOGGED:
        return thread.logged
    if kind == Quantity.RING:
        return thread.pushed - thread.reset
    lock = argument if argument >= 0 else thread.region_lock
    if kind == Quantity.VCPUS:
        return locks.count_waiters_below(waiting, lock, queues[lock], world.vcpus)
    return queues[lock].length  # WAITERS


@inlined_at_caller
def private_step(run, thread, number, step, time):
    """Take a step that no other thread can observe and that takes no time."""
    thread.pc += 1
    kind = step.kind
    if kind == Step.ADVANCE:
        page = min(thread.page + step.a, thread.end[step.b])
        counters = run.counters
        time_bin = statistics.bin_of(run.worlds[0], counters.progress, counters.queue_ps, time)
        counters.progress[np.uint64(number), np.uint64(time_bin)] += page - thread.page
        thread.page = page
    elif kind == Step.TEST:
        if quantity(run.pages, thread, step, time) < step.d:
            thread.pc = step.a
    elif kind == Step.REPEAT:
        thread.counters[step.c] += 1
        if thread.counters[step.c] < step.b:
            thread.pc = step.a
        else:
            thread.counters[step.c] = 0
    elif kind == Step.JUMP:
        thread.pc = step.a
    elif kind == Step.OPEN:
        end = (thread.page // step.b + 1) * step.b if step.c else thread.page + step.b
        thread.begin[step.a] = thread.page
        thread.end[step.a] = min(end, thread.end[step.a - 1])
    elif kind == Step.BACK:
        thread.page = thread.begin[step.a]
    elif kind == Step.SEEK:
        thread.page = clock.random_page(thread, run.places, step.a, step.b)
    elif step.a == Adapt.DOUBLE:  # ADAPT
        thread.batch = min(thread.batch * 2, step.c)
    else:
        thread.batch = max(thread.batch >> 1, step.b)


@outlined
def kick_vcpus(run, thread, number, step):
    """Interrupt all other vCPUs that are in the guest."""
    world = run.worlds[0]
    time = clock.sample(thread, run.quantiles, step.a, step.c)
    for j in range(world.vcpus):
        other = run.threads[j]
        if j != number and in_guest(other):
            other.kick = time + logs.drain(run, other, j) * step.d
            other.kick_stalls = step.b
    statistics.record_event(world, run.counters.trace, world.now, number, statistics.KICK, time)


@outlined
def rare_step(run, thread, number, step):
    """Take a rare step; returns the thread's clock, or ASLEEP."""
    world, kind = run.worlds[0], step.kind
    now = world.now
    if kind == Step.ACCESS:
        return interrupt(run, thread, number)
    if kind == Step.TAKE:
        return locks.poll(run, thread, number, step)
    if kind == Step.BARRIER:
        return waiting.wait_at_barrier(run, thread, number, step)
    if kind == Step.WAKE:
        return waiting.wake_or_sleep(run, thread)
    if kind == Step.PACE:
        return waiting.pace(run, thread, number, step)
    if Step.DRAIN <= kind <= Step.LOG:
        return logs.log_maintenance(run, thread, number, step)
    if Step.THROTTLE_CHECK <= kind <= Step.DIRTY_LIMIT_SLEEP:
        return throttling.throttle_step(run, thread, number, step)
    thread.pc += 1
    if kind == Step.STAMP:
        statistics.stamp(run, thread, step.a)
        statistics.record_event(world, run.counters.trace, now, number, statistics.STAMP, step.a)
    elif kind == Step.SIGNAL:
        world.flags[step.a] = 1
        fast_forward.learn_rounds(world, run.steps, run.rounds)
        statistics.record_event(world, run.counters.trace, now, number, statistics.SIGNAL, step.a)
    elif kind == Step.SLEEP:
        clock.fall_asleep(world, thread, step.a)
    elif kind == Step.KICK:
        kick_vcpus(run, thread, number, step)
    else:  # END
        thread.ended = now
        thread.asleep = 1
        world.live_threads -= 1
        clock.change_running(world, now, -1)
        statistics.record_event(world, run.counters.trace, now, number, statistics.END, 0)
        return ASLEEP
    return now


@inlined_at_caller
def shared_step(run, thread, number, step, now):
    """Take a step that other threads can observe, at its time; returns the thread's clock, or ASLEEP."""
    kind, world, counters, pages, blocks = step.kind, run.worlds[0], run.counters, run.pages, run.blocks
    if kind == Step.ACCESS:
        return call_slow_path(run, number) if must_leave_for_interrupt(thread) else access(run, thread, number, step)
    if kind == Step.TAKE:
        return call_slow_path(run, number) if thread.asleep else locks.take(run, thread, number, step, now)
    if kind == Step.DROP:
        return locks.drop(run, thread, number, step, now)
    if kind == Step.MAP:
        if memory.map_page(world, counters.trace, counters.ledger, pages, blocks, thread, number, step):
            logs.mark_dirty(world, pages, run.rings, thread, number, thread.page)
        return now
    if kind == Step.SCAN:
        return memory.scan(world, counters.trace, counters.ledger, pages, blocks, thread, number, step)
    if kind == Step.TEST:
        value = shared_quantity(world, run.threads, run.locks, run.waiting, pages, blocks, thread, step)
        thread.pc = thread.pc + 1 if value >= step.d else step.a
        return now
    if kind == Step.TOUCH:
        return locks.touch(world, run.cpus, counters.trace, item(run.lines, step.a), thread, number, now)
    if kind == Step.LAP:
        statistics.lap(world, counters, thread, number, step.a)
        thread.pc += 1
        return now
    return call_slow_path(run, number)


@outlined
def call_slow_path(run, number):
    """Call `slow_path` by its address (see `_compile`)."""
    noinline()
    return call_at(run.worlds[0].slow_path, run, number)


@inlined_at_caller
def run_thread(run, thread, number, now):  # noqa: C901, PLR0912  # all branches move the same clocks
    """Run a thread from `now` until it must return to the calendar or sleeps; returns its clock, or ASLEEP.

    It runs ahead of the calendar by the rule in `simlib.simulator.engine.compiled.lookahead`.
    """
    world = run.worlds[0]
    time = done = now
    turn, horizon = now, UNKNOWN
    private_steps = 0
    runs_ahead = thread.runs_ahead
    while True:
        step = item(run.steps, thread.pc)
        if step.kind <= Step.HOLD:
            time = clock.spend(run.quantiles, thread, step, time)
            if time > world.turn_end:
                return time
            continue
        if not step.shared:
            private_steps += 1
            if private_steps > MAX_PRIVATE_STEPS:
                if now > turn:
                    return time  # the world's time has not reached this yet
                world.status = RUNAWAY
                return ASLEEP
            private_step(run, thread, number, step, time)
            continue
        condition = step.ahead if runs_ahead else static_analysis.NEVER
        if condition == static_analysis.NEVER:
            if time > turn:
                if time > done or time > min(world.turn_end, HORIZON_PS) or world.events >= world.stop_at:
                    return time  # return to the thread at that time
                if calendar.key_of(time, number) >= calendar.least_rival(run.tree, number):
                    return time
                private_steps = 1
                turn = now = time
                world.now = world.woken = now
        else:
            round_known = condition == static_analysis.HIT and item(run.rounds, thread.pc).known
            if (time > turn or round_known) and horizon == UNKNOWN:
                horizon = lookahead.horizon_of(run, thread, number)
            if time > turn:
                if not lookahead.may_run_ahead_at(run, thread, number, step, time, horizon):
                    return time
                private_steps = 1 if time > now else private_steps
                now = time
                world.now = now
            if round_known:
                time = fast_forward.skip_rounds(run, thread, number, now, horizon)
                if time > now:
                    continue
        if now == turn:
            horizon = UNKNOWN  # other threads may see what it does now, and be woken by it
        world.events += 1
        time = done = shared_step(run, thread, number, step, now)
        if time == ASLEEP or time > world.turn_end:
            return time


def fingerprint() -> int:
    """Hash of all sources compiled into the engine, of which Numba's cache checks only one file."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*here.glob("*.py"), *here.parent.glob("*.py"), *(here.parents[2] / "model").glob("*.py")]):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "big")


def _compile(version: int) -> tuple[Any, Any]:
    """Compile the engine's loop and its slow path; `version` is part of the key under which Numba caches them."""

    @cached_njit(nogil=True, error_model="numpy", _nrt=False)
    def slow_path(run, number):
        """Take a rare step of thread `number`, or prepare the run if `number` is -1.

        This is half of the engine's code; two processes compile the halves in parallel. The loop calls it by address.
        """
        if number < 0:
            lookahead.prepare(run)
            return version
        thread = item(run.threads, number)
        return rare_step(run, thread, number, item(run.steps, thread.pc))

    @cached_njit(nogil=True, error_model="numpy", _nrt=False)
    def advance(run, budget):
        """Run until every thread has ended, no event is left, or the work of `budget` events is done."""
        world = run.worlds[0]
        if not world.prepared:
            call_slow_path(run, -1)
        world.stop_at = world.events + budget
        while world.events < world.stop_at:
            key = run.tree[1]
            if world.turn_ps > 0 and (key >> calendar.THREAD_BITS) > world.turn_end:
                turns.next_turn(world, run.threads, run.tree, run.quantiles)
                if world.status != RUNNING:
                    break
                continue
            if key == calendar.NEVER:
                world.status = FINISHED if world.live_threads == 0 else DEADLOCK
                break
            now = key >> calendar.THREAD_BITS
            number = key & (MAX_THREADS - 1)
            if now > HORIZON_PS:
                world.status = PAST_HORIZON
                break
            world.now = world.woken = now
            time = run_thread(run, item(run.threads, number), number, now)
            world.now = world.woken
            if time == ASLEEP:
                calendar.wake(run.tree, number, calendar.NEVER)
                if world.status != RUNNING:
                    break
            else:
                calendar.wake(run.tree, number, calendar.key_of(time, number))
        return version

    return advance, slow_path


advance, slow_path = _compile(fingerprint())
