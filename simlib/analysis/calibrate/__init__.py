# SPDX-License-Identifier: BSD-3-Clause
"""Measurements to costs with intervals; identifiability; fit files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from simlib.analysis.calibrate import fit as _fit
from simlib.analysis.calibrate.identifiability import alternatives, sensitivity, sobol_indices, strongest_correlations
from simlib.analysis.calibrate.problem import Problem, build_problem
from simlib.analysis.calibrate.tables import Conditions, Tables, read_tables, select_rows
from simlib.analysis.predict import LEVEL, PAGES_PER_VCPU
from simlib.measurements.fits import Fit, find_fit, load_fit, save_fit
from simlib.model.scenario import Scenario, as_scenario

Calibrated = Fit
"""What `calibrate` gave before a calibration and its file were one class."""

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
]


def calibrate(
    scenario: Scenario | str | Path,
    tables: Tables,
    train: Conditions = "",
    *,
    select: Conditions = "",
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> Fit:
    """Determine a scenario's costs from one table of measurements, or several.

    - `scenario`: a scenario, or its file. Its `Calibration` section names the unknown costs and the metrics.
    - `tables`: measurements, a table of them by the rules of a measurement file, a CSV file, or the name of a table in
      data/. Each gives those of the calibration's metrics that it has, and each metric of each has a noise of its own
      where there are enough rows to tell it (`simlib.analysis.calibrate.noise`).
    - `train`: condition on the rows that the calibration may see; the others are held out. One for all tables, or by
      the names of tables; that of ``""`` is for those that are not named.
    - `select`: condition on the rows that are used at all, in the same way.
    - `level`, `seed`, `pages_per_vcpu`, `profile`, `progress`: see `simlib.analysis.calibrate.fit.calibrate`.

    >>> import pandas as pd
    >>> one = pd.DataFrame({"vcpus": [1, 2, 4, 8], "dirty_memory_time_s": [0.8, 1.1, 2.2, 4.5],
    ...                     "contentions": [0, 1.4e6, 4.1e6, 8.4e6]})
    >>> mine = Scenario.parse({"costs": {"line_transfer": "50ns", "others": "0ns"}, "calibration":
    ...     {"costs": ["fault_unlocked", "fault_hold"], "metrics": ["dirty_memory_time", "contentions"]},
    ...     "policy": {"architecture": "x86-shadow-paging"}})
    >>> fit = calibrate(mine, one, "vcpus <= 4", pages_per_vcpu=128, profile=False)
    >>> fit.valid["more_data_than_costs"], (fit.parameters.set_index("name")["value"] / 1e6).round(1).to_dict()  # µs
    (True, {'fault_unlocked': 1.1, 'fault_hold': 1.9})

    Two tables of one machine, of which only the first has counts:

    >>> two = pd.DataFrame({"vcpus": [1, 3, 6], "dirty_memory_time_s": [0.8, 1.7, 3.3]})
    >>> fit = calibrate(mine, {"mon": one, "tue": two}, {"mon": "vcpus <= 4"}, pages_per_vcpu=128, profile=False)
    >>> fit.noise[["table", "metric", "rows", "source"]].to_dict("list")
    {'table': ['mon', 'mon', 'tue'], 'metric': ['dirty_memory_time', 'contentions', 'dirty_memory_time'],
     'rows': [3, 2, 3], 'source': ['pooled', 'pooled', 'pooled']}
    """
    found = _fit.calibrate(
        build_problem(as_scenario(scenario), select_rows(read_tables(tables), select), train),
        level=level,
        seed=seed,
        pages_per_vcpu=pages_per_vcpu,
        profile=profile,
        progress=progress,
    )
    return dataclasses.replace(found, sensitivity=sensitivity(found)) if profile else found
