# SPDX-License-Identifier: BSD-3-Clause
"""Figures of dirty tracking by hardware: stalls of a migrated guest with and without it."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.figures.style import PALETTE, facets, row_axis, time_axis, titled
from simlib.model.quantities import seconds_text
from studies.hardware_logs.relevance import HOLDS, TRACKED

_COLUMNS = {"mmu": TEXT, "memory": TEXT, "tracking": word(TRACKED), "hold": word(HOLDS),
            "longest_stall_s": number(0), "lost_percent": number(0)}  # fmt: skip
_SYMBOLS = dict(zip(HOLDS, ("circle", "diamond-open"), strict=True))


@reads("table", _COLUMNS)
def longest_stalls(rows: pd.DataFrame) -> go.Figure:
    """Longest stall: one row per memory and MMU, one colour per way of tracking, one symbol per hold of CLEAR."""
    rows = rows.assign(row=rows["memory"] + ", " + rows["mmu"])
    names = in_order(rows["row"])
    figure, _ = facets([""], "longest stall of a vCPU", columns=1)
    lanes = [(tracking, hold) for tracking in TRACKED for hold in HOLDS]
    for lane, (tracking, hold) in zip((-0.24, -0.08, 0.08, 0.24), lanes, strict=True):
        part = rows[(rows["tracking"] == tracking) & (rows["hold"] == hold)]
        labels = [
            f"{row}: {seconds_text(stall)}, {lost:.3g} % of the guest's time lost"
            for row, stall, lost in zip(part["row"], part["longest_stall_s"], part["lost_percent"], strict=True)
        ]
        figure.add_scatter(
            x=part["longest_stall_s"], y=part["row"].map(names.index) + lane, mode="markers", text=labels,
            name=f"{tracking}, CLEAR holds the lock for {hold}", showlegend=True,
            marker={"symbol": _SYMBOLS[hold], "size": 11, "color": PALETTE[list(TRACKED).index(tracking)],
                    "line": {"width": 2}},
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_yaxes(row_axis(names))
    figure.update_xaxes(time_axis(rows["longest_stall_s"], "longest stall of a vCPU"))
    figure.update_layout(height=90 * len(names) + 190)
    title = "Does mmu_lock matter when the hardware logs?"
    return titled(figure, title, "simulated: 64 vCPUs, 256 GiB", entries_per_row=2)
