# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the published x86 hosts: the shipped fit, the parked costs against what their sources derive, the bars."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simlib.calibration import find_fit, x86
from simlib.fits import CostEstimate
from simlib.studies.migrations.drops import BARS
from simlib.workloads.scaled import unscaled


@pytest.mark.study
def test_the_shipped_fit_is_what_the_tables_give():
    """``simlib data costs`` writes it."""
    shipped, again = find_fit(x86.configurations()), x86.x86_fit()
    assert shipped.estimate.names == again.estimate.names
    assert shipped.estimate.logs == pytest.approx(again.estimate.logs, abs=1e-4)
    assert shipped.estimate.covariance == pytest.approx(again.estimate.covariance, rel=1e-3, abs=1e-9)
    intervals = ["value", "low", "high"]
    assert np.log(shipped.parameters[intervals]).to_numpy() == pytest.approx(
        np.log(again.parameters[intervals]).to_numpy(), abs=1e-3
    )
    assert shipped.observations["model"].tolist() == pytest.approx(again.observations["model"].tolist(), rel=1e-4)


def test_a_cost_is_as_sure_as_the_narrower_of_its_two_intervals():
    correlated = np.array([[0.04, 0.01], [0.01, 0.09]])  # of logarithms: deviations of 0.2 and 0.3
    estimate = CostEstimate(("a", "b"), np.log([10.0, 20.0]), correlated, 5, 0.1, {})
    profile = pd.DataFrame({"low": np.exp([-0.2, -1.0]), "high": np.exp([0.2, 1.0])})  # 0.1 and 0.5, by 2 deviations
    more = pd.DataFrame({"name": ["c"], "value": [5.0], "low": [5 / np.e], "high": [5 * np.e]})
    joined = x86._joined(SimpleNamespace(estimate=estimate, intervals=profile), more, 2.0)
    assert joined.names == ("a", "b", "c")
    assert np.exp(joined.logs) == pytest.approx([10.0, 20.0, 5.0])
    assert np.sqrt(np.diag(joined.covariance)) == pytest.approx([0.1, 0.3, 0.5])
    assert joined.covariance[0, 1] / 0.1 / 0.3 == pytest.approx(0.01 / 0.2 / 0.3)  # as correlated as before
    assert (joined.covariance[2, :2] == 0).all()
    assert (joined.dof, joined.discrepancy) == (5, 0.1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_set_of_costs_gives_the_three_configurations(number):
    estimate = find_fit(x86.configurations()).estimate
    whole, batch = (x86.configuration_metrics(estimate, f"config-{number}", n, x86.FACTOR) for n in (0, 64))
    for metric in x86.PUBLISHED_CHANGE:
        low, high = BARS[number, metric]
        assert low < 100 * (batch[metric] / whole[metric] - 1) < high, metric


def test_the_readme_has_what_clear_costs_in_the_three_configurations():
    estimate = find_fit(x86.configurations()).estimate
    changes = []
    for number in (1, 2, 3):
        whole, batch = (x86.configuration_metrics(estimate, f"config-{number}", n, x86.FACTOR) for n in (0, 64))
        changes.append(100 * (batch["clear_cpu_time"] / whole["clear_cpu_time"] - 1))
    words = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    assert f"comes out as +{changes[0]:.0f}, +{changes[1]:.0f} and +{round(changes[2], -2):.0f} %)" in words


def test_a_quarter_of_the_memory_gives_the_same():
    """Seed 001's third configuration, where everything is decided by waiting for the lock."""
    estimate = find_fit(x86.configurations()).estimate
    more, less = (
        unscaled(x86.configuration_metrics(estimate, "config-3", 64, f), f) for f in (x86.FACTOR, 4 * x86.FACTOR)
    )
    for metric in x86.PUBLISHED_CHANGE:
        assert less[metric] == pytest.approx(more[metric], rel=0.05)
