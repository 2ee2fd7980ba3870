# SPDX-License-Identifier: BSD-3-Clause
"""Measurements to costs with intervals; identifiability; fit files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from simlib.calibration import fit as _fit
from simlib.calibration.fit import Calibrated
from simlib.calibration.fitfile import save_fit
from simlib.calibration.identifiability import alternatives, sensitivity, sobol_indices, strongest_correlations
from simlib.calibration.problem import Problem, build_problem
from simlib.fits import Fit, find_fit, load_fit, write_fit
from simlib.measurements import MeasurementTable, as_table
from simlib.model.scenario import Scenario, as_scenario
from simlib.prediction import LEVEL, PAGES_PER_VCPU

__all__ = [
    "Calibrated",
    "Fit",
    "Problem",
    "alternatives",
    "build_problem",
    "calibrate",
    "find_fit",
    "load_fit",
    "save_fit",
    "sensitivity",
    "sobol_indices",
    "strongest_correlations",
    "write_fit",
]


def calibrate(
    scenario: Scenario | str | Path,
    table: MeasurementTable | pd.DataFrame | str | Path,
    train: str = "",
    *,
    select: str = "",
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Calibrated:
    """Determine a scenario's costs from a table of measurements.

    Parameters
    ----------
    scenario : Scenario, str or Path
        A scenario, or its file. Its `Calibration` section names the unknown costs and the metrics.
    table : MeasurementTable, DataFrame, str or Path
        Measurements, a table of them by the rules of a measurement file, a CSV file, or the name of a table in data/.
    train : str
        Condition on the rows that the calibration may see; the others are held out.
    select : str
        Condition on the rows that are used at all.
    level, seed, pages_per_vcpu, profile, progress
        See `simlib.calibration.fit.calibrate`.

    Returns
    -------
    Calibrated

    Examples
    --------
    >>> from simlib import measurements
    >>> from simlib.model.scenario import load_scenario
    >>> scenario = load_scenario(measurements.data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    >>> table = measurements.load("arm64-dirty-memory-time")
    >>> fit = calibrate(scenario, table, "vcpus <= 8", pages_per_vcpu=512, profile=False)
    >>> fit.valid["more_data_than_costs"], bool(fit.estimate.discrepancy < 0.05)
    (True, True)
    """
    found = _fit.calibrate(
        build_problem(as_scenario(scenario), as_table(table).select(select), train),
        level=level,
        seed=seed,
        pages_per_vcpu=pages_per_vcpu,
        profile=profile,
        progress=progress,
    )
    return dataclasses.replace(found, sensitivity=sensitivity(found)) if profile else found
