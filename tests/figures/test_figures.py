# SPDX-License-Identifier: BSD-3-Clause
"""Figures of runs, fits, migrations and choices: positions, few traces, and errors that name bad tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from simlib import figures
from simlib._lib.errors import InputError
from simlib.figures.decision import COST_COLUMNS, PARETO_COLUMNS, batch_text
from studies.arm64.figures import held_out_errors
from studies.decision.figures import MAP_COLUMNS, best_strategy_map

NAN = float("nan")
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
INTERVALS = pd.DataFrame(
    [("hold", 400.0, 380.0, 430.0, "ns", "spin"), ("line", 0.0, 0.0, 30.0, "ns", "spin"),
     ("growth", 0.1, 0.05, 0.2, "dimensionless", "spin"), ("hold", 200.0, 150.0, 300.0, "ns", "rw")],
    columns=["name", "value", "low", "high", "unit", "fit"],
)  # fmt: skip
SENSITIVITY = pd.DataFrame(
    {"name": ["line", "hold"], "first": [0.1, 0.6], "first_confidence": [0.01, 0.02], "total": [0.2, 0.7],
     "total_confidence": [0.03, 0.04]}
)  # fmt: skip
DEGRADATION = pd.DataFrame(
    [("before", 0.5, 0.995), ("before", 1.5, 0.2), ("before", 2.5, 0.6), ("after", 0.5, 0.3)],
    columns=["series", "time_s", "degradation"],
)
PUBLISHED = pd.DataFrame([("before", 99, 1.1), ("x86", 50, 9.0)], columns=["series", "level_percent", "seconds"])
COSTS = pd.DataFrame(
    [(arch, pages, cost, 0.9 * cost, 1.1 * cost, cost < 1.3, cost == 1.0, evidence)
     for arch, evidence in (("arm64", "calibrated"), ("riscv", "facts alone"))
     for pages, cost in ((0, 9.0), (64, 1.2), (512, 2.0), (4096, 1.1), (32768, 1.0))],
    columns=list(COST_COLUMNS),
)  # fmt: skip
CELLS = pd.DataFrame(
    [
        (4, 1e3, "every-64", False, False, "64–whole"),
        (16, 1e3, "every-4096", True, True, "4096"),
        (4, 1e5, "every-512", True, False, "64–512"),
        (16, 1e5, "whole-ioctl", True, True, "whole"),
    ],
    columns=list(MAP_COLUMNS),
)
TRADES = pd.DataFrame(
    [("whole-ioctl", 0.1, 2.5, 55.0, False), ("every-64", 1e-4, 9.0, 60.0, True), ("every-512", 8e-4, 2.0, 50.0, True)],
    columns=list(PARETO_COLUMNS),
)
SPANS = pd.DataFrame(
    [("vcpu 10", "write", "hold", 3.0, 4.0), ("vcpu 9", "write", "wait", 1.0, 3.5), ("main", "write", "hold", 0.0, 3.0),
     ("vcpu 9", "read", "hold", 4.0, 5.0), ("vcpu 9", "read", "hold", 6.0, 7.0)],
    columns=["thread", "mode", "what", "begin_s", "end_s"],
).assign(lock="mmu_lock")  # fmt: skip
SHARES = pd.DataFrame(
    [(1.0, 2.0, "free", 0.25), (1.0, 2.0, "read", 0.75), (1.0, 2.0, "write, vCPUs", 0.0)],
    columns=["time_s", "width_s", "owner", "share"],
)

Draw = Callable[[pd.DataFrame], go.Figure]
SIMULATED: list[tuple[Draw, pd.DataFrame]] = [
    (figures.time_per_page, SPLIT),
    (figures.lock_over_time, QUEUE),
    (figures.progress, PROGRESS),
    (figures.histogram, HISTOGRAM),
]
FIGURES: list[tuple[Draw, pd.DataFrame]] = [
    *SIMULATED,
    (held_out_errors, ERRORS),
    (figures.cost_intervals, INTERVALS),
    (figures.sensitivity, SENSITIVITY),
    (figures.degradation_over_time, DEGRADATION),
    (partial(figures.degradation_over_time, DEGRADATION), PUBLISHED),
    (figures.batch_costs, COSTS),
    (best_strategy_map, CELLS),
    (figures.pareto, TRADES),
    (figures.lock_ownership, SPANS),
    (partial(figures.lock_ownership, SPANS), SHARES),
]


def traces(figure: go.Figure, name: str) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.name == name]


def titles(figure: go.Figure, axis: str) -> list[str]:
    axes = figure.select_xaxes() if axis == "x" else figure.select_yaxes()
    return [a.title.text for a in axes if a.title.text]


def notes(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


@pytest.mark.parametrize(("draw", "frame"), FIGURES)
def test_every_column_is_needed_and_a_row_too(draw: Draw, frame: pd.DataFrame) -> None:
    before = frame.copy()
    figure = draw(frame)
    assert figure.layout.title.text
    assert figure.layout.title.subtitle.text
    assert figure.layout.height >= 300
    pd.testing.assert_frame_equal(frame, before)  # the caller's table is not changed
    for column in frame.columns:
        with pytest.raises(InputError, match=rf"\.{column} = missing"):
            draw(frame.drop(columns=column))
    with pytest.raises(InputError, match="no rows"):
        draw(frame.iloc[:0])


@pytest.mark.parametrize(("draw", "frame"), FIGURES)
def test_an_index_with_duplicates_changes_nothing(draw: Draw, frame: pd.DataFrame) -> None:
    doubled = frame.set_axis(np.zeros(len(frame), int))
    assert draw(doubled).to_json() == draw(frame).to_json()


@pytest.mark.parametrize(
    ("draw", "frame", "sentence"),
    [
        (figures.degradation_over_time, DEGRADATION.assign(degradation="much"), "must contain numbers"),
        (figures.batch_costs, COSTS.assign(objective_s=0.0), "table.objective_s = 0.0"),
        (figures.batch_costs, COSTS.assign(best="False"), "table.best = False: must be True or False"),
        (best_strategy_map, CELLS.assign(matters="yes"), "table.matters = yes"),
        (best_strategy_map, CELLS.assign(vcpus=4), "vcpus 4, access_rate 1000: has two rows"),
        (figures.pareto, TRADES.assign(stall_s=0.0), "table.stall_s = 0.0"),
        (figures.lock_ownership, SPANS.assign(mode="exclusive"), "table.mode = exclusive"),
        (figures.lock_ownership, SPANS.assign(lock="slots_lock"), "table.lock = mmu_lock: is not known"),
        (partial(figures.lock_ownership, SPANS), SHARES.assign(owner="nobody"), "shares.owner = nobody"),
    ],
)
def test_a_bad_value_is_named(draw: Draw, frame: pd.DataFrame, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draw(frame)


@pytest.mark.parametrize(("draw", "frame"), SIMULATED)
def test_simulated_figures_say_so(draw: Draw, frame: pd.DataFrame) -> None:
    assert draw(frame).layout.title.subtitle.text.startswith("simulated")


def test_time_per_page_stacks_activities_in_one_order() -> None:
    figure = figures.time_per_page(SPLIT)
    assert [bar.name for bar in figure.data] == ["outside the lock", "hold", "wait"]
    assert figure.data[2].x == ("1", "8")
    np.testing.assert_array_equal(figure.data[2].y, [0, 7])
    with pytest.raises(InputError, match="did you mean 'wait'"):
        figures.time_per_page(SPLIT.replace("wait", "waits"))


def test_progress_is_per_second_and_names_the_number_of_threads() -> None:
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
    figure = held_out_errors(ERRORS)
    assert [bar.name for bar in figure.data] == ["simlib", "USL"]
    assert figure.data[0].text == ("+0.5", "+2")
    assert figure.layout.yaxis.zeroline
    low, high = figure.layout.yaxis.range
    assert low < -20.4
    assert high > 2


def test_a_cost_of_zero_is_at_the_edge_of_its_logarithmic_axis() -> None:
    figure = figures.cost_intervals(INTERVALS)
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


def test_correlation_refuses_other_matrices() -> None:
    names = ["hold", "line"]
    good = pd.DataFrame([[1, -0.98], [-0.98, 1]], names, names)
    np.testing.assert_array_equal(figures.correlation(good).data[0].z, good.to_numpy())
    for bad in (good * 2, good.rename(columns={"line": "x"}), good.iloc[:0], good.replace(1, "one")):
        with pytest.raises(InputError, match="matrix"):
            figures.correlation(bad)


def test_degradation_is_sorted_and_has_published_points() -> None:
    figure = figures.degradation_over_time(DEGRADATION, PUBLISHED)
    over_time, above = traces(figure, "before, simulated")
    np.testing.assert_allclose(over_time.y, [99.5, 20, 60])
    np.testing.assert_allclose((above.x, above.y), ([0, 1, 2, 3], [99.5, 99.5, 60, 20]))
    assert above.line.shape == "vh"  # so that it crosses 50 % at 2 s
    point = traces(figure, "x86, published")[0]
    assert (point.x.tolist(), point.y.tolist(), point.mode) == ([9], [50], "markers")
    assert traces(figure, "before, published")[0].marker.color == above.line.color
    assert titles(figure, "x") == ["time since the log was enabled, s", "time above that degradation, s"]
    assert titles(figure, "y") == ["degradation, %"]
    assert len(figure.data) == 6
    wide = figures.degradation_over_time(DEGRADATION.assign(width_s=[3.0, 1.0, 2.0, 5.0]))
    np.testing.assert_allclose(traces(wide, "before, simulated")[1].x, [0, 3, 5, 6])


def test_batch_costs_mark_the_best_and_shade_equivalent_batches() -> None:
    figure = figures.batch_costs(COSTS.sample(frac=1, random_state=1).sort_values("architecture", kind="stable"))
    whole = 8 * 32768
    simulated = traces(figure, "simulated")[0]
    np.testing.assert_array_equal(simulated.x, [64, 512, 4096, 32768, whole])
    np.testing.assert_allclose(simulated.y, [1.2, 2, 1.1, 1, 9])
    np.testing.assert_allclose(simulated.error_y.array, 0.1 * np.array([1.2, 2, 1.1, 1, 9]))
    assert traces(figure, "best")[0].x == [32768]
    band = figure.layout.shapes[0]
    assert (band.x0, band.x1) == pytest.approx((4096 / np.sqrt(2), 32768 * np.sqrt(2)))  # 64 is not next to the best
    assert len(figure.layout.shapes) == 2
    assert list(figure.layout.xaxis.ticktext) == ["64", "512", "4 Ki", "32 Ki", "<br>whole"]
    assert ["calibrated" in notes(figure)[0], "facts alone" in notes(figure)[1]] == [True, True]
    low, high = figure.layout.yaxis.range
    assert high - low > 1
    assert titles(figure, "y") == ["cost, s", "s"]
    assert set(titles(figure, "x")) == {"batch, pages (Ki: 1024)"}
    assert len(figure.data) == 2 * 2 + 3
    closed = figures.batch_costs(COSTS.assign(closed_form_s=1.5))
    np.testing.assert_array_equal(traces(closed, "closed form")[0].y, [1.5] * 5)
    assert [t.name for t in closed.data if t.showlegend] == [
        "simulated, with its interval", "best", "equivalent to the best", "closed form"
    ]  # fmt: skip


def test_flat_costs_look_flat() -> None:
    flat = COSTS.assign(objective_s=1.0, low_s=0.99, high_s=1.01)
    low, high = figures.batch_costs(flat).layout.yaxis.range
    assert high - low >= 1


def test_the_map_marks_undistinguished_strategies_and_cells_that_do_not_matter() -> None:
    figure = best_strategy_map(CELLS)
    cells = {trace.name: trace for trace in figure.data}
    assert set(cells) == {"every-4096", "not distinguished", "whole-ioctl", "any strategy"}
    assert cells["every-4096"].x == ("4", "16")
    assert cells["every-4096"].y == ("1 k", "100 k")
    np.testing.assert_array_equal(cells["every-4096"].text, [["", "every-4096"], ["", ""]])
    np.testing.assert_array_equal(cells["not distinguished"].text, [["", ""], ["64–512", ""]])
    np.testing.assert_array_equal(cells["any strategy"].text, [["any", ""], ["", ""]])
    assert titles(figure, "x") == ["vCPUs"]
    assert titles(figure, "y") == ["accesses per second of a vCPU"]


def test_the_map_does_not_show_the_least_of_undistinguished_strategies() -> None:
    """It depends on the seed."""
    other = CELLS.assign(strategy=["every-4096", "every-4096", "every-64", "whole-ioctl"])
    assert best_strategy_map(other).to_json() == best_strategy_map(CELLS).to_json()


def test_similar_times_have_similar_colours() -> None:
    near = figures.pareto(TRADES.assign(guest_time_lost_s=[50.0, 51.0, 51.4])).layout.coloraxis
    assert near.cmax - near.cmin == pytest.approx(np.log10(4))
    far = figures.pareto(TRADES.assign(guest_time_lost_s=[1.0, 5.0, 100.0])).layout.coloraxis
    assert (far.cmin, far.cmax) == pytest.approx((0, 2))
    assert near.colorbar.title.text == "guest time lost, s"
    assert len(near.colorbar.ticktext) >= 3


def test_the_front_is_joined_in_order_of_the_stall() -> None:
    figure = figures.pareto(TRADES.iloc[[2, 0, 1]])
    line, beaten, front = figure.data
    np.testing.assert_array_equal((line.x, line.y), ([9, 2], [1e-4, 8e-4]))
    assert (front.text, beaten.text) == (("every-64", "every-512"), ("whole-ioctl",))
    np.testing.assert_allclose(front.marker.color, np.log10([60, 50]))
    assert figure.layout.coloraxis.colorbar.title.text == "guest time lost, s"
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert titles(figure, "x") + titles(figure, "y") == ["CPU time of CLEAR, s", "longest stall of a vCPU, ms"]
    assert len(figures.pareto(TRADES[TRADES["on_front"]]).data) == 2


def test_points_that_lie_together_share_a_label() -> None:
    together = TRADES.assign(stall_s=[1e-4, 1.01e-4, 8e-4], clear_s=[2.0, 2.01, 9.0], knee=[False, True, False])
    texts = [text for trace in figures.pareto(together).data[1:] for text in trace.text]
    assert sorted(filter(None, texts)) == ["every-512", "every-64 (knee) + 1"]


def test_a_lock_has_a_row_a_thread_and_a_trace_a_kind() -> None:
    figure = figures.lock_ownership(SPANS, SHARES)
    assert list(figure.layout.yaxis.ticktext) == ["main", "vcpu 9", "vcpu 10"]
    read = traces(figure, "hold: read")[0]
    np.testing.assert_array_equal(read.x, [4, 5, NAN, 6, 7, NAN])
    np.testing.assert_array_equal(read.y, [1] * 6)
    wait = traces(figure, "wait: write, vCPUs")[0]
    np.testing.assert_array_equal((wait.x, wait.y), ([1, 3.5, NAN], [1, 1, 1]))
    assert wait.line.width < read.line.width
    assert traces(figure, "hold: write, clearing threads")[0].y[0] == 0
    shares = [trace for trace in figure.data if trace.type == "bar"]
    assert [(bar.name, bar.y.tolist(), bar.width.tolist()) for bar in shares] == [
        ("read", [75], [2]),
        ("free", [25], [2]),
    ]
    assert (titles(figure, "x"), titles(figure, "y")) == (["simulated time, s"], ["owned, %"])


def test_twenty_thousand_spans_are_a_few_traces_and_forty_rows() -> None:
    n = 20_000
    begin = np.arange(n) * 1e-6
    many = pd.DataFrame(
        {"thread": [f"vcpu {i % 100}" for i in range(n)], "lock": "mmu_lock", "mode": ["read", "write"] * (n // 2),
         "what": ["wait", "wait", "hold", "hold"] * (n // 4), "begin_s": begin, "end_s": begin + 1e-7}
    )  # fmt: skip
    figure = figures.lock_ownership(many)
    assert len(figure.data) == 4
    assert sum(len(trace.x) for trace in figure.data) == 3 * n * 40 // 100
    assert "first 40 of 100 threads" in figure.layout.title.text


def test_batches_are_short() -> None:
    assert [batch_text(pages) for pages in (0, 64, 1024, 6144, 1 << 24)] == ["whole", "64", "1 Ki", "6 Ki", "16 Mi"]
