# SPDX-License-Identifier: BSD-3-Clause
"""Seed 003 and the tables of FEAT_TLBIRANGE beside the model, against what anybody can work out from their digits."""

import math

import numpy as np
import pytest

from simlib.calibration import teardown
from simlib.measurements import load
from simlib.prediction import LEVEL


@pytest.fixture(scope="module")
def small():
    return teardown.fits()


@pytest.fixture(scope="module")
def every():
    return teardown.fits(math.inf)


def test_costs_of_the_4k_table_follow_from_two_of_its_rows(small):
    """Of 1 and 8 GB: what a page more takes, with a TLB invalidation and without."""
    times = load("arm64-tlbi-range-unmap-4k").frame.set_index(["variant", "memory_gb"])["unmap_time_s"]
    pages = 7 * 2**18
    base, series = ((times[variant, 8] - times[variant, 1]) / pages for variant in ("base", "series"))
    fit = small["4K pages"]
    assert fit.interval("unmap_entry")[0] == pytest.approx(series, rel=0.03)
    assert fit.interval("tlb_invalidate")[0] == pytest.approx(base - series, rel=0.01)


def test_a_table_that_the_model_made_gives_its_costs_back():
    """The digits cut off, the true costs lie within the intervals, and rounding explains the rest."""
    rows = teardown.published("2M blocks")
    truth = np.array([5e-3, 1.4e-6, 3.0e-6])
    exact = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float) @ truth
    fit = teardown.least_squares("2M blocks", rows.assign(published_s=np.round(exact, 3)))
    for cost, value in zip(teardown.COSTS, truth, strict=True):
        _, low, high = fit.interval(cost)
        assert low < value < high
    assert fit.discrepancy < 0.01
    assert fit.dof == 16 - 3


def test_noise_that_rounding_cannot_explain_is_found():
    rows = teardown.published("4K pages")
    exact = rows[["constant", "entries", "invalidations"]].to_numpy(dtype=float) @ np.array([0.02, 4e-7, 1.5e-6])
    noisy = exact * (1 + 0.05 * np.random.default_rng(1).standard_normal(len(rows)))
    assert teardown.least_squares("4K pages", rows.assign(published_s=noisy)).discrepancy == pytest.approx(
        0.05, rel=0.5
    )


def test_the_4k_table_is_predicted_from_its_small_sizes(small):
    held = teardown.unmap_table(small).query("held_out and table == '4K pages'")
    assert len(held) == 8
    assert held["error"].abs().max() < 0.025
    assert held["covered"].sum() >= 6


def test_the_2m_table_is_not(small):
    """Its blocks take less time each the more there are, up to a fifth: extrapolated from 8 GB it is too slow."""
    held = teardown.unmap_table(small).query("held_out and table == '2M blocks'")
    assert held["error"].max() < 0.25
    assert (held["error"] > 0).sum() == 7
    assert held.loc[held["variant"] == "base", "covered"].sum() == 0


def test_intervals_of_what_is_fitted_cover_it(every):
    rows = teardown.unmap_table(every)
    assert rows["covered"].mean() >= LEVEL - 0.1


def test_neither_table_s_costs_are_the_other_s(every):
    """A block takes two to three times what a page takes, with and without its invalidation."""
    ratios = teardown.across(every).set_index(["costs_of", "variant"]).sort_index()
    assert (ratios.loc["4K pages", "low"] > 1.5).all()
    assert (ratios.loc["2M blocks", "high"] < 0.67).all()
    costs = teardown.cost_table(every).set_index(["table", "cost"]).sort_index()
    for cost in ("unmap_entry", "tlb_invalidate"):
        assert costs.loc[("2M blocks", cost), "low_us"] > costs.loc[("4K pages", cost), "high_us"]


def test_seed_003_contradicts_the_4k_table_if_pages_mapped_its_vm(every):
    """The invalidations alone take longer than all of its 12 s; with blocks both agree."""
    found = teardown.readings(every).set_index("mapping")
    pages, blocks = found.loc["4K pages"], found.loc["2M blocks"]
    entries = 2**24 + 2**15 + 64
    assert pages["mail_ns"] == pytest.approx(0.01 * 12e9 / entries)
    assert entries * every["4K pages"].interval("tlb_invalidate")[1] > 12
    assert pages["ratio_low"] == pytest.approx(entries * (1.481e-6 + 19e-9) / 0.18, rel=0.01)
    assert pages["ratio_low"] > 100
    assert blocks["ratio_low"] < 1 < blocks["ratio_high"] < 3
    assert (pages["agrees"], blocks["agrees"]) == (False, True)
    assert 0 < teardown.largest_page_share(every) < 0.005


def test_the_time_after_does_not_tell_pages_from_blocks(every):
    """By the table's own cost of an entry it would; but a walk that changes each entry is known to take 19 ns."""
    after = teardown.readings(every).set_index("mapping")
    assert (after["after_least_s"] < 1).all()
    assert after.loc["4K pages", "after_table_s"] > 1
    assert teardown.walk_entry() == pytest.approx((0.650 - 0.0018) / (127 * 2**18))


def test_no_broadcast_is_as_fast_as_pages_would_need(every):
    """What the seed leaves for a page is less than the least published latency between two cores of any machine."""
    least = load("core-to-core-latency").frame["latency_ns"].min()
    assert teardown.readings(every)["mail_high_ns"].iloc[0] < least


def test_seed_003_s_statements_as_costs():
    said = teardown.seed()
    value, low, high = said.clean_line
    assert value * said.lines == pytest.approx(0.99 * 12)
    assert low * said.lines == pytest.approx(0.985 * 2)
    assert high * said.lines == pytest.approx(0.995 * 12.5)
    assert said.rest_s == pytest.approx((0.12, 0.06, 0.18))


def test_simulated_and_counted_predictions_are_one(every):
    simulated, counted = (teardown.predictions(every, engine=engine) for engine in (True, False))
    assert simulated.equals(counted)
    assert len(simulated) == 2 * 3 * 2 * 4
    assert (simulated["low_s"] <= simulated["estimate_s"]).all()
    assert (simulated["estimate_s"] <= simulated["high_s"]).all()


def test_predictions_give_the_seed_back_with_blocks_only(every):
    found = teardown.predictions(every, memories=(64 * 2**30,), engine=False)
    at = found[found["page_size"] == "4K"].set_index(["mapping", "way"]).sort_index()
    blocks, pages = at.loc["blocks"], at.loc["pages"]
    assert blocks.loc["both for each entry", "estimate_s"] == pytest.approx(12, rel=0.01)
    assert blocks.loc["one whole-VM invalidation", "high_s"] < 1
    assert pages.loc["both for each entry", "low_s"] > 12.5
    assert pages.loc["one whole-VM invalidation", "low_s"] < 1 < pages.loc["one whole-VM invalidation", "estimate_s"]


def test_larger_pages_leave_the_cache_maintenance_and_shrink_the_rest(every):
    found = teardown.predictions(every, memories=(2**40,), engine=False)
    at = found.set_index(["mapping", "way", "page_size"])["estimate_s"].sort_index()
    cleaned = at["pages", "no TLB invalidation"] - at["pages", "one whole-VM invalidation"]
    assert cleaned.max() - cleaned.min() < 1e-5
    rest = at["pages", "no cache maintenance"]
    assert rest["4K"] / rest["16K"] == pytest.approx(4, rel=0.01)
    assert rest["4K"] / rest["64K"] == pytest.approx(16, rel=0.02)


def test_a_running_guest_waits_for_one_largest_block(every):
    found = teardown.stalls(every, vcpus=4, gib=2)
    assert found["longest_stall_s"].to_numpy() == pytest.approx(found["hold_s"].to_numpy(), rel=0.1)
    assert (found["unmapped_after_s"] > 1.9 * found["hold_s"]).all()
