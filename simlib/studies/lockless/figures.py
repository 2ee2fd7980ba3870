# SPDX-License-Identifier: BSD-3-Clause
"""Figures of getting the dirty log with the lock and without: kernbench tested, two means read, ways predicted."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import in_order, require, require_numbers
from simlib.figures.style import (
    INK,
    MUTED,
    PALETTE,
    facet_titles,
    facets,
    legend_below,
    log_axis,
    time_axis,
    titled,
    translucent,
)

CHANGE_COLUMNS = ("comparison", "change_percent", "low_percent", "high_percent", "shown_percent")
"""Columns of the table that `regression_shown` reads."""

RATIO_COLUMNS = ("guest", "ratio", "ratio_lab", "dirty_ratio")
"""Columns of the table that `get_ratios` reads."""

GET_COLUMNS = ("axis", "value", "way", "metric", "estimate", "low", "high")
"""Columns of the table that `get_ways` reads."""


def regression_shown(
    table: pd.DataFrame, title: str = "What twelve runs of kernbench say of a regression"
) -> go.Figure:
    """Change of the time with its interval, and the slowdown that the runs could have shown, a row a comparison.

    Raises `InputError` if a column is missing or a value is no number.

    Parameters
    ----------
    table : DataFrame
        The columns `CHANGE_COLUMNS`, percent.

    Examples
    --------
    >>> row = dict(zip(CHANGE_COLUMNS, ("EPT on", -0.9, -3.6, 1.7, 3.7)))
    >>> figure = regression_shown(pd.DataFrame([row]))
    >>> [trace.name for trace in figure.data]
    ['change, with 90 % interval', 'smallest slowdown shown with 80 % power']
    """
    rows = require(table, CHANGE_COLUMNS, "table")
    require_numbers(rows, CHANGE_COLUMNS[1:], "table")
    figure = go.Figure()
    figure.add_scatter(
        x=rows["change_percent"], y=rows["comparison"], mode="markers", name="change, with 90 % interval",
        marker={"size": 10, "color": INK},
        error_x={"type": "data", "symmetric": False, "array": rows["high_percent"] - rows["change_percent"],
                 "arrayminus": rows["change_percent"] - rows["low_percent"], "thickness": 2.5, "width": 6},
        customdata=rows[["low_percent", "high_percent"]],
        hovertemplate="%{y}: %{x:.2f} % (%{customdata[0]:.2f} to %{customdata[1]:.2f})<extra>measured</extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=rows["shown_percent"], y=rows["comparison"], mode="markers",
        name="smallest slowdown shown with 80 % power",
        marker={"size": 16, "symbol": "line-ns-open", "color": PALETTE[1], "line": {"width": 4}},
        hovertemplate="%{y}: %{x:.2f} %<extra>shown with 80 % power</extra>",
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": MUTED, "width": 1})
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="change of the time by the series, %")
    figure.update_layout(height=380, margin_l=120)
    legend_below(figure, 2)
    return titled(figure, title, "measured times; after over before")


def get_ratios(table: pd.DataFrame, published: float, title: str = "GET after seed 002 over before") -> go.Figure:
    """Simulated ratios of GET's time over that of the pages it found, a colour a guest, beside the published ratio.

    Raises `InputError` if a column is missing or a ratio is not a positive number.

    Parameters
    ----------
    table : DataFrame
        The columns `RATIO_COLUMNS`, a row a setting.
    published : float
        The published ratio.

    Examples
    --------
    >>> row = dict(zip(RATIO_COLUMNS, ("EPT off", 1.05, 0.36, 1.06)))
    >>> [trace.name for trace in get_ratios(pd.DataFrame([row]), 0.53).data]
    ['EPT off: a page as dear', "EPT off: the lab's ratio"]
    """
    rows = require(table, RATIO_COLUMNS, "table")
    require_numbers(rows, RATIO_COLUMNS[1:], "table", least=0)
    figure = go.Figure()
    kinds = (("ratio", "a page as dear", "circle"), ("ratio_lab", "the lab's ratio", "diamond-open"))
    for colour, guest in zip(PALETTE, in_order(rows["guest"]), strict=False):
        mine = rows[rows["guest"] == guest]
        for column, name, symbol in kinds:
            figure.add_scatter(
                x=mine["dirty_ratio"], y=mine[column], mode="markers", name=f"{guest}: {name}",
                marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
                hovertemplate="GET %{y:.3f}, pages found %{x:.3f}<extra>%{fullData.name}, simulated</extra>",
            )  # fmt: skip
    figure.add_hline(y=published, line={"color": INK, "width": 2, "dash": "dot"})
    figure.update_xaxes(log_axis([*rows["dirty_ratio"]], "pages that a GET found: after over before"))
    figure.update_yaxes(log_axis([*rows["ratio"], *rows["ratio_lab"], published], "time of a GET: after over before"))
    legend_below(figure, len(figure.data), rows_of=3)
    return titled(figure, title, f"points: simulated, a point a setting; dotted: published, {published:.3f}")


_METRICS = {"get_time": "time of a GET", "longest_stall": "longest stall", "guest_throughput": "guest throughput"}
_AXES = {"vcpus": "vCPUs", "memory": "memory", "interval": "work between two accesses"}


def get_ways(table: pd.DataFrame, title: str = "Ways of GET: predicted") -> go.Figure:
    """Predicted metrics by way, a row of panels a metric, a column what is varied.

    Raises `InputError` if a column is missing or a value is no number.

    Parameters
    ----------
    table : DataFrame
        The columns `GET_COLUMNS`.

    Examples
    --------
    >>> row = dict(zip(GET_COLUMNS, ("vcpus", "16", "one hold", "get_time", 2e-3, 1e-3, 3e-3)))
    >>> [trace.name for trace in get_ways(pd.DataFrame([row])).data if trace.showlegend]
    ['one hold']
    """
    rows = require(table, GET_COLUMNS, "table")
    require_numbers(rows, ("estimate", "low", "high"), "table", least=0)
    metrics = [name for name in _METRICS if name in set(rows["metric"])]
    axes, ways = in_order(rows["axis"]), in_order(rows["way"])
    titles = [f"{_METRICS[metric]}, by {_AXES.get(axis, axis)}" for metric in metrics for axis in axes]
    figure, place = facets(titles, "", columns=len(axes))
    for i, (metric, axis) in enumerate((m, a) for m in metrics for a in axes):
        part, at = rows[(rows["metric"] == metric) & (rows["axis"] == axis)], place(i)
        for colour, way in zip(PALETTE, ways, strict=False):
            mine = part[part["way"] == way]
            band = {"x": [*mine["value"], *mine["value"][::-1]], "y": [*mine["high"], *mine["low"][::-1]]}
            figure.add_scatter(
                **band, fill="toself", mode="lines", line={"width": 0}, fillcolor=translucent(colour, 0.12),
                hoverinfo="skip", showlegend=False, legendgroup=way, **at,
            )  # fmt: skip
            figure.add_scatter(
                x=mine["value"], y=mine["estimate"], mode="lines+markers", name=way, legendgroup=way,
                line={"color": colour, "width": 2, "dash": "dash"}, marker={"size": 6}, showlegend=i == 0,
                customdata=mine[["low", "high"]],
                hovertemplate="%{x}: %{y:.3g} (%{customdata[0]:.3g} to %{customdata[1]:.3g})"
                "<extra>%{fullData.name}, predicted</extra>", **at,
            )  # fmt: skip
        if metric != "guest_throughput":
            every = rows.loc[rows["metric"] == metric, ["low", "high"]].to_numpy().ravel()
            scale = time_axis([*every], _METRICS[metric]) | ({"title": None} if i % len(axes) else {})
        else:
            scale = {"range": [0, 1.05], "title": "" if i % len(axes) else "share of undisturbed"}
        figure.update_yaxes(scale, **at)
        figure.update_xaxes(type="category", **at)
    facet_titles(figure)
    legend_below(figure, len(ways), rows_of=3)
    return titled(figure, title, "dashed: predicted, with intervals; nothing here was measured")
