# SPDX-License-Identifier: BSD-3-Clause
"""Which calibrated costs a scenario gets, and what is said of them."""

from __future__ import annotations

import pytest

from simlib._lib.errors import InputError
from simlib.measurements.fits import UncertainCosts, choose_fit, find_fit
from simlib.model.scenario import Scenario

ALTRA = Scenario.parse({"host": {"name": "ampere-altra"}, "policy": {"architecture": "arm64-2022"}})


def test_the_shipped_fit_says_so_and_a_given_one_does_not():
    fit = find_fit(ALTRA)
    assert choose_fit(ALTRA)[1][0].startswith("costs: the shipped fit for ampere-altra")
    assert choose_fit(ALTRA, fit) == (fit.estimate, ())
    assert choose_fit(ALTRA, fit.estimate) == (fit.estimate, ())


def test_no_name_no_fit():
    assert choose_fit(Scenario()) == (None, ())


def test_costs_of_another_architecture_are_an_assumption():
    notes = choose_fit(ALTRA.changed({"policy": {"architecture": "riscv"}}))[1]
    assert notes[-1].endswith("that they hold for riscv is assumed")


def test_costs_of_a_group_need_its_name():
    estimate = choose_fit(ALTRA)[0]
    with pytest.raises(InputError, match=r"the fit has .* for the groups 'fixed test', 'old test'; write group"):
        UncertainCosts.of(ALTRA, estimate)
    grouped = Scenario.parse({"cost_group": "old test", "host": {"name": "ampere-altra"},
                              "policy": {"architecture": "arm64-2022"}})  # fmt: skip
    assert UncertainCosts.of(grouped, estimate).sources()["fault_unlocked"] == "calibrated"
