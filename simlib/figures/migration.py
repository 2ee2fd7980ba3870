# SPDX-License-Identifier: BSD-3-Clause
"""Degradation of the guest during migration, and passes of the migration.

Lines show the model: dashed where a line predicts a measurement to which no cost was fitted, and solid elsewhere.
Points show published measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, checked, in_order, number, reads, word
from simlib.figures.style import PALETTE, subplots, titled

_DASHES = {"simulated": "solid", "fitted": "solid", "predicted": "dash"}
_PUBLISHED = {"symbol": "circle", "size": 10, "line": {"color": "white", "width": 1}}
_TABLE = {
    "series": TEXT, "time_s": number(), "degradation": number(), "role": word(_DASHES), "width_s": number(0, gaps=True),
}  # fmt: skip
_MEASURED = {"series": TEXT, "level_percent": number(0), "seconds": number(0)}
LEVEL_LINE = {"color": "#9aa0a6", "width": 1, "dash": "dot"}


@reads("table", _TABLE, role="simulated", width_s=np.nan)
def degradation_over_time(
    rows: pd.DataFrame, measured: pd.DataFrame | None = None, title: str = "Degradation of the guest during migration"
) -> go.Figure:
    """Degradation over time, and in a second panel the time above each level, with published times.

    - `rows`: columns ``series``, ``time_s``, ``degradation`` (1: the guest makes no progress). Optional are ``width_s``
      of the time bins (default: the step of ``time_s``), and ``role`` (``fitted``, ``predicted``): predicted lines are
      dashed.
    - `measured`: columns ``series``, ``level_percent``, ``seconds``: published time above that degradation.

    >>> table = pd.DataFrame({"series": "before", "time_s": [0.5, 1.5, 2.5], "degradation": [0.2, 1.0, 0.5]})
    >>> above = degradation_over_time(table).data[1]
    >>> above.x, above.y
    (array([0., 1., 2., 3.]), array([100., 100.,  50.,  20.]))
    """
    points = pd.DataFrame(columns=list(_MEASURED)) if measured is None else checked(measured, _MEASURED, "measured")
    series = in_order([*rows["series"], *points["series"]])
    figure = subplots(
        1, 2, shared_yaxes=True, horizontal_spacing=0.04, column_widths=[0.56, 0.44],
        subplot_titles=["over time", "seconds above"],
    )  # fmt: skip
    add_lines(figure, rows, "degradation", series, {"row": 1, "col": 1})
    above = pd.concat([_time_above(part) for _, part in rows.groupby("series", sort=False)])
    add_lines(figure, above, "degradation", series, {"row": 1, "col": 2}, shape="vh")
    for name, colour in _colours(series).items():
        part = points[points["series"] == name]
        if len(part):
            figure.add_scatter(
                x=part["seconds"], y=part["level_percent"], mode="markers", marker=_PUBLISHED | {"color": colour},
                cliponaxis=False, name=f"{name}, published", legendgroup=name, showlegend=True, row=1, col=2,
                hovertemplate="above %{y:g} %: %{x:.4g} s<extra>%{fullData.name}</extra>",
            )  # fmt: skip
    for level in sorted(set(points["level_percent"])):
        figure.add_hline(y=level, line=LEVEL_LINE, layer="below", row=1)
    figure.update_yaxes(range=[min(0.0, 100 * float(rows["degradation"].min())) - 2, 104])
    figure.update_yaxes(title="degradation, %", col=1)
    figure.update_xaxes(title="time since the log was enabled, s", rangemode="tozero", col=1)
    figure.update_xaxes(title="time above that degradation, s", rangemode="tozero", col=2)
    subtitle = "simulated" if measured is None else "lines: model, points: published"
    return titled(figure, title, subtitle, entries_per_row=3)


_PASSES = {"plan": TEXT, "guest": number(0), "time_s": number(0), "left_bytes": number(0), "lost_percent": number(0)}


@reads("table", _PASSES)
def migration_passes(rows: pd.DataFrame, title: str = "Passes of the migration") -> go.Figure:
    """Dirty memory after each synchronisation, and the guest's speed under throttling; one line per sampled guest.

    The time axis ends at twice the end of the plan that ends first or, if earlier, at the end of the last plan. Longer
    lines are cut off.

    - `rows`: columns ``plan``, ``guest``, ``time_s``, ``left_bytes`` and ``lost_percent``, one row per synchronisation.

    >>> table = pd.DataFrame({"plan": "current", "guest": 0, "time_s": [0.0, 2.0], "left_bytes": [2.0**30, 2.0**29],
    ...                       "lost_percent": [0.0, 20.0]})
    >>> migration_passes(table).data[0].y, migration_passes(table).data[1].y
    (array([1. , 0.5]), array([100.,  80.]))
    """
    figure = subplots(
        2, 1, shared_xaxes=True, vertical_spacing=0.12, row_heights=[0.64, 0.36],
        subplot_titles=["dirty memory after each synchronisation", "guest speed under throttling"],
    )  # fmt: skip
    passes = rows.assign(gib=rows["left_bytes"] / 2**30, kept=100 - rows["lost_percent"])
    for name, colour in _colours(in_order(rows["plan"])).items():
        plan_rows = passes[passes["plan"] == name]
        for number_of, part in plan_rows.groupby("guest", sort=False):
            first = number_of == plan_rows["guest"].iloc[0]
            for row, column, shape in ((1, "gib", "linear"), (2, "kept", "hv")):
                figure.add_scatter(
                    x=part["time_s"], y=part[column].to_numpy(), mode="lines", opacity=0.6, name=name,
                    line={"color": colour, "width": 1.5, "shape": shape}, legendgroup=name, row=row, col=1,
                    showlegend=bool(first and row == 1),
                    hovertemplate="%{x:.4g} s: %{y:.3g}<extra>%{fullData.name}</extra>",
                )  # fmt: skip
    dirty = passes.loc[passes["gib"] > 0, "gib"]
    ends = rows.groupby("plan")["time_s"].max()
    figure.update_yaxes(title="GiB", type="log", dtick=1, row=1)
    figure.update_yaxes(range=[math.log10(dirty.min() if len(dirty) else 1.0) - 0.2, None], row=1)
    figure.update_yaxes(title="%", range=[-2, 104], row=2)
    figure.update_xaxes(range=[0, min(ends.max(), 2 * ends.min()) * 1.02])
    figure.update_xaxes(title="time since the migration began, s", row=2)
    figure.update_layout(height=520)
    return titled(figure, title, "simulated: one line per guest consistent with the measurements", entries_per_row=1)


def _colours(series: Sequence[str]) -> dict[str, str]:
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(series)}


def add_lines(
    figure: go.Figure, rows: pd.DataFrame, column: str, series: Sequence[str], at: dict[str, int], shape: str = "linear"
) -> None:
    """Draw one line per series, in percent; each is about 2 px wider than the next, so that no line hides another."""
    for i, (name, colour) in enumerate(_colours(series).items()):
        part = rows[rows["series"] == name].sort_values("time_s", kind="stable")
        if part.empty:
            continue
        role = part["role"].iloc[0]
        width = 2 + 2.2 * (len(series) - 1 - i)
        look = {"line": {"color": colour, "width": width, "dash": _DASHES[role], "shape": shape}, "mode": "lines"}
        hover = "%{x:.4g} s: %{y:.3g} %<extra>%{fullData.name}</extra>"
        look |= {"name": f"{name}, {role}", "legendgroup": name, "hovertemplate": hover}
        figure.add_scatter(x=part["time_s"], y=100 * part[column], showlegend=True, **look, **at)


def _time_above(part: pd.DataFrame) -> pd.DataFrame:
    """Degradations of one series, largest first, and their cumulative duration in seconds."""
    times = np.sort(part["time_s"])
    step = float(np.median(np.diff(times))) if len(times) > 1 else 2 * float(times[0])
    falling = part.fillna({"width_s": step}).sort_values("degradation", ascending=False, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(falling["width_s"])])
    return pd.concat([falling.iloc[:1], falling]).assign(time_s=total)
