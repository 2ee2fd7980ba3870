# SPDX-License-Identifier: BSD-3-Clause
"""A calibration to a fit file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from simlib.calibration.fit import Calibrated
from simlib.fits import Fit, write_fit


def save_fit(fit: Calibrated, path: str | Path, train: str, date: datetime.date | None = None) -> None:
    """Write a fit file, beside and renamed.

    Parameters
    ----------
    fit : Calibrated
    path : str or Path
    train : str
        The condition that chose the training rows.
    date : datetime.date, optional
        Today by default.
    """
    meta = {
        "date": (date or datetime.datetime.now(datetime.UTC).date()).isoformat(),
        "dataset": fit.problem.dataset,
        "train": train,
        "seed": fit.seed,
        "pages_per_vcpu": fit.pages_per_vcpu,
        "level": fit.level,
        "valid": fit.valid,
        "correlation": fit.correlation.to_numpy().round(4).tolist(),
        "sensitivity": json.loads(fit.sensitivity.to_json(orient="records", double_precision=4)),
    }
    write_fit(Fit(fit.problem.scenario, fit.estimate, fit.intervals, fit.fitted, meta), path)
