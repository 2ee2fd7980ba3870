# SPDX-License-Identifier: BSD-3-Clause
"""Captions that state a finding: each sentence against the numbers that it is made of."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.calibration import growth
from simlib.figures.style import signed
from simlib.fits import load_fit
from simlib.measurements import data_dir
from simlib.report import arm64
from simlib.report.growth import growth_finding


def test_costs_name_the_best_known_and_the_least():
    costs = load_fit(data_dir() / "fits" / "ampere-altra.json").cost_table
    width = (costs["high"] - costs["low"]) / costs["value"]
    best, least = costs["cost"][width.idxmin()], costs["cost"][width.idxmax()]
    text = arm64.cost_finding(costs)
    assert text.startswith(f"Known best: {best} (")
    assert f"least: {least} (" in text
    bounded = load_fit(data_dir() / "fits" / "x86-growth" / "sockets-few.json").cost_table
    assert "At a physical bound, or an end is: fault_exit, fault_jitter." in arm64.cost_finding(bounded)


def test_speed_up_is_work_over_time():
    rows = [("a", n, kind, value) for kind, times in (("measured", (1.0, 2.0)), ("predicted", (1.0, 4.0)))
            for n, value in zip((1, 8), times, strict=True)]  # fmt: skip
    curves = pd.DataFrame(rows, columns=["variant", "vcpus", "kind", "value"])
    assert arm64.speed_finding(curves) == "8 vCPUs get done, times what one does: a 4.00 (model 2.00)."


def test_contentions_are_counted_by_the_page():
    curves = pd.DataFrame({"vcpus": [2, 64, 64], "metric": "contentions", "kind": ["measured", "measured", "predicted"],
                           "value": [1.0, 6.0 * 64 * 100, 5.0 * 64 * 100]})  # fmt: skip
    text = arm64.contention_finding(curves, 100)
    assert text == "With 64 vCPUs 6.00 contentions a page were measured; the model has 5.00."


def test_errors_of_the_model_and_the_laws_are_means_of_absolute_values():
    held = pd.DataFrame({"simlib_percent": [1.0, -3.0], "usl_percent": [10.0, 30.0], "amdahl_percent": [-5.0, 5.0]})
    text = arm64.error_finding(held)
    assert text == "Mean absolute error: simlib 2.0 %, universal scalability law 20.0 %, Amdahl's law 5.0 %."


def test_growth_says_what_the_kept_fits_say():
    text = growth_finding(growth.reading_table())
    fit = growth.growth_fit(f"{growth.CHOSEN}-few").observations
    errors = fit[(fit["vcpus"] == 64) & ~fit["train"].astype(bool)]["error"]
    worst = float(errors.iloc[int(np.argmax(errors.abs()))])
    assert f"and {signed(100 * worst)} %, constant" in text
