# SPDX-License-Identifier: BSD-3-Clause
"""Choice of a batch or a strategy: costs, and the trade-off between stalls, CLEAR and guest time lost.

All values are simulated, except the closed form, which is labelled. A batch of 0 pages means the whole ioctl.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures import style
from simlib.figures.frame import TEXT, TRUTH, in_order, number, reads
from simlib.model.quantities import seconds_text

_ABOVE_0, _END = number(np.finfo(float).tiny), number(0, gaps=True)

COST_COLUMNS = {"architecture": TEXT, "batch_pages": number(0), "objective_s": _ABOVE_0, "low_s": _END, "high_s": _END}
COST_COLUMNS |= {"equivalent": TRUTH, "best": TRUTH, "evidence": TEXT}
"""Columns of the table that `batch_costs` reads."""

_TIMES = ("stall_s", "clear_s", "guest_time_lost_s")
PARETO_COLUMNS = {"strategy": TEXT, **dict.fromkeys(_TIMES, _ABOVE_0), "on_front": TRUTH}
"""Columns of the table that `pareto` reads."""

_SMALL = f'<span style="font-size:11px;color:{style.MUTED}">{{}}</span>'
_TICKS = tuple(8**power for power in range(2, 12))
_STAR = {"symbol": "star", "size": 15, "line": {"color": "white", "width": 1}}
_COLOUR, _CLOSED_FORM = style.PALETTE[0], style.PALETTE[1]
_BAND = style.translucent(style.PALETTE[2], 0.16)


def batch_text(pages: float) -> str:
    """Short label of a batch size; the prefixes Ki and Mi are powers of 1024."""
    if pages == 0:
        return "whole"
    for factor, prefix in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if pages >= factor:
            return f"{pages / factor:.3g} {prefix}"
    return f"{pages:g}"


@reads("table", COST_COLUMNS | {"closed_form_s": _END}, closed_form_s=np.nan)
def batch_costs(table: pd.DataFrame, title: str = "Cost against the batch size, and equivalent batches") -> go.Figure:
    """Cost of each batch, one panel per architecture; the best batch is marked, and equivalent batches are shaded.

    - `table`: the columns `COST_COLUMNS`: ``batch_pages`` (0: the whole ioctl), ``objective_s`` and its interval in
      seconds (NaN: none), ``equivalent`` and ``best`` (bool), ``evidence`` (basis of the architecture's costs, such as
      ``calibrated`` or ``facts alone``; part of the panel's title). ``closed_form_s`` is optional.

    >>> table = pd.DataFrame({"architecture": "riscv", "batch_pages": [64, 512, 0], "objective_s": [2.0, 1.0, 1.1],
    ...                       "low_s": [1.9, 0.9, 1.0], "high_s": [2.1, 1.1, 1.2], "equivalent": [False, True, True],
    ...                       "best": [False, True, False], "evidence": "facts alone"})
    >>> batch_costs(table).data[1].x
    array([512.])
    """
    rows = table.assign(x=_places(table["batch_pages"])).sort_values("x", kind="stable")
    parts = {name: rows[rows["architecture"] == name] for name in in_order(table["architecture"])}
    headings = [f"{name}<br>{_SMALL.format(part['evidence'].iloc[0])}" for name, part in parts.items()]
    figure, place = style.facets(headings, shared_y=False)
    for i, part in enumerate(parts.values()):
        _draw_costs(figure, part, place(i))
        _one_decade(figure, part[["objective_s", "low_s", "high_s", "closed_form_s"]].to_numpy(), place(i))
    figure.update_xaxes(_batch_axis(rows["batch_pages"]) | {"title": None, "tickangle": 0, "tickfont": {"size": 10}})
    for i in range(max(0, len(parts) - 3), len(parts)):  # the lowest panel of each column
        figure.update_xaxes(title="batch, pages (Ki: 1024)", **place(i))
    figure.update_yaxes(tickfont={"size": 10})
    entries = [
        ("simulated, with its interval", {"mode": "lines+markers", "marker": {"size": 6}}, _COLOUR),
        ("best", {"mode": "markers", "marker": _STAR}, style.INK),
        ("equivalent to the best", {"mode": "markers", "marker": {"symbol": "square", "size": 14}}, _BAND),
    ]
    if rows["closed_form_s"].notna().any():
        entries.append(("closed form", {"mode": "lines", "line": {"width": 1.5, "dash": "dot"}}, _CLOSED_FORM))
    style.key(figure, entries)
    figure.update_layout(margin_t=118)
    return style.titled(figure, title, "simulated; each panel has a separate cost axis", entries_per_row=4)


@reads("table", PARETO_COLUMNS | {"knee": TRUTH, "as_it_is": TRUTH}, knee=False, as_it_is=False)
def pareto(table: pd.DataFrame, title: str = "Trade-off of strategies: stalls, CLEAR, guest time lost") -> go.Figure:
    """Longest stall against CLEAR's CPU time, with the guest time lost as colour; a line joins the Pareto front.

    - `table`: the columns `PARETO_COLUMNS`: times in seconds, ``on_front`` (bool): no other strategy is better in all
      three. ``knee`` and ``as_it_is`` (bool) are optional; they add a note to the label.

    >>> table = pd.DataFrame({"strategy": ["every-64", "every-512", "whole-ioctl"], "stall_s": [1e-4, 8e-4, 0.1],
    ...                       "clear_s": [9.0, 2.0, 2.5], "guest_time_lost_s": [60.0, 55.0, 70.0],
    ...                       "on_front": [True, True, False]})
    >>> pareto(table).data[0].x
    array([9., 2.])
    """
    rows = table.sort_values("stall_s", kind="stable").reset_index(drop=True)
    figure = go.Figure()
    front = rows[rows["on_front"]]
    line = {"mode": "lines", "line": {"color": style.MUTED, "width": 1.5, "dash": "dot"}, "hoverinfo": "skip"}
    figure.add_scatter(x=front["clear_s"], y=front["stall_s"], name="Pareto front", showlegend=True, **line)
    rows["label"] = _labels(rows)
    hover = [rows["strategy"], *(rows[time].map(seconds_text) for time in _TIMES)]
    looks = (("not on the front", "circle", 9, 0, style.MUTED), ("on the front", "diamond", 14, 1, style.INK))
    for on_front, (name, symbol, size, edge, ink) in enumerate(looks):
        part = rows[rows["on_front"] == bool(on_front)]
        if part.empty:
            continue
        figure.add_scatter(
            x=part["clear_s"], y=part["stall_s"], mode="markers+text", text=part["label"].tolist(),
            textposition="middle right", textfont={"size": 11, "color": ink}, name=name, cliponaxis=False,
            showlegend=True, customdata=pd.concat(hover, axis=1).loc[part.index],
            marker={"symbol": symbol, "size": size, "color": np.log10(part["guest_time_lost_s"]),
                    "coloraxis": "coloraxis", "line": {"color": style.INK, "width": edge}},
            hovertemplate="%{customdata[0]}: longest stall %{customdata[1]}, CLEAR %{customdata[2]}, guest time lost "
                          "%{customdata[3]}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(style.time_axis(rows["clear_s"], "CPU time of CLEAR", margin=2.2))
    figure.update_yaxes(style.time_axis(rows["stall_s"], "longest stall of a vCPU", margin=2.5))
    figure.update_layout(height=560, coloraxis=_lost_colours(rows["guest_time_lost_s"]))
    return style.titled(figure, title, "simulated; closer to the lower left is better", entries_per_row=3)


def _lost_colours(times: pd.Series) -> dict[str, Any]:
    """Colour scale of the guest time lost; it spans at least a factor of 4, however similar the values are."""
    middle = math.sqrt(times.min() * times.max())
    wider = max(math.sqrt(times.max() / times.min()), 2.0)
    axis = style.time_axis([middle / wider, middle * wider], "guest time lost", margin=1.0)
    bar = {"title": {"text": axis["title"]["text"]}, "thickness": 14, "tickmode": "array",
           "tickvals": np.log10(axis["tickvals"]).tolist(), "ticktext": axis["ticktext"]}  # fmt: skip
    return {"colorscale": "Viridis", "cmin": axis["range"][0], "cmax": axis["range"][1], "colorbar": bar}


def _labels(rows: pd.DataFrame) -> list[str]:
    """Labels without overlap, in the order knee, current strategy, front; overlapping points share a label."""
    logs = np.log10(rows[["clear_s", "stall_s"]])
    places = (logs / (logs.max() - logs.min()).clip(lower=0.5)).to_numpy()
    order = rows.sort_values(["knee", "as_it_is", "on_front"], ascending=False, kind="stable").index.tolist()
    labels, placed, counts = [""] * len(rows), list[int](), dict[int, int]()
    for i in order:
        overlapping = [k for k in placed if (abs(places[i] - places[k]) < (0.3, 0.05)).all()]
        if overlapping:
            counts[overlapping[0]] = counts.get(overlapping[0], 0) + 1
            continue
        placed.append(i)
        words = [word for word, mark in (("knee", "knee"), ("current", "as_it_is")) if rows[mark].iloc[i]]
        labels[i] = str(rows["strategy"].iloc[i]) + (f" ({', '.join(words)})" if words else "")
    for i, count in counts.items():
        labels[i] += f" + {count}"
    return labels


def _draw_costs(figure: go.Figure, part: pd.DataFrame, at: dict[str, int]) -> None:
    """Draw one panel: the band of equivalent batches, the closed form, the simulated costs, the best."""
    best = part["best"]
    equivalent = part["equivalent"] | best
    group = (~equivalent).cumsum()  # the same number between two batches that are not equivalent
    near_best = part.loc[equivalent & group.isin(group[best]), "x"]
    if len(near_best):
        half = math.sqrt(2)
        figure.add_vrect(
            x0=near_best.iloc[0] / half, x1=near_best.iloc[-1] * half, fillcolor=_BAND, line_width=0, layer="below",
            exclude_empty_subplots=False, **at,
        )  # fmt: skip

    def draw(rows: pd.DataFrame, cost: str, name: str, **look: Any) -> None:
        look |= {"text": rows["batch_pages"].map(batch_text), "showlegend": False, "name": name} | at
        hover = "batch %{text}: %{y:.4s}s<extra>%{fullData.name}</extra>"
        figure.add_scatter(x=rows["x"], y=rows[cost], hovertemplate=hover, **look)

    bars = style.error_bars(part["objective_s"], part["low_s"], part["high_s"])
    line = {"mode": "lines+markers", "line": {"color": _COLOUR, "width": 1.8}, "marker": {"size": 6}}
    draw(part, "objective_s", "simulated", error_y=bars, **line)
    draw(part[best], "objective_s", "best", mode="markers", marker=_STAR | {"color": style.INK}, cliponaxis=False)
    if part["closed_form_s"].notna().any():
        dots = {"color": _CLOSED_FORM, "width": 1.5, "dash": "dot"}
        draw(part, "closed_form_s", "closed form", mode="lines", line=dots)


def _one_decade(figure: go.Figure, values: np.ndarray, at: dict[str, int]) -> None:
    """Set a logarithmic axis of times that spans at least a decade, so that a flat curve looks flat."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = float(known.min()), float(known.max())
    wider = max(1.0, math.sqrt(10 / (high / low)))
    figure.update_yaxes(style.time_axis([low / wider, high * wider], "" if at["col"] > 1 else "cost"), **at)


def _places(batches: Iterable[float]) -> np.ndarray:
    """Positions of batches on a logarithmic axis; the whole ioctl is a factor of 8 beyond the largest batch."""
    pages = np.asarray(list(batches), dtype=float)
    return np.where(pages == 0, 8 * max(pages.max(initial=0.0), 8.0), pages)


def _batch_axis(batches: Iterable[float]) -> dict[str, Any]:
    pages = sorted(set(batches))
    places = _places(pages)
    low, high = places.min(), max(pages)
    ticks: list[float] = [tick for tick in _TICKS if low <= tick <= high] or [page for page in pages if page]
    ticks = ticks[:: 1 + len(ticks) // 6]
    whole_ioctl = float(places[0])
    ticks += [whole_ioctl] if pages[0] == 0 else []
    ends = (low / 2, places.max() * 2)
    return style.ticked_axis(ticks, ends, "", lambda tick: "<br>whole" if tick == whole_ioctl else batch_text(tick))
