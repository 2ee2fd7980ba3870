# SPDX-License-Identifier: BSD-3-Clause
"""Published migrations: sentences and figures say what their table says, and the notebooks what their cells compute."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint

from simlib._lib.errors import InputError
from studies.migrations import CHOSEN, figures, settings, told
from studies.study import FITTED, HELD_OUT, shipped_fit
from studies.x86 import hosts

CHANGES = pd.DataFrame(
    [("configuration 3", "LoongArch", "clear_cpu_time", 5200.0, 3526.0, 2900.0, 3800.0, 3000.0, 8000.0),
     ("configuration 1", "x86", "clear_cpu_time", 6.0, 7.0, 5.0, 9.0, 1.0, 11.0),
     ("configuration 1", "x86", "precopy_duration", -1.0, 0.5, 0.2, 0.7, -6.0, 4.0)],
    columns=["variant", "emulates", "metric", "published", "predicted", "low", "high", "low_bar", "high_bar"],
).assign(role=FITTED, relation="", unit="% change")  # fmt: skip
LOONGARCH = pd.DataFrame({"metric": ["clear_cpu_time"], "predicted": 3789.0, "low": 2969.0, "high": 3900.0})
SECONDS = pd.DataFrame(
    [("before", "seconds above 99 %", 105.0, 91.0, 86.0, 96.0, FITTED),
     ("after", "seconds above 99 %", 30.0, 30.2, 25.0, 35.0, HELD_OUT),
     ("after", "seconds above 50 %", 58.0, 71.2, 67.0, 75.0, HELD_OUT)],
    columns=["variant", "metric", "published", "predicted", "low", "high", "role"],
).assign(low_bar=50.0, high_bar=120.0)  # fmt: skip
PASSES = ["lowest_percent_1", "mean_percent_1", "lowest_percent_2", "mean_percent_2"]
DIPS = pd.DataFrame(
    [("8 GiB CLEARs", "before", 110.0, 0.0, 86.0, 99.0, 99.0),
     ("8 GiB CLEARs", "64-page drop", 0.1, 98.7, 99.9, 99.8, 99.8),
     ("8 GiB CLEARs", "drop at each split", 0.4, 98.0, 99.0, 77.6, 99.0)],
    columns=["chunk", "series", "longest_stall_ms", *PASSES],
)  # fmt: skip
THROUGHPUT = pd.DataFrame(
    [(series, panel, t, 1 - 0.3 * (t == 2) * (series == "before"))
     for panel in ("1 GiB", "8 GiB") for series in ("before", "after") for t in (3.0, 1.0, 2.0)],
    columns=["series", "panel", "time_s", "throughput"],
)  # fmt: skip


def test_what_the_interval_excludes_is_said():
    said = told.changes_told(CHANGES)
    assert "+3526 % in configuration 3 (published +5200 %; interval +2900 to +3800 %)" in said
    assert "The interval excludes the published +5200 %." in said
    wide = told.changes_told(CHANGES.assign(low=-2.0, high=9000.0))
    assert "excludes" not in wide


def test_loongarch_is_simulated_and_settles_nothing():
    said = told.loongarch_told(LOONGARCH, CHANGES[::-1])
    assert said.startswith("Simulated at the costs of x86 hosts")
    assert "That supports" in said
    assert "That does not support" in told.loongarch_told(LOONGARCH.assign(predicted=10.0), CHANGES[::-1])


def test_the_predicted_numbers_that_were_missed_come_first():
    said = told.seconds_told(SECONDS)
    assert said.startswith(
        "Of the 2 predicted numbers 1 inside the model's interval. Missed: after above 50 %: 71.2 s for 58 s"
    )
    assert "Of the 1 fitted numbers none inside the model's interval. Missed: before above 99 %" in said
    assert "outside what counts as agreement" not in said
    assert "outside what counts as agreement" in told.seconds_told(SECONDS.assign(high_bar=60.0))


def test_a_dip_that_a_change_leaves_is_named():
    said = told.dips_told(DIPS)
    assert "longest stall is 110 ms with 8 GiB CLEARs" in said
    assert "The 64-page drop leaves no dip: the lowest bin has 99 % in pass 1 and 100 % in pass 2." in said
    assert (
        "The drop at each split leaves a dip in pass 2: the lowest bin has 98 % in pass 1 and 78 % in pass 2." in said
    )


def test_costs_without_an_interval_are_named_and_times_are_nanoseconds():
    fit = shipped_fit(hosts.configurations())
    rows = told.cost_rows(fit)
    said = told.costs_told(rows)
    none = rows[rows["low"] == rows["high"]]["name"]
    assert len(none)
    assert all(name in said.partition(": each is read")[0] for name in none)
    assert set(rows["unit"]) == {"ns", "dimensionless"}
    value = fit.parameters.set_index("name")["value"]
    assert rows.set_index("name").loc["fault_hold", "value"] == pytest.approx(value["fault_hold"] / 1000)
    assert rows.set_index("name").loc["fault_jitter", "value"] == value["fault_jitter"]


def test_the_april_2024_mail_s_numbers_are_sorted_by_what_predicts_them():
    nine = settings.predictive(settings.load_grid())
    said = told.settings_told(nine, 480)
    assert said.count("'s ") == 9
    for row in nine[nine["role"] == "missed"].to_dict("records"):
        assert f"The published +{row['published']:.0f} % lies outside" in said


DRAWN = [(figures.three_configurations, CHANGES), (figures.seconds_above, SECONDS),
         (figures.throughput_over_time, THROUGHPUT)]  # fmt: skip


def traces(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def notes(figure):
    return [note.text for note in figure.layout.annotations]


@pytest.mark.parametrize(("draw", "frame"), DRAWN)
def test_a_missing_column_and_no_rows_are_named(draw, frame):
    draw(frame.set_axis(np.zeros(len(frame), int)))  # an index with doubles changes nothing
    for column in set(frame.columns) - {"relation", "unit"}:
        with pytest.raises(InputError, match=rf"\.{column} = missing"):
            draw(frame.drop(columns=column))
    with pytest.raises(InputError, match="no rows"):
        draw(frame.iloc[:0])


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (partial(figures.three_configurations, CHANGES.assign(metric="speed")), "table.metric = speed"),
        (partial(figures.three_configurations, CHANGES.assign(predicted=np.nan)), "table.predicted = nan"),
        (partial(figures.seconds_above, SECONDS.assign(role="simulated")), "table.role = simulated"),
        (partial(figures.seconds_above, SECONDS.assign(predicted=-1)), "table.predicted = -1.0: must be at least 0"),
        (partial(figures.throughput_over_time, THROUGHPUT.assign(throughput=-1)), "must be at least 0"),
    ],
)
def test_a_bad_value_is_named(draw, sentence):
    with pytest.raises(InputError, match=sentence):
        draw()


def test_changes_of_every_size_stand_in_one_panel_a_metric():
    figure = figures.three_configurations(CHANGES.assign(role=[HELD_OUT, FITTED, FITTED]))
    precopy, clear = traces(figure, "published")

    def place(percent):
        return np.arcsinh(np.array(percent) / 3)

    np.testing.assert_allclose(precopy.x, place([-1]))
    np.testing.assert_allclose(clear.x, place([6, 5200]))
    np.testing.assert_array_equal(clear.y, [0, 1])  # rows in order of the configuration
    line, marks = traces(figure, "model, predicted")
    np.testing.assert_allclose(line.x, place([2900, 3800, np.nan]))
    np.testing.assert_allclose(marks.x, place([3526]))
    assert list(marks.text) == ["+3526 % (+2900 % to +3800 %)"]
    asked = traces(figure, "counted as agreement")[1]
    np.testing.assert_allclose(asked.x, place([1, 11, np.nan, 3000, 8000, np.nan]))
    left, right = figure.layout.xaxis2.range
    assert left < place(-3)
    assert right > place(8000)
    assert {"−1 % → +0.5 %", "+6 % → +7 %", "+5200 % → +3526 %", "pre-copy duration"} <= set(notes(figure))
    assert list(figure.layout.yaxis.ticktext) == ["1: x86", "3: LoongArch"]
    ticks = dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True))
    assert ticks["+1000"] == pytest.approx(place(1000))
    looks = {t.name: t.marker.symbol for t in figure.data if t.mode == "markers"}
    assert looks == {"published": "circle", "model, fitted": "line-ns-open", "model, predicted": "diamond-tall-open"}


def test_seconds_above_has_a_panel_a_variant_and_a_row_a_level():
    figure = figures.seconds_above(SECONDS)
    before, after = traces(figure, "published")
    assert (list(before.x), list(after.x), list(after.y)) == ([105], [30, 58], [0, 1])
    line, marks = traces(figure, "model, predicted")
    np.testing.assert_array_equal(line.x, [25, 35, np.nan, 67, 75, np.nan])
    assert list(marks.text) == ["30.2 s (25 s to 35 s)", "71.2 s (67 s to 75 s)"]
    assert list(figure.layout.yaxis.ticktext) == ["above 99 %", "above 50 %"]
    assert {"before", "after", "30 s → 30.2 s", "105 s → 91 s"} <= set(notes(figure))
    assert figure.layout.xaxis.range[0] == 0


def test_throughput_is_in_percent_and_has_a_panel_a_case():
    figure = figures.throughput_over_time(THROUGHPUT)
    first, second = traces(figure, "before, simulated")
    np.testing.assert_allclose((first.x, first.y), ([1, 2, 3], [100, 70, 100]))
    assert (first.showlegend, second.showlegend, second.yaxis) == (True, False, "y2")
    # It shows on both sides where the other covers it.
    assert first.line.width >= traces(figure, "after, simulated")[0].line.width + 2
    assert [shape.y0 for shape in figure.layout.shapes] == [100, 100]
    assert notes(figure) == ["1 GiB", "8 GiB"]


@pytest.fixture(scope="module")
def drop(ran):
    return ran(ROOT / "notebooks" / "03-clear-dirty-log.ipynb")


@pytest.fixture(scope="module")
def standstill(ran):
    return ran(ROOT / "notebooks" / "04-migration-degradation.ipynb")


@pytest.mark.study
def test_the_drops_notebook_says_what_its_cells_compute(drop):
    """0.07, 1.8 and 11 µs a reacquisition, 1.2 and 0.3 µs of work before it."""
    assert_ran_without_complaint(drop)
    found, each, split, loongarch = (drop[name] for name in ("found", "each", "split", "loongarch"))
    changes = found.changes
    assert changes["predicted"].between(changes["low_bar"], changes["high_bar"]).all()
    assert each["reacquisition_us"].tolist() == pytest.approx([0.071, 1.75, 10.6], rel=0.05)
    assert each["work_before_us"].tolist() == pytest.approx([1.19, 1.19, 0.28], rel=0.05)
    assert abs(split[["work_s", "wait_s", "flush_s"]].sum(axis=1) - split["all_s"]).max() < 1e-9
    assert (loongarch["low"] < loongarch["high"]).all()
    assert loongarch["predicted"].between(loongarch["low"], loongarch["high"]).all()  # also where it is the largest
    assert drop["nine"]["role"].tolist().count("predicted") == 7
    assert drop["nine"]["role"].tolist()[-2:] == ["not determined", "missed"]
    sensitivity = drop["sensitivity"].xs("CPU time of CLEAR", axis=1, level="metric")
    for first, second, third in sensitivity.to_numpy():  # orders of magnitude apart, whatever was chosen
        assert 3 * first < second
        assert 10 * second < third
    clear = changes[changes["metric"] == "clear_cpu_time"]
    out = clear.loc[~clear["published"].between(clear["low"], clear["high"]), "published"]
    excluded = told.changes_told(changes).partition("excludes the published ")[2].partition(". ")[0]
    assert excluded.count("%") == len(out)
    assert all(f"+{published:.0f} %" in excluded for published in out)
    assert "for clear_unsplit[tdp], split_block[tdp] and flush_per_vcpu" in told.costs_told(drop["costs"])
    assert "Missed: 3's CPU time of CLEAR." in told.settings_told(drop["nine"], 480)
    assert len(found.fit.parameters) + CHOSEN < found.observations / 2


@pytest.mark.study
def test_only_what_nobody_fitted_is_predicted_and_what_is_missed_is_named(standstill):
    assert_ran_without_complaint(standstill)
    found, seconds = standstill["found"], standstill["seconds"]
    assert set(found.changes["role"]) == {FITTED}
    assert seconds.groupby("variant")["role"].unique().map(list).to_dict() == {
        "arm64-after": [HELD_OUT], "arm64-before": [FITTED], "x86-reference": [FITTED]
    }  # fmt: skip
    out = seconds[~seconds["predicted"].between(seconds["low_bar"], seconds["high_bar"])]
    assert out["variant"].tolist() == ["x86-reference"] * 2
    assert out["metric"].tolist() == ["seconds above 99 %", "seconds above 10 %"]  # as the prose says
    assert all(f"x86-reference, {metric}" in told.missed_told(seconds) for metric in out["metric"])
    said = told.seconds_told(seconds)
    assert said.startswith("Of the 3 predicted numbers")
    predicted, fitted = said.split("Of the ")[1:]
    assert re.search(r"Missed: arm64-after above 50 %: 7[0-9.]+ s for 58 s, interval [0-9.]+ to [0-9.]+ s", predicted)
    assert re.search(r"x86-reference above 99 %: 0[0-9.]* s for 6 s", fitted)
    assert standstill["envelope"].tolist() == pytest.approx([31, 48, 18], rel=0.05)


@pytest.mark.study
def test_one_guest_cannot_be_both_hosts(standstill):
    rows = standstill["guests"]
    guests = {f"{r.case} {r.access_interval}": [r.above_99, r.above_50, r.above_10] for r in rows.itertuples()}
    for case in ("x86, one socket", "x86, both sockets"):
        assert guests[f"{case} 50ns"][0] < 1 < guests["x86 published"][0]
    assert guests["arm64-after 50ns"][0] > 1.3 * guests["arm64-after published"][0]
    assert guests["x86, both sockets 130ns"][2] - guests["x86, both sockets 130ns"][1] == pytest.approx(5, abs=1)
    for name in ("x86 published", "arm64-after published"):
        assert guests[name][2] - guests[name][1] == 18
    split = [guests[f"x86, both sockets, split access {interval}"][2] for interval in ("50ns", "100ns", "130ns")]
    assert min(split[:2]) > 100
    assert split[2] < 20


@pytest.mark.study
def test_dips_are_in_the_first_pass_and_gone_with_either_change(standstill):
    dips = standstill["dips"]
    assert dips.columns[2:].tolist() == ["longest_stall_ms", "bin_ms", *(f"{what}_percent_{n}" for n in (1, 2)
                                                                        for what in ("lowest", "mean"))]  # fmt: skip
    before = dips["series"] == "before"
    assert (dips.loc[before, "lowest_percent_1"] < 80).all()
    assert (dips.loc[before, "mean_percent_1"] < 92).all()
    assert (dips.loc[~before, "mean_percent_1"] > 95).all()
    assert (dips.loc[~before, "lowest_percent_1"] > 98).all()
    assert (dips["mean_percent_2"] > 95).all()
    assert (dips["lowest_percent_2"] > 75).all()
    for name, part in dips[~before].groupby("series"):
        first, second = part["lowest_percent_1"].min(), part["lowest_percent_2"].min()
        verdict = "leaves no dip" if min(first, second) >= 95 else "leaves a dip in pass"
        assert f"The {name} {verdict}" in told.dips_told(dips)
        assert f"{first:.0f} % in pass 1 and {second:.0f} % in pass 2" in told.dips_told(dips)
