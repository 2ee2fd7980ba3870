# SPDX-License-Identifier: BSD-3-Clause
"""Measurements to costs with intervals; identifiability; fit files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from simlib.calibration import fit as _fit
from simlib.calibration.fit import Calibrated
from simlib.calibration.fitfile import Fit, find_fit, load_fit, save_fit, write_fit
from simlib.calibration.identifiability import alternatives, sensitivity, sobol_indices, strongest_correlations
from simlib.calibration.problem import Problem, build_problem
from simlib.measurements import MeasurementTable
from simlib.model.scenario import Scenario
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
    scenario: Scenario,
    table: MeasurementTable,
    train: str = "",
    *,
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Calibrated:
    """Determine a scenario's costs from a table of measurements.

    Parameters
    ----------
    scenario : Scenario
        Its `Calibration` section names the unknown costs and the metrics.
    table : MeasurementTable
    train : str
        Condition on the rows that the calibration may see; the others are held out.
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
        build_problem(scenario, table, train),
        level=level,
        seed=seed,
        pages_per_vcpu=pages_per_vcpu,
        profile=profile,
        progress=progress,
    )
    return dataclasses.replace(found, sensitivity=sensitivity(found)) if profile else found
