# SPDX-License-Identifier: BSD-3-Clause
"""Choice of the calibrated costs of a scenario, and the notes about them."""

from __future__ import annotations

import pytest

from simlib._lib.errors import InputError
from simlib.measurements.fits import UncertainCosts, choose_fit, find_fit
from simlib.model.scenario import Scenario

ALTRA = Scenario.parse({"host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64-2022"}})


def test_the_shipped_fit_is_noted_and_a_given_fit_is_not():
    fit = find_fit(ALTRA)
    assert choose_fit(ALTRA)[1][0].startswith("costs: the shipped fit for ampere-altra")
    assert choose_fit(ALTRA, fit) == (fit.estimate, ())
    assert choose_fit(ALTRA, fit.estimate) == (fit.estimate, ())


def test_a_host_without_a_name_has_no_fit():
    assert choose_fit(Scenario()) == (None, ())


def test_costs_of_another_architecture_are_noted_as_an_assumption():
    notes = choose_fit(ALTRA.changed({"policy": {"architecture": "riscv"}}))[1]
    assert notes[-1].endswith("it is assumed that they apply to riscv")


def test_costs_of_a_cost_group_need_its_name():
    estimate = choose_fit(ALTRA)[0]
    with pytest.raises(
        InputError, match=r"the fit has .* only for cost groups: 'fixed test', 'old test'; write cost_group"
    ):
        UncertainCosts.of(ALTRA, estimate)
    grouped = Scenario.parse({"cost_group": "old test", "host": {"name": "ampere-altra"},
                              "policy": {"architecture": "arm64-2022"}})  # fmt: skip
    assert UncertainCosts.of(grouped, estimate).sources()["fault_unlocked"] == "calibrated"
