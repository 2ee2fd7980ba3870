# SPDX-License-Identifier: BSD-3-Clause
"""The eager-split walk: published changes beside the model's, and what the ioctls' time consists of.

A black circle is published, with its standard deviation. The model is blue: a tick if its costs were fitted to this
very number, a hollow diamond, with its interval, if the number was predicted.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.figures.style import INK, PALETTE, error_bars, facets, row_axis, signed, titled

WHAT = {
    "walk_entry, last level": "visits, last level",
    "walk_entry, other": "visits that remain",
    "protect_entry": "write-protecting",
    "table_entry": "entries of new tables",
    "split_block": "replacing blocks",
    "clear_word": "words",
}
"""What time is spent on, in the order of the bars, and its words."""

CHANGE_COLUMNS = {"machine": TEXT, "metric": TEXT, "backing": TEXT, "published": number(), "deviation": number(),
                  "fitted": number(), "predicted": number(), "low": number(), "high": number()}  # fmt: skip
"""Columns of the table that `changes` reads."""

SHARE_COLUMNS = {"panel": TEXT, "case": TEXT, "what": word(WHAT), "share_percent": number(0)}
"""Columns of the table that `shares` reads."""

_LOOKS = {
    "published": ("published", {"symbol": "circle", "size": 9, "color": INK}),
    "fitted": ("model, fitted", {"symbol": "line-ns-open", "size": 17, "color": PALETTE[0], "line": {"width": 4}}),
    "predicted": ("model, from the other five",
                  {"symbol": "diamond-tall-open", "size": 13, "color": PALETTE[0], "line": {"width": 2}}),
}  # fmt: skip


@reads("table", CHANGE_COLUMNS)
def changes(rows: pd.DataFrame) -> go.Figure:
    """Changes of the ioctl's time, percent, a panel a machine, a row a case, as the study's numbers have them."""
    rows = rows.assign(case=rows["metric"] + ", " + rows["backing"])
    panels, cases = in_order(rows["machine"]), in_order(rows["case"])
    figure, place = facets(panels, "change of the ioctl's time, %", columns=2)
    for index, panel in enumerate(panels):
        part = rows[rows["machine"] == panel]
        height, bars = part["case"].map(cases.index), error_bars(part["predicted"], part["low"], part["high"])
        deviation = {"array": part["deviation"], "arrayminus": part["deviation"]}
        bars_of = {"published": bars | deviation, "predicted": bars}
        for lane, (kind, (name, marker)) in zip((-0.22, 0.0, 0.22), _LOOKS.items(), strict=True):
            figure.add_scatter(
                x=part[kind], y=height + lane, mode="markers", marker=marker, error_x=bars_of.get(kind),
                name=name, legendgroup=kind, showlegend=True,
                text=[f"{case}: {signed(change)} %" for case, change in zip(part["case"], part[kind], strict=True)],
                hovertemplate="%{text}<extra>%{fullData.name}</extra>", **place(index),
            )  # fmt: skip
    figure.update_yaxes(**row_axis(cases), showgrid=False)
    figure.update_xaxes(zeroline=True)
    deviations = "published mean and deviation over guest modes; the model's 90 % intervals"
    return titled(figure, "What skipping the last level changes", deviations, rows_of=3)


@reads("table", SHARE_COLUMNS)
def shares(rows: pd.DataFrame) -> go.Figure:
    """Shares of the time of an ioctl as it is, percent, a panel a machine, a bar a case."""
    panels, spent = in_order(rows["panel"]), [what for what in WHAT if what in set(rows["what"])]
    figure, place = facets(panels, "share of the time, %", columns=2)
    for index, panel in enumerate(panels):
        for what in spent:
            part = rows[(rows["panel"] == panel) & (rows["what"] == what)]
            figure.add_bar(
                x=part["share_percent"], y=part["case"], orientation="h", name=WHAT[what], legendgroup=what,
                marker_color=PALETTE[list(WHAT).index(what)], showlegend=True,
                hovertemplate="%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>", **place(index),
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(categoryorder="array", categoryarray=in_order(rows["case"])[::-1])
    figure.update_xaxes(range=[0, 100])
    fitted = "fitted; the published change is the part that visits of the last level are"
    return titled(figure, "What the time of the ioctl consists of", fitted, rows_of=3)
