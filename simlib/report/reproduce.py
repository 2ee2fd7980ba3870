# SPDX-License-Identifier: BSD-3-Clause
"""The main job: everything that the project shows, computed now and written as one report."""

from __future__ import annotations

import datetime
import hashlib
import platform
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pandas as pd
import scipy

from simlib import calibration, theory
from simlib.engine import compiled, reference
from simlib.engine.simulate import simulate
from simlib.errors import SimlibError
from simlib.files import write_text
from simlib.report import arm64
from simlib.report.block import Prose, Table
from simlib.report.page import Report, Section
from simlib.version import __version__
from simlib.workloads import build


def reproduce(out: Path, *, seed: int = 1, progress: Callable[[str, float], None] | None = None) -> Path:
    """Calibrate, check, predict, draw.

    Parameters
    ----------
    out : Path
        Folder for ``report.html``, the fit file and the tables behind the figures.
    seed : int
    progress : callable, optional
        Called with (what, share done).

    Returns
    -------
    Path
        The report.

    Raises
    ------
    SimlibError
        If the engines disagree, or the folder cannot be written.
    """
    out = Path(out)
    write_text(out / ".writable", "")  # fail before the work, not after it
    (out / ".writable").unlink(missing_ok=True)
    found = arm64.study(seed=seed, progress=progress)
    sections = arm64.sections(found, seed=seed, progress=progress)
    sections.append(_checks(found, seed))
    data = found.table.path.read_bytes()
    report = Report(
        "KVM's mmu_lock: published measurements, a calibrated model, and what it predicts",
        "arm64 dirty logging: from at most 8 vCPUs to 64",
        sections,
        {
            "simlib": __version__,
            "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "data": f"{found.table.name}, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}…",
            "seed": seed,
            "software": f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
            f"Numba {numba.__version__}",
            "every number": "measured, fitted or predicted, and marked so; nothing simulated is shown as measured",
        },
    )
    for name, frame in {
        "arm64-curves": found.curves, "arm64-held-out": found.held_out, "arm64-costs": found.fit.intervals,
        "arm64-time-per-fault": found.split, "arm64-predictions": found.prediction.frame,
    }.items():  # fmt: skip
        write_text(out / f"{name}.csv", frame.to_csv(index=False))
    calibration.save_fit(found.fit, out / "arm64-fit.json", arm64.TRAIN)
    path = out / "report.html"
    report.write(path)
    return path.resolve()


def _checks(found: arm64.Study, seed: int) -> Section:
    rows = []
    for variant in found.fit.problem.scenario.variants:
        case = found.fit.estimate.apply(found.fit.problem.case(variant, 4))
        small = case.changed({"guest": {"memory_per_vcpu": "2M"}})
        job = build(small)
        same = reference.run(job, seed, trace=200_000) == compiled.run(job, seed, trace=200_000)
        if not same:
            raise SimlibError(f"the two engines disagree on {variant}; please report this with the seed {seed}")
        run = simulate(small, seed=seed)
        spent, ended = run.raw.thread_ps.sum(axis=1), run.raw.thread_end_ps
        rows.append({"variant": variant, "events": len(compiled.run(job, seed, trace=200_000).trace),
                     "traces equal": same, "time of each thread adds up": bool((spent == ended).all())})  # fmt: skip
    exact = []
    for n in (1, 2, 8, 32, 64):
        law = theory.machine_repairman(n, 5e-6, 0.5e-6)
        exact.append({"vCPUs": n, **_lock_loop(n, seed), "exact throughput, 1/s": law.throughput})
    return Section(
        "Checks made in this run",
        [
            Prose(
                "The compiled engine and the SimPy engine interpret the same programs; their event traces must be "
                "equal to the picosecond. Where exact theory exists it is the third witness."
            ),
            Table(
                pd.DataFrame(rows),
                "Engine identity on a small instance of each variant (4 vCPUs, 2 MiB each).",
            ),
            Table(
                pd.DataFrame(exact),
                "A closed lock loop with exponential think (5 µs) and hold (0.5 µs), one long run each, against the "
                "machine-repairman model.",
            ),
        ],
    )


def _lock_loop(n: int, seed: int) -> dict[str, float]:
    from simlib.model.steps import Discipline, Job, Mode, Program, Step  # noqa: PLC0415  # used by this check only

    rounds = max(1, 200_000 // n)
    program = Program()
    top = program.add(Step.RUN, 5_000_000, 1)
    program.add(Step.TAKE, 0, Mode.WRITE)
    program.add(Step.HOLD, 500_000, 1)
    program.add(Step.DROP, 0, Mode.WRITE)
    program.add(Step.REPEAT, top, rounds)
    program.add(Step.END)
    zeros = np.zeros(n, dtype=np.int64)
    job = Job(
        np.array(program.rows), zeros, np.zeros((n, 2), dtype=np.int64), np.array([Discipline.SERVER]), 0, 0, 0,
        zeros, (0.0, 1.0),
    )  # fmt: skip
    run = compiled.run(job, seed)
    rate = run.lock_stats[0, Mode.WRITE, 0] / (float(run.thread_end_ps.mean()) * 1e-12)
    return {"simulated throughput, 1/s": float(rate)}
