# SPDX-License-Identifier: BSD-3-Clause
"""Figures of real migrations: measured against predicted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, number, reads
from simlib.figures.style import PALETTE, titled

_COLUMNS = {
    "experiment": TEXT, "settings": TEXT, "completed": number(0), "completed_expected": number(0),
    "total_ms": number(0), "total_ms_expected": number(0), "total_ms_low_expected": number(0, gaps=True),
    "total_ms_high_expected": number(0, gaps=True),
}  # fmt: skip


@reads("table", _COLUMNS)
def predicted_times(rows: pd.DataFrame) -> go.Figure:
    """Total time of each real migration against its prediction, with the 90 % interval."""
    figure = go.Figure()
    ends = np.array([0.8, 1.25]) * [rows["total_ms"].min() / 1e3, rows["total_ms"].max() / 1e3]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": "#9aa0a6", "width": 1, "dash": "dot"},
                       name="as predicted", hoverinfo="skip")  # fmt: skip
    kinds = (
        ("ended, as predicted", 1, 1, "circle"),
        ("given up, as predicted", 0, 0, "circle-open"),
        ("ended, contrary to the prediction", 1, 0, "x"),
        ("given up, contrary to the prediction", 0, 1, "x-open"),
    )
    for at, (name, real, expected, symbol) in enumerate(kinds):
        part = rows[(rows["completed"] == real) & (rows["completed_expected"] == expected)]
        if part.empty:
            continue
        middle = part["total_ms_expected"] / 1e3
        figure.add_scatter(
            x=middle, y=part["total_ms"] / 1e3, mode="markers", name=name, showlegend=True,
            text=part["experiment"] + ": " + part["settings"],
            error_x={"array": part["total_ms_high_expected"] / 1e3 - middle,
                     "arrayminus": middle - part["total_ms_low_expected"] / 1e3, "thickness": 1, "width": 0},
            marker={"symbol": symbol, "size": 9, "color": PALETTE[at], "line": {"width": 1.5}},
            hovertemplate="%{text}<br>predicted %{x:.4g} s, took %{y:.4g} s<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="predicted, s", type="log")
    figure.update_yaxes(title="measured, s", type="log")
    figure.update_layout(height=520)
    return titled(figure, "Total time of real migrations: measured against predicted",
                  "points: measured; bars: predicted 90 % intervals", entries_per_row=2)  # fmt: skip
