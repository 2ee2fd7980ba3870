# SPDX-License-Identifier: BSD-3-Clause
"""Seed 000: calibrated on at most 8 vCPUs of an Ampere Altra, the model predicts the published 16, 32 and 64."""

import numpy as np
import pytest
from notebook_run import ROOT

from simlib import measurements
from simlib.theory import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work

pytestmark = pytest.mark.study

HELD_OUT = [16, 32, 64]
SERIES = ("spinlock-old-test", "rwlock-old-test", "rwlock-fixed-test")


@pytest.fixture(scope="module")
def table():
    return measurements.load("arm64-dirty-memory-time")


@pytest.fixture(scope="module")
def found(ran):
    """`simlib.report.arm64.study`, as the notebook has it."""
    return ran(ROOT / "notebooks" / "01-arm64-rwlock.ipynb")["found"]


@pytest.fixture(scope="module")
def fit(found):
    return found.fit


@pytest.fixture(scope="module")
def held_out(found, table):
    """The nine predicted times beside the published ones: variant, vcpus, estimate, low, high, published."""
    curves = found.prediction.frame
    curves = curves[(curves["metric"] == "dirty_memory_time") & curves["vcpus"].isin(HELD_OUT)]
    published = table.frame.assign(published=table.seconds("dirty_memory_time"))
    both = curves.merge(published, left_on=["variant", "vcpus"], right_on=["series", "vcpus"], validate="1:1")
    assert len(both) == 9
    return both.assign(error=both["estimate"] / both["published"] - 1)


def test_the_calibration_saw_nothing_beyond_eight(fit):
    assert fit.train["vcpus"].max() == 8
    assert set(fit.observations.loc[~fit.observations["train"], "vcpus"]) >= set(HELD_OUT)
    assert fit.valid["converged"]
    assert fit.valid["starts_agree"]


@pytest.mark.parametrize("series", SERIES)
def test_each_time_is_predicted_within_six_percent(held_out, series):
    mine = held_out[held_out["variant"] == series]
    assert mine["vcpus"].tolist() == HELD_OUT
    assert mine["error"].abs().max() <= 0.06


def test_all_nine_times_are_predicted_within_four_percent_on_average(held_out):
    assert held_out["error"].abs().mean() <= 0.04


def test_contentions_are_predicted(fit):
    counts = fit.observations[
        (fit.observations["metric"] == "contentions") & (fit.observations["value"] > 0)
    ].set_index("vcpus")["error"]
    assert sorted(counts.index) == [2, 4, 8, 16, 32, 64]
    assert counts.loc[[8, 16, 32, 64]].abs().max() <= 0.03
    assert counts.loc[[2, 4]].abs().max() <= 0.10


def test_one_vcpu_alone_never_contends(fit):
    alone = fit.observations[(fit.observations["metric"] == "contentions") & (fit.observations["vcpus"] == 1)]
    assert (alone["value"].tolist(), alone["model"].tolist()) == ([0.0], [0.0])


def test_intervals_cover_and_say_something(held_out):
    inside = (held_out["low"] <= held_out["published"]) & (held_out["published"] <= held_out["high"])
    assert inside.sum() >= 8
    assert (held_out["low"] >= 0.85 * held_out["estimate"]).all()
    assert (held_out["high"] <= 1.15 * held_out["estimate"]).all()


@pytest.mark.parametrize("law", [fit_amdahl, fit_universal_scalability])
def test_scalability_laws_do_worse_on_the_same_points(held_out, table, law):
    errors = []
    for series in SERIES:
        rows = table.frame[table.frame["series"] == series]
        seconds = table.seconds("dirty_memory_time")[rows.index]
        known = (rows["vcpus"] <= 8).to_numpy()
        n, time = rows["vcpus"].to_numpy(), np.asarray(seconds)
        baseline = law(n[known], from_time_per_vcpu_work(n[known], time[known]))
        errors.extend(n[~known] / baseline.predict(n[~known]) / time[~known] - 1)
    assert len(errors) == 9
    assert held_out["error"].abs().mean() < 0.5 * np.abs(errors).mean()


def test_the_calibrated_line_transfer_agrees_with_a_measured_one(fit):
    """Graviton2 has the Ampere Altra's core, Neoverse N1, and its transfer was measured on its own."""
    others = measurements.load("core-to-core-latency")
    row = others.frame[others.frame["processor"] == "Graviton2"]
    published_ps = row["latency_ns"].item() * 1000
    found = fit.parameters.set_index("name").loc["line_transfer"]
    assert found["low"] <= published_ps <= found["high"]
    assert found["determined"]
