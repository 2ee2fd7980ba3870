# SPDX-License-Identifier: BSD-3-Clause
"""The January 2022 series: calibrated on at most 8 vCPUs of an Ampere Altra, the model predicts 16, 32 and 64."""

import numpy as np
import pytest
from notebook_run import ROOT, assert_ran_without_complaint, code_cells, figures_of

from simlib import measurements
from studies.arm64 import altra
from studies.arm64.scalability import fit_amdahl, fit_universal_scalability, from_time_per_vcpu_work
from studies.study import HELD_OUT, SHOWN_ONLY

pytestmark = pytest.mark.study

SERIES = ("spinlock-old-test", "rwlock-old-test", "rwlock-fixed-test")


@pytest.fixture(scope="module")
def table():
    return measurements.load(altra.TABLE)


@pytest.fixture(scope="module")
def run(ran):
    return ran(ROOT / "notebooks" / "01-arm64-rwlock.ipynb")


@pytest.fixture(scope="module")
def findings(run):
    """Findings of the study in the executed notebook."""
    return run["findings"]


@pytest.fixture(scope="module")
def fit(findings):
    return findings.calibrated["fit"]


@pytest.fixture(scope="module")
def times(findings, table):
    """Nine held-out times, merged with the published table."""
    published = table.frame.assign(recomputed=table.seconds("dirty_memory_time")).rename(columns={"series": "variant"})
    merged = findings.tables["held-out"].merge(published[["variant", "vcpus", "recomputed"]], validate="1:1")
    assert len(merged) == 9
    assert merged["published"].tolist() == merged["recomputed"].tolist()
    return merged


def test_the_calibration_uses_at_most_eight_vcpus(fit):
    assert fit.train["vcpus"].max() == 8
    assert set(fit.observations.loc[~fit.observations["train"], "vcpus"]) >= {16, 32, 64}
    assert fit.valid["converged"]
    assert fit.valid["starts_agree"]


def test_the_readme_states_the_largest_error(times):
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Held-out times in the figure are predicted within {times['error_percent'].abs().max():.1f} %" in readme


def test_each_published_number_occurs_once_with_its_role(findings, table):
    rows = findings.numbers
    assert len(rows) == table.frame[["dirty_memory_time_ms", "contentions"]].notna().to_numpy().sum()
    assert not rows.duplicated(["variant", "vcpus", "metric"]).any()
    assert (rows["vcpus"] > altra.TRAIN_VCPUS).equals(rows["role"] == HELD_OUT)
    assert rows.loc[rows["role"] == SHOWN_ONLY, "published"].tolist() == [0.0]


def test_the_shipped_fit_matches_a_new_calibration(fit):
    shipped = altra.shipped_fit().parameters.set_index("name")["value"]
    assert shipped.to_dict() == pytest.approx(fit.parameters.set_index("name")["value"].to_dict(), rel=1e-3)


@pytest.mark.parametrize("series", SERIES)
def test_each_time_is_predicted_within_six_percent(times, series):
    rows = times[times["variant"] == series]
    assert rows["vcpus"].tolist() == [16, 32, 64]
    assert rows["error_percent"].abs().max() <= 6


def test_all_nine_times_are_predicted_within_four_percent_on_average(times):
    assert times["error_percent"].abs().mean() <= 4


def test_contentions_are_predicted(fit):
    counts = fit.observations[
        (fit.observations["metric"] == "contentions") & (fit.observations["value"] > 0)
    ].set_index("vcpus")["error"]
    assert sorted(counts.index) == [2, 4, 8, 16, 32, 64]
    assert counts.loc[[8, 16, 32, 64]].abs().max() <= 0.03
    assert counts.loc[[2, 4]].abs().max() <= 0.10


def test_a_single_vcpu_never_contends(fit):
    alone = fit.observations[(fit.observations["metric"] == "contentions") & (fit.observations["vcpus"] == 1)]
    assert (alone["value"].tolist(), alone["model"].tolist()) == ([0.0], [0.0])


def test_intervals_cover_and_are_narrow(times):
    inside = (times["low"] <= times["published"]) & (times["published"] <= times["high"])
    assert inside.sum() >= 8
    assert times["inside"].tolist() == inside.tolist()
    assert (times["low"] >= 0.85 * times["predicted"]).all()
    assert (times["high"] <= 1.15 * times["predicted"]).all()


@pytest.mark.parametrize(("name", "law"), [("amdahl", fit_amdahl), ("usl", fit_universal_scalability)])
def test_scalability_laws_have_larger_errors(times, table, name, law):
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
    """Graviton2 has the Ampere Altra's core, Neoverse N1, and its line transfer was measured directly."""
    others = measurements.load("core-to-core-latency")
    row = others.frame[others.frame["processor"] == "Graviton2"]
    published_ps = row["latency_ns"].item() * 1000
    cost = fit.parameters.set_index("name").loc["line_transfer"]
    assert cost["low"] <= published_ps <= cost["high"]
    assert cost["determined"]


def test_the_notebook_runs_and_labels_its_figures(run):
    assert_ran_without_complaint(run)
    shown_figures = figures_of(run)
    assert len(shown_figures) == 8
    for figure in shown_figures:
        subtitle = figure["layout"]["title"]["subtitle"]["text"]
        assert any(word in subtitle for word in ("measured", "simulated", "calibrated", "predicted", "Sobol")), subtitle
    last = code_cells(run)[-2]
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in last.outputs)


def test_the_notebook_text_matches_its_results(run, findings):
    """Check statements of the text that the data or the model could contradict."""
    assert run["faster"]["rwlock-old-test"].iloc[-1] == pytest.approx(2.6, abs=0.01)
    contentions = run["contentions"]
    assert (contentions / contentions.index / run["pages"]).tolist()[-3:] == pytest.approx([6, 6, 6], abs=0.005)
    spin, ticket, rwlock, lockless = (curve for _, curve in run["seconds"].items())
    assert (ticket > spin)[[8, 16, 32, 64]].all()
    assert (lockless / rwlock)[[2, 4]].between(0.95, 0.99).all()
    assert (lockless / rwlock)[[8, 16, 32, 64]].tolist() == pytest.approx([1] * 4, abs=0.005)
    shipped, equivalent, *sections, blocks, line_only, same_costs = findings.tables["hypotheses"]["discrepancy"]
    assert equivalent == pytest.approx(shipped, rel=0.1)
    assert min(blocks, line_only, same_costs) / shipped > 3.9
    assert [value / shipped for value in sections] == pytest.approx([2, 2], abs=0.4)
    every_page = findings.tables["every-page"]
    assert every_page["every_page"].tolist() == pytest.approx(every_page["predicted"].tolist(), rel=5e-3)
