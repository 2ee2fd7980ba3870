# SPDX-License-Identifier: BSD-3-Clause
"""Advice for checks that failed; starting points over the whole physical range."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simlib import CalibrationOptions, calibrate
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
QUICK = CalibrationOptions(pages_per_vcpu=512, profile=False)
VCPUS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)


def scenario(*costs, **given):
    kept = {name: cost for name, cost in FILE["costs"].items() if name not in costs} | given
    return Scenario.parse(FILE | {"costs": kept, "calibration": {"costs": list(costs)}})


def measured(vcpus=VCPUS):
    case = Scenario.parse(FILE).with_costs(**KNOWN)
    times = [run_scenario(case.with_vcpus(n), seed=5).value("dirty_memory_time") for n in vcpus]
    return pd.DataFrame({"vcpus": vcpus, "dirty_memory_time_s": times})


@pytest.fixture(scope="module")
def good():
    return calibrate(scenario("fault_unlocked", "fault_hold"), measured(), options=QUICK)


@pytest.fixture(scope="module")
def problem():
    return build_problem(scenario("fault_unlocked", "fault_hold"), as_table(measured()))


END = Minimum(np.zeros(2), 1.0, False, 20, 0.1)


def test_a_good_fit_has_no_warnings(good):
    assert all(good.valid.values())
    assert good.warnings == []
    assert "warning" not in good.summary()


def test_starts_name_their_origin_and_cover_the_range(good, problem):
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
    """The threshold is a t interval of the coarse runs' variance plus that of simulating few pages."""
    coarse = search.LogResiduals(problem, assumed_ratios(problem.train), fitting.MIN_COARSE_PAGES, 1)
    dof = len(VCPUS) - len(good.estimate.logs)
    repeated = [dataclasses.replace(coarse, seed=seed)(good.estimate.logs) for seed in (2, 3, 4, 5)]
    best = good.starts["last"].min()
    room = stats.t.ppf(0.95, dof) ** 2 * (best / dof + np.var(repeated, axis=0, ddof=1).max())
    others = {"only the best": [1.01, 2.0, 1e3], "one more": [0.99, 1.01, 2.0]}
    for case, offsets in others.items():
        starts = good.starts.assign(last=best + room * np.array([0.0, *offsets]))
        minima = [Minimum(good.estimate.logs, best, True, 5)]
        monkeypatch.setattr(fitting, "explore", lambda *_, explored=(starts, minima): explored)
        fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), options=QUICK)
        assert fit.starts["agrees"].tolist() == [True, case == "one more", False, False]
        assert fit.valid["starts_agree"] is (case == "one more")


def test_a_search_that_is_stopped_early_gives_advice(monkeypatch):
    """One descent of one step does not converge."""
    monkeypatch.setattr(search, "MAX_STEPS", 1)
    monkeypatch.setattr(search, "MAX_DESCENTS", 1)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), options=QUICK)
    assert not fit.valid["converged"]
    assert fit.warnings[0].startswith("warning: check 'converged' failed: the search was stopped at step 1")
    assert "add rows that constrain it (times with" in fit.warnings[0]
    assert "under [costs] and remove it from [calibration]" in " ".join(fit.summary().split())


def test_further_descents_continue_until_convergence(monkeypatch):
    """With 3 steps per descent it reaches the same minimum."""
    monkeypatch.setattr(search, "MAX_STEPS", 3)
    monkeypatch.setattr(search, "MAX_DESCENTS", 40)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), measured(), options=QUICK)
    assert fit.valid["converged"]
    assert np.exp(fit.estimate.logs) == pytest.approx(list(KNOWN.values()), rel=0.05)


def test_advice_names_a_cost_at_its_bound():
    """Times are too small by a factor of 1000, as if ms were given as s."""
    wrong = measured().assign(dirty_memory_time_s=lambda frame: frame["dirty_memory_time_s"] / 1000)
    fit = calibrate(scenario("fault_unlocked", "fault_hold"), wrong, options=QUICK)
    assert not fit.valid["inside_bounds"]
    text = fit.advice["inside_bounds"]
    assert "fault_hold is at its lower bound (20 ns)" in text
    assert "check the units" in text
    assert "give fault_unlocked or fault_hold a value under [costs] and remove that cost from [calibration]" in text


def test_advice_names_rows_that_would_determine_a_cost():
    fit = calibrate(scenario("fault_unlocked", "line_transfer", fault_hold="400ns"), measured((1, 2, 3, 4)),
                    options=CalibrationOptions(pages_per_vcpu=512))  # fmt: skip
    wide = dataclasses.replace(fit, parameters=fit.parameters.assign(determined=[True, False]))
    assert advice(wide.with_meta(valid={"all_determined": False}), END)["all_determined"] == (
        "the rows do not constrain line_transfer within the physical bounds: add rows that constrain it (times or "
        "contentions with 2 to 8 vCPUs), or give line_transfer a value under [costs] and remove it from [calibration]"
    )


def test_a_scenario_unlike_the_measured_workload_determines_no_cost():
    """With KVM_DIRTY_LOG_INITIALLY_SET the first iteration takes no fault, so its time contains no cost of a fault."""
    calibrated = scenario("fault_unlocked", "fault_hold")
    faultless = calibrated.everywhere({"workload": {"iterations": 1, "initially_set": True}})
    fit = calibrate(faultless, measured(), options=QUICK)
    assert not fit.parameters["determined"].any()
    assert (np.diag(fit.estimate.covariance) > 1).all()  # variance of logarithms: at least a factor of e up or down
    assert not fit.valid["rows_explained"]
    assert "the scenario may differ from the measured workload" in fit.advice["rows_explained"]


def test_advice_states_how_far_starts_differ(good):
    starts = good.starts.assign(last=[1.0, 2.5, 4.0, 9.0])
    differing = dataclasses.replace(good, starts=starts).with_meta(valid={"starts_agree": False})
    text = advice(differing, END)["starts_agree"]
    assert text.startswith("only one start (of 4) reached the best minimum")
    assert "the next sum of squares is 150 % larger" in text
    assert "try other seeds" in text


def test_every_flag_has_advice(good):
    texts = advice(good.with_meta(valid=dict.fromkeys(good.valid, False)), END)
    assert list(texts) == list(good.valid)
    assert all(": " in text or "; " in text for text in texts.values())
