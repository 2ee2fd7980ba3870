# SPDX-License-Identifier: BSD-3-Clause
"""The main job: everything that the project shows, computed now and written as one report."""

from __future__ import annotations

import datetime
import hashlib
import platform
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from scipy import stats

from simlib import theory
from simlib.engine import compiled, reference
from simlib.engine.result import PS
from simlib.errors import SimlibError
from simlib.files import check_writable, write_together
from simlib.fits import Fit
from simlib.fits.file import fit_text
from simlib.measurements import load
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Lock, Program
from simlib.model.steps import Mode, Stamp
from simlib.parallel import Progress, each, portion
from simlib.report import published
from simlib.report.block import Block, Cards, Prose, Table
from simlib.report.books import Pages, notebooks
from simlib.report.page import Report, Section
from simlib.simulation import run_scenario
from simlib.studies import every
from simlib.studies.arm64 import altra
from simlib.studies.published import published_table
from simlib.studies.study import KEPT, Found
from simlib.version import __version__
from simlib.workloads import build


def reproduce(out: Path, *, seed: int = 1, progress: Callable[[str, float], None] | None = None) -> Path:
    """Calibrate, check, predict, draw.

    Returns: The report. Raises `SimlibError` if the engines disagree, or the folder cannot be written.

    Parameters
    ----------
    out : Path
        Folder for ``index.html``, a page of each notebook, the fit file and the tables behind the figures.
    progress : callable, optional
        Called with (what, share done of all).
    """
    out = Path(out)
    check_writable(out, folder=True)
    ends = pairwise(np.linspace(0.0, 0.95, len(every()) + 1))
    founds = {
        study.name: study.found(seed=seed, progress=portion(progress, float(begin), float(end)))
        for study, (begin, end) in zip(every(), ends, strict=True)
    }
    costs = founds["arm64"].fit
    checked = _checks(costs, seed)
    numbers = published_table(one.numbers for one in founds.values())
    sections = [
        published.section(numbers),
        Section("Studies", [_told(founds, out, seed, portion(progress, 0.95, 1.0))]),
        checked,
    ]  # fmt: skip
    table = load(altra.TABLE)
    report = Report(
        "KVM's mmu_lock: measurements, a calibrated model, and what it predicts",
        "arm64 dirty logging from at most 8 vCPUs to 64; running kernels of three architectures beside the simulator; "
        "live migrations that were published; the dirty log without the lock; VMs torn down; a strategy for CLEAR at "
        "the size of real guests",
        sections,
        {
            "simlib": __version__,
            "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "data": f"{table.name}, SHA-256 {hashlib.sha256(table.path.read_bytes()).hexdigest()[:16]}…",
            "seed": seed,
            "software": f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
            f"Numba {version('numba')}",
            "every number": "measured, fitted or predicted, and marked so; nothing simulated is shown as measured",
        },
    )
    tables = {"published": numbers}
    for name, one in founds.items():
        file = name.replace("_", "-")
        numbered = {"numbers": one.numbers} if len(one.numbers) else {}
        tables |= {f"{file}-{key}": frame for key, frame in (numbered | dict(one.tables)).items()}
    texts = {f"{name}.csv": frame.to_csv(index=False) for name, frame in tables.items()}
    texts["arm64-fit.json"] = fit_text(costs)
    write_together(out, texts | {"index.html": report.to_html()})
    return (out / "index.html").resolve()


def _told(founds: Mapping[str, Found], out: Path, seed: int, progress: Progress | None) -> Block:
    """Run the notebooks of studies on what was found, write their pages, and give a card of each."""
    with tempfile.TemporaryDirectory(prefix="simlib-") as private:
        pages = Pages(out, {KEPT: private})
        for study in every():
            study.keep(founds[study.name], Path(private), seed=seed)
        chosen = notebooks([name for study in every() for name in study.notebooks])
        told = [f"running {path.name}" for path in chosen]
        books = each([partial(pages.run, path) for path in chosen], told, progress)
    pages.linked()
    return Cards(books)


def _checks(fit: Fit, seed: int) -> Section:
    rows = []
    for variant in fit.scenario.variants:
        case = fit.estimate.apply(fit.case(variant, 4))
        small = case.changed({"guest": {"memory_per_vcpu": "2M"}})
        job = build(small)
        same = reference.run(job, seed, trace=200_000) == compiled.run(job, seed, trace=200_000)
        if not same:
            raise SimlibError(f"the two engines disagree on {variant}; please report this with the seed {seed}")
        run = run_scenario(small, seed=seed)
        spent, ended = run.raw.thread_ps.sum(axis=1), run.raw.thread_end_ps
        rows.append({"variant": variant, "events": len(compiled.run(job, seed, trace=200_000).trace),
                     "traces equal": same, "time of each thread adds up": bool((spent == ended).all())})  # fmt: skip
    exact = pd.DataFrame([{"vCPUs": n, **_lock_loop(n, seed)} for n in (1, 2, 8, 32, 64)])
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
                exact,
                "A closed lock loop with exponential think (5 µs) and hold (0.5 µs): throughput of six independent "
                "runs with its 99 % interval, beside the exact machine-repairman model. Five rows, no correction for "
                "their number.",
                digits=6,
            ),
        ],
    )


def _lock_loop(n: int, seed: int) -> dict[str, float]:
    """Steady throughput: between two stamps of the first thread, which every thread outlives."""
    rounds = max(200, 120_000 // n)
    program = Program()

    def turns(count: int) -> None:
        with program.repeat(count):
            program.run(5_000_000, 1)
            with program.holding(Lock(0, Mode.WRITE)):
                program.hold(500_000, 1)

    with program.thread() as first:
        turns(rounds // 10)
        program.stamp(0)
        turns(rounds)
        program.stamp(1)
        turns(rounds // 5)
    with program.thread() as others:
        turns(rounds + 2 * (rounds // 5))
    zeros = np.zeros(n, dtype=np.int64)
    entry = np.full(n, others.first, dtype=np.int64)
    entry[0] = first.first
    job = Job(
        program.steps(),
        entry,
        np.zeros((n, 2), dtype=np.int64),
        np.array([Discipline.SERVER]),
        0,
        0,
        0,
        zeros,
        (0.0, 1.0),
        stamps=(Stamp("from"), Stamp("to")),
    )
    rates = []
    for k in range(6):
        run = compiled.run(job, seed + k)
        taken = int(run.stamp_locks[1, 0, Mode.WRITE, 0] - run.stamp_locks[0, 0, Mode.WRITE, 0])
        rates.append(taken / (float(run.stamp_ps[1] - run.stamp_ps[0]) * PS))
    half = float(stats.t.ppf(0.995, len(rates) - 1) * np.std(rates, ddof=1) / np.sqrt(len(rates)))
    mean, law = float(np.mean(rates)), theory.machine_repairman(n, 5e-6, 0.5e-6).throughput
    return {
        "simulated, 1/s": mean,
        "low": mean - half,
        "high": mean + half,
        "exact, 1/s": law,
        "inside": mean - half <= law <= mean + half,
    }
