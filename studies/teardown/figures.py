# SPDX-License-Identifier: BSD-3-Clause
"""Figures of unmapping an arm64 stage 2: published and modelled times, and predictions by way and page size."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, checked, in_order, number, reads, word
from studies.study import HELD_OUT, ROLES

_RELATIONS = {"up-to": "triangle-left", "below": "triangle-left-open"}

UNMAP_COLUMNS = {"mapping": TEXT, "kernel": TEXT, "memory_gb": number(0), "published": number(0),
                 "predicted": number(0), "low": number(0), "high": number(0), "role": word(ROLES)}  # fmt: skip
WAY_COLUMNS = {"memory": TEXT, "page_size": TEXT, "mapping": TEXT, "way": TEXT, "estimate_s": number(0),
               "low_s": number(0), "high_s": number(0)}  # fmt: skip
BOUND_COLUMNS = {"memory": TEXT, "page_size": TEXT, "way": TEXT, "published": number(0), "relation": word(_RELATIONS)}

_LOOKS = {
    "calibrated on": {"mode": "markers", "marker": {"symbol": "circle", "size": 11}},
    "held out": {"mode": "markers", "marker": {"symbol": "diamond-open", "size": 9, "line": {"width": 2}}},
    "fitted": {"mode": "lines", "line": {"width": 2.5, "dash": "solid"}},
    "predicted, with interval": {"mode": "lines", "line": {"width": 2.5, "dash": "dash"}},
}


@reads("table", UNMAP_COLUMNS)
def unmap_times(rows: pd.DataFrame) -> go.Figure:
    """Time of an unmap against memory (`Teardown.unmap`), one panel for each mapping and one colour for each kernel."""
    panels, kernels = in_order(rows["mapping"]), in_order(rows["kernel"])
    figure, place = style.facets(panels, "memory, GB", columns=2, shared_y=False)
    for i, panel in enumerate(panels):
        part = rows[rows["mapping"] == panel]
        for colour, kernel in zip(style.PALETTE, kernels, strict=False):
            _add_unmap(figure, part[part["kernel"] == kernel], colour, legendgroup=kernel, name=kernel, **place(i))
            if i == 0:
                style.key_entry(figure, kernel, {"mode": "lines", "line": {"width": 6}}, colour, legend="legend")
        figure.update_xaxes(style.log_axis(part["memory_gb"], "memory, GB"), **place(i))
        figure.update_yaxes(style.time_axis([*part["low"], *part["high"]], "" if i else "time"), **place(i))
    held = set(rows["role"] == HELD_OUT)
    for (name, look), held_out in zip(_LOOKS.items(), (False, True, False, True), strict=True):
        if held_out in held:
            style.key_entry(figure, name, look, style.MUTED)
    subtitle = "points: published; lines: the model, with separate costs for each panel"
    return style.titled(figure, "Unmapping a stage 2: published, fitted, predicted", subtitle, entries_per_row=5)


def _add_unmap(figure: go.Figure, rows: pd.DataFrame, colour: str, **at: object) -> None:
    """Points and lines of one kernel; the prediction begins where the fitted line ends."""
    rows = rows.sort_values("memory_gb")
    fitted, held = rows[rows["role"] != HELD_OUT], rows[rows["role"] == HELD_OUT]
    predicted = pd.concat([fitted.iloc[-1:], held]) if len(held) else held
    ends = (predicted["memory_gb"], predicted["low"], predicted["high"])
    figure.add_scatter(**style.band(*ends, style.translucent(colour)), **at)
    series = ((fitted, "published"), (held, "published"), (fitted, "predicted"), (predicted, "predicted"))
    for (part, column), look in zip(series, _LOOKS.values(), strict=True):
        kind = "published" if column == "published" else "model"
        figure.add_scatter(
            x=part["memory_gb"], y=part[column], showlegend=False,
            hovertemplate=f"%{{x:g}} GB: %{{y:.4g}} s<extra>{kind}</extra>",
            **style.coloured(look, colour), **at,
        )  # fmt: skip


@reads("table", WAY_COLUMNS)
def teardown_ways(rows: pd.DataFrame, bounds: pd.DataFrame | None = None) -> go.Figure:
    """Predicted teardown time: panels by memory, rows by page size and mapping, colours by way.

    Published `bounds` (`BOUND_COLUMNS`) are drawn in all rows of their memory and page size, because the source does
    not state the mapping.
    """
    known = pd.DataFrame(columns=list(BOUND_COLUMNS)) if bounds is None else checked(bounds, BOUND_COLUMNS, "bounds")
    rows = rows.assign(row=rows["page_size"] + ", " + rows["mapping"])
    panels, ways, names = in_order(rows["memory"]), in_order(rows["way"]), in_order(rows["row"])
    figure, place = style.facets([f"{panel[:-1]} {panel[-1]}iB" for panel in panels], "time", columns=1)
    lanes = {way: 0.8 * ((j + 0.5) / len(ways) - 0.5) for j, way in enumerate(ways)}
    for i, panel in enumerate(panels):
        part = rows[rows["memory"] == panel]
        for j, (way, lane) in enumerate(lanes.items()):
            points = part[part["way"] == way]
            bars = style.error_bars(points["estimate_s"], points["low_s"], points["high_s"])
            figure.add_scatter(
                x=points["estimate_s"], y=points["row"].map(names.index) + lane, mode="markers",
                error_x=bars | {"thickness": 3, "width": 0}, name=way, legendgroup=way,
                marker={"size": 8, "color": style.PALETTE[j % len(style.PALETTE)]}, showlegend=True,
                customdata=points[["row", "low_s", "high_s"]],
                hovertemplate="%{customdata[0]}: %{x:.3g} s (%{customdata[1]:.3g} to %{customdata[2]:.3g})"
                "<extra>%{fullData.name}</extra>", **place(i),
            )  # fmt: skip
        for bound in known[(known["memory"] == panel) & known["way"].isin(ways)].to_dict("records"):
            lane, page = lanes[bound["way"]], f"{bound['page_size']},"
            heights = [n + lane for n, name in enumerate(names) if name.startswith(page)]
            look = style.coloured(_bound_look(bound["relation"]), style.INK)
            figure.add_scatter(
                x=[bound["published"]] * len(heights), y=heights, showlegend=False, hovertemplate="%{x:g} s",
                name=f"published: {bound['relation']}", **look, **place(i),
            )  # fmt: skip
        figure.update_yaxes(style.row_axis(names), **place(i))
        axis = style.time_axis([*part["low_s"], *part["high_s"]], "time")
        figure.update_xaxes(axis if i + 1 == len(panels) else axis | {"title": None}, **place(i))
    for relation in in_order(known["relation"]):
        style.key_entry(figure, f"published: {relation.replace('-', ' ')}", _bound_look(relation), style.INK)
    figure.update_layout(height=330 * len(panels) + 190)
    subtitle = "simulated estimates with ranges over interpretations"
    return style.titled(figure, "Predicted time of tearing down a VM, by way", subtitle, entries_per_row=4)


def _bound_look(relation: str) -> dict[str, object]:
    return {"mode": "markers", "marker": {"symbol": _RELATIONS[relation], "size": 12, "line": {"width": 2}}}
