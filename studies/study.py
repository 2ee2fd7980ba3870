# SPDX-License-Identifier: BSD-3-Clause
"""What studies share: one shape for a published number beside the model's, what a study found, and what a study is."""

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
from simlib.analysis.predict import LEVEL
from simlib.measurements.fits import Fit, find_fit
from simlib.model.scenario import Scenario

FITTED, HELD_OUT, COUNTED, NONE = ROLES = ("fitted", "held out", "shown only", "not predicted")
"""What a number is to the model: it was calibrated to or chosen on; it was not; a zero, which has no error; or nothing
published says enough to predict it."""

COLUMNS = ("variant", "vcpus", "metric", "published", "unit", "relation", "predicted", "low", "high", "role", "table")
"""Columns of a published number beside the model's. ``relation`` is ``up-to`` or ``below`` where a bound was published,
else empty; ``role`` is one of `ROLES`; ``table`` is the published table in data/."""

CHANGE = "% change"
"""The unit of a published change; its error is that of the ratio that it stands for."""

KEPT = "SIMLIB_FOUND"
"""The environment variable that names a folder of what studies found. `simlib reproduce` makes a private one and sets
it for the notebooks that it runs, so that these compute nothing again."""


def numbers(rows: pd.DataFrame, table: str | Sequence[str]) -> pd.DataFrame:
    """Published numbers with all of `COLUMNS`, in that order; what else `rows` has stands behind them.

    - `rows`: variant, metric, published, unit, role; vcpus, relation, predicted, low and high where there are any.
    - `table`: names of the published tables.

    >>> rows = pd.DataFrame({"variant": ["a"], "metric": "m", "published": 10.0, "unit": "s", "role": "held out"})
    >>> numbers(rows.assign(memory_gb=4), "some-table").iloc[0].dropna().to_dict()
    {'variant': 'a', 'metric': 'm', 'published': 10.0, 'unit': 's', 'relation': '', 'role': 'held out',
     'table': 'some-table', 'memory_gb': 4}
    """
    usual: dict[str, Any] = {"vcpus": np.nan, "relation": "", "predicted": np.nan, "low": np.nan, "high": np.nan}
    rows = rows.assign(**{name: value for name, value in usual.items() if name not in rows}, table=table)
    more = [name for name in rows if name not in COLUMNS]
    return rows[[*COLUMNS, *more]].reset_index(drop=True)


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Published numbers with ``error_percent`` and ``inside``: whether the interval holds the published number.

    The error is that of the predicted number over the published one; of a change in percent it is that of the ratio
    which the change stands for, (100 + predicted) over (100 + published). A bound and a zero have none.

    >>> rows = pd.DataFrame({"variant": ["a"], "metric": "m", "published": 10.0, "unit": "s", "role": "held out",
    ...                      "predicted": 11.0, "low": 10.5, "high": 12.0})
    >>> judged(numbers(rows, "t"))[["error_percent", "inside"]].round(6).to_numpy().tolist()
    [[10.0, False]]
    >>> round(judged(numbers(rows.assign(unit=CHANGE), "t"))["error_percent"].item(), 3)
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
    """The published numbers that the model did not see, with `judged`'s columns."""
    return judged(rows[rows["role"] == HELD_OUT]).reset_index(drop=True)


def student(dof: int) -> float:
    """Student's t for two-sided intervals of `simlib.analysis.predict.LEVEL`.

    >>> round(student(8), 2)
    1.86
    """
    return float(stats.t.ppf(0.5 + LEVEL / 2, dof))


def around(best: float, logs: NDArray[np.float64], discrepancy: float = 0.0) -> tuple[float, float]:
    """Interval around the best value from few draws: Student's t of their scatter, and the fit's discrepancy.

    - `logs`: logarithms of the draws' values over the best one.
    """
    half = student(len(logs)) * float(np.hypot(np.sqrt(np.mean(logs**2)), discrepancy))
    return float(best * np.exp(-half)), float(best * np.exp(half))


def shipped_fit(scenario: Scenario) -> Fit:
    """The shipped fit of a scenario's machine.

    Raises `InputError` if there is none.
    """
    found = find_fit(scenario)
    if found is None:
        raise InputError("host.name", scenario.host.name, "has no fit in data/fits")
    return found


class Answer(str):
    """The sentence that a notebook closes with, made from the numbers above it; a notebook shows it in bold.

    >>> Answer("It does.")._repr_markdown_()
    '**Answer.** It does.'
    """

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"**Answer.** {self}"


@dataclass(frozen=True)
class Found:
    """What a study found. A study's own class adds what its notebook and its figures need.

    - `numbers`: `COLUMNS`, one row a published number, and the study's own columns behind them; may be empty.
    - `tables`: what ``simlib reproduce`` writes beside it, as ``<study>-<name>.csv``.
    - `calibrated`: costs that were calibrated now, written as ``<study>-<name>.json``.
    """

    numbers: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    calibrated: Mapping[str, Fit] = field(default_factory=dict, kw_only=True)


F = TypeVar("F", bound=Found)

NOTEBOOK_S = 12.0
"""How long a notebook that computes little takes, s."""


@dataclass(frozen=True)
class Study(Generic[F]):
    """A published or collected subject: what it reads, how it is computed, and which notebooks tell it.

    - `name`: that of its folder in `studies`.
    - `title`: for people, a few words.
    - `notebooks`: its text: names in ``notebooks/``, without their ending. The first one ends with its answer.
    - `reads`: the tables of data/ that it rests on.
    - `compute`: computes everything that the study shows, by `seed`; `progress` is told (what, share done).
    - `answer`: its closing sentence, from what it found.
    - `takes_s`: how long it took with its notebooks on one of two CPUs, s: `reproduce` tells what is left by it.
    """

    name: str
    title: str
    notebooks: tuple[str, ...]
    reads: tuple[str, ...]
    compute: Callable[..., F]
    answer: Callable[[F], Answer]
    takes_s: float = NOTEBOOK_S

    def found(self, *, seed: int = 1, progress: Progress | None = None, folder: Path | None = None) -> F:
        """What the study found: as it is kept in a folder, by default that of `KEPT`; else computed now and kept there.

        Whoever names a folder sees to it that nobody else can write there.
        """
        named = folder or os.environ.get(KEPT)
        kept = Path(named, f"{self.name}-{seed}.pickle") if named else None
        if kept is not None and kept.is_file():
            before: F = pickle.loads(kept.read_bytes())  # noqa: S301  # who names the folder vouches for it
            return before
        found = self.compute(seed=seed, progress=progress)
        if kept is not None:
            replace(kept, pickle.dumps(found))
        return found
