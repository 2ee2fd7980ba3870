# SPDX-License-Identifier: BSD-3-Clause
"""Sentences say what their table says, whatever it says: other numbers give other words."""

from __future__ import annotations

import pandas as pd
import pytest

from simlib.calibration import migrations, unstated
from simlib.report import sentences
from simlib.studies.x86 import hosts

CHANGES = pd.DataFrame(
    [(1, "clear_cpu_time", 6.0, 6.0, 6.0, 6.0), (2, "clear_cpu_time", 123.0, 147.0, 90.0, 180.0),
     (3, "clear_cpu_time", 5200.0, 3526.0, 2900.0, 3800.0), (4, "clear_cpu_time", None, 3789.0, 2969.0, 3900.0)],
    columns=["configuration", "metric", "published_percent", "model_percent", "low", "high"],
)  # fmt: skip
SECONDS = pd.DataFrame(
    [("before", 99, 105.0, 91.0, 86.0, 96.0, "fitted"), ("after", 50, 58.0, 71.2, 67.0, 75.0, "predicted"),
     ("after", 99, 30.0, 30.2, 25.0, 35.0, "predicted")],
    columns=["series", "level_percent", "published_s", "model_s", "low_s", "high_s", "role"],
).assign(low_bar_s=50.0, high_bar_s=120.0)  # fmt: skip
PASSES = ["lowest_percent_1", "mean_percent_1", "lowest_percent_2", "mean_percent_2"]
DIPS = pd.DataFrame(
    [("8 GiB CLEARs", "before", 110.0, 0.0, 86.0, 99.0, 99.0),
     ("8 GiB CLEARs", "64-page drop", 0.1, 98.7, 99.9, 99.8, 99.8),
     ("8 GiB CLEARs", "drop at each split", 0.4, 98.0, 99.0, 77.6, 99.0)],
    columns=["chunk", "series", "longest_stall_ms", *PASSES],
)  # fmt: skip


def test_what_the_interval_excludes_is_said():
    told = sentences.changes_told(CHANGES)
    assert "+3526 % in configuration 3 (published +5200 %; interval +2900 to +3800 %)" in told
    assert "The interval excludes the published +5200 %." in told
    wide = sentences.changes_told(CHANGES.assign(high=9000.0))
    assert "excludes" not in wide


def test_loongarch_is_simulated_and_settles_nothing():
    told = sentences.loongarch_told(CHANGES)
    assert told.startswith("Simulated at the costs of x86 hosts")
    assert "That supports" in told
    assert "That does not support" in sentences.loongarch_told(CHANGES.assign(model_percent=[6, 147, 3526, 10]))


def test_the_predicted_numbers_that_were_missed_come_first():
    told = sentences.seconds_told(SECONDS)
    assert told.startswith(
        "Of the 2 predicted numbers 1 inside the model's interval. Missed: after above 50 %: 71.2 s for 58 s"
    )
    assert "Of the 1 fitted numbers none inside the model's interval. Missed: before above 99 %" in told
    assert "outside what counts as agreement" not in told
    assert "outside what counts as agreement" in sentences.seconds_told(SECONDS.assign(high_bar_s=60.0))


def test_a_dip_that_a_change_leaves_is_named():
    told = sentences.dips_told(DIPS)
    assert "longest stall is 110 ms with 8 GiB CLEARs" in told
    assert "The 64-page drop leaves no dip: the lowest bin has 99 % in pass 1 and 100 % in pass 2." in told
    assert (
        "The drop at each split leaves a dip in pass 2: the lowest bin has 98 % in pass 1 and 78 % in pass 2." in told
    )


def test_costs_without_an_interval_are_named_and_times_are_nanoseconds():
    fit = migrations.fit_of(hosts.configurations())
    rows = sentences.cost_rows(fit)
    told = sentences.costs_told(rows)
    none = rows[rows["low"] == rows["high"]]["name"]
    assert len(none)
    assert all(name in told.partition(": each is read")[0] for name in none)
    assert set(rows["unit"]) == {"ns", "dimensionless"}
    value = fit.parameters.set_index("name")["value"]
    assert rows.set_index("name").loc["fault_hold", "value"] == pytest.approx(value["fault_hold"] / 1000)
    assert rows.set_index("name").loc["fault_jitter", "value"] == value["fault_jitter"]


def test_seed_001s_numbers_are_sorted_by_what_predicts_them():
    nine = unstated.predictive(unstated.load_grid())
    told = sentences.settings_told(nine, 480)
    assert told.count("'s ") == 9
    for row in nine[nine["role"] == "missed"].to_dict("records"):
        assert f"The published +{row['published_percent']:.0f} % lies outside" in told
