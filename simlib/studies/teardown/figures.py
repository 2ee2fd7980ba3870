# SPDX-License-Identifier: BSD-3-Clause
"""Figures of unmapping an arm64 stage 2: published times beside the model, and predictions by way and page size."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import in_order, require, require_numbers, require_words
from simlib.figures.style import (
    INK,
    MUTED,
    PALETTE,
    facet_titles,
    facets,
    key_entry,
    legend_below,
    log_axis,
    time_axis,
    titled,
    translucent,
)
from simlib.studies.study import HELD_OUT, ROLES

UNMAP_COLUMNS = ("mapping", "kernel", "memory_gb", "published", "predicted", "low", "high", "role")
"""Columns of the table that `unmap_times` reads."""

WAY_COLUMNS = ("memory", "page_size", "mapping", "way", "estimate_s", "low_s", "high_s")
"""Columns of the table that `teardown_ways` reads."""

BOUND_COLUMNS = ("memory", "page_size", "way", "published", "relation")
"""Columns of the published bounds that `teardown_ways` may draw."""

_RELATIONS = {"up-to": "triangle-left", "below": "triangle-left-open"}


def unmap_times(table: pd.DataFrame, title: str = "Unmapping a stage 2: published, fitted, predicted") -> go.Figure:
    """Time of an unmap over memory, a panel a mapping, a colour a kernel.

    Raises `InputError` if a column is missing or a time is not a positive number.

    Parameters
    ----------
    table : DataFrame
        The columns `UNMAP_COLUMNS`, as `simlib.studies.teardown.Teardown.unmap` has them.

    Examples
    --------
    >>> row = {"mapping": "4K pages", "kernel": "base", "memory_gb": 16, "published": 8.1, "predicted": 8.1,
    ...        "low": 8.0, "high": 8.2, "role": "held out"}
    >>> [trace.name for trace in unmap_times(pd.DataFrame([row])).data if trace.showlegend]
    ['base', 'held out', 'predicted, with interval']
    """
    rows = require(table, UNMAP_COLUMNS, "table")
    require_numbers(rows, ("memory_gb", "published", "predicted", "low", "high"), "table", least=0)
    require_words(rows, "role", ROLES, "table")
    rows = rows.assign(held_out=rows["role"] == HELD_OUT)
    panels, kernels = in_order(rows["mapping"]), in_order(rows["kernel"])
    figure, place = facets(panels, "memory, GB", columns=2, shared_y=False)
    for i, panel in enumerate(panels):
        part = rows[rows["mapping"] == panel]
        for colour, kernel in zip(PALETTE, kernels, strict=False):
            _add_unmap(figure, part[part["kernel"] == kernel], kernel, colour, place(i), i == 0)
        figure.update_xaxes(log_axis([*part["memory_gb"]], "memory, GB"), **place(i))
        figure.update_yaxes(time_axis([*part["low"], *part["high"]], "" if i else "time"), **place(i))
    looks = {
        "calibrated on": (False, {"mode": "markers", "marker": {"symbol": "circle", "size": 9}}),
        "held out": (True, {"mode": "markers", "marker": {"symbol": "diamond-open", "size": 9, "line": {"width": 2}}}),
        "fitted": (False, {"mode": "lines", "line": {"width": 2.5}}),
        "predicted, with interval": (True, {"mode": "lines", "line": {"width": 2.5, "dash": "dash"}}),
    }
    for name, (held_out, look) in looks.items():
        if (rows["held_out"] == held_out).any():
            key_entry(figure, name, look, MUTED)
    facet_titles(figure)
    legend_below(figure, len(kernels), keyed=True)
    return titled(figure, title, "points: published; lines: the model; of each panel its own costs")


def _add_unmap(figure: go.Figure, rows: pd.DataFrame, name: str, colour: str, at: dict[str, int], legend: bool) -> None:
    """Points and lines of one variant; the prediction begins where the fitted line ends."""
    rows = rows.sort_values("memory_gb")
    fitted, held = rows[~rows["held_out"]], rows[rows["held_out"]]
    ahead = pd.concat([fitted.iloc[-1:], held])
    group = {"legendgroup": name, "name": name, **at}
    band = [*ahead["high"], *ahead["low"][::-1]]
    figure.add_scatter(
        x=[*ahead["memory_gb"], *ahead["memory_gb"][::-1]], y=band, fill="toself", mode="lines", line={"width": 0},
        fillcolor=translucent(colour), hoverinfo="skip", showlegend=False, **group,
    )  # fmt: skip
    for part, dash in ((fitted, "solid"), (ahead if len(held) else held, "dash")):
        figure.add_scatter(
            x=part["memory_gb"], y=part["predicted"], mode="lines", line={"color": colour, "width": 2.5, "dash": dash},
            showlegend=False, hovertemplate="%{x:g} GB: %{y:.4g} s<extra>model</extra>", **group,
        )  # fmt: skip
    for part, symbol in ((fitted, "circle"), (held, "diamond-open")):
        figure.add_scatter(
            x=part["memory_gb"], y=part["published"], mode="markers", showlegend=False,
            marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
            hovertemplate="%{x:g} GB: %{y:.4g} s<extra>published</extra>", **group,
        )  # fmt: skip
    if legend:
        key_entry(figure, name, {"mode": "lines", "line": {"width": 6}}, colour, legend="legend")


def teardown_ways(
    table: pd.DataFrame, bounds: pd.DataFrame | None = None, title: str = "Tearing a VM down: what each way takes"
) -> go.Figure:
    """Predicted teardown time, a panel a memory size, a row a page size and mapping, a colour a way.

    Raises `InputError` if a column is missing or a time is not a positive number.

    Parameters
    ----------
    table : DataFrame
        The columns `WAY_COLUMNS`.
    bounds : DataFrame, optional
        Published bounds with the columns `BOUND_COLUMNS`, ``relation`` one of ``up-to`` and ``below``; they stand in
        every row of their memory and page size, as the source does not state what maps the memory.

    Examples
    --------
    >>> row = {"memory": "64G", "page_size": "4K", "mapping": "blocks", "way": "both", "estimate_s": 12.0,
    ...        "low_s": 2.0, "high_s": 12.5}
    >>> figure = teardown_ways(pd.DataFrame([row]))
    >>> figure.layout.yaxis.ticktext, figure.data[0].x
    (('4K, blocks',), array([12.]))
    """
    rows = require(table, WAY_COLUMNS, "table")
    require_numbers(rows, ("estimate_s", "low_s", "high_s"), "table", least=0)
    known = pd.DataFrame(columns=list(BOUND_COLUMNS))
    if bounds is not None:
        known = require(bounds, BOUND_COLUMNS, "bounds")
        require_numbers(known, ("published",), "bounds", least=0)
        require_words(known, "relation", _RELATIONS, "bounds")
    rows = rows.assign(row=rows["page_size"] + ", " + rows["mapping"])
    panels, ways, names = in_order(rows["memory"]), in_order(rows["way"]), in_order(rows["row"])
    figure, place = facets([f"{panel[:-1]} {panel[-1]}iB" for panel in panels], "time", columns=1)
    height = {name: i for i, name in enumerate(names)}
    for i, panel in enumerate(panels):
        part = rows[rows["memory"] == panel]
        for j, way in enumerate(ways):
            offset, colour = 0.8 * ((j + 0.5) / len(ways) - 0.5), PALETTE[j % len(PALETTE)]
            mine = part[part["way"] == way]
            figure.add_scatter(
                x=mine["estimate_s"].to_numpy(dtype=float), y=[height[row] + offset for row in mine["row"]],
                mode="markers", marker={"size": 8, "color": colour}, name=way, legendgroup=way, showlegend=i == 0,
                error_x={"type": "data", "symmetric": False, "array": mine["high_s"] - mine["estimate_s"],
                         "arrayminus": mine["estimate_s"] - mine["low_s"], "thickness": 3, "width": 0},
                customdata=mine[["row", "low_s", "high_s"]],
                hovertemplate="%{customdata[0]}: %{x:.3g} s (%{customdata[1]:.3g} to %{customdata[2]:.3g})"
                "<extra>%{fullData.name}</extra>", **place(i),
            )  # fmt: skip
            _add_bounds(figure, known[(known["memory"] == panel) & (known["way"] == way)], height, offset, place(i))
        figure.update_yaxes(
            tickmode="array", tickvals=list(height.values()), ticktext=names, range=[len(names) - 0.5, -0.5], **place(i)
        )
        figure.update_xaxes(time_axis([*part["low_s"], *part["high_s"]], "time"), **place(i))
        if i + 1 < len(panels):
            figure.update_xaxes(title=None, **place(i))
    if len(known):
        for relation in in_order(known["relation"]):
            look = {"mode": "markers", "marker": {"symbol": _RELATIONS[relation], "size": 12, "line": {"width": 2}}}
            key_entry(figure, f"published: {relation.replace('-', ' ')}", look, INK)
    figure.update_layout(height=330 * len(panels) + 190)
    facet_titles(figure)
    legend_below(figure, len(ways), rows_of=4, keyed=bool(len(known)))
    return titled(figure, title, "predicted: a simulated estimate, and its range of readings")


def _add_bounds(
    figure: go.Figure, bounds: pd.DataFrame, height: dict[str, int], offset: float, at: dict[str, int]
) -> None:
    """Published bounds in every row of their page size."""
    for bound in bounds.to_dict("records"):
        rows = [row for row in height if row.startswith(f"{bound['page_size']},")]
        marker = {"symbol": _RELATIONS[bound["relation"]], "size": 12, "color": INK, "line": {"width": 2, "color": INK}}
        figure.add_scatter(
            x=[bound["published"]] * len(rows), y=[height[row] + offset for row in rows], mode="markers", marker=marker,
            showlegend=False, name=f"published: {bound['relation']}", hovertemplate="%{x:g} s", **at,
        )  # fmt: skip
