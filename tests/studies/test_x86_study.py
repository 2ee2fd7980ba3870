# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the x86 study: shipped fits, growth of the fault time, and ioctls with parked vCPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint

from simlib.analysis.calibrate import search
from simlib.analysis.calibrate.fit import calibrate
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, find_fit
from simlib.model.host import HOSTS
from simlib.simulator.workloads.migration import unscaled
from studies.migrations.drops import BARS
from studies.study import FITTED, HELD_OUT, with_errors
from studies.x86 import STUDY, figures, growth, hosts, parked, parked_times

SHIPPED_FITS = sorted(path.stem for path in (data_dir() / "fits" / "x86-growth").glob("*.json"))

MISSES = {
    ("shadow MMU: enabling of unsplit blocks", 64),
    *(("shadow MMU: enabling that splits", vcpus) for vcpus in (2, 4, 8, 16, 32, 64)),
    ("shadow MMU: CLEAR of unsplit blocks", 64),
    ("TDP MMU, 96 vCPUs: enabling of unsplit blocks", 96),
    ("TDP MMU, 160 vCPUs: CLEAR that splits", 160),
    ("TDP MMU, 160 vCPUs: CLEAR of all pages", 160),
}
"""Rows that are off by more than 15 %; the notebook discusses their causes."""


@pytest.fixture(scope="module")
def findings():
    return STUDY.load_or_compute()


# -- costs -------------------------------------------------------------------------------------------


@pytest.mark.study
def test_the_shipped_fit_matches_a_new_calibration():
    """``checks/shipped.py`` writes the fit."""
    shipped, again = find_fit(hosts.configurations()), hosts.x86_fit()
    assert shipped.estimate.names == again.estimate.names
    assert shipped.estimate.logs == pytest.approx(again.estimate.logs, abs=1e-4)
    assert shipped.estimate.covariance == pytest.approx(again.estimate.covariance, rel=1e-3, abs=1e-9)
    intervals = ["value", "low", "high"]
    assert np.log(shipped.parameters[intervals]).to_numpy() == pytest.approx(
        np.log(again.parameters[intervals]).to_numpy(), abs=1e-3
    )
    assert shipped.observations["model"].tolist() == pytest.approx(again.observations["model"].tolist(), rel=1e-4)


def test_joined_costs_have_the_narrower_interval():
    correlated = np.array([[0.04, 0.01], [0.01, 0.09]])  # of logarithms: deviations of 0.2 and 0.3
    estimate = CostEstimate(("a", "b"), np.log([10.0, 20.0]), correlated, 5, 0.1, {})
    profile = pd.DataFrame({"low": np.exp([-0.2, -1.0]), "high": np.exp([0.2, 1.0])})  # 0.1 and 0.5, by 2 deviations
    other = pd.DataFrame({"name": ["c"], "value": [5.0], "low": [5 / np.e], "high": [5 * np.e]})
    joined = hosts._joined(SimpleNamespace(estimate=estimate, parameters=profile), other, 2.0)
    assert joined.names == ("a", "b", "c")
    assert np.exp(joined.logs) == pytest.approx([10.0, 20.0, 5.0])
    assert np.sqrt(np.diag(joined.covariance)) == pytest.approx([0.1, 0.3, 0.5])
    assert joined.covariance[0, 1] / 0.1 / 0.3 == pytest.approx(0.01 / 0.2 / 0.3)  # as correlated as before
    assert (joined.covariance[2, :2] == 0).all()
    assert (joined.dof, joined.discrepancy) == (5, 0.1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_single_set_of_costs_gives_the_three_configurations(number):
    estimate = find_fit(hosts.configurations()).estimate
    whole, batch = (hosts.configuration_metrics(estimate, f"config-{number}", n, hosts.FACTOR) for n in (0, 64))
    for metric in hosts.PUBLISHED_CHANGE:
        low, high = BARS[number, metric]
        assert low < 100 * (batch[metric] / whole[metric] - 1) < high, metric


def test_a_quarter_of_the_memory_gives_the_same():
    """The April 2024 mail's third configuration, in which waits for the lock dominate."""
    estimate = find_fit(hosts.configurations()).estimate
    large, small = (
        unscaled(hosts.configuration_metrics(estimate, "config-3", 64, f), f) for f in (hosts.FACTOR, 4 * hosts.FACTOR)
    )
    for metric in hosts.PUBLISHED_CHANGE:
        assert small[metric] == pytest.approx(large[metric], rel=0.05)


def test_costs_match_the_published_tables():
    """Compare with arithmetic on published digits; with 96 and 160 vCPUs half of the memory is on the other socket."""
    costs = parked.parked_costs().set_index("name")["value"] * 1e-3
    assert 29.8 < costs["clear_page[shadow]"] < 32.1  # extremes for 2 to 32 vCPUs
    assert 1.875 * costs["clear_page[tdp]"] == pytest.approx(42.7, abs=0.1)
    assert 64 * costs["flush_per_vcpu"] == pytest.approx(72_800, rel=1e-3)
    assert 96 * 1.875 * 512 * costs["split_block[tdp]"] == pytest.approx((1.667811687 - 1.422478617) * 1e9, rel=1e-6)
    gib = 262144 * costs["clear_page[shadow]"] + 512 * costs["split_block[shadow]"]
    assert gib == pytest.approx(28.2e6, rel=0.01)


# -- growth of the fault time -------------------------------------------------------------------------------------


def test_the_host_matches_the_tables():
    host, latency = HOSTS[parked.MACHINE], load("core-to-core-latency").frame
    assert host.remote_ratio == latency[latency["processor"].str.startswith("Xeon")]["cross_ratio"].median() == 2.75
    known = dict(hosts.lock_free_pass())
    assert dict(host.slowdown) == pytest.approx(known, abs=5e-4)


def test_every_shipped_fit_has_a_hypothesis():
    names = {f"{name}-few" for name in growth.hypotheses()} | {f"{name}-all" for name in growth.PLAUSIBLE}
    assert set(SHIPPED_FITS) == names | {"arm64-grows", "arm64-constant", "shadow-paging-few"}


@pytest.mark.study
@pytest.mark.parametrize(("name", "followed"), [(growth.CHOSEN, 1), ("constant", search.FOLLOWED)])
def test_a_shipped_hypothesis_matches_a_new_calibration(name, followed, monkeypatch):
    """``checks/shipped.py`` writes the fit; without profile intervals and with fewer starts the values are equal."""
    monkeypatch.setattr(search, "FOLLOWED", followed)
    shipped = growth.growth_fit(f"{name}-few")
    again = calibrate(growth.hypothesis_problem(growth.hypotheses()[name]), profile=False)
    assert shipped.estimate.logs == pytest.approx(again.estimate.logs, abs=1e-4)
    assert not shipped.observations[shipped.observations["vcpus"].isin([32, 64])]["train"].any()


@pytest.mark.study
def test_the_shipped_fit_of_shadow_paging_matches_a_new_calibration():
    again = calibrate(growth.paging_problem(growth.growth_fit(f"{growth.CHOSEN}-all").estimate), profile=False)
    assert growth.growth_fit("shadow-paging-few").estimate.logs == pytest.approx(again.estimate.logs, abs=1e-4)


def test_ept_calibrated_on_16_vcpus_predicts_32_and_64():
    table = growth.hypothesis_table().set_index("hypothesis")
    for name in (growth.CHOSEN, "published-latency", "sockets-of-32", "sockets-of-63"):
        row = table.loc[name]
        assert abs(row["trained"]) < 0.10, name
        assert max(abs(row["at_32"]), abs(row["at_64"])) < 0.13, name
    worst = table[["at_32", "at_64"]].abs().max(axis=1)
    assert worst["constant"] > 0.3  # the reason for the limit of 0.13
    assert worst[["busy", "sockets", "clusters-of-4", "clusters-of-8"]].min() > 0.13


def test_shadow_paging_is_predicted_with_the_same_growth(findings):
    rows = with_errors(findings.numbers[findings.numbers["metric"] == growth.PAGING])
    assert ((rows["vcpus"] <= growth.TRAIN_VCPUS_PAGING) == (rows["role"] == FITTED)).all()
    errors = rows[rows["role"] == HELD_OUT].groupby("vcpus")["error_percent"].agg(lambda error: error.abs().max())
    assert errors[[16, 32]].max() < 13
    assert errors[64] < 20


def test_predictions_match_those_stored_in_the_fit(findings):
    """A fit file stores ten digits."""
    stored = growth.growth_fit("shadow-paging-few").observations
    rows = findings.numbers[findings.numbers["metric"] == growth.PAGING]
    assert rows["predicted"].tolist() == pytest.approx(stored["model"].tolist(), rel=1e-4)
    assert (rows["low"] < rows["predicted"]).all()
    assert (rows["predicted"] < rows["high"]).all()


def test_each_published_time_is_drawn_once():
    curves = growth.curves()
    assert not curves.duplicated(["panel", "hypothesis", "vcpus", "kind"]).any()
    measured = curves[curves["kind"] == "measured"]
    tables = [growth.growth_fit(f"{name}-few").observations for name in (growth.CHOSEN, "shadow-paging")]
    published = [table[table["variant"].isin(["shadow, 100 % written", growth._written(100)])] for table in tables]
    pages = [table["vcpus"] * 2**18 for table in published]  # 1 GiB of 4 KiB pages each
    assert measured["us_per_page"].tolist() == pytest.approx(
        np.concatenate([1e6 * table["value"] / count for table, count in zip(published, pages, strict=True)])
    )


def test_presplit_shadow_paging_is_predicted(findings):
    """No cost was fitted to these rows; with few vCPUs and few writes the time of a read dominates."""
    table = with_errors(findings.numbers[findings.numbers["metric"] == growth.PRESPLIT])
    assert table["error_percent"].abs().max() < 45
    assert table[table["vcpus"].isin([2, 32, 64])]["error_percent"].abs().max() < 15


def test_arm64_does_not_need_growth(findings):
    costs = findings.tables["hand-off"].set_index("machine")
    assert costs.loc["arm64", "p"] > 0.1
    assert costs.loc["arm64", "high_ns"] < costs.loc["x86", "low_ns"] / 3


def test_intervals_widen_beyond_the_data(findings):
    table = findings.tables["beyond"]
    span = table[table["hypothesis"] == "all"].set_index("vcpus")
    chosen = table[table["hypothesis"] == growth.CHOSEN].set_index("vcpus")
    assert (span["low"] <= chosen["low"]).all()
    assert (span["high"] >= chosen["high"]).all()
    widths = np.log(span["high"] / span["low"])
    assert widths[128] > widths[96] > np.log(chosen["high"] / chosen["low"])[96]


# -- parked vCPUs -----------------------------------------------------------------------------------


def test_fitted_rows_fit_and_misses_are_known(findings):
    times = with_errors(parked_times(findings))
    far = times["error_percent"].abs() > parked.TOLERANCE_PERCENT
    assert (len(times), (times["role"] == FITTED).sum()) == (48, 25)
    assert not (far & (times["role"] == FITTED)).any()
    assert set(zip(times[far]["variant"], times[far]["vcpus"], strict=True)) == MISSES


def test_memory_on_the_other_socket_is_predicted(findings):
    """With 64 vCPUs (shadow MMU) and 96 (TDP MMU), from costs of at most 32, as docs/model.md states."""
    times = with_errors(parked_times(findings))
    errors = times[times["role"] == HELD_OUT].set_index(["variant", "vcpus"])["error_percent"] / 100
    shadow = errors[[("shadow MMU: CLEAR of all pages", 64), ("shadow MMU: CLEAR that splits", 64)]].abs().max()
    tdp = abs(errors["TDP MMU, 96 vCPUs: CLEAR of all pages", 96])
    assert 0.05 < shadow < 0.06
    assert 0.04 < tdp.max() < 0.05
    # Without the remote factor it would be missed.
    assert (1 + shadow) / parked.remote_factor(64) < 1 - parked.TOLERANCE_PERCENT / 100
    page = " ".join((Path(__file__).parents[2] / "docs/model.md").read_text(encoding="utf-8").split())
    whole = -100 * errors["shadow MMU: CLEAR of unsplit blocks", 64]
    assert "the TDP MMU and 96 vCPUs is predicted within 5 %." in page
    statement = f"64 vCPUs it is predicted within 6 %, but {whole:.0f} % too low if huge pages are not split."
    assert statement in page


# -- figures and notebook -----------------------------------------------------------------------------------------


def test_a_hypothesis_is_solid_where_fitted_and_dashed_where_held_out(findings):
    figure = figures.saturated_fault(findings.tables["curves"])
    lines = [line for line in figure.data if line.name == growth.CHOSEN and line.xaxis == "x"]
    assert {line.line.dash: list(line.x) for line in lines} == {"solid": [2, 4, 8, 16], "dash": [16, 32, 64]}
    assert sum(bool(trace.showlegend) for trace in figure.data) == len({trace.name for trace in figure.data})


def test_misses_are_labelled_by_their_vcpus(findings):
    figure = figures.parked_times(parked_times(findings))
    assert {(note.y, int(n)) for note in figure.layout.annotations for n in note.text.split(", ")} == MISSES


@pytest.mark.study
def test_the_notebook_text_matches_its_results(ran):
    run = ran(ROOT / "notebooks" / "06-x86-shadow-curves.ipynb")
    assert_ran_without_complaint(run)
    findings, gib = run["findings"], run["parked"].pivot_table(index="what", columns="memory_gib", values="ms per GiB")
    assert run["free"].iloc[-1, 1] == pytest.approx(1.43, abs=0.005)
    measured = findings.tables["curves"].query("kind == 'measured' and panel.str.contains('EPT')").set_index("vcpus")
    us = measured["us_per_page"]
    assert us[[4, 64]].tolist() == pytest.approx([0.40, 0.98], abs=0.005)
    assert us[64] / us[4] == pytest.approx(2.5, abs=0.05)
    assert run["flush"] / 1000 == pytest.approx(73, abs=0.5)
    few = gib[[2, 4, 8, 16, 32]]
    assert (few.max(axis=1) / few.min(axis=1)).max() < 1.1 < (gib[64] / gib[32]).min()
    errors = findings.tables["hypotheses"].set_index("hypothesis")[["at_32", "at_64"]].abs().max(axis=1)
    without = ["constant", "busy", "sockets", "clusters-of-4", "clusters-of-8"]
    assert errors[without].min() > 0.12 > errors["chosen"]
    assert hosts.split_access_bound() / 1000 == pytest.approx(12.5, abs=0.05)
    assert set(run["missed"]["variant"]) == {what for what, _ in MISSES}
    assert gib.loc["enable-dirty-log, eager split Y", 2] < gib.loc["clear-iteration-1, eager split Y", 2] / 2
    unsplit = gib.loc[["clear-iteration-1, eager split N", "enable-dirty-log, eager split N"]]
    assert (unsplit[64] / unsplit[32]).tolist() == pytest.approx([1.7, 2.0], abs=0.05)
