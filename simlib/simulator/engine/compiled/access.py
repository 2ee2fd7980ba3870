# SPDX-License-Identifier: BSD-3-Clause
"""Accesses of the guest to its memory."""

from __future__ import annotations

from simlib.simulator.engine.compiled import logs
from simlib.simulator.engine.compiled.clock import IDLE, RUN, shown_time
from simlib.simulator.engine.compiled.inline import always_inline, outlined
from simlib.simulator.engine.compiled.memory import LOGGED, NO_FAULT, fault_of, is_written
from simlib.simulator.engine.compiled.statistics import (
    FAULT,
    LEAVE,
    PAUSE,
    PAUSED,
    WRITE,
    end_kick,
    record_entry,
    record_event,
)


@always_inline
def must_leave_for_interrupt(thread):
    """True if the vCPU must leave the guest before its access, which it makes afterwards."""
    return (thread.kick > 0 and not thread.interrupted) or (thread.pause > 0 and thread.interrupted != 2)


@outlined
def interrupt(run, thread, number):
    """Make the vCPU leave the guest for a kick or a throttle and enter it again; returns its clock."""
    world, counters = run.worlds[0], run.counters
    kick, pause = thread.kick, thread.pause
    if pause:
        kick += logs.drain(run, thread, number) * world.pause_entry
    thread.spent[RUN] += kick
    thread.spent[IDLE] += pause
    thread.kick = 0
    thread.interrupted = 2 if pause else 1
    if thread.kick_stalls or pause:
        thread.kicked = 1
        thread.lap_from = shown_time(world, world.now)
    if pause:
        record_event(world, counters.trace, world.now, number, PAUSE, pause)
        record_entry(world, counters.ledger, number, PAUSED, kick, pause)
    return world.now + kick + pause


@always_inline
def fault_target(step, fault):
    """Step at which the handling of a fault begins."""
    if fault == 0:
        return step.a
    if fault == 1:
        return step.b
    return step.c if fault == 2 else step.d


@always_inline
def access(run, thread, number, step):
    """Access the current page: a hit goes on, a fault jumps. Returns the thread's clock."""
    world, counters = run.worlds[0], run.counters
    if thread.interrupted == 2:
        thread.pause = 0
    thread.interrupted = 0
    page = thread.page
    fault = fault_of(world, run.pages, run.blocks, page)
    if logs.must_leave_guest(world, thread, fault):
        record_event(world, counters.trace, world.now, number, LEAVE, page)
        thread.pc = step.e
        return world.now
    if fault == NO_FAULT or fault == LOGGED:
        thread.pc += 1
        if thread.kicked:
            end_kick(world, counters, thread, number)
        if fault == LOGGED:
            logs.log_write(world, run.pages, run.logs, thread, number, page)
            record_entry(world, counters.ledger, number, WRITE, page, 2)
            return world.now + world.dirty_set_ps
        if counters.ledger is not None and is_written(world, page):
            record_entry(world, counters.ledger, number, WRITE, page, 0)
        return world.now
    thread.faults[fault] += 1
    record_event(world, counters.trace, world.now, number, FAULT, fault)
    thread.pc = fault_target(step, fault)
    return world.now
