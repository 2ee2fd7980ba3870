# SPDX-License-Identifier: BSD-3-Clause
"""What was predicted over vCPUs: any metric, a curve a variant or a policy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.errors import InputError, nearest
from simlib.figures.frame import draws, in_order, require, require_numbers
from simlib.figures.style import (
    facet_titles,
    facets,
    legend_below,
    time_unit,
    titled,
    translucent,
    variant_colours,
    vcpu_axis,
)

COLUMNS = ("vcpus", "metric", "estimate", "low", "high", "unit")
"""Columns of the table; ``policy``, or else ``variant``, names the curve."""


@draws
def over_vcpus(frame: pd.DataFrame, metric: str = "", title: str = "Predicted over vCPUs") -> go.Figure:
    """Curves with their intervals over vCPUs, a panel a metric.

    Raises `InputError` if a column is missing, or there is no row to draw.

    Parameters
    ----------
    frame : DataFrame
        The columns `COLUMNS`, and ``policy`` or ``variant``: a prediction's or a comparison's frame, or the result
        itself.
    metric : str
        Only this one.
    title : str
        Title of the figure.

    Examples
    --------
    >>> frame = pd.DataFrame({"variant": "a", "vcpus": [1, 2], "metric": "zap_time", "estimate": [1.0, 1.5],
    ...                       "low": [0.9, 1.2], "high": [1.1, 1.8], "unit": "s"})
    >>> over_vcpus(frame).data[1].y
    array([1. , 1.5])
    """
    rows = require(frame, COLUMNS, "frame", policy="", variant="")
    if metric and metric not in set(rows["metric"]):
        raise InputError("metric", metric, "no row of it to draw", nearest(metric, in_order(rows["metric"])))
    rows = rows[rows["metric"] == metric] if metric else rows
    require_numbers(rows, ["vcpus"], "frame", least=1)
    require_numbers(rows, ["estimate", "low", "high"], "frame", gaps=True)
    rows = rows.assign(curve=rows["policy"].where(rows["policy"] != "", rows["variant"]))
    factors, units = {}, dict(zip(rows["metric"], rows["unit"], strict=True))
    for name in [name for name, unit in units.items() if unit == "s"]:
        factors[name], units[name] = time_unit(rows.loc[rows["metric"] == name, "estimate"])
    figure, place = facets([f"{name}, {unit}" for name, unit in units.items()], shared_y=False)
    colours = variant_colours(rows["curve"])
    for panel, name in enumerate(units):
        mine = rows[rows["metric"] == name]
        mine = mine.assign(**{end: mine[end] / factors.get(name, 1.0) for end in ("estimate", "low", "high")})
        for curve, part in mine.groupby("curve", sort=False):
            _draw(figure, part.sort_values("vcpus"), str(curve), colours[str(curve)], place(panel))
    figure.update_xaxes(vcpu_axis(rows["vcpus"]))
    figure.update_yaxes(rangemode="tozero")
    facet_titles(figure)
    if list(colours) != [""]:
        legend_below(figure, len(colours), rows_of=3)
    return titled(figure, title, "predicted; bands are intervals")


def _draw(figure: go.Figure, part: pd.DataFrame, curve: str, colour: str, at: dict[str, int]) -> None:
    """One curve in one panel: its band, then its line."""
    vcpus = part["vcpus"].to_numpy(dtype=float)
    ends = np.concatenate([part["high"].to_numpy(dtype=float), part["low"].to_numpy(dtype=float)[::-1]])
    figure.add_scatter(
        x=np.concatenate([vcpus, vcpus[::-1]]), y=ends, fill="toself", fillcolor=translucent(colour), mode="lines",
        line={"width": 0}, hoverinfo="skip", legendgroup=curve, showlegend=False, **at,
    )  # fmt: skip
    figure.add_scatter(
        x=vcpus, y=part["estimate"].to_numpy(dtype=float), mode="lines+markers", line={"color": colour, "width": 2.5},
        name=curve, legendgroup=curve, showlegend=bool(curve) and at["row"] == 1 and at["col"] == 1,
        hovertemplate="%{x} vCPUs: %{y:.4g}<extra>%{fullData.name}</extra>", **at,
    )  # fmt: skip
