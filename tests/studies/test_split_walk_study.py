# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the June 2026 study: fits of the published changes, hypotheses, and failed predictions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint

from simlib._lib.errors import InputError
from studies.split_walk import STUDY, costs, figures
from studies.split_walk.costs import CASES, HYPOTHESES, NAMES, TABLES, change, count_array, fit, leave_one_out
from studies.split_walk.extrapolation import barrier_table, granules_table, lab_costs, lab_test, walks_table


@pytest.fixture(scope="module")
def fits():
    return {machine: fit(machine, draws=30) for machine in TABLES}


@pytest.mark.parametrize("machine", TABLES)
def test_six_changes_from_four_ratios(fits, machine):
    table = fits[machine].observations
    assert len(fits[machine].hypothesis.ratios) == 4
    assert len(table) == 6
    assert (table["error_points"].abs() <= table["stdev_percent"].clip(lower=2)).all()
    assert table["within"].all()


def test_known_costs_are_recovered(monkeypatch):
    true = np.array([1.0, 0.8, 5.0, 700.0, 30.0, 0.0])
    exact = change(count_array("AmpereOne", "all"), count_array("AmpereOne", "skip_levels"), true).mean(axis=1)
    table = costs.published("AmpereOne").assign(runtime_change_percent=exact, stdev_percent=0.1)
    monkeypatch.setattr(costs, "published", lambda machine: table)
    result = fit(draws=1)
    np.testing.assert_allclose(result.costs, true, rtol=1e-3)
    assert result.chi_squared < 1e-6


def test_a_ratio_is_determined_within_a_factor_of_four_and_inside_its_bounds(fits):
    """Each interval covers 90 % of draws that are evenly spaced between two values."""
    values = np.array([1.0, 0.8, 5.0, 300.0, 1.5e-4, 0.0])
    lowest, highest = np.array([1.0, 0.5, 2.0, 100.0, 1.4e-4, 0.0]), np.array([1.0, 1.0, 9.0, 600.0, 1.6e-4, 0.0])
    draws = np.linspace(lowest, highest, 101)
    table = replace(fits["AmpereOne"], costs=values, draws=draws).parameters.set_index("name")
    determined = {NAMES.index(name): row for name, row in table["determined"].items()}
    assert determined == {1: True, 2: True, 3: False, 4: False}  # 2: 2.35 to 8.65; 3: 125 to 575; 4: next to the lowest
    np.testing.assert_allclose(table[["low", "high"]].to_numpy()[:, 0], lowest[1:5] + 0.05 * (highest - lowest)[1:5])


@pytest.mark.parametrize("machine", TABLES)
def test_each_change_follows_from_the_other_five(machine):
    table = leave_one_out(machine, draws=15)
    assert table["meets"].all()
    width = (table["high"] - table["low"]).set_axis(list(CASES))
    assert width.idxmax()[1] == "4k-already-split"  # not determined by the other changes


@pytest.mark.parametrize("machine", TABLES)
def test_spreads_distinguish_hypotheses(machine):
    """With pages of 64K few entries are valid: a cost per changed entry makes the modes differ too much."""
    spread = {}
    for hypothesis in HYPOTHESES:
        result = fit(machine, hypothesis, draws=1)
        spread[hypothesis.name] = (
            result.observations["spread_percent"].iloc[0] / result.observations["stdev_percent"].iloc[0]
        )
    assert spread["four costs"] > 1.7
    assert spread["every leaf"] < 0.1
    assert 0.8 < spread["five costs, spreads"] < 1.1


def test_five_costs_meet_means_and_spreads_of_both_machines():
    for machine in TABLES:
        result = fit(machine, HYPOTHESES[-1], draws=1)
        assert result.observations["within"].all()
        assert result.chi_squared < 2  # eight observations, five ratios
        blocks = result.observations.iloc[4:]  # CLEAR of blocks: spreads that were not fitted
        np.testing.assert_allclose(blocks["spread_percent"], blocks["stdev_percent"], atol=0.6)


def test_chunks_of_2_mib_fit_worse(fits):
    for machine in TABLES:
        assert fit(machine, HYPOTHESES[1], draws=1).chi_squared > 2 * fits[machine].chi_squared


def test_the_labs_times_follow_from_five_costs():
    """Twelve times, which are instructions: enabling and two CLEARs, two chunks, with and without the last level."""
    instructions, cells = lab_costs()
    assert len(cells) == 12
    assert cells["error"].abs().max() < 0.01
    assert instructions["walk_entry"] == pytest.approx(50, rel=0.02)


def test_the_labs_change_is_outside_both_machines_intervals(fits):
    enable = lab_test(list(fits.values())).set_index(["phase", "machine"]).loc["enable"]
    assert enable["lab_percent"].tolist() == pytest.approx([-17.8, -17.8], abs=0.05)
    assert not enable["inside"].any()
    assert enable.loc["ThunderX2", "predicted_percent"] < -17.8 < enable.loc["AmpereOne", "predicted_percent"]


def test_the_discarded_variant_is_marginally_slower_by_the_counts(fits):
    walks = walks_table(fits["AmpereOne"]).set_index(["walk", "scenario", "backing"]).sort_index()
    slowdown = walks.loc["skip_siblings", "slower_percent"]
    assert slowdown.abs().max() < 0.5
    assert (slowdown.loc["clear"] > 0).all()
    assert walks.loc[("skip_levels",), "slower_percent"].eq(0).all()
    assert walks.loc[("skip_children", "clear", "4k-already-split"), "change_percent"] == 0


def test_larger_granules_replace_fewer_blocks(fits):
    fit_result = fits["AmpereOne"]
    table = granules_table(fit_result, fit_result).set_index(["page_size", "scenario", "backing"])["change_percent"]
    assert table["4K", "enable", "thp"] > table["16K", "enable", "thp"] > table["64K", "enable", "thp"]
    assert table["64K", "enable", "thp"] == pytest.approx(table["4K", "enable", "hugetlb-1gb"], abs=0.5)


def test_the_number_of_barriers_does_not_explain_70_percent(fits):
    table = barrier_table(fits["AmpereOne"])
    assert (table["after"] > table["before"]).all()
    assert (table["words"] > 100).all()


def test_counts_are_in_the_order_of_the_names():
    assert count_array("AmpereOne", "all").shape == (6, 6, len(NAMES))
    assert (count_array("AmpereOne", "all") >= count_array("AmpereOne", "skip_levels")).all()


def test_the_figure_draws_three_kinds_and_rejects_nan():
    rows = leave_one_out(draws=2).assign(fitted=1.0)
    published, fitted, predicted = figures.changes(rows).data
    assert published.x.tolist() == rows["published"].tolist()
    assert published.error_x.array.tolist() == published.error_x.arrayminus.tolist() == rows["deviation"].tolist()
    assert fitted.error_x.array is None
    np.testing.assert_allclose(predicted.x + predicted.error_x.array, rows["high"])
    with pytest.raises(InputError, match=r"table\.fitted"):
        figures.changes(rows.assign(fitted=np.nan))
    shares = pd.DataFrame([("M", "enable, thp", "tea", 5.0)], columns=list(figures.SHARE_COLUMNS))
    with pytest.raises(InputError, match=r"table\.what = tea"):
        figures.shares(shares)


@pytest.mark.study
def test_the_notebook_text_matches_its_results(ran):
    run = ran(ROOT / "notebooks" / "09-split-walk.ipynb")
    assert_ran_without_complaint(run)
    findings = run["findings"]
    assert len(findings.within) == 12
    assert findings.within.all()
    ratios = run["ratios"]
    assert ratios[ratios["name"] == "table_entry"]["determined"].tolist()[:2] == [True, True]
    enable = run["counts"].set_index(["ioctl", "backing"]).loc[("enable", "thp")]
    assert enable["walk_entry"] - enable["visits if skipped"] == 262144
    small, middle, large = run["stalls"]["longest stall, ms"]
    assert large > 5 * middle > 10 * small
    assert (findings.tables["engine"]["apart_ps"] == 0).all()
    spread = findings.tables["hypotheses"].set_index(["hypothesis", "machine"]).xs("AmpereOne", level="machine")
    four_costs, every_leaf = spread.loc["four costs"], spread.loc["every leaf"]
    assert four_costs["spread_enable_4k"] / four_costs["published_enable_4k"] == pytest.approx(2, abs=0.3)
    assert every_leaf["spread_enable_4k"] < 0.1
    lab = findings.tables["lab"].query("phase == 'enable'").set_index("machine")
    assert not lab["inside"].any()
    assert findings.tables["lab-cells"]["error"].abs().max() < 0.01
    barrier = findings.tables["barrier"].query("backing == 'thp'")
    assert (barrier["after"] > barrier["before"]).all()
    assert barrier["words"].min() > 100
    assert len(STUDY.input_tables) == 4
