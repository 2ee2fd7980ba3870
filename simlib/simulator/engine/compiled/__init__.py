# SPDX-License-Identifier: BSD-3-Clause
"""The fast engine: interprets the step language in code compiled by Numba, with one module per subject.

`simlib.simulator.engine.reference` defines the behaviour; this engine computes the same result, event for event.
`state` holds the records of a run, `calendar` the order of wake-ups, `lookahead` the steps that need no event (with the
facts that `static_analysis` derives from the programs and the rounds that `fast_forward` learns), `access` the guest's
memory accesses, `clock` the passing of time, `turns` the scheduling of an emulator's single processor, `locks` the lock
disciplines, `waiting` barriers, sleep and idling, `throttling` the throttling of vCPUs, `memory` the page table and the
dirty log, `logs` the log buffers and dirty rings, `statistics` the records. `interpreter` runs one step after another.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from threading import Lock

import numpy as np

from simlib._lib.jit import address_of, compiling_in_background, is_cached
from simlib.model.job import Job
from simlib.model.program import Program
from simlib.simulator.engine import limits
from simlib.simulator.engine.compiled.inline import loops_as_written
from simlib.simulator.engine.compiled.interpreter import advance, slow_path
from simlib.simulator.engine.compiled.state import DEADLOCK, PAST_HORIZON, RUNAWAY, RUNNING, Run, initial_run
from simlib.simulator.engine.result import EngineResult, Progress

_compiling = Lock()
_background: list[ExitStack] = []
"""The process that compiles the larger part of the engine, if `compile_in_background` has begun one."""

_addresses: dict[bool, int] = {}
"""Addresses of `slow_path` for runs with records (True) and without (False), once the engine is compiled for them."""

BUDGET = 500_000
"""Number of events (well below 0.1 s) between two checks for an interrupt and updates of the progress display."""


def run(job: Job, seed: int = 1, *, trace: int = 0, ledger: int = 0, progress: Progress | None = None) -> EngineResult:
    """Run a job with the compiled engine.

    Raises `DeadlockError` if no thread can continue. Raises `InputError` if the job has more than 1024 threads. Raises
    `HorizonError` for an endless loop, a ring overflow, a time above 75 minutes, or too long a trace or ledger.

    - `job`: programs, threads and locks.
    - `seed`: random seed.
    - `trace`: record up to this many trace events; 0: none.
    - `ledger`: record up to this many entries on what happened to the guest's pages; 0: none.
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
    state = initial_run(job, seed, trace, ledger)
    world = state.worlds[0]
    compile_for(state)
    while world["status"] == RUNNING and world["overflow_at"] < 0:
        advance(state, BUDGET)
        if progress is not None:
            progress(int(world["events"]), int(world["now"]))
    if world["overflow_at"] >= 0:
        raise limits.ring_overflow(int(world["overflow_at"]))
    if world["status"] == DEADLOCK:
        raise limits.deadlock(job, int(world["now"]), state.threads["ended"])
    if world["status"] == PAST_HORIZON:
        raise limits.past_horizon()
    if world["status"] == RUNAWAY:
        raise limits.runaway(int(world["now"]))
    limits.check_room("trace events", int(world["traced"]), trace)
    limits.check_room("ledger entries", int(world["ledgered"]), ledger)
    return _engine_result(state)


def is_loaded() -> bool:
    """True if this process has loaded the machine code for runs without records."""
    return False in _addresses


def is_compiled() -> bool:
    """True if the machine code for runs without records is cached on disk."""
    state = _minimal_run()
    return is_cached(advance, (state, BUDGET)) and is_cached(slow_path, (state, -1))


def compiling_engine() -> AbstractContextManager[None]:
    """Compile the engine in another process while the ``with`` block runs, unless the machine code is cached."""
    return compiling_in_background(advance, (_minimal_run(), BUDGET), "simlib.simulator.engine.compiled", "plain")


def compile_in_background() -> None:
    """Begin to compile the larger part of the engine in another process, unless it is cached; the first run waits."""
    process = ExitStack()
    command = "simlib.simulator.engine.compiled", "advance"
    process.enter_context(compiling_in_background(advance, (_minimal_run(), BUDGET), *command))
    _background.append(process)


def compile_advance() -> None:
    """Compile the larger part of the engine, for runs without records."""
    with loops_as_written():
        address_of(advance, (_minimal_run(), BUDGET))


def compile_ahead(*, recorded: bool = False, slow_path_only: bool = False) -> None:
    """Compile the engine, or only its slow path, before its first run, for runs with or without records."""
    compile_for(_minimal_run(8 if recorded else 0), slow_path_only=slow_path_only)


def _minimal_run(records: int = 0) -> Run:
    """A run of a minimal job (one thread, one RUN), before its first event."""
    program = Program()
    with program.thread():
        program.run(1000)
    zeros = np.zeros(1, dtype=int)
    job = Job(program.steps(), zeros, np.zeros((1, 2), dtype=int), zeros, 0, 0, 0, zeros)
    return initial_run(job, 1, records, 0)


def compile_for(state: Run, *, slow_path_only: bool = False) -> None:
    """Compile or load the engine, or only its slow path, for runs like this one: with records or without.

    If no machine code is cached, another process compiles the slow path in parallel.
    """
    recorded = state.counters.trace is not None
    with _compiling, loops_as_written():
        while _background:
            address_of(slow_path, (state, -1))
            _background.pop().close()
        if recorded not in _addresses:
            if not slow_path_only:
                command = "simlib.simulator.engine.compiled", "slow_path", "recorded" if recorded else "plain"
                with compiling_in_background(slow_path, (state, -1), *command):
                    address_of(advance, (state, BUDGET))
            _addresses[recorded] = address_of(slow_path, (state, -1))
    state.worlds["slow_path"] = _addresses[recorded]


def _engine_result(state: Run) -> EngineResult:
    """Result of a run that ended normally."""
    world, threads, locks, counters = state.worlds[0], state.threads, state.locks, state.counters
    nothing = np.zeros((0, 5), dtype=np.int64)
    trace = nothing if counters.trace is None else counters.trace[: world["traced"]]
    ledger = nothing if counters.ledger is None else counters.ledger[: world["ledgered"]]
    return EngineResult(
        end_ps=int(np.max(threads["ended"])),
        events=int(world["events"]),
        lock_stats=locks["stats"].reshape(len(locks), 2, -1).copy(),
        wait_histogram=locks["waits"].reshape(len(locks), 2, -1).copy(),
        hold_histogram=locks["holds"].reshape(len(locks), 2, -1).copy(),
        busy_ps=locks["busy"].copy(),
        thread_ps=threads["spent"].copy(),
        thread_end_ps=threads["ended"].copy(),
        faults=threads["faults"].copy(),
        bin_ps=1 << int(world["shift"]),
        lap_max_ps=threads["lap_max"].copy(),
        throttle=int(world["throttle"]),
        **counters._replace(trace=trace, ledger=ledger)._asdict(),
    )
