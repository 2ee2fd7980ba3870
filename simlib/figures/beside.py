# SPDX-License-Identifier: BSD-3-Clause
"""Published values and the model's beside each other: a row a value, with both in words at its end.

What was published is a black circle; the model is blue, with its interval: a tick if its costs were fitted to this very
measurement, a hollow diamond if it was predicted. The grey bar is the range that counts as agreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from simlib.figures.frame import in_order, require, require_numbers, require_words
from simlib.figures.style import INK, MUTED, PALETTE, facet_titles, legend_below, seconds, signed, titled, translucent

CONFIGURATION_COLUMNS = ("configuration", "emulates", "metric", "published_percent", "low_bar", "high_bar",
                         "model_percent", "low", "high")  # fmt: skip
"""Columns of the table that `three_configurations` reads."""

SECONDS_COLUMNS = ("series", "level_percent", "published_s", "model_s", "low_s", "high_s", "role")
"""Columns of the table that `seconds_above` reads."""

METRICS = {
    "precopy_duration": "pre-copy duration",
    "dirty_left": "dirty memory left at the switchover",
    "clear_cpu_time": "CPU time of CLEAR",
}
"""Metrics of `three_configurations`, and the titles of their panels."""

_PUBLISHED = {"symbol": "circle", "size": 9, "color": INK}
_MODEL = {
    "fitted": {"symbol": "line-ns-open", "size": 19, "color": PALETTE[0], "line": {"width": 4}},
    "predicted": {"symbol": "diamond-tall-open", "size": 15, "color": PALETTE[0], "line": {"width": 2.5}},
}
"""Marks of the model, by how it came by a number: from costs fitted to this very measurement, or to others."""

_VALUES = ("published", "value", "low", "high", "low_bar", "high_bar")
_LINEAR = 3.0
"""Change, percent, up to which the axis of changes is about linear."""


def three_configurations(
    table: pd.DataFrame, title: str = "What dropping mmu_lock every 64 pages changes"
) -> go.Figure:
    """Changes in percent, published and by the model, a panel a metric, a row a configuration.

    The axis is linear near 0 and logarithmic beyond, so that −1 % and +5200 % can both be read.

    Raises `InputError` if a column is missing, the table is empty, or a metric or role is not known.

    Parameters
    ----------
    table : DataFrame
        The columns `CONFIGURATION_COLUMNS`: ``configuration`` a number, ``metric`` one of `METRICS`; changes in
        percent; ``low_bar`` to ``high_bar`` the range that counts as agreement, ``low`` to ``high`` the model's
        interval (NaN: none; so may be what was published). ``role`` (``fitted`` or ``predicted``) may be there; without
        it the model is predicted.
    title : str
        Title of the figure.

    Examples
    --------
    >>> row = {"configuration": 3, "emulates": "loongarch", "metric": "clear_cpu_time", "published_percent": 5200,
    ...        "low_bar": 3000, "high_bar": 8000, "model_percent": 4800, "low": 4100, "high": 5600}
    >>> [trace.name for trace in three_configurations(pd.DataFrame([row])).data if trace.showlegend]
    ['counted as agreement', 'published', 'model, predicted']
    """
    rows = require(table, CONFIGURATION_COLUMNS, "table", role="predicted")
    require_words(rows, "metric", METRICS, "table")
    require_numbers(rows, ["configuration", "model_percent"], "table")
    require_numbers(rows, ["published_percent", "low_bar", "high_bar", "low", "high"], "table", gaps=True)
    rows = rows.rename(columns={"published_percent": "published", "model_percent": "value"})
    rows = rows.sort_values("configuration", kind="stable")
    names = [f"{number}: {emulates}" for number, emulates in zip(rows["configuration"], rows["emulates"], strict=True)]
    figure = _beside(
        rows.assign(label=names), "metric", METRICS, lambda value: f"{signed(value)} %", place=_on_change_axis
    )
    figure.update_xaxes(_change_axis(rows[list(_VALUES)].to_numpy(dtype=float)))
    figure.update_xaxes(
        title=f"change, % (linear up to about ±{_LINEAR:g} %, logarithmic beyond)", row=rows["metric"].nunique()
    )
    return titled(figure, title, "published, and simulated with one set of costs: only the policy changes")


def seconds_above(table: pd.DataFrame, title: str = "Time during which the guest is degraded") -> go.Figure:
    """Seconds above each level of degradation, published and by the model, a panel a series, a row a level.

    Raises `InputError` if a column is missing, the table is empty, or a role is not known.

    Parameters
    ----------
    table : DataFrame
        The columns `SECONDS_COLUMNS`: times in seconds (``published_s`` and the interval may be NaN), ``role``
        ``fitted`` or ``predicted``. ``low_bar_s`` and ``high_bar_s``, the range that counts as agreement, may be
        there.
    title : str
        Title of the figure.

    Examples
    --------
    >>> row = {"series": "arm64, before", "level_percent": 99, "published_s": 105.0, "model_s": 101.0,
    ...        "low_s": 96.0, "high_s": 108.0, "role": "fitted"}
    >>> [trace.name for trace in seconds_above(pd.DataFrame([row])).data if trace.showlegend]
    ['published', 'model, fitted']
    """
    rows = require(table, SECONDS_COLUMNS, "table", low_bar_s=np.nan, high_bar_s=np.nan)
    require_numbers(rows, ["level_percent", "model_s"], "table", least=0)
    require_numbers(rows, ["published_s", "low_s", "high_s", "low_bar_s", "high_bar_s"], "table", gaps=True, least=0)
    rows = rows.rename(columns={"model_s": "value_s"}).rename(columns=lambda name: str(name).removesuffix("_s"))
    rows = rows.sort_values("level_percent", ascending=False, kind="stable")
    series = {name: name for name in in_order(table["series"])}
    figure = _beside(
        rows.assign(label=[f"above {level:g} %" for level in rows["level_percent"]]), "series", series, seconds
    )
    most = float(np.nanmax(rows[list(_VALUES)].to_numpy(dtype=float)))
    figure.update_xaxes(range=[0, (most or 1.0) * 1.06])
    figure.update_xaxes(title="seconds", row=len(series))
    return titled(figure, title, "seconds above a level of degradation; 100 %: the guest stands still")


def _beside(
    rows: pd.DataFrame,
    by: str,
    titles: dict[str, str],
    text: Callable[[float], str],
    place: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.asarray,
) -> go.Figure:
    """Panels below each other, each with all the rows' labels; `place` takes a value to where it stands."""
    require_words(rows, "role", _MODEL, "table")
    rows = rows.astype(dict.fromkeys(_VALUES, float) | {by: str})
    labels = in_order(rows["label"])
    shown = [key for key in titles if (rows[by] == key).any()]
    panel, gap = 40 * len(labels) + 12, 44
    inner = len(shown) * (panel + gap) - gap
    figure = make_subplots(
        len(shown), 1, subplot_titles=[titles[key] for key in shown], shared_xaxes=True, vertical_spacing=gap / inner
    )
    facet_titles(figure)
    for number, key in enumerate(shown, start=1):
        mine = rows[rows[by] == key]
        _draw(figure, mine.assign(y=[labels.index(label) for label in mine["label"]]), number, text, place)
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(labels))), ticktext=labels, ticks="", showgrid=False,
        range=[len(labels) - 0.4, -0.6],
    )  # fmt: skip
    seen: set[str] = set()
    for trace in figure.data:
        entry = trace.mode == "markers" or trace.name == "counted as agreement"
        trace.showlegend = entry and trace.name not in seen
        seen |= {trace.name} if entry else set()
    legend_below(figure, len(seen))
    top = 112
    bottom = figure.layout.margin.b + 20
    figure.update_layout(height=inner + top + bottom, margin={"t": top, "b": bottom, "r": 172})
    figure.add_annotation(
        text="published → model", xref="paper", yref="paper", x=1.01, y=1, yshift=22, xanchor="left", showarrow=False,
        font={"size": 12, "color": MUTED},
    )  # fmt: skip
    return figure


def _draw(
    figure: go.Figure,
    rows: pd.DataFrame,
    panel: int,
    text: Callable[[float], str],
    place: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> None:
    """One panel: the asked range, what was published, the model with its interval, and both in words."""

    def span(part: pd.DataFrame, low: str, high: str, name: str, colour: str, width: float) -> None:
        ends = part[[low, high]].assign(gap=np.nan).to_numpy().ravel()
        figure.add_scatter(
            x=place(ends), y=np.repeat(part["y"].to_numpy(), 3), mode="lines", line={"color": colour, "width": width},
            hoverinfo="skip", name=name, legendgroup=name, row=panel, col=1,
        )  # fmt: skip

    def points(part: pd.DataFrame, column: str, name: str, marker: dict[str, object], words: Sequence[str]) -> None:
        figure.add_scatter(
            x=place(part[column].to_numpy()), y=part["y"].to_numpy(), mode="markers", marker=marker, text=list(words),
            hovertemplate="%{text}<extra>%{fullData.name}</extra>", name=name, legendgroup=name, cliponaxis=False,
            row=panel, col=1,
        )  # fmt: skip

    asked = rows.dropna(subset=["low_bar", "high_bar"])
    if len(asked):
        span(asked, "low_bar", "high_bar", "counted as agreement", translucent(MUTED, 0.25), 20)
    known = rows.dropna(subset=["published"])
    if len(known):
        points(known, "published", "published", _PUBLISHED, [text(value) for value in known["published"]])
    for role, marker in _MODEL.items():
        part = rows[rows["role"] == role]
        if len(part):
            words = [text(v) + ("" if math.isnan(low + high) else f" ({text(low)} to {text(high)})")
                     for v, low, high in part[["value", "low", "high"]].to_numpy()]  # fmt: skip
            span(part, "low", "high", f"model, {role}", PALETTE[0], 2.5)
            points(part, "value", f"model, {role}", marker, words)
    for y, published, value in rows[["y", "published", "value"]].to_numpy():
        figure.add_annotation(
            text=f"{'–' if math.isnan(published) else text(published)} → {text(value)}", showarrow=False,
            xref="paper", x=1.01, xanchor="left", y=y, yref=f"y{panel if panel > 1 else ''}", font={"size": 12},
        )  # fmt: skip


def _on_change_axis(percent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a change stands on an axis that is linear near 0 and logarithmic beyond."""
    return np.arcsinh(np.asarray(percent, dtype=float) / _LINEAR)


def _change_axis(values: NDArray[np.float64]) -> dict[str, object]:
    """The axis of `_on_change_axis` that holds all finite values and 0."""
    low, high = min(-_LINEAR, float(np.nanmin(values))), max(_LINEAR, float(np.nanmax(values)))
    sizes = [float(f"{digit}e{power}") for power in range(7) for digit in (1, 3)]
    ticks = [tick for tick in (*(-size for size in sizes[::-1]), 0.0, *sizes) if low <= tick <= high]
    left, right = _on_change_axis(np.array([low, high]))
    return {
        "tickmode": "array",
        "tickvals": _on_change_axis(np.array(ticks)),
        "ticktext": [signed(tick) if tick else "0" for tick in ticks],
        "range": [left - 0.3, right + 0.3],
        "zeroline": True,
        "zerolinecolor": INK,
        "zerolinewidth": 1.2,
    }


__all__ = ["CONFIGURATION_COLUMNS", "METRICS", "SECONDS_COLUMNS", "seconds_above", "three_configurations"]
