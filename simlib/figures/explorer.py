# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's figures: small, one question each, theory dotted, simulation solid, what was asked before in grey.

The strategy that is asked about is black in all of them, and what is pinned keeps its colour. Each is made from plain
tables at once, not by calls that change it: Plotly checks and copies the template anew for each of these, and a page
that answers at once cannot wait for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.decision import batch_text
from simlib.figures.frame import in_order
from simlib.figures.ownership import ownership_bars

HEIGHT = 340
"""Pixels; a row of them and the words above fit into 720."""

BEFORE = "#9aa0a6"
PINNED = style.PALETTE[3:7]
"""Colours of the strategies that are pinned, in their order."""

_SIMULATED = {"color": style.INK, "width": 2.5}
_THEORY = {"color": style.INK, "width": 1.5, "dash": "dot"}
_BEFORE = {"color": BEFORE, "width": 1.5, "dash": "dash"}

_ABOVE, _BELOW = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}

Traces = list[dict[str, Any]]


def strategy_colours(names: Sequence[str]) -> dict[str, str]:
    """Black for the first, and a colour for each that is pinned beside it."""
    return dict(zip(names, (style.INK, *PINNED), strict=False))


def fault_curve(
    theory: pd.DataFrame,
    simulated: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
    before: pd.DataFrame | None = None,
    vcpus: int = 0,
) -> go.Figure:
    """How many times as long as with one vCPU it takes n of them to write their pages, when every page faults.

    - `theory`: ``vcpus``, ``times``: a bound from below.
    - `simulated`: ``vcpus``, ``times``, ``low``, ``high``.
    - `published`: ``variant``, ``kernel``, ``vcpus``, ``times``; may be empty.
    - `before`: what `simulated` was before the last change.
    - `vcpus`: of the guest; marked.

    >>> theory = pd.DataFrame({"vcpus": [1, 2, 4], "times": [1.0, 1.0, 1.5]})
    >>> [trace.name for trace in fault_curve(theory).data]
    ['bound: theory']
    """
    traces: Traces = []
    values = [*theory["times"]]
    if before is not None:
        traces.append(_line(before["vcpus"], before["times"], "before", _BEFORE))
    traces.append(_line(theory["vcpus"], theory["times"], "bound: theory", _THEORY))
    if simulated is not None:
        area = style.band(simulated["vcpus"], simulated["low"], simulated["high"], style.translucent(style.INK, 0.12))
        traces.append(area | {"name": "90 % of the costs", "mode": "none", "showlegend": True})
        dots = {"mode": "lines+markers", "marker": {"size": 6}, "hovertemplate": "%{x} vCPUs: %{y:.3g} ×"}
        traces.append(_line(simulated["vcpus"], simulated["times"], "simulated", _SIMULATED, **dots))
        values += [*simulated["low"], *simulated["high"]]
    if published is not None and len(published):
        for variant, colour in style.variant_colours(published["variant"]).items():
            part = published[published["variant"] == variant]
            marker = {"color": colour, "size": 8, "line": {"color": "white", "width": 1}}
            said = f"%{{x}} vCPUs: %{{y:.3g}} × ({part['kernel'].iloc[0]})<extra>%{{fullData.name}}</extra>"
            looks = {"mode": "markers", "name": f"measured: {variant}", "marker": marker, "hovertemplate": said}
            traces.append({"x": part["vcpus"], "y": part["times"]} | looks)
        values += [*published["times"]]
    marks = [_upright(vcpus, {"color": style.MUTED, "width": 1, "dash": "dot"}) | {"layer": "below"}] if vcpus else []
    axes = {"xaxis": style.vcpu_axis(theory["vcpus"]), "yaxis": style.log_axis(values, "× 1 vCPU's time", margin=1.15)}
    return _small(traces, "When every write faults", **axes, shapes=marks)


def guest_over_time(table: pd.DataFrame, theory: float | None = None, before: pd.DataFrame | None = None) -> go.Figure:
    """The guest's throughput while it migrates, a line a strategy.

    - `table`: ``strategy``, ``time_s``, ``throughput`` (1: undisturbed); the first strategy is the one that is asked
      about. May be empty, while nothing is simulated yet.
    - `theory`: throughput while CLEAR works, by the batching law.
    - `before`: ``time_s``, ``throughput`` before the last change.

    >>> table = pd.DataFrame({"strategy": "own", "time_s": [0.0, 1.0], "throughput": [1.0, 0.5]})
    >>> guest_over_time(table).data[0].y
    array([100.,  50.])
    """
    traces: Traces = []
    if before is not None:
        traces.append(_line(before["time_s"], 100 * before["throughput"], "before", _BEFORE))
    for name, colour in strategy_colours(in_order(table["strategy"])).items():
        part = table[table["strategy"] == name]
        line = {"color": colour, "width": 2.5 if colour == style.INK else 2}
        said = "%{x:.4g} s: %{y:.3g} %<extra>%{fullData.name}</extra>"
        traces.append(_line(part["time_s"], 100 * part["throughput"], name, line, hovertemplate=said))
    marks: dict[str, Any] = {}
    if theory is not None:
        across = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "yref": "y"}
        place = {"xref": "x domain", "x": 1, "xanchor": "right", "yref": "y", "y": 100 * theory, "yanchor": "bottom"}
        words = {"text": "while CLEAR works: theory", "font": {"size": 11}, "showarrow": False}
        at = {"y0": 100 * theory, "y1": 100 * theory, "line": _THEORY}
        marks = {"shapes": [across | at], "annotations": [place | words]}
    return _small(
        traces,
        "The guest while it migrates",
        xaxis={"title": {"text": "time since the log was enabled, s"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "guest throughput, %"}, "range": [0, 104]},
        **marks,
    )


def tradeoff(
    theory: pd.DataFrame,
    simulated: pd.DataFrame | None = None,
    pins: pd.DataFrame | None = None,
    before: pd.DataFrame | None = None,
) -> go.Figure:
    """Longest stall over the batch, and below it what the batch costs more than the cheapest.

    - `theory`, `simulated`: ``batch_pages`` (0: the whole ioctl), ``stall_s``, and ``cost_s`` of what was simulated;
      may be empty.
    - `pins`: ``strategy``, ``stall_s``, ``cost_s`` of strategies that are no batch: lines across; the first is the one
      that is asked about.
    - `before`: what `simulated` was before the last change.

    >>> rows = pd.DataFrame({"batch_pages": [64, 0], "stall_s": [1e-5, 1e-2], "cost_s": [1.0, 2.0]})
    >>> tradeoff(rows.iloc[:0], rows).data[1].y
    array([  0., 100.])
    """
    traces: Traces = []
    shown = {"before": (before, _BEFORE, 5), "theory": (theory, _THEORY, 5), "simulated": (simulated, _SIMULATED, 7)}
    tables = [rows for rows, _, _ in shown.values() if rows is not None]
    least = min([rows["cost_s"].min() for rows in (simulated, pins) if rows is not None and len(rows)], default=1.0)
    for name, (rows, line, size) in shown.items():
        if rows is None or rows.empty:
            continue
        batches, times = rows["batch_pages"].map(batch_text), rows["stall_s"]
        looks = {"mode": "lines+markers", "marker": {"size": size}, "legendgroup": name}
        said = {"text": times.map(style.seconds), "hovertemplate": "%{x} pages: %{text}<extra>%{fullData.name}</extra>"}
        traces.append(_line(batches, times, name, line, **looks, **_ABOVE, **said))
        if name != "theory":  # whose cost is that of one CLEAR, not of the migration
            more = 100 * (rows["cost_s"] / (least if name == "simulated" else rows["cost_s"].min()) - 1)
            said = {"showlegend": False, "hovertemplate": "%{x} pages: %{y:.3g} % more CPU time in all"}
            traces.append(_line(batches, more, name, line, **looks, **_BELOW, **said))
    if pins is not None and simulated is not None and not simulated.empty:
        tables.append(pins)
        traces += _pinned(pins, simulated["batch_pages"].map(batch_text), least)
    pages = set[float]().union(*(rows["batch_pages"] for rows in tables if "batch_pages" in rows))
    order = [batch_text(batch) for batch in sorted(pages, key=lambda batch: (batch == 0, batch))]
    stalls = [time for rows in tables for time in rows["stall_s"]]
    category = {"type": "category", "categoryorder": "array", "categoryarray": order}
    return _small(
        traces,
        "The batch: stall beside cost",
        xaxis=category | {"anchor": "y", "matches": "x2", "showticklabels": False},
        xaxis2=category | {"anchor": "y2", "title": {"text": "batch, pages a hold"}},
        yaxis=style.log_axis(stalls, "longest stall", style.seconds) | {"anchor": "x", "domain": [0.545, 1.0]},
        yaxis2={
            "anchor": "x2",
            "domain": [0.0, 0.455],
            "title": {"text": "CPU, % more"},
            "rangemode": "tozero",
        },
    )


def _pinned(pins: pd.DataFrame, batches: pd.Series, least: float) -> Traces:
    """What is no batch, as lines across both panels of `tradeoff`."""
    traces: Traces = []
    for row, colour in zip(pins.to_dict("records"), strategy_colours(pins["strategy"].tolist()).values(), strict=True):
        line = {"color": colour, "width": 2, "dash": "5px,3px"}
        said = {"hovertemplate": "%{y:.3g}<extra>%{fullData.name}</extra>", "legendgroup": row["strategy"]}
        for at, value in ((_ABOVE, row["stall_s"]), (_BELOW, 100 * (row["cost_s"] / least - 1))):
            across = [value] * len(batches)
            traces.append(_line(batches, across, row["strategy"], line, **said, **at, showlegend=at is _ABOVE))
    return traces


def time_by_class(table: pd.DataFrame) -> go.Figure:
    """Where the time of each class of threads goes while one CLEAR works.

    - `table`: ``thread_class``, ``activity`` (of `ACTIVITY_COLOURS`), ``share``; may be empty.

    >>> table = pd.DataFrame({"thread_class": "vCPUs", "activity": ["run", "wait"], "share": [0.9, 0.1]})
    >>> [trace.name for trace in time_by_class(table).data]
    ['outside the lock', 'wait']
    """
    parts = {activity: table[table["activity"] == activity] for activity in style.ACTIVITY_COLOURS}
    traces = [
        {
            "type": "bar",
            "y": part["thread_class"],
            "x": 100 * part["share"],
            "orientation": "h",
            "name": style.ACTIVITY_NAMES.get(activity, activity),
            "marker": {"color": style.ACTIVITY_COLOURS[activity]},
            "hovertemplate": "%{y}: %{x:.3g} %<extra>%{fullData.name}</extra>",
        }
        for activity, part in parts.items()
        if part["share"].any()
    ]
    across = {"title": {"text": "share of their time around one CLEAR, %"}, "range": [0, 100]}
    return _small(traces, "Where time goes", barmode="stack", xaxis=across)


def lock_strip(shares: pd.DataFrame, span: tuple[float, float] | None = None) -> go.Figure:
    """Who owns mmu_lock around one CLEAR.

    - `shares`: ``time_s``, ``width_s``, ``owner``, ``share``, as `simlib.engine.timeline.ownership_over_time` gives
      them; may be empty.
    - `span`: when CLEAR began and ended, s.

    >>> shares = pd.DataFrame({"time_s": [0.5], "width_s": 1.0, "owner": "read", "share": 1.0})
    >>> lock_strip(shares).data[0].name
    'read'
    """
    scale, unit = style.time_unit([shares["time_s"].max() - shares["time_s"].min()])
    title = f"time in the window, {unit}" + (" (dotted: CLEAR begins, ends)" if span else "")
    return _small(
        ownership_bars(shares, scale, unit, ".4g"),
        "Who owns mmu_lock",
        barmode="stack",
        bargap=0,
        xaxis={"title": {"text": title}},
        yaxis={"title": {"text": "owned, %"}, "range": [0, 100]},
        shapes=[_upright(time / scale, {"color": style.INK, "width": 1, "dash": "dot"}) for time in span or ()],
    )


def _line(x: Any, y: Any, name: str, line: dict[str, Any], **looks: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "mode": "lines", "name": name, "line": line} | looks


def _upright(x: float, line: dict[str, Any]) -> dict[str, Any]:
    """A line from the bottom of a figure to its top."""
    return {"type": "line", "xref": "x", "x0": x, "x1": x, "yref": "y domain", "y0": 0, "y1": 1, "line": line}


def _small(traces: Traces, title: str, **layout: Any) -> go.Figure:
    legend = {
        "orientation": "h",
        "yref": "container",
        "y": 0.01,
        "yanchor": "bottom",
        "x": 0,
        "font": {"size": 10},
        "entrywidth": 0.48,
        "entrywidthmode": "fraction",
    }
    same = {
        "template": style.TEMPLATE,
        "height": HEIGHT,
        "margin": {"l": 62, "r": 12, "t": 40, "b": 84},
        "autosize": True,
        "title": {"text": title, "font": {"size": 15}, "y": 0.97},
        "legend": legend,
    }
    return go.Figure(traces, same | layout)


def empty(title: str, words: str) -> go.Figure:
    """A figure that says why it has nothing."""
    place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    said = place | {"text": words, "font": {"color": style.MUTED}}
    return _small([], title, annotations=[said], xaxis={"visible": False}, yaxis={"visible": False})
