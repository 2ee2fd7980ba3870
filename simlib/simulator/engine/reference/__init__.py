# SPDX-License-Identifier: BSD-3-Clause
"""The reference engine: defines the step language with SimPy, with one module per subject.

`simlib.simulator.engine.compiled` must give the same trace to the picosecond. Simultaneous events occur in the
order of the thread numbers.

`simulation` runs the threads and collects the result; `interpreter` takes the steps that no other thread can observe,
`access` those that touch memory, `locking` those on locks, `waiting` barriers and sleep, `throttling` those that slow
vCPUs down. `world` holds the parts of a run, `turns` schedules an emulator's single processor, `locks` has the lock
disciplines, `memory` the page table and the dirty log, `logs` the log buffers and dirty rings, `clock` clocks and
random draws, `statistics` the records, `threads` the registers of a thread, `calendar` the order of wake-ups.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.simulator.engine.reference.simulation import Simulation
from simlib.simulator.engine.result import EngineResult, Progress


def run(job: Job, seed: int = 1, *, trace: int = 0, ledger: int = 0, progress: Progress | None = None) -> EngineResult:
    """Run a job with the reference engine; see `simlib.simulator.engine.compiled.run`.

    >>> import numpy as np
    >>> from simlib.simulator.engine.compiled import run as fast
    >>> from simlib.model.program import Lock, Program
    >>> from simlib.model.steps import Mode
    >>> p = Program()
    >>> with p.thread(), p.repeat(10):
    ...     p.run(2000)
    ...     with p.holding(Lock(0, Mode.WRITE)):
    ...         p.hold(1000)
    >>> job = Job(p.steps(), np.zeros(2, int), np.zeros((2, 2), int), np.zeros(1, int), 0, 0, 0, np.zeros(2, int))
    >>> run(job, trace=1000) == fast(job, trace=1000)
    True
    """
    return Simulation(job, seed, trace, ledger, progress).run()
