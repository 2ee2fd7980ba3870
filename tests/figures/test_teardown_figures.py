# SPDX-License-Identifier: BSD-3-Clause
"""Figures of teardown: what stands where, and bad tables named."""

from functools import partial

import pandas as pd
import pytest

from simlib import figures
from simlib.errors import InputError
from simlib.figures.teardown import BOUND_COLUMNS, UNMAP_COLUMNS, WAY_COLUMNS

UNMAP = pd.DataFrame(
    [(table, variant, gb, gb * 0.5, gb * 0.51, gb * 0.49, gb * 0.53, gb > 8)
     for table in ("4K pages", "2M blocks") for variant in ("base", "series") for gb in (16.0, 1.0, 8.0)],
    columns=list(UNMAP_COLUMNS),
)  # fmt: skip
WAYS = pd.DataFrame(
    [(memory, "4K", mapping, way, t, t / 2, 2 * t)
     for memory in ("64G", "1T") for mapping in ("pages", "blocks") for way, t in (("both", 12.0), ("neither", 0.1))],
    columns=list(WAY_COLUMNS),
)  # fmt: skip
BOUNDS = pd.DataFrame([("64G", "4K", "both", 12.0, "up-to"), ("64G", "4K", "neither", 1.0, "below")],
                      columns=list(BOUND_COLUMNS))  # fmt: skip


def traces(figure, **wanted):
    return [t for t in figure.data if all(getattr(t, key) == value for key, value in wanted.items())]


def test_what_was_fitted_and_what_was_held_out_look_apart():
    figure = figures.unmap_times(UNMAP)
    solid, dashed = (
        [t for t in traces(figure, name="base", xaxis="x") if t.line.dash == dash] for dash in ("solid", "dash")
    )
    assert list(solid[0].x) == [1, 8]
    assert list(dashed[0].x) == [8, 16]  # joined to the fitted line
    symbols = {t.marker.symbol: list(t.x) for t in traces(figure, name="base", xaxis="x", mode="markers")}
    assert symbols == {"circle": [1, 8], "diamond-open": [16]}
    assert [a.text for a in figure.layout.annotations] == ["4K pages", "2M blocks"]


def test_published_bounds_stand_in_every_row_of_their_page_size_and_no_other_panel():
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
        (partial(figures.unmap_times, UNMAP.drop(columns="low_s")), r"table\.low_s = missing: a column is needed"),
        (partial(figures.unmap_times, UNMAP.assign(model_s=-1.0)), r"table\.model_s = "),
        (partial(figures.teardown_ways, WAYS.iloc[:0]), r"table = no rows"),
        (partial(figures.teardown_ways, WAYS, BOUNDS.assign(relation="about")), r"bounds\.relation = about"),
    ],
)
def test_a_bad_table_is_a_sentence(draw, message):
    with pytest.raises(InputError, match=message):
        draw()
