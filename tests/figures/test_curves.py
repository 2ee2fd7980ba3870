# SPDX-License-Identifier: BSD-3-Clause
"""Curves: measured, fitted and predicted points look different and have the table's positions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from simlib import figures
from simlib._lib.errors import InputError
from simlib.figures.curves import COLUMNS

NAN = float("nan")
VCPUS = (1, 2, 4, 8, 16, 32)
TRAINED = 8


@pytest.fixture
def curves() -> pd.DataFrame:
    """Two variants whose time is 0.5 and 0.25 seconds a vCPU, calibrated on up to 8 vCPUs."""
    rows = []
    for variant, slope in (("spinlock-old-test", 0.5), ("rwlock-old-test", 0.25)):
        for n in VCPUS:
            beyond = n > TRAINED
            time, count = slope * n, 1000.0 * (n - 1) * n
            end = (0.9, 1.2) if beyond else (NAN, NAN)
            model = "predicted" if beyond else "fitted"
            for metric, value in (("dirty_memory_time", time), ("contentions", count)):
                rows.append((variant, n, metric, "measured", value * 1.01, NAN, NAN, beyond))
                rows.append((variant, n, metric, model, value, value * end[0], value * end[1], beyond))
            for law, factor in (("usl", 2.0), ("amdahl", 3.0)):
                rows.append((variant, n, "dirty_memory_time", law, factor * np.sqrt(n), NAN, NAN, beyond))
    return pd.DataFrame(rows, columns=list(COLUMNS)).sample(frac=1, random_state=1)


def traces(figure: go.Figure, name: str) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.name == name]


def test_dirty_memory_time_keeps_measured_fitted_and_predicted_apart(curves: pd.DataFrame) -> None:
    figure = figures.dirty_memory_time(curves, title="times")
    trained = traces(figure, "spinlock-old-test, measured (calibrated on)")[0]
    held_out = traces(figure, "spinlock-old-test, measured (held out)")[0]
    fitted = traces(figure, "spinlock-old-test, fitted")[0]
    predicted = traces(figure, "spinlock-old-test, predicted")[0]
    band = traces(figure, "spinlock-old-test, predicted 90 % interval")[0]

    np.testing.assert_array_equal(trained.x, [1, 2, 4, 8])
    np.testing.assert_allclose(trained.y, np.array([0.5, 1, 2, 4]) * 1.01)
    np.testing.assert_array_equal(held_out.x, [16, 32])
    np.testing.assert_array_equal(fitted.y, [0.5, 1, 2, 4])
    np.testing.assert_array_equal(predicted.x, [8, 16, 32])  # joined to the last fitted point
    np.testing.assert_allclose(band.x, [8, 16, 32, 32, 16, 8])
    np.testing.assert_allclose(band.y, [4, 9.6, 19.2, 14.4, 7.2, 4])

    assert (trained.mode, held_out.mode, fitted.mode, predicted.mode) == (
        "markers",
        "markers",
        "lines",
        "lines",
    )
    assert trained.marker.symbol == "circle"
    assert held_out.marker.symbol == "diamond-open"
    assert fitted.line.dash is None
    assert predicted.line.dash == "dash"
    assert len({trace.marker.color or trace.line.color for trace in (trained, held_out, fitted, predicted)}) == 1
    assert "calibrated ≤ 8" in [note.text for note in figure.layout.annotations]
    key = [trace.name for trace in figure.data if trace.legend == "legend2"]
    assert key == [
        "measured (calibrated on)", "measured (held out)", "fitted", "predicted", "predicted 90 % interval",
    ]  # fmt: skip
    assert list(figure.layout.xaxis.ticktext) == ["1", "2", "4", "8", "16", "32"]
    assert not any("usl" in str(trace.name).lower() for trace in figure.data)


def test_a_variant_keeps_its_colour_when_another_is_left_out(curves: pd.DataFrame) -> None:
    alone = figures.dirty_memory_time(curves[curves["variant"] == "rwlock-old-test"])
    name = "rwlock-old-test, fitted"
    two = figures.dirty_memory_time(curves)
    assert traces(alone, name)[0].line.color == traces(two, name)[0].line.color
    assert traces(two, "spinlock-old-test, fitted")[0].line.color != traces(two, name)[0].line.color


def test_no_boundary_is_drawn_where_held_out_points_lie_between_trained_ones(curves: pd.DataFrame) -> None:
    mixed = curves.assign(held_out=curves["vcpus"] == 4)
    assert not figures.dirty_memory_time(mixed).layout.shapes


def test_a_prediction_without_a_fit_is_dashed_everywhere(curves: pd.DataFrame) -> None:
    unseen = curves[curves["kind"] != "fitted"].assign(held_out=True)
    figure = figures.dirty_memory_time(unseen)
    assert not traces(figure, "spinlock-old-test, fitted")
    np.testing.assert_array_equal(traces(figure, "spinlock-old-test, predicted")[0].x, [16, 32])


def test_contentions_a_page_are_the_count_over_vcpus_and_pages(curves: pd.DataFrame) -> None:
    figure = figures.contentions(curves, pages_per_vcpu=500)
    left, right = traces(figure, "spinlock-old-test, measured (calibrated on)")
    np.testing.assert_array_equal(left.x, [2, 4, 8])  # not at 1 vCPU: a logarithmic axis cannot show 0
    np.testing.assert_array_equal(right.x, [1, 2, 4, 8])
    np.testing.assert_allclose(right.y, 1.01 * 1000 * np.array([0, 1, 3, 7]) / 500)
    assert (figure.layout.yaxis.type, figure.layout.yaxis2.type) == ("log", None)
    assert "points with 0 contentions are not shown (vCPUs: 1)" in figure.layout.title.subtitle.text
    with pytest.raises(InputError, match="pages_per_vcpu = 0: must be at least 1"):
        figures.contentions(curves, pages_per_vcpu=0)


def test_speed_up_divides_each_curve_by_its_own_first_point(curves: pd.DataFrame) -> None:
    figure = figures.speed_up(curves)
    np.testing.assert_allclose(traces(figure, "rwlock-old-test, fitted")[0].y, [1, 1, 1, 1])
    np.testing.assert_allclose(traces(figure, "rwlock-old-test, predicted")[0].y, [1, 1, 1])
    np.testing.assert_allclose(traces(figure, "rwlock-old-test, measured (held out)")[0].y, [1, 1])
    np.testing.assert_allclose(traces(figure, "rwlock-old-test, USL")[0].y, np.sqrt(VCPUS))
    np.testing.assert_allclose(traces(figure, "rwlock-old-test, Amdahl")[0].y, np.sqrt(VCPUS))
    assert {note.text for note in figure.layout.annotations} == {"spinlock-old-test", "rwlock-old-test"}
    assert {axis.title.text for axis in figure.select_xaxes()} == {"vCPUs"}
    with pytest.raises(InputError, match="no row with 1 vCPU for measured"):
        figures.speed_up(curves[(curves["vcpus"] > 1) & (curves["kind"] == "measured")])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("draw", [figures.dirty_memory_time, figures.speed_up])
def test_a_missing_column_is_named(curves: pd.DataFrame, draw: object, column: str) -> None:
    with pytest.raises(InputError, match=rf"curves\.{column} = missing"):
        draw(curves.drop(columns=column))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("kind", "mesured", "did you mean 'measured'"),
        ("value", NAN, "curves.value = nan: must be a finite number"),
        ("value", 0.0, "curves.value = 0.0: a time must be above 0"),
        ("value", "fast", "curves.value"),
        ("vcpus", 0, "curves.vcpus = 0.0: must be at least 1"),
        ("held_out", "False", "curves.held_out = False: must be True or False"),
        ("metric", "clear_time", "no row of dirty_memory_time to draw"),
    ],
)
def test_a_bad_value_is_named(curves: pd.DataFrame, column: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        figures.dirty_memory_time(curves.assign(**{column: value}))
