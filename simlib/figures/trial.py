# SPDX-License-Identifier: BSD-3-Clause
"""What a patch series changes in the lab: one point a number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, in_order, number, reads

MOST = 60
"""Rows that are drawn: those that differ most."""


@reads("table", {"machine": TEXT, "cell": TEXT, "name": TEXT, "ratio": number(0), "low": number(0), "high": number(0)})
def differences(table: pd.DataFrame, title: str = "What the series changes in the lab") -> go.Figure:
    """Ratios of the changed kernel's numbers to those of the other one, with their intervals; a colour a machine.

    - `table`: columns ``machine``, ``cell``, ``name``, ``ratio``, ``low``, ``high``; only numbers that are changed.

    >>> rows = pd.DataFrame({"machine": ["x86_64/npt"], "cell": ["parked"], "name": ["clear: time"], "ratio": [1.2],
    ...                      "low": [1.1], "high": [1.3]})
    >>> differences(rows).data[0].x.tolist()
    [1.2]
    """
    size = np.abs(np.log(table["ratio"].clip(lower=1e-9)))
    rows = table[size >= size.nlargest(MOST).min()]
    lines = in_order(rows["cell"] + ", " + rows["name"])
    machines = in_order(rows["machine"])
    axis = style.log_axis([*rows[["ratio", "low", "high"]].to_numpy().ravel(), 0.9, 1.1],
                          "with the series over without it", style.plain_number)  # fmt: skip
    left, right = (10**end for end in axis["range"])
    figure = go.Figure()
    for i, (machine, colour) in enumerate(zip(machines, style.PALETTE, strict=False)):
        mine = rows[rows["machine"] == machine]
        shift = 0.22 * (i - (len(machines) - 1) / 2)
        ratio, low, high = (mine[name].clip(left, right) for name in ("ratio", "low", "high"))
        figure.add_scatter(
            x=ratio, y=[lines.index(line) + shift for line in mine["cell"] + ", " + mine["name"]],
            mode="markers", name=machine, showlegend=True, cliponaxis=False,
            marker={"size": 8, "color": colour, "symbol": np.where(mine["ratio"] > 0, "circle", "triangle-left")},
            error_x=style.error_bars(ratio, low, high), text=[f"× {value:.4g}" for value in mine["ratio"]],
            hovertemplate=f"%{{text}}<extra>{machine}</extra>",
        )  # fmt: skip
    figure.add_vline(x=1, line={"color": style.INK, "width": 1})
    figure.update_xaxes(axis)
    figure.update_yaxes(style.row_axis(lines) | {"tickfont": {"size": 10}})
    figure.update_layout(height=max(style.HEIGHT, 22 * len(lines) + 220))
    said = "measured under emulation, 95 % intervals; right of 1: more, or longer"
    return style.titled(figure, title, said, rows_of=3)
