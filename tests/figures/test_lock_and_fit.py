# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a simulated run and of a calibration: values, order, and bad tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from simlib import figures
from simlib.errors import InputError

SPLIT = pd.DataFrame(
    [("a", n, act, us) for n in (8, 1) for act, us in (("wait", n - 1.0), ("run", 0.5), ("hold", 2.0))],
    columns=["variant", "vcpus", "activity", "microseconds_per_fault"],
)
ERRORS = pd.DataFrame(
    [("a", n, model, e) for n in (64, 16) for model, e in (("USL", -20.4), ("simlib", n / 32))],
    columns=["variant", "vcpus", "model", "error_percent"],
)
QUEUE = pd.DataFrame({"lock": ["mmu_lock", "mmu_lock"], "time_s": [1.5, 0.5], "queue": [7.0, 3.0]})
PROGRESS = pd.DataFrame(
    [(f"vcpu {i}", t, 10 * i) for i in range(20) for t in (0.25, 0.75)], columns=["thread", "time_s", "pages"]
)
HISTOGRAM = pd.DataFrame({"lock": "mmu_lock", "mode": ["write", "read"], "up_to_s": [2e-6, 4e-6], "count": [5, 9]})
COSTS = pd.DataFrame(
    [("hold", 400.0, 380.0, 430.0, "ns", "spin"), ("line", 0.0, 0.0, 30.0, "ns", "spin"),
     ("growth", 0.1, 0.05, 0.2, "dimensionless", "spin"), ("hold", 200.0, 150.0, 300.0, "ns", "rw")],
    columns=["name", "value", "low", "high", "unit", "fit"],
)  # fmt: skip
SENSITIVITY = pd.DataFrame(
    {"name": ["line", "hold"], "first": [0.1, 0.6], "first_confidence": [0.01, 0.02], "total": [0.2, 0.7],
     "total_confidence": [0.03, 0.04]}
)  # fmt: skip

Draw = Callable[[pd.DataFrame], go.Figure]
FIGURES: list[tuple[Draw, pd.DataFrame]] = [
    (figures.time_per_page, SPLIT),
    (figures.held_out_errors, ERRORS),
    (figures.lock_over_time, QUEUE),
    (figures.progress, PROGRESS),
    (figures.histogram, HISTOGRAM),
    (figures.cost_intervals, COSTS),
    (figures.sensitivity, SENSITIVITY),
]


@pytest.mark.parametrize(("draw", "frame"), FIGURES)
def test_every_column_is_needed_and_a_row_too(draw: Draw, frame: pd.DataFrame) -> None:
    before = frame.copy()
    assert draw(frame).layout.title.subtitle.text
    pd.testing.assert_frame_equal(frame, before)  # the caller's table is not changed
    for column in frame.columns:
        with pytest.raises(InputError, match=rf"\.{column} = missing"):
            draw(frame.drop(columns=column))
    with pytest.raises(InputError, match="no rows"):
        draw(frame.iloc[:0])


@pytest.mark.parametrize("draw", [d for d, _ in FIGURES[:5] if d is not figures.held_out_errors])
def test_what_is_simulated_says_so(draw: Draw) -> None:
    frame = next(f for d, f in FIGURES if d is draw)
    assert draw(frame).layout.title.subtitle.text.startswith("simulated")


def test_time_per_page_stacks_activities_in_one_order() -> None:
    figure = figures.time_per_page(SPLIT)
    assert [bar.name for bar in figure.data] == ["outside the lock", "hold", "wait"]
    assert figure.data[2].x == ("1", "8")
    np.testing.assert_array_equal(figure.data[2].y, [0, 7])
    with pytest.raises(InputError, match="did you mean 'wait'"):
        figures.time_per_page(SPLIT.replace("wait", "waits"))


def test_progress_is_per_second_and_says_which_threads_it_shows() -> None:
    figure = figures.progress(PROGRESS)
    assert len(figure.data) == 16
    assert "first 16 of 20" in figure.layout.title.text
    np.testing.assert_array_equal(figure.data[3].y, [60, 60])


def test_lock_over_time_is_in_order_of_time() -> None:
    line = figures.lock_over_time(QUEUE).data[0]
    np.testing.assert_array_equal((line.x, line.y), ([0.5, 1.5], [3, 7]))


def test_a_histogram_bin_starts_at_half_of_its_upper_end() -> None:
    write = figures.histogram(HISTOGRAM).data[0]
    assert (write.name, write.x[0], write.width[0], write.offset) == ("write", 1e-6, 1e-6, 0)


def test_held_out_errors_put_the_model_first_and_the_line_at_zero() -> None:
    figure = figures.held_out_errors(ERRORS)
    assert [bar.name for bar in figure.data] == ["simlib", "USL"]
    assert figure.data[0].text == ("+0.5", "+2")
    assert figure.layout.yaxis.zeroline
    low, high = figure.layout.yaxis.range
    assert low < -20.4
    assert high > 2


def test_a_cost_of_zero_stands_at_the_edge_of_its_logarithmic_axis() -> None:
    figure = figures.cost_intervals(COSTS)
    point = next(t for t in figure.data if t.name == "spin" and t.mode == "markers")
    edge = 10 ** figure.layout.xaxis.range[0]
    np.testing.assert_allclose(point.x, [400, edge])
    assert point.marker.symbol == ("circle", "triangle-left")
    assert [t.showlegend for t in figure.data].count(True) == 2  # one entry a fit, over both panels


def test_sensitivity_has_the_largest_total_on_top() -> None:
    total, first = figures.sensitivity(SENSITIVITY).data
    assert total.y == ("hold", "line")
    np.testing.assert_array_equal(first.x, [0.6, 0.1])
    np.testing.assert_array_equal(total.error_x.array, [0.04, 0.03])


def test_correlation_refuses_what_is_not_a_correlation_matrix() -> None:
    names = ["hold", "line"]
    good = pd.DataFrame([[1, -0.98], [-0.98, 1]], names, names)
    np.testing.assert_array_equal(figures.correlation(good).data[0].z, good.to_numpy())
    for bad in (good * 2, good.rename(columns={"line": "x"}), good.iloc[:0], good.replace(1, "one")):
        with pytest.raises(InputError, match="matrix"):
            figures.correlation(bad)
