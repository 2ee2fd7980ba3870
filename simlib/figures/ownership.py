# SPDX-License-Identifier: BSD-3-Clause
"""Holders and waiters of a lock during a traced run, one row per thread.

All waits or holds of a kind are one line with gaps, so that Plotly draws tens of thousands quickly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib._lib.errors import InputError, nearest
from simlib.figures.frame import TEXT, checked, in_order, number, reads, word
from simlib.figures.style import MODE_COLOURS, legend_below, row_axis, spans, subplots, time_unit, titled
from simlib.model.quantities import seconds_text

MOST_ROWS = 40
"""Largest number of rows in `lock_ownership`."""

OWNER_COLOURS = {"write, clearing threads": MODE_COLOURS["write"], "write, vCPUs": "#E69F00"}
OWNER_COLOURS |= {"read": MODE_COLOURS["read"], "free": "#F1F3F4"}
"""Colours of the owners of a lock (`simlib.simulator.engine.timeline.OWNERS`), from the bottom of the strip up."""

_SPANS = {"thread": TEXT, "lock": TEXT, "mode": word(MODE_COLOURS), "what": word(["wait", "hold"])}
_SPANS |= {"begin_s": number(0), "end_s": number(0)}
_SHARES = {"time_s": number(0), "width_s": number(0), "owner": word(OWNER_COLOURS), "share": number(0)}


@reads("table", _SPANS)
def lock_ownership(
    table: pd.DataFrame,
    shares: pd.DataFrame | None = None,
    lock: str = "mmu_lock",
    title: str = "Holders and waiters of {lock}",
) -> go.Figure:
    """Waits and holds of one lock over time, one row per thread, and below them the owners of the lock.

    Holds are thick, waits thin. The clearing threads are above the vCPUs. At most `MOST_ROWS` rows are drawn. Intervals
    shorter than a pixel look faint: draw a window to see them (`timeline(result, window)`).

    Raises `InputError` if the lock is not in the table.

    - `table`: columns ``thread``, ``lock``, ``mode`` (``read`` or ``write``), ``what`` (``wait`` or ``hold``),
      ``begin_s``, ``end_s``: simulated seconds, as `simlib.simulator.engine.timeline.timeline` returns them.
    - `shares`: columns ``time_s``, ``width_s``, ``owner`` (of `OWNER_COLOURS`), ``share``, as
      `simlib.simulator.engine.timeline.ownership_over_time` returns them.
    - `title`: ``{lock}`` is replaced by the lock's name.

    >>> table = pd.DataFrame({"thread": ["main", "vcpu 0"], "lock": "mmu_lock", "mode": "write",
    ...                       "what": ["hold", "wait"], "begin_s": [0.0, 1e-6], "end_s": [3e-6, 3e-6]})
    >>> [trace.name for trace in lock_ownership(table).data]
    ['hold: write, clearing threads', 'wait: write, vCPUs']
    """
    if lock not in set(table["lock"]):
        raise InputError("table.lock", lock, "is not known", nearest(lock, in_order(table["lock"])))
    rows = table[table["lock"] == lock]
    threads = sorted(in_order(rows["thread"]), key=_thread_order)
    drawn = threads[:MOST_ROWS]
    rows = rows[rows["thread"].isin(drawn)]
    factor, unit = time_unit([float(rows["end_s"].max())])
    row_height = 26 if len(drawn) <= 20 else 15
    strip = 130 if shares is not None else 0
    body = max(160, row_height * len(drawn) + 20)
    gap = 34
    figure = subplots(
        2 if strip else 1, 1, shared_xaxes=True, row_heights=[body, strip] if strip else None,
        vertical_spacing=gap / (body + strip + gap) if strip else 0.0,
    )  # fmt: skip
    writer = np.where(rows["thread"].str.startswith("vcpu "), "write, vCPUs", "write, clearing threads")
    rows = rows.assign(owner=np.where(rows["mode"] == "write", writer, "read"))
    for (what, owner), part in rows.groupby(["what", "owner"]):
        thick = 0.62 if what == "hold" else 0.2
        line = {"color": OWNER_COLOURS[str(owner)], "width": thick * row_height, "simplify": False}
        x, y = spans(part, "begin_s", "end_s") / factor, np.repeat(part["thread"].map(drawn.index), 3)
        text = np.repeat((part["end_s"] - part["begin_s"]).map(seconds_text), 3)
        look = {"mode": "lines", "line": line, "name": f"{what}: {owner}", "showlegend": True}
        hover = f"%{{x:.7g}} {unit}: %{{text}}<extra>%{{fullData.name}}</extra>"
        figure.add_scatter(x=x, y=y, text=text, hovertemplate=hover, row=1, col=1, **look)
    figure.update_yaxes(row_axis(drawn) | {"showgrid": False}, row=1, col=1)
    if shares is not None:
        _add_shares(figure, shares, factor, unit)
    figure.update_xaxes(title=f"simulated time, {unit}", row=2 if strip else 1)
    legend_below(figure)
    figure.update_layout(height=body + strip + (gap if strip else 0) + 92 + figure.layout.margin.b)
    if len(threads) > len(drawn):
        title += f" (first {len(drawn)} of {len(threads)} threads)"
    below = "; below: owners of the lock" if strip else ""
    return titled(figure, title.format(lock=lock), "simulated; thick: hold, thin: wait" + below)


def _thread_order(name: str) -> tuple[bool, str, int]:
    """Sort key: clearing threads before vCPUs, and both by their numbers."""
    kind, _, number = name.rpartition(" ")
    return (name.startswith("vcpu "), kind, int(number)) if number.isdigit() else (False, "", 0)


def _add_shares(figure: go.Figure, shares: pd.DataFrame, factor: float, unit: str) -> None:
    rows = checked(shares, _SHARES, "shares")
    for bars in ownership_bars(rows, factor, unit, ".7g"):
        figure.add_trace(bars | {"showlegend": bars["name"] == "free"}, row=2, col=1)
    figure.update_layout(barmode="stack", bargap=0)
    figure.update_yaxes(title="owned, %", range=[0, 100], row=2, col=1)


def ownership_bars(shares: pd.DataFrame, factor: float, unit: str, digits: str) -> list[dict[str, Any]]:
    """Return a bar trace for each owner whose share is not zero; times are in units of `factor` seconds."""
    bars, hover = [], f"%{{x:{digits}}} {unit}: %{{y:.3g}} %<extra>%{{fullData.name}}</extra>"
    for owner, colour in OWNER_COLOURS.items():
        part = shares[shares["owner"] == owner]
        look = {"name": owner, "marker": {"color": colour, "line": {"width": 0}}, "hovertemplate": hover}
        places = {"x": part["time_s"] / factor, "y": 100 * part["share"], "width": part["width_s"] / factor}
        bars += [{"type": "bar", **places, **look}] * bool(part["share"].any())
    return bars
