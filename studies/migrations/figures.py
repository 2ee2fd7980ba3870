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

from simlib.figures import style
from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.figures.migration import LEVEL_LINE, add_lines
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

_PUBLISHED = {"symbol": "circle", "size": 9, "color": style.INK}
_MODEL = {
    FITTED: ("model, fitted", {"symbol": "line-ns-open", "size": 19, "color": style.PALETTE[0], "line": {"width": 4}}),
    HELD_OUT: ("model, predicted",
               {"symbol": "diamond-tall-open", "size": 15, "color": style.PALETTE[0], "line": {"width": 2.5}}),
}  # fmt: skip
"""Legend entries and markers of the model, by role of the number."""

_VALUES = ("published", "predicted", "low", "high", "low_bar", "high_bar")
_SECONDS = {"variant": TEXT, "metric": TEXT, "role": word(_MODEL), **dict.fromkeys(_VALUES, number(0))}
_CHANGES = {"emulates": TEXT, **_SECONDS, "metric": word(METRICS), **dict.fromkeys(_VALUES, number())}

_LINEAR = 3.0
"""Change, percent, up to which the axis of changes is approximately linear."""


@reads("table", _CHANGES)
def three_configurations(table: pd.DataFrame) -> go.Figure:
    """Draw changes in percent, published and by the model: one panel per metric, one row per configuration.

    The axis is linear near 0 and logarithmic beyond, so that −1 % and +5200 % can both be read.

    - `table`: ``emulates``; ``variant``, which ends with the configuration's number; ``metric``, of `METRICS`;
      ``role``; percent: ``published``, ``predicted`` with ``low`` and ``high``, and ``low_bar`` to ``high_bar``.
    """
    rows = table.sort_values("variant", kind="stable")
    label = rows["variant"].str.split().str[-1] + ": " + rows["emulates"]
    rows = rows.assign(label=label)
    figure = _comparison_panels(rows, "metric", METRICS, lambda value: f"{style.signed(value)} %", _on_change_axis)
    figure.update_xaxes(_change_axis(rows[list(_VALUES)].to_numpy(dtype=float)))
    title = f"change, % (linear up to about ±{_LINEAR:g} %, logarithmic beyond)"
    figure.update_xaxes(title=title, row=rows["metric"].nunique())
    subtitle = "published, and simulated with one set of costs: only the policy changes"
    return style.titled(figure, "Effect of dropping mmu_lock every 64 pages", subtitle)


@reads("table", _SECONDS)
def seconds_above(table: pd.DataFrame) -> go.Figure:
    """Draw the seconds above each level of degradation, published and by the model: one panel per variant.

    - `table`: as for `three_configurations` without ``emulates``; ``metric`` is ``seconds above 99 %`` or similar, s.
    """
    series = {name: name for name in in_order(table["variant"])}
    rows = table.assign(label=table["metric"].str.removeprefix("seconds "))
    figure = _comparison_panels(rows, "variant", series, seconds_text)
    longest = float(table[list(_VALUES)].to_numpy(dtype=float).max())
    figure.update_xaxes(range=[0, (longest or 1.0) * 1.06])
    figure.update_xaxes(title="seconds", row=len(series))
    subtitle = "seconds above a level of degradation; 100 %: the guest makes no progress"
    return style.titled(figure, "Time during which the guest is degraded", subtitle)


@reads("table", {"series": TEXT, "panel": TEXT, "time_s": number(), "throughput": number(0)})
def throughput_over_time(table: pd.DataFrame) -> go.Figure:
    """Draw guest throughput (1: undisturbed) over time, in percent: one panel per case, one line per series."""
    rows = table.assign(role="simulated")
    panels, series = in_order(rows["panel"]), in_order(rows["series"])
    figure, place = style.facets(panels, "time since the log was enabled, s", columns=1)
    for i, panel in enumerate(panels):
        figure.add_hline(y=100, line=LEVEL_LINE, layer="below", exclude_empty_subplots=False, **place(i))
        add_lines(figure, rows[rows["panel"] == panel], "throughput", series, place(i))
    top = max(104.0, 104 * float(rows["throughput"].max()))
    figure.update_yaxes(title="throughput, % of undisturbed", range=[0, top])
    figure.update_xaxes(rangemode="tozero")
    subtitle = "simulated; sum over all vCPUs; 100 %: the undisturbed guest"
    return style.titled(figure, "Guest throughput while CLEAR splits huge pages", subtitle, entries_per_row=3)


def _comparison_panels(
    rows: pd.DataFrame, by: str, titles: dict[str, str], text: Formatter, transform: Transform = np.asarray
) -> go.Figure:
    """Draw one panel below the other, each with the labels of all rows; `transform` maps values to axis coordinates."""
    labels = in_order(rows["label"])
    keys = [key for key in titles if (rows[by] == key).any()]
    gap = 44
    inner = len(keys) * (40 * len(labels) + 12 + gap) - gap
    panels = [titles[key] for key in keys]
    figure = style.subplots(len(keys), 1, subplot_titles=panels, shared_xaxes=True, vertical_spacing=gap / inner)
    rows = rows.assign(y=rows["label"].map(labels.index))
    for number_of_panel, key in enumerate(keys, start=1):
        _draw(figure, rows[rows[by] == key], number_of_panel, text, transform)
    figure.update_yaxes(style.row_axis(labels) | {"showgrid": False})
    style.legend_below(figure)
    top, bottom = 112, figure.layout.margin.b + 20
    figure.update_layout(height=inner + top + bottom, margin={"t": top, "b": bottom, "r": 172})
    figure.add_annotation(
        text="published → model", xref="paper", yref="paper", x=1.01, y=1, yshift=22, xanchor="left", showarrow=False,
        font={"size": 12, "color": style.MUTED},
    )  # fmt: skip
    return figure


def _draw(figure: go.Figure, rows: pd.DataFrame, panel: int, text: Formatter, transform: Transform) -> None:
    """Draw one panel: range of agreement, published number, model with its interval, and both numbers as text."""

    def span(part: pd.DataFrame, low: str, high: str, name: str, line: dict[str, object], *, entry: bool) -> None:
        figure.add_scatter(
            x=transform(style.spans(part, low, high)), y=np.repeat(part["y"], 3), mode="lines", line=line,
            hoverinfo="skip", name=name, legendgroup=name, showlegend=entry, row=panel, col=1,
        )  # fmt: skip

    def points(part: pd.DataFrame, column: str, name: str, marker: dict[str, object], labels: Sequence[str]) -> None:
        figure.add_scatter(
            x=transform(part[column].to_numpy()), y=part["y"].to_numpy(), mode="markers", marker=marker,
            text=list(labels), hovertemplate="%{text}<extra>%{fullData.name}</extra>", name=name,
            legendgroup=name, cliponaxis=False, showlegend=True, row=panel, col=1,
        )  # fmt: skip

    bar = {"color": style.translucent(style.MUTED, 0.25), "width": 20}
    span(rows, "low_bar", "high_bar", "counted as agreement", bar, entry=True)
    points(rows, "published", "published", _PUBLISHED, [text(value) for value in rows["published"]])
    for role, (name, marker) in _MODEL.items():
        part = rows[rows["role"] == role]
        if len(part):
            ends = part[["predicted", "low", "high"]].to_numpy()
            labels = [f"{text(value)} ({text(low)} to {text(high)})" for value, low, high in ends]
            span(part, "low", "high", name, {"color": style.PALETTE[0], "width": 2.5}, entry=False)
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
    labels = {"tickvals": _on_change_axis(np.array(ticks)), "ticktext": [style.signed(tick) for tick in ticks]}
    zero = {"zeroline": True, "zerolinecolor": style.INK, "zerolinewidth": 1.2}
    return {"tickmode": "array", **labels, "range": [left - 0.3, right + 0.3], **zero}
