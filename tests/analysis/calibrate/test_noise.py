# SPDX-License-Identifier: BSD-3-Clause
"""Noise of each metric of each table, from its rows if there are enough, else from others."""

import numpy as np
import pandas as pd
import pytest

from simlib.analysis.calibrate.noise import ASSUMED, MAX_RATIO, MIN_ROWS, assumed_ratios, estimate_noise


def rows(*groups):
    """Rows of (table, metric, number)."""
    return pd.DataFrame(
        [(table, metric) for table, metric, number in groups for _ in range(number)], columns=["table", "metric"]
    )


def rounds(train, draw, costs, times=6):
    """Weight and fit a linear problem in turn, as a calibration does, and return the final deviations."""
    ratios = assumed_ratios(train)
    for _ in range(times):
        weighted = costs / ratios[:, None]
        residuals = draw - costs @ np.linalg.lstsq(weighted, draw / ratios, rcond=None)[0]
        noise = estimate_noise(train, residuals, costs, ratios)
        ratios = noise.ratios
    return noise


@pytest.mark.study
def test_deviations_of_different_groups_are_recovered_on_average():
    """Without the leverages both would be too small: the costs use up 3 degrees of freedom."""
    train = rows(("a", "dirty_memory_time", 12), ("b", "contentions", 9))
    truth = np.where(train["table"] == "a", 0.01, 0.06)
    random = np.random.default_rng(5)
    variances = []
    for _ in range(300):
        costs = random.standard_normal((21, 3))
        groups = rounds(train, truth * random.standard_normal(21), costs).groups
        assert groups["source"].tolist() == ["own", "own"]
        variances.append(groups["deviation"].to_numpy() ** 2)
    assert np.sqrt(np.mean(variances, axis=0)) == pytest.approx([0.01, 0.06], rel=0.06)


def test_few_rows_keep_the_assumed_ratio():
    train = rows(("a", "dirty_memory_time", 12), ("a", "contentions", MIN_ROWS - 1))
    residuals = np.where(train["metric"] == "contentions", 0.1, 0.01) * (-1.0) ** np.arange(len(train))
    noise = estimate_noise(train, residuals, np.ones((len(train), 1)), assumed_ratios(train))
    assert noise.groups["source"].tolist() == ["pooled", "pooled"]
    assert noise.ratios.tolist() == assumed_ratios(train).tolist()
    assert noise.spread == ASSUMED


def test_a_small_table_has_the_deviation_of_its_metric_over_all_tables():
    train = rows(("a", "dirty_memory_time", 8), ("b", "dirty_memory_time", 2), ("a", "contentions", 8))
    residuals = np.r_[[0.01, -0.01] * 4, [0.03, -0.03], [0.05, -0.05] * 4]
    noise = estimate_noise(train, residuals, np.ones((18, 1)), np.ones(18))
    assert noise.groups["source"].tolist() == ["own", "metric", "own"]
    assert noise.groups["rows"].tolist() == [8, 2, 8]
    small = float(np.sqrt((8 * 0.01**2 + 2 * 0.03**2) / (10 - 10 / 18)))
    assert noise.groups["deviation"][1] == pytest.approx(small)
    # The ratio of a metric is the root mean square over its tables, weighted by rows.
    first, second, third = noise.groups["ratio"]
    expected = {"dirty_memory_time": np.sqrt((8 * first**2 + 2 * second**2) / 10), "contentions": third}
    assert noise.spread == pytest.approx(expected)


def test_rows_that_are_fitted_exactly_do_not_get_all_the_weight():
    train = rows(("a", "dirty_memory_time", 8), ("a", "contentions", 8))
    noise = estimate_noise(train, np.r_[np.zeros(8), [0.05, -0.05] * 4], np.ones((16, 1)), np.ones(16))
    assert noise.groups["ratio"].max() / noise.groups["ratio"].min() == pytest.approx(MAX_RATIO)


def test_iterations_of_a_metric_are_one_group():
    train = rows(("a", "dirty_memory_time[1]", 4), ("a", "dirty_memory_time[2]", 4))
    groups = estimate_noise(train, np.full(8, 0.01), np.ones((8, 1)), np.ones(8)).groups
    assert groups[["metric", "rows"]].to_numpy().tolist() == [["dirty_memory_time", 8]]
