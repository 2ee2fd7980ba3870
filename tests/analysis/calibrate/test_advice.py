# SPDX-License-Identifier: BSD-3-Clause
"""A flag that does not hold says why and what to do; starts cover the whole physical range."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simlib import calibrate
from simlib.analysis.calibrate import build_problem, search
from simlib.analysis.calibrate import fit as fitting
from simlib.analysis.calibrate.advice import advice
from simlib.analysis.calibrate.noise import assumed_ratios
from simlib.analysis.calibrate.search import FOLLOWED, GUESS, SCREENED, Minimum, starting_points
from simlib.analysis.simulate import run_scenario
from simlib.measurements import as_table
from simlib.model.scenario import Scenario

FILE = {
    "guest": {"memory_per_vcpu": "2M", "memslot_aligned": False},
    "policy": {"architecture": "x86-shadow-paging"},
    "costs": {"line_transfer": "60ns", "fault_jitter": 0.3},
    "calibration": {"costs": ["fault_unlocked", "fault_hold"]},
}
KNOWN = {"fault_unlocked": 900_000.0, "fault_hold": 400_000.0}
TWELVE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)


def scenario(*costs, **given):
    kept = {name: cost for name, cost in FILE["costs"].items() if name not in costs} | given
    return Scenario.parse(FILE | {"costs": kept, "calibration": {"costs": list(costs)}})


def measured(vcpus=TWELVE):
    case = Scenario.parse(FILE).with_costs(**KNOWN)
    times = [run_scenario(case.with_vcpus(n), seed=5).value("dirty_memory_time") for n in vcpus]
    return pd.DataFrame({"vcpus": vcpus, "dirty_memory_time_s": times})


@pytest.fixture(scope="module")
def good():
    return calibrate(scenario("fault_unlocked", "fault_hold"), measured(), pages_per_vcpu=512, profile=False)


@pytest.fixture(scope="module")
def problem():
    return build_problem(scenario("fault_unlocked", "fault_hold"), as_table(measured()))


END = Minimum(np.zeros(2), 1.0, False, 20, 0.1)


def test_a_good_fit_says_nothing(good):
    assert all(good.valid.values())
    assert good.warnings == []
    assert "warning" not in good.summary()


def test_starts_say_where_they_came_from(good, problem):
    points = starting_points(problem, 1)
    low, high = problem.bounds.T
    share = (points[list(problem.names)].to_numpy()[1:] - low) / (high - low)
    assert len(share) == SCREENED
    assert share.min() < 0.05
    assert share.max() > 0.95
    assert [np.histogram(column, 8, (0, 1))[0].min() > 0 for column in share.T] == [True, True]
    assert good.starts["origin"][0] == GUESS
    assert good.starts["origin"][1:].str.fullmatch(rf"Sobol point \d+ of {SCREENED}").all()
    assert len(good.starts) == FOLLOWED
    assert good.starts["agrees"].sum() >= 2
    assert (good.starts["last"] <= good.starts["first"]).all()


def test_a_start_agrees_if_its_minimum_is_as_likely_as_the_best(good, problem, monkeypatch):
    """By the t quantile, of the coarse runs' own variance and of that of simulating few pages."""
    coarse = search.LogResiduals(problem, assumed_ratios(problem.train), fitting.LEAST_PAGES, 1)
    dof = len(TWELVE) - len(good.estimate.logs)
    again = [dataclasses.replace(coarse, seed=seed)(good.estimate.logs) for seed in (2, 3, 4, 5)]
    least = good.starts["last"].min()
    room = stats.t.ppf(0.95, dof) ** 2 * (least / dof + np.var(again, axis=0, ddof=1).max())
    others = {"all but one": [1.01, 2.0, 1e3], "one more": [0.99, 1.01, 2.0]}
    for what, apart in others.items():
        starts = good.starts.assign(last=least + room * np.array([0.0, *apart]))
        minima = [Minimum(good.estimate.logs, least, True, 5)]
        monkeypatch.setattr(fitting, "explore", lambda *_, found=(starts, minima): found)
        fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), pages_per_vcpu=512, profile=False)
        assert fit.starts["agrees"].tolist() == [True, what == "one more", False, False]
        assert fit.valid["starts_agree"] is (what == "one more")


def test_a_search_that_is_cut_short_says_so(monkeypatch):
    """Twelve points and as many steps as nobody would have left it."""
    monkeypatch.setattr(search, "STEPS", 1)
    monkeypatch.setattr(search, "CONTINUED", 1)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), pages_per_vcpu=512, profile=False)
    assert not fit.valid["converged"]
    assert fit.warnings[0].startswith("warning: not converged: the search was stopped after 1 steps")
    assert "add rows that tell it (times with" in fit.warnings[0]
    assert "under [costs] and take it out of [calibration]" in fit.summary()


def test_descents_go_on_by_themselves(monkeypatch):
    """With 3 steps at a time it comes to the same minimum."""
    monkeypatch.setattr(search, "STEPS", 3)
    monkeypatch.setattr(search, "CONTINUED", 40)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), pages_per_vcpu=512, profile=False)
    assert fit.valid["converged"]
    assert np.exp(fit.estimate.logs) == pytest.approx(list(KNOWN.values()), rel=0.05)


def test_a_cost_at_its_bound_says_which_and_where():
    """Times a thousandth of what they were: somebody took ms for s."""
    wrong = measured().assign(dirty_memory_time_s=lambda frame: frame["dirty_memory_time_s"] / 1000)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), wrong, pages_per_vcpu=512, profile=False)
    assert not fit.valid["inside_bounds"]
    text = fit.advice["inside_bounds"]
    assert "fault_hold is at its lower bound, 20 ns" in text
    assert "check units" in text
    assert "give fault_unlocked or fault_hold under [costs] and take that out of [calibration]" in text


def test_a_cost_that_the_rows_do_not_tell_says_which_rows_would():
    fit = calibrate(scenario("fault_unlocked", "line_transfer", fault_hold="400ns"), measured((1, 2, 3, 4)),
                    pages_per_vcpu=512)  # fmt: skip
    wide = dataclasses.replace(fit, parameters=fit.parameters.assign(determined=[True, False]))
    assert advice(wide.with_meta(valid={"all_determined": False}), END)["all_determined"] == (
        "the interval of line_transfer reaches a physical bound: add rows that tell it (times or contentions with 2 to "
        "8 vCPUs), or give line_transfer under [costs] and take it out of [calibration]"
    )


def test_a_scenario_that_does_not_do_what_was_measured_determines_nothing():
    """With KVM_DIRTY_LOG_INITIALLY_SET the first iteration takes no fault, so that no cost of a fault is in it."""
    asked = scenario("fault_unlocked", "fault_hold")
    none = asked.everywhere({"workload": {"iterations": 1, "initially_set": True}})
    fit = calibrate(none, measured(), pages_per_vcpu=512, profile=False)
    assert not fit.parameters["determined"].any()
    assert (np.diag(fit.estimate.covariance) > 1).all()  # of logarithms: a factor of e either way, and more
    assert not fit.valid["rows_explained"]
    assert "the scenario does other things than what was measured" in fit.advice["rows_explained"]


def test_starts_that_differ_say_by_how_much(good):
    starts = good.starts.assign(last=[1.0, 2.5, 4.0, 9.0])
    apart = dataclasses.replace(good, starts=starts).with_meta(valid={"starts_agree": False})
    text = advice(apart, END)["starts_agree"]
    assert text.startswith("of 4 starts only one came to the best minimum")
    assert "(2.5 times its sum of squares)" in text
    assert "try other seeds" in text


def test_every_flag_has_its_sentence(good):
    said = advice(good.with_meta(valid=dict.fromkeys(good.valid, False)), END)
    assert list(said) == list(good.valid)
    assert all(": " in text or "; " in text for text in said.values())
