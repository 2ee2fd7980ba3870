# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the published x86 hosts: the shipped fit, the parked costs against what their sources derive, the bars."""

from pathlib import Path

import numpy as np
import pytest

from simlib.calibration import find_fit, parked, search, x86
from simlib.calibration.fit import calibrate
from simlib.calibration.migrations import CHANGE_BARS
from simlib.workloads.scaled import unscaled


@pytest.mark.study
def test_the_shipped_fit_is_what_the_tables_give(monkeypatch):
    """``simlib data costs`` writes it; without profile intervals and other starts the values are equal."""
    monkeypatch.setattr(search, "FOLLOWED", 1)
    shipped = find_fit(x86.configurations())
    faults = calibrate(x86.fault_problem(), profile=False)
    n = len(faults.estimate.logs)
    assert shipped.estimate.logs[:n] == pytest.approx(faults.estimate.logs, abs=1e-4)
    alone = parked.parked_costs()
    assert np.exp(shipped.estimate.logs[n:-1]) == pytest.approx(alone["value"].to_numpy(), rel=1e-6)
    assert len(shipped.observations) > 2 * n


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_set_of_costs_gives_the_three_configurations(number):
    estimate = find_fit(x86.configurations()).estimate
    whole, batch = (x86.configuration_metrics(estimate, f"config-{number}", n, x86.FACTOR) for n in (0, 64))
    for metric in x86.PUBLISHED_CHANGE:
        low, high = CHANGE_BARS[number, metric]
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
