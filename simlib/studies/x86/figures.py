# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the published x86 hosts: the time of a fault over vCPUs, by several readings of why it grows, and the
times of one thread's ioctls while the vCPUs are parked.
"""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import in_order, require, require_numbers, require_words
from simlib.figures.style import INK, MUTED, PALETTE, facet_titles, facets, legend_below, titled, translucent, vcpu_axis
from simlib.studies.study import FITTED, HELD_OUT
from simlib.studies.x86.parked import BAR

_DASHES = {"fitted": "solid", "predicted": "dash"}
_POINT = {"color": INK, "symbol": "circle", "size": 9, "line": {"color": "white", "width": 1}}

PARKED_COLUMNS = ("variant", "vcpus", "published", "predicted", "role")
"""Columns of the table that `parked_times` reads."""

_MARKS = {
    FITTED: {"symbol": "circle", "color": PALETTE[0], "size": 9},
    HELD_OUT: {"symbol": "diamond-open", "color": PALETTE[1], "size": 11, "line": {"width": 2}},
}
_TICKS = (0.6, 0.7, 0.85, 1.0, 1.15, 1.5, 2.0, 2.5)


def saturated_fault(table: pd.DataFrame, title: str = "Time of a fault in the saturated lock") -> go.Figure:
    """Wall time a page over vCPUs, a panel a table, a line a reading.

    Raises `InputError` if a column is missing or the table is empty.

    - `table`: columns ``panel``, ``reading``, ``vcpus``, ``kind`` (``measured``, ``fitted``, ``predicted``),
      ``us_per_page``.

    >>> table = pd.DataFrame({"panel": "a", "reading": "constant", "vcpus": [4, 8, 16], "kind": ["fitted"] * 2 +
    ...                       ["predicted"], "us_per_page": [0.4, 0.5, 0.6]})
    >>> [line.line.dash for line in saturated_fault(table).data]
    ['solid', 'dash']
    """
    rows = require(table, ["panel", "reading", "vcpus", "kind", "us_per_page"], "table")
    require_words(rows, "kind", ("measured", *_DASHES), "table")
    require_numbers(rows, ["vcpus", "us_per_page"], "table", least=0)
    panels = in_order(rows["panel"])
    names = in_order(rows[rows["kind"] != "measured"]["reading"])
    colours = dict(zip(names, PALETTE * (len(names) // len(PALETTE) + 1), strict=False))
    figure, place = facets(panels, "vCPUs", columns=2)
    seen: set[str] = set()
    for number, panel in enumerate(panels):
        here, at = rows[rows["panel"].astype(str) == panel].sort_values("vcpus"), place(number)
        for name in names:
            mine = here[here["reading"].astype(str) == name]
            fitted, beyond = (mine[mine["kind"] == kind] for kind in _DASHES)
            parts = {"fitted": fitted, "predicted": pd.concat([fitted.tail(1), beyond]) if len(beyond) else beyond}
            for kind, part in parts.items():
                if len(part):
                    figure.add_scatter(
                        x=part["vcpus"], y=part["us_per_page"], mode="lines", name=name, legendgroup=name,
                        line={"color": colours[name], "dash": _DASHES[kind], "width": 2}, showlegend=name not in seen,
                        hovertemplate=f"%{{y:.3g}} µs a page, %{{x}} vCPUs<extra>{name}, {kind}</extra>", **at,
                    )  # fmt: skip
                    seen.add(name)
        points = here[here["kind"] == "measured"]
        if len(points):
            figure.add_scatter(
                x=points["vcpus"], y=points["us_per_page"], mode="markers", marker=_POINT, name="measured",
                legendgroup="measured", showlegend="measured" not in seen,
                hovertemplate="%{y:.3g} µs a page, %{x} vCPUs<extra>measured</extra>", **at,
            )  # fmt: skip
            seen.add("measured")
        figure.update_xaxes(**vcpu_axis(here["vcpus"]), **at)
    figure.update_yaxes(title="wall time a page, µs", rangemode="tozero")
    facet_titles(figure)
    legend_below(figure, len(seen), rows_of=3)
    return titled(figure, title, "lines: the model, dashed where it was not fitted; points: measured")


def parked_times(
    table: pd.DataFrame, title: str = "Enabling the log and CLEAR while the vCPUs are parked"
) -> go.Figure:
    """The model's time over the published one, on a logarithmic axis, a row a phase of a kernel; grey: within `BAR`.

    Raises `InputError` if a column is missing or the table is empty.

    - `table`: the columns `PARKED_COLUMNS`: a row's name, times in s, ``fitted`` or ``held out``.

    >>> table = pd.DataFrame({"variant": ["CLEAR"] * 2, "vcpus": [32, 64], "published": [1.0, 2.0],
    ...                       "predicted": [1.0, 2.2], "role": [FITTED, HELD_OUT]})
    >>> [trace.name for trace in parked_times(table).data]
    ['fitted', 'held out']
    """
    rows = require(table, PARKED_COLUMNS, "table")
    require_words(rows, "role", tuple(_MARKS), "table")
    require_numbers(rows, ["vcpus", "published", "predicted"], "table", least=0)
    rows = rows.assign(ratio=rows["predicted"] / rows["published"])
    names, bar = in_order(rows["variant"]), BAR / 100
    figure = go.Figure()
    for role, marker in _MARKS.items():
        mine = rows[rows["role"] == role]
        if len(mine):
            figure.add_scatter(
                x=mine["ratio"], y=mine["variant"], mode="markers", marker=marker, name=role,
                customdata=mine[["vcpus", "published", "predicted"]].to_numpy(),
                hovertemplate="%{y}, %{customdata[0]} vCPUs: published %{customdata[1]:.4g} s, model "
                f"%{{customdata[2]:.4g}} s<extra>{role}</extra>",
            )  # fmt: skip
    for what, mine in rows[(rows["ratio"] - 1).abs() > bar].groupby("variant", sort=False):
        figure.add_annotation(
            x=math.log10(float(mine["ratio"].max())), y=what, text=", ".join(in_order(mine["vcpus"])), showarrow=False,
            xanchor="left", xshift=8, font={"size": 11, "color": MUTED},
        )  # fmt: skip
    figure.add_vrect(x0=1 - bar, x1=1 + bar, fillcolor=translucent(INK, 0.08), line_width=0, layer="below")
    labels = [f"{tick:g}" for tick in _TICKS]
    figure.update_xaxes(type="log", title="model over published", tickvals=_TICKS, ticktext=labels, tickangle=0)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    figure.update_layout(height=140 + 34 * len(names))
    legend_below(figure, len(_MARKS))
    return titled(figure, title, f"numbers: vCPUs of what is off by more than {bar:.0%} (grey)")
