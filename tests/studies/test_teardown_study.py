# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the teardown study: the mail, the tables of FEAT_TLBIRANGE, and the model."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint

from simlib._lib.errors import InputError
from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import load
from studies.study import FITTED, HELD_OUT, held_out, with_errors
from studies.teardown import STUDY, figures, mail, unmap


@pytest.fixture(scope="module")
def training_fits():
    return unmap.fits()


@pytest.fixture(scope="module")
def all_fits():
    return unmap.fits(math.inf)


def test_costs_of_the_4k_table_follow_from_two_of_its_rows(training_fits):
    """Rows of 1 and 8 GB give the time per additional page, with and without a TLB invalidation."""
    times = load("arm64-tlbi-range-unmap-4k").frame.set_index(["variant", "memory_gb"])["unmap_time_s"]
    pages = 7 * 2**18
    base, series = ((times[variant, 8] - times[variant, 1]) / pages for variant in ("base", "series"))
    fit = training_fits["4K pages"]
    assert fit.interval("unmap_entry")[0] == pytest.approx(series, rel=0.03)
    assert fit.interval("tlb_invalidate")[0] == pytest.approx(base - series, rel=0.01)


def test_costs_of_a_synthetic_table_are_recovered():
    """After rounding, the true costs are in the intervals, and rounding explains the residuals."""
    rows = unmap.published("2M blocks")
    truth = np.array([5e-3, 1.4e-6, 3.0e-6])
    exact = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float) @ truth
    fit = unmap.least_squares("2M blocks", rows.assign(published=np.round(exact, 3)))
    for cost, value in zip(unmap.COSTS, truth, strict=True):
        _, low, high = fit.interval(cost)
        assert low < value < high
    assert fit.discrepancy < 0.01
    assert fit.dof == 16 - 3


def test_discrepancy_beyond_rounding_is_estimated():
    rows = unmap.published("4K pages")
    exact = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float) @ np.array([0.02, 4e-7, 1.5e-6])
    noisy = exact * (1 + 0.05 * np.random.default_rng(1).standard_normal(len(rows)))
    assert unmap.least_squares("4K pages", rows.assign(published=noisy)).discrepancy == pytest.approx(0.05, rel=0.5)


def test_the_4k_table_is_predicted_from_its_small_sizes(training_fits):
    held = held_out(unmap.unmap_numbers(training_fits)).query("mapping == '4K pages'")
    assert len(held) == 8
    assert held["error_percent"].abs().max() < 2.5
    assert held["inside"].sum() >= 6


def test_the_2m_table_is_missed(training_fits):
    """The time per block decreases with the memory, by up to a fifth, so that extrapolation from 8 GB is too slow."""
    held = held_out(unmap.unmap_numbers(training_fits)).query("mapping == '2M blocks'")
    assert held["error_percent"].max() < 25
    assert (held["error_percent"] > 0).sum() == 7
    assert held.loc[held["kernel"] == "base", "inside"].sum() == 0


def test_intervals_cover_the_fitted_rows(all_fits):
    assert with_errors(unmap.unmap_numbers(all_fits))["inside"].mean() >= LEVEL - 0.1


def test_the_two_tables_have_different_costs(all_fits):
    """A block takes two to three times as long as a page, with and without its invalidation."""
    ratios = unmap.cross_predictions(all_fits).set_index(["costs_of", "kernel"]).sort_index()
    assert (ratios.loc["4K pages", "low"] > 1.5).all()
    assert (ratios.loc["2M blocks", "high"] < 0.67).all()
    costs = unmap.cost_table(all_fits, "all").set_index(["mapping", "cost"]).sort_index()
    for cost in ("unmap_entry", "tlb_invalidate"):
        assert costs.loc[("2M blocks", cost), "low_us"] > costs.loc[("4K pages", cost), "high_us"]


def test_the_mail_contradicts_the_4k_table_if_pages_mapped_its_vm(all_fits):
    """The invalidations alone take longer than the mail's 12 s; with blocks the sources agree."""
    result = mail.hypotheses(all_fits).set_index("mapping")
    pages, blocks = result.loc["4K pages"], result.loc["2M blocks"]
    entries = 2**24 + 2**15 + 64
    assert pages["mail_ns"] == pytest.approx(0.01 * 12e9 / entries)
    assert entries * all_fits["4K pages"].interval("tlb_invalidate")[1] > 12
    assert pages["ratio_low"] == pytest.approx(entries * (1.481e-6 + 19e-9) / 0.18, rel=0.01)
    assert pages["ratio_low"] > 100
    assert blocks["ratio_low"] < 1 < blocks["ratio_high"] < 3
    assert (pages["agrees"], blocks["agrees"]) == (False, True)
    assert 0 < mail.largest_page_share(all_fits) < 0.005


def test_the_time_after_does_not_distinguish_pages_from_blocks(all_fits):
    """The table's cost of an entry would; but a published walk that changes each entry takes only 19 ns per entry."""
    after = mail.hypotheses(all_fits).set_index("mapping")
    assert (after["after_least_s"] < 1).all()
    assert after.loc["4K pages", "after_table_s"] > 1
    assert mail.least_unmap_entry() == pytest.approx((0.650 - 0.0018) / (127 * 2**18))


def test_the_mail_s_time_per_page_is_too_short_for_a_broadcast(all_fits):
    """The mail's time per page is below the smallest published latency between two cores."""
    least = load("core-to-core-latency").frame["latency_ns"].min()
    assert mail.hypotheses(all_fits)["mail_high_ns"].iloc[0] < least


def test_the_mail_s_statements_as_costs():
    stated = mail.statements()
    value, low, high = stated.clean_line
    assert value * stated.lines == pytest.approx(0.99 * 12)
    assert low * stated.lines == pytest.approx(0.985 * 2)
    assert high * stated.lines == pytest.approx(0.995 * 12.5)
    assert stated.other_s == pytest.approx((0.12, 0.06, 0.18))


def test_simulated_and_closed_form_predictions_are_equal(all_fits):
    simulated, closed_form = (mail.predictions(all_fits, engine=engine) for engine in (True, False))
    assert simulated.equals(closed_form)
    assert len(simulated) == 2 * 3 * 2 * 4
    assert (simulated["low_s"] <= simulated["estimate_s"]).all()
    assert (simulated["estimate_s"] <= simulated["high_s"]).all()


def test_predictions_match_the_mail_only_with_blocks(all_fits):
    result = mail.predictions(all_fits, memories=(64 * 2**30,), engine=False)
    at = result[result["page_size"] == "4K"].set_index(["mapping", "way"]).sort_index()
    blocks, pages = at.loc["blocks"], at.loc["pages"]
    assert blocks.loc["both for each entry", "estimate_s"] == pytest.approx(12, rel=0.01)
    assert blocks.loc["one whole-VM invalidation", "high_s"] < 1
    assert pages.loc["both for each entry", "low_s"] > 12.5
    assert pages.loc["one whole-VM invalidation", "low_s"] < 1 < pages.loc["one whole-VM invalidation", "estimate_s"]


def test_larger_pages_reduce_all_but_cache_maintenance(all_fits):
    result = mail.predictions(all_fits, memories=(2**40,), engine=False)
    at = result.set_index(["mapping", "way", "page_size"])["estimate_s"].sort_index()
    cleaned = at["pages", "no TLB invalidation"] - at["pages", "one whole-VM invalidation"]
    assert cleaned.max() - cleaned.min() < 1e-5
    other = at["pages", "no cache maintenance"]
    assert other["4K"] / other["16K"] == pytest.approx(4, rel=0.01)
    assert other["4K"] / other["64K"] == pytest.approx(16, rel=0.02)


def test_a_running_guest_waits_for_one_largest_block(all_fits):
    result = mail.stalls(all_fits, vcpus=4, gib=2)
    assert result["longest_stall_s"].to_numpy() == pytest.approx(result["hold_s"].to_numpy(), rel=0.1)
    assert (result["unmapped_after_s"] > 1.9 * result["hold_s"]).all()


UNMAP = pd.DataFrame(
    [(table, variant, gb, gb * 0.5, gb * 0.51, gb * 0.49, gb * 0.53, HELD_OUT if gb > 8 else FITTED)
     for table in ("4K pages", "2M blocks") for variant in ("base", "series") for gb in (16.0, 1.0, 8.0)],
    columns=list(figures.UNMAP_COLUMNS),
)  # fmt: skip
WAYS = pd.DataFrame(
    [(memory, "4K", mapping, way, t, t / 2, 2 * t)
     for memory in ("64G", "1T") for mapping in ("pages", "blocks") for way, t in (("both", 12.0), ("neither", 0.1))],
    columns=list(figures.WAY_COLUMNS),
)  # fmt: skip
BOUNDS = pd.DataFrame([("64G", "4K", "both", 12.0, "up-to"), ("64G", "4K", "neither", 1.0, "below")],
                      columns=list(figures.BOUND_COLUMNS))  # fmt: skip


def traces(figure, **attributes):
    return [t for t in figure.data if all(getattr(t, key) == value for key, value in attributes.items())]


def test_fitted_and_held_out_points_look_different():
    figure = figures.unmap_times(UNMAP)
    solid, dashed = (
        [t for t in traces(figure, name="base", xaxis="x") if t.line.dash == dash] for dash in ("solid", "dash")
    )
    assert list(solid[0].x) == [1, 8]
    assert list(dashed[0].x) == [8, 16]  # joined to the fitted line
    symbols = {t.marker.symbol: list(t.x) for t in traces(figure, name="base", xaxis="x", mode="markers")}
    assert symbols == {"circle": [1, 8], "diamond-open": [16]}
    assert [a.text for a in figure.layout.annotations] == ["4K pages", "2M blocks"]


def test_published_bounds_are_drawn_in_the_rows_of_their_page_size_only():
    figure = figures.teardown_ways(WAYS, BOUNDS)
    upper = traces(figure, name="published: up-to")
    assert [list(t.x) for t in upper if t.xaxis == "x"] == [[12, 12]]
    assert not [t for t in figure.data if t.xaxis == "x2" and str(t.name).startswith("published") and t.x[0]]
    assert figure.layout.yaxis.ticktext == ("4K, pages", "4K, blocks")


def test_estimates_carry_their_range():
    first = figures.teardown_ways(WAYS).data[0]
    assert list(first.x) == [12, 12]
    assert list(first.error_x.array) == [12, 12]
    assert list(first.error_x.arrayminus) == [6, 6]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (partial(figures.unmap_times, UNMAP.drop(columns="low")), r"table\.low = missing: the column is required"),
        (partial(figures.unmap_times, UNMAP.assign(predicted=-1.0)), r"table\.predicted = "),
        (partial(figures.teardown_ways, WAYS.iloc[:0]), r"table = no rows"),
        (partial(figures.teardown_ways, WAYS, BOUNDS.assign(relation="about")), r"bounds\.relation = about"),
    ],
)
def test_an_invalid_table_is_rejected(draw, message):
    with pytest.raises(InputError, match=message):
        draw()


@pytest.mark.study
def test_the_notebook_text_matches_its_results(ran):
    run = ran(ROOT / "notebooks" / "08-teardown.ipynb")
    assert_ran_without_complaint(run)
    findings, held, hypotheses = run["findings"], run["held"], run["hypotheses"].set_index("mapping")
    errors = held.groupby("mapping")["error_percent"].apply(lambda error: error.abs().max())
    assert errors.round(1).to_dict() == {"2M blocks": 20.9, "4K pages": 2.2}
    assert (~held["inside"].astype(bool)).groupby(held["mapping"]).sum()["2M blocks"] == 5
    ratios = run["across"].set_index("costs_of").loc["4K pages", "ratio"]
    assert ratios.between(2, 3.3).all()
    pages, blocks = hypotheses.loc["4K pages"], hypotheses.loc["2M blocks"]
    assert pages["ratio_low"] > 100
    assert 1 / 3 < blocks["ratio_low"] < blocks["ratio_high"] < 3
    assert pages["entries"] * findings.fits_all["4K pages"].interval("tlb_invalidate")[0] == pytest.approx(25, abs=0.5)
    assert (round(pages["mail_ns"]), round(pages["mail_high_ns"])) == (7, 11)
    assert mail.least_unmap_entry() == pytest.approx(19e-9, abs=0.5e-9)
    stalls = findings.tables["stalls"]["longest_stall_s"]
    assert stalls[[0, 2, 5]].tolist() == pytest.approx([0.69, 0.114, 0.00067], rel=0.01)


def test_numbers_are_those_of_the_tables():
    findings = STUDY.load_or_compute()
    assert len(findings.unmap) == sum(len(load(table.name).frame) for table in unmap.TABLES.values())
    assert findings.bounds["published"].tolist() == [12, 1]
    sizes = findings.unmap["memory_gb"]
    assert (sizes > unmap.TRAIN_GB).equals(findings.unmap["role"] == HELD_OUT)
