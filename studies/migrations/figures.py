# SPDX-License-Identifier: BSD-3-Clause
"""Figures of published migrations: numbers beside the model's, and the guest's throughput over time.

What was published is a black circle; the model is blue, with its interval: a tick if its costs were fitted to this very
measurement, a hollow diamond if it was predicted. The grey bar is the range that counts as agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.figures.migration import LEVEL_LINE, add_lines
from simlib.figures.style import (
    INK,
    MUTED,
    PALETTE,
    facets,
    legend_below,
    row_axis,
    signed,
    spans,
    subplots,
    titled,
    translucent,
)
from simlib.model.quantities import seconds_text
from studies.study import FITTED, HELD_OUT

Words = Callable[[float], str]
Place = Callable[[NDArray[np.float64]], NDArray[np.float64]]

METRICS = {
    "precopy_duration": "pre-copy duration",
    "dirty_left": "dirty memory left at the switchover",
    "clear_cpu_time": "CPU time of CLEAR",
}
"""Metrics of `three_configurations`, and the titles of their panels."""

_PUBLISHED = {"symbol": "circle", "size": 9, "color": INK}
_MODEL = {
    FITTED: ("model, fitted", {"symbol": "line-ns-open", "size": 19, "color": PALETTE[0], "line": {"width": 4}}),
    HELD_OUT: ("model, predicted",
               {"symbol": "diamond-tall-open", "size": 15, "color": PALETTE[0], "line": {"width": 2.5}}),
}  # fmt: skip
"""Marks of the model, by how it came by a number: from costs fitted to this very measurement, or to others."""

_VALUES = ("published", "predicted", "low", "high", "low_bar", "high_bar")
BESIDE = {"variant": TEXT, "metric": TEXT, "role": word(_MODEL)}
"""Columns of the tables that `three_configurations` and `seconds_above` read, beside the numbers: ``published``,
``predicted`` with its interval ``low`` to ``high``, and ``low_bar`` to ``high_bar``, which counts as agreement."""

_CHANGES = {"emulates": TEXT, **BESIDE, "metric": word(METRICS), **dict.fromkeys(_VALUES, number())}
_SECONDS = {**BESIDE, **dict.fromkeys(_VALUES, number(0))}
# By name: Sphinx cannot read a decorator in which a dictionary is unpacked.

_LINEAR = 3.0
"""Change, percent, up to which the axis of changes is about linear."""


@reads("table", _CHANGES)
def three_configurations(table: pd.DataFrame) -> go.Figure:
    """Changes in percent, published and by the model, a panel a metric, a row a configuration.

    The axis is linear near 0 and logarithmic beyond, so that −1 % and +5200 % can both be read.

    - `table`: the columns of `BESIDE` and ``emulates``: ``variant`` ends with the configuration's number, ``metric`` is
      one of `METRICS`; changes in percent.
    """
    rows = table.sort_values("variant", kind="stable")
    label = rows["variant"].str.split().str[-1] + ": " + rows["emulates"]
    figure = _beside(
        rows.assign(label=label), "metric", METRICS, lambda value: f"{signed(value)} %", place=_on_change_axis
    )
    figure.update_xaxes(_change_axis(rows[list(_VALUES)].to_numpy(dtype=float)))
    figure.update_xaxes(
        title=f"change, % (linear up to about ±{_LINEAR:g} %, logarithmic beyond)", row=rows["metric"].nunique()
    )
    said = "published, and simulated with one set of costs: only the policy changes"
    return titled(figure, "What dropping mmu_lock every 64 pages changes", said)


@reads("table", _SECONDS)
def seconds_above(table: pd.DataFrame) -> go.Figure:
    """Seconds above each level of degradation, published and by the model, a panel a variant, a row a level.

    - `table`: the columns of `BESIDE`; ``metric`` is ``seconds above 99 %`` and the like, and times are seconds.
    """
    series = {name: name for name in in_order(table["variant"])}
    figure = _beside(table.assign(label=table["metric"].str.removeprefix("seconds ")), "variant", series, seconds_text)
    most = float(table[list(_VALUES)].to_numpy(dtype=float).max())
    figure.update_xaxes(range=[0, (most or 1.0) * 1.06])
    figure.update_xaxes(title="seconds", row=len(series))
    said = "seconds above a level of degradation; 100 %: the guest stands still"
    return titled(figure, "Time during which the guest is degraded", said)


@reads("table", {"series": TEXT, "panel": TEXT, "time_s": number(), "throughput": number(0)})
def throughput_over_time(table: pd.DataFrame) -> go.Figure:
    """Throughput of the guest over time, in percent of undisturbed, a panel a case, a line a series.

    - `table`: columns ``series``, ``panel``, ``time_s``, ``throughput`` (1: undisturbed).
    """
    rows = table.assign(role="simulated")
    panels, series = in_order(rows["panel"]), in_order(rows["series"])
    figure, place = facets(panels, "time since the log was enabled, s", columns=1)
    for i, panel in enumerate(panels):
        mine = rows[rows["panel"] == panel]
        figure.add_hline(y=100, line=LEVEL_LINE, layer="below", exclude_empty_subplots=False, **place(i))
        add_lines(figure, mine, "throughput", series, place(i))
    top = max(104.0, 104 * float(rows["throughput"].max()))
    figure.update_yaxes(title="throughput, % of undisturbed", range=[0, top])
    figure.update_xaxes(rangemode="tozero")
    said = "simulated; all vCPUs together, 100 %: nobody takes a lock from them"
    return titled(figure, "Guest throughput while CLEAR splits", said, entries_per_row=3)


def _beside(rows: pd.DataFrame, by: str, titles: dict[str, str], text: Words, place: Place = np.asarray) -> go.Figure:
    """Panels below each other, each with all the rows' labels; `place` takes a value to where it stands."""
    labels = in_order(rows["label"])
    shown = [key for key in titles if (rows[by] == key).any()]
    panel, gap = 40 * len(labels) + 12, 44
    inner = len(shown) * (panel + gap) - gap
    figure = subplots(
        len(shown), 1, subplot_titles=[titles[key] for key in shown], shared_xaxes=True, vertical_spacing=gap / inner
    )
    for panel_number, key in enumerate(shown, start=1):
        mine = rows[rows[by] == key]
        _draw(figure, mine.assign(y=[labels.index(label) for label in mine["label"]]), panel_number, text, place)
    figure.update_yaxes(row_axis(labels) | {"showgrid": False})
    legend_below(figure)
    top = 112
    bottom = figure.layout.margin.b + 20
    figure.update_layout(height=inner + top + bottom, margin={"t": top, "b": bottom, "r": 172})
    figure.add_annotation(
        text="published → model", xref="paper", yref="paper", x=1.01, y=1, yshift=22, xanchor="left", showarrow=False,
        font={"size": 12, "color": MUTED},
    )  # fmt: skip
    return figure


def _draw(figure: go.Figure, rows: pd.DataFrame, panel: int, text: Words, place: Place) -> None:
    """One panel: the asked range, what was published, the model with its interval, and both in words."""

    def span(part: pd.DataFrame, low: str, high: str, name: str, line: dict[str, object], *, entry: bool) -> None:
        figure.add_scatter(
            x=place(spans(part, low, high)), y=np.repeat(part["y"], 3), mode="lines", line=line, hoverinfo="skip",
            name=name, legendgroup=name, showlegend=entry, row=panel, col=1,
        )  # fmt: skip

    def points(part: pd.DataFrame, column: str, name: str, marker: dict[str, object], words: Sequence[str]) -> None:
        figure.add_scatter(
            x=place(part[column].to_numpy()), y=part["y"].to_numpy(), mode="markers", marker=marker, text=list(words),
            hovertemplate="%{text}<extra>%{fullData.name}</extra>", name=name, legendgroup=name, cliponaxis=False,
            showlegend=True, row=panel, col=1,
        )  # fmt: skip

    bar = {"color": translucent(MUTED, 0.25), "width": 20}
    span(rows, "low_bar", "high_bar", "counted as agreement", bar, entry=True)
    points(rows, "published", "published", _PUBLISHED, [text(value) for value in rows["published"]])
    for role, (name, marker) in _MODEL.items():
        part = rows[rows["role"] == role]
        if len(part):
            ends = part[["predicted", "low", "high"]].to_numpy()
            words = [f"{text(value)} ({text(low)} to {text(high)})" for value, low, high in ends]
            span(part, "low", "high", name, {"color": PALETTE[0], "width": 2.5}, entry=False)
            points(part, "predicted", name, marker, words)
    for y, published, value in rows[["y", "published", "predicted"]].to_numpy():
        figure.add_annotation(
            text=f"{text(published)} → {text(value)}", showarrow=False, xref="paper", x=1.01, xanchor="left", y=y,
            yref=f"y{panel if panel > 1 else ''}", font={"size": 12},
        )  # fmt: skip


def _on_change_axis(percent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a change stands on an axis that is linear near 0 and logarithmic beyond."""
    return np.arcsinh(np.asarray(percent, dtype=float) / _LINEAR)


def _change_axis(values: NDArray[np.float64]) -> dict[str, object]:
    """The axis of `_on_change_axis` that holds all values and 0."""
    low, high = min(-_LINEAR, float(values.min())), max(_LINEAR, float(values.max()))
    sizes = [float(f"{digit}e{power}") for power in range(7) for digit in (1, 3)]
    ticks = [tick for tick in (*(-size for size in sizes[::-1]), 0.0, *sizes) if low <= tick <= high]
    left, right = _on_change_axis(np.array([low, high]))
    return {
        "tickmode": "array",
        "tickvals": _on_change_axis(np.array(ticks)),
        "ticktext": [signed(tick) if tick else "0" for tick in ticks],
        "range": [left - 0.3, right + 0.3],
        "zeroline": True,
        "zerolinecolor": INK,
        "zerolinewidth": 1.2,
    }
