# SPDX-License-Identifier: BSD-3-Clause
"""The interpreter: takes the next event from the calendar and lets its thread live until it must wait."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from simlib._lib.jit import cached_njit
from simlib.model.steps import Adapt, Clock, Page, Quantity, Step
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
)
from simlib.simulator.engine.compiled.access import access, interrupt, is_interrupted
from simlib.simulator.engine.compiled.inline import always_inline, call_at, inlined_at_caller, item, noinline, outlined
from simlib.simulator.engine.compiled.locks import ASLEEP
from simlib.simulator.engine.compiled.state import DEADLOCK, FINISHED, PAST_HORIZON, RUNAWAY, RUNNING
from simlib.simulator.engine.limits import HORIZON_PS, MAX_THREADS, OWN_STEPS

UNKNOWN = -1
"""Instead of a horizon: nobody has asked for it yet."""


@always_inline
def quantity(pages, thread, step, time):
    """What a thread asks for with TEST."""
    asked, argument = step.b, step.c
    if asked == Quantity.DONE:
        return int(thread.page >= thread.end[argument])
    if asked == Quantity.PAGES:
        return thread.page - thread.begin[argument]
    if asked == Quantity.COLLECTED:
        return memory.any_ahead(pages, thread, argument, Page.COLLECTED, step.d)
    if asked == Quantity.BEYOND:
        return thread.page - thread.begin[argument] - thread.batch
    if asked == Quantity.BITMAP:
        return thread.bitmap
    if asked == Quantity.SINCE_CHECK:
        return time - thread.judged
    return time - thread.acquired  # HELD


@always_inline
def in_guest(thread):
    """Whether a vCPU is in the guest, or on its way out or in: it has and awaits no lock, and is not interrupted."""
    return thread.asleep == 0 and thread.holds == 0 and thread.interrupted == 0


@always_inline
def guests(threads, vcpus):
    """How many vCPUs are in the guest."""
    found = 0
    for j in range(vcpus):
        if in_guest(threads[j]):
            found += 1
    return found


@always_inline
def shared_quantity(world, threads, queues, waiting, pages, blocks, thread, step):
    """What a thread asks for with TEST and others change."""
    asked, argument = step.b, step.c
    if asked == Quantity.FLAG:
        return world.flags[argument]
    if asked == Quantity.BLOCK:
        return memory.mapped_by_block(world, blocks, thread)
    if asked == Quantity.CLOCK:
        return clock.shown(world, world.now)
    if asked == Quantity.VCPUS_IN_GUEST:
        return guests(threads, world.vcpus)
    if asked == Quantity.DIRTY:
        return memory.any_ahead(pages, thread, argument, Page.DIRTY, step.d)
    if asked == Quantity.LOGGED:
        return thread.logged
    if asked == Quantity.RING:
        return thread.pushed - thread.reset
    lock = argument if argument >= 0 else thread.region_lock
    if asked == Quantity.VCPUS:
        return locks.waiting_below(waiting, lock, queues[lock], world.vcpus)
    return queues[lock].length  # WAITERS


@inlined_at_caller
def own_step(run, thread, number, step, time):
    """A step that nobody else can see, and that takes no time."""
    thread.pc += 1
    kind = step.kind
    if kind == Step.ADVANCE:
        page = min(thread.page + step.a, thread.end[step.b])
        books = run.books
        time_bin = statistics.bin_of(run.worlds[0], books.progress, books.queue, time)
        books.progress[np.uint64(number), np.uint64(time_bin)] += page - thread.page
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
        thread.page = clock.place(thread, run.places, step.a, step.b)
    elif step.a == Adapt.DOUBLE:  # ADAPT
        thread.batch = min(thread.batch * 2, step.c)
    else:
        thread.batch = max(thread.batch >> 1, step.b)


@outlined
def wait_for_all(run, thread, number, step):
    """Wait for the other threads at a barrier; the last one wakes them. Returns the thread's clock, or ASLEEP."""
    world, which = run.worlds[0], step.a
    now = world.now
    thread.pc += 1
    statistics.note(world, run.books.trace, now, number, statistics.BARRIER, which)
    run.arrived[which] += 1
    if run.arrived[which] < step.b:
        thread.parked = which
        thread.tried = now
        clock.starts(world, now, -1)
        thread.asleep = 1
        return ASLEEP
    clock.starts(world, now, run.arrived[which] - 1)
    run.arrived[which] = 0
    for j in range(run.threads.shape[0]):
        other = run.threads[j]
        if other.parked == which:
            other.parked = -1
            other.asleep = 0
            other.spent[clock.IDLE] += now - other.tried
            if world.turn_ps == 0:
                time = clock.run_ahead(run.steps, run.quantiles, other, now)
                calendar.wake(run.tree, j, calendar.key_of(time, j))
    return now


@outlined
def sleep_on(run, thread):
    """Look at the clock; sleep on for as long as it needs at least, which is when all threads run."""
    world = run.worlds[0]
    now = world.now
    left = thread.alarm - clock.shown(world, now)
    if left <= 0:
        if thread.rests:
            thread.spent[clock.IDLE] += now - thread.tried
        thread.rests = 0
        clock.starts(world, now, 1)
        thread.pc += 1
        return now
    if world.turn_ps > 0:
        thread.rests, thread.tried = 1, now
        return ASLEEP
    wait = -(-left // (1 if world.clock == Clock.WALL else run.threads.shape[0]))
    thread.spent[clock.IDLE] += wait
    return now + wait


@outlined
def kick_vcpus(run, thread, number, step):
    """Interrupt all vCPUs that are in the guest."""
    world = run.worlds[0]
    time = clock.sample(thread, run.quantiles, step.a, step.c)
    for j in range(world.vcpus):
        other = run.threads[j]
        if j != number and in_guest(other):
            other.kick = time + logs.drain(run, other, j) * step.d
            other.kick_stalls = step.b
    statistics.note(world, run.books.trace, world.now, number, statistics.KICK, time)


@outlined
def rare_step(run, thread, number, step):
    """What a thread does now and then; returns its clock, or ASLEEP."""
    world, kind = run.worlds[0], step.kind
    now = world.now
    if kind == Step.ACCESS:
        return interrupt(run, thread, number)
    if kind == Step.TAKE:
        return locks.poll(run, thread, number, step)
    if kind == Step.BARRIER:
        return wait_for_all(run, thread, number, step)
    if kind == Step.WAKE:
        return sleep_on(run, thread)
    if Step.DRAIN <= kind <= Step.LOG:
        return logs.log_maintenance(run, thread, number, step)
    if Step.THROTTLE_CHECK <= kind <= Step.DIRTY_LIMIT_SLEEP:
        return throttling.slow_down(run, thread, number, step)
    thread.pc += 1
    if kind == Step.STAMP:
        statistics.stamp(run, thread, step.a)
        statistics.note(world, run.books.trace, now, number, statistics.STAMP, step.a)
    elif kind == Step.SIGNAL:
        world.flags[step.a] = 1
        fast_forward.learn(world, run.steps, run.rounds)
        statistics.note(world, run.books.trace, now, number, statistics.SIGNAL, step.a)
    elif kind == Step.SLEEP:
        clock.fall_asleep(world, thread, step.a)
    elif kind == Step.KICK:
        kick_vcpus(run, thread, number, step)
    else:  # END
        thread.ended = now
        thread.asleep = 1
        world.live -= 1
        clock.starts(world, now, -1)
        statistics.note(world, run.books.trace, now, number, statistics.END, 0)
        return ASLEEP
    return now


@inlined_at_caller
def shared_step(run, thread, number, step, now):
    """A step that others can see, at its time; returns the thread's clock, or ASLEEP."""
    kind, world, books, pages, blocks = step.kind, run.worlds[0], run.books, run.pages, run.blocks
    if kind == Step.ACCESS:
        return call_slow_path(run, number) if is_interrupted(thread) else access(run, thread, number, step)
    if kind == Step.TAKE:
        return call_slow_path(run, number) if thread.asleep else locks.take(run, thread, number, step, now)
    if kind == Step.DROP:
        return locks.drop(run, thread, number, step, now)
    if kind == Step.MAP:
        if memory.map_page(world, books.trace, books.ledger, pages, blocks, thread, number, step):
            logs.mark(world, pages, run.rings, thread, number, thread.page)
        return now
    if kind == Step.SCAN:
        return memory.scan(world, books.trace, books.ledger, pages, blocks, thread, number, step)
    if kind == Step.TEST:
        found = shared_quantity(world, run.threads, run.locks, run.waiting, pages, blocks, thread, step)
        thread.pc = thread.pc + 1 if found >= step.d else step.a
        return now
    if kind == Step.TOUCH:
        return locks.touch(world, run.cpus, books.trace, item(run.lines, step.a), thread, number, now)
    if kind == Step.LAP:
        statistics.lap(world, books, thread, number, step.a)
        thread.pc += 1
        return now
    return call_slow_path(run, number)


@outlined
def call_slow_path(run, number):
    """Do what the other half of the engine is for (`_compile`)."""
    noinline()
    return call_at(run.worlds[0].aside, run, number)


@inlined_at_caller
def run_thread(run, thread, number, now):  # noqa: C901, PLR0912  # all branches move the same clocks: time, done, turn, now
    """A thread's steps from now until it must come back later or sleeps; returns its clock, or ASLEEP.

    What cannot matter to others, nor they to it, it does ahead of the calendar
    (`simlib.simulator.engine.compiled.lookahead`).
    """
    world = run.worlds[0]
    time = done = now
    turn, horizon = now, UNKNOWN
    own_steps = 0
    runs_ahead = thread.runs_ahead
    while True:
        step = item(run.steps, thread.pc)
        if step.kind <= Step.HOLD:
            time = clock.spend(run.quantiles, thread, step, time)
            if time > world.turn_end:
                return time
            continue
        if not step.shared:
            own_steps += 1
            if own_steps > OWN_STEPS:
                if now > turn:
                    return time  # nobody has come so far yet
                world.status = RUNAWAY
                return ASLEEP
            own_step(run, thread, number, step, time)
            continue
        may = step.ahead if runs_ahead else static_analysis.NEVER
        if may == static_analysis.NEVER:
            if time > turn:
                too_far = time > done or time > world.turn_end or world.events >= world.stop_at
                if too_far or not calendar.is_next(run.tree, number, time):
                    return time  # come back at that time
                own_steps = 1
                turn = now = time
                world.now = world.woken = now
        else:
            round_known = may == static_analysis.HIT and item(run.rounds, thread.pc).known
            if (time > turn or round_known) and horizon == UNKNOWN:
                horizon = lookahead.horizon(run, thread, number)
            if time > turn:
                if not lookahead.reaches(run, thread, number, step, time, horizon):
                    return time
                own_steps = 1 if time > now else own_steps
                now = time
                world.now = now
            if round_known:
                time = fast_forward.skip(run, thread, number, now, horizon)
                if time > now:
                    continue
        if now == turn:
            horizon = UNKNOWN  # others may see what it does now, and be woken by it
        world.events += 1
        time = done = shared_step(run, thread, number, step, now)
        if time == ASLEEP or time > world.turn_end:
            return time


def fingerprint() -> int:
    """Of all sources that become part of the compiled code: Numba's cache looks at one file only."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*here.glob("*.py"), *here.parent.glob("*.py"), *(here.parents[2] / "model").glob("*.py")]):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "big")


def _compile(version: int) -> tuple[Any, Any]:
    """The engine's loop, and what it does seldom; `version` is part of the key under which Numba keeps them."""

    @cached_njit(nogil=True, error_model="numpy", _nrt=False)
    def slow_path(run, number):
        """What happens seldom: a step that a thread takes now and then, or what comes before the first event (-1).

        Half of the engine's code, so that two processes can compile it. The loop calls it by its address.
        """
        if number < 0:
            lookahead.prepare(run)
            return version
        thread = item(run.threads, number)
        return rare_step(run, thread, number, item(run.steps, thread.pc))

    @cached_njit(nogil=True, error_model="numpy", _nrt=False)
    def advance(run, budget):
        """Run until every thread ended, nothing can happen, or as much was done as so many events take."""
        world = run.worlds[0]
        if not world.prepared:
            call_slow_path(run, -1)
        world.stop_at = world.events + budget
        while world.events < world.stop_at:
            key = run.tree[1]
            if world.turn_ps > 0 and (key >> calendar.THREAD_BITS) > world.turn_end:
                turns.pass_on(world, run.threads, run.tree, run.quantiles)
                if world.status != RUNNING:
                    break
                continue
            if key == calendar.NEVER:
                world.status = FINISHED if world.live == 0 else DEADLOCK
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


advance, aside = _compile(fingerprint())
