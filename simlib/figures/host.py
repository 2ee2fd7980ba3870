# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a measured host: what was held out beside the model's prediction."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlib.figures.frame import require, require_numbers, require_words
from simlib.figures.style import PALETTE, facet_titles, legend_below, time_axis, titled

CLEAR_COLUMNS = ("vcpus", "metric", "value", "value_low", "value_high", "model", "model_low", "model_high")
"""Columns of the table that `clear_under_load` reads, beside the one that it draws over."""

OVER = {"chunk_pages": "pages of one CLEAR", "batch": "pages of one hold of the lock"}
"""What `clear_under_load` can draw over."""

_METRICS = {"clear_dirty_log_time": "CLEAR of all memory", "longest_stall": "longest stall of a vCPU"}


def chunk_name(pages: int) -> str:
    """Pages of one CLEAR ioctl, or of one hold, as an axis has them.

    >>> chunk_name(0), chunk_name(4096)
    ('all', '4096')
    """
    return "all" if pages == 0 else str(pages)


def clear_under_load(
    cells: pd.DataFrame, over: str = "chunk_pages", title: str = "CLEAR while the guest writes: held out, and predicted"
) -> go.Figure:
    """CLEAR time and longest stall over pages of one ioctl, or of one hold: a panel a metric, a colour a vCPU count.

    Raises `InputError` if a column is missing, the table is empty, or a metric is not known.

    - `cells`: the columns `CLEAR_COLUMNS` and `over`, of which 0 is all of them; ``value`` was measured, ``value_low``
      and ``value_high`` are the interval of that median; ``model`` is predicted, ``model_low`` and ``model_high`` are
      between which the replications lie. Times in seconds.
    - `over`: one of `OVER`.

    >>> cell = {"vcpus": 1, "chunk_pages": 64, "metric": "longest_stall", "value": 2e-5, "value_low": 1e-5,
    ...         "value_high": 3e-5, "model": 2.1e-5, "model_low": 1e-5, "model_high": 4e-5}
    >>> [trace.name for trace in clear_under_load(pd.DataFrame([cell])).data]
    ['1 vCPU, measured', '1 vCPU, predicted']
    """
    rows = require(cells, (over, *CLEAR_COLUMNS), "cells")
    require_words(rows, "metric", _METRICS, "cells")
    require_numbers(rows, ("value", "model"), "cells", least=0)
    metrics = [metric for metric in _METRICS if (rows["metric"] == metric).any()]
    chunks = sorted(set(rows[over]), key=lambda pages: pages or float("inf"))
    counts = sorted(set(rows["vcpus"]))
    figure = make_subplots(1, len(metrics), column_titles=[_METRICS[m] for m in metrics], horizontal_spacing=0.1)
    seen: set[str] = set()
    for column, metric in enumerate(metrics, 1):
        of_metric = rows[rows["metric"] == metric]
        for number, (vcpus, colour) in enumerate(zip(counts, PALETTE * 9, strict=False)):
            mine = of_metric[of_metric["vcpus"] == vcpus]
            who = f"{vcpus} vCPU{'s' if vcpus > 1 else ''}"
            for which, (what, prefix, symbol) in enumerate(_KINDS):
                centre = number - (len(counts) - 1) / 2
                x = [chunks.index(c) + 0.2 * centre + 0.08 * (which - 0.5) for c in mine[over]]
                up, down = mine[f"{prefix}_high"] - mine[prefix], mine[prefix] - mine[f"{prefix}_low"]
                name = f"{who}, {what}"
                figure.add_scatter(
                    x=x, y=mine[prefix], mode="markers", name=name, legendgroup=name, showlegend=name not in seen,
                    marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
                    error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1.3, "width": 4},
                    customdata=[chunk_name(c) for c in mine[over]],
                    hovertemplate=f"{name}<br>%{{customdata}} pages: %{{y:.3g}} s<extra></extra>",
                    row=1, col=column,
                )  # fmt: skip
                seen.add(name)
        figure.update_xaxes(
            tickmode="array", tickvals=list(range(len(chunks))), ticktext=[chunk_name(c) for c in chunks],
            title=OVER[over], row=1, col=column,
        )  # fmt: skip
        ends = ("value_low", "value_high", "model_low", "model_high")
        values = [v for end in ends for v in of_metric[end] if v > 0]
        figure.update_yaxes(time_axis(values, ""), row=1, col=column)
    facet_titles(figure)
    legend_below(figure, len(seen), rows_of=2)
    figure.update_layout(height=470, margin_t=116)
    return titled(figure, title, "measured: median with its 90 % interval; predicted: median and 90 % of replications")


_KINDS = (("measured", "value", "circle"), ("predicted", "model", "diamond-tall-open"))
