# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a measured host: held-out measurements and the model's prediction."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import COUNT, checked, number, word
from simlib.figures.style import PALETTE, error_bars, subplots, time_axis, titled

OVER = {"chunk_pages": "pages of one CLEAR", "batch": "pages of one hold of the lock"}
"""Columns that `clear_under_load` can show on the x axis, each with the title of the axis."""

_METRICS = {"clear_dirty_log_time": "CLEAR of all memory", "longest_stall": "longest stall of a vCPU"}
_KINDS = (("measured", "value", "circle"), ("predicted", "model", "diamond-tall-open"))
_ENDS = ("value_low", "value_high", "model_low", "model_high")

CLEAR_COLUMNS = {
    "vcpus": COUNT, "metric": word(_METRICS), "value": number(0), "model": number(0),
    **dict.fromkeys(_ENDS, number(gaps=True)),
}  # fmt: skip
"""Columns of the table that `clear_under_load` reads, in addition to the column of the x axis."""


def chunk_name(pages: int) -> str:
    """Axis label for the number of pages per CLEAR ioctl or per hold.

    >>> chunk_name(0), chunk_name(4096)
    ('all', '4096')
    """
    return "all" if pages == 0 else str(pages)


def clear_under_load(
    cells: pd.DataFrame, over: str = "chunk_pages", title: str = "CLEAR while the guest writes: held out and predicted"
) -> go.Figure:
    """CLEAR time and longest stall against pages per ioctl or hold; one panel per metric, one colour per vCPU count.

    - `cells`: the columns `CLEAR_COLUMNS` and `over`, where 0 means all pages; ``value`` is measured, ``value_low`` and
      ``value_high`` are the interval of that median; ``model`` is predicted, ``model_low`` and ``model_high`` are the
      range of the replications. Times in seconds.
    - `over`: one of `OVER`.

    >>> cell = {"vcpus": 1, "chunk_pages": 64, "metric": "longest_stall", "value": 2e-5, "value_low": 1e-5,
    ...         "value_high": 3e-5, "model": 2.1e-5, "model_low": 1e-5, "model_high": 4e-5}
    >>> [trace.name for trace in clear_under_load(pd.DataFrame([cell])).data]
    ['1 vCPU, measured', '1 vCPU, predicted']
    """
    rows = checked(cells, {over: COUNT, **CLEAR_COLUMNS}, "cells")
    metrics = [metric for metric in _METRICS if (rows["metric"] == metric).any()]
    chunks = sorted(set(rows[over]), key=lambda pages: pages or float("inf"))
    counts = sorted(set(rows["vcpus"]))
    figure = subplots(1, len(metrics), column_titles=[_METRICS[m] for m in metrics], horizontal_spacing=0.1)
    for column, metric in enumerate(metrics, 1):
        metric_rows = rows[rows["metric"] == metric]
        for i, (vcpus, colour) in enumerate(zip(counts, PALETTE * 9, strict=False)):
            vcpu_rows = metric_rows[metric_rows["vcpus"] == vcpus]
            vcpu_text = f"{vcpus} vCPU{'s' if vcpus > 1 else ''}"
            for position, (kind, prefix, symbol) in enumerate(_KINDS):
                centre = i - (len(counts) - 1) / 2
                x = [chunks.index(c) + 0.2 * centre + 0.08 * (position - 0.5) for c in vcpu_rows[over]]
                bars = error_bars(vcpu_rows[prefix], vcpu_rows[f"{prefix}_low"], vcpu_rows[f"{prefix}_high"])
                name = f"{vcpu_text}, {kind}"
                figure.add_scatter(
                    x=x, y=vcpu_rows[prefix], mode="markers", name=name, legendgroup=name, showlegend=True,
                    marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
                    error_y=bars | {"thickness": 1.3, "width": 4},
                    customdata=[chunk_name(c) for c in vcpu_rows[over]],
                    hovertemplate=f"{name}<br>%{{customdata}} pages: %{{y:.3g}} s<extra></extra>",
                    row=1, col=column,
                )  # fmt: skip
        figure.update_xaxes(
            tickmode="array", tickvals=list(range(len(chunks))), ticktext=[chunk_name(c) for c in chunks],
            title=OVER[over], row=1, col=column,
        )  # fmt: skip
        figure.update_yaxes(time_axis(metric_rows[list(_ENDS)].to_numpy().ravel(), ""), row=1, col=column)
    figure.update_layout(height=470, margin_t=116)
    subtitle = "measured: median with its 90 % interval; predicted: median and 90 % range of the replications"
    return titled(figure, title, subtitle, entries_per_row=2)
