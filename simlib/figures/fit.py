# SPDX-License-Identifier: BSD-3-Clause
"""How good a calibration is: held-out errors, costs with intervals, correlations, sensitivities."""

from __future__ import annotations

from textwrap import shorten

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlib.errors import InputError
from simlib.figures.frame import draws, in_order, require, require_numbers, require_words
from simlib.figures.style import (
    HEIGHT,
    INK,
    MODEL_COLOURS,
    MUTED,
    PALETTE,
    facet_titles,
    facets,
    key_entry,
    legend_below,
    log_axis,
    short_number,
    signed,
    titled,
    translucent,
    variant_colours,
    vcpu_axis,
)

ROLE_LOOKS: dict[str, dict[str, str]] = {"fitted": {"symbol": "circle"}, "held out": {"symbol": "diamond-open"}}
"""Markers of a row that the calibration saw, and of one that was kept back: as in the figures of curves."""

WARNING = "#D55E00"
"""Colour of a mark that says that something is at a bound."""

UNITS = {"ns": "cost, nanoseconds", "dimensionless": "cost, dimensionless"}
"""Units of a cost, and the title of their axis."""


def held_out_errors(errors: pd.DataFrame, title: str = "Error of the predictions of held-out points") -> go.Figure:
    """Signed errors of held-out points, by model, over vCPUs, a panel a variant.

    Raises `InputError` if a column is missing, the table is empty, or a model is not known.

    Parameters
    ----------
    errors : DataFrame
        Columns ``variant``, ``vcpus``, ``model`` (``simlib``, ``USL``, ``Amdahl``), ``error_percent``:
        predicted over measured, less one, in per cent.
    title : str
        Title of the figure.

    Examples
    --------
    >>> errors = pd.DataFrame({"variant": "a", "vcpus": [16, 32], "model": "simlib",
    ...                        "error_percent": [-2.0, 3.5]})
    >>> held_out_errors(errors).data[0].text
    ('−2', '+3.5')
    """
    rows = require(errors, ["variant", "vcpus", "model", "error_percent"], "errors")
    require_words(rows, "model", MODEL_COLOURS, "errors")
    require_numbers(rows, ["vcpus", "error_percent"], "errors")
    variants = in_order(rows["variant"])
    figure, place = facets(variants)
    present = [model for model in MODEL_COLOURS if (rows["model"] == model).any()]
    for i, variant in enumerate(variants):
        mine = rows.loc[rows["variant"].astype(str) == variant]
        vcpus = sorted(mine["vcpus"].unique())
        for model in present:
            values = mine.loc[mine["model"] == model].set_index("vcpus")["error_percent"].reindex(vcpus)
            figure.add_bar(
                x=[f"{v:g}" for v in vcpus],
                y=values.to_numpy(dtype=float),
                name=model,
                legendgroup=model,
                marker={"color": MODEL_COLOURS[model]},
                showlegend=i == 0,
                **place(i),
                text=["" if np.isnan(v) else signed(v) for v in values],
                textposition="outside",
                textangle=0,
                textfont={"size": 10},
                cliponaxis=False,
                hovertemplate=f"{variant}, %{{x}} vCPUs: {model} %{{y:+.1f}} %<extra></extra>",
            )
    low, high = min(0.0, rows["error_percent"].min()), max(0.0, rows["error_percent"].max())
    room = 0.12 * (high - low or 1.0)
    figure.update_yaxes(range=[low - room, high + room], zeroline=True, zerolinecolor=INK, zerolinewidth=1.5)
    figure.update_yaxes(title="predicted − measured, % of measured", col=1)
    figure.update_xaxes(type="category")
    figure.update_layout(barmode="group", bargap=0.2, bargroupgap=0.08)
    facet_titles(figure)
    legend_below(figure, len(present))
    return titled(figure, title, "held-out points only; above 0: predicted slower than measured")


@draws
def residuals(rows: pd.DataFrame, title: str = "Residuals: the model less what was measured") -> go.Figure:
    """Error of the model at each row over vCPUs, a panel a metric, on the deviation that a row is taken to have.

    Raises `InputError` if a column is missing, the table is empty, or a role is not known.

    Parameters
    ----------
    rows : DataFrame
        Columns ``variant``, ``vcpus``, ``metric``, ``role`` (``fitted``, ``held out``, ``shown only``),
        ``error_percent`` (model over measured less one; a row without is not drawn), ``deviation_percent``.
    title : str
        Title of the figure.

    Examples
    --------
    >>> rows = pd.DataFrame({"variant": "a", "vcpus": [1, 16], "metric": "contentions", "role": ["fitted", "held out"],
    ...                      "error_percent": [1.5, -3.0], "deviation_percent": 2.0})
    >>> [trace.y.tolist() for trace in residuals(rows).data if trace.name == "a"]
    [[1.5], [-3.0]]
    """
    columns = ["variant", "vcpus", "metric", "role", "error_percent", "deviation_percent"]
    rows = require(rows, columns, "residuals")
    require_words(rows, "role", [*ROLE_LOOKS, "shown only"], "residuals")
    require_numbers(rows, ["vcpus"], "residuals", least=1)
    require_numbers(rows, ["error_percent"], "residuals", gaps=True)
    require_numbers(rows, ["deviation_percent"], "residuals", gaps=True, least=0)
    rows = rows[np.isfinite(rows["error_percent"].to_numpy(dtype=float)) & rows["role"].isin(list(ROLE_LOOKS))]
    rows = require(rows, columns, "residuals")
    metrics, colours = in_order(rows["metric"]), variant_colours(rows["variant"])
    figure, place = facets(metrics, columns=2, shared_y=False)
    seen: set[str] = set()
    axis = vcpu_axis(rows["vcpus"])
    ends = [10**end for end in axis["range"]]
    for i, metric in enumerate(metrics):
        mine = rows[rows["metric"] == metric]
        reach = float(mine["deviation_percent"].median())
        figure.add_scatter(
            x=[ends[0], ends[1], ends[1], ends[0]], y=[-reach, -reach, reach, reach], fill="toself", mode="none",
            fillcolor=translucent(MUTED, 0.14), hoverinfo="skip", showlegend=False, **place(i),
        )  # fmt: skip
        for pair, part in mine.groupby([mine["variant"].astype(str), "role"], sort=False):
            variant, role = map(str, pair)
            figure.add_scatter(
                x=part["vcpus"].to_numpy(dtype=float), y=part["error_percent"].to_numpy(dtype=float), mode="markers",
                marker={"color": colours[variant], "size": 9, **ROLE_LOOKS[role]}, cliponaxis=False,
                name=variant or "rows", legendgroup=variant, showlegend=variant not in seen,
                hovertemplate=f"%{{x}} vCPUs: %{{y:+.2f}} %<extra>{variant} {role}</extra>", **place(i),
            )  # fmt: skip
            seen.add(variant)
    figure.update_xaxes(axis)
    figure.update_yaxes(zeroline=True, zerolinecolor=INK, zerolinewidth=1.5)
    figure.update_yaxes(title="model − measured, %", col=1)
    facet_titles(figure)
    legend_below(figure, len(colours), rows_of=3, keyed=True)
    for role, look in ROLE_LOOKS.items():
        if (rows["role"] == role).any():
            key_entry(figure, role, {"mode": "markers", "marker": {"size": 9, **look}}, MUTED)
    band = {"mode": "markers", "marker": {"size": 14, "symbol": "square", "opacity": 0.3}}
    key_entry(figure, "± one deviation of a row", band, MUTED)
    return titled(figure, title, "above 0: the model is slower, or counts more, than measured")


@draws
def cost_intervals(costs: pd.DataFrame, title: str = "Calibrated costs and their intervals") -> go.Figure:
    """Every cost as a point with its interval, on a logarithmic axis, a panel a unit, a colour a fit.

    Raises `InputError` if a column is missing, the table is empty, or a unit is not known.

    Parameters
    ----------
    costs : DataFrame
        Columns ``name``, ``value``, ``low``, ``high``, ``unit`` (``ns`` or ``dimensionless``), ``fit`` (which
        calibration it comes from). A value or an end that is 0 is drawn at the edge of the axis. With a column
        ``bound``, in which a text says what of a cost is at a physical bound, such costs are marked with it.
    title : str
        Title of the figure.

    Examples
    --------
    >>> costs = pd.DataFrame({"name": ["hold"], "value": [400.0], "low": [380.0], "high": [430.0],
    ...                       "unit": ["ns"], "fit": ["arm64"]})
    >>> interval, point = cost_intervals(costs).data
    >>> interval.x, point.x
    (array([380., 430.,  nan]), array([400.]))
    """
    rows = require(costs, ["name", "value", "low", "high", "unit", "fit"], "costs", bound="")
    require_words(rows, "unit", UNITS, "costs")
    require_numbers(rows, ["value"], "costs", least=0)
    require_numbers(rows, ["low", "high"], "costs", gaps=True, least=0)
    units = [unit for unit in UNITS if (rows["unit"] == unit).any()]
    fits = in_order(rows["fit"])
    names = {unit: in_order(rows.loc[rows["unit"] == unit, "name"]) for unit in units}
    height = max(HEIGHT, 34 * sum(map(len, names.values())) + 90 * len(units) + 170)
    figure = make_subplots(
        len(units),
        1,
        row_heights=[len(names[unit]) + 0.6 for unit in units],
        vertical_spacing=80 / (height - 190),
    )
    seen: set[str] = set()
    for row, unit in enumerate(units, start=1):
        mine = rows.loc[rows["unit"] == unit].reset_index(drop=True)
        axis = log_axis([*mine["value"], *mine["low"], *mine["high"]], UNITS[unit], _plain, margin=1.6)
        left, right = (10**end for end in axis["range"])
        drawn = mine.assign(**{c: mine[c].astype(float).clip(left, right) for c in ("value", "low", "high")})
        drawn["y"] = _lines(mine, names[unit])
        for i, fit in enumerate(fits):
            part = drawn.loc[drawn["fit"].astype(str) == fit]
            if part.empty:
                continue
            exact = mine.loc[part.index]
            look = {"name": shorten(fit, 90, placeholder=" …"), "legendgroup": fit, "row": row, "col": 1}
            ends = part[["low", "high"]].assign(gap=np.nan).to_numpy().ravel()
            figure.add_scatter(
                x=ends, y=np.repeat(part["y"], 3), mode="lines+markers", showlegend=False, hoverinfo="skip",
                line={"color": PALETTE[i % len(PALETTE)], "width": 2},
                marker={"symbol": "line-ns-open", "size": 9}, **look,
            )  # fmt: skip
            figure.add_scatter(
                x=part["value"].to_numpy(),
                y=part["y"].to_numpy(),
                mode="markers",
                marker={
                    "color": PALETTE[i % len(PALETTE)],
                    "size": 10,
                    "symbol": np.where(exact["value"] <= 0, "triangle-left", "circle").tolist(),
                },
                cliponaxis=False,
                showlegend=fit not in seen,
                text=[
                    f"{name}: {_interval(*ends)}{' ns' if unit == 'ns' else ''}{f'; at a bound: {bound}' * bool(bound)}"
                    for name, *ends, bound in exact[["name", "value", "low", "high", "bound"]].to_numpy()
                ],
                hovertemplate=f"%{{text}}<extra>{fit}</extra>",
                **look,
            )
            seen.add(fit)
            bounded = part[exact["bound"] != ""]
            if len(bounded):
                figure.add_scatter(
                    x=bounded["value"].to_numpy(), y=bounded["y"].to_numpy(), mode="markers", hoverinfo="skip",
                    marker={"symbol": "diamond-open", "size": 17, "color": WARNING, "line": {"width": 2}},
                    name="at a physical bound, or an end of it is", legendgroup="bound",
                    showlegend="bound" not in seen, row=row, col=1,
                )  # fmt: skip
                seen.add("bound")
        figure.update_xaxes(axis, row=row, col=1)
        figure.update_yaxes(
            tickmode="array",
            tickvals=list(range(len(names[unit]))),
            ticktext=names[unit],
            range=[len(names[unit]) - 0.4, -0.6],
            ticks="",
            row=row,
            col=1,
        )
    legend_below(figure, len(fits) + ("bound" in seen), rows_of=3)
    figure.update_layout(height=height)
    return titled(figure, title, "calibrated; a point or interval that runs into the left edge reaches 0")


@draws
def correlation(matrix: pd.DataFrame, title: str = "Correlation of the calibrated costs") -> go.Figure:
    """Correlation matrix as a heat map with its numbers.

    Raises `InputError` if the matrix is empty, its rows and columns differ, or a value is outside -1 to 1.

    Parameters
    ----------
    matrix : DataFrame
        Square, the same names as index and columns, values from -1 to 1 (NaN where not defined).
    title : str
        Title of the figure.

    Examples
    --------
    >>> names = ["hold", "line"]
    >>> correlation(pd.DataFrame([[1, -0.9], [-0.9, 1]], names, names)).data[0].text
    array([['1.00', '−0.90'],
           ['−0.90', '1.00']], dtype=object)
    """
    if not isinstance(matrix, pd.DataFrame):
        raise InputError("matrix", type(matrix).__name__, "must be a pandas DataFrame")
    if matrix.empty:
        raise InputError("matrix", "no rows", "the figure needs at least one name")
    names = [str(name) for name in matrix.columns]
    if [str(name) for name in matrix.index] != names:
        raise InputError("matrix", f"rows {', '.join(map(str, matrix.index))}", f"must be {', '.join(names)}")
    require_numbers(matrix, matrix.columns, "matrix", gaps=True)
    values = matrix.to_numpy(dtype=float)
    if (np.abs(values) > 1 + 1e-9).any():
        raise InputError("matrix", float(values[np.abs(values) > 1 + 1e-9][0]), "must be from -1 to 1")
    text = np.array([["" if np.isnan(v) else f"{v:.2f}".replace("-", "−") for v in row] for row in values], object)
    figure = go.Figure(
        go.Heatmap(
            x=names,
            y=names,
            z=values,
            zmin=-1,
            zmax=1,
            colorscale="RdBu",
            text=text,
            texttemplate="%{text}",
            textfont={"size": 12},
            xgap=1,
            ygap=1,
            hovertemplate="%{y} and %{x}: %{z:.3f}<extra></extra>",
            colorbar={"title": {"text": "correlation"}, "tickvals": [-1, -0.5, 0, 0.5, 1], "thickness": 14},
        )
    )
    figure.update_xaxes(showgrid=False, tickangle=-35 if len(names) > 5 else 0, type="category")
    figure.update_yaxes(showgrid=False, autorange="reversed", type="category")
    figure.update_layout(height=max(HEIGHT, 40 * len(names) + 220))
    return titled(figure, title, "near ±1: the data determine only a combination of the two")


@draws
def sensitivity(frame: pd.DataFrame, title: str = "Which costs matter") -> go.Figure:
    """First-order and total sensitivity of each input, largest total on top.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    frame : DataFrame
        Columns ``name``, ``first``, ``first_confidence``, ``total``, ``total_confidence``; a confidence is
        half the width of the interval.
    title : str
        Title of the figure.

    Examples
    --------
    >>> frame = pd.DataFrame({"name": ["line", "hold"], "first": [0.1, 0.7], "first_confidence": 0.02,
    ...                       "total": [0.2, 0.8], "total_confidence": 0.03})
    >>> sensitivity(frame).data[1].y
    ('hold', 'line')
    """
    columns = ["first", "first_confidence", "total", "total_confidence"]
    rows = require(frame, ["name", *columns], "sensitivity")
    require_numbers(rows, ["first", "total"], "sensitivity")
    require_numbers(rows, ["first_confidence", "total_confidence"], "sensitivity", gaps=True, least=0)
    rows = rows.sort_values("total", ascending=False, kind="stable")
    figure = go.Figure()
    for column, name, colour in (
        ("total", "total: with interactions", "#9ecae1"),
        ("first", "first order: alone", "#0072B2"),
    ):
        figure.add_bar(
            y=rows["name"].astype(str).tolist(),
            x=rows[column].to_numpy(dtype=float),
            orientation="h",
            name=name,
            marker={"color": colour},
            error_x={
                "array": rows[f"{column}_confidence"].to_numpy(dtype=float),
                "thickness": 1.3,
                "width": 3,
            },
            hovertemplate="%{y}: %{x:.3f}<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(barmode="group", bargap=0.3, bargroupgap=0.05, height=max(HEIGHT, 46 * len(rows) + 190))
    figure.update_xaxes(title="share of the output's variance", zeroline=True, zerolinecolor=INK)
    figure.update_yaxes(autorange="reversed", type="category", ticks="")
    legend_below(figure, 2)
    return titled(figure, title, "Sobol indices; bars at the ends are confidence intervals")


def _lines(mine: pd.DataFrame, names: list[str]) -> list[float]:
    """Height of each point: fits of the same cost stand below each other around the cost's line."""
    name = mine["name"].astype(str)
    place = name.groupby(name).cumcount()
    many = name.groupby(name).transform("size")
    return [names.index(n) + (p - (m - 1) / 2) * 0.6 / m for n, p, m in zip(name, place, many, strict=True)]


def _plain(value: float) -> str:
    """A number for a tick without a prefix, its thousands apart."""
    return f"{value:,.6g}".replace(",", "\u2009")


def _interval(value: float, low: float, high: float) -> str:
    if np.isnan(low) or np.isnan(high):
        return short_number(value)
    return f"{short_number(value)} ({short_number(low)} to {short_number(high)})"
