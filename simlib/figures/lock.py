# SPDX-License-Identifier: BSD-3-Clause
"""Lock statistics of one simulated run: time by activity, queues, progress, waits and holds.

All values are simulated, and every subtitle says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, in_order, number, reads, word
from simlib.model.quantities import seconds_text

MOST_THREADS = 16
"""Maximum number of lines in `progress`; more would be indistinguishable."""

_EDGE = {"color": "white", "width": 0.6}
_ACTIVITIES = {
    activity: (style.ACTIVITY_NAMES.get(activity, activity), {"color": colour, "line": _EDGE})
    for activity, colour in style.ACTIVITY_COLOURS.items()
}


@reads(
    "split", {"variant": TEXT, "vcpus": number(0), "activity": word(_ACTIVITIES), "microseconds_per_fault": number(0)}
)
def time_per_page(split: pd.DataFrame, title: str = "Time per fault by activity") -> go.Figure:
    """Simulated time per fault by activity: a stacked bar for each vCPU count, one panel per variant.

    - `split`: columns ``variant``, ``vcpus``, ``activity`` (one of `style.ACTIVITY_COLOURS`),
      ``microseconds_per_fault``.

    >>> split = pd.DataFrame({"variant": "a", "vcpus": [1, 2], "activity": "hold",
    ...                       "microseconds_per_fault": [1.0, 1.5]})
    >>> time_per_page(split).data[0].x
    ('1', '2')
    """
    figure = style.bars_over_vcpus(split, "activity", "microseconds_per_fault", _ACTIVITIES, "%{y:.3g} µs")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="time per fault, µs", col=1)
    return style.titled(figure, title, "simulated; mean over the faults of all vCPUs", entries_per_row=6)


@reads("queue", {"lock": TEXT, "time_s": number(0), "queue": number(0)})
def lock_over_time(queue: pd.DataFrame, title: str = "Threads queued for each lock") -> go.Figure:
    """Mean number of threads in each lock's queue over simulated time.

    - `queue`: columns ``lock``, ``time_s`` (middle of a bin), ``queue``.

    >>> queue = pd.DataFrame({"lock": "mmu_lock", "time_s": [0.5, 1.5], "queue": [0.0, 7.0]})
    >>> lock_over_time(queue).data[0].name
    'mmu_lock'
    """
    looks = [
        {"line": {"color": colour, "width": 1.8, "shape": "hvh"}, "fillcolor": style.translucent(colour, 0.1)}
        for colour in style.PALETTE
    ]
    figure = _lines_over_time(queue, "lock", "queue", "%{y:.2f} queued", looks)
    figure.update_traces(fill="tozeroy")
    figure.update_yaxes(title="threads queued (mean over a time bin)", rangemode="tozero")
    return style.titled(figure, title, "simulated", entries_per_row=5)


@reads("progress", {"thread": TEXT, "time_s": number(0), "pages": number(0)})
def progress(progress: pd.DataFrame, title: str = "Pages per second of each thread") -> go.Figure:
    """Pages that each thread completes per second, over simulated time, for at most `MOST_THREADS` threads.

    - `progress`: columns ``thread``, ``time_s`` (middle of a bin; bins are equally wide), ``pages`` (done within the
      bin).

    >>> frame = pd.DataFrame({"thread": "vcpu 0", "time_s": [0.25, 0.75], "pages": [100, 50]})
    >>> progress(frame).data[0].y
    array([200., 100.])
    """
    times = np.unique(progress["time_s"])
    width = float(np.median(np.diff(times))) if len(times) > 1 else 2 * float(times[0])
    threads = in_order(progress["thread"])
    drawn = progress[progress["thread"].isin(threads[:MOST_THREADS])]
    lines = ({"color": colour, "width": 1.5, "dash": dash} for dash in ("solid", "dot") for colour in style.PALETTE)
    looks, drawn = [{"line": line} for line in lines], drawn.assign(pages=drawn["pages"] / width)
    figure = _lines_over_time(drawn, "thread", "pages", "%{y:.4s} pages/s", looks, float(times.max()))
    figure.update_yaxes(title="pages per second", rangemode="tozero", exponentformat="SI")
    if len(threads) > MOST_THREADS:
        title += f" (first {MOST_THREADS} of {len(threads)} threads)"
    return style.titled(figure, title, "simulated", entries_per_row=8)


def _lines_over_time(
    rows: pd.DataFrame, by: str, value: str, hover: str, looks: list[dict[str, Any]], longest: float | None = None
) -> go.Figure:
    """Draw one line per lock or thread over simulated time, in a unit that suits the latest time."""
    factor, unit = style.time_unit([rows["time_s"].max() if longest is None else longest])
    figure = go.Figure()
    common = {"mode": "lines", "hovertemplate": f"%{{x:.4g}} {unit}: {hover}<extra>%{{fullData.name}}</extra>"}
    for i, (name, part) in enumerate(rows.sort_values("time_s", kind="stable").groupby(by, sort=False)):
        look = common | looks[i % len(looks)]
        figure.add_scatter(x=part["time_s"] / factor, y=part[value], name=name, showlegend=True, **look)
    figure.update_xaxes(title=f"simulated time, {unit}", rangemode="tozero")
    return figure


_BINS = {"lock": TEXT, "mode": word(style.MODE_COLOURS), "up_to_s": number(np.finfo(float).tiny), "count": number(0)}


@reads("histogram", _BINS)
def histogram(frame: pd.DataFrame, title: str = "Time at each lock", what: str = "time") -> go.Figure:
    """Counts of wait or hold times in bins a factor of two wide, one panel per lock, one colour per mode.

    - `frame`: columns ``lock``, ``mode`` (``read`` or ``write``), ``up_to_s`` (upper end of a bin, which starts at half
      of this time), ``count``.
    - `what`: the kind of time, ``"wait time"`` or ``"hold time"``, for the title of the x axis.

    >>> frame = pd.DataFrame({"lock": "mmu_lock", "mode": "write", "up_to_s": [2e-6, 4e-6], "count": [3, 5]})
    >>> histogram(frame, what="hold time").data[0].y
    array([3., 5.])
    """
    locks = in_order(frame["lock"])
    figure = style.subplots(len(locks), 1, subplot_titles=locks, shared_xaxes=True, vertical_spacing=0.3 / len(locks))
    bins = frame.sort_values("up_to_s")
    for row, lock in enumerate(locks, start=1):
        for mode, colour in style.MODE_COLOURS.items():
            part = bins[(bins["lock"] == lock) & (bins["mode"] == mode)]
            if part.empty:
                continue
            half, marker = (
                part["up_to_s"] / 2,
                {"color": style.translucent(colour, 0.55), "line": {"color": colour, "width": 1}},
            )
            bar = {"x": half, "width": half, "offset": 0, "y": part["count"], "marker": marker, "textposition": "none"}
            text = [f"{seconds_text(high / 2)} to {seconds_text(high)}" for high in part["up_to_s"]]
            hover = {"text": text, "hovertemplate": "%{text}: %{y:,}<extra>%{fullData.name}</extra>"}
            figure.add_bar(name=mode, legendgroup=mode, showlegend=True, row=row, col=1, **bar, **hover)
    axis = style.time_axis([frame["up_to_s"].min() / 2, frame["up_to_s"].max()], f"{what} (bins of a factor of two)")
    figure.update_xaxes(axis | {"title": None})
    figure.update_xaxes(title=axis["title"], row=len(locks))
    figure.update_yaxes(title="count", rangemode="tozero", exponentformat="SI")
    figure.update_layout(barmode="overlay", bargap=0)
    if len(locks) > 1:
        figure.update_layout(height=max(style.HEIGHT, 230 * len(locks) + 180))
    return style.titled(figure, title, "simulated", entries_per_row=5)
