# SPDX-License-Identifier: BSD-3-Clause
"""The main job: every study computed now, its notebook run on what it found, and an index that says what is missed."""

from __future__ import annotations

import datetime
import hashlib
import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy

from simlib import figures
from simlib._lib.files import check_writable, write_together
from simlib._lib.parallel import Check, Progress, run_all, subprogress, subprogresses
from simlib._lib.version import __version__
from simlib.measurements import load
from simlib.measurements.fits.file import fit_text
from simlib.ui.report.block import Card, Cards, Chart, Note, Prose, Table
from simlib.ui.report.page import Report, Section
from studies import every
from studies.engine_checks import checks
from studies.notebook_pages import NotebookPages, notebooks
from studies.published import FAR, answer, finding, published_table, short_summary, source_of
from studies.study import KEPT, NOTEBOOK_S, Found, Study

LAST = "12-validation-and-limits"
"""The notebook that reads what every study found. Others read what their own study found, or nothing."""


def reproduce(out: Path, *, seed: int = 1, progress: Progress | None = None) -> Path:
    """Calibrate, check, predict, draw.

    Returns: The index. Raises `SimlibError` if the engines disagree or a cell of a notebook fails, and `InputError` if
    the folder cannot be written.

    - `out`: folder for ``index.html``, a page of each notebook, the fits and the tables behind the figures.
    - `progress`: called with (what, share done of all).
    """
    out, studies = Path(out), every()
    check_writable(out, folder=True)
    with tempfile.TemporaryDirectory(prefix="simlib-") as private:
        pages = NotebookPages(out, {KEPT: private})
        elsewhere = {name for study in studies for name in (*study.notebooks, LAST)}
        others = [path for path in notebooks() if path.stem not in elsewhere]
        takes = [*(study.takes_s for study in studies), *(NOTEBOOK_S for _ in others)]
        parts = subprogresses(subprogress(progress, 0.0, 0.98), takes)
        # Several at a time: one calibrates in Python while another's runs do without it, and notebooks have their own.
        tasks: list[Callable[[Check], Any]] = [
            *(partial(_computed, study, pages, seed, part) for study, part in zip(studies, parts, strict=False)),
            *(partial(_run, path, pages, part) for path, part in zip(others, parts[len(studies) :], strict=True)),
        ]
        ended = run_all(tasks, wide=True)
        founds: dict[str, Found] = {study.name: found for study, found in zip(studies, ended, strict=False)}
        checked = checks(seed)
        for path in notebooks([LAST]):
            _run(path, pages, subprogress(progress, 0.98, 1.0))
    pages.linked()
    numbers = published_table(found.numbers for found in founds.values())
    texts = {"published.csv": numbers.to_csv(index=False)}
    for name, found in founds.items():
        texts |= _files(name.replace("_", "-"), found)
    texts["index.html"] = _index(numbers, pages.in_order(), checked, seed).to_html()
    write_together(out, texts)
    return (out / "index.html").resolve()


def _computed(study: Study[Found], pages: NotebookPages, seed: int, progress: Progress | None, check: Check) -> Found:
    """What a study found, kept for its notebooks, which are run on it."""
    found = study.found(seed=seed, progress=subprogress(progress, 0.0, 0.8), folder=Path(pages.environment[KEPT]))
    for path in notebooks(study.notebooks):
        _run(path, pages, subprogress(progress, 0.8, 1.0), check)
    return found


def _run(path: Path, pages: NotebookPages, progress: Progress | None, check: Check = lambda: None) -> None:
    """A notebook's page."""
    tell = progress or (lambda what, share: None)
    tell(f"running {path.name}", 0.0)
    pages.run(path, check)
    tell(f"running {path.name}", 1.0)


def _files(name: str, found: Found) -> dict[str, str]:
    """The tables and fits of a study by the names of their files."""
    numbers = {"numbers": found.numbers} if len(found.numbers) else {}
    tables = {f"{name}-{key}.csv": table.to_csv(index=False) for key, table in (numbers | dict(found.tables)).items()}
    return tables | {f"{name}-{key}.json": fit_text(fit) for key, fit in found.calibrated.items()}


def _index(numbers: pd.DataFrame, cards: Sequence[Card], checked: Section, seed: int) -> Report:
    """What is predicted how well, the studies, the checks, and where everything comes from."""
    told = {f"{name}.html" for study in every() for name in study.notebooks}
    tables = short_summary(numbers)
    software = (f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__} and Numba "
                f"{version('numba')}")  # fmt: skip
    return Report(
        "What KVM's mmu_lock costs, and what another way of taking it would cost",
        "simlib is a calibrated model of KVM's dirty logging. Below it stands beside every published number.",
        [
            Section(
                "How well it predicts, and what it misses",
                [
                    Prose(answer(numbers)),
                    Table(
                        tables.loc[tables["missed"] > 0, ["published table", "held out", "missed", "furthest"]],
                        "The tables with numbers that are missed, and the number that is furthest off. The notebook on "
                        "validation has the causes.",
                    ),
                ],
            ),
            Section("Studies", [Cards([card for card in cards if card.link in told])]),
            Section("More notebooks", [Cards([card for card in cards if card.link not in told])]),
            Section(
                "Every published number",
                [
                    Chart(figures.published_errors(numbers), finding(numbers)),
                    Table(
                        tables,
                        "Published numbers by their table. Held out: no cost was fitted to them, and no setting chosen "
                        f"on them. Missed: held out, off by more than {FAR:g} %, and outside of their interval. "
                        "Furthest: the held-out number that is furthest off. All numbers are in published.csv.",
                    ),
                    Note(
                        "Whoever chose the form of the model knew some of the held-out numbers, such as x86's faults "
                        "on two sockets. For these it is no blind test. Intervals of teardown's bounds are ranges of "
                        "readings.",
                        "What held out means",
                    ),
                ],
            ),
            checked,
            Section(
                "Where it comes from",
                [
                    Prose(
                        f"simlib {__version__} made this on {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC "
                        f"with seed {seed}, {software}."
                    ),
                    Table(_provenance(), "Tables of data/ that each study rests on."),
                ],
            ),
        ],
    )


def _provenance() -> pd.DataFrame:
    """The tables that each study reads, with their source and the hash of their file."""
    rows = [
        (study.title, name, source_of(name), hashlib.sha256(load(name).path.read_bytes()).hexdigest()[:16])
        for study in every()
        for name in study.reads
    ]
    return pd.DataFrame(rows, columns=["study", "table", "source", "SHA-256, begins with"])
