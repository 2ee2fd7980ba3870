# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the eager-split walk: published and modelled changes, and the composition of the ioctls' time.

A black circle is a published change with its standard deviation. The model is blue: a tick if the costs were fitted to
the same number, a hollow diamond with its interval if the number was predicted.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.figures.style import INK, PALETTE, error_bars, facets, row_axis, signed, titled

ACTIVITIES = {
    "walk_entry, last level": "visits, last level",
    "walk_entry, other": "remaining visits",
    "protect_entry": "write-protecting",
    "table_entry": "entries of new tables",
    "split_block": "replacing blocks",
    "clear_word": "words of the bitmap",
}
"""Labels of the activities, in the order of the bars."""

_CHANGE = dict.fromkeys(("published", "deviation", "fitted", "predicted", "low", "high"), number())
_CHANGES = {"machine": TEXT, "metric": TEXT, "backing": TEXT, **_CHANGE}
SHARE_COLUMNS = {"panel": TEXT, "case": TEXT, "what": word(ACTIVITIES), "share_percent": number(0)}
_LOOKS = {
    "published": ("published", {"symbol": "circle", "size": 9, "color": INK}),
    "fitted": ("model, fitted", {"symbol": "line-ns-open", "size": 17, "color": PALETTE[0], "line": {"width": 4}}),
    "predicted": ("model, from the other five",
                  {"symbol": "diamond-tall-open", "size": 13, "color": PALETTE[0], "line": {"width": 2}}),
}  # fmt: skip


@reads("table", _CHANGES)
def changes(rows: pd.DataFrame) -> go.Figure:
    """Changes in the ioctl's time, percent, one panel for each machine and one row for each case."""
    rows = rows.assign(case=rows["metric"] + ", " + rows["backing"])
    panels, cases = in_order(rows["machine"]), in_order(rows["case"])
    figure, place = facets(panels, "change in ioctl time, %", columns=2)
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
    deviations = "published mean and standard deviation over guest modes; the model's 90 % intervals"
    return titled(figure, "Change in ioctl time without the last level", deviations, entries_per_row=3)


@reads("table", SHARE_COLUMNS)
def shares(rows: pd.DataFrame) -> go.Figure:
    """Shares of the unmodified ioctl's time, percent, one panel for each machine and one bar for each case."""
    panels = in_order(rows["panel"])
    activities = [activity for activity in ACTIVITIES if activity in set(rows["what"])]
    figure, place = facets(panels, "share of the time, %", columns=2)
    for index, panel in enumerate(panels):
        for activity in activities:
            part = rows[(rows["panel"] == panel) & (rows["what"] == activity)]
            figure.add_bar(
                x=part["share_percent"], y=part["case"], orientation="h", name=ACTIVITIES[activity],
                legendgroup=activity, marker_color=PALETTE[list(ACTIVITIES).index(activity)], showlegend=True,
                hovertemplate="%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>", **place(index),
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(categoryorder="array", categoryarray=in_order(rows["case"])[::-1])
    figure.update_xaxes(range=[0, 100])
    subtitle = "fitted; the published change is the share of the last level's visits"
    return titled(figure, "Composition of the ioctl's time", subtitle, entries_per_row=3)
