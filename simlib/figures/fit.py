# SPDX-License-Identifier: BSD-3-Clause
"""Quality of a calibration: errors, costs with intervals, correlations, sensitivities."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib._lib.errors import InputError
from simlib.figures import style
from simlib.figures.frame import TEXT, checked, in_order, number, reads, word

ROLE_LOOKS: dict[str, dict[str, str]] = {"fitted": {"symbol": "circle"}, "held out": {"symbol": "diamond-open"}}
"""Markers of rows that the calibration used, and of held-out rows: as in the figures of curves."""

WARNING = "#D55E00"
"""Colour of the mark of a value at a bound."""

UNITS = {"ns": "cost, nanoseconds", "dimensionless": "cost, dimensionless"}
"""Units of a cost, and the title of their axis."""


_RESIDUAL_COLUMNS = {"variant": TEXT, "vcpus": number(1), "metric": TEXT, "role": word([*ROLE_LOOKS, "shown only"])}
_RESIDUAL_COLUMNS |= {"error_percent": number(gaps=True), "deviation_percent": number(0, gaps=True)}


@reads("residuals", _RESIDUAL_COLUMNS)
def residuals(rows: pd.DataFrame, title: str = "Residuals: model minus measurement") -> go.Figure:
    """Error of the model for each row against the vCPU count, one panel per metric; a band of ± one standard deviation.

    - `rows`: columns ``variant``, ``vcpus``, ``metric``, ``role`` (``fitted``, ``held out``, ``shown only``),
      ``error_percent`` (model over measured, minus one; a row without this value is not drawn), ``deviation_percent``.

    >>> rows = pd.DataFrame({"variant": "a", "vcpus": [1, 16], "metric": "contentions", "role": ["fitted", "held out"],
    ...                      "error_percent": [1.5, -3.0], "deviation_percent": 2.0})
    >>> [trace.y.tolist() for trace in residuals(rows).data if trace.name == "a"]
    [[1.5], [-3.0]]
    """
    drawn = rows[np.isfinite(rows["error_percent"]) & rows["role"].isin(ROLE_LOOKS)]
    rows = checked(drawn, _RESIDUAL_COLUMNS, "residuals")
    metrics, colours = in_order(rows["metric"]), style.variant_colours(rows["variant"])
    figure, place = style.facets(metrics, columns=2, shared_y=False)
    axis = style.vcpu_axis(rows["vcpus"])
    left, right = (10**end for end in axis["range"])
    for i, metric in enumerate(metrics):
        metric_rows = rows[rows["metric"] == metric]
        reach = float(metric_rows["deviation_percent"].median())
        figure.add_scatter(
            x=[left, right, right, left], y=[-reach, -reach, reach, reach], fill="toself", mode="none",
            fillcolor=style.translucent(style.MUTED, 0.14), hoverinfo="skip", showlegend=False, **place(i),
        )  # fmt: skip
        for pair, part in metric_rows.groupby(["variant", "role"], sort=False):
            variant, role = map(str, pair)
            figure.add_scatter(
                x=part["vcpus"], y=part["error_percent"], mode="markers",
                marker={"color": colours[variant], "size": 9, **ROLE_LOOKS[role]}, cliponaxis=False,
                name=variant or "rows", legendgroup=variant, showlegend=True,
                hovertemplate=f"%{{x}} vCPUs: %{{y:+.2f}} %<extra>{variant} {role}</extra>", **place(i),
            )  # fmt: skip
    figure.update_xaxes(axis)
    figure.update_yaxes(zeroline=True, zerolinecolor=style.INK, zerolinewidth=1.5)
    figure.update_yaxes(title="model − measured, %", col=1)
    for role, look in ROLE_LOOKS.items():
        if (rows["role"] == role).any():
            style.key_entry(figure, role, {"mode": "markers", "marker": {"size": 9, **look}}, style.MUTED)
    band = {"mode": "markers", "marker": {"size": 14, "symbol": "square", "opacity": 0.3}}
    style.key_entry(figure, "± one standard deviation of a row", band, style.MUTED)
    return style.titled(figure, title, "above 0: the model is slower, or counts more, than measured", entries_per_row=3)


_END = number(0, gaps=True)
_COST_COLUMNS = {"name": TEXT, "value": number(0), "low": _END, "high": _END, "unit": word(UNITS)}
_COST_COLUMNS |= {"fit": TEXT, "bound": TEXT}


@reads("costs", _COST_COLUMNS, bound="")
def cost_intervals(costs: pd.DataFrame, title: str = "Calibrated costs and their intervals") -> go.Figure:
    """Every cost as a point with its interval, on a logarithmic axis, one panel per unit, one colour per fit.

    - `costs`: columns ``name``, ``value``, ``low``, ``high``, ``unit`` (``ns`` or ``dimensionless``), ``fit`` (the
      calibration that gave the cost). A value or an end that is 0 is drawn at the edge of the axis. The optional column
      ``bound`` has a string if a value or an end of a cost is at a physical bound; such costs are marked.

    >>> costs = pd.DataFrame({"name": ["hold"], "value": [400.0], "low": [380.0], "high": [430.0],
    ...                       "unit": ["ns"], "fit": ["arm64"]})
    >>> interval, point = cost_intervals(costs).data
    >>> interval.x, point.x
    (array([380., 430.,  nan]), array([400.]))
    """
    names = {unit: in_order(costs.loc[costs["unit"] == unit, "name"]) for unit in UNITS}
    names = {unit: rows for unit, rows in names.items() if rows}
    height = max(style.HEIGHT, 34 * sum(map(len, names.values())) + 90 * len(names) + 170)
    heights = [len(rows) + 0.6 for rows in names.values()]
    figure = style.subplots(len(names), 1, row_heights=heights, vertical_spacing=80 / (height - 190))
    colours = dict(zip(in_order(costs["fit"]), style.PALETTE * len(costs), strict=False))
    for row, (unit, rows) in enumerate(names.items(), start=1):
        _draw_costs(figure, costs[costs["unit"] == unit], unit, rows, colours, {"row": row, "col": 1})
    figure.update_layout(height=height)
    subtitle = "calibrated; a point or interval at the left edge reaches 0"
    return style.titled(figure, title, subtitle, entries_per_row=3)


def _draw_costs(
    figure: go.Figure, costs: pd.DataFrame, unit: str, names: list[str], colours: dict[str, str], at: dict[str, int]
) -> None:
    """Draw one panel: for each fit the intervals, then the points, then rings around values at a bound."""
    values = costs[["value", "low", "high"]]
    axis = style.log_axis(values.to_numpy().ravel(), UNITS[unit], style.plain_number, margin=1.6)
    left, right = (10**end for end in axis["range"])
    drawn = costs.assign(
        **values.clip(left, right),
        y=_lines(costs["name"], names),
        symbol=np.where(costs["value"] <= 0, "triangle-left", "circle"),
        text=[_cost_text(row, " ns" if unit == "ns" else "") for row in costs.to_dict("records")],
    )
    for fit, colour in colours.items():
        part = drawn[drawn["fit"] == fit]
        if part.empty:
            continue
        look = {"name": shorten(fit, 90, placeholder=" …"), "legendgroup": fit, **at}
        figure.add_scatter(
            x=style.spans(part, "low", "high"), y=np.repeat(part["y"], 3), mode="lines+markers", hoverinfo="skip",
            showlegend=False,
            line={"color": colour, "width": 2}, marker={"symbol": "line-ns-open", "size": 9}, **look,
        )  # fmt: skip
        points = {"marker": {"color": colour, "size": 10, "symbol": part["symbol"].tolist()}, "cliponaxis": False}
        points |= {"mode": "markers", "text": part["text"], "hovertemplate": f"%{{text}}<extra>{fit}</extra>"}
        figure.add_scatter(x=part["value"], y=part["y"], showlegend=True, **points, **look)
        bounded = part[part["bound"] != ""]
        if len(bounded):
            figure.add_scatter(
                x=bounded["value"], y=bounded["y"], mode="markers", hoverinfo="skip", showlegend=True,
                marker={"symbol": "diamond-open", "size": 17, "color": WARNING, "line": {"width": 2}},
                name="value or interval end at a physical bound", legendgroup="bound", **at,
            )  # fmt: skip
    figure.update_xaxes(axis, **at)
    figure.update_yaxes(style.row_axis(names), **at)


@reads("matrix", number(gaps=True))
def correlation(matrix: pd.DataFrame, title: str = "Correlation of the calibrated costs") -> go.Figure:
    """Correlation matrix as a heat map with its numbers.

    Raises `InputError` if the matrix is empty, its rows and columns differ, or a value is outside -1 to 1.

    - `matrix`: square, the same names as index and columns, values from -1 to 1 (NaN where not defined).

    >>> names = ["hold", "line"]
    >>> correlation(pd.DataFrame([[1, -0.9], [-0.9, 1]], names, names)).data[0].text
    array([['1.00', '−0.90'],
           ['−0.90', '1.00']], dtype=object)
    """
    names = [str(name) for name in matrix.columns]
    if [str(name) for name in matrix.index] != names:
        raise InputError("matrix", f"rows {', '.join(map(str, matrix.index))}", f"must be {', '.join(names)}")
    values = matrix.to_numpy()
    if (np.abs(values) > 1 + 1e-9).any():
        raise InputError("matrix", float(values[np.abs(values) > 1 + 1e-9][0]), "must be from -1 to 1")
    text = np.array([["" if np.isnan(v) else f"{v:.2f}".replace("-", "−") for v in row] for row in values], object)
    figure = go.Figure()
    bar = {"title": {"text": "correlation"}, "tickvals": [-1, -0.5, 0, 0.5, 1], "thickness": 14}
    scale = {"zmin": -1, "zmax": 1, "colorscale": "RdBu", "colorbar": bar, "xgap": 1, "ygap": 1}
    words = {"text": text, "texttemplate": "%{text}", "textfont": {"size": 12}}
    hover = "%{y} and %{x}: %{z:.3f}<extra></extra>"
    figure.add_heatmap(x=names, y=names, z=values, hovertemplate=hover, **scale, **words)
    figure.update_xaxes(showgrid=False, tickangle=-35 if len(names) > 5 else 0, type="category")
    figure.update_yaxes(showgrid=False, autorange="reversed", type="category")
    figure.update_layout(height=max(style.HEIGHT, 40 * len(names) + 220))
    return style.titled(figure, title, "near ±1: the data constrain only a combination of the two costs")


_SENSITIVITY_COLUMNS = {"name": TEXT, "first": number(), "first_confidence": _END}
_SENSITIVITY_COLUMNS |= {"total": number(), "total_confidence": _END}


@reads("sensitivity", _SENSITIVITY_COLUMNS)
def sensitivity(frame: pd.DataFrame, title: str = "Sensitivity to the costs") -> go.Figure:
    """First-order and total Sobol index of each input; the largest total index is on top.

    - `frame`: columns ``name``, ``first``, ``first_confidence``, ``total``, ``total_confidence``; a confidence is half
      the width of the interval.

    >>> frame = pd.DataFrame({"name": ["line", "hold"], "first": [0.1, 0.7], "first_confidence": 0.02,
    ...                       "total": [0.2, 0.8], "total_confidence": 0.03})
    >>> sensitivity(frame).data[1].y
    ('hold', 'line')
    """
    rows = frame.sort_values("total", ascending=False, kind="stable")
    figure = go.Figure()
    orders = (("total", "total: with interactions", "#9ecae1"), ("first", "first order: alone", "#0072B2"))
    for column, name, colour in orders:
        bars = {"array": rows[f"{column}_confidence"], "thickness": 1.3, "width": 3}
        look = {"name": name, "marker": {"color": colour}, "orientation": "h", "error_x": bars}
        hover = "%{y}: %{x:.3f}<extra>%{fullData.name}</extra>"
        figure.add_bar(y=rows["name"].tolist(), x=rows[column], hovertemplate=hover, **look)
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.05, height=max(style.HEIGHT, 46 * len(rows) + 190))
    figure.update_xaxes(title="share of the output's variance", zeroline=True, zerolinecolor=style.INK)
    figure.update_yaxes(autorange="reversed", type="category", ticks="")
    return style.titled(figure, title, "Sobol indices; error bars are confidence intervals", entries_per_row=5)


def _lines(costs: pd.Series, names: list[str]) -> list[float]:
    """Height of each point: fits of the same cost are stacked around the cost's line."""
    place = costs.groupby(costs).cumcount()
    size = costs.groupby(costs).transform("size")
    return [names.index(n) + (p - (m - 1) / 2) * 0.6 / m for n, p, m in zip(costs, place, size, strict=True)]


def _cost_text(cost: dict[Any, Any], unit: str) -> str:
    low, high = cost["low"], cost["high"]
    interval = "" if np.isnan(low + high) else f" ({style.short_number(low)} to {style.short_number(high)})"
    bound = f"; at a bound: {cost['bound']}" if cost["bound"] else ""
    return f"{cost['name']}: {style.short_number(cost['value'])}{interval}{unit}{bound}"
