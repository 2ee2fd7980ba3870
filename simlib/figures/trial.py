# SPDX-License-Identifier: BSD-3-Clause
"""Changes due to a patch series in the lab, one point per measured quantity."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, in_order, number, reads

MOST = 60
"""Largest number of rows; those with the largest changes are drawn."""


@reads("table", {"mmu_mode": TEXT, "cell": TEXT, "name": TEXT, "ratio": number(0), "low": number(0), "high": number(0)})
def differences(table: pd.DataFrame, title: str = "Changes due to the series in the lab") -> go.Figure:
    """Ratios of the results with the series to those without it, with their intervals; one colour per MMU mode.

    - `table`: columns ``mmu_mode``, ``cell``, ``name``, ``ratio``, ``low``, ``high``; only numbers that the series
      changes.

    >>> rows = pd.DataFrame({"mmu_mode": ["x86_64/npt"], "cell": ["parked"], "name": ["clear: time"], "ratio": [1.2],
    ...                      "low": [1.1], "high": [1.3]})
    >>> differences(rows).data[0].x.tolist()
    [1.2]
    """
    size = np.abs(np.log(table["ratio"].clip(lower=1e-9)))
    rows = table[size >= size.nlargest(MOST).min()]
    lines = in_order(rows["cell"] + ", " + rows["name"])
    modes = in_order(rows["mmu_mode"])
    axis = style.log_axis([*rows[["ratio", "low", "high"]].to_numpy().ravel(), 0.9, 1.1],
                          "ratio: with the series / without it", style.plain_number)  # fmt: skip
    left, right = (10**end for end in axis["range"])
    figure = go.Figure()
    for i, (mode, colour) in enumerate(zip(modes, style.PALETTE, strict=False)):
        mode_rows = rows[rows["mmu_mode"] == mode]
        shift = 0.22 * (i - (len(modes) - 1) / 2)
        ratio, low, high = (mode_rows[name].clip(left, right) for name in ("ratio", "low", "high"))
        figure.add_scatter(
            x=ratio, y=[lines.index(line) + shift for line in mode_rows["cell"] + ", " + mode_rows["name"]],
            mode="markers", name=mode, showlegend=True, cliponaxis=False,
            marker={"size": 8, "color": colour, "symbol": np.where(mode_rows["ratio"] > 0, "circle", "triangle-left")},
            error_x=style.error_bars(ratio, low, high), text=[f"× {value:.4g}" for value in mode_rows["ratio"]],
            hovertemplate=f"%{{text}}<extra>{mode}</extra>",
        )  # fmt: skip
    figure.add_vline(x=1, line={"color": style.INK, "width": 1})
    figure.update_xaxes(axis)
    figure.update_yaxes(style.row_axis(lines) | {"tickfont": {"size": 10}})
    figure.update_layout(height=max(style.HEIGHT, 22 * len(lines) + 220))
    subtitle = "measured under emulation, 95 % intervals; right of 1: more, or longer"
    return style.titled(figure, title, subtitle, entries_per_row=3)
