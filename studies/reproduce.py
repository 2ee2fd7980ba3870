# SPDX-License-Identifier: BSD-3-Clause
"""The ``simlib reproduce`` job: compute all studies, run all notebooks on the findings, and write an HTML report."""

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

from simlib._lib.files import check_writable, write_together
from simlib._lib.parallel import Check, Progress, run_all, subprogress, subprogresses
from simlib._lib.version import __version__
from simlib.measurements import load
from simlib.measurements.fits.file import fit_text
from simlib.ui.report.block import Card, Cards, Chart, Note, Prose, Table
from simlib.ui.report.page import Report, Section
from studies import all_studies
from studies.engine_checks import checks
from studies.notebook_pages import NotebookPages, notebook_paths
from studies.published import MISS_PERCENT, answer, caption, published_errors, published_table, short_summary, source_of
from studies.study import FINDINGS_FOLDER, NOTEBOOK_S, Study, StudyFindings

LAST = "12-validation-and-limits"
"""The notebook that reads the findings of all studies; other notebooks read at most the findings of their own study."""


def reproduce(out: Path, *, seed: int = 1, progress: Progress | None = None) -> Path:
    """Compute all studies, run all notebooks, check the engines and write the report.

    Returns: Path of the index. Raises `SimlibError` if the engines disagree or a cell of a notebook fails, and
    `InputError` if the folder cannot be written.

    - `out`: folder for ``index.html``, a page for each notebook, the fits and the tables behind the figures.
    - `progress`: called with (what, share of the total done).
    """
    out, studies = Path(out), all_studies()
    check_writable(out, folder=True)
    with tempfile.TemporaryDirectory(prefix="simlib-") as private:
        pages = NotebookPages(out, {FINDINGS_FOLDER: private})
        assigned = {name for study in studies for name in (*study.notebooks, LAST)}
        others = [path for path in notebook_paths() if path.stem not in assigned]
        runtimes = [*(study.runtime_s for study in studies), *(NOTEBOOK_S for _ in others)]
        parts = iter(subprogresses(subprogress(progress, 0.0, 0.98), runtimes))
        # Run several at a time: simulations release the GIL while a calibration holds it, and a notebook has its own
        # process.
        tasks: list[Callable[[Check], Any]] = [
            *(partial(_compute_and_run, study, pages, seed, next(parts)) for study in studies),
            *(partial(_run_notebook, path, pages, next(parts)) for path in others),
        ]
        names = [study.name for study in studies]
        findings: dict[str, StudyFindings] = dict(zip(names, run_all(tasks, nested=True), strict=False))
        checked = checks(seed)
        for path in notebook_paths([LAST]):
            _run_notebook(path, pages, subprogress(progress, 0.98, 1.0))
    pages.write_linked_files()
    numbers = published_table(part.numbers for part in findings.values())
    texts = {"published.csv": numbers.to_csv(index=False)}
    for name, part in findings.items():
        texts |= _files(name.replace("_", "-"), part)
    texts["index.html"] = _index(numbers, pages.sorted_cards(), checked, seed).to_html()
    write_together(out, texts)
    return (out / "index.html").resolve()


def _compute_and_run(
    study: Study[StudyFindings], pages: NotebookPages, seed: int, progress: Progress | None, check: Check
) -> StudyFindings:
    """Compute and save the findings of a study, then run its notebooks, which load them."""
    folder = Path(pages.environment[FINDINGS_FOLDER])
    findings = study.load_or_compute(seed=seed, progress=subprogress(progress, 0.0, 0.8), folder=folder)
    for path in notebook_paths(study.notebooks):
        _run_notebook(path, pages, subprogress(progress, 0.8, 1.0), check)
    return findings


def _run_notebook(path: Path, pages: NotebookPages, progress: Progress | None, check: Check = lambda: None) -> None:
    """Run a notebook and write its page."""
    report = progress or (lambda what, share: None)
    report(f"running {path.name}", 0.0)
    pages.run(path, check)
    report(f"running {path.name}", 1.0)


def _files(name: str, findings: StudyFindings) -> dict[str, str]:
    """Texts of a study's tables and fits by file name."""
    tables = ({"numbers": findings.numbers} if len(findings.numbers) else {}) | dict(findings.tables)
    texts = {f"{name}-{key}.csv": table.to_csv(index=False) for key, table in tables.items()}
    return texts | {f"{name}-{key}.json": fit_text(fit) for key, fit in findings.calibrated.items()}


def _index(numbers: pd.DataFrame, cards: Sequence[Card], checked: Section, seed: int) -> Report:
    """Build the report's index: accuracy, studies, notebooks, checks and provenance."""
    study_pages = {f"{name}.html" for study in all_studies() for name in study.notebooks}
    in_studies, others = ([card for card in cards if (card.link in study_pages) == wanted] for wanted in (True, False))
    tables = short_summary(numbers)
    missed = tables.loc[tables["missed"] > 0, ["published table", "held out", "missed", "furthest"]]
    missed_caption = (
        "Tables with missed numbers, and the largest error in each. The notebook on validation discusses the causes."
    )
    tables_caption = (
        "Published numbers by table. Held out: not used to fit a cost or to choose a setting. Missed: held "
        f"out, off by more than {MISS_PERCENT:g} %, and outside their interval. Furthest: the held-out number with the "
        "largest error. All numbers are in published.csv."
    )
    note = (
        "Some held-out numbers, such as x86's faults on two sockets, were known when the form of the model was chosen. "
        "For these numbers the test is not blind. Intervals of teardown's bounds are ranges over interpretations, not "
        "confidence intervals."
    )
    chart = Chart(published_errors(numbers), caption(numbers))
    provenance = (
        f"Written by simlib {__version__} on {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC with seed "
        f"{seed}, Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__} and Numba "
        f"{version('numba')}."
    )
    inputs = Table(_provenance(), "Tables of data/ that each study uses.")
    return Report(
        "The cost of KVM's mmu_lock during dirty logging, by locking strategy",
        "simlib is a calibrated model of KVM's dirty logging. This report compares it with all published numbers.",
        [
            Section("Prediction errors and missed numbers", [Prose(answer(numbers)), Table(missed, missed_caption)]),
            Section("Studies", [Cards(in_studies)]),
            Section("Other notebooks", [Cards(others)]),
            Section("Published numbers", [chart, Table(tables, tables_caption), Note(note, "Meaning of held out")]),
            checked,
            Section("Provenance", [Prose(provenance), inputs]),
        ],
    )


def _provenance() -> pd.DataFrame:
    """Input tables of each study, with their sources and the hashes of their files."""
    rows = [
        (study.title, name, source_of(name), hashlib.sha256(load(name).path.read_bytes()).hexdigest()[:16])
        for study in all_studies()
        for name in study.input_tables
    ]
    return pd.DataFrame(rows, columns=["study", "table", "source", "SHA-256, begins with"])
