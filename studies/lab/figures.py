# SPDX-License-Identifier: BSD-3-Clause
"""Figures of the lab's data: cells under load compared with the simulator, and effects of each switch.

The lab's clock advances by one nanosecond per instruction of any CPU, so titles say "lab time".
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import COUNT, TEXT, in_order, number, reads, word
from simlib.lab.hardware.load import MAIN_METRICS, METRICS

_CELL = {"machine": TEXT, "metric": word(METRICS), **dict.fromkeys(("lab", "lab_low", "lab_high", "model"), number(0))}
_LOAD = {**_CELL, "vcpus": number(1), "batch": COUNT}
_TURN = {**_CELL, "turn": number(1)}
_SWITCH = {"setting": TEXT, "metric": TEXT, "value": number(0), "low": number(0), "high": number(0)}


@reads("cells", _LOAD)
def under_load(rows: pd.DataFrame) -> go.Figure:
    """Plot CLEAR time, longest stall and 99.9th percentile of gaps against vCPUs; columns: machines, colours: batches.

    - `rows`: ``machine``, ``vcpus``, ``batch``, ``metric``; seconds of lab time: ``lab``, the median over the seeds,
      their range ``lab_low`` to ``lab_high``, and ``model``. No cell was used for calibration.
    """
    machines, batches = in_order(rows["machine"]), sorted(set(rows["batch"]))
    metrics = [metric for metric in MAIN_METRICS if metric in set(rows["metric"])]
    figure = style.subplots(
        len(metrics), len(machines), column_titles=machines, shared_xaxes=True, shared_yaxes="rows",
        horizontal_spacing=0.02, vertical_spacing=0.06,
    )  # fmt: skip
    for (i, metric), (j, machine) in product(enumerate(metrics, 1), enumerate(machines, 1)):
        for colour, batch in zip(style.PALETTE, batches, strict=False):
            part = rows[(rows["metric"] == metric) & (rows["machine"] == machine) & (rows["batch"] == batch)]
            part = part.sort_values("vcpus")
            name = f"{batch} pages" if batch else "whole ioctl"
            for trace in _line_and_points(part, "vcpus", colour, name):
                figure.add_scatter(**trace, legendgroup=trace["name"], showlegend=True, row=i, col=j)
        figure.update_xaxes(style.vcpu_axis(rows["vcpus"]), row=i, col=j)
        figure.update_yaxes(_times(rows[rows["metric"] == metric], METRICS[metric]), row=i, col=j)
        if i < len(metrics):
            figure.update_xaxes(title=None, row=i, col=j)
        if j > 1:
            figure.update_yaxes(title=None, row=i, col=j)
    figure.update_layout(height=280 * len(metrics) + 220, margin_t=116)
    subtitle = "lab time; points: median and range over the seeds; lines: simulated from instruction costs"
    return style.titled(figure, "CLEAR under load: lab and simulator", subtitle, entries_per_row=3)


def _times(rows: pd.DataFrame, title: str) -> dict[str, Any]:
    return style.time_axis([*rows["lab_low"], *rows["lab_high"], *rows["model"]], title)


def _line_and_points(rows: pd.DataFrame, x: str, colour: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the simulator's line, and the lab's points with their range."""
    lines = {"x": rows[x], "y": rows["model"], "mode": "lines", "line": {"color": colour, "width": 2.5},
             "name": f"{name}, simulated"}  # fmt: skip
    marker = {"symbol": "diamond-open", "size": 9, "color": colour, "line": {"width": 2, "color": colour}}
    bars = style.error_bars(rows["lab"], rows["lab_low"], rows["lab_high"])
    points = {"x": rows[x], "y": rows["lab"], "mode": "markers", "marker": marker, "error_y": bars,
              "name": f"{name}, lab, held out"}  # fmt: skip
    return lines, points


@reads("cells", _TURN)
def over_turns(rows: pd.DataFrame) -> go.Figure:
    """Plot the longest stall against the length of a CPU's turn, one colour per machine.

    - `rows`: as for `under_load`, with ``turn`` (instructions); metrics other than the longest stall are ignored.
    """
    rows = rows[rows["metric"] == "longest_stall"].sort_values("turn")
    figure = go.Figure()
    for colour, machine in zip(style.PALETTE, in_order(rows["machine"]), strict=False):
        for trace in _line_and_points(rows[rows["machine"] == machine], "turn", colour, str(machine)):
            figure.add_scatter(**trace)
    turns = sorted(set(rows["turn"]))
    figure.update_xaxes(
        type="log", tickmode="array", tickvals=turns, ticktext=[style.plain_number(t) for t in turns],
        title="mean length of a turn, instructions",
    )  # fmt: skip
    figure.update_yaxes(_times(rows, METRICS["longest_stall"]))
    figure.update_layout(height=460)
    subtitle = "lab time; 4 vCPUs, 64 pages per hold; points: median and range over three seeds; lines: simulated"
    return style.titled(figure, "Longest stall against the length of a turn", subtitle, entries_per_row=2)


_SWITCH_METRICS = {
    "acquisitions": "acquisitions of mmu_lock", "contentions": "contentions of mmu_lock",
    "clear_time_s": "time of CLEAR", "get_time_s": "time of GET", "reset_time_s": "time of the ring's reset",
    "teardown_time_s": "time of teardown", "enable_hold_s": "mmu_lock held while enabling",
    "longest_stall_s": "longest stall",
}  # fmt: skip


def metric_title(metric: str) -> str:
    """Return the title of a metric of `studies.lab.switches.switch_effects`."""
    return _SWITCH_METRICS.get(metric, metric.removesuffix("_s").replace("_", " "))


@reads("cells", _SWITCH)
def switch_effects(rows: pd.DataFrame, title: str) -> go.Figure:
    """Plot the effects of a switch: one panel per metric, one row per setting; medians, with the range over the seeds.

    - `rows`: of `studies.lab.switches.switch_effects`; metrics that end in ``_s`` are seconds of lab time.
    """
    metrics, settings = in_order(rows["metric"]), in_order(rows["setting"])
    factor, unit = style.time_unit([float(rows.loc[rows["metric"].str.endswith("_s"), "high"].max())])
    names = [metric_title(m) + (f", {unit}" if m.endswith("_s") else "") for m in metrics]
    figure = style.subplots(1, len(metrics), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.06)
    for i, metric in enumerate(metrics, 1):
        part = rows[rows["metric"] == metric].set_index("setting").reindex(settings).dropna()
        bars = style.error_bars(part["value"], part["low"], part["high"]) | {"thickness": 1.5, "width": 4}
        figure.add_scatter(
            x=part["value"], y=part.index, error_x=bars, mode="markers", marker={"size": 11, "color": style.PALETTE[0]},
            showlegend=False, row=1, col=i,
        )  # fmt: skip
        top = float(np.nanmax(part["high"])) * 1.15 or 1.0
        scale = factor if metric.endswith("_s") else 1.0
        ticks = style.even_ticks(0.0, top, 5)
        figure.update_xaxes(
            range=[0, top], tickmode="array", tickvals=ticks, ticktext=[style.plain_number(t / scale) for t in ticks],
            row=1, col=i,
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(height=150 + 46 * len(settings), margin_b=60)
    return style.titled(figure, title, "lab time: 1 ns per instruction of any CPU")
