# SPDX-License-Identifier: BSD-3-Clause
"""Figures of seed 002: what stands where, and bad tables named."""

from functools import partial

import pandas as pd
import pytest

from simlib import figures
from simlib.errors import InputError
from simlib.figures.lockless import CHANGE_COLUMNS, GET_COLUMNS, RATIO_COLUMNS

CHANGES = pd.DataFrame([("EPT on", -0.9, -3.6, 1.7, 3.7), ("EPT off", 0.1, -0.5, 0.6, 0.8)],
                       columns=list(CHANGE_COLUMNS))  # fmt: skip
RATIOS = pd.DataFrame([("EPT off", 1.05, 0.36, 1.06), ("EPT, pages", 1.0, 0.3, 1.0), ("EPT off", 1.08, 0.37, 1.08)],
                      columns=list(RATIO_COLUMNS))  # fmt: skip
WAYS = pd.DataFrame(
    [(axis, value, way, metric, 0.5, 0.4, 0.6) for axis in ("vcpus", "memory") for value in ("a", "b")
     for way in ("one hold", "no lock") for metric in ("get_time", "longest_stall", "guest_throughput")],
    columns=list(GET_COLUMNS),
)  # fmt: skip


def test_a_change_carries_its_interval_and_what_could_have_been_shown():
    change, shown = figures.regression_shown(CHANGES).data
    assert list(change.error_x.array) == pytest.approx([2.6, 0.5])
    assert list(change.error_x.arrayminus) == pytest.approx([2.7, 0.6])
    assert list(shown.x) == [3.7, 0.8]


def test_both_readings_of_a_guest_share_its_colour_and_the_published_ratio_is_a_line():
    figure = figures.get_ratios(RATIOS, 0.534)
    filled, opened = figure.data[0], figure.data[1]
    assert list(filled.y) == [1.05, 1.08]
    assert list(opened.y) == [0.36, 0.37]
    assert filled.marker.color == opened.marker.color != figure.data[2].marker.color
    assert figure.layout.shapes[0].y0 == 0.534
    assert "published, 0.534" in figure.layout.title.subtitle.text


def test_every_metric_has_a_panel_for_each_axis_and_every_way_a_dashed_line():
    figure = figures.get_ways(WAYS)
    assert [a.text for a in figure.layout.annotations][:2] == ["time of a GET, by vCPUs", "time of a GET, by memory"]
    assert len(figure.layout.annotations) == 6
    lines = [t for t in figure.data if t.mode == "lines+markers"]
    assert len(lines) == 12
    assert {t.line.dash for t in lines} == {"dash"}  # predicted
    assert [t.name for t in lines if t.showlegend] == ["one hold", "no lock"]
    bands = [t for t in figure.data if t.fill == "toself"]
    assert list(bands[0].y) == [0.6, 0.6, 0.4, 0.4]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (partial(figures.regression_shown, CHANGES.drop(columns="shown_percent")), r"table\.shown_percent = missing"),
        (partial(figures.get_ratios, RATIOS.assign(ratio=-1.0), 0.5), r"table\.ratio = "),
        (partial(figures.get_ways, WAYS.iloc[:0]), r"table = no rows"),
        (partial(figures.get_ways, WAYS.assign(low="much")), r"table\.low = "),
    ],
)
def test_a_bad_table_is_a_sentence(draw, message):
    with pytest.raises(InputError, match=message):
        draw()
