# SPDX-License-Identifier: BSD-3-Clause
"""The January 2022 series: calibrated on at most 8 vCPUs of an Ampere Altra, the model predicts 16, 32 and 64."""

import numpy as np
import pytest
from notebook_run import ROOT, assert_ran_without_complaint, code_cells, figures_of

from simlib import measurements
from studies.arm64 import altra
from studies.arm64.scalability import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work
from studies.study import COUNTED, HELD_OUT

pytestmark = pytest.mark.study

SERIES = ("spinlock-old-test", "rwlock-old-test", "rwlock-fixed-test")


@pytest.fixture(scope="module")
def table():
    return measurements.load(altra.TABLE)


@pytest.fixture(scope="module")
def run(ran):
    return ran(ROOT / "notebooks" / "01-arm64-rwlock.ipynb")


@pytest.fixture(scope="module")
def found(run):
    """What the study found, as the notebook has it."""
    return run["found"]


@pytest.fixture(scope="module")
def fit(found):
    return found.calibrated["fit"]


@pytest.fixture(scope="module")
def times(found, table):
    """The nine held-out times, beside the table once more."""
    published = table.frame.assign(again=table.seconds("dirty_memory_time")).rename(columns={"series": "variant"})
    both = found.tables["held-out"].merge(published[["variant", "vcpus", "again"]], validate="1:1")
    assert len(both) == 9
    assert both["published"].tolist() == both["again"].tolist()
    return both


def test_the_calibration_saw_nothing_beyond_eight(fit):
    assert fit.train["vcpus"].max() == 8
    assert set(fit.observations.loc[~fit.observations["train"], "vcpus"]) >= {16, 32, 64}
    assert fit.valid["converged"]
    assert fit.valid["starts_agree"]


def test_the_readme_has_the_furthest_of_them(times):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Held-out times of the picture are off by at most {times['error_percent'].abs().max():.1f} %" in readme


def test_every_published_number_is_there_once_by_what_the_calibration_saw(found, table):
    rows = found.numbers
    assert len(rows) == table.frame[["dirty_memory_time_ms", "contentions"]].notna().to_numpy().sum()
    assert not rows.duplicated(["variant", "vcpus", "metric"]).any()
    assert (rows["vcpus"] > altra.TRAIN_VCPUS).equals(rows["role"] == HELD_OUT)
    assert rows.loc[rows["role"] == COUNTED, "published"].tolist() == [0.0]


def test_the_shipped_fit_is_what_is_calibrated_now(fit):
    shipped = altra.shipped_fit().parameters.set_index("name")["value"]
    assert shipped.to_dict() == pytest.approx(fit.parameters.set_index("name")["value"].to_dict(), rel=1e-3)


@pytest.mark.parametrize("series", SERIES)
def test_each_time_is_predicted_within_six_percent(times, series):
    mine = times[times["variant"] == series]
    assert mine["vcpus"].tolist() == [16, 32, 64]
    assert mine["error_percent"].abs().max() <= 6


def test_all_nine_times_are_predicted_within_four_percent_on_average(times):
    assert times["error_percent"].abs().mean() <= 4


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


def test_intervals_cover_and_say_something(times):
    inside = (times["low"] <= times["published"]) & (times["published"] <= times["high"])
    assert inside.sum() >= 8
    assert times["inside"].tolist() == inside.tolist()
    assert (times["low"] >= 0.85 * times["predicted"]).all()
    assert (times["high"] <= 1.15 * times["predicted"]).all()


@pytest.mark.parametrize(("name", "law"), [("amdahl", fit_amdahl), ("usl", fit_universal_scalability)])
def test_scalability_laws_do_worse_on_the_same_points(times, table, name, law):
    errors = []
    for series in SERIES:
        rows = table.frame[table.frame["series"] == series]
        seconds = table.seconds("dirty_memory_time")[rows.index]
        known = (rows["vcpus"] <= 8).to_numpy()
        n, time = rows["vcpus"].to_numpy(), np.asarray(seconds)
        baseline = law(n[known], from_time_per_vcpu_work(n[known], time[known]))
        errors.extend(100 * (n[~known] / baseline.predict(n[~known]) / time[~known] - 1))
    assert times[f"{name}_percent"].tolist() == pytest.approx(errors)
    assert times["error_percent"].abs().mean() < 0.5 * np.abs(errors).mean()


def test_the_calibrated_line_transfer_agrees_with_a_measured_one(fit):
    """Graviton2 has the Ampere Altra's core, Neoverse N1, and its transfer was measured on its own."""
    others = measurements.load("core-to-core-latency")
    row = others.frame[others.frame["processor"] == "Graviton2"]
    published_ps = row["latency_ns"].item() * 1000
    found = fit.parameters.set_index("name").loc["line_transfer"]
    assert found["low"] <= published_ps <= found["high"]
    assert found["determined"]


def test_the_notebook_runs_and_says_where_its_points_come_from(run):
    assert_ran_without_complaint(run)
    drawn = figures_of(run)
    assert len(drawn) == 8
    for figure in drawn:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert any(word in subtitle for word in ("measured", "simulated", "calibrated", "predicted", "Sobol")), subtitle
    last = code_cells(run)[-2]
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in last.outputs)


def test_the_notebook_s_prose_says_what_it_computes(run, found):
    """Statements of the text that the data or the model could contradict."""
    assert run["faster"]["rwlock-old-test"].iloc[-1] == pytest.approx(2.6, abs=0.01)
    counted = run["contentions"]
    assert (counted / counted.index / run["pages"]).tolist()[-3:] == pytest.approx([6, 6, 6], abs=0.005)
    spin, ticket, rwlock, lockless = (curve for _, curve in run["seconds"].items())
    assert (ticket > spin)[[8, 16, 32, 64]].all()
    assert (lockless / rwlock)[[2, 4]].between(0.95, 0.99).all()
    assert (lockless / rwlock)[[8, 16, 32, 64]].tolist() == pytest.approx([1] * 4, abs=0.005)
    shipped, as_well, *sections, blocks, line, same = found.tables["readings"]["discrepancy"]
    assert as_well == pytest.approx(shipped, rel=0.1)
    assert min(blocks, line, same) / shipped > 3.9
    assert [each / shipped for each in sections] == pytest.approx([2, 2], abs=0.4)
    every_page = found.tables["every-page"]
    assert every_page["every_page"].tolist() == pytest.approx(every_page["predicted"].tolist(), rel=5e-3)
