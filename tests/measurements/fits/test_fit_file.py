# SPDX-License-Identifier: BSD-3-Clause
"""Fit files: round trip, and refusal of damaged files."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from simlib._lib.errors import InputError
from simlib.analysis.calibrate import build_problem
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, Fit, find_fit, load_fit, save_fit
from simlib.model.scenario import Scenario, load_scenario


@pytest.fixture(scope="module")
def fit():
    """A fit built by hand from arbitrary values."""
    scenario = load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    problem = build_problem(scenario, load("arm64-dirty-memory-time"), "vcpus <= 8")
    n = len(problem.names)
    values = np.array([1_234.5678, 47_000.0, 0.4, *np.geomspace(3e5, 9e5, n - 3)])
    covariance = np.diag(np.linspace(0.01, 0.02, n)) + 0.001 / 3
    estimate = CostEstimate(problem.names, np.log(values), covariance, 15 - n, 0.0123, {"contentions": 2.0})
    parameters = pd.DataFrame({
        "name": problem.names, "value": values, "low": values / 1.5, "high": values * 1.5, "at_bound": False,
        "determined": True,
    })  # fmt: skip
    fitted = problem.observations.assign(model=1.5, error=[None, *[0.25] * (len(problem.observations) - 1)])
    meta = {"date": "2026-02-01", "dataset": problem.dataset, "train": "", "seed": 7, "pages_per_vcpu": 4096,
            "level": 0.9, "valid": {"converged": True, "all_determined": False}}  # fmt: skip
    return Fit(scenario, estimate, parameters, fitted, meta)


@pytest.fixture
def path(fit, tmp_path):
    save_fit(fit, tmp_path / "new" / "fit.json", "vcpus <= 8", datetime.date(2026, 3, 1))
    return tmp_path / "new" / "fit.json"


def test_a_fit_is_unchanged_by_writing_and_reading(fit, path):
    loaded = load_fit(path)
    assert loaded.scenario == fit.scenario
    assert loaded.estimate.names == fit.estimate.names
    np.testing.assert_allclose(loaded.estimate.logs, fit.estimate.logs, rtol=1e-12)
    np.testing.assert_array_equal(loaded.estimate.covariance, fit.estimate.covariance)
    assert (loaded.estimate.dof, loaded.estimate.discrepancy, loaded.estimate.spread) == (
        8,
        0.0123,
        {"contentions": 2.0},
    )
    assert loaded.parameters["unit"].tolist() == ["ps", "ps", "dimensionless", *["ps"] * 4]
    pd.testing.assert_frame_equal(loaded.parameters.drop(columns="unit"), fit.parameters, rtol=1e-12)
    columns = ["variant", "vcpus", "metric", "value", "train", "model"]
    pd.testing.assert_frame_equal(loaded.observations[columns], fit.observations[columns], rtol=1e-9)
    expected = {"date": "2026-03-01", "train": "vcpus <= 8", "dataset": "arm64-dirty-memory-time", "seed": 7,
                "pages_per_vcpu": 4096, "level": 0.9, "version": 1, "valid": fit.valid}  # fmt: skip
    assert {k: loaded.meta[k] for k in expected} == expected
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # no NaN: other tools read it too


def test_find_fit_returns_the_fit_of_the_host():
    for file in sorted((data_dir() / "fits").glob("*.json")):
        fit = load_fit(file)
        assert fit.scenario.host.name == file.stem
        shipped = find_fit(Scenario.parse({"host": {"name": file.stem}}))
        assert shipped is not None
        assert shipped.estimate.names == fit.estimate.names
    assert find_fit(Scenario.parse({"host": {"name": "no-such-machine"}})) is None


def change(**values):
    return lambda content: json.dumps(content | values)


def without(key):
    return lambda content: json.dumps({k: v for k, v in content.items() if k != key})


def parameter(**values):
    return lambda content: json.dumps(
        content | {"parameters": [content["parameters"][0] | values, *content["parameters"][1:]]}
    )


def twice(content):
    first = content["parameters"][0]
    return json.dumps(content | {"parameters": [first, first, *content["parameters"][2:]]})


def covariance(value, column=0, row=None):
    """The first row's number of the covariance replaced, and the one of the other side with `row`."""

    def damage(content):
        matrix = [list(numbers) for numbers in content["log_covariance"]]
        matrix[0][column] = value
        if row is not None:
            matrix[column][row] = value
        return json.dumps(content | {"log_covariance": matrix})

    return damage


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        pytest.param(lambda c: "[1, 2]", "is not a fit file (no schema 'simlib-fit')", id="a list"),
        pytest.param(change(schema="other"), "is not a fit file", id="other schema"),
        pytest.param(change(version=2), "has version 2, but this simlib reads version 1", id="later version"),
        pytest.param(change(version="1"), "has version '1', but this simlib", id="version as text"),
        pytest.param(without("version"), "has version None", id="no version"),
        pytest.param(without("log_covariance"), "lacks log_covariance", id="no covariance"),
        pytest.param(without("scenario"), "lacks scenario", id="no scenario"),
        pytest.param(parameter(value=-1.0), "is damaged", id="negative cost"),
        pytest.param(parameter(value=None), "is damaged", id="no value"),
        pytest.param(parameter(name="fault_hould"), "is damaged", id="unknown cost"),
        pytest.param(parameter(name=5), "is damaged", id="a number for a name"),
        pytest.param(change(parameters=[]), "is damaged", id="no parameters"),
        pytest.param(change(parameters=3), "is damaged", id="parameters no list"),
        pytest.param(change(log_covariance=[[1.0]]), "is damaged", id="small covariance"),
        pytest.param(change(log_covariance="x"), "is damaged", id="covariance no matrix"),
        pytest.param(change(dof=0), "is damaged", id="no degree of freedom"),
        pytest.param(change(dof=10**400), "is damaged (dof must be", id="degrees of freedom without end"),
        pytest.param(change(dof=2.5), "is damaged (dof must be", id="half a degree of freedom"),
        pytest.param(change(discrepancy=-0.1), "is damaged (discrepancy must be", id="negative discrepancy"),
        pytest.param(change(discrepancy=1e300), "is damaged (discrepancy must be", id="huge discrepancy"),
        pytest.param(change(level=1), "is damaged (level must be", id="level"),
        pytest.param(change(dataset=["<b>"]), "is damaged (dataset must be", id="dataset no text"),
        pytest.param(change(seed="1"), "is damaged (seed must be", id="seed no number"),
        pytest.param(change(valid=[]), "is damaged (valid must be", id="flags no table"),
        pytest.param(change(noise=[3]), "is damaged (noise, row 1 must be", id="noise no table"),
        pytest.param(change(observations=[{}]), "is damaged (observations, row 1: variant", id="empty observation"),
        pytest.param(
            lambda c: json.dumps(c | {"observations": [o | {"table": {}} for o in c["observations"]]}),
            "is damaged (observations, row 1: table",
            id="a table in a row",
        ),
        pytest.param(change(spread={"contentions": 0}), "is damaged (spread of contentions", id="no spread"),
        pytest.param(parameter(value=1e300), "is damaged ('fault_hold' must be", id="a cost longer than all"),
        pytest.param(parameter(low=9e9, high=1.0), "is damaged (low and high of 'fault_hold'", id="ends in disorder"),
        pytest.param(parameter(low=None), "is damaged (parameters, row 1: low", id="no end"),
        pytest.param(twice, "is damaged ('fault_hold' occurs twice", id="a cost twice"),
        pytest.param(covariance(-1.0), "is damaged (log_covariance must be positive", id="negative variance"),
        pytest.param(covariance(None), "is damaged (log_covariance must be finite", id="covariance NaN"),
        pytest.param(covariance(0.5, 1), "is damaged (log_covariance must be symm", id="covariance of one side"),
        pytest.param(covariance(0.5, 1, 0), "is damaged (log_covariance must be pos", id="covariance above variance"),
        pytest.param(change(spread=[]), "is damaged", id="spread no table"),
        pytest.param(change(spread={"contentions": "much"}), "is damaged", id="spread no number"),
        pytest.param(change(scenario="[guest"), "is damaged", id="scenario no TOML"),
        pytest.param(change(scenario=5), "is damaged", id="scenario no text"),
    ],
)
def test_a_damaged_fit_file_is_refused(path, damage, rule):
    path.write_text(damage(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_fit(path)
    assert (caught.value.what, caught.value.value) == ("fit file", str(path))
    assert caught.value.rule.startswith(rule)
    assert "\n" not in str(caught.value)
