# SPDX-License-Identifier: BSD-3-Clause
"""Choosing a batch: what each costs, which is best where, and what is traded for what.

Everything here is simulated, except the closed form, which says so. A batch of 0 pages is the whole ioctl.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.errors import InputError
from simlib.figures.frame import draws, in_order, require, require_numbers, require_truths
from simlib.figures.style import (
    GRID,
    INK,
    MUTED,
    PALETTE,
    facet_titles,
    facets,
    key_entry,
    legend_below,
    seconds,
    short_number,
    time_axis,
    titled,
    translucent,
)

COST_COLUMNS = ("architecture", "batch_pages", "objective_s", "low_s", "high_s", "as_good", "best", "evidence")
"""Columns of the table that `batch_costs` reads."""

MAP_COLUMNS = ("vcpus", "access_rate", "strategy", "matters", "distinguished", "span")
"""Columns of the table that `best_strategy_map` reads."""

PARETO_COLUMNS = ("strategy", "stall_s", "clear_s", "lost_s", "on_front")
"""Columns of the table that `pareto` reads."""

LEAST_COLOURS = 4.0
"""A factor: the scale of `pareto`'s colours spans it, however near to each other the values are."""

_SMALL = f'<span style="font-size:11px;color:{MUTED}">{{}}</span>'
_TICKS = tuple(8**power for power in range(2, 12))
_STAR = {"symbol": "star", "size": 15, "line": {"color": "white", "width": 1}}
_COLOUR, _CLOSED_FORM = PALETTE[0], PALETTE[1]
_TIED = "#f5edd6"
_BAND = translucent(PALETTE[2], 0.16)


def batch_text(pages: float) -> str:
    """A batch in few letters; Ki and Mi are powers of 1024.

    Examples
    --------
    >>> [batch_text(pages) for pages in (64, 4096, 262144, 2097152, 0)]
    ['64', '4 Ki', '256 Ki', '2 Mi', 'whole']
    """
    if pages == 0:
        return "whole"
    for factor, prefix in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if pages >= factor:
            return f"{pages / factor:.3g} {prefix}"
    return f"{pages:g}"


@draws
def batch_costs(table: pd.DataFrame, title: str = "Cost over the batch, and which batches are as good") -> go.Figure:
    """What each batch costs, a panel an architecture; the best is marked, and what is as good as it is shaded.

    Raises `InputError` if a column is missing, the table is empty, or a cost is not above 0.

    Parameters
    ----------
    table : DataFrame
        The columns `COST_COLUMNS`: ``batch_pages`` (0: the whole ioctl), ``objective_s`` and its interval in seconds
        (NaN: none), ``as_good`` and ``best`` (bool), ``evidence`` (what the architecture's costs rest on, such as
        ``calibrated`` or ``facts alone``; stands in the panel's title). ``closed_form_s`` may be there.
    title : str
        Title of the figure.

    Examples
    --------
    >>> table = pd.DataFrame({"architecture": "riscv", "batch_pages": [64, 512, 0], "objective_s": [2.0, 1.0, 1.1],
    ...                       "low_s": [1.9, 0.9, 1.0], "high_s": [2.1, 1.1, 1.2], "as_good": [False, True, True],
    ...                       "best": [False, True, False], "evidence": "facts alone"})
    >>> batch_costs(table).data[1].x
    array([512.])
    """
    rows = require(table, COST_COLUMNS, "table", closed_form_s=np.nan)
    require_numbers(rows, ["batch_pages"], "table", least=0)
    require_numbers(rows, ["objective_s"], "table", least=np.finfo(float).tiny)
    require_numbers(rows, ["low_s", "high_s", "closed_form_s"], "table", gaps=True, least=0)
    require_truths(rows, ["as_good", "best"], "table")
    rows = rows.assign(x=_places(rows["batch_pages"]))
    names = in_order(rows["architecture"])
    parts = {name: rows[rows["architecture"].astype(str) == name].sort_values("x") for name in names}
    headings = [f"{name}<br>{_SMALL.format(part['evidence'].iloc[0])}" for name, part in parts.items()]
    figure, place = facets(headings, shared_y=False)
    for i, part in enumerate(parts.values()):
        _draw_costs(figure, part, place(i))
        _one_decade(figure, part[["objective_s", "low_s", "high_s", "closed_form_s"]].to_numpy(dtype=float), place(i))
    figure.update_xaxes(_batch_axis(rows["batch_pages"]) | {"title": None, "tickangle": 0, "tickfont": {"size": 10}})
    for i in range(max(0, len(names) - 3), len(names)):  # the lowest panel of each column
        figure.update_xaxes(title="batch, pages (Ki: 1024)", **place(i))
    figure.update_yaxes(tickfont={"size": 10})
    facet_titles(figure)
    square = {"symbol": "square", "size": 14}
    entries = [
        ("simulated, with its interval", {"mode": "lines+markers", "marker": {"size": 6}}, _COLOUR),
        ("best", {"mode": "markers", "marker": _STAR}, INK),
        ("as good as the best", {"mode": "markers", "marker": square}, _BAND),
    ]
    if rows["closed_form_s"].notna().any():
        entries.append(("closed form", {"mode": "lines", "line": {"width": 1.5, "dash": "dot"}}, _CLOSED_FORM))
    for name, look, colour in entries:
        key_entry(figure, name, look, colour, legend="legend")
    figure.update_layout(legend={"itemclick": False, "itemdoubleclick": False})
    legend_below(figure, len(entries), rows_of=4)
    figure.update_layout(margin_t=118)
    return titled(figure, title, "simulated; each panel has its own axis of costs")


@draws
def best_strategy_map(table: pd.DataFrame, title: str = "Best strategy over vCPUs and accesses") -> go.Figure:
    """Best strategy as a map; where several are not distinguished all of them stand there, without a colour.

    Raises `InputError` if a column is missing, the table is empty, or a cell has two rows.

    Parameters
    ----------
    table : DataFrame
        The columns `MAP_COLUMNS`: ``access_rate`` in accesses per second of a vCPU, ``matters`` and ``distinguished``
        (bool), ``span`` (the strategies that are not distinguished, in few letters). One row a cell; a cell without a
        row stays white.
    title : str
        Title of the figure.

    Examples
    --------
    >>> table = pd.DataFrame({"vcpus": [4, 16], "access_rate": 1e5, "strategy": ["every-64", "whole-ioctl"],
    ...                       "matters": True, "distinguished": [True, False], "span": ["64", "4096–whole"]})
    >>> [trace.name for trace in best_strategy_map(table).data if trace.type == "heatmap"]
    ['every-64', 'not distinguished']
    """
    rows = require(table, MAP_COLUMNS, "table")
    require_numbers(rows, ["vcpus", "access_rate"], "table", least=0)
    require_truths(rows, ["matters", "distinguished"], "table")
    if rows.duplicated(["vcpus", "access_rate"]).any():
        twice = rows[rows.duplicated(["vcpus", "access_rate"])].iloc[0]
        raise InputError("table", f"vcpus {twice['vcpus']:g}, access_rate {twice['access_rate']:g}", "has two rows")
    rows = rows.sort_values(["access_rate", "vcpus"])
    across, up = sorted(set(rows["vcpus"])), sorted(set(rows["access_rate"]))
    matters, sure = rows["matters"].astype(bool), rows["distinguished"].astype(bool)
    names = in_order(rows.loc[matters, "strategy"]) if matters.any() else []
    figure = go.Figure()

    def cells(which: pd.DataFrame, name: str, colour: str, ink: str) -> None:
        z, words = (np.full((len(up), len(across)), fill, dtype=object) for fill in (np.nan, ""))
        for row in which.to_dict("records"):
            at = up.index(row["access_rate"]), across.index(row["vcpus"])
            z[at], words[at] = 1.0, row["words"]
        figure.add_heatmap(
            x=[f"{value:g}" for value in across], y=[short_number(float(value)) for value in up],
            z=z.astype(float), text=words, colorscale=[[0, colour], [1, colour]], zmin=0, zmax=1,
            showscale=False, texttemplate="%{text}", textfont={"color": ink, "size": 12}, xgap=2, ygap=2, name=name,
            hoverongaps=False, hovertemplate="%{x} vCPUs, %{y} accesses/s: %{text}<extra>%{fullData.name}</extra>",
        )  # fmt: skip

    for number, name in enumerate(names):
        mine = matters & sure & (rows["strategy"].astype(str) == name)
        if mine.any():
            cells(rows[mine].assign(words=name), name, PALETTE[number % len(PALETTE)], "white")
    if (matters & ~sure).any():
        tied = rows[matters & ~sure]
        cells(tied.assign(words=tied["span"]), "not distinguished", _TIED, INK)
    if (~matters).any():
        cells(rows[~matters].assign(words="any"), "any strategy", GRID, MUTED)
    figure.update_xaxes(title="vCPUs", type="category", showgrid=False, ticks="")
    figure.update_yaxes(title="accesses per second of a vCPU", type="category", showgrid=False, ticks="")
    return titled(
        figure,
        title,
        "simulated; pale: all that are not distinguished (numbers: pages of a hold); grey: it does not matter",
    )


@draws
def pareto(table: pd.DataFrame, title: str = "What a strategy trades: stalls, CLEAR, the guest's time") -> go.Figure:
    """Longest stall against CLEAR's CPU time, the guest's lost time as colour; the front is joined by a line.

    Raises `InputError` if a column is missing, the table is empty, or a time is not above 0.

    Parameters
    ----------
    table : DataFrame
        The columns `PARETO_COLUMNS`: times in seconds, ``on_front`` (bool): no other strategy is better in all.
        ``knee`` and ``as_it_is`` (bool) may be there: those are named, too.
    title : str
        Title of the figure.

    Examples
    --------
    >>> table = pd.DataFrame({"strategy": ["every-64", "every-512", "whole-ioctl"], "stall_s": [1e-4, 8e-4, 0.1],
    ...                       "clear_s": [9.0, 2.0, 2.5], "lost_s": [60.0, 55.0, 70.0],
    ...                       "on_front": [True, True, False]})
    >>> pareto(table).data[0].x
    array([9., 2.])
    """
    rows = require(table, PARETO_COLUMNS, "table", knee=False, as_it_is=False)
    times = ["stall_s", "clear_s", "lost_s"]
    require_numbers(rows, times, "table", least=np.finfo(float).tiny)
    require_truths(rows, ["on_front", "knee", "as_it_is"], "table")
    rows = rows.assign(on_front=rows["on_front"].astype(bool)).sort_values("stall_s", kind="stable")
    rows = rows.reset_index(drop=True)
    figure = go.Figure()
    front = rows[rows["on_front"]]
    figure.add_scatter(
        x=front["clear_s"].to_numpy(dtype=float), y=front["stall_s"].to_numpy(dtype=float),
        mode="lines", line={"color": MUTED, "width": 1.5, "dash": "dot"}, hoverinfo="skip", name="Pareto front",
        showlegend=True,
    )  # fmt: skip
    labels = _labels(rows)
    for on_front, symbol, size, name in ((False, "circle", 9, "not on the front"),
                                         (True, "diamond", 14, "on the front")):  # fmt: skip
        part = rows[rows["on_front"] == on_front]
        if part.empty:
            continue
        figure.add_scatter(
            x=part["clear_s"].to_numpy(dtype=float), y=part["stall_s"].to_numpy(dtype=float),
            mode="markers+text", text=[labels[i] for i in part.index], textposition="middle right",
            textfont={"size": 11, "color": INK if on_front else MUTED}, name=name, cliponaxis=False, showlegend=True,
            customdata=[[row["strategy"], *(seconds(row[time]) for time in times)] for row in part.to_dict("records")],
            marker={"symbol": symbol, "size": size, "color": np.log10(part["lost_s"].to_numpy(dtype=float)),
                    "coloraxis": "coloraxis", "line": {"color": INK, "width": 1 if on_front else 0}},
            hovertemplate="%{customdata[0]}: longest stall %{customdata[1]}, CLEAR %{customdata[2]}, guest time lost "
                          "%{customdata[3]}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    figure.update_xaxes(time_axis(rows["clear_s"].tolist(), "CPU time of CLEAR", margin=2.2))
    figure.update_yaxes(time_axis(rows["stall_s"].tolist(), "longest stall of a vCPU", margin=2.5))
    figure.update_layout(height=560, coloraxis=_lost_colours(rows["lost_s"].to_numpy(dtype=float)))
    legend_below(figure, 3, rows_of=3)
    return titled(figure, title, "simulated; towards the lower left is better")


def _lost_colours(lost: np.ndarray) -> dict[str, Any]:
    """Colours of the guest's lost time, over a factor of `LEAST_COLOURS` at least: what is about the same looks so."""
    middle = math.sqrt(lost.min() * lost.max())
    wider = max(math.sqrt(lost.max() / lost.min()), math.sqrt(LEAST_COLOURS))
    axis = time_axis([middle / wider, middle * wider], "guest time lost", margin=1.0)
    bar = {"title": {"text": axis["title"]["text"]}, "thickness": 14, "tickmode": "array",
           "tickvals": np.log10(axis["tickvals"]).tolist(), "ticktext": axis["ticktext"]}  # fmt: skip
    return {"colorscale": "Viridis", "cmin": axis["range"][0], "cmax": axis["range"][1], "colorbar": bar}


def _labels(rows: pd.DataFrame) -> list[str]:
    """A label where there is room: the knee's first, then what is now, then the front's; near ones share one."""
    places = {}
    for name in ("clear_s", "stall_s"):
        logs = np.log10(rows[name].to_numpy(dtype=float))
        places[name] = logs / max(0.5, float(np.ptp(logs)))
    order = rows.sort_values(["knee", "as_it_is", "on_front"], ascending=False, kind="stable").index.tolist()
    labels, placed, more = [""] * len(rows), list[int](), dict[int, int]()
    for i in order:
        near = [k for k in placed if abs(places["clear_s"][i] - places["clear_s"][k]) < 0.3
                and abs(places["stall_s"][i] - places["stall_s"][k]) < 0.05]  # fmt: skip
        if near:
            more[near[0]] = more.get(near[0], 0) + 1
            continue
        placed.append(i)
        words = [word for word, mark in (("knee", "knee"), ("as it is", "as_it_is")) if rows[mark].iloc[i]]
        labels[i] = str(rows["strategy"].iloc[i]) + (f" ({', '.join(words)})" if words else "")
    for i, count in more.items():
        labels[i] += f" + {count}"
    return labels


def _draw_costs(figure: go.Figure, part: pd.DataFrame, at: dict[str, int]) -> None:
    """One panel: the band of batches that are as good, the closed form, the simulated costs, the best."""
    x, best = part["x"].to_numpy(dtype=float), part["best"].to_numpy(dtype=bool)
    good = part["as_good"].to_numpy(dtype=bool) | best
    stretch = np.cumsum(~good)  # the same number from one that is not as good to the next
    around = x[good & np.isin(stretch, stretch[best])]
    if len(around):
        half = math.sqrt(2)
        figure.add_vrect(
            x0=around[0] / half, x1=around[-1] * half, fillcolor=_BAND, line_width=0, layer="below",
            exclude_empty_subplots=False, **at,
        )  # fmt: skip
    costs = part["objective_s"].to_numpy(dtype=float)
    bars = {"array": part["high_s"] - costs, "arrayminus": costs - part["low_s"], "thickness": 1.2, "width": 3}
    words = [batch_text(pages) for pages in part["batch_pages"]]
    shared = {"showlegend": False, "hovertemplate": "batch %{text}: %{y:.4s}s<extra>%{fullData.name}</extra>", **at}
    figure.add_scatter(
        x=x, y=costs, mode="lines+markers", line={"color": _COLOUR, "width": 1.8}, marker={"size": 6}, error_y=bars,
        text=words, name="simulated", **shared,
    )  # fmt: skip
    figure.add_scatter(
        x=x[best], y=costs[best], mode="markers", marker=_STAR | {"color": INK}, name="best", cliponaxis=False,
        text=np.array(words, dtype=object)[best], **shared,
    )  # fmt: skip
    if part["closed_form_s"].notna().any():
        figure.add_scatter(
            x=x, y=part["closed_form_s"].to_numpy(dtype=float), mode="lines", name="closed form", text=words,
            line={"color": _CLOSED_FORM, "width": 1.5, "dash": "dot"}, **shared,
        )  # fmt: skip


def _one_decade(figure: go.Figure, values: np.ndarray, at: dict[str, int]) -> None:
    """A logarithmic axis of times that spans a decade at least, so that what is flat looks flat."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = float(known.min()), float(known.max())
    wider = max(1.0, math.sqrt(10 / (high / low)))
    figure.update_yaxes(time_axis([low / wider, high * wider], "" if at["col"] > 1 else "cost"), **at)


def _places(batches: Iterable[float]) -> np.ndarray:
    """Where batches stand on a logarithmic axis: the whole ioctl a factor of 8 behind the largest other one."""
    pages = np.asarray(list(batches), dtype=float)
    return np.where(pages == 0, 8 * max(pages.max(initial=0.0), 8.0), pages)


def _batch_axis(batches: Iterable[float]) -> dict[str, object]:
    pages = sorted(set(batches))
    places = _places(pages)
    low, high = places.min(), max(pages)
    ticks = [tick for tick in _TICKS if low <= tick <= high] or [page for page in pages if page]
    ticks = ticks[:: 1 + len(ticks) // 6]
    whole = [float(places[0])] if pages[0] == 0 else []
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": [*ticks, *whole],
        "ticktext": [*map(batch_text, ticks), *["<br>whole" for _ in whole]],
        "range": [math.log10(low / 2), math.log10(places.max() * 2)],
    }


__all__ = [
    "COST_COLUMNS",
    "MAP_COLUMNS",
    "PARETO_COLUMNS",
    "batch_costs",
    "batch_text",
    "best_strategy_map",
    "pareto",
]
