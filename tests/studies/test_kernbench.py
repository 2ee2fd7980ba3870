# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the 2013 series' statistics against SciPy and against random experiments."""

import numpy as np
import pytest
from scipy import stats

from studies.lockless import kernbench
from studies.lockless.kernbench import CONTRASTS, Contrast


def logs(ept, variant):
    rows = kernbench.runs()
    return np.log(rows[(rows["ept"] == ept) & (rows["variant"] == variant)]["real_time_s"])


@pytest.mark.parametrize(("name", "ept"), [("EPT on", "Y"), ("EPT off", "N")])
def test_a_pair_of_cells_gives_welchs_test(name, ept):
    other = stats.ttest_ind(logs(ept, "after"), logs(ept, "before"), equal_var=False)
    row = kernbench.comparison().set_index("comparison").loc[name]
    assert row["p"] == pytest.approx(other.pvalue)
    assert row["dof"] == pytest.approx(other.df)
    interval = other.confidence_interval(0.90)
    assert [row["low_percent"], row["high_percent"]] == pytest.approx(100 * np.expm1([interval.low, interval.high]))


def test_published_runs_show_no_regression_but_have_little_power():
    results = kernbench.comparison().set_index("comparison")
    assert results["p"].min() > 0.4
    assert (results["p_holm"] == 1).all()
    assert results["high_percent"].round(1).tolist() == [1.7, 0.6, 0.8]
    assert results["shown_percent"].round(1).tolist() == [3.7, 0.8, 1.8]
    assert (results["shown_low_percent"] < results["shown_percent"]).all()
    assert (results["shown_percent"] < results["shown_two_sided_percent"]).all()


@pytest.mark.parametrize("slower", [0.0, 1.0])
def test_the_power_matches_random_experiments(slower):
    """Equal variances, six runs per cell; then Satterthwaite's approximation is nearly exact."""
    random, count, sd = np.random.default_rng(1), 6, 0.004
    known = Contrast(0.0, sd * np.sqrt(2 / count), 2 * (count - 1))
    true = slower * np.log1p(known.detectable())
    before, after = (random.normal(shift, sd, (20_000, count)) for shift in (0.0, true))
    noticed = stats.ttest_ind(after, before, axis=1, equal_var=False, alternative="greater").pvalue < 0.05
    assert noticed.mean() == pytest.approx(0.8 if slower else 0.05, abs=0.012)


def test_more_runs_detect_smaller_slowdowns():
    needed = [kernbench.runs_needed(percent, "N") for percent in (2, 1, 0.5, 0.25)]
    assert needed == sorted(needed)
    assert 3 * needed[2] < needed[3] < 5 * needed[2]  # quadratic for large numbers


def test_the_average_of_both_has_the_variances_of_four_cells():
    average = kernbench.contrast(kernbench.runs(), CONTRASTS["both, averaged"])
    on, off = (kernbench.contrast(kernbench.runs(), CONTRASTS[name]) for name in ("EPT on", "EPT off"))
    assert average.value == pytest.approx((on.value + off.value) / 2)
    assert average.error == pytest.approx(np.hypot(on.error, off.error) / 2)
    assert on.dof < average.dof < on.dof + off.dof


def test_the_trend_with_ept_is_the_first_run():
    later = kernbench.comparison(skip=1).set_index("comparison")
    assert later.loc["EPT on", "shown_percent"] < kernbench.comparison().iloc[0]["shown_percent"] / 1.5
    assert len(kernbench.runs(skip=1)) == 8


def test_the_means_are_significant_below_the_stated_scatter():
    """At that standard deviation a t test of ten and ten such runs gives 5 %."""
    means = kernbench.get_means()
    assert (means.before, means.after, means.runs) == (9.009483e-3, 4.807343e-3, 10)
    for before, after in (
        (means.insignificant_sd,) * 2,
        (means.insignificant_variation * means.before, means.insignificant_variation * means.after),
    ):
        test = stats.ttest_ind_from_stats(means.before, before, 10, means.after, after, 10)
        assert test.pvalue == pytest.approx(0.05)
    assert (9 * means.after + means.outlier) / 10 == pytest.approx(means.before)
