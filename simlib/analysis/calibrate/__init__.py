# SPDX-License-Identifier: BSD-3-Clause
"""Calibration: costs with intervals from measurements, identifiability, fit files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from simlib._lib.parallel import Progress
from simlib.analysis.calibrate import fit as _fit
from simlib.analysis.calibrate.identifiability import sensitivity, sobol_indices, strongest_correlations
from simlib.analysis.calibrate.problem import build_problem
from simlib.analysis.calibrate.tables import Conditions, Tables, read_tables, select_rows
from simlib.analysis.prediction_options import LEVEL, PAGES_PER_VCPU
from simlib.measurements.fits import Fit
from simlib.model.scenario import Scenario, as_scenario

__all__ = ["CalibrationOptions", "build_problem", "calibrate", "sobol_indices", "strongest_correlations"]


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `calibrate` that are rarely needed.

    - `select`: condition on the rows to use, for training or held out, in the format of ``train``.
    - `level`: confidence level of the intervals.
    - `pages_per_vcpu`: pages per vCPU that each evaluation simulates.
    - `profile`: compute profile intervals and Sobol indices. If False, intervals are those of the linearised problem.
    """

    select: Conditions = ""
    level: float = LEVEL
    pages_per_vcpu: int = PAGES_PER_VCPU
    profile: bool = True


_DEFAULTS = CalibrationOptions()


def calibrate(
    scenario: Scenario | str | Path,
    measurements: Tables,
    train: Conditions = "",
    *,
    seed: int = 1,
    progress: Progress | None = None,
    options: CalibrationOptions = _DEFAULTS,
) -> Fit:
    """Estimate a scenario's costs from one or more tables of measurements.

    - `scenario`: a scenario, or its file. Its `Calibration` section names the unknown costs and the metrics.
    - `measurements`: a table, a DataFrame with the columns of a measurement file, a CSV file, the name of a table in
      data/, or several of these. Each table contributes the metrics of the calibration that it contains. The noise of
      each metric of a table is estimated separately if it has enough rows (`simlib.analysis.calibrate.noise`).
    - `train`: condition on the rows that the calibration may use; the others are held out. Give one condition for all
      tables, or conditions by the names of tables, where ``""`` applies to tables that are not named.
    - `seed`: random seed of the engine and of the starting points.
    - `progress`: called with (stage, share done).
    - `options`: see `CalibrationOptions`.

    >>> import pandas as pd
    >>> monday = pd.DataFrame({"vcpus": [1, 2, 4, 8], "dirty_memory_time_s": [0.8, 1.1, 2.2, 4.5],
    ...                        "contentions": [0, 1.4e6, 4.1e6, 8.4e6]})
    >>> scenario = Scenario.parse({"costs": {"line_transfer": "50ns", "others": "0ns"}, "calibration":
    ...     {"costs": ["fault_unlocked", "fault_hold"], "metrics": ["dirty_memory_time", "contentions"]},
    ...     "policy": {"architecture": "x86-shadow-paging"}})
    >>> quick = CalibrationOptions(pages_per_vcpu=128, profile=False)
    >>> fit = calibrate(scenario, monday, "vcpus <= 4", options=quick)
    >>> fit.valid["more_data_than_costs"], (fit.parameters.set_index("name")["value"] / 1e6).round(1).to_dict()  # µs
    (True, {'fault_unlocked': 1.1, 'fault_hold': 1.9})

    Two tables of one host, of which only the first has counts:

    >>> tuesday = pd.DataFrame({"vcpus": [1, 3, 6], "dirty_memory_time_s": [0.8, 1.7, 3.3]})
    >>> fit = calibrate(scenario, {"mon": monday, "tue": tuesday}, {"mon": "vcpus <= 4"}, options=quick)
    >>> fit.noise[["table", "metric", "rows", "source"]].to_dict("list")
    {'table': ['mon', 'mon', 'tue'], 'metric': ['dirty_memory_time', 'contentions', 'dirty_memory_time'],
     'rows': [3, 2, 3], 'source': ['pooled', 'pooled', 'pooled']}
    """
    fit = _fit.calibrate(
        build_problem(as_scenario(scenario), select_rows(read_tables(measurements), options.select), train),
        level=options.level,
        seed=seed,
        pages_per_vcpu=options.pages_per_vcpu,
        profile=options.profile,
        progress=progress,
    )
    return dataclasses.replace(fit, sensitivity=sensitivity(fit)) if options.profile else fit
