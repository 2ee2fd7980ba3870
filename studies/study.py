# SPDX-License-Identifier: BSD-3-Clause
"""Definitions that all studies share: a table of published numbers with the model's, `StudyFindings` and `Study`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib._lib.errors import InputError
from simlib._lib.files import replace
from simlib._lib.parallel import Progress
from simlib.analysis.prediction_options import LEVEL
from simlib.figures.results import Answer
from simlib.measurements.fits import Fit, find_fit
from simlib.model.scenario import Scenario

FITTED, HELD_OUT, SHOWN_ONLY, NOT_PREDICTED = ROLES = ("fitted", "held out", "shown only", "not predicted")
"""Role of a published number: used to fit a cost or to choose a setting; used for neither; zero, so that no
relative error is defined; or the publication lacks what a prediction needs."""

COLUMNS = ("variant", "vcpus", "metric", "published", "unit", "relation", "predicted", "low", "high", "role", "table")
"""Columns of a published number and its prediction. ``relation`` is ``up-to`` or ``below`` where a bound was
published, and empty elsewhere; ``role`` is one of `ROLES`; ``table`` names the published table in data/."""

CHANGE = "% change"
"""Unit of a published relative change; its error is computed on the ratio 1 + change / 100."""

FINDINGS_FOLDER = "SIMLIB_FINDINGS"
"""Environment variable that names a folder of pickled `StudyFindings`. `simlib reproduce` creates a private folder and
sets the variable for the notebooks that it executes, so that they load the findings instead of computing them again."""


def comparison_rows(rows: pd.DataFrame, table: str | Sequence[str]) -> pd.DataFrame:
    """Return published numbers with all of `COLUMNS`, in that order, followed by the other columns of `rows`.

    - `rows`: variant, metric, published, unit, role; optionally vcpus, relation, predicted, low and high.
    - `table`: name of the published table, or one name for each row.

    >>> rows = pd.DataFrame({"variant": ["a"], "metric": "m", "published": 10.0, "unit": "s", "role": "held out"})
    >>> comparison_rows(rows.assign(memory_gb=4), "some-table").iloc[0].dropna().to_dict()
    {'variant': 'a', 'metric': 'm', 'published': 10.0, 'unit': 's', 'relation': '', 'role': 'held out',
     'table': 'some-table', 'memory_gb': 4}
    """
    defaults: dict[str, Any] = {"vcpus": np.nan, "relation": "", "predicted": np.nan, "low": np.nan, "high": np.nan}
    rows = rows.assign(**{name: value for name, value in defaults.items() if name not in rows}, table=table)
    extra = [name for name in rows if name not in COLUMNS]
    return rows[[*COLUMNS, *extra]].reset_index(drop=True)


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``error_percent`` and ``inside`` (True if the interval contains the published number) to published numbers.

    The error is predicted / published − 1, and for a relative change (100 + predicted) / (100 + published) − 1. It is
    NaN for a bound and for a published zero.

    >>> rows = pd.DataFrame({"variant": ["a"], "metric": "m", "published": 10.0, "unit": "s", "role": "held out",
    ...                      "predicted": 11.0, "low": 10.5, "high": 12.0})
    >>> with_errors(comparison_rows(rows, "t"))[["error_percent", "inside"]].round(6).to_numpy().tolist()
    [[10.0, False]]
    >>> round(with_errors(comparison_rows(rows.assign(unit=CHANGE), "t"))["error_percent"].item(), 3)
    0.909
    """
    base = np.where(rows["unit"] == CHANGE, 100.0, 0.0)
    published, model = (base + rows[name].to_numpy(dtype=float) for name in ("published", "predicted"))
    exact = (rows["relation"] == "").to_numpy() & (published > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(exact, 100 * (model / published - 1), np.nan)
    known = rows[["low", "high"]].notna().all(axis=1) & exact
    inside = (rows["published"] >= rows["low"]) & (rows["published"] <= rows["high"])
    return rows.assign(error_percent=error, inside=inside.astype(object).where(known, None))


def held_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the held-out rows with the columns that `with_errors` adds."""
    return with_errors(rows[rows["role"] == HELD_OUT]).reset_index(drop=True)


def student_t(dof: int) -> float:
    """Quantile of Student's t for two-sided intervals at `simlib.analysis.prediction_options.LEVEL`.

    >>> round(student_t(8), 2)
    1.86
    """
    return float(stats.t.ppf(0.5 + LEVEL / 2, dof))


def interval_from_draws(best: float, logs: NDArray[np.float64], discrepancy: float = 0.0) -> tuple[float, float]:
    """Interval around the best value, from Student's t for the scatter of few draws and from the fit's discrepancy.

    - `best`: value at the fitted costs.
    - `logs`: logarithms of the draws' values relative to `best`.
    - `discrepancy`: standard deviation of the fit's residuals, in logarithms.
    """
    half = student_t(len(logs)) * float(np.hypot(np.sqrt(np.mean(logs**2)), discrepancy))
    return float(best * np.exp(-half)), float(best * np.exp(half))


def shipped_fit(scenario: Scenario) -> Fit:
    """Return the shipped fit of a scenario's host.

    Raises `InputError` if there is none.
    """
    fit = find_fit(scenario)
    if fit is None:
        raise InputError("host.name", scenario.host.name, "has no fit in data/fits")
    return fit


@dataclass(frozen=True)
class StudyFindings:
    """Result of a study. A subclass adds what the study's notebook and figures need.

    - `numbers`: `COLUMNS` and additional columns of the study, one row for each published number; may be empty.
    - `tables`: additional tables, which ``simlib reproduce`` writes as ``<study>-<name>.csv``.
    - `calibrated`: fits that the study computed, written as ``<study>-<name>.json``.
    """

    numbers: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    calibrated: Mapping[str, Fit] = field(default_factory=dict, kw_only=True)

    def of_table(self, table: str) -> pd.DataFrame:
        """Return the numbers of a published table."""
        return self.numbers[self.numbers["table"] == table]


F = TypeVar("F", bound=StudyFindings)

NOTEBOOK_S = 12.0
"""Typical run time of a notebook that computes little, s."""


@dataclass(frozen=True)
class Study(Generic[F]):
    """A published or collected subject: its input tables, its computation and its notebooks.

    - `name`: name of its folder in `studies`.
    - `title`: short title for the report.
    - `notebooks`: names in ``notebooks/`` without the suffix. The first one ends with the study's answer.
    - `input_tables`: names of the tables in data/ that the study uses.
    - `compute`: function of `seed` and `progress` that computes all findings; it calls `progress` with (what, share
      done).
    - `answer`: function from the findings to the closing sentence.
    - `runtime_s`: run time with its notebooks on one of two CPUs, s, by which `reproduce` weights progress.
    """

    name: str
    title: str
    notebooks: tuple[str, ...]
    input_tables: tuple[str, ...]
    compute: Callable[..., F]
    answer: Callable[[F], Answer]
    runtime_s: float = NOTEBOOK_S

    def load_or_compute(self, *, seed: int = 1, progress: Progress | None = None, folder: Path | None = None) -> F:
        """Load the findings from a folder, by default `FINDINGS_FOLDER`; if they are missing, compute and save them.

        The file is a pickle: loading it executes code, so nobody else may be able to write to the folder.
        """
        directory = folder or os.environ.get(FINDINGS_FOLDER)
        path = Path(directory, f"{self.name}-{seed}.pickle") if directory else None
        if path is not None and path.is_file():
            saved: F = pickle.loads(path.read_bytes())  # noqa: S301  # the folder's owner vouches for its contents
            return saved
        findings = self.compute(seed=seed, progress=progress)
        if path is not None:
            replace(path, pickle.dumps(findings))
        return findings
