# SPDX-License-Identifier: BSD-3-Clause
"""Published migrations: figures agree with their tables, and the notebooks' sentences with their cells."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
from notebook_run import ROOT, assert_ran_without_complaint, code_cells

from simlib._lib.errors import InputError
from simlib.figures.style import signed
from studies.migrations import CHOSEN, drops, figures
from studies.study import FITTED, HELD_OUT, shipped_fit
from studies.x86 import hosts

CHANGES = pd.DataFrame(
    [("configuration 3", "LoongArch", "clear_cpu_time", 5200.0, 3526.0, 2900.0, 3800.0, 3000.0, 8000.0),
     ("configuration 1", "x86", "clear_cpu_time", 6.0, 7.0, 5.0, 9.0, 1.0, 11.0),
     ("configuration 1", "x86", "precopy_duration", -1.0, 0.5, 0.2, 0.7, -6.0, 4.0)],
    columns=["variant", "emulates", "metric", "published", "predicted", "low", "high", "low_bar", "high_bar"],
).assign(role=FITTED, relation="", unit="% change")  # fmt: skip
SECONDS = pd.DataFrame(
    [("before", "seconds above 99 %", 105.0, 91.0, 86.0, 96.0, FITTED),
     ("after", "seconds above 99 %", 30.0, 30.2, 25.0, 35.0, HELD_OUT),
     ("after", "seconds above 50 %", 58.0, 71.2, 67.0, 75.0, HELD_OUT)],
    columns=["variant", "metric", "published", "predicted", "low", "high", "role"],
).assign(low_bar=50.0, high_bar=120.0)  # fmt: skip
THROUGHPUT = pd.DataFrame(
    [(series, panel, t, 1 - 0.3 * (t == 2) * (series == "before"))
     for panel in ("1 GiB", "8 GiB") for series in ("before", "after") for t in (3.0, 1.0, 2.0)],
    columns=["series", "panel", "time_s", "throughput"],
)  # fmt: skip


def test_costs_without_an_interval_are_marked_and_times_are_nanoseconds():
    fit = shipped_fit(hosts.configurations())
    rows = drops.cost_rows(fit).set_index("name")
    none = rows[rows["interval"] == "none"]
    assert none.index.tolist() == ["clear_unsplit[tdp]", "split_block[tdp]", "flush_per_vcpu"]
    assert ((rows["low"] == rows["high"]) == (rows["interval"] == "none")).all()
    assert ((rows["high"] / rows["low"] > 2) == (rows["interval"] == "wide")).all()
    assert set(rows["unit"]) == {"ns", "dimensionless"}
    value = fit.parameters.set_index("name")["value"]
    assert rows.loc["fault_hold", "value"] == pytest.approx(value["fault_hold"] / 1000)
    assert rows.loc["fault_jitter", "value"] == value["fault_jitter"]


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


def test_changes_of_every_size_share_one_panel_per_metric():
    figure = figures.three_configurations(CHANGES.assign(role=[HELD_OUT, FITTED, FITTED]))
    precopy, clear = traces(figure, "published")

    def coordinates(percent):
        return np.arcsinh(np.array(percent) / 3)

    np.testing.assert_allclose(precopy.x, coordinates([-1]))
    np.testing.assert_allclose(clear.x, coordinates([6, 5200]))
    np.testing.assert_array_equal(clear.y, [0, 1])  # rows in order of the configuration
    line, marks = traces(figure, "model, predicted")
    np.testing.assert_allclose(line.x, coordinates([2900, 3800, np.nan]))
    np.testing.assert_allclose(marks.x, coordinates([3526]))
    assert list(marks.text) == ["+3526 % (+2900 % to +3800 %)"]
    agreement = traces(figure, "counted as agreement")[1]
    np.testing.assert_allclose(agreement.x, coordinates([1, 11, np.nan, 3000, 8000, np.nan]))
    left, right = figure.layout.xaxis2.range
    assert left < coordinates(-3)
    assert right > coordinates(8000)
    assert {"−1 % → +0.5 %", "+6 % → +7 %", "+5200 % → +3526 %", "pre-copy duration"} <= set(notes(figure))
    assert list(figure.layout.yaxis.ticktext) == ["1: x86", "3: LoongArch"]
    ticks = dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True))
    assert ticks["+1000"] == pytest.approx(coordinates(1000))
    symbols = {t.name: t.marker.symbol for t in figure.data if t.mode == "markers"}
    assert symbols == {"published": "circle", "model, fitted": "line-ns-open", "model, predicted": "diamond-tall-open"}


def test_seconds_above_has_a_panel_per_variant_and_a_row_per_level():
    figure = figures.seconds_above(SECONDS)
    before, after = traces(figure, "published")
    assert (list(before.x), list(after.x), list(after.y)) == ([105], [30, 58], [0, 1])
    line, marks = traces(figure, "model, predicted")
    np.testing.assert_array_equal(line.x, [25, 35, np.nan, 67, 75, np.nan])
    assert list(marks.text) == ["30.2 s (25 s to 35 s)", "71.2 s (67 s to 75 s)"]
    assert list(figure.layout.yaxis.ticktext) == ["above 99 %", "above 50 %"]
    assert {"before", "after", "30 s → 30.2 s", "105 s → 91 s"} <= set(notes(figure))
    assert figure.layout.xaxis.range[0] == 0


def test_throughput_is_in_percent_and_has_a_panel_per_case():
    figure = figures.throughput_over_time(THROUGHPUT)
    first, second = traces(figure, "before, simulated")
    np.testing.assert_allclose((first.x, first.y), ([1, 2, 3], [100, 70, 100]))
    assert (first.showlegend, second.showlegend, second.yaxis) == (True, False, "y2")
    # The line of "before" is wider, so that it is visible on both sides of the line that covers it.
    assert first.line.width >= traces(figure, "after, simulated")[0].line.width + 2
    assert [shape.y0 for shape in figure.layout.shapes] == [100, 100]
    assert notes(figure) == ["1 GiB", "8 GiB"]


@pytest.fixture(scope="module")
def clear_notebook(ran):
    return ran(ROOT / "notebooks" / "03-clear-dirty-log.ipynb")


@pytest.fixture(scope="module")
def degradation_notebook(ran):
    return ran(ROOT / "notebooks" / "04-migration-degradation.ipynb")


def texts(notebook):
    """All Markdown that the cells display."""
    return "\n".join(o["data"].get("text/markdown", "") for cell in code_cells(notebook) for o in cell.outputs
                     if "data" in o)  # fmt: skip


@pytest.mark.study
def test_the_clear_notebook_s_sentences_agree_with_its_cells(clear_notebook):
    """A reacquisition takes 0.07, 1.8 and 11 µs, after 1.2, 1.2 and 0.3 µs of work."""
    assert_ran_without_complaint(clear_notebook)
    findings, reacquisitions, split, loongarch = (
        clear_notebook[name] for name in ("findings", "reacquisitions", "split", "loongarch")
    )
    changes = findings.of_table(drops.TABLE)
    assert changes["predicted"].between(changes["low_bar"], changes["high_bar"]).all()
    assert reacquisitions["reacquisition_us"].tolist() == pytest.approx([0.071, 1.75, 10.6], rel=0.05)
    assert reacquisitions["work_before_us"].tolist() == pytest.approx([1.19, 1.19, 0.28], rel=0.05)
    assert abs(split[["work_s", "wait_s", "flush_s"]].sum(axis=1) - split["all_s"]).max() < 1e-9
    assert (loongarch["low"] < loongarch["high"]).all()
    assert loongarch["predicted"].between(loongarch["low"], loongarch["high"]).all()  # also where it is the largest
    nine = clear_notebook["nine"]
    assert nine["role"].tolist().count("predicted") == 7
    assert nine["role"].tolist()[-2:] == ["not determined", "missed"]
    assert nine["metric"].tolist()[-2:] == ["dirty_left", "clear_cpu_time"]
    assert set(nine["configuration"][-2:]) == {3}
    sensitivity = clear_notebook["sensitivity"].xs("CPU time of CLEAR", axis=1, level="metric")
    for first, second, third in sensitivity.to_numpy():  # orders of magnitude apart, with all chosen settings
        assert 3 * first < second
        assert 10 * second < third
    clear = changes[changes["metric"] == "clear_cpu_time"]
    assert clear["variant"].tolist() == ["configuration 1", "configuration 2", "configuration 3"]
    inside = clear["published"].between(clear["low"], clear["high"])
    assert inside.tolist() == [True, True, False]  # "The interval of configuration 3 excludes the published number."
    (on_loongarch,) = loongarch.loc[loongarch["metric"] == "clear_cpu_time", "predicted"]
    assert on_loongarch > clear["predicted"].iloc[-1] / 3  # "This supports Bibo Mao's objection"
    text = texts(clear_notebook)
    for row in clear.itertuples():
        assert f"{signed(row.low)} to {signed(row.high)} %; published {signed(row.published)} %" in text
    missed = nine.iloc[-1]
    assert f"+{missed['published']:.0f} % lies outside {signed(missed['low'])} to {signed(missed['high'])} %" in text
    assert f"on LoongArch by {signed(on_loongarch)} %" in text
    assert "interval (clear_unsplit[tdp], split_block[tdp], flush_per_vcpu)" in text
    assert len(findings.fit.parameters) + CHOSEN < findings.observations / 2


@pytest.mark.study
def test_held_out_numbers_are_predicted_and_misses_are_named(degradation_notebook):
    assert_ran_without_complaint(degradation_notebook)
    findings, seconds = degradation_notebook["findings"], degradation_notebook["seconds"]
    assert set(findings.of_table(drops.TABLE)["role"]) == {FITTED}
    assert seconds.groupby("variant")["role"].unique().map(list).to_dict() == {
        "arm64-after": [HELD_OUT], "arm64-before": [FITTED], "x86-reference": [FITTED]
    }  # fmt: skip
    disagreeing = seconds[~seconds["predicted"].between(seconds["low_bar"], seconds["high_bar"])]
    assert disagreeing["variant"].tolist() == ["x86-reference"] * 2
    assert disagreeing["metric"].tolist() == ["seconds above 99 %", "seconds above 10 %"]  # as the prose says
    missed = seconds[~seconds["published"].between(seconds["low"], seconds["high"])]
    (held_out,) = missed[missed["role"] == HELD_OUT].itertuples()
    assert (held_out.variant, held_out.metric, held_out.published) == ("arm64-after", "seconds above 50 %", 58)
    assert 70 < held_out.predicted < 80
    text = texts(degradation_notebook)
    assert f"Of the 3 predicted numbers, 2 lie in the model's interval. The missed number is {held_out.metric}" in text
    assert f"{held_out.predicted:.1f} s ({held_out.low:.1f} to {held_out.high:.1f} s), published 58 s" in text
    fitted = missed[missed["role"] == FITTED]
    assert f"Of the 6 fitted numbers, {6 - len(fitted)} lie in the interval" in text
    fastest = seconds[(seconds["variant"] == "x86-reference") & (seconds["metric"] == "seconds above 99 %")]
    assert fastest[["predicted", "published"]].to_numpy().tolist() == [[pytest.approx(0, abs=1), 6]]
    assert degradation_notebook["envelope"].tolist() == pytest.approx([31, 48, 18], rel=0.05)


@pytest.mark.study
def test_one_guest_does_not_fit_both_hosts(degradation_notebook):
    rows = degradation_notebook["guests"]
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
    text = texts(degradation_notebook)
    assert f"on x86 ({guests['x86, both sockets 50ns'][0]:.1f} s above 99 %)" in text
    assert f"above 99 % for {guests['arm64-after 50ns'][0]:.0f} s (published 30 s)" in text


@pytest.mark.study
def test_dips_are_in_the_first_pass_and_either_change_removes_them(degradation_notebook):
    dips = degradation_notebook["dips"]
    assert dips.columns[2:].tolist() == ["longest_stall_ms", "bin_ms", *(f"{what}_percent_{n}" for n in (1, 2)
                                                                        for what in ("lowest", "mean"))]  # fmt: skip
    before = dips["series"] == "before"
    assert (dips.loc[before, "lowest_percent_1"] < 80).all()
    assert (dips.loc[before, "mean_percent_1"] < 92).all()
    assert (dips.loc[~before, "mean_percent_1"] > 95).all()
    assert (dips.loc[~before, "lowest_percent_1"] > 98).all()
    assert (dips["mean_percent_2"] > 95).all()
    assert (dips["lowest_percent_2"] > 75).all()
    text = texts(degradation_notebook)
    for series, rows in dips[~before].groupby("series"):
        lowest = rows[["lowest_percent_1", "lowest_percent_2"]].min(axis=None)
        assert lowest >= 95  # "Neither change leaves a dip"
        assert f"{lowest:.1f} % with the {series}" in text
    short, long = dips.loc[before, "longest_stall_ms"]
    assert f"{short:.1f} ms with CLEARs of 1 GiB and {long:.0f} ms with 8 GiB" in text
