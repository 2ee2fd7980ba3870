# SPDX-License-Identifier: BSD-3-Clause
"""Maps of the best strategy and of the best policy by number of vCPUs and access rate; all values are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pandas as pd
import plotly.graph_objects as go

from simlib._lib.errors import InputError
from simlib.figures import style
from simlib.figures.frame import TEXT, TRUTH, in_order, number, reads
from simlib.model.quantities import format_size

_PLACE = {"vcpus": number(0), "access_rate": number(0)}
MAP_COLUMNS = {**_PLACE, "strategy": TEXT, "matters": TRUTH, "distinguished": TRUTH, "span": TEXT}
_POLICY = {**_PLACE, "clear_lock": TEXT, "clear_chunk": number(0), "policy": TEXT, "matters": TRUTH}
_TIED = "#f5edd6"


@reads("table", MAP_COLUMNS)
def best_strategy_map(table: pd.DataFrame, title: str = "Best strategy by vCPUs and access rate") -> go.Figure:
    """Map of the best strategy; a cell whose best strategies are not distinguished lists all of them, without a colour.

    Raises `InputError` if a cell has two rows.

    - `table`: the columns `MAP_COLUMNS`: ``access_rate`` in accesses per second of a vCPU, ``matters`` and
      ``distinguished`` (bool), ``span`` (short text of the strategies that are not distinguished). One row per cell; a
      cell without a row stays white.

    >>> table = pd.DataFrame({"vcpus": [4, 16], "access_rate": 1e5, "strategy": ["every-64", "whole-ioctl"],
    ...                       "matters": True, "distinguished": [True, False], "span": ["64", "4096–whole"]})
    >>> [trace.name for trace in best_strategy_map(table).data if trace.type == "heatmap"]
    ['every-64', 'not distinguished']
    """
    if table.duplicated(["vcpus", "access_rate"]).any():
        twice = table[table.duplicated(["vcpus", "access_rate"])].iloc[0]
        raise InputError("table", f"vcpus {twice['vcpus']:g}, access_rate {twice['access_rate']:g}", "has two rows")
    rows = table.sort_values(["access_rate", "vcpus"])
    sure = rows["matters"] & rows["distinguished"]
    figure = go.Figure()

    def cells(mask: pd.Series, words: pd.Series, name: str, colour: str, ink: str) -> None:
        shown = rows.assign(words=words.where(mask))
        grid = shown.pivot_table("words", "access_rate", "vcpus", aggfunc="first", dropna=False)
        if grid.isna().all(axis=None):
            return
        figure.add_heatmap(
            x=[f"{value:g}" for value in grid.columns], y=[style.short_number(value) for value in grid.index],
            z=grid.notna().astype(float).where(grid.notna()), text=grid.fillna(""),
            colorscale=[[0, colour], [1, colour]], zmin=0, zmax=1,
            showscale=False, texttemplate="%{text}", textfont={"color": ink, "size": 12}, xgap=2, ygap=2, name=name,
            hoverongaps=False, hovertemplate="%{x} vCPUs, %{y} accesses/s: %{text}<extra>%{fullData.name}</extra>",
        )  # fmt: skip

    for i, name in enumerate(in_order(rows.loc[rows["matters"], "strategy"])):
        cells(sure & (rows["strategy"] == name), rows["strategy"], name, style.PALETTE[i % len(style.PALETTE)], "white")
    cells(rows["matters"] & ~sure, rows["span"], "not distinguished", _TIED, style.INK)
    cells(~rows["matters"], rows["strategy"].mask(~rows["matters"], "any"), "any strategy", style.GRID, style.MUTED)
    figure.update_xaxes(title="vCPUs", type="category", showgrid=False, ticks="")
    figure.update_yaxes(title="accesses per second of a vCPU", type="category", showgrid=False, ticks="")
    subtitle = "simulated; pale: not distinguished (numbers: pages of a hold); grey: all strategies are equivalent"
    return style.titled(figure, title, subtitle)


@reads("table", _POLICY)
def policy_map(table: pd.DataFrame, title: str = "Best policy", policies: Sequence[str] = ()) -> go.Figure:
    """Map of the best policy by number of vCPUs and access rate, one panel for each lock mode and chunk of CLEAR.

    - `table`: ``vcpus``, ``access_rate`` (1/s of a vCPU), ``clear_lock``, ``clear_chunk`` (bytes), ``policy``,
      ``matters`` (bool: it is better than never dropping the lock), of one architecture. One row per cell.
    - `policies`: order of the policies' colours, for equal colours in several maps; by default that of the table.

    >>> table = pd.DataFrame({"vcpus": [1, 4], "access_rate": 1e5, "clear_lock": "write", "clear_chunk": 2**20,
    ...                       "policy": "every-64", "matters": [False, True]})
    >>> [trace.name for trace in policy_map(table).data if trace.type == "scatter"]
    ['every-64', 'does not matter']
    """
    across, up = sorted(set(table["vcpus"])), sorted(set(table["access_rate"]))
    locks, chunks = in_order(table["clear_lock"]), sorted(set(table["clear_chunk"]))
    names = list(policies) or in_order(table.loc[table["matters"], "policy"])
    kinds = {name: style.PALETTE[i % len(style.PALETTE)] for i, name in enumerate(names)}
    kinds["does not matter"] = style.GRID
    policy = table["policy"].where(table["matters"], "does not matter")
    rows = table.assign(number=policy.map(list(kinds).index) + 0.5)
    scale = [[(i + end) / len(kinds), colour] for i, colour in enumerate(kinds.values()) for end in (0, 1)]
    panels = list(product(locks, chunks))
    figure, place = style.facets([f"{lock}, {format_size(int(chunk))}" for lock, chunk in panels], columns=len(chunks))
    for i, (lock, chunk) in enumerate(panels):
        of_panel = (rows["clear_lock"] == lock) & (rows["clear_chunk"] == chunk)
        cells = rows[of_panel].set_index(["access_rate", "vcpus"])[["number", "policy"]]
        grid = cells.unstack().reindex(index=up)  # noqa: PD010  # a cell is one row
        figure.add_heatmap(
            z=grid["number"].reindex(columns=across), text=grid["policy"].reindex(columns=across).fillna(""),
            colorscale=scale, zmin=0, zmax=len(kinds), showscale=False, xgap=1, ygap=1,
            customdata=[[[style.short_number(rate), f"{n:g}"] for n in across] for rate in up], hoverongaps=False,
            hovertemplate="%{customdata[1]} vCPUs, %{customdata[0]} accesses/s: %{text}<extra></extra>", **place(i),
        )  # fmt: skip
    for name, colour in kinds.items():
        if name in set(policy):
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name,
                               marker={"symbol": "square", "size": 11, "color": colour}, **place(0))  # fmt: skip
    for axis, values, step, text in (("xaxes", across, 3, "{:g}".format), ("yaxes", up, 2, style.short_number)):
        places = list(range(0, len(values), step))
        ticks = {"tickvals": places, "ticktext": [text(values[i]) for i in places], "showgrid": False}
        getattr(figure, f"update_{axis}")(ticks)
    figure.update_yaxes(title="accesses/s of a vCPU", col=1)
    figure.update_layout(height=230 * len(locks) + 160)
    return style.titled(figure, title, "one panel for each lock mode of CLEAR and memory of one CLEAR")
