# SPDX-License-Identifier: BSD-3-Clause
"""Figures of GET_DIRTY_LOG with and without the lock: kernbench tests, simulated ratios, and predictions."""

from __future__ import annotations

from itertools import product

import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, in_order, number, reads, word

_METRICS = {"get_time": "time of a GET", "longest_stall": "longest stall", "guest_throughput": "guest throughput"}
_AXES = {"vcpus": "vCPUs", "memory": "memory", "interval": "work between two accesses"}

CHANGE_COLUMNS = {"comparison": TEXT, "change_percent": number(), "low_percent": number(), "high_percent": number(),
                  "shown_percent": number()}  # fmt: skip
RATIO_COLUMNS = {"guest": TEXT, "ratio": number(0), "ratio_lab": number(0), "dirty_ratio": number(0)}
GET_COLUMNS = {"axis": TEXT, "value": TEXT, "way": TEXT, "metric": word(_METRICS), "estimate": number(0),
               "low": number(0), "high": number(0)}  # fmt: skip


@reads("table", CHANGE_COLUMNS)
def detectable_regression(rows: pd.DataFrame) -> go.Figure:
    """Change in the time with its interval, and the smallest detectable slowdown, one row for each comparison."""
    bars = style.error_bars(rows["change_percent"], rows["low_percent"], rows["high_percent"])
    figure = go.Figure()
    figure.add_scatter(
        x=rows["change_percent"], y=rows["comparison"], mode="markers", name="change, with 90 % interval",
        marker={"size": 10, "color": style.INK}, error_x=bars | {"thickness": 2.5, "width": 6},
        customdata=rows[["low_percent", "high_percent"]],
        hovertemplate="%{y}: %{x:.2f} % (%{customdata[0]:.2f} to %{customdata[1]:.2f})<extra>measured</extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=rows["shown_percent"], y=rows["comparison"], mode="markers",
        name="smallest slowdown detectable with 80 % power",
        marker={"size": 16, "symbol": "line-ns-open", "color": style.PALETTE[1], "line": {"width": 4}},
        hovertemplate="%{y}: %{x:.2f} %<extra>detectable with 80 % power</extra>",
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": style.MUTED, "width": 1})
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="change in run time by the series, %")
    figure.update_layout(height=380, margin_l=120)
    subtitle = "measured times; after relative to before"
    return style.titled(figure, "Kernbench: change in run time, and detectable slowdown", subtitle, entries_per_row=5)


@reads("table", RATIO_COLUMNS)
def get_ratios(rows: pd.DataFrame, published: float) -> go.Figure:
    """Simulated ratios of GET's time against the ratio of dirty pages, by guest, and the published ratio."""
    figure = go.Figure()
    kinds = (("ratio", "same cost per page", "circle"), ("ratio_lab", "the lab's ratio", "diamond-open"))
    guests = zip(style.PALETTE, in_order(rows["guest"]), strict=False)
    for (colour, guest), (column, name, symbol) in product(guests, kinds):
        points = rows[rows["guest"] == guest]
        figure.add_scatter(
            x=points["dirty_ratio"], y=points[column], mode="markers", name=f"{guest}: {name}",
            marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
            hovertemplate="GET %{y:.3f}, dirty pages %{x:.3f}<extra>%{fullData.name}, simulated</extra>",
        )  # fmt: skip
    figure.add_hline(y=published, line={"color": style.INK, "width": 2, "dash": "dot"})
    figure.update_xaxes(style.log_axis(rows["dirty_ratio"], "dirty pages of a GET: ratio of after to before"))
    ratios = [*rows["ratio"], *rows["ratio_lab"], published]
    figure.update_yaxes(style.log_axis(ratios, "time of a GET: ratio of after to before"))
    subtitle = f"one point per simulated setting; dotted: published, {published:.3f}"
    return style.titled(figure, "Time of GET: ratio of after to before the 2013 series", subtitle, entries_per_row=3)


@reads("table", GET_COLUMNS)
def get_ways(rows: pd.DataFrame) -> go.Figure:
    """Predicted metrics for each way of GET; rows of panels: metrics; columns: the varied property of the guest."""
    metrics = [name for name in _METRICS if name in set(rows["metric"])]
    axes, ways = in_order(rows["axis"]), in_order(rows["way"])
    panels = list(product(metrics, axes))
    titles = [f"{_METRICS[metric]}, by {_AXES.get(axis, axis)}" for metric, axis in panels]
    figure, place = style.facets(titles, "", columns=len(axes))
    for i, (metric, axis) in enumerate(panels):
        of_metric, at = rows[rows["metric"] == metric], place(i)
        for colour, way in zip(style.PALETTE, ways, strict=False):
            curve = of_metric[(of_metric["axis"] == axis) & (of_metric["way"] == way)]
            ends = style.band(curve["value"], curve["low"], curve["high"], style.translucent(colour, 0.12))
            figure.add_scatter(**ends, legendgroup=way, **at)
            figure.add_scatter(
                x=curve["value"], y=curve["estimate"], mode="lines+markers", name=way, legendgroup=way,
                line={"color": colour, "width": 2, "dash": "dash"}, marker={"size": 6}, showlegend=True,
                customdata=curve[["low", "high"]],
                hovertemplate="%{x}: %{y:.3g} (%{customdata[0]:.3g} to %{customdata[1]:.3g})"
                "<extra>%{fullData.name}, predicted</extra>", **at,
            )  # fmt: skip
        if metric == "guest_throughput":
            scale = {"range": [0, 1.05], "title": "share of undisturbed throughput"}
        else:
            scale = style.time_axis([*of_metric["low"], *of_metric["high"]], _METRICS[metric])
        figure.update_yaxes(scale | ({"title": None} if i % len(axes) else {}), **at)
        figure.update_xaxes(type="category", **at)
    title = "Predicted: GET in one hold, in batches and without the lock"
    return style.titled(figure, title, "dashed: predicted, with intervals; no measurements", entries_per_row=3)
