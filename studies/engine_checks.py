# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the ``simlib reproduce`` job: the two engines agree with each other and with exact theory."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from simlib._lib.errors import SimlibError
from simlib.analysis import theory
from simlib.measurements.fits import Fit
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Lock, Program
from simlib.model.steps import Mode, Stamp
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import PS
from simlib.simulator.workloads import build
from simlib.ui.report.block import Prose, Table
from simlib.ui.report.page import Section
from studies.arm64 import altra

_EVENTS = 200_000
"""Maximum number of events in a trace."""

_RUNS, _LEVEL = 6, 0.99
"""Number of independent runs of the lock loop, and confidence level of their interval."""


def checks(seed: int) -> Section:
    """Return both checks as a section of the index. Raises `SimlibError` if the engines disagree."""
    exact = pd.DataFrame([{"vCPUs": n, **lock_loop(n, seed)} for n in (1, 2, 8, 32, 64)])
    introduction = (
        "The compiled engine and the SimPy engine interpret the same programs, and the times in their event traces "
        "must agree to the picosecond. Where an exact result is known, the compiled engine is also compared with it."
    )
    identity = "Engine identity on a small instance of each variant (4 vCPUs, 2 MiB each)."
    loops = (
        f"A closed lock loop with exponential think and hold times (means 5 µs and 0.5 µs): throughput of {_RUNS} "
        f"independent runs with its {100 * _LEVEL:g} % interval, and that of the exact machine-repairman model. The "
        f"{len(exact)} intervals are not corrected for multiple comparisons."
    )
    tables = [Table(engines(altra.shipped_fit(), seed), identity), Table(exact, loops, digits=6)]
    return Section("Checks made in this run", [Prose(introduction), *tables])


def engines(fit: Fit, seed: int) -> pd.DataFrame:
    """Run a small guest of each variant of a fit in both engines.

    Returns: variant, events, traces equal, time of each thread adds up. Raises `SimlibError` if the engines disagree.
    """
    rows = []
    for variant in fit.scenario.variants:
        case = fit.estimate.apply(fit.case(variant, 4))
        job = build(case.changed({"guest": {"memory_per_vcpu": "2M"}}))
        run = compiled.run(job, seed, trace=_EVENTS)
        if reference.run(job, seed, trace=_EVENTS) != run:
            raise SimlibError(f"the two engines disagree on {variant}; please report this with the seed {seed}")
        adds_up = bool((run.thread_ps.sum(axis=1) == run.thread_end_ps).all())
        rows.append((variant, len(run.trace), True, adds_up))
    return pd.DataFrame(rows, columns=["variant", "events", "traces equal", "time of each thread adds up"])


def lock_loop(n: int, seed: int) -> dict[str, float]:
    """Steady-state throughput, per second, of `n` threads that think and take a lock, and the exact model's throughput.

    The throughput is measured between two stamps of the first thread; all other threads run longer.

    Returns: ``simulated, 1/s``, ``low``, ``high``, ``exact, 1/s``, ``inside``.
    """
    rounds = max(200, 120_000 // n)
    program = Program()

    def loop(count: int) -> None:
        with program.repeat(count):
            program.run(5_000_000, 1)
            with program.holding(Lock(0, Mode.WRITE)):
                program.hold(500_000, 1)

    with program.thread() as first:
        loop(rounds // 10)
        program.stamp(0)
        loop(rounds)
        program.stamp(1)
        loop(rounds // 5)
    with program.thread() as others:
        loop(rounds + 2 * (rounds // 5))
    entry = np.full(n, others.first, dtype=np.int64)
    entry[0] = first.first
    region, socket = np.zeros((n, 2), dtype=np.int64), np.zeros(n, dtype=np.int64)
    locks, stamps = np.array([Discipline.SERVER]), (Stamp("from"), Stamp("to"))
    job = Job(program.steps(), entry, region, locks, 0, 0, 0, socket, cvs=(0.0, 1.0), stamps=stamps)
    rates = []
    for k in range(_RUNS):
        run = compiled.run(job, seed + k)
        acquisitions = int(run.stamp_locks[1, 0, Mode.WRITE, 0] - run.stamp_locks[0, 0, Mode.WRITE, 0])
        rates.append(acquisitions / (float(run.stamp_ps[1] - run.stamp_ps[0]) * PS))
    mean, exact = float(np.mean(rates)), theory.machine_repairman(n, 5e-6, 0.5e-6).throughput
    low, high = stats.t.interval(_LEVEL, len(rates) - 1, mean, stats.sem(rates))
    return {"simulated, 1/s": mean, "low": low, "high": high, "exact, 1/s": exact, "inside": low <= exact <= high}
