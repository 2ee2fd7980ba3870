# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the published x86 hosts: fault time against vCPUs by hypothesis, and ioctl times with parked vCPUs."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import COUNT, TEXT, in_order, number, reads, word
from simlib.figures.style import INK, MUTED, PALETTE, facets, titled, translucent, vcpu_axis
from studies.study import FITTED, HELD_OUT
from studies.x86.parked import TOLERANCE_PERCENT

_DASHES = {"fitted": "solid", "predicted": "dash"}
_POINT = {"color": INK, "symbol": "circle", "size": 9, "line": {"color": "white", "width": 1}}

_MARKS = {
    FITTED: {"symbol": "circle", "color": PALETTE[0], "size": 9},
    HELD_OUT: {"symbol": "diamond-open", "color": PALETTE[1], "size": 11, "line": {"width": 2}},
}
_FAULTS = {"panel": TEXT, "hypothesis": TEXT, "vcpus": number(0), "kind": word(("measured", *_DASHES)),
           "us_per_page": number(0)}  # fmt: skip
_PARKED = {"variant": TEXT, "vcpus": COUNT, "published": number(0), "predicted": number(0), "role": word(_MARKS)}
_TICKS = (0.6, 0.7, 0.85, 1.0, 1.15, 1.5, 2.0, 2.5)


@reads("table", _FAULTS)
def saturated_fault(rows: pd.DataFrame) -> go.Figure:
    """Wall time per page against vCPUs, one panel for each table and one line for each hypothesis."""
    panels = in_order(rows["panel"])
    names = in_order(rows[rows["kind"] != "measured"]["hypothesis"])
    colours = dict(zip(names, PALETTE * (len(names) // len(PALETTE) + 1), strict=False))
    figure, place = facets(panels, "vCPUs", columns=2)
    for i, panel in enumerate(panels):
        here, at = rows[rows["panel"] == panel].sort_values("vcpus"), place(i)
        for name in names:
            curve = here[here["hypothesis"] == name]
            fitted, beyond = (curve[curve["kind"] == kind] for kind in _DASHES)
            parts = {"fitted": fitted, "predicted": pd.concat([fitted.tail(1), beyond]) if len(beyond) else beyond}
            for kind, part in parts.items():
                if len(part):
                    figure.add_scatter(
                        x=part["vcpus"], y=part["us_per_page"], mode="lines", name=name, legendgroup=name,
                        line={"color": colours[name], "dash": _DASHES[kind], "width": 2}, showlegend=True,
                        hovertemplate=f"%{{y:.3g}} µs per page, %{{x}} vCPUs<extra>{name}, {kind}</extra>", **at,
                    )  # fmt: skip
        points = here[here["kind"] == "measured"]
        if len(points):
            figure.add_scatter(
                x=points["vcpus"], y=points["us_per_page"], mode="markers", marker=_POINT, name="measured",
                legendgroup="measured", showlegend=True,
                hovertemplate="%{y:.3g} µs per page, %{x} vCPUs<extra>measured</extra>", **at,
            )  # fmt: skip
        figure.update_xaxes(**vcpu_axis(here["vcpus"]), **at)
    figure.update_yaxes(title="wall time per page, µs", rangemode="tozero")
    subtitle = "lines: the model, dashed where held out; points: measured"
    return titled(figure, "Time of a fault with a saturated lock", subtitle, entries_per_row=3)


@reads("table", _PARKED)
def parked_times(rows: pd.DataFrame) -> go.Figure:
    """Ratio of predicted to published time (s), one row for each kernel and phase; grey: within `TOLERANCE_PERCENT`."""
    rows = rows.assign(ratio=rows["predicted"] / rows["published"])
    names, tolerance = in_order(rows["variant"]), TOLERANCE_PERCENT / 100
    figure = go.Figure()
    for role, marker in _MARKS.items():
        points = rows[rows["role"] == role]
        if len(points):
            figure.add_scatter(
                x=points["ratio"], y=points["variant"], mode="markers", marker=marker, name=role,
                customdata=points[["vcpus", "published", "predicted"]].to_numpy(),
                hovertemplate="%{y}, %{customdata[0]} vCPUs: published %{customdata[1]:.4g} s, model "
                f"%{{customdata[2]:.4g}} s<extra>{role}</extra>",
            )  # fmt: skip
    for variant, points in rows[(rows["ratio"] - 1).abs() > tolerance].groupby("variant", sort=False):
        figure.add_annotation(
            x=math.log10(float(points["ratio"].max())), y=variant, text=", ".join(in_order(points["vcpus"])),
            showarrow=False, xanchor="left", xshift=8, font={"size": 11, "color": MUTED},
        )  # fmt: skip
    figure.add_vrect(x0=1 - tolerance, x1=1 + tolerance, fillcolor=translucent(INK, 0.08), line_width=0, layer="below")
    labels = [f"{tick:g}" for tick in _TICKS]
    figure.update_xaxes(type="log", title="predicted / published", tickvals=_TICKS, ticktext=labels, tickangle=0)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    figure.update_layout(height=140 + 34 * len(names))
    subtitle = f"labels: vCPUs of points off by more than {TOLERANCE_PERCENT:g} % (grey)"
    return titled(figure, "Enabling the log and CLEAR while the vCPUs are parked", subtitle, entries_per_row=5)
