# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's figures: small, one question each, with theory dotted and simulation solid.

The selected strategy is black in all of them, and a pinned strategy keeps its colour. Each figure is built from plain
dictionaries in one call, because Plotly validates and copies the template on each update call, which would be too slow
for an interactive page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.decision import batch_text
from simlib.figures.frame import in_order
from simlib.figures.ownership import ownership_bars
from simlib.model.quantities import seconds_text

HEIGHT = 340
"""Height of a figure, pixels; a row of figures and the text above it fit into 720 pixels."""

PINNED = style.PALETTE[3:7]
"""Colours of the pinned strategies, in their order."""

_SIMULATED = {"color": style.INK, "width": 2.5}
_THEORY = {"color": style.INK, "width": 1.5, "dash": "dot"}

Traces = list[dict[str, Any]]


def strategy_colours(names: Sequence[str]) -> dict[str, str]:
    """Black for the first strategy, and a colour for each pinned one."""
    return dict(zip(names, (style.INK, *PINNED), strict=False))


def fault_curve(
    theory: pd.DataFrame, simulated: pd.DataFrame | None = None, published: pd.DataFrame | None = None, vcpus: int = 0
) -> go.Figure:
    """Time for n vCPUs to write their pages, relative to one vCPU, if every write faults.

    - `theory`: ``vcpus``, ``times``: a lower bound.
    - `simulated`: ``vcpus``, ``times``, ``low``, ``high``.
    - `published`: ``variant``, ``kernel``, ``vcpus``, ``times``; may be empty.
    - `vcpus`: the guest's number of vCPUs, which is marked.

    >>> theory = pd.DataFrame({"vcpus": [1, 2, 4], "times": [1.0, 1.0, 1.5]})
    >>> [trace.name for trace in fault_curve(theory).data]
    ['bound: theory']
    """
    traces: Traces = []
    values = [*theory["times"]]
    traces.append(_line(theory["vcpus"], theory["times"], "bound: theory", _THEORY))
    if simulated is not None:
        area = style.band(simulated["vcpus"], simulated["low"], simulated["high"], style.translucent(style.INK, 0.12))
        traces.append(area | {"name": "90 % interval (uncertain costs)", "mode": "none", "showlegend": True})
        dots = {"mode": "lines+markers", "marker": {"size": 6}, "hovertemplate": "%{x} vCPUs: %{y:.3g} ×"}
        traces.append(_line(simulated["vcpus"], simulated["times"], "simulated", _SIMULATED, **dots))
        values += [*simulated["low"], *simulated["high"]]
    if published is not None and len(published):
        for variant, colour in style.variant_colours(published["variant"]).items():
            part = published[published["variant"] == variant]
            marker = {"color": colour, "size": 8, "line": {"color": "white", "width": 1}}
            hover = f"%{{x}} vCPUs: %{{y:.3g}} × ({part['kernel'].iloc[0]})<extra>%{{fullData.name}}</extra>"
            looks = {"mode": "markers", "name": f"measured: {variant}", "marker": marker, "hovertemplate": hover}
            traces.append({"x": part["vcpus"], "y": part["times"]} | looks)
        values += [*published["times"]]
    marks = [_upright(vcpus, {"color": style.MUTED, "width": 1, "dash": "dot"}) | {"layer": "below"}] if vcpus else []
    axes = {"xaxis": style.vcpu_axis(theory["vcpus"]), "yaxis": style.log_axis(values, "× 1 vCPU's time", margin=1.15)}
    return _small(traces, "When every write faults", **axes, shapes=marks)


def guest_over_time(table: pd.DataFrame) -> go.Figure:
    """Guest throughput during migration, one line per strategy.

    - `table`: ``strategy``, ``time_s``, ``throughput`` (1: undisturbed); the first strategy is the selected one.

    >>> table = pd.DataFrame({"strategy": "baseline", "time_s": [0.0, 1.0], "throughput": [1.0, 0.5]})
    >>> guest_over_time(table).data[0].y
    array([100.,  50.])
    """
    traces: Traces = []
    for name, colour in strategy_colours(in_order(table["strategy"])).items():
        part = table[table["strategy"] == name]
        line = {"color": colour, "width": 2.5 if colour == style.INK else 2}
        hover = "%{x:.4g} s: %{y:.3g} %<extra>%{fullData.name}</extra>"
        traces.append(_line(part["time_s"], 100 * part["throughput"], name, line, hovertemplate=hover))
    lost = 100 - 100 * min([*table["throughput"], 0.995])
    across = {"title": {"text": "time since the log was enabled, s"}, "rangemode": "tozero"}
    up = {"title": {"text": "guest throughput, %"}, "range": [100 - 1.3 * lost, 100 + 0.1 * lost]}
    return _small(traces, "Guest throughput during migration", xaxis=across, yaxis=up)


def tradeoff(strategies: pd.DataFrame, batches: pd.DataFrame | None, baseline: float) -> go.Figure:
    """Longest stall against the CPU time of CLEAR: one point per strategy, and a line through the batches.

    - `strategies`, `batches`: ``longest_stall_s``, ``clear_cpu_time_s``, and ``strategy`` or ``batch_pages`` (0: the
      whole ioctl); the first strategy is the selected one.
    - `baseline`: longest stall of the baseline; half of it is marked.

    >>> rows = pd.DataFrame({"strategy": ["baseline"], "longest_stall_s": [1e-2], "clear_cpu_time_s": [1.0]})
    >>> [trace.name for trace in tradeoff(rows, rows.assign(batch_pages=0), 1e-2).data]
    ['batches, pages', 'baseline']
    """
    traces: Traces = []
    looks = {"textposition": "top right", "textfont": {"size": 10, "color": style.MUTED}}
    series = [(batches.assign(strategy="batches, pages"), style.MUTED, 6)] if batches is not None else []
    colours = strategy_colours(strategies["strategy"].tolist())
    series += [(strategies[strategies["strategy"] == name], colour, 13) for name, colour in colours.items()]
    for rows, colour, size in series:
        texts = rows[["longest_stall_s", "clear_cpu_time_s"]].map(seconds_text).agg(" stall, CLEAR ".join, axis=1)
        look = looks | {"marker": {"size": size, "color": colour}, "mode": "markers"}
        if "batch_pages" in rows:
            look |= {"text": _labels(rows), "mode": "lines+markers+text"}
            texts = rows["batch_pages"].map(batch_text) + " pages: " + texts
        look |= {"customdata": texts, "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>"}
        line = {"color": colour, "width": 1.5}
        traces.append(_line(rows["clear_cpu_time_s"], rows["longest_stall_s"], rows["strategy"].iloc[0], line, **look))
    all_rows = pd.concat([rows for rows, _, _ in series])
    half = baseline / 2
    domain = {"xref": "x domain", "yref": "y"}
    line = domain | {"type": "line", "x0": 0, "x1": 1, "y0": half, "y1": half, "line": _THEORY}
    note = domain | {"x": 1, "xanchor": "right", "y": math.log10(half), "yanchor": "bottom", "showarrow": False}
    note |= {"text": "half of the baseline's stall", "font": {"size": 11}}
    across = style.time_axis(all_rows["clear_cpu_time_s"], "CPU time of CLEAR")
    up = style.log_axis([*all_rows["longest_stall_s"], half], "longest stall", seconds_text, 2.0)
    return _small(traces, "Cost of a shorter stall", xaxis=across, yaxis=up, shapes=[line], annotations=[note])


def _labels(batches: pd.DataFrame) -> list[str]:
    """Labels of the points; of several points close together, only the first has a label."""
    logs = np.log(batches[["clear_cpu_time_s", "longest_stall_s"]].to_numpy(dtype=float))
    near = 0.12 * (np.ptp(logs, axis=0) + 0.9)  # about a label's height
    labelled: list[int] = []
    for row in range(len(logs)):
        if all((abs(logs[row] - logs[other]) > near).any() for other in labelled):
            labelled.append(row)
    return [batch_text(batch) if row in labelled else "" for row, batch in enumerate(batches["batch_pages"])]


def time_by_class(table: pd.DataFrame) -> go.Figure:
    """Time of each class of threads by activity, around one CLEAR.

    - `table`: ``thread_class``, ``activity`` (of `ACTIVITY_COLOURS`), ``share``; may be empty.

    >>> table = pd.DataFrame({"thread_class": "vCPUs", "activity": ["run", "wait"], "share": [0.9, 0.1]})
    >>> [trace.name for trace in time_by_class(table).data]
    ['outside the lock', 'wait']
    """
    traces: Traces = []
    bar = {"type": "bar", "orientation": "h", "hovertemplate": "%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>"}
    for activity, colour in style.ACTIVITY_COLOURS.items():
        part = table[table["activity"] == activity]
        if part["share"].any():
            look = {"name": style.ACTIVITY_NAMES.get(activity, activity), "marker": {"color": colour}}
            traces.append(bar | look | {"y": part["thread_class"], "x": 100 * part["share"]})
    across = {"title": {"text": "share of time around one CLEAR, %"}, "range": [0, 100]}
    return _small(traces, "Time by activity", barmode="stack", xaxis=across)


def lock_strip(shares: pd.DataFrame, span: tuple[float, float] | None = None) -> go.Figure:
    """Owners of mmu_lock over time, around one CLEAR.

    - `shares`: ``time_s``, ``width_s``, ``owner``, ``share``, as `simlib.simulator.engine.timeline.ownership_over_time`
      returns them; may be empty.
    - `span`: beginning and end of CLEAR, s.

    >>> shares = pd.DataFrame({"time_s": [0.5], "width_s": 1.0, "owner": "read", "share": 1.0})
    >>> lock_strip(shares).data[0].name
    'read'
    """
    scale, unit = style.time_unit([shares["time_s"].max() - shares["time_s"].min()])
    title = f"time in the window, {unit}" + (" (dotted: start and end of CLEAR)" if span else "")
    dots = {"color": style.INK, "width": 1, "dash": "dot"}
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": "owned, %"}, "range": [0, 100]}}
    bars, marks = ownership_bars(shares, scale, unit, ".4g"), [_upright(time / scale, dots) for time in span or ()]
    return _small(bars, "Owner of mmu_lock", barmode="stack", bargap=0, shapes=marks, **axes)


def _line(x: Any, y: Any, name: str, line: dict[str, Any], **looks: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "mode": "lines", "name": name, "line": line} | looks


def _upright(x: float, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "line", "xref": "x", "x0": x, "x1": x, "yref": "y domain", "y0": 0, "y1": 1, "line": line}


def _small(traces: Traces, title: str, **layout: Any) -> go.Figure:
    legend = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0, "font": {"size": 10}}
    legend |= {"entrywidth": 0.48, "entrywidthmode": "fraction"}
    common = {"template": style.TEMPLATE, "height": HEIGHT, "margin": {"l": 62, "r": 12, "t": 40, "b": 84}}
    common |= {"autosize": True, "title": {"text": title, "font": {"size": 15}, "y": 0.97}, "legend": legend}
    return go.Figure(traces, common | layout)


def empty(title: str, words: str) -> go.Figure:
    """An empty figure with an explanation."""
    place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    note = place | {"text": words, "font": {"color": style.MUTED}}
    return _small([], title, annotations=[note], xaxis={"visible": False}, yaxis={"visible": False})
