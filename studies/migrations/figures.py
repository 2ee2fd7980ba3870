# SPDX-License-Identifier: BSD-3-Clause
"""Figures of published migrations: published numbers with those of the model, and guest throughput over time.

A black circle is a published number. The model is blue, with its interval: a tick if the number was fitted, a hollow
diamond if it was predicted. The grey bar is the range that counts as agreement.
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

Formatter = Callable[[float], str]
Transform = Callable[[NDArray[np.float64]], NDArray[np.float64]]

METRICS = {
    "precopy_duration": "pre-copy duration",
    "dirty_left": "dirty memory left at the switchover",
    "clear_cpu_time": "CPU time of CLEAR",
}
"""Metrics of `three_configurations`, and the titles of their panels."""

METRIC_NAMES = {**METRICS, "precopy_duration": "pre-copy", "dirty_left": "dirty memory left"}
"""Short names of the metrics of the April 2024 mail, for tables and sentences."""

_PUBLISHED = {"symbol": "circle", "size": 9, "color": INK}
_MODEL = {
    FITTED: ("model, fitted", {"symbol": "line-ns-open", "size": 19, "color": PALETTE[0], "line": {"width": 4}}),
    HELD_OUT: ("model, predicted",
               {"symbol": "diamond-tall-open", "size": 15, "color": PALETTE[0], "line": {"width": 2.5}}),
}  # fmt: skip
"""Legend entries and markers of the model, by role of the number."""

_VALUES = ("published", "predicted", "low", "high", "low_bar", "high_bar")
TEXT_COLUMNS = {"variant": TEXT, "metric": TEXT, "role": word(_MODEL)}
"""Text columns of the tables that `three_configurations` and `seconds_above` read. The number columns are
``published``, ``predicted`` with its interval ``low`` to ``high``, and ``low_bar`` to ``high_bar``, the range that
counts as agreement."""

_CHANGES = {"emulates": TEXT, **TEXT_COLUMNS, "metric": word(METRICS), **dict.fromkeys(_VALUES, number())}
_SECONDS = {**TEXT_COLUMNS, **dict.fromkeys(_VALUES, number(0))}
# These have names because Sphinx cannot read a decorator in which a dictionary is unpacked.

_LINEAR = 3.0
"""Change, percent, up to which the axis of changes is about linear."""


@reads("table", _CHANGES)
def three_configurations(table: pd.DataFrame) -> go.Figure:
    """Draw changes in percent, published and by the model: one panel per metric, one row per configuration.

    The axis is linear near 0 and logarithmic beyond, so that −1 % and +5200 % can both be read.

    - `table`: the columns of `TEXT_COLUMNS`, the number columns and ``emulates``; ``variant`` ends with the
      configuration's number, ``metric`` is one of `METRICS`; changes in percent.
    """
    rows = table.sort_values("variant", kind="stable")
    label = rows["variant"].str.split().str[-1] + ": " + rows["emulates"]
    figure = _comparison_panels(
        rows.assign(label=label), "metric", METRICS, lambda value: f"{signed(value)} %", _on_change_axis
    )
    figure.update_xaxes(_change_axis(rows[list(_VALUES)].to_numpy(dtype=float)))
    figure.update_xaxes(
        title=f"change, % (linear up to about ±{_LINEAR:g} %, logarithmic beyond)", row=rows["metric"].nunique()
    )
    subtitle = "published, and simulated with one set of costs: only the policy changes"
    return titled(figure, "Effect of dropping mmu_lock every 64 pages", subtitle)


@reads("table", _SECONDS)
def seconds_above(table: pd.DataFrame) -> go.Figure:
    """Draw the seconds above each level of degradation, published and by the model: one panel per variant.

    - `table`: the columns of `TEXT_COLUMNS` and the number columns; ``metric`` is ``seconds above 99 %`` or similar,
      one row per level; times are in seconds.
    """
    series = {name: name for name in in_order(table["variant"])}
    rows = table.assign(label=table["metric"].str.removeprefix("seconds "))
    figure = _comparison_panels(rows, "variant", series, seconds_text)
    longest = float(table[list(_VALUES)].to_numpy(dtype=float).max())
    figure.update_xaxes(range=[0, (longest or 1.0) * 1.06])
    figure.update_xaxes(title="seconds", row=len(series))
    subtitle = "seconds above a level of degradation; 100 %: the guest makes no progress"
    return titled(figure, "Time during which the guest is degraded", subtitle)


@reads("table", {"series": TEXT, "panel": TEXT, "time_s": number(), "throughput": number(0)})
def throughput_over_time(table: pd.DataFrame) -> go.Figure:
    """Draw guest throughput over time, in percent of undisturbed: one panel per case, one line per series.

    - `table`: columns ``series``, ``panel``, ``time_s``, ``throughput`` (1: undisturbed).
    """
    rows = table.assign(role="simulated")
    panels, series = in_order(rows["panel"]), in_order(rows["series"])
    figure, place = facets(panels, "time since the log was enabled, s", columns=1)
    for i, panel in enumerate(panels):
        panel_rows = rows[rows["panel"] == panel]
        figure.add_hline(y=100, line=LEVEL_LINE, layer="below", exclude_empty_subplots=False, **place(i))
        add_lines(figure, panel_rows, "throughput", series, place(i))
    top = max(104.0, 104 * float(rows["throughput"].max()))
    figure.update_yaxes(title="throughput, % of undisturbed", range=[0, top])
    figure.update_xaxes(rangemode="tozero")
    subtitle = "simulated; all vCPUs together; 100 %: the undisturbed guest"
    return titled(figure, "Guest throughput while CLEAR splits huge pages", subtitle, entries_per_row=3)


def _comparison_panels(
    rows: pd.DataFrame, by: str, titles: dict[str, str], text: Formatter, transform: Transform = np.asarray
) -> go.Figure:
    """Draw one panel below the other, each with the labels of all rows; `transform` maps values to axis coordinates."""
    labels = in_order(rows["label"])
    keys = [key for key in titles if (rows[by] == key).any()]
    panel, gap = 40 * len(labels) + 12, 44
    inner = len(keys) * (panel + gap) - gap
    figure = subplots(
        len(keys), 1, subplot_titles=[titles[key] for key in keys], shared_xaxes=True, vertical_spacing=gap / inner
    )
    for panel_number, key in enumerate(keys, start=1):
        panel_rows = rows[rows[by] == key]
        heights = [labels.index(label) for label in panel_rows["label"]]
        _draw(figure, panel_rows.assign(y=heights), panel_number, text, transform)
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


def _draw(figure: go.Figure, rows: pd.DataFrame, panel: int, text: Formatter, transform: Transform) -> None:
    """Draw one panel: range of agreement, published number, model with its interval, and both numbers as text."""

    def span(part: pd.DataFrame, low: str, high: str, name: str, line: dict[str, object], *, entry: bool) -> None:
        figure.add_scatter(
            x=transform(spans(part, low, high)), y=np.repeat(part["y"], 3), mode="lines", line=line, hoverinfo="skip",
            name=name, legendgroup=name, showlegend=entry, row=panel, col=1,
        )  # fmt: skip

    def points(part: pd.DataFrame, column: str, name: str, marker: dict[str, object], labels: Sequence[str]) -> None:
        figure.add_scatter(
            x=transform(part[column].to_numpy()), y=part["y"].to_numpy(), mode="markers", marker=marker,
            text=list(labels), hovertemplate="%{text}<extra>%{fullData.name}</extra>", name=name,
            legendgroup=name, cliponaxis=False, showlegend=True, row=panel, col=1,
        )  # fmt: skip

    bar = {"color": translucent(MUTED, 0.25), "width": 20}
    span(rows, "low_bar", "high_bar", "counted as agreement", bar, entry=True)
    points(rows, "published", "published", _PUBLISHED, [text(value) for value in rows["published"]])
    for role, (name, marker) in _MODEL.items():
        part = rows[rows["role"] == role]
        if len(part):
            ends = part[["predicted", "low", "high"]].to_numpy()
            labels = [f"{text(value)} ({text(low)} to {text(high)})" for value, low, high in ends]
            span(part, "low", "high", name, {"color": PALETTE[0], "width": 2.5}, entry=False)
            points(part, "predicted", name, marker, labels)
    for y, published, model in rows[["y", "published", "predicted"]].to_numpy():
        figure.add_annotation(
            text=f"{text(published)} → {text(model)}", showarrow=False, xref="paper", x=1.01, xanchor="left", y=y,
            yref=f"y{panel if panel > 1 else ''}", font={"size": 12},
        )  # fmt: skip


def _on_change_axis(percent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map changes to coordinates of an axis that is linear near 0 and logarithmic beyond."""
    return np.arcsinh(np.asarray(percent, dtype=float) / _LINEAR)


def _change_axis(values: NDArray[np.float64]) -> dict[str, object]:
    """Return the axis of `_on_change_axis` with a range that contains 0 and all values."""
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
