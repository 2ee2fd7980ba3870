# SPDX-License-Identifier: BSD-3-Clause
"""What was predicted over vCPUs: any metric, a curve a variant or a policy."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.errors import InputError, nearest
from simlib.figures.frame import TEXT, in_order, number, reads
from simlib.figures.style import band, facets, time_unit, titled, translucent, variant_colours, vcpu_axis

COLUMNS = {
    "vcpus": number(1),
    "metric": TEXT,
    "estimate": number(gaps=True),
    "low": number(gaps=True),
    "high": number(gaps=True),
    "unit": TEXT,
}
"""Columns of the table; ``policy``, or else ``variant``, names the curve."""


@reads("frame", COLUMNS | {"policy": TEXT, "variant": TEXT}, policy="", variant="")
def over_vcpus(frame: pd.DataFrame, metric: str = "", title: str = "Predicted over vCPUs") -> go.Figure:
    """Curves with their intervals over vCPUs, a panel a metric.

    Raises `InputError` if there is no row to draw.

    - `frame`: the columns `COLUMNS`, and ``policy`` or ``variant``: a prediction's or a comparison's frame, or the
      result itself.
    - `metric`: only this one.

    >>> frame = pd.DataFrame({"variant": "a", "vcpus": [1, 2], "metric": "zap_time", "estimate": [1.0, 1.5],
    ...                       "low": [0.9, 1.2], "high": [1.1, 1.8], "unit": "s"})
    >>> over_vcpus(frame).data[1].y
    array([1. , 1.5])
    """
    if metric and metric not in set(frame["metric"]):
        raise InputError("metric", metric, "no row of it to draw", nearest(metric, in_order(frame["metric"])))
    rows = frame[frame["metric"] == metric] if metric else frame
    rows = rows.assign(curve=rows["policy"].where(rows["policy"] != "", rows["variant"]))
    units, factors = dict(zip(rows["metric"], rows["unit"], strict=True)), dict.fromkeys(rows["metric"], 1.0)
    for name in [name for name, unit in units.items() if unit == "s"]:
        factors[name], units[name] = time_unit(rows.loc[rows["metric"] == name, "estimate"])
    ends = ["estimate", "low", "high"]
    rows[ends] = rows[ends].div(rows["metric"].map(factors), axis=0)
    figure, place = facets([f"{name}, {unit}" for name, unit in units.items()], shared_y=False)
    colours = variant_colours(rows["curve"])
    for panel, name in enumerate(units):
        for curve, part in rows[rows["metric"] == name].sort_values("vcpus").groupby("curve", sort=False):
            area = band(part["vcpus"], part["low"], part["high"], translucent(colours[curve]))
            figure.add_scatter(**area, legendgroup=curve, **place(panel))
            figure.add_scatter(
                x=part["vcpus"],
                y=part["estimate"],
                mode="lines+markers",
                line={"color": colours[curve], "width": 2.5},
                name=curve,
                legendgroup=curve,
                showlegend=bool(curve),
                hovertemplate="%{x} vCPUs: %{y:.4g}<extra>%{fullData.name}</extra>",
                **place(panel),
            )
    figure.update_xaxes(vcpu_axis(rows["vcpus"]))
    figure.update_yaxes(rangemode="tozero")
    return titled(figure, title, "predicted; bands are intervals", rows_of=3)
