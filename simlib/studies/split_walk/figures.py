# SPDX-License-Identifier: BSD-3-Clause
"""The eager-split walk: published changes beside the model's, and what the ioctls' time consists of.

A black circle is published, with its standard deviation. The model is blue: a tick if its costs were fitted to this
very number, a hollow diamond, with its interval, if the number was predicted.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import in_order, require, require_numbers, require_words
from simlib.figures.style import INK, PALETTE, facet_titles, facets, legend_below, signed, titled

CHANGE_COLUMNS = ("machine", "metric", "backing", "published", "deviation", "fitted", "predicted", "low", "high")
"""Columns of the table that `changes` reads."""

SHARE_COLUMNS = ("panel", "case", "what", "share_percent")
"""Columns of the table that `shares` reads."""

WHAT = {
    "walk_entry, last level": "visits, last level",
    "walk_entry, other": "visits that remain",
    "protect_entry": "write-protecting",
    "table_entry": "entries of new tables",
    "split_block": "replacing blocks",
    "clear_word": "words",
}
"""What time is spent on, in the order of the bars, and its words."""

_LOOKS = {
    "published": {"symbol": "circle", "size": 9, "color": INK},
    "fitted": {"symbol": "line-ns-open", "size": 17, "color": PALETTE[0], "line": {"width": 4}},
    "predicted": {"symbol": "diamond-tall-open", "size": 13, "color": PALETTE[0], "line": {"width": 2}},
}
_NAMES = {"published": "published", "fitted": "model, fitted", "predicted": "model, from the other five"}
_LANES = {"published": 0.22, "fitted": 0.0, "predicted": -0.22}


def changes(table: pd.DataFrame, title: str = "What skipping the last level changes") -> go.Figure:
    """Changes of the ioctl's time, percent, a panel a machine, a row a case.

    Raises `InputError` if a column is missing, the table is empty, or a change is no number.

    Parameters
    ----------
    table : DataFrame
        The columns `CHANGE_COLUMNS`, as the study's numbers have them.

    Examples
    --------
    >>> row = {"machine": "AmpereOne", "metric": "enable", "backing": "thp", "published": -11.94, "deviation": 2.55,
    ...        "fitted": -11.0, "predicted": -9.0, "low": -14.0, "high": -4.0}
    >>> changes(pd.DataFrame([row])).data[0].x
    array([-11.94])
    """
    rows = require(table, CHANGE_COLUMNS, "table")
    require_numbers(rows, CHANGE_COLUMNS[3:], "table")
    rows = rows.assign(case=rows["metric"] + ", " + rows["backing"])
    panels, cases = in_order(rows["machine"]), in_order(rows["case"])
    figure, place = facets(panels, "change of the ioctl's time, %", columns=2)
    heights = {case: len(cases) - 1 - index for index, case in enumerate(cases)}
    for index, panel in enumerate(panels):
        part = rows[rows["machine"] == panel]
        ends = {"published": (part["deviation"], part["deviation"]),
                "predicted": (part["high"] - part["predicted"], part["predicted"] - part["low"])}  # fmt: skip
        for kind, look in _LOOKS.items():
            change = part[kind].to_numpy(dtype=float)
            error = {}
            if kind in ends:
                above, below = (end.to_numpy(dtype=float) for end in ends[kind])
                error = {"error_x": {"array": above, "arrayminus": below, "symmetric": False, "color": look["color"],
                                     "thickness": 1.5, "width": 3}}  # fmt: skip
            figure.add_scatter(
                x=change, y=[heights[case] + _LANES[kind] for case in part["case"]], mode="markers", marker=look,
                name=_NAMES[kind], legendgroup=kind, showlegend=index == 0,
                text=[f"{case}: {signed(value)} %" for case, value in zip(part["case"], change, strict=True)],
                hovertemplate="%{text}<extra>%{fullData.name}</extra>", **error, **place(index),
            )  # fmt: skip
    figure.update_yaxes(tickmode="array", tickvals=list(heights.values()), ticktext=list(heights), showgrid=False,
                        range=[-0.6, len(cases) - 0.4])  # fmt: skip
    figure.update_xaxes(zeroline=True)
    facet_titles(figure)
    legend_below(figure, len(_LOOKS), rows_of=3)
    return titled(figure, title, "published mean and deviation over guest modes; the model's 90 % intervals")


def shares(table: pd.DataFrame, title: str = "What the time of the ioctl consists of") -> go.Figure:
    """Shares of the time of an ioctl as it is, percent, a panel a machine, a bar a case.

    Raises `InputError` if a column is missing, the table is empty, or a part of the time is not known.

    Parameters
    ----------
    table : DataFrame
        The columns `SHARE_COLUMNS`: ``what`` is one of `WHAT`.

    Examples
    --------
    >>> row = {"panel": "AmpereOne", "case": "enable, thp", "what": "table_entry", "share_percent": 80.0}
    >>> shares(pd.DataFrame([row])).data[0].name
    'entries of new tables'
    """
    rows = require(table, SHARE_COLUMNS, "table")
    require_words(rows, "what", WHAT, "table")
    require_numbers(rows, ["share_percent"], "table", least=0)
    panels, cases = in_order(rows["panel"]), in_order(rows["case"])
    figure, place = facets(panels, "share of the time, %", columns=2)
    seen: set[str] = set()
    for index, panel in enumerate(panels):
        mine = rows[rows["panel"].astype(str) == panel]
        for colour, (what, words) in zip(PALETTE, WHAT.items(), strict=False):
            part = mine[mine["what"] == what]
            if part.empty:
                continue
            figure.add_bar(
                x=part["share_percent"].to_numpy(dtype=float), y=part["case"].astype(str), orientation="h",
                marker_color=colour, name=words, legendgroup=what, showlegend=what not in seen,
                hovertemplate="%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>", **place(index),
            )  # fmt: skip
            seen.add(what)
    figure.update_layout(barmode="stack")
    figure.update_yaxes(categoryorder="array", categoryarray=cases[::-1])
    figure.update_xaxes(range=[0, 100])
    facet_titles(figure)
    legend_below(figure, len(seen), rows_of=3)
    return titled(figure, title, "fitted; the published change is the part that visits of the last level are")
