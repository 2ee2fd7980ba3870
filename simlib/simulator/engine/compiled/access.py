# SPDX-License-Identifier: BSD-3-Clause
"""The guest touches its memory."""

from __future__ import annotations

from simlib.simulator.engine.compiled import logs
from simlib.simulator.engine.compiled.clock import IDLE, RUN, shown
from simlib.simulator.engine.compiled.inline import always_inline, outlined
from simlib.simulator.engine.compiled.memory import LOGGED, NO_FAULT, fault_of, writes
from simlib.simulator.engine.compiled.statistics import FAULT, LEAVE, PAUSE, PAUSED, WRITE, end_kick, enter, note


@always_inline
def is_interrupted(thread):
    """Whether the vCPU must leave the guest before its access, which is then made afterwards."""
    return (thread.kick > 0 and not thread.interrupted) or (thread.pause > 0 and thread.interrupted != 2)


@outlined
def interrupt(run, thread, number):
    """The vCPU leaves the guest, as a kick or a throttle asked for, and enters it again; returns its clock."""
    world, books = run.worlds[0], run.books
    kick, pause = thread.kick, thread.pause
    if pause:
        kick += logs.drain(run, thread, number) * world.pause_entry
    thread.spent[RUN] += kick
    thread.spent[IDLE] += pause
    thread.kick = 0
    thread.interrupted = 2 if pause else 1
    if thread.kick_stalls or pause:
        thread.kicked = 1
        thread.lap_from = shown(world, world.now)
    if pause:
        note(world, books.trace, world.now, number, PAUSE, pause)
        enter(world, books.ledger, number, PAUSED, kick, pause)
    return world.now + kick + pause


@always_inline
def target_of(step, fault):
    """Where a fault goes to."""
    if fault == 0:
        return step.a
    if fault == 1:
        return step.b
    return step.c if fault == 2 else step.d


@always_inline
def access(run, thread, number, step):
    """The guest touches its page: a hit goes on, a fault jumps. Returns the thread's clock."""
    world, books = run.worlds[0], run.books
    if thread.interrupted == 2:
        thread.pause = 0
    thread.interrupted = 0
    page = thread.page
    fault = fault_of(world, run.pages, run.blocks, page)
    if logs.leaves(world, thread, fault):
        note(world, books.trace, world.now, number, LEAVE, page)
        thread.pc = step.e
        return world.now
    if fault == NO_FAULT or fault == LOGGED:
        thread.pc += 1
        if thread.kicked:
            end_kick(world, books, thread, number)
        if fault == LOGGED:
            logs.write(world, run.pages, run.logs, thread, number, page)
            enter(world, books.ledger, number, WRITE, page, 2)
            return world.now + world.dirty_set_ps
        if books.ledger is not None and writes(world, page):
            enter(world, books.ledger, number, WRITE, page, 0)
        return world.now
    thread.faults[fault] += 1
    note(world, books.trace, world.now, number, FAULT, fault)
    thread.pc = target_of(step, fault)
    return world.now
