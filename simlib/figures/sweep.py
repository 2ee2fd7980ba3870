# SPDX-License-Identifier: BSD-3-Clause
"""What was best at each place of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import draws, require, require_numbers
from simlib.figures.style import GRID, PALETTE, facet_titles, facets, short_number, titled
from simlib.model.quantities import format_size

COLUMNS = ("vcpus", "access_rate", "clear_lock", "clear_chunk", "policy", "matters")


@draws
def policy_map(table: pd.DataFrame, title: str = "Best policy", policies: Sequence[str] = ()) -> go.Figure:
    """The best policy over vCPUs and accesses, a panel for each mode of CLEAR's lock and chunk.

    Raises `InputError` if a column is missing or the table is empty.

    Parameters
    ----------
    table : DataFrame
        ``vcpus``, ``access_rate`` (1/s of a vCPU), ``clear_lock``, ``clear_chunk`` (bytes), ``policy``, ``matters``
        (bool: whether it is better than never letting go), of one architecture. One row a cell.
    policies : sequence of str
        The order of their colours, so that several maps have the same; by default that of the table.

    Examples
    --------
    >>> table = pd.DataFrame({"vcpus": [1, 4], "access_rate": 1e5, "clear_lock": "write", "clear_chunk": 2**20,
    ...                       "policy": "every-64", "matters": [False, True]})
    >>> [trace.name for trace in policy_map(table).data if trace.type == "scatter"]
    ['every-64', 'does not matter']
    """
    rows = require(table, COLUMNS, "table")
    require_numbers(rows, ["vcpus", "access_rate", "clear_chunk"], "table", least=0)
    across, up = sorted(set(rows["vcpus"])), sorted(set(rows["access_rate"]))
    locks, chunks = list(dict.fromkeys(rows["clear_lock"].astype(str))), sorted(set(rows["clear_chunk"]))
    panels = [(lock, chunk) for lock in locks for chunk in chunks]
    names = list(policies) or list(dict.fromkeys(rows.loc[rows["matters"].astype(bool), "policy"].astype(str)))
    kinds = [(name, PALETTE[number % len(PALETTE)]) for number, name in enumerate(names)] + [("does not matter", GRID)]
    figure, place = facets([f"{lock}, {format_size(int(chunk))}" for lock, chunk in panels], columns=len(chunks))
    shown = np.where(rows["matters"].astype(bool), rows["policy"].astype(str), "does not matter")
    number_of = {name: number for number, (name, _) in enumerate(kinds)}
    scale = [[(number + end) / len(kinds), colour] for number, (_, colour) in enumerate(kinds) for end in (0, 1)]
    for index, (lock, chunk) in enumerate(panels):
        z, words = (np.full((len(up), len(across)), fill, dtype=object) for fill in (np.nan, ""))
        here = rows.assign(kind=shown)[(rows["clear_lock"].astype(str) == lock) & (rows["clear_chunk"] == chunk)]
        for row in here.to_dict("records"):
            at = up.index(row["access_rate"]), across.index(row["vcpus"])
            z[at], words[at] = number_of[row["kind"]] + 0.5, row["policy"]
        figure.add_heatmap(
            z=z.astype(float), text=words, colorscale=scale, zmin=0, zmax=len(kinds), showscale=False, xgap=1, ygap=1,
            customdata=[[[short_number(float(rate)), f"{n:g}"] for n in across] for rate in up], hoverongaps=False,
            hovertemplate="%{customdata[1]} vCPUs, %{customdata[0]} accesses/s: %{text}<extra></extra>", **place(index),
        )  # fmt: skip
    for name, colour in kinds:
        if name in shown:
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name,
                               marker={"symbol": "square", "size": 11, "color": colour}, **place(0))  # fmt: skip
    figure.update_xaxes(
        tickvals=list(range(0, len(across), 3)), ticktext=[f"{value:g}" for value in across[::3]], showgrid=False
    )
    figure.update_yaxes(
        tickvals=list(range(0, len(up), 2)), ticktext=[short_number(float(value)) for value in up[::2]], showgrid=False
    )
    figure.update_yaxes(title="accesses/s of a vCPU", col=1)
    facet_titles(figure)
    figure.update_layout(height=230 * len(locks) + 160)
    return titled(figure, title, "A panel for each mode in which CLEAR holds the lock, and the memory of one CLEAR")
