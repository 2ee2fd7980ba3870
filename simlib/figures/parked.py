# SPDX-License-Identifier: BSD-3-Clause
"""Times of one thread's ioctls while the vCPUs are parked: the model's over the published ones, a row a phase."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import in_order, require, require_numbers, require_words
from simlib.figures.style import INK, MUTED, PALETTE, legend_below, titled, translucent

COLUMNS = ("what", "vcpus", "value", "model", "role")
"""Columns of the table that `parked_times` reads."""

_MARKS = {
    "fitted": {"symbol": "circle", "color": PALETTE[0], "size": 9},
    "predicted": {"symbol": "diamond-open", "color": PALETTE[1], "size": 11, "line": {"width": 2}},
}
_TICKS = (0.6, 0.7, 0.85, 1.0, 1.15, 1.5, 2.0, 2.5)


def parked_times(
    table: pd.DataFrame, bar: float = 0.15, title: str = "Enabling the log and CLEAR while the vCPUs are parked"
) -> go.Figure:
    """The model's time over the published one, on a logarithmic axis, a row a phase of a kernel.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    table : DataFrame
        Columns ``what`` (a row's name), ``vcpus``, ``value``, ``model`` (s), ``role`` (``fitted``, ``predicted``).
    bar : float
        Relative deviation up to which the model counts as agreeing: a grey area.
    title : str
        Title of the figure.

    Examples
    --------
    >>> table = pd.DataFrame({"what": ["CLEAR"] * 2, "vcpus": [32, 64], "value": [1.0, 2.0], "model": [1.0, 2.2],
    ...                       "role": ["fitted", "predicted"]})
    >>> [trace.name for trace in parked_times(table).data]
    ['fitted', 'predicted']
    """
    rows = require(table, COLUMNS, "table")
    require_words(rows, "role", tuple(_MARKS), "table")
    require_numbers(rows, ["vcpus", "value", "model"], "table", least=0)
    names = in_order(rows["what"])
    figure = go.Figure()
    for role, marker in _MARKS.items():
        mine = rows[rows["role"] == role]
        if len(mine):
            figure.add_scatter(
                x=mine["model"] / mine["value"], y=mine["what"], mode="markers", marker=marker, name=role,
                customdata=mine[["vcpus", "value", "model"]].to_numpy(),
                hovertemplate="%{y}, %{customdata[0]} vCPUs: published %{customdata[1]:.4g} s, model "
                f"%{{customdata[2]:.4g}} s<extra>{role}</extra>",
            )  # fmt: skip
    far = rows[(rows["model"] / rows["value"] - 1).abs() > bar]
    for what, mine in far.groupby("what", sort=False):
        furthest = float((mine["model"] / mine["value"]).max())
        figure.add_annotation(
            x=math.log10(furthest), y=what, text=", ".join(in_order(mine["vcpus"])), showarrow=False,
            xanchor="left", xshift=8, font={"size": 11, "color": MUTED},
        )  # fmt: skip
    figure.update_layout(shapes=[{"type": "rect", "xref": "x", "yref": "paper", "x0": 1 - bar, "x1": 1 + bar, "y0": 0,
                                  "y1": 1, "fillcolor": translucent(INK, 0.08), "line": {"width": 0},
                                  "layer": "below"}])  # fmt: skip
    figure.update_xaxes(
        type="log",
        title="model over published",
        tickvals=_TICKS,
        ticktext=[f"{tick:g}" for tick in _TICKS],
        tickangle=0,
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    figure.update_layout(height=140 + 34 * len(names))
    legend_below(figure, len(_MARKS))
    return titled(figure, title, f"numbers: vCPUs of what is off by more than {bar:.0%} (grey)")
