# SPDX-License-Identifier: BSD-3-Clause
"""Errors of held-out points by model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, number, reads, word


@reads("errors", {"variant": TEXT, "vcpus": number(), "model": word(style.MODEL_COLOURS), "error_percent": number()})
def held_out_errors(errors: pd.DataFrame, title: str = "Error of the predictions of held-out points") -> go.Figure:
    """Signed errors of held-out points against the number of vCPUs, by model, one panel per variant.

    - `errors`: columns ``variant``, ``vcpus``, ``model`` (``simlib``, ``USL``, ``Amdahl``), ``error_percent``:
      predicted over measured, minus one, in percent.

    >>> errors = pd.DataFrame({"variant": "a", "vcpus": [16, 32], "model": "simlib",
    ...                        "error_percent": [-2.0, 3.5]})
    >>> held_out_errors(errors).data[0].text
    ('−2', '+3.5')
    """
    looks = {model: (model, {"color": colour}) for model, colour in style.MODEL_COLOURS.items()}
    figure = style.bars_over_vcpus(errors, "model", "error_percent", looks, "%{y:+.1f} %")
    for trace in figure.data:
        trace.text = ["" if np.isnan(v) else style.signed(v) for v in trace.y]
    figure.update_traces(textposition="outside", textangle=0, textfont={"size": 10}, cliponaxis=False)
    low, high = min(0.0, errors["error_percent"].min()), max(0.0, errors["error_percent"].max())
    room = 0.12 * (high - low or 1.0)
    figure.update_yaxes(range=[low - room, high + room], zeroline=True, zerolinecolor=style.INK, zerolinewidth=1.5)
    figure.update_yaxes(title="predicted − measured, % of measured", col=1)
    figure.update_layout(barmode="group", bargap=0.2, bargroupgap=0.08)
    subtitle = "held-out points only; above 0: predicted slower than measured"
    return style.titled(figure, title, subtitle, entries_per_row=6)
