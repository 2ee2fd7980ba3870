# SPDX-License-Identifier: BSD-3-Clause
"""Curves over vCPUs: dirty memory time, contentions, speed-up.

All three read the same table, one row a point: ``variant``, ``vcpus``, ``metric``
(``dirty_memory_time`` in seconds or ``contentions``), ``kind`` (`KINDS`), ``value``,
``low`` and ``high`` (NaN where there is no interval), and ``held_out``: the
calibration did not see this measured point, or saw none at this number of vCPUs.

What was measured is drawn as points, what the model says as lines, never the other
way round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simlib.errors import InputError
from simlib.figures.frame import draws, in_order, require, require_numbers, require_truths, require_words
from simlib.figures.style import (
    MUTED,
    facet_titles,
    facets,
    key_entry,
    legend_below,
    log_axis,
    short_number,
    time_axis,
    titled,
    translucent,
    variant_colours,
    vcpu_axis,
)

COLUMNS = ("variant", "vcpus", "metric", "kind", "value", "low", "high", "held_out")
"""Columns of the table that every figure here reads."""

KINDS = ("measured", "fitted", "predicted", "simulated", "usl", "amdahl")
"""Where a point comes from; ``simulated``: the model, where no measurement stands beside it."""

_TRAINED = {"symbol": "circle", "size": 9}
_HELD_OUT = {"symbol": "diamond-open", "size": 11, "line": {"width": 2}}
_FITTED, _PREDICTED = {"width": 2.5}, {"width": 2.5, "dash": "dash"}
_BASELINES = {"usl": ("USL", "#CC79A7", "dot"), "amdahl": ("Amdahl", "#E69F00", "dashdot")}


@draws
def dirty_memory_time(curves: pd.DataFrame, title: str = "Dirty memory time over vCPUs") -> go.Figure:
    """Dirty memory time over vCPUs, both logarithmic, one colour a variant.

    Raises `InputError` if a column is missing, or there is no row to draw, or a time is not a positive number.

    Parameters
    ----------
    curves : DataFrame
        The columns `COLUMNS`; rows of other metrics, and of the kinds ``usl`` and ``amdahl``, are left out.
    title : str
        Title of the figure.

    Examples
    --------
    >>> point = {"variant": "spinlock-old-test", "vcpus": 1, "metric": "dirty_memory_time",
    ...          "kind": "measured", "value": 0.926, "low": None, "high": None, "held_out": False}
    >>> dirty_memory_time(pd.DataFrame([point])).data[0].name
    'spinlock-old-test, measured (calibrated on)'
    """
    rows = _rows(curves, "dirty_memory_time")
    if not (rows["value"] > 0).all():
        raise InputError("curves.value", float(rows["value"].min()), "a time must be above 0")
    figure = go.Figure()
    _draw(figure, rows, floor=rows["value"].min() / 4)
    low = np.maximum(rows["low"], rows["value"].min() / 2)  # an interval that reaches 0 must not flatten the rest
    figure.update_xaxes(vcpu_axis(rows["vcpus"]))
    figure.update_yaxes(time_axis([*rows["value"], *low, *rows["high"]], "dirty memory time"))
    _boundary(figure, rows)
    _key(figure, rows)
    return titled(figure, title, "points are measured, lines are the model")


@draws
def contentions(curves: pd.DataFrame, pages_per_vcpu: int, title: str = "Lock contentions over vCPUs") -> go.Figure:
    """Contentions over vCPUs, and beside it contentions per page, which saturate.

    Raises `InputError` if a column is missing, or there is no row to draw, or `pages_per_vcpu` is below 1.

    Parameters
    ----------
    curves : DataFrame
        The columns `COLUMNS`; rows of other metrics, and of the kinds ``usl`` and ``amdahl``, are left out.
    pages_per_vcpu : int
        Pages that one vCPU dirties during the whole run: 2 GiB of 4 KiB pages, twice, are 1048576.
    title : str
        Title of the figure.

    Examples
    --------
    >>> point = {"variant": "spinlock-old-test", "vcpus": 2, "metric": "contentions", "kind": "measured",
    ...          "value": 2_000_000, "low": None, "high": None, "held_out": False}
    >>> contentions(pd.DataFrame([point]), pages_per_vcpu=1_000_000).data[1].y
    array([1.])
    """
    if pages_per_vcpu < 1:
        raise InputError("pages_per_vcpu", pages_per_vcpu, "must be at least 1")
    rows = _rows(curves, "contentions")
    pages = rows["vcpus"] * pages_per_vcpu
    share = rows.assign(**{column: rows[column] / pages for column in ("value", "low", "high")})
    positive = rows.loc[rows["value"] > 0]
    floor = positive["value"].min() / 4 if len(positive) else 1.0
    figure = make_subplots(
        1, 2, subplot_titles=["contentions", "contentions per page dirtied"], horizontal_spacing=0.12
    )
    _draw(figure, positive, floor=floor, row=1, col=1)
    _draw(figure, share, row=1, col=2)
    figure.update_xaxes(vcpu_axis(rows["vcpus"]))
    low = np.maximum(positive["low"], 2 * floor)
    figure.update_yaxes(log_axis([*positive["value"], *low, *positive["high"]], "contentions"), row=1, col=1)
    figure.update_yaxes(title="contentions per page", rangemode="tozero", row=1, col=2)
    facet_titles(figure)
    for col in (1, 2):
        _boundary(figure, rows, row=1, col=col)
    _key(figure, rows)
    hidden = sorted(set(rows.loc[(rows["value"] <= 0) & (rows["kind"] == "measured"), "vcpus"]))
    subtitle = "points are measured, lines are the model"
    if hidden:
        subtitle += f"; 0 measured at {', '.join(f'{v:g}' for v in hidden)} vCPU cannot stand on the left axis"
    return titled(figure, title, subtitle)


@draws
def speed_up(curves: pd.DataFrame, title: str = "Speed-up over one vCPU") -> go.Figure:
    """Pages dirtied per second relative to one vCPU, measured and by three models, a panel a variant.

    Every curve is divided by its own point at one vCPU: ``vcpus * value(1) / value(vcpus)``, since each
    vCPU dirties its own memory.

    Raises `InputError` if a column is missing, or there is no row to draw, or a curve has no point at one vCPU.

    Parameters
    ----------
    curves : DataFrame
        The columns `COLUMNS`; fitted and predicted rows together are the model.
    title : str
        Title of the figure.

    Examples
    --------
    >>> curves = pd.DataFrame({"variant": "a", "vcpus": [1, 4], "metric": "dirty_memory_time",
    ...                        "kind": "measured", "value": [1.0, 2.0], "low": None, "high": None,
    ...                        "held_out": False})
    >>> speed_up(curves).data[1].y
    array([1., 2.])
    """
    rows = _rows(curves, "dirty_memory_time", kinds=KINDS)
    if not (rows["value"] > 0).all():
        raise InputError("curves.value", float(rows["value"].min()), "a time must be above 0")
    parts = []
    source = rows["kind"].replace(dict.fromkeys(KINDS[1:4], "model"))
    for (variant, kind), part in rows.groupby([rows["variant"], source], sort=False):
        one = part.loc[part["vcpus"] == 1, "value"]
        if one.empty:
            raise InputError(
                "curves.vcpus",
                f"no 1 for {kind} {variant}",
                "a speed-up is relative to one vCPU",
                "add that point",
            )
        speed = part["vcpus"] * one.iloc[0] / part["value"]
        parts.append(part.assign(value=speed, low=np.nan, high=np.nan))
    relative = pd.concat(parts)
    variants = in_order(rows["variant"])
    figure, place = facets(variants)
    most = float(rows["vcpus"].max())
    colours = variant_colours(variants)
    for i, variant in enumerate(variants):
        at = place(i)
        ideal = {"color": "#b5bac1", "width": 1, "dash": "dot"}
        figure.add_scatter(
            x=[1, most],
            y=[1, most],
            mode="lines",
            line=ideal,
            hoverinfo="skip",
            showlegend=False,
            name="ideal",
            **at,
        )
        mine = relative.loc[relative["variant"] == variant]
        _draw_points(figure, mine, variant, colours[variant], at)
        for kind, (name, colour, dash) in _BASELINES.items():
            part = mine.loc[mine["kind"] == kind].sort_values("vcpus")
            if len(part):
                _line(figure, part, f"{variant}, {name}", {"color": colour, "width": 2, "dash": dash}, at)
        _draw_model(figure, mine, variant, colours[variant], at, floor=None)
    ticks = vcpu_axis(rows["vcpus"])
    ticks.pop("title")  # stands below the last row of panels only
    figure.update_xaxes(ticks)
    axis = log_axis([1.0, *relative["value"]], "throughput relative to one vCPU")
    figure.update_yaxes(axis | {"title": None})
    figure.update_yaxes(title=axis["title"], col=1)
    facet_titles(figure)
    entries = _speed_up_legend(figure, set(rows["kind"]), rows)
    legend_below(figure, entries, rows_of=3)
    return titled(figure, title, "points are measured, lines are models; the thin dotted line is ideal")


def _rows(curves: pd.DataFrame, metric: str, kinds: tuple[str, ...] = KINDS[:4]) -> pd.DataFrame:
    """Rows of one metric and some kinds, checked and ordered by vCPUs."""
    frame = require(curves, COLUMNS, "curves")
    require_words(frame, "kind", KINDS, "curves")
    rows = frame.loc[(frame["metric"] == metric) & frame["kind"].isin(kinds)].copy()
    if rows.empty:
        found = ", ".join(in_order(frame["metric"]))
        raise InputError("curves.metric", found, f"no row of {metric} to draw", f"add rows of kind {', '.join(kinds)}")
    require_numbers(rows, ["vcpus"], "curves", least=1)
    require_numbers(rows, ["value"], "curves", least=0)
    require_numbers(rows, ["low", "high"], "curves", gaps=True)
    for column in ("vcpus", "value", "low", "high"):
        rows[column] = rows[column].astype(float)
    require_truths(rows, ["held_out"], "curves")
    rows["held_out"] = rows["held_out"].astype(bool)
    order = {variant: i for i, variant in enumerate(variant_colours(rows["variant"]))}
    rows["variant"] = rows["variant"].astype(str)
    return rows.sort_values(
        ["variant", "vcpus"], key=lambda c: c.map(order) if c.name == "variant" else c, kind="stable"
    )


def _draw(
    figure: go.Figure,
    rows: pd.DataFrame,
    *,
    floor: float | None = None,
    row: int | None = None,
    col: int | None = None,
) -> None:
    """Every variant: its band, its lines, its points on top."""
    at = {} if row is None else {"row": row, "col": col}
    for variant, colour in variant_colours(rows["variant"]).items():
        mine = rows.loc[rows["variant"] == variant]
        _draw_model(figure, mine, variant, colour, at, floor=floor)
        _draw_points(figure, mine, variant, colour, at)


def _draw_points(figure: go.Figure, mine: pd.DataFrame, variant: str, colour: str, at: dict[str, Any]) -> None:
    measured = mine.loc[mine["kind"] == "measured"]
    for held_out, marker, what in (
        (False, _TRAINED, "measured (calibrated on)"),
        (True, _HELD_OUT, "measured (held out)"),
    ):
        part = measured.loc[measured["held_out"] == held_out]
        if part.empty:
            continue
        bars = None
        if part[["low", "high"]].notna().all(axis=None):
            up, down = part["high"] - part["value"], part["value"] - part["low"]
            bars = {"array": up.to_numpy(), "arrayminus": down.to_numpy(), "thickness": 1.2, "width": 3}
        figure.add_scatter(
            x=part["vcpus"].to_numpy(),
            y=part["value"].to_numpy(),
            mode="markers",
            error_y=bars,
            marker=marker | {"color": colour},
            cliponaxis=False,
            name=f"{variant}, {what}",
            legendgroup=variant,
            showlegend=False,
            hovertemplate="%{x:g} vCPUs: %{y:.4s}<extra>%{fullData.name}</extra>",
            **at,
        )


def _draw_model(
    figure: go.Figure,
    mine: pd.DataFrame,
    variant: str,
    colour: str,
    at: dict[str, Any],
    *,
    floor: float | None,
) -> None:
    """Solid through what was fitted, dashed with its interval through what was predicted beyond it."""
    what = "simulated" if (mine["kind"] == "simulated").any() else "predicted"
    predicted = mine.loc[mine["kind"] == what]
    fitted = mine.loc[mine["kind"] == "fitted"]
    # Where vCPUs were calibrated on, a prediction is part of the fitted curve, unless that has its own point.
    inside = predicted.loc[~predicted["held_out"] & ~predicted["vcpus"].isin(fitted["vcpus"])]
    fitted = pd.concat([fitted, inside]).sort_values("vcpus")
    beyond = predicted.loc[predicted["held_out"]].sort_values("vcpus")
    if len(fitted) and len(beyond):
        last = fitted.loc[fitted["vcpus"] < beyond["vcpus"].min()].tail(1)
        last = last.assign(low=last["low"].fillna(last["value"]), high=last["high"].fillna(last["value"]))
        beyond = pd.concat([last, beyond])
    band = beyond.loc[np.isfinite(beyond["low"]) & np.isfinite(beyond["high"])]
    if len(band) > 1:
        low = band["low"].clip(lower=floor)
        figure.add_scatter(
            x=[*band["vcpus"], *band["vcpus"][::-1]],
            y=[*band["high"], *low[::-1]],
            mode="lines",
            fill="toself",
            fillcolor=translucent(colour),
            line={"width": 0},
            name=f"{variant}, {what} 90 % interval",
            legendgroup=variant,
            showlegend=False,
            hoverinfo="skip",
            **at,
        )
    if len(fitted):
        _line(figure, fitted, f"{variant}, fitted", _FITTED | {"color": colour}, at, group=variant)
    if len(beyond):
        _line(figure, beyond, f"{variant}, {what}", _PREDICTED | {"color": colour}, at, group=variant)


def _line(
    figure: go.Figure,
    part: pd.DataFrame,
    name: str,
    line: dict[str, Any],
    at: dict[str, Any],
    *,
    group: str = "",
) -> None:
    interval = [
        f" ({short_number(low)} to {short_number(high)})" if np.isfinite(low) and np.isfinite(high) else ""
        for low, high in zip(part["low"], part["high"], strict=True)
    ]
    figure.add_scatter(
        x=part["vcpus"].to_numpy(),
        y=part["value"].to_numpy(),
        mode="lines",
        line=line,
        name=name,
        text=interval,
        legendgroup=group or None,
        showlegend=False,
        hovertemplate="%{x:g} vCPUs: %{y:.4s}%{text}<extra>%{fullData.name}</extra>",
        **at,
    )


def _boundary(figure: go.Figure, rows: pd.DataFrame, row: int | None = None, col: int | None = None) -> None:
    """A line between the vCPUs that were calibrated on and those beyond, where one line can do it."""
    trained = rows.loc[~rows["held_out"], "vcpus"]
    held_out = rows.loc[rows["held_out"], "vcpus"]
    if trained.empty or held_out.empty or trained.max() >= held_out.min():
        return
    last = trained.max()
    x = math.sqrt(last * held_out.min())
    at = {} if row is None else {"row": row, "col": col}
    figure.add_vline(x=x, line={"color": "#9aa0a6", "width": 1, "dash": "dot"}, layer="below", **at)
    axis = "" if col in (None, 1) else str(col)
    for text, anchor, shift in ((f"calibrated ≤ {last:g}", "right", -5), ("predicted", "left", 5)):
        figure.add_annotation(
            x=math.log10(x),
            xref=f"x{axis}",
            y=1,
            yref=f"y{axis} domain",
            text=text,
            showarrow=False,
            xanchor=anchor,
            yanchor="bottom" if row is None else "top",
            xshift=shift,
            font={"size": 11, "color": MUTED},
            bgcolor="rgba(255,255,255,0.75)",
        )


def _key(figure: go.Figure, rows: pd.DataFrame) -> None:
    """The second legend: what a marker or a line means, in grey since it holds for every colour."""
    kinds = rows["kind"]
    measured = kinds == "measured"
    wanted = (
        (
            "measured (calibrated on)",
            {"mode": "markers", "marker": _TRAINED},
            (measured & ~rows["held_out"]).any(),
        ),
        (
            "measured (held out)",
            {"mode": "markers", "marker": _HELD_OUT},
            (measured & rows["held_out"]).any(),
        ),
        ("fitted", {"mode": "lines", "line": _FITTED}, (kinds == "fitted").any()),
        ("predicted", {"mode": "lines", "line": _PREDICTED}, (kinds == "predicted").any()),
        ("simulated", {"mode": "lines", "line": _PREDICTED}, (kinds == "simulated").any()),
        (
            "predicted 90 % interval",
            {"mode": "markers", "marker": {"symbol": "square", "size": 14}},
            (kinds.eq("predicted") & rows["low"].notna()).any(),
        ),
    )
    for name, look, present in wanted:
        if present:
            key_entry(figure, name, look, translucent(MUTED, 0.25) if "interval" in name else MUTED)
    for variant, colour in variant_colours(rows["variant"]).items():
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            line={"color": colour, "width": 6},
            name=variant,
            legendgroup=variant,
            hoverinfo="skip",
        )
    legend_below(figure, rows["variant"].nunique(), rows_of=3, keyed=True)


def _speed_up_legend(figure: go.Figure, kinds: set[str], rows: pd.DataFrame) -> int:
    """One entry a kind, in grey for what takes the variant's colour. Returns how many."""
    measured = rows["kind"] == "measured"
    entries: list[tuple[str, dict[str, Any], str]] = []
    if (measured & ~rows["held_out"]).any():
        entries.append(("measured (calibrated on)", {"mode": "markers", "marker": _TRAINED}, MUTED))
    if (measured & rows["held_out"]).any():
        entries.append(("measured (held out)", {"mode": "markers", "marker": _HELD_OUT}, MUTED))
    if "fitted" in kinds:
        entries.append(("model, fitted", {"mode": "lines", "line": _FITTED}, MUTED))
    if "predicted" in kinds:
        entries.append(("model, predicted", {"mode": "lines", "line": _PREDICTED}, MUTED))
    for kind, (name, colour, dash) in _BASELINES.items():
        if kind in kinds:
            entries.append((name, {"mode": "lines", "line": {"width": 2, "dash": dash}}, colour))
    for name, look, colour in entries:
        key_entry(figure, name, look, colour, legend="legend")
    figure.update_layout(legend={"itemclick": False, "itemdoubleclick": False})
    return len(entries)


__all__ = ["COLUMNS", "KINDS", "contentions", "dirty_memory_time", "speed_up"]
