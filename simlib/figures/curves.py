# SPDX-License-Identifier: BSD-3-Clause
"""Curves against the vCPU count: dirty memory time, contentions, speed-up, and any predicted metric.

The first three read the same table, one row per point: ``variant``, ``vcpus``, ``metric`` (``dirty_memory_time`` in
seconds or ``contentions``), ``kind`` (`KINDS`), ``value``, ``low`` and ``high`` (NaN without an interval), and
``held_out``: the calibration did not use this measured point, or, for a point of a model, any at this vCPU count.

Measurements are drawn as points, and the model as lines.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib._lib.errors import InputError, nearest
from simlib.figures import style
from simlib.figures.frame import TEXT, TRUTH, checked, in_order, number, reads, word

KINDS = ("measured", "fitted", "predicted", "simulated", "usl", "amdahl")
"""Origins of a point; ``simulated``: the model without a measurement to compare with."""

_POINT, _INTERVAL = {"vcpus": number(1), "metric": TEXT}, dict.fromkeys(("low", "high"), number(gaps=True))

COLUMNS = {
    "variant": TEXT,
    **_POINT,
    "kind": word(KINDS),
    "value": number(0, gaps=True),
    **_INTERVAL,
    "held_out": TRUTH,
}
"""Columns of the table that `dirty_memory_time`, `contentions` and `speed_up` read."""

METRIC_COLUMNS = {**_POINT, "estimate": number(gaps=True), **_INTERVAL, "unit": TEXT}
"""Columns of the table that `over_vcpus` reads; ``policy``, or ``variant`` if ``policy`` is empty, names the curve."""

_TRAINED = {"mode": "markers", "marker": {"symbol": "circle", "size": 9}}
_HELD_OUT = {"mode": "markers", "marker": {"symbol": "diamond-open", "size": 11, "line": {"width": 2}}}
_POINTS = {"measured (calibrated on)": (False, _TRAINED), "measured (held out)": (True, _HELD_OUT)}
_FITTED = {"mode": "lines", "line": {"width": 2.5}}
_PREDICTED = {"mode": "lines", "line": {"width": 2.5, "dash": "dash"}}
_LINES = {"fitted": _FITTED, "predicted": _PREDICTED, "simulated": _PREDICTED}
_BASELINES = {
    "usl": ("USL", {"mode": "lines", "line": {"width": 2, "dash": "dot"}}),
    "amdahl": ("Amdahl", {"mode": "lines", "line": {"width": 2, "dash": "dashdot"}}),
}


@reads("curves", COLUMNS)
def dirty_memory_time(curves: pd.DataFrame, title: str = "Dirty memory time against the vCPU count") -> go.Figure:
    """Dirty memory time against the vCPU count, both logarithmic, one colour per variant.

    Raises `InputError` if a column is missing, or there is no row to draw, or a time is not a positive number.

    - `curves`: the columns `COLUMNS`; rows of other metrics, and of the kinds ``usl`` and ``amdahl``, are ignored.

    >>> point = {"variant": "spinlock-old-test", "vcpus": 1, "metric": "dirty_memory_time",
    ...          "kind": "measured", "value": 0.926, "low": None, "high": None, "held_out": False}
    >>> dirty_memory_time(pd.DataFrame([point])).data[0].name
    'spinlock-old-test, measured (calibrated on)'
    """
    rows = _rows(curves, "dirty_memory_time")
    figure = go.Figure()
    _draw(figure, rows, floor=rows["value"].min() / 4)
    # An interval that reaches 0 must not flatten the other curves.
    low = np.maximum(rows["low"], rows["value"].min() / 2)
    figure.update_xaxes(style.vcpu_axis(rows["vcpus"]))
    figure.update_yaxes(style.time_axis([*rows["value"], *low, *rows["high"]], "dirty memory time"))
    _boundary(figure, rows)
    _key(figure, rows)
    return style.titled(figure, title, "points: measured, lines: model", entries_per_row=3)


@reads("curves", COLUMNS)
def contentions(
    curves: pd.DataFrame, pages_per_vcpu: int | None = None, title: str = "Lock contentions against the vCPU count"
) -> go.Figure:
    """Contentions against the vCPU count; given `pages_per_vcpu`, a second panel shows contentions per page.

    Raises `InputError` if a column is missing, or there is no row to draw, or `pages_per_vcpu` is below 1.

    - `curves`: the columns `COLUMNS`; rows of other metrics, and of the kinds ``usl`` and ``amdahl``, are ignored.
    - `pages_per_vcpu`: pages that one vCPU dirties during the whole run: 2 GiB of 4 KiB pages, twice, are 1048576.

    >>> point = {"variant": "spinlock-old-test", "vcpus": 2, "metric": "contentions", "kind": "measured",
    ...          "value": 2_000_000, "low": None, "high": None, "held_out": False}
    >>> contentions(pd.DataFrame([point]), pages_per_vcpu=1_000_000).data[1].y
    array([1.])
    """
    if pages_per_vcpu is not None and pages_per_vcpu < 1:
        raise InputError("pages_per_vcpu", pages_per_vcpu, "must be at least 1")
    rows = _rows(curves, "contentions")
    ends = ["value", "low", "high"]
    positive = rows[rows["value"] > 0]
    floor = positive["value"].min() / 4 if len(positive) else 1.0
    panels = ["contentions"] if pages_per_vcpu is None else ["contentions", "contentions per page dirtied"]
    figure = style.subplots(1, len(panels), subplot_titles=panels, horizontal_spacing=0.12)
    places = [{"row": 1, "col": column} for column, _ in enumerate(panels, 1)]
    _draw(figure, positive, floor=floor, at=places[0])
    low = np.maximum(positive["low"], 2 * floor)
    figure.update_yaxes(style.log_axis([*positive["value"], *low, *positive["high"]], "contentions"), **places[0])
    if pages_per_vcpu is not None:
        share = rows.assign(**rows[ends].div(rows["vcpus"] * pages_per_vcpu, axis=0))
        _draw(figure, share, at=places[1])
        figure.update_yaxes(title="contentions per page", rangemode="tozero", **places[1])
    figure.update_xaxes(style.vcpu_axis(rows["vcpus"]))
    for at in places:
        _boundary(figure, rows, at)
    _key(figure, rows)
    hidden = sorted(set(rows.loc[(rows["value"] <= 0) & (rows["kind"] == "measured"), "vcpus"]))
    subtitle = "points: measured, lines: model"
    if hidden:
        counts = ", ".join(f"{v:g}" for v in hidden)
        subtitle += f"; points with 0 contentions are not shown (vCPUs: {counts})"
    return style.titled(figure, title, subtitle, entries_per_row=3)


@reads("curves", COLUMNS)
def speed_up(curves: pd.DataFrame, title: str = "Speed-up over one vCPU") -> go.Figure:
    """Pages dirtied per second relative to one vCPU, measured and from three models, one panel per variant.

    Every curve is divided by its own point at one vCPU: ``vcpus * value(1) / value(vcpus)``, since each
    vCPU dirties its own memory.

    Raises `InputError` if a column is missing, or there is no row to draw, or a curve has no point at one vCPU.

    - `curves`: the columns `COLUMNS`; fitted and predicted rows together are the model.

    >>> curves = pd.DataFrame({"variant": "a", "vcpus": [1, 4], "metric": "dirty_memory_time",
    ...                        "kind": "measured", "value": [1.0, 2.0], "low": None, "high": None,
    ...                        "held_out": False})
    >>> speed_up(curves).data[1].y
    array([1., 2.])
    """
    rows = _rows(curves, "dirty_memory_time", kinds=KINDS)
    relative = _relative(rows)
    colours = style.variant_colours(rows["variant"])
    figure, place = style.facets(list(colours))
    ends = [1, float(rows["vcpus"].max())]
    ideal = {"x": ends, "y": ends, "mode": "lines", "line": {"color": "#b5bac1", "width": 1, "dash": "dot"}}
    for i, (variant, colour) in enumerate(colours.items()):
        figure.add_scatter(**ideal, hoverinfo="skip", showlegend=False, name="ideal", **place(i))
        curve = relative[relative["variant"] == variant]
        _draw_points(figure, curve, variant, colour, place(i))
        for kind, (name, look) in _BASELINES.items():
            part = curve[curve["kind"] == kind].sort_values("vcpus")
            if len(part):
                _add_line(
                    figure, part, f"{variant}, {name}", style.coloured(look, style.MODEL_COLOURS[name]) | place(i)
                )
        _draw_model(figure, curve, variant, colour, place(i))
    figure.update_xaxes(style.vcpu_axis(rows["vcpus"]) | {"title": None})
    figure.update_xaxes(title="vCPUs", row=place(len(colours) - 1)["row"])
    axis = style.log_axis([1.0, *relative["value"]], "throughput relative to one vCPU")
    figure.update_yaxes(axis | {"title": None})
    figure.update_yaxes(title=axis["title"], col=1)
    laws = [law for kind, law in _BASELINES.items() if (rows["kind"] == kind).any()]
    entries = [(name, look, style.MODEL_COLOURS[name]) for name, look in laws]
    style.key(figure, [*_entries(rows, "model, "), *entries])
    subtitle = "points: measured, lines: models; thin dotted line: ideal"
    return style.titled(figure, title, subtitle, entries_per_row=3)


@reads("frame", METRIC_COLUMNS | {"policy": TEXT, "variant": TEXT}, policy="", variant="")
def over_vcpus(frame: pd.DataFrame, metric: str = "", title: str = "Predicted against the vCPU count") -> go.Figure:
    """Curves of predicted metrics with their intervals against the vCPU count, one panel per metric.

    Raises `InputError` if there is no row to draw.

    - `frame`: the columns `METRIC_COLUMNS`, and ``policy`` or ``variant``: a prediction's or a comparison's frame, or
      the result itself.
    - `metric`: draw only this metric; empty: all.

    >>> frame = pd.DataFrame({"variant": "a", "vcpus": [1, 2], "metric": "zap_time", "estimate": [1.0, 1.5],
    ...                       "low": [0.9, 1.2], "high": [1.1, 1.8], "unit": "s"})
    >>> over_vcpus(frame).data[1].y
    array([1. , 1.5])
    """
    if metric and metric not in set(frame["metric"]):
        raise InputError("metric", metric, "must be a metric of the table", nearest(metric, in_order(frame["metric"])))
    rows = frame[frame["metric"] == metric] if metric else frame
    rows = rows.assign(curve=rows["policy"].where(rows["policy"] != "", rows["variant"]))
    units, factors = dict(zip(rows["metric"], rows["unit"], strict=True)), dict.fromkeys(rows["metric"], 1.0)
    for name in [name for name, unit in units.items() if unit == "s"]:
        factors[name], units[name] = style.time_unit(rows.loc[rows["metric"] == name, "estimate"])
    ends = ["estimate", "low", "high"]
    rows[ends] = rows[ends].div(rows["metric"].map(factors), axis=0)
    figure, place = style.facets([f"{name}, {unit}" for name, unit in units.items()], shared_y=False)
    colours = style.variant_colours(rows["curve"])
    look = {"mode": "lines+markers", "hovertemplate": "%{x} vCPUs: %{y:.4g}<extra>%{fullData.name}</extra>"}
    for panel, name in enumerate(units):
        for curve, part in rows[rows["metric"] == name].sort_values("vcpus").groupby("curve", sort=False):
            area = style.band(part["vcpus"], part["low"], part["high"], style.translucent(colours[curve]))
            figure.add_scatter(**area, legendgroup=curve, **place(panel))
            line = {"line": {"color": colours[curve], "width": 2.5}, "name": curve, "showlegend": bool(curve)}
            figure.add_scatter(x=part["vcpus"], y=part["estimate"], legendgroup=curve, **look, **line, **place(panel))
    figure.update_xaxes(style.vcpu_axis(rows["vcpus"]))
    figure.update_yaxes(rangemode="tozero")
    return style.titled(figure, title, "predicted; bands are intervals", entries_per_row=3)


def _rows(curves: pd.DataFrame, metric: str, kinds: tuple[str, ...] = KINDS[:4]) -> pd.DataFrame:
    """Rows of one metric and of the given kinds, ordered by vCPU count."""
    rows = curves[(curves["metric"] == metric) & curves["kind"].isin(kinds)]
    if rows.empty:
        metrics, hint = ", ".join(in_order(curves["metric"])), f"add rows of kind {', '.join(kinds)}"
        raise InputError("curves.metric", metrics, f"no row of {metric} to draw", hint)
    rows = checked(rows, COLUMNS | {"value": number(0)}, "curves")  # other metrics may have gaps
    if metric == "dirty_memory_time" and not (rows["value"] > 0).all():
        raise InputError("curves.value", float(rows["value"].min()), "a time must be above 0")
    return pd.concat([part.sort_values("vcpus", kind="stable") for _, part in rows.groupby("variant", sort=False)])


def _relative(rows: pd.DataFrame) -> pd.DataFrame:
    """Speeds relative to the same curve at one vCPU; fitted and predicted points form one curve."""
    parts = []
    source = rows["kind"].replace(dict.fromkeys(_LINES, "model"))
    for (variant, kind), part in rows.groupby([rows["variant"], source], sort=False):
        single = part.loc[part["vcpus"] == 1, "value"]
        if single.empty:
            missing = f"no row with 1 vCPU for {kind} {variant}"
            raise InputError("curves.vcpus", missing, "a speed-up is relative to one vCPU", "add this row")
        speed = part["vcpus"] * single.iloc[0] / part["value"]
        parts.append(part.assign(value=speed, low=np.nan, high=np.nan))
    return pd.concat(parts)


def _draw(
    figure: go.Figure, rows: pd.DataFrame, *, floor: float | None = None, at: dict[str, int] | None = None
) -> None:
    for variant, colour in style.variant_colours(rows["variant"]).items():
        variant_rows = rows[rows["variant"] == variant]
        _draw_model(figure, variant_rows, variant, colour, at or {}, floor)
        _draw_points(figure, variant_rows, variant, colour, at or {})


def _draw_points(figure: go.Figure, variant_rows: pd.DataFrame, variant: str, colour: str, at: dict[str, int]) -> None:
    measured = variant_rows[variant_rows["kind"] == "measured"]
    for what, (held_out, look) in _POINTS.items():
        part = measured[measured["held_out"] == held_out]
        if part.empty:
            continue
        known = part[["low", "high"]].notna().all(axis=None)
        bars = style.error_bars(part["value"], part["low"], part["high"]) if known else None
        looks = style.coloured(look, colour) | {"error_y": bars, "cliponaxis": False, "legendgroup": variant}
        _add(figure, part, f"{variant}, {what}", looks | at)


def _draw_model(
    figure: go.Figure, rows: pd.DataFrame, variant: str, colour: str, at: dict[str, int], floor: float | None = None
) -> None:
    """Draw a solid line through fitted points, and a dashed line with its interval through held-out predictions."""
    kind_name = "simulated" if (rows["kind"] == "simulated").any() else "predicted"
    predicted = rows[rows["kind"] == kind_name]
    fitted = rows[rows["kind"] == "fitted"]
    # At a vCPU count of the calibration, a prediction is part of the fitted curve unless that has a point there.
    inside = predicted[~predicted["held_out"] & ~predicted["vcpus"].isin(fitted["vcpus"])]
    fitted = pd.concat([fitted, inside]).sort_values("vcpus")
    beyond = predicted[predicted["held_out"]].sort_values("vcpus")
    if len(fitted) and len(beyond):
        last = fitted[fitted["vcpus"] < beyond["vcpus"].min()].tail(1)
        last = last.assign(low=last["low"].fillna(last["value"]), high=last["high"].fillna(last["value"]))
        beyond = pd.concat([last, beyond])
    known = beyond[np.isfinite(beyond["low"]) & np.isfinite(beyond["high"])]
    if len(known) > 1:
        area = style.band(known["vcpus"], known["low"].clip(lower=floor), known["high"], style.translucent(colour))
        figure.add_scatter(**area, name=f"{variant}, {kind_name} 90 % interval", legendgroup=variant, **at)
    for kind, part in (("fitted", fitted), (kind_name, beyond)):
        if len(part):
            look = style.coloured(_LINES[kind], colour) | {"legendgroup": variant}
            _add_line(figure, part, f"{variant}, {kind}", look | at)


def _add_line(figure: go.Figure, part: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    interval = [
        f" ({style.short_number(low)} to {style.short_number(high)})" if np.isfinite(low) and np.isfinite(high) else ""
        for low, high in zip(part["low"], part["high"], strict=True)
    ]
    _add(figure, part, name, look | {"text": interval}, "%{text}")


def _add(figure: go.Figure, part: pd.DataFrame, name: str, look: dict[str, Any], text: str = "") -> None:
    hover = f"%{{x:g}} vCPUs: %{{y:.4s}}{text}<extra>%{{fullData.name}}</extra>"
    figure.add_scatter(x=part["vcpus"], y=part["value"], name=name, showlegend=False, hovertemplate=hover, **look)


def _boundary(figure: go.Figure, rows: pd.DataFrame, at: dict[str, int] | None = None) -> None:
    """Draw a line between the vCPU counts of the calibration and larger, held-out ones, if one line separates them."""
    last = rows.loc[~rows["held_out"], "vcpus"].max()
    first = rows.loc[rows["held_out"], "vcpus"].min()
    if not last < first:  # also if one of them is NaN
        return
    x = math.sqrt(last * first)
    figure.add_vline(x=x, line={"color": "#9aa0a6", "width": 1, "dash": "dot"}, layer="below", **at or {})
    axis = str(at["col"]) if at and at["col"] > 1 else ""
    place = {"xref": f"x{axis}", "x": math.log10(x), "yref": f"y{axis} domain", "y": 1, "showarrow": False}
    look = {"yanchor": "top" if at else "bottom", "font": {"size": 11, "color": style.MUTED}}
    for text, anchor, shift in ((f"calibrated ≤ {last:g}", "right", -5), ("predicted", "left", 5)):
        side = {"text": text, "xanchor": anchor, "xshift": shift}
        figure.add_annotation(place | look | side, bgcolor="rgba(255,255,255,0.75)")


def _entries(rows: pd.DataFrame, model: str = "") -> list[tuple[str, dict[str, Any], str]]:
    """Legend entries of markers and lines, in grey, since they apply to every colour."""
    measured = rows[rows["kind"] == "measured"]
    looks = {name: look for name, (held_out, look) in _POINTS.items() if (measured["held_out"] == held_out).any()}
    looks |= {f"{model}{kind}": look for kind, look in _LINES.items() if (rows["kind"] == kind).any()}
    return [(name, look, style.MUTED) for name, look in looks.items()]


def _key(figure: go.Figure, rows: pd.DataFrame) -> None:
    """Add a legend of the variants, and below it one of markers and lines."""
    entries = _entries(rows)
    if (rows["kind"].eq("predicted") & rows["low"].notna()).any():
        square = {"mode": "markers", "marker": {"symbol": "square", "size": 14}}
        entries.append(("predicted 90 % interval", square, style.translucent(style.MUTED, 0.25)))
    for entry in entries:
        style.key_entry(figure, *entry)
    for variant, colour in style.variant_colours(rows["variant"]).items():
        style.key_entry(figure, variant, {"mode": "lines", "line": {"width": 6}}, colour, legend="legend")
