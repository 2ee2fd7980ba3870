# SPDX-License-Identifier: BSD-3-Clause
"""Time of a fault in the saturated lock over vCPUs, by several readings of why it grows.

Points are measured. Lines are the model: solid where it was fitted, dashed where it is a prediction.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import draws, in_order, require, require_numbers, require_words
from simlib.figures.style import INK, PALETTE, facet_titles, facets, legend_below, titled, translucent, vcpu_axis

_DASHES = {"fitted": "solid", "predicted": "dash"}
_POINT = {"color": INK, "symbol": "circle", "size": 9, "line": {"color": "white", "width": 1}}


@draws
def saturated_fault(table: pd.DataFrame, title: str = "Time of a fault in the saturated lock") -> go.Figure:
    """Wall time a page over vCPUs, a panel a table, a line a reading.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    table : DataFrame
        Columns ``panel``, ``reading``, ``vcpus``, ``kind`` (``measured``, ``fitted``, ``predicted``), ``us_per_page``.
        ``low``, ``high`` may be there: an interval, drawn as an area.
    title : str
        Title of the figure.

    Examples
    --------
    >>> table = pd.DataFrame({"panel": "a", "reading": "constant", "vcpus": [4, 8, 16], "kind": ["fitted"] * 2 +
    ...                       ["predicted"], "us_per_page": [0.4, 0.5, 0.6]})
    >>> [line.line.dash for line in saturated_fault(table).data]
    ['solid', 'dash']
    """
    rows = require(table, ["panel", "reading", "vcpus", "kind", "us_per_page"], "table", low=np.nan, high=np.nan)
    require_words(rows, "kind", ("measured", *_DASHES), "table")
    require_numbers(rows, ["vcpus", "us_per_page"], "table", least=0)
    require_numbers(rows, ["low", "high"], "table", gaps=True, least=0)
    panels = in_order(rows["panel"])
    names = in_order(rows[rows["kind"] != "measured"]["reading"])
    colours = dict(zip(names, PALETTE * (len(names) // len(PALETTE) + 1), strict=False))
    figure, place = facets(panels, "vCPUs", columns=2)
    seen: set[str] = set()
    for number, panel in enumerate(panels):
        here, at = rows[rows["panel"].astype(str) == panel], place(number)
        for name in names:
            mine = here[(here["kind"] != "measured") & (here["reading"].astype(str) == name)]
            _line(figure, mine, name, colours[name], seen, at)
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


def _line(
    figure: go.Figure, mine: pd.DataFrame, name: str, colour: str, seen: set[str], at: dict[str, int]
) -> None:  # fmt: skip
    mine = mine.sort_values("vcpus")
    bounded = mine.dropna(subset=["low", "high"])
    if len(bounded):
        figure.add_scatter(
            x=[*bounded["vcpus"], *bounded["vcpus"][::-1]], y=[*bounded["high"], *bounded["low"][::-1]], fill="toself",
            fillcolor=translucent(colour), line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=name,
            **at,
        )  # fmt: skip
    fitted = mine[mine["kind"] == "fitted"]
    beyond = mine[mine["kind"] == "predicted"]
    parts = {"fitted": fitted, "predicted": pd.concat([fitted.tail(1), beyond]) if len(beyond) else beyond}
    for kind, part in parts.items():
        if len(part):
            figure.add_scatter(
                x=part["vcpus"], y=part["us_per_page"], mode="lines", name=name, legendgroup=name,
                line={"color": colour, "dash": _DASHES[kind], "width": 2}, showlegend=name not in seen,
                hovertemplate=f"%{{y:.3g}} µs a page, %{{x}} vCPUs<extra>{name}, {kind}</extra>", **at,
            )  # fmt: skip
            seen.add(name)
