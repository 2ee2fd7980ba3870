# SPDX-License-Identifier: BSD-3-Clause
"""A calibration to a fit file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from simlib.calibration.fit import Calibrated
from simlib.calibration.tables import Conditions
from simlib.fits import Fit, write_fit


def save_fit(fit: Calibrated, path: str | Path, train: Conditions, date: datetime.date | None = None) -> None:
    """Write a fit file, beside and renamed.

    Parameters
    ----------
    train, date
        See `as_fit`.
    """
    write_fit(as_fit(fit, train, date), path)


def as_fit(fit: Calibrated, train: Conditions, date: datetime.date | None = None) -> Fit:
    """A calibration as its file holds it.

    Parameters
    ----------
    train : str, or mapping of str to str
        The condition that chose the training rows, or those by the names of tables.
    date : datetime.date, optional
        Today by default.
    """
    meta = {
        "date": (date or datetime.datetime.now(datetime.UTC).date()).isoformat(),
        "dataset": fit.problem.dataset,
        "train": train if isinstance(train, str) else "; ".join(f"{k}:{v}" if k else v for k, v in train.items()),
        "seed": fit.seed,
        "pages_per_vcpu": fit.pages_per_vcpu,
        "level": fit.level,
        "valid": fit.valid,
        "correlation": fit.correlation.to_numpy().round(4).tolist(),
        "noise": json.loads(fit.noise.to_json(orient="records", double_precision=10)),
        "sensitivity": json.loads(fit.sensitivity.to_json(orient="records", double_precision=4)),
    }
    return Fit(fit.problem.scenario, fit.estimate, fit.intervals, fit.fitted, meta)
