# SPDX-License-Identifier: BSD-3-Clause
"""What one simulated run did at the lock: where time went, queues, progress, waits and holds.

Everything drawn here is simulated, and every subtitle says so.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlib.figures.frame import draws, in_order, require, require_numbers, require_words
from simlib.figures.style import (
    ACTIVITY_COLOURS,
    ACTIVITY_NAMES,
    HEIGHT,
    INK,
    MODE_COLOURS,
    PALETTE,
    facet_titles,
    facets,
    legend_below,
    seconds,
    time_axis,
    time_unit,
    titled,
    translucent,
)

MOST_THREADS = 16
"""Lines in `progress`: more cannot be told apart."""


@draws
def time_per_page(split: pd.DataFrame, title: str = "Where the time of a fault goes") -> go.Figure:
    """Simulated time per fault by activity, stacked, over vCPUs, a panel a variant.

    Raises `InputError` if a column is missing, the table is empty, or an activity is not known.

    Parameters
    ----------
    split : DataFrame
        Columns ``variant``, ``vcpus``, ``activity`` (one of `style.ACTIVITY_COLOURS`),
        ``microseconds_per_fault``.
    title : str
        Title of the figure.

    Examples
    --------
    >>> split = pd.DataFrame({"variant": "a", "vcpus": [1, 2], "activity": "hold",
    ...                       "microseconds_per_fault": [1.0, 1.5]})
    >>> time_per_page(split).data[0].x
    ('1', '2')
    """
    rows = require(split, ["variant", "vcpus", "activity", "microseconds_per_fault"], "split")
    require_words(rows, "activity", ACTIVITY_COLOURS, "split")
    require_numbers(rows, ["vcpus", "microseconds_per_fault"], "split", least=0)
    variants = in_order(rows["variant"])
    figure, place = facets(variants)
    present = [activity for activity in ACTIVITY_COLOURS if (rows["activity"] == activity).any()]
    for i, variant in enumerate(variants):
        mine = rows.loc[rows["variant"].astype(str) == variant]
        vcpus = sorted(mine["vcpus"].unique())
        for activity in present:
            called = ACTIVITY_NAMES.get(activity, activity)
            part = mine.loc[mine["activity"] == activity].set_index("vcpus")["microseconds_per_fault"]
            figure.add_bar(
                x=[f"{v:g}" for v in vcpus],
                y=part.reindex(vcpus).to_numpy(dtype=float),
                name=called,
                marker={"color": ACTIVITY_COLOURS[activity], "line": {"color": "white", "width": 0.6}},
                legendgroup=activity,
                showlegend=i == 0,
                **place(i),
                hovertemplate=f"{variant}, %{{x}} vCPUs: {called} %{{y:.3g}} µs<extra></extra>",
            )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="time per fault, µs", col=1)
    facet_titles(figure)
    legend_below(figure, len(present), rows_of=6)
    return titled(figure, title, "simulated; mean over the faults of all vCPUs")


@draws
def lock_over_time(queue: pd.DataFrame, title: str = "Threads queued for each lock") -> go.Figure:
    """Mean number of threads in each lock's queue over simulated time.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    queue : DataFrame
        Columns ``lock``, ``time_s`` (middle of a bin), ``queue``.
    title : str
        Title of the figure.

    Examples
    --------
    >>> queue = pd.DataFrame({"lock": "mmu_lock", "time_s": [0.5, 1.5], "queue": [0.0, 7.0]})
    >>> lock_over_time(queue).data[0].name
    'mmu_lock'
    """
    rows = require(queue, ["lock", "time_s", "queue"], "queue")
    require_numbers(rows, ["time_s", "queue"], "queue", least=0)
    figure = go.Figure()
    factor, unit = time_unit([float(rows["time_s"].max())])
    locks = in_order(rows["lock"])
    for i, lock in enumerate(locks):
        part = rows.loc[rows["lock"].astype(str) == lock].sort_values("time_s")
        colour = PALETTE[i % len(PALETTE)]
        figure.add_scatter(
            x=part["time_s"].to_numpy(dtype=float) / factor,
            y=part["queue"].to_numpy(dtype=float),
            mode="lines",
            name=lock,
            showlegend=True,
            line={"color": colour, "width": 1.8, "shape": "hvh"},
            fill="tozeroy",
            fillcolor=translucent(colour, 0.1),
            hovertemplate=f"%{{x:.4g}} {unit}: %{{y:.2f}} queued<extra>%{{fullData.name}}</extra>",
        )
    figure.update_xaxes(title=f"simulated time, {unit}", rangemode="tozero")
    figure.update_yaxes(title="threads queued (mean over a time bin)", rangemode="tozero")
    legend_below(figure, len(locks))
    return titled(figure, title, "simulated")


@draws
def progress(progress: pd.DataFrame, title: str = "Pages per second of each thread") -> go.Figure:
    """Pages that each thread gets done per second, over simulated time, at most `MOST_THREADS` threads.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    progress : DataFrame
        Columns ``thread``, ``time_s`` (middle of a bin; bins are equally wide), ``pages`` (done within
        the bin).
    title : str
        Title of the figure.

    Examples
    --------
    >>> frame = pd.DataFrame({"thread": "vcpu 0", "time_s": [0.25, 0.75], "pages": [100, 50]})
    >>> progress(frame).data[0].y
    array([200., 100.])
    """
    rows = require(progress, ["thread", "time_s", "pages"], "progress")
    require_numbers(rows, ["time_s", "pages"], "progress", least=0)
    times = np.unique(rows["time_s"].to_numpy(dtype=float))
    width = float(np.median(np.diff(times))) if len(times) > 1 else 2 * float(times[0])
    factor, unit = time_unit([float(times.max())])
    threads = in_order(rows["thread"])
    shown = threads[:MOST_THREADS]
    figure = go.Figure()
    for i, thread in enumerate(shown):
        part = rows.loc[rows["thread"].astype(str) == thread].sort_values("time_s")
        figure.add_scatter(
            x=part["time_s"].to_numpy(dtype=float) / factor,
            y=part["pages"].to_numpy(dtype=float) / width,
            mode="lines",
            name=thread,
            line={
                "color": PALETTE[i % len(PALETTE)],
                "width": 1.5,
                "dash": "solid" if i < len(PALETTE) else "dot",
            },
            showlegend=True,
            hovertemplate=f"%{{x:.4g}} {unit}: %{{y:.4s}} pages/s<extra>%{{fullData.name}}</extra>",
        )
    figure.update_xaxes(title=f"simulated time, {unit}", rangemode="tozero")
    figure.update_yaxes(title="pages per second", rangemode="tozero", exponentformat="SI")
    legend_below(figure, len(shown), rows_of=8)
    if len(threads) > len(shown):
        title += f" (first {len(shown)} of {len(threads)} threads)"
    return titled(figure, title, "simulated")


@draws
def histogram(frame: pd.DataFrame, title: str = "Time at each lock", what: str = "time") -> go.Figure:
    """Counts of wait or hold times in bins a factor of two wide, a panel a lock, a colour a mode.

    Raises `InputError` if a column is missing, the table is empty, or a time is not above 0.

    Parameters
    ----------
    frame : DataFrame
        Columns ``lock``, ``mode`` (``read`` or ``write``), ``up_to_s`` (upper end of a bin that
        starts at half of it), ``count``.
    title : str
        Title of the figure.
    what : str
        Which time: ``"wait time"``, ``"hold time"``; the title of the x axis.

    Examples
    --------
    >>> frame = pd.DataFrame({"lock": "mmu_lock", "mode": "write", "up_to_s": [2e-6, 4e-6], "count": [3, 5]})
    >>> histogram(frame, what="hold time").data[0].y
    array([3, 5])
    """
    rows = require(frame, ["lock", "mode", "up_to_s", "count"], "histogram")
    require_words(rows, "mode", MODE_COLOURS, "histogram")
    require_numbers(rows, ["up_to_s"], "histogram", least=np.finfo(float).tiny)
    require_numbers(rows, ["count"], "histogram", least=0)
    locks = in_order(rows["lock"])
    figure = make_subplots(len(locks), 1, subplot_titles=locks, shared_xaxes=True, vertical_spacing=0.3 / len(locks))
    seen: set[str] = set()
    for i, lock in enumerate(locks):
        for mode, colour in MODE_COLOURS.items():
            part = rows.loc[(rows["lock"].astype(str) == lock) & (rows["mode"] == mode)].sort_values("up_to_s")
            if part.empty:
                continue
            upper = part["up_to_s"].to_numpy(dtype=float)
            span = [f"{seconds(high / 2)} to {seconds(high)}" for high in upper]
            figure.add_bar(
                x=upper / 2,
                width=upper / 2,
                offset=0,
                y=part["count"].to_numpy(),
                name=mode,
                text=span,
                textposition="none",
                legendgroup=mode,
                showlegend=mode not in seen,
                marker={"color": translucent(colour, 0.55), "line": {"color": colour, "width": 1}},
                hovertemplate="%{text}: %{y:,}<extra>%{fullData.name}</extra>",
                row=i + 1,
                col=1,
            )
            seen.add(mode)
    axis = time_axis([rows["up_to_s"].min() / 2, rows["up_to_s"].max()], f"{what} (bins of a factor of two)")
    figure.update_xaxes(axis | {"title": None})
    figure.update_xaxes(title=axis["title"], row=len(locks))
    figure.update_yaxes(title="count", rangemode="tozero", exponentformat="SI")
    figure.update_layout(barmode="overlay", bargap=0)
    facet_titles(figure)
    figure.update_annotations(font_color=INK)
    legend_below(figure, len(seen))
    if len(locks) > 1:
        figure.update_layout(height=max(HEIGHT, 230 * len(locks) + 180))
    return titled(figure, title, "simulated")
