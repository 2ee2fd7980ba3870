# SPDX-License-Identifier: BSD-3-Clause
"""Every published number: how far the model is off, fitted and held out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.fit import ROLE_LOOKS
from simlib.figures.frame import TEXT, checked, in_order, number, reads
from simlib.figures.style import HEIGHT, INK, MUTED, PALETTE, row_axis, titled, translucent

NEAR = 10
"""Percent of the band that is shaded."""

COLOURS = {"fitted": MUTED, "held out": PALETTE[0]}


_COLUMNS = {
    "study": TEXT,
    "variant": TEXT,
    "metric": TEXT,
    "vcpus": number(gaps=True),
    "role": TEXT,
    "error_percent": number(gaps=True),
}


@reads("table", _COLUMNS)
def published_errors(table: pd.DataFrame, title: str = "Predicted against published") -> go.Figure:
    """Signed errors, a line a study and metric; filled: fitted, open: held out.

    Raises `InputError` if there is no row with an error.

    - `table`: columns ``study``, ``variant``, ``metric``, ``vcpus`` (or NaN), ``role``, ``error_percent`` (NaN: not
      drawn).

    >>> rows = pd.DataFrame({"study": "seed 000", "variant": "a", "metric": "m", "vcpus": [1, 64],
    ...                      "role": ["fitted", "held out"], "error_percent": [1.0, -7.5]})
    >>> [(trace.name, trace.x.tolist()) for trace in published_errors(rows).data]
    [('fitted', [1.0]), ('held out', [-7.5])]
    """
    rows = table[np.isfinite(table["error_percent"]) & table["role"].isin(ROLE_LOOKS)]
    rows = checked(rows, _COLUMNS, "table").sort_values("study", kind="stable")
    rows = rows.sort_values("study", key=lambda names: ~names.str.startswith("seed "), kind="stable")
    rows["line"] = rows["study"] + "<br>" + rows["metric"]
    lines = in_order(rows["line"])
    figure = go.Figure()
    for i, role in enumerate(ROLE_LOOKS):
        mine = rows[rows["role"] == role]
        if mine.empty:
            continue
        vcpus = ["" if np.isnan(n) else f", {n:g} vCPUs" for n in mine["vcpus"]]
        figure.add_scatter(
            x=mine["error_percent"],
            y=[lines.index(line) + (0.14 if i else -0.14) for line in mine["line"]],
            mode="markers", name=role, marker={"size": 8, "color": COLOURS[role], **ROLE_LOOKS[role]}, cliponaxis=False,
            text=[f"{variant}{n}" for variant, n in zip(mine["variant"], vcpus, strict=True)],
            hovertemplate=f"%{{text}}: %{{x:+.1f}} %<extra>{role}</extra>",
        )  # fmt: skip
    figure.add_vrect(x0=-NEAR, x1=NEAR, fillcolor=translucent(MUTED, 0.13), line_width=0, layer="below")
    figure.update_xaxes(title="predicted − published, % of published", zeroline=True, zerolinecolor=INK)
    figure.update_yaxes(row_axis(lines) | {"tickfont": {"size": 10}})
    figure.update_layout(height=max(HEIGHT, 36 * len(lines) + 220))
    said = f"right of 0: predicted longer, or more, than published; shaded: within {NEAR} %"
    return titled(figure, title, said, rows_of=5)
