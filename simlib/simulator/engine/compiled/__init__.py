# SPDX-License-Identifier: BSD-3-Clause
"""The fast engine: the step language interpreted by Numba, a room a subject.

`simlib.simulator.engine.reference` is the definition; this computes the same thing, event for event. `state` says what
a run is made of, `calendar` whose turn it is, `ahead` what needs no turn (by what `reach` found out before, and
`rounds` learnt), `access` how the guest touches memory, `clock` how time passes, `turns` who has an emulator's one
processor, `locks` who gets a lock, `slowing` how a VMM throttles vCPUs, `memory` what the page table and the log say,
`logs` what log buffers and dirty rings hold, `statistics` what is written down, and `interpreter` goes from step to
step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from simlib._lib.jit import address_of, compiled_elsewhere, is_kept
from simlib.model.job import Job
from simlib.model.program import Program
from simlib.simulator.engine import limits
from simlib.simulator.engine.compiled.calendar import first_calendar
from simlib.simulator.engine.compiled.inline import loops_as_written
from simlib.simulator.engine.compiled.interpreter import advance, aside
from simlib.simulator.engine.compiled.state import DEADLOCK, PAST_HORIZON, RUNAWAY, RUNNING, Run, run_of
from simlib.simulator.engine.result import EngineResult

_compiling = Lock()
_addresses: dict[bool, int] = {}
"""Of `aside`, for runs with records and without, as soon as the engine is compiled for them."""

BUDGET = 500_000
"""Work between two looks at the keyboard and the progress display, in events; well below a tenth of a second."""


def run(
    job: Job,
    seed: int = 1,
    *,
    trace: int = 0,
    ledger: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> EngineResult:
    """Run a job with the compiled engine.

    Raises `DeadlockError` if every thread that has not ended waits for another. Raises `HorizonError` if simulated time
    passes 75 minutes, or the trace outgrows `trace`. Raises `InputError` if the job has more than 1024 threads.

    - `job`: programs, threads and locks.
    - `seed`: root of all random streams.
    - `trace`: keep up to this many trace events; 0 keeps none.
    - `ledger`: keep up to this many entries of what happened to the guest's pages; 0 keeps none.
    - `progress`: called with (events, simulated time in ps) several times a second.

    >>> from simlib.model.program import Lock, Program
    >>> from simlib.model.steps import Mode
    >>> import numpy as np
    >>> p = Program()
    >>> with p.thread(), p.repeat(10):
    ...     p.run(2000)
    ...     with p.holding(Lock(0, Mode.WRITE)):
    ...         p.hold(1000)
    >>> job = Job(p.steps(), np.zeros(2, int), np.zeros((2, 2), int), np.zeros(1, int), 0, 0, 0, np.zeros(2, int))
    >>> result = run(job)
    >>> result.end_ps, result.lock_stats[0, 1, :2].tolist()
    (31000, [20, 1])
    """
    limits.check_size(job)
    state = run_of(job, seed, trace, ledger, first_calendar(len(job.entry), job.turn_ps > 0))
    world = state.worlds[0]
    compile_for(state)
    while world["status"] == RUNNING and world["overflow_at"] < 0:
        advance(state, BUDGET)
        if progress is not None:
            progress(int(world["events"]), int(world["now"]))
    if world["overflow_at"] >= 0:
        raise limits.overflow(int(world["overflow_at"]))
    if world["status"] == DEADLOCK:
        raise limits.deadlock(job, int(world["now"]), state.threads["ended"])
    if world["status"] == PAST_HORIZON:
        raise limits.past_horizon()
    if world["status"] == RUNAWAY:
        raise limits.runaway(int(world["now"]))
    limits.check_room("trace events", int(world["traced"]), trace)
    limits.check_room("ledger entries", int(world["ledgered"]), ledger)
    return _result(state)


def is_loaded() -> bool:
    """Whether this process has what a run without records needs."""
    return False in _addresses


def is_compiled() -> bool:
    """Whether nothing has to be compiled before a run without records."""
    state = _smallest()
    return is_kept(advance, (state, BUDGET)) and is_kept(aside, (state, -1))


def compiling_meanwhile() -> AbstractContextManager[None]:
    """While the block does something else, another process compiles the engine, unless it is kept already."""
    return compiled_elsewhere(advance, (_smallest(), BUDGET), "simlib.simulator.engine.compiled", "plain")


def compile_ahead(*, recorded: bool = False, only_aside: bool = False) -> None:
    """Compile the engine for runs with records or without, or only what happens seldom, before there is one."""
    compile_for(_smallest(8 if recorded else 0), only_aside=only_aside)


def _smallest(records: int = 0) -> Run:
    """A run of one thread and one step, before it begins."""
    program = Program()
    with program.thread():
        program.run(1000)
    none = np.zeros(1, dtype=int)
    job = Job(program.steps(), none, np.zeros((1, 2), dtype=int), none, 0, 0, 0, none)
    return run_of(job, 1, records, 0, first_calendar(1))


def compile_for(state: Run, *, only_aside: bool = False) -> None:
    """Compile the engine, or load it, if it has not been for such a run: with records or without.

    Where nothing is kept yet, another process compiles a half of it meanwhile.

    - `only_aside`: that half.
    """
    recorded = state.books.trace is not None
    with _compiling, loops_as_written():
        if recorded not in _addresses:
            if not only_aside:
                kind = "recorded" if recorded else "plain"
                with compiled_elsewhere(aside, (state, -1), "simlib.simulator.engine.compiled", "aside", kind):
                    address_of(advance, (state, BUDGET))
            _addresses[recorded] = address_of(aside, (state, -1))
    state.worlds["aside"] = _addresses[recorded]


def _written(rows: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """So many rows of a record; none, if it was not kept."""
    return np.zeros((0, 5), dtype=np.int64) if rows is None else rows[:count]


def _result(state: Run) -> EngineResult:
    """What is left of a run that ended well."""
    world, threads, locks, books = state.worlds[0], state.threads, state.locks, state.books
    return EngineResult(
        end_ps=int(np.max(threads["ended"])),
        events=int(world["events"]),
        lock_stats=locks["stats"].reshape(len(locks), 2, -1).copy(),
        wait_histogram=locks["waits"].reshape(len(locks), 2, -1).copy(),
        hold_histogram=locks["holds"].reshape(len(locks), 2, -1).copy(),
        busy_ps=locks["busy"].copy(),
        queue_ps=books.queue,
        thread_ps=threads["spent"].copy(),
        thread_end_ps=threads["ended"].copy(),
        faults=threads["faults"].copy(),
        progress=books.progress,
        bin_ps=1 << int(world["shift"]),
        stamp_ps=books.stamp_ps,
        stamp_locks=books.stamp_locks,
        stamp_sums=books.stamp_sums,
        stamp_own=books.stamp_own,
        stamp_waits=books.stamp_waits,
        lap_histogram=books.laps,
        lap_max_ps=threads["lap_max"].copy(),
        throttle=int(world["throttle"]),
        trace=_written(books.trace, int(world["traced"])),
        ledger=_written(books.ledger, int(world["ledgered"])),
    )
