# SPDX-License-Identifier: BSD-3-Clause
"""Every published number: how far the model is off, fitted and held out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.fit import ROLE_LOOKS
from simlib.figures.frame import in_order, require, require_numbers
from simlib.figures.style import HEIGHT, INK, MUTED, PALETTE, legend_below, titled, translucent

NEAR = 10
"""Percent of the band that is shaded."""

COLOURS = {"fitted": MUTED, "held out": PALETTE[0]}


def published_errors(table: pd.DataFrame, title: str = "Predicted against published") -> go.Figure:
    """Signed errors, a line a study and metric; filled: fitted, open: held out.

    Raises `InputError` if a column is missing, or there is no row with an error.

    Parameters
    ----------
    table : DataFrame
        Columns ``study``, ``variant``, ``metric``, ``vcpus`` (or NaN), ``role``, ``error_percent`` (NaN: not drawn).
    title : str
        Title of the figure.

    Examples
    --------
    >>> rows = pd.DataFrame({"study": "seed 000", "variant": "a", "metric": "m", "vcpus": [1, 64],
    ...                      "role": ["fitted", "held out"], "error_percent": [1.0, -7.5]})
    >>> [(trace.name, trace.x.tolist()) for trace in published_errors(rows).data]
    [('fitted', [1.0]), ('held out', [-7.5])]
    """
    columns = ["study", "variant", "metric", "vcpus", "role", "error_percent"]
    rows = require(table, columns, "table")
    require_numbers(rows, ["error_percent", "vcpus"], "table", gaps=True)
    rows = rows[np.isfinite(rows["error_percent"].to_numpy(dtype=float)) & rows["role"].isin(list(ROLE_LOOKS))]
    rows = require(rows, columns, "table")
    rows = rows.assign(beside=~rows["study"].astype(str).str.startswith("seed "))
    rows = rows.sort_values(["beside", "study"], kind="stable")  # the seeds first
    rows["line"] = rows["study"].astype(str) + "<br>" + rows["metric"].astype(str)
    lines = in_order(rows["line"])
    figure = go.Figure()
    for i, role in enumerate(ROLE_LOOKS):
        mine = rows[rows["role"] == role]
        if mine.empty:
            continue
        vcpus = ["" if np.isnan(n) else f", {n:g} vCPUs" for n in mine["vcpus"].astype(float)]
        figure.add_scatter(
            x=mine["error_percent"].to_numpy(dtype=float),
            y=[lines.index(line) + (0.14 if i else -0.14) for line in mine["line"]],
            mode="markers", name=role, marker={"size": 8, "color": COLOURS[role], **ROLE_LOOKS[role]}, cliponaxis=False,
            text=[f"{variant}{n}" for variant, n in zip(mine["variant"], vcpus, strict=True)],
            hovertemplate=f"%{{text}}: %{{x:+.1f}} %<extra>{role}</extra>",
        )  # fmt: skip
    figure.add_vrect(x0=-NEAR, x1=NEAR, fillcolor=translucent(MUTED, 0.13), line_width=0, layer="below")
    figure.update_xaxes(title="predicted − published, % of published", zeroline=True, zerolinecolor=INK)
    figure.update_yaxes(tickmode="array", tickvals=list(range(len(lines))), ticktext=lines, ticks="",
                        tickfont={"size": 10}, range=[len(lines) - 0.4, -0.6])  # fmt: skip
    figure.update_layout(height=max(HEIGHT, 36 * len(lines) + 220))
    legend_below(figure, 2)
    return titled(figure, title, f"right of 0: predicted longer, or more, than published; shaded: within {NEAR} %")
