# SPDX-License-Identifier: BSD-3-Clause
"""Report of a fit: readable units, a reproducible χ², correct flags, and escaped text."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

import simlib
from simlib import figures
from simlib._lib.errors import InputError
from simlib.measurements import data_dir
from simlib.measurements.fits import BOUNDS, CostEstimate, Fit, load_fit
from simlib.measurements.fits.tables import cost_table, residual_table
from simlib.model.scenario import Scenario

SHIPPED = sorted({*(data_dir() / "fits").rglob("*.json")} - {*(data_dir() / "fits" / "lab").iterdir()})
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def fit() -> Fit:
    return load_fit(data_dir() / "fits" / "ampere-altra.json")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_gives_a_complete_report(path):
    fit = load_fit(path)
    text = fit.summary()
    assert set(fit.cost_table["unit"]) <= {"ns", "µs", "ms", ""}
    assert max(len(line) for line in text.splitlines()) <= 160
    assert all(name in text for name in fit.estimate.names)
    # Correlations are listed, or the text says that they are missing.
    assert ("Correlations" in text) is (fit.correlation is not None)
    assert fit.correlation is not None or "correlations: missing" in text
    # χ² is given, or the text says that no row was fitted.
    fitted = int(fit.observations["train"].sum())
    assert np.isnan(fit.chi_squared) == (fitted == 0)
    assert ("χ²: none" in text) == (fitted == 0)
    assert len(fit.residuals) == len(fit.observations)
    assert fit._repr_html_().count("<table>") == 2 + (fit.correlation is not None)
    for name in fit.figures():
        assert fit.plot(name).data


def test_chi_squared_is_the_sum_that_the_fit_minimised(fit):
    """Recomputed from the rows of the file: at the optimum it is at most the degrees of freedom."""
    rows, dof = fit.observations[fit.observations["train"]], fit.estimate.dof
    spread = rows["metric"].map(fit.estimate.spread).fillna(1.0)
    squares = (np.log(rows["model"] / rows["value"]) / spread / fit.estimate.discrepancy) ** 2
    assert fit.chi_squared == pytest.approx(squares.sum(), rel=1e-12)
    # The discrepancy includes the variance from simulating a part of the pages.
    assert 0.9 * dof < fit.chi_squared <= dof
    assert dof == len(rows) - len(fit.estimate.names)
    assert f"{len(rows)} rows minus {len(fit.estimate.names)} costs" in fit.summary()


def test_correlations_are_those_of_the_calibration(fit):
    stored = np.array(fit.meta["correlation"])
    np.testing.assert_allclose(fit.correlation, stored, atol=6e-5)


def test_a_cost_without_variance_has_no_correlation_and_a_note():
    estimate = CostEstimate(("fault_unlocked", "fault_hold", "flush"), np.zeros(3),
                            np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), 3, 0.1, {})  # fmt: skip
    frame, missing = estimate.correlation()
    assert frame.loc["fault_unlocked", "fault_hold"] == 0.5
    assert frame["flush"].isna().all()
    assert missing == ("correlations with flush: missing, since their variance is 0",)
    diagonal = dataclasses.replace(estimate, covariance=np.diag([1.0, 2.0, 3.0]))
    assert diagonal.correlation() == (None, ("correlations: missing, since the covariance matrix has only variances",))


LOW, HIGH = BOUNDS["fault_hold"]


@pytest.mark.parametrize(
    ("ends", "bound"),
    [
        ((LOW * 10, LOW * 5, LOW * 20), ""),
        ((LOW * 10, LOW, LOW * 20), "low end: 20 ns"),
        ((LOW * 10, LOW * 1.0005, LOW * 20), "low end: 20 ns"),
        ((LOW * 10, LOW / 1000, HIGH * 7), "low end: 20 ns, high end: 20 µs"),
        ((LOW, LOW, LOW * 2), "value: 20 ns, low end: 20 ns"),
        ((HIGH, HIGH / 2, HIGH), "value: 20 µs, high end: 20 µs"),
    ],
)
def test_a_value_or_end_at_a_bound_is_named_with_the_bound(ends, bound):
    rows = pd.DataFrame([["fault_hold[a]", *ends, not bound]], columns=["name", "value", "low", "high", "determined"])
    row = cost_table(rows).iloc[0]
    assert row["bound"] == bound
    factor = {"ns": 1e3, "µs": 1e6}[row["unit"]]
    # An interval without a profile is clipped at the physical bounds.
    assert row["low"] * factor == pytest.approx(max(ends[1], LOW))
    assert row["high"] * factor == pytest.approx(min(ends[2], HIGH))


def test_an_interval_that_ends_at_its_bound_is_marked_in_the_figure():
    costs = load_fit(data_dir() / "fits" / "x86-growth" / "sockets-few.json").costs()
    bounded = costs[costs["bound"] != ""]
    assert len(bounded)
    marked = [trace for trace in figures.cost_intervals(costs).data if "physical bound" in str(trace.name)]
    assert sum(len(trace.x) for trace in marked) == len(bounded)


def test_a_residual_is_divided_by_the_deviation_of_its_table_and_metric():
    rows = pd.DataFrame({"table": ["a", "b", "b"], "variant": "", "vcpus": [1, 2, 4], "value": [1.0, 1.0, 0.0],
                         "metric": ["contentions", "contentions", "zap_time"], "train": [True, False, False],
                         "model": np.exp([0.1, 0.1, 0.0])})  # fmt: skip
    estimate = CostEstimate(("fault_hold",), np.zeros(1), np.eye(1), 1, 0.1, {"contentions": 4.0})
    noise = pd.DataFrame({"table": ["a"], "metric": ["contentions"], "ratio": [2.0]})
    residuals = residual_table(rows, estimate, noise)
    np.testing.assert_allclose(residuals["residual"], [0.5, 0.25, np.nan])
    assert residuals["role"].tolist() == ["fitted", "held out", "shown only"]


def test_rows_without_a_known_deviation_have_no_residual():
    rows = pd.DataFrame({"variant": "", "vcpus": [1], "metric": "zap_time", "train": [True], "value": 1.0, "model": 2})
    estimate = CostEstimate(("fault_hold",), np.log([3e5]), np.eye(1), 1, 0.0, {})
    parameters = pd.DataFrame({"name": ["fault_hold"], "value": 3e5, "low": 3e5, "high": 3e5, "determined": False})
    meta = {"dataset": "one", "train": "", "date": "", "level": 0.9, "valid": {"converged": True}}
    fit = Fit(Scenario(), estimate, parameters, rows, meta)
    assert fit.residuals["residual"].isna().all()
    assert "costs shown as points, since their intervals are unknown: fault_hold" in fit.summary()


@pytest.mark.parametrize("key", ["dataset", "train", "date"])
def test_text_of_a_file_is_escaped_in_html(tmp_path, key):
    content = json.loads((data_dir() / "fits" / "ampere-altra.json").read_text(encoding="utf-8"))
    content[key] = EVIL
    content["parameters"][0]["name"] += f"[{EVIL}]"
    content["observations"][0]["metric"] = EVIL
    content["valid"] = {EVIL: True}
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    html = load_fit(path)._repr_html_()
    assert EVIL not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert "<script" not in html


def test_notes_of_a_prediction_are_escaped_in_html(fit):
    prediction = simlib.predict(fit.scenario, [1], fit=fit, metrics=["dirty_memory_time"])
    html = dataclasses.replace(prediction, flags=(EVIL,))._repr_html_()
    assert EVIL not in html
    assert "&lt;script&gt;" in html


def test_a_missing_correlation_matrix_cannot_be_drawn():
    fit = load_fit(data_dir() / "fits" / "lab-x86-npt.json")
    assert "correlation" not in fit.figures()
    with pytest.raises(InputError, match="correlation"):
        fit.plot("correlation")
