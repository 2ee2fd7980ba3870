# SPDX-License-Identifier: BSD-3-Clause
"""The widget: it starts at the calibrated costs, a slider moves the curves, Reset brings them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
import pytest

from simlib.errors import SimlibError
from simlib.explorer import STRATEGIES, compare, shipped_fit, starting_point
from simlib.explorer import what_if as module
from simlib.explorer.what_if import SLIDERS, what_if
from simlib.model.costs import Costs


class Shown:
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
def shown() -> Shown:
    return Shown(what_if())


def test_starts_at_the_calibrated_costs(shown: Shown) -> None:
    costs = starting_point().costs
    for name, slider in shown.sliders.items():
        assert slider.value == getattr(costs, name) / 1000
        assert not slider.continuous_update  # a redraw when it is let go, not on the way
        low, high = Costs.__dataclass_fields__[name].metadata["bounds"]
        assert (slider.base**slider.min, slider.base**slider.max) == pytest.approx((low / 1000, high / 1000))
    frame = compare(starting_point())
    assert shown.lines() == {name: rows["value"].tolist() for name, rows in frame.groupby("variant")}


def test_says_that_it_is_simulated_and_what_was_calibrated(shown: Shown) -> None:
    text = " ".join(html.value for html in shown.texts)
    assert "Simulated" in text
    assert f"broadcast {shown.sliders['tlb_invalidate'].value:.3g} ns" in text
    assert "a fault pays it under any lock, and without one" in text


@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_moves_the_curves_and_leaves_the_points(shown: Shown, name: str) -> None:
    before, points = shown.lines(), shown.points()
    shown.sliders[name].value *= 3
    after = shown.lines()
    assert after.keys() == set(STRATEGIES)
    assert after != before
    # At one vCPU no lock is waited for: a dearer action cannot make a fault cheaper.
    assert all(after[strategy][0] >= before[strategy][0] for strategy in STRATEGIES)
    assert shown.points() == points
    costs = {n: round(s.value * 1000) for n, s in shown.sliders.items()}
    frame = compare(starting_point().with_costs(**costs))
    assert after["queued spinlock"] == frame[frame["variant"] == "queued spinlock"]["value"].tolist()


def test_axis_follows_the_curves(shown: Shown) -> None:
    shown.sliders["fault_hold"].value = 20_000
    low, high = shown.figure.layout.yaxis.range
    values = [y for line in shown.lines().values() for y in line]
    assert 10**low < min(values) < max(values) < 10**high


def test_reset_restores_with_one_redraw(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = shown.lines(), {name: slider.value for name, slider in shown.sliders.items()}
    for slider in shown.sliders.values():
        slider.value *= 2
    runs: list[object] = []
    monkeypatch.setattr(module, "compare", lambda scenario: runs.append(scenario) or compare(scenario))
    shown.reset.click()
    assert len(runs) == 1
    assert shown.lines() == before
    assert {name: slider.value for name, slider in shown.sliders.items()} == start
    shown.sliders["fault_exit"].value *= 2  # and it still listens
    assert shown.lines() != before


def test_a_run_that_fails_says_so_and_keeps_the_picture(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_scenario: object) -> None:
        raise SimlibError("too long <for> this")

    before = shown.lines()
    monkeypatch.setattr(module, "compare", fail)
    shown.sliders["fault_hold"].value *= 2
    assert "too long &lt;for&gt; this" in shown.texts[-1].value
    assert shown.lines() == before
    monkeypatch.undo()
    shown.reset.click()
    assert shown.texts[-1].value.startswith("Calibrated")


@pytest.mark.parametrize("end", ["min", "max"])
def test_no_end_of_a_slider_breaks_it(shown: Shown, end: str) -> None:
    for slider in shown.sliders.values():
        slider.value = slider.base ** getattr(slider, end)
        assert shown.texts[-1].value.startswith("Calibrated")
        assert all(np.isfinite(line).all() for line in shown.lines().values())


def test_takes_another_estimate() -> None:
    estimate = shipped_fit().estimate
    dearer = type(estimate)(
        estimate.names, estimate.logs + np.log(2), estimate.covariance, estimate.dof, estimate.discrepancy,
        estimate.spread,
    )  # fmt: skip
    assert Shown(what_if(dearer)).sliders["fault_hold"].value == pytest.approx(
        2 * Shown(what_if()).sliders["fault_hold"].value, rel=1e-4
    )
