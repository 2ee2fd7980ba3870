# SPDX-License-Identifier: BSD-3-Clause
"""Common style of all figures: template, colours, axes, legends, panels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from plotly.colors import hex_to_rgb
from plotly.subplots import make_subplots

from simlib._lib import lazy_imports
from simlib.figures.frame import in_order

TEMPLATE = "simlib"
"""Name under which the template is registered with plotly."""

SUBTITLE_SIZE = 13
"""Font size of the subtitle, px."""

HEIGHT = 520
"""Height of a figure, pixels."""

INK, MUTED, GRID = "#1a1a1a", "#5f6368", "#e3e6ea"

VARIANT_COLOURS = {"spinlock-old-test": "#0072B2", "rwlock-old-test": "#D55E00", "rwlock-fixed-test": "#009E73"}
"""Colours of the variants that have a fixed colour in every figure."""

PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#332288", "#882255", "#999933", "#44AA99",
)  # fmt: skip
"""Okabe and Ito (2008), then Tol's "muted": distinguishable for colour-blind readers and on grey paper."""

ACTIVITY_COLOURS = {"run": "#BBBBBB", "hold": "#4477AA", "line": "#CCBB44"}
ACTIVITY_COLOURS |= {"broadcast": "#AA3377", "wait": "#EE6677", "idle": "#E8E8E8"}
"""Colours of a thread's activities, from the bottom of a bar to its top (Tol's "bright")."""

ACTIVITY_NAMES = {"run": "outside the lock", "line": "line transfer"}
"""Names of activities that differ from their keys (docs/glossary.md)."""

MODEL_COLOURS = {"simlib": "#1a1a1a", "USL": "#CC79A7", "Amdahl": "#E69F00"}
"""Colours of the model and of the two scalability laws with which it is compared."""

MODE_COLOURS = {"write": "#D55E00", "read": "#0072B2"}

MODEBAR: dict[str, Any] = {"responsive": True, "displaylogo": False, "showSendToCloud": False, "plotlyServerURL": ""}
MODEBAR |= {"modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"], "toImageButtonOptions": {"format": "svg"}}
"""Configuration of Plotly's mode bar, in reports and notebooks: no button sends data, and images are saved as SVG."""

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
"""Units of times in figures, each with its length in seconds."""

_STILL = {"itemclick": False, "itemdoubleclick": False}
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def variant_colours(variants: Iterable[object]) -> dict[str, str]:
    """Colour of each variant: fixed for the known variants, and the next free colour for any other.

    >>> variant_colours(["patched", "rwlock-old-test"])
    {'patched': '#CC79A7', 'rwlock-old-test': '#D55E00'}
    """
    free = [colour for colour in PALETTE if colour not in VARIANT_COLOURS.values()]
    names = in_order(variants)
    others = [name for name in names if name not in VARIANT_COLOURS]
    extra = {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: VARIANT_COLOURS.get(name) or extra[name] for name in names}


def translucent(colour: str, opacity: float = 0.18) -> str:
    """Translucent colour of an area.

    >>> translucent("#0072B2", 0.2)
    'rgba(0, 114, 178, 0.2)'
    """
    red, green, blue = hex_to_rgb(colour)
    return f"rgba({red}, {green}, {blue}, {opacity:g})"


def short_number(value: float) -> str:
    """Format a number for a tick: three significant digits, with an SI prefix from a thousand up.

    >>> [short_number(v) for v in (0, 0.05, 20, 5000, 2e8)]
    ['0', '0.05', '20', '5 k', '200 M']
    """
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g}"


def signed(value: float) -> str:
    """Format a change or an error, in percent, with its sign: one decimal below ten.

    >>> [signed(v) for v in (-1.0, 3.54, 5200.4, -0.001)]
    ['−1', '+3.5', '+5200', '0']
    """
    if abs(value) < 0.05:
        return "0"
    text = f"{value:+.0f}" if abs(value) >= 10 else f"{value:+.1f}".removesuffix(".0")
    return text.replace("-", "−")


def time_unit(values: Iterable[float]) -> tuple[float, str]:
    """Length in s and symbol of the unit that suits the geometric mean of the shortest and longest of several times.

    >>> time_unit([5e-6, 2e-3]), time_unit([0.8, 20.0]), time_unit([0.0])
    ((1e-06, 'µs'), (1.0, 's'), (1.0, 's'))
    """
    known = _positive(values)
    middle = float(np.sqrt(known.min() * known.max())) if len(known) else 1.0
    return next((unit for unit in TIME_UNITS if middle >= unit[0] * (1 - 1e-9)), TIME_UNITS[-1])


def _positive(values: Iterable[float]) -> np.ndarray:
    known = np.asarray(list(values), dtype=float)
    positive: np.ndarray = known[np.isfinite(known) & (known > 0)]
    return positive


def plain_number(value: float) -> str:
    """Format a number for a tick without a prefix, with thousands separators.

    >>> [plain_number(v) for v in (0.005, 20.0, 50_000.0)]
    ['0.005', '20', '50\\u2009000']
    """
    return f"{float(f'{value:.6g}'):,.12g}".replace(",", "\u2009")


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks 1, 2, 5, 10 … of a logarithmic axis: only powers of ten on a long axis, even steps on a short one.

    >>> log_ticks(0.8, 30), log_ticks(11, 14)
    ([1.0, 2.0, 5.0, 10.0, 20.0], [11.0, 11.5, 12.0, 12.5, 13.0, 13.5, 14.0])
    """
    decades = math.log10(high / low)
    if decades < 0.7:
        return even_ticks(low, high, 8)
    digits = (1, 2, 5) if decades <= 3 else (1,)
    step = max(1, math.ceil(decades / 8))
    first = math.floor(math.log10(low))
    powers = range(first, math.ceil(math.log10(high)) + 1, step)
    ticks = [t for t in (float(f"{digit}e{power}") for power in powers for digit in digits) if low <= t <= high]
    return ticks if len(ticks) >= 3 else even_ticks(low, high, 8)


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` ticks whose spacing is 1, 2 or 5 times a power of ten.

    >>> even_ticks(0.0, 0.0047, 5), even_ticks(9.5, 12, 6)
    ([0.0, 0.001, 0.002, 0.003, 0.004], [9.5, 10.0, 10.5, 11.0, 11.5, 12.0])
    """
    steps = (float(f"{digit}e{power}") for power in range(-15, 16) for digit in (1, 2, 5))
    step = next(s for s in steps if math.floor(high / s + 1e-9) - math.ceil(low / s - 1e-9) < most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * n:.12g}") for n in range(first, last + 1)]


def vcpu_axis(vcpus: Iterable[float]) -> dict[str, Any]:
    """Logarithmic axis of vCPU counts with ticks at powers of two.

    >>> vcpu_axis([1, 48])["ticktext"]
    ['1', '2', '4', '8', '16', '32']
    """
    values = sorted({float(v) for v in vcpus})
    powers = range(math.ceil(math.log2(values[0])), math.floor(math.log2(values[-1])) + 1)
    ticks = [2.0**power for power in powers] if len(powers) > 1 else values
    margin = 1.18
    return ticked_axis(ticks, (values[0] / margin, values[-1] * margin), "vCPUs", "{:g}".format)


def log_axis(
    values: Iterable[float], title: str, text: Callable[[float], str] = short_number, margin: float = 1.3
) -> dict[str, Any]:
    """Logarithmic axis that covers all positive, finite `values`.

    >>> log_axis([1.0, 20.0], "time, s")["ticktext"]
    ['1', '2', '5', '10', '20']
    """
    known = _positive(values)
    low, high = (known.min() / margin, known.max() * margin) if len(known) else (0.1, 10.0)
    return ticked_axis(log_ticks(low, high), (low, high), title, text)


def time_axis(values: Iterable[float], title: str, margin: float = 1.3) -> dict[str, Any]:
    """Logarithmic axis of times, s, with all ticks in one unit, which the title states.

    >>> axis = time_axis([2e-5, 3e-3], "longest stall")
    >>> axis["title"]["text"], axis["ticktext"]
    ('longest stall, µs', ['20', '50', '100', '200', '500', '1\\u2009000', '2\\u2009000'])
    """
    values = list(values)
    factor, unit = time_unit(values)
    return log_axis(values, f"{title}, {unit}" if title else unit, lambda tick: plain_number(tick / factor), margin)


def ticked_axis(
    ticks: Sequence[float], ends: tuple[float, float], title: str, text: Callable[[float], str]
) -> dict[str, Any]:
    """Logarithmic axis between two ends, with these ticks."""
    named = {"tickmode": "array", "tickvals": ticks, "ticktext": [text(tick) for tick in ticks]}
    return {"type": "log", "title": {"text": title}, "range": [math.log10(end) for end in ends], **named}


def row_axis(names: Sequence[str]) -> dict[str, Any]:
    """Vertical axis with a row for each name, the first on top, at the heights 0, 1, 2 …"""
    named = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
    return {**named, "ticks": "", "range": [len(names) - 0.4, -0.6]}


def error_bars(value: pd.Series, low: pd.Series, high: pd.Series) -> dict[str, Any]:
    """Error bars of points with an interval."""
    return {"array": high - value, "arrayminus": value - low, "thickness": 1.2, "width": 3}


def band(x: pd.Series, low: pd.Series, high: pd.Series, colour: str) -> dict[str, Any]:
    """Trace of the area between the lower and the upper ends of the intervals at the positions `x`."""
    look = {"fill": "toself", "fillcolor": colour, "mode": "lines", "line": {"width": 0}}
    return {"x": [*x, *x[::-1]], "y": [*high, *low[::-1]], **look, "hoverinfo": "skip", "showlegend": False}


def spans(rows: pd.DataFrame, low: str, high: str) -> np.ndarray:
    """Ends of all rows' intervals, for one line with a gap after each interval; the y values are `np.repeat(y, 3)`."""
    ends: np.ndarray = rows[[low, high]].assign(gap=np.nan).to_numpy(dtype=float).ravel()
    return ends


def titled(figure: go.Figure, title: str, subtitle: str = "", *, entries_per_row: int = 0) -> go.Figure:
    """Add the title, the subtitle, the template, and `legend_below` if `entries_per_row` is given."""
    if entries_per_row:
        legend_below(figure, entries_per_row=entries_per_row)
    height = figure.layout.height or HEIGHT  # JupyterLab does not take it from the template
    top = 1 - 18 / height  # in pixels, so that it stays clear of the panels of a tall figure
    title_of = {"text": title, "y": top, "subtitle": {"text": subtitle}}
    return figure.update_layout(template=TEMPLATE, title=title_of, height=height)


def as_widget(figure: go.Figure) -> go.FigureWidget:
    """Convert a figure to a widget; the subtitle becomes part of the title, because a widget draws one over the other.

    >>> title = as_widget(titled(go.Figure(), "Hold times", "simulated")).layout.title
    >>> title.subtitle.text, title.text.startswith("Hold times<br>")
    ('', True)
    """
    title = figure.layout.title
    text = f'{title.text}<br><span style="font-size:{SUBTITLE_SIZE}px;color:{MUTED}">{title.subtitle.text}</span>'
    merged = go.Figure(figure).update_layout(title={"text": text, "subtitle": {"text": ""}}, autosize=True)
    widget = go.FigureWidget(merged)
    widget._config = MODEBAR  # as wide as its cell, and without the upload button
    return widget


def legend_below(figure: go.Figure, *, entries_per_row: int = 5) -> None:
    """Put the legend below the axes, where it covers nothing, and the key of markers and lines below it.

    Each name of a group has one entry.

    - `entries_per_row`: number of entries that fit side by side.

    >>> figure = go.Figure([{"name": "a", "showlegend": True}] * 2)
    >>> key_entry(figure, "measured", {"mode": "markers"}, INK)
    >>> legend_below(figure)
    >>> figure.layout.margin.b, [trace.showlegend for trace in figure.data]
    (140, [True, False, True])
    """
    entries = set[tuple[str | None, ...]]()
    for trace in figure.data:
        entry = (trace.legend, trace.legendgroup, trace.name)
        if entry in entries:
            trace.showlegend = False
        elif trace.showlegend is not False:
            entries.add(entry)
    key_entries = sum(legend == "legend2" for legend, *_ in entries)
    room = 44 if key_entries else 0  # two lines, since the key wraps in a narrow window
    below = {"orientation": "h", "yref": "container", "xanchor": "left", "x": 0.0, "font": {"size": 12}}
    figure.update_layout(
        margin_b=70 + 26 * math.ceil((len(entries) - key_entries) / entries_per_row) + room,
        legend=below | {"yanchor": "bottom", "y": (room + 4) / HEIGHT},
    )
    if key_entries:
        figure.update_layout(legend2=below | _STILL | {"yanchor": "top", "y": room / HEIGHT})


def key(figure: go.Figure, entries: Sequence[tuple[str, dict[str, Any], str]]) -> None:
    """Add a legend that explains markers and lines: name, look and colour of each entry."""
    for name, look, colour in entries:
        key_entry(figure, name, look, colour, legend="legend")
    figure.update_layout(legend=_STILL)


def key_entry(figure: go.Figure, name: str, look: dict[str, Any], colour: str, legend: str = "legend2") -> None:
    """Add an entry to a legend, for a group or in the key of markers and lines, without drawing anything else."""
    group = name if legend == "legend" else None
    look = coloured(look, colour) | {"showlegend": True, "hoverinfo": "skip"}
    figure.add_scatter(x=[None], y=[None], name=name, legend=legend, legendgroup=group, **look)


def coloured(look: dict[str, Any], colour: str) -> dict[str, Any]:
    """Look of points or of a line, with the given colour."""
    return {part: value | {"color": colour} if part in ("marker", "line") else value for part, value in look.items()}


def facets(
    panels: Sequence[str], x_title: str = "vCPUs", *, columns: int = 3, shared_y: bool = True
) -> tuple[go.Figure, Callable[[int], dict[str, int]]]:
    """Small multiples with the same quantity on the x axis, one panel per title.

    Returns: the figure, and a function from a panel's index to its ``row`` and ``col``.

    - `panels`: the panels' titles, at least one.
    - `x_title`: title below the last row of panels.
    - `columns`: largest number of panels side by side.
    - `shared_y`: panels side by side have the same y axis.

    >>> figure, place = facets(["a", "b", "c", "d"])
    >>> place(3)
    {'row': 2, 'col': 1}
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    spacing = {"horizontal_spacing": 0.035 if shared_y else 0.075, "vertical_spacing": 0.32 / max(2, rows)}
    figure = subplots(rows, columns, subplot_titles=list(panels), shared_yaxes=shared_y, **spacing)
    figure.update_xaxes(title=x_title, row=rows)
    if rows > 1:
        figure.update_layout(height=300 * rows + 160)
    return figure, lambda index: {"row": index // columns + 1, "col": index % columns + 1}


def bars_over_vcpus(
    rows: pd.DataFrame, kind: str, value: str, looks: Mapping[str, tuple[str, dict[str, Any]]], hover: str
) -> go.Figure:
    """Grouped or stacked bars of each kind for each vCPU count, one panel per variant.

    - `rows`: ``variant``, ``vcpus``, and the columns `kind` and `value`; one row per bar.
    - `looks`: label and marker of each kind, in order.
    - `hover`: Plotly's format of ``y`` in a bar's hover text.
    """
    heights = rows.pivot_table(value, ["variant", "vcpus"], kind)
    variants = in_order(rows["variant"])
    figure, place = facets(variants)
    present = [name for name in looks if name in heights]
    for i, variant in enumerate(variants):
        variant_heights = heights.loc[variant]
        for name in present:
            label, marker = looks[name]
            look = {"name": label, "marker": marker, "legendgroup": name, "showlegend": True, **place(i)}
            look["hovertemplate"] = f"{variant}, %{{x}} vCPUs: {label} {hover}<extra></extra>"
            figure.add_bar(x=[f"{n:g}" for n in variant_heights.index], y=variant_heights[name], **look)
    figure.update_xaxes(type="category")
    return figure


def subplots(rows: int, columns: int, **options: Any) -> go.Figure:
    """Plotly's `make_subplots` with smaller panel titles."""
    return make_subplots(rows, columns, **options).update_annotations(font={"size": 13, "color": INK})


def _template() -> go.layout.Template:
    axis = {"gridcolor": GRID, "linecolor": "#8a9099", "showline": True, "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "tickcolor": "#8a9099", "ticklen": 5, "tickfont": {"size": 12}}
    axis["title"] = {"font": {"size": 14}, "standoff": 10}
    title = {"x": 0.01, "xanchor": "left", "xref": "container", "y": 0.965, "yanchor": "top", "font": {"size": 18}}
    title["subtitle"] = {"font": {"size": SUBTITLE_SIZE, "color": MUTED}}
    white = "#ffffff"
    layout = {
        "font": {"family": "Helvetica Neue, Arial, DejaVu Sans, sans-serif", "size": 13, "color": INK},
        "legend": {"font": {"size": 12}, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal"},
        "hoverlabel": {"bgcolor": white, "font": {"size": 12}},
        "margin": {"l": 76, "r": 24, "t": 92, "b": 70},
    }
    layout |= {
        "title": title,
        "height": HEIGHT,
        "paper_bgcolor": white,
        "plot_bgcolor": white,
        "xaxis": axis,
        "yaxis": axis,
    }
    return go.layout.Template(layout=layout | {"colorway": list(PALETTE), "hovermode": "closest", "bargap": 0.25})


pio.templates[TEMPLATE] = _template()
with lazy_imports.without_module("rfc3987_syntax"):  # renderers import nbformat, which imports jsonschema
    for _name in ("plotly_mimetype", "notebook", "notebook_connected"):  # for JupyterLab and exported pages
        pio.renderers[_name].config = MODEBAR

if pio.renderers.default in ("plotly_mimetype", "vscode") and "PLOTLY_RENDERER" not in os.environ:
    pio.renderers.default += "+notebook"  # also HTML, which an export by nbconvert keeps
