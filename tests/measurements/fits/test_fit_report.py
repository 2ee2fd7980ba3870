# SPDX-License-Identifier: BSD-3-Clause
"""What a fit says of itself: readable units, χ² that can be counted again, true flags, and text that is only text."""

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
def test_every_shipped_file_gives_a_whole_report(path):
    fit = load_fit(path)
    text = fit.summary()
    assert set(fit.cost_table["unit"]) <= {"ns", "µs", "ms", ""}
    assert max(len(line) for line in text.splitlines()) <= 160
    assert all(name in text for name in fit.estimate.names)
    # Correlations are there, or their absence is said.
    assert ("Correlations" in text) is (fit.correlation is not None)
    assert fit.correlation is not None or "correlations: missing" in text
    # χ² is there, or it is said that no row was fitted.
    fitted = int(fit.observations["train"].sum())
    assert np.isnan(fit.chi_squared) == (fitted == 0)
    assert ("χ²: none" in text) == (fitted == 0)
    assert len(fit.residuals) == len(fit.observations)
    assert fit._repr_html_().count("<table>") == 2 + (fit.correlation is not None)
    for name in fit.figures():
        assert fit.plot(name).data


def test_chi_squared_is_the_sum_that_the_fit_made_least(fit):
    """Counted again from the file's own rows: at the optimum it is no more than the degrees of freedom."""
    rows, dof = fit.observations[fit.observations["train"]], fit.estimate.dof
    spread = rows["metric"].map(fit.estimate.spread).fillna(1.0)
    squares = (np.log(rows["model"] / rows["value"]) / spread / fit.estimate.discrepancy) ** 2
    assert fit.chi_squared == pytest.approx(squares.sum(), rel=1e-12)
    # The discrepancy has the variance of simulating a part of the pages in it, too.
    assert 0.9 * dof < fit.chi_squared <= dof
    assert dof == len(rows) - len(fit.estimate.names)
    assert f"{len(rows)} rows less {len(fit.estimate.names)} costs" in fit.summary()


def test_correlations_are_those_that_the_calibration_kept(fit):
    kept = np.array(fit.meta["correlation"])
    np.testing.assert_allclose(fit.correlation, kept, atol=6e-5)


def test_a_cost_without_variance_has_no_correlation_and_that_is_said():
    estimate = CostEstimate(("fault_unlocked", "fault_hold", "flush"), np.zeros(3),
                            np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), 3, 0.1, {})  # fmt: skip
    frame, missing = estimate.correlation()
    assert frame.loc["fault_unlocked", "fault_hold"] == 0.5
    assert frame["flush"].isna().all()
    assert missing == ("correlations with flush: missing, since their variance is 0",)
    diagonal = dataclasses.replace(estimate, covariance=np.diag([1.0, 2.0, 3.0]))
    assert diagonal.correlation() == (None, ("correlations: missing, since the covariance has variances only",))


LOW, HIGH = BOUNDS["fault_hold"]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((LOW * 10, LOW * 5, LOW * 20), ""),
        ((LOW * 10, LOW, LOW * 20), "low end: 20 ns"),
        ((LOW * 10, LOW * 1.0005, LOW * 20), "low end: 20 ns"),
        ((LOW * 10, LOW / 1000, HIGH * 7), "low end: 20 ns, high end: 20 µs"),
        ((LOW, LOW, LOW * 2), "value: 20 ns, low end: 20 ns"),
        ((HIGH, HIGH / 2, HIGH), "value: 20 µs, high end: 20 µs"),
    ],
)
def test_what_is_at_a_bound_is_said_of_the_value_and_of_each_end(ends, said):
    rows = pd.DataFrame([["fault_hold[a]", *ends, not said]], columns=["name", "value", "low", "high", "determined"])
    row = cost_table(rows).iloc[0]
    assert row["bound"] == said
    factor = {"ns": 1e3, "µs": 1e6}[row["unit"]]
    # What an interval without profile has beyond a bound is no possible cost.
    assert row["low"] * factor == pytest.approx(max(ends[1], LOW))
    assert row["high"] * factor == pytest.approx(min(ends[2], HIGH))


def test_an_interval_that_ends_at_its_bound_is_marked_in_the_figure():
    costs = load_fit(data_dir() / "fits" / "x86-growth" / "sockets-few.json").costs()
    bounded = costs[costs["bound"] != ""]
    assert len(bounded)
    marked = [trace for trace in figures.cost_intervals(costs).data if "physical bound" in str(trace.name)]
    assert sum(len(trace.x) for trace in marked) == len(bounded)


def test_a_residual_is_taken_over_the_deviation_of_its_own_table_and_metric():
    rows = pd.DataFrame({"table": ["a", "b", "b"], "variant": "", "vcpus": [1, 2, 4], "value": [1.0, 1.0, 0.0],
                         "metric": ["contentions", "contentions", "zap_time"], "train": [True, False, False],
                         "model": np.exp([0.1, 0.1, 0.0])})  # fmt: skip
    estimate = CostEstimate(("fault_hold",), np.zeros(1), np.eye(1), 1, 0.1, {"contentions": 4.0})
    noise = pd.DataFrame({"table": ["a"], "metric": ["contentions"], "ratio": [2.0]})
    found = residual_table(rows, estimate, noise)
    np.testing.assert_allclose(found["residual"], [0.5, 0.25, np.nan])
    assert found["role"].tolist() == ["fitted", "held out", "shown only"]


def test_rows_that_no_deviation_is_known_of_have_no_residual():
    rows = pd.DataFrame({"variant": "", "vcpus": [1], "metric": "zap_time", "train": [True], "value": 1.0, "model": 2})
    estimate = CostEstimate(("fault_hold",), np.log([3e5]), np.eye(1), 1, 0.0, {})
    parameters = pd.DataFrame({"name": ["fault_hold"], "value": 3e5, "low": 3e5, "high": 3e5, "determined": False})
    meta = {"dataset": "one", "train": "", "date": "", "level": 0.9, "valid": {"converged": True}}
    fit = Fit(Scenario(), estimate, parameters, rows, meta)
    assert fit.residuals["residual"].isna().all()
    assert "no interval is known, so that it stands as a point: fault_hold" in fit.summary()


@pytest.mark.parametrize("key", ["dataset", "train", "date"])
def test_text_of_a_file_is_shown_and_not_run(tmp_path, key):
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


def test_a_prediction_shows_its_notes_as_text(fit):
    found = simlib.predict(fit.scenario, [1], fit=fit, metrics=["dirty_memory_time"])
    shown = dataclasses.replace(found, flags=(EVIL,))._repr_html_()
    assert EVIL not in shown
    assert "&lt;script&gt;" in shown


def test_a_matrix_that_is_missing_cannot_be_drawn():
    fit = load_fit(data_dir() / "fits" / "lab-x86-npt.json")
    assert "correlation" not in fit.figures()
    with pytest.raises(InputError, match="correlation"):
        fit.plot("correlation")
