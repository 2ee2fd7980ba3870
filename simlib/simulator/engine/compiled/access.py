# SPDX-License-Identifier: BSD-3-Clause
"""The guest's memory accesses."""

from simlib.simulator.engine.compiled import logs, statistics
from simlib.simulator.engine.compiled.clock import IDLE, RUN, shown_time
from simlib.simulator.engine.compiled.inline import always_inline, outlined
from simlib.simulator.engine.compiled.memory import LOGGED, NO_FAULT, fault_of, is_written


@always_inline
def must_leave_for_interrupt(thread):
    """True if a kick or a throttle makes the vCPU leave the guest before its access."""
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
    counters.throttled_ps[number] += pause
    thread.kick = 0
    thread.interrupted = 2 if pause else 1
    if thread.kick_stalls or pause:
        thread.kicked = 1
        thread.lap_from = shown_time(world, world.now)
    if pause:
        statistics.record_event(world, counters.trace, world.now, number, statistics.PAUSE, pause)
        statistics.record_entry(world, counters.ledger, number, statistics.PAUSED, kick, pause)
    return world.now + kick + pause


@always_inline
def access(run, thread, number, step):
    """Access the current page: a hit continues, a fault jumps to its handler. Returns the thread's clock."""
    world, counters = run.worlds[0], run.counters
    if thread.interrupted == 2:
        thread.pause = 0
    thread.interrupted = 0
    page = thread.page
    fault = fault_of(world, run.pages, run.blocks, page)
    if logs.must_leave_guest(world, thread, fault):
        statistics.record_event(world, counters.trace, world.now, number, statistics.LEAVE, page)
        thread.pc = step.e
        return world.now
    if fault == NO_FAULT or fault == LOGGED:
        thread.pc += 1
        if thread.kicked:
            statistics.end_kick(world, counters, thread, number)
        if fault == LOGGED:
            logs.log_write(world, run.pages, run.logs, thread, number, page)
            statistics.record_entry(world, counters.ledger, number, statistics.WRITE, page, 2)
            return world.now + world.dirty_set_ps
        if counters.ledger is not None and is_written(world, page):
            statistics.record_entry(world, counters.ledger, number, statistics.WRITE, page, 0)
        return world.now
    thread.faults[fault] += 1
    statistics.record_event(world, counters.trace, world.now, number, statistics.FAULT, fault)
    if fault <= 1:
        thread.pc = step.a if fault == 0 else step.b
    else:
        thread.pc = step.c if fault == 2 else step.d
    return world.now
