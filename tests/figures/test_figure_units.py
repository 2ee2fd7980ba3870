# SPDX-License-Identifier: BSD-3-Clause
"""Units in figures: ns, µs, ms and s, never ps or 650µ; one unit an axis, which its title names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from simlib import figures
from simlib.figures import curves, host
from simlib.figures.style import MODEBAR, as_widget, log_ticks, titled
from studies.lab import figures as lab
from studies.teardown.figures import unmap_times

UNIT = re.compile(r"(?:^|[\s,\d])(ps|ns|µs|μs|us|ms|s|seconds)$")
SCALES = (3e-10, 3e-7, 2e-5, 4e-3, 0.7, 60.0, 4e4)


def rows(columns: str, *values: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(values), columns=columns.split())


def drawn(scale: float) -> Iterator[go.Figure]:
    """Every figure that has an axis of times, with times of about the scale."""
    t = scale
    spans = rows(
        "thread mode what begin_s end_s", ("vcpu 0", "write", "hold", t, 1.2 * t), ("main", "read", "wait", 0.0, t)
    )
    shares = rows("time_s width_s owner share", (t / 2, t, "free", 0.25))
    yield figures.lock_ownership(spans.assign(lock="mmu_lock"), shares)
    yield figures.lock_over_time(rows("lock time_s queue", ("mmu_lock", t / 2, 1.0), ("mmu_lock", t, 2.0)))
    yield figures.progress(rows("thread time_s pages", ("vcpu 0", t / 2, 5), ("vcpu 0", t, 6)))
    yield figures.histogram(
        rows("lock mode up_to_s count", ("mmu_lock", "write", t, 3), ("mmu_lock", "write", 8 * t, 1))
    )
    yield figures.pareto(
        rows(
            "strategy stall_s clear_s guest_time_lost_s on_front", ("a", t, 30 * t, 9 * t, True), ("b", t, t, t, False)
        )
    )
    cost = rows("batch_pages objective_s low_s high_s equivalent best", (64, t, 0.9 * t, 1.2 * t, True, True),
                (0, 2 * t, t, 3 * t, False, False))  # fmt: skip
    yield figures.batch_costs(cost.assign(architecture="riscv", evidence="facts alone"))
    cell = rows(
        "machine vcpus batch metric lab lab_low lab_high model",
        ("riscv", 1, 64, "longest_stall", t, t, 2 * t, t),
    )
    yield lab.under_load(cell)
    yield lab.switch_effects(
        rows("setting metric value low high", ("a", "clear_time_s", t, t, 2 * t), ("a", "holds", 3, 2, 4)), ""
    )
    point = rows(
        "variant vcpus metric kind value low high held_out",
        ("a", 4, "dirty_memory_time", "measured", t, None, None, False),
    )
    yield curves.dirty_memory_time(point)
    ends = ("value", "value_low", "value_high", "model", "model_low", "model_high")
    clear = {"metric": "longest_stall", "vcpus": 1, "chunk_pages": 64} | dict.fromkeys(ends, t)
    yield host.clear_under_load(pd.DataFrame([clear]))
    unmap = rows(
        "mapping kernel memory_gb published predicted low high role",
        ("4K", "base", 16, t, t, t, 2 * t, "held out"),
    )
    yield unmap_times(unmap)


def axes(figure: go.Figure) -> list[dict[str, Any]]:
    layout = json.loads(figure.to_json())["layout"]
    return [axis for name, axis in layout.items() if name.startswith(("xaxis", "yaxis"))] + [
        layout[name]["colorbar"] for name in layout if name == "coloraxis"
    ]


def title_of(axis: dict[str, Any]) -> str:
    return (axis.get("title") or {}).get("text") or ""


def unit_of(text: str) -> str:
    match = UNIT.search(re.sub("<[^>]*>", "", text).strip())
    return match[1] if match else ""


@pytest.mark.parametrize("scale", SCALES)
def test_an_axis_has_one_unit_and_its_title_names_it(scale: float) -> None:
    for figure in drawn(scale):
        headings = [note.text for note in figure.layout.annotations]
        for axis in axes(figure):
            ticks = [str(tick) for tick in axis.get("ticktext", [])]
            assert not {unit_of(tick) for tick in ticks} - {""}, (figure.layout.title.text, ticks)
            assert not any(re.search(r"\d ?[pnµμm]$", tick) for tick in ticks), ticks
            assert unit_of(title_of(axis)) not in ("ps", "us", "seconds")
        named = {unit_of(text) for text in (*headings, *(title_of(axis) for axis in axes(figure)))}
        assert named & {"ns", "µs", "ms", "s"}, figure.layout.title.text
        assert not re.search(r"\d ?ps\b", figure.to_json())


@pytest.mark.parametrize("scale", SCALES)
def test_numbers_on_an_axis_without_ticks_of_its_own_are_readable(scale: float) -> None:
    """Plotly writes 0.00065 as 650μ: values of such an axis are scaled to its unit instead."""
    for figure in drawn(scale):
        for trace in figure.data:
            for letter in "xy":
                axis = figure.layout[f"{letter}axis{(getattr(trace, letter + 'axis') or letter)[1:]}"]
                values = np.asarray(trace[letter] if trace[letter] is not None else [], dtype=object)
                numbers = [abs(v) for v in values if isinstance(v, float | int) and math.isfinite(v) and v]
                if axis.ticktext is None and unit_of(axis.title.text or "") in ("ns", "µs", "ms", "s") and numbers:
                    most = max(numbers)
                    assert most >= 0.5 or unit_of(axis.title.text) == "ns", (figure.layout.title.text, most)


def test_a_logarithmic_axis_has_ticks_near_its_data() -> None:
    for low in np.geomspace(1.0, 10.0, 40):
        for factor in (1.1, 1.5, 2, 5, 100, 1e5):
            ticks = log_ticks(low, low * factor)
            assert len(ticks) >= 3, (low, factor)
            assert ticks == sorted(ticks)
            assert low <= ticks[0] * (1 + 1e-9)
            assert ticks[-1] <= low * factor * (1 + 1e-9)


def test_nothing_is_sent_to_a_cloud_and_pictures_are_svg() -> None:
    """In a notebook, in a page that is exported from it, in a widget."""
    figure = titled(go.Figure(), "a", "b")
    for name in ("plotly_mimetype", "notebook", "notebook_connected"):
        assert pio.renderers[name].config == MODEBAR
    bundle = pio.renderers["plotly_mimetype"].to_mimebundle(figure.to_dict())["application/vnd.plotly.v1+json"]
    for config in (bundle["config"], as_widget(figure)._config):
        assert (config["showSendToCloud"], config["displaylogo"], config["plotlyServerURL"]) == (False, False, "")
        assert config["toImageButtonOptions"]["format"] == "svg"
        assert config["responsive"]
    assert as_widget(figure).layout.autosize
