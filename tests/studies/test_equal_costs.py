# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the comparison of lock policies at equal costs, and of its sliders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from simlib import measurements, simulate
from simlib._lib.errors import SimlibError
from simlib.figures.curves import COLUMNS
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from studies.arm64 import sliders
from studies.arm64.altra import shipped_fit
from studies.arm64.equal_costs import (
    COLOURS,
    MEASURED_AS,
    PAGES,
    STRATEGIES,
    VCPUS,
    calibrated_scenario,
    compare,
    figure,
    published,
)
from studies.arm64.sliders import SLIDERS, what_if

SPIN, TICKET, RWLOCK, LOCKLESS = STRATEGIES


@pytest.fixture(scope="module")
def start() -> Scenario:
    return calibrated_scenario()


@pytest.fixture(scope="module")
def frame(start: Scenario) -> pd.DataFrame:
    return compare(start)


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Table of seconds by vCPUs and strategy."""
    return frame.pivot_table(index="vcpus", columns="variant", values="value")


def test_the_table_is_tidy_and_ordered(frame: pd.DataFrame) -> None:
    assert list(frame.columns) == list(COLUMNS)
    assert frame["variant"].unique().tolist() == list(STRATEGIES)
    assert frame["vcpus"].tolist() == list(VCPUS) * len(STRATEGIES)
    assert frame["kind"].eq("simulated").all()
    assert frame["held_out"].all()
    assert frame[["low", "high"]].isna().all(axis=None)


def test_every_point_is_a_run_of_the_engine(start: Scenario, frame: pd.DataFrame) -> None:
    for name, policy in STRATEGIES.items():
        run = simulate(start.changed({"policy": policy}).with_vcpus(16), seed=1, pages_per_vcpu=PAGES)
        assert wide(frame).loc[16, name] == run.metrics["dirty_memory_time"]


def test_strategies_agree_without_contention(frame: pd.DataFrame) -> None:
    alone = wide(frame).loc[1]
    assert alone.max() / alone.min() == pytest.approx(1, abs=1e-3)


def test_order_at_64_vcpus(frame: pd.DataFrame) -> None:
    at = wide(frame).loc[64]
    assert at[TICKET] > at[SPIN] > at[RWLOCK]
    assert at[LOCKLESS] <= at[RWLOCK] * 1.002  # both queue for the interconnect; the difference is random


def test_ticket_lock_loses_with_waiters_and_spinlock_only_saturates(frame: pd.DataFrame) -> None:
    times = wide(frame)
    ratio = (times[TICKET] / times[SPIN]).loc[[8, 16, 32, 64]]
    assert ratio.is_monotonic_increasing
    assert ratio.iloc[0] > 1
    assert times.loc[64, SPIN] / times.loc[16, SPIN] == pytest.approx(4, rel=0.01)


def test_rwlock_and_lockless_saturate_the_interconnect(start: Scenario, frame: pd.DataFrame) -> None:
    """Broadcasts, one per fault, are served one at a time: no policy is faster, and these two are within 1 %."""
    assert start.costs.tlb_invalidate is not None
    least = 64 * start.guest.pages_per_vcpu * start.costs.tlb_invalidate * 1e-12
    at = wide(frame).loc[64]
    assert (at > 0.995 * least).all()
    assert at[[RWLOCK, LOCKLESS]].max() < 1.01 * least


def test_lockless_faults_scale_without_a_shared_resource(start: Scenario) -> None:
    free = wide(compare(start.with_costs(tlb_invalidate=10_000), [1, 64]))
    assert free.loc[64, LOCKLESS] / free.loc[1, LOCKLESS] == pytest.approx(1, abs=0.05)
    assert free.loc[64, RWLOCK] > 2 * free.loc[64, LOCKLESS]  # readers still move the lock word's line


def test_hold_moves_the_spinlock_and_not_the_saturated_rwlock(start: Scenario, frame: pd.DataFrame) -> None:
    assert start.costs.fault_hold is not None
    doubled = wide(compare(start.with_costs(fault_hold=2 * start.costs.fault_hold), [64])).loc[64]
    before = wide(frame).loc[64]
    assert doubled[SPIN] > 1.4 * before[SPIN]
    assert doubled[RWLOCK] == pytest.approx(before[RWLOCK], rel=0.01)


def test_few_pages_give_the_results_of_many(start: Scenario, frame: pd.DataFrame) -> None:
    more = compare(start, pages_per_vcpu=2 * PAGES)
    assert (frame["value"] / more["value"] - 1).abs().max() < 0.01


def test_results_are_reproducible_and_depend_on_the_seed(start: Scenario) -> None:
    first = compare(start, [4], pages_per_vcpu=512)
    pd.testing.assert_frame_equal(first, compare(start, [4], pages_per_vcpu=512))
    assert not first["value"].equals(compare(start, [4], pages_per_vcpu=512, seed=2)["value"])


def test_published_rows_are_the_published_table() -> None:
    rows = published()
    table = measurements.load("arm64-dirty-memory-time").frame
    for name, series in MEASURED_AS.items():
        strategy_rows, series_rows = rows[rows["variant"] == name], table[table["series"] == series]
        assert strategy_rows["vcpus"].tolist() == series_rows["vcpus"].tolist()
        assert strategy_rows["value"].tolist() == pytest.approx((series_rows["dirty_memory_time_ms"] / 1000).tolist())
        assert (strategy_rows["held_out"] == (strategy_rows["vcpus"] > 8)).all()


def test_start_has_the_calibrated_costs(start: Scenario) -> None:
    values = shipped_fit().parameters.set_index("name")["value"]
    assert start.costs.fault_hold == round(values["fault_hold"])
    assert start.costs.tlb_invalidate == round(values["tlb_invalidate[old test]"])


def test_figure_shows_every_strategy_in_its_colour(frame: pd.DataFrame) -> None:
    result = figure(pd.concat([frame, published()]))
    for name in STRATEGIES:
        line = next(t for t in result.data if t.name == f"{name}, simulated")
        assert line.line.color == COLOURS[name]
        assert list(line.y) == wide(frame)[name].tolist()
    lines = [t.line for t in result.data if t.name.endswith(", simulated")]
    assert [line.dash == "solid" for line in lines] == [True, False] * 2  # none hides the one before it
    assert lines[0].width > lines[1].width + 1
    points = {t.legendgroup for t in result.data if t.mode == "markers" and t.legendgroup}
    assert points == set(MEASURED_AS)
    assert "simulated" in result.layout.title.subtitle.text
    assert "measurements" in result.layout.title.subtitle.text
    assert "measurements" not in figure(frame).layout.title.subtitle.text


class SliderPage:
    """The parts of the widget that a user sees."""

    def __init__(self, box: Any) -> None:
        parts = list(every(box))
        self.sliders = dict(zip(SLIDERS, (p for p in parts if isinstance(p, widgets.FloatLogSlider)), strict=True))
        (self.figure,) = (p for p in parts if isinstance(p, go.FigureWidget))
        (self.reset,) = (p for p in parts if isinstance(p, widgets.Button))
        self.texts = [p for p in parts if type(p) is widgets.HTML]

    def lines(self) -> dict[str, list[float]]:
        return {
            t.legendgroup: [float(y) for y in t.y]
            for t in self.figure.data
            if t.mode == "lines" and t.name.endswith("simulated") and t.legendgroup
        }

    def points(self) -> list[list[float]]:
        return [[float(y) for y in t.y] for t in self.figure.data if t.mode == "markers" and t.legendgroup]


def every(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from every(child)


@pytest.fixture
def page() -> SliderPage:
    return SliderPage(what_if())


def test_sliders_start_at_the_calibrated_costs(page: SliderPage) -> None:
    costs = calibrated_scenario().costs
    for name, slider in page.sliders.items():
        assert slider.value == getattr(costs, name) / 1000
        assert not slider.continuous_update  # redraws on release, not while it moves
        low, high = Costs.__dataclass_fields__[name].metadata["bounds"]
        assert (slider.base**slider.min, slider.base**slider.max) == pytest.approx((low / 1000, high / 1000))
    frame = compare(calibrated_scenario())
    assert page.lines() == {name: rows["value"].tolist() for name, rows in frame.groupby("variant")}


def test_the_note_states_simulation_and_calibrated_costs(page: SliderPage) -> None:
    text = " ".join(html.value for html in page.texts)
    assert "Simulated" in text
    assert f"broadcast {page.sliders['tlb_invalidate'].value:.3g} ns" in text
    assert "every fault includes one, with any lock policy" in text


@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_moves_the_curves_and_leaves_the_points(page: SliderPage, name: str) -> None:
    before, points = page.lines(), page.points()
    page.sliders[name].value *= 3
    after = page.lines()
    assert after.keys() == set(STRATEGIES)
    assert after != before
    # With one vCPU there is no wait, so a higher cost cannot make a fault shorter.
    assert all(after[strategy][0] >= before[strategy][0] for strategy in STRATEGIES)
    assert page.points() == points
    costs = {n: round(s.value * 1000) for n, s in page.sliders.items()}
    frame = compare(calibrated_scenario().with_costs(**costs))
    assert after["queued spinlock"] == frame[frame["variant"] == "queued spinlock"]["value"].tolist()


def test_axis_follows_the_curves(page: SliderPage) -> None:
    page.sliders["fault_hold"].value = 20_000
    low, high = page.figure.layout.yaxis.range
    values = [y for line in page.lines().values() for y in line]
    assert 10**low < min(values) < max(values) < 10**high


def test_reset_restores_with_one_redraw(page: SliderPage, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = page.lines(), {name: slider.value for name, slider in page.sliders.items()}
    for slider in page.sliders.values():
        slider.value *= 2
    runs: list[object] = []
    monkeypatch.setattr(sliders, "compare", lambda scenario: runs.append(scenario) or compare(scenario))
    page.reset.click()
    assert len(runs) == 1
    assert page.lines() == before
    assert {name: slider.value for name, slider in page.sliders.items()} == start
    page.sliders["fault_unlocked"].value *= 2  # the slider is still observed
    assert page.lines() != before


def test_a_failed_run_is_reported_and_keeps_the_figure(page: SliderPage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_scenario: object) -> None:
        raise SimlibError("too long <for> this")

    before = page.lines()
    monkeypatch.setattr(sliders, "compare", fail)
    page.sliders["fault_hold"].value *= 2
    assert "too long &lt;for&gt; this" in page.texts[-1].value
    assert page.lines() == before
    monkeypatch.undo()
    page.reset.click()
    assert page.texts[-1].value.startswith("Calibrated")


@pytest.mark.parametrize("end", ["min", "max"])
def test_the_ends_of_the_sliders_work(page: SliderPage, end: str) -> None:
    for slider in page.sliders.values():
        slider.value = slider.base ** getattr(slider, end)
        assert page.texts[-1].value.startswith("Calibrated")
        assert all(np.isfinite(line).all() for line in page.lines().values())


def test_sliders_start_at_a_given_estimate() -> None:
    estimate = shipped_fit().estimate
    dearer = type(estimate)(
        estimate.names, estimate.logs + np.log(2), estimate.covariance, estimate.dof, estimate.discrepancy,
        estimate.spread,
    )  # fmt: skip
    assert SliderPage(what_if(dearer)).sliders["fault_hold"].value == pytest.approx(
        2 * SliderPage(what_if()).sliders["fault_hold"].value, rel=1e-4
    )
