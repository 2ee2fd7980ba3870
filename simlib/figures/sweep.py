# SPDX-License-Identifier: BSD-3-Clause
"""What was best at each place of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.frame import TEXT, TRUTH, in_order, number, reads
from simlib.figures.style import GRID, PALETTE, facets, short_number, titled
from simlib.model.quantities import format_size

COLUMNS = {
    "vcpus": number(0),
    "access_rate": number(0),
    "clear_lock": TEXT,
    "clear_chunk": number(0),
    "policy": TEXT,
    "matters": TRUTH,
}


@reads("table", COLUMNS)
def policy_map(table: pd.DataFrame, title: str = "Best policy", policies: Sequence[str] = ()) -> go.Figure:
    """The best policy over vCPUs and accesses, a panel for each mode of CLEAR's lock and chunk.

    - `table`: ``vcpus``, ``access_rate`` (1/s of a vCPU), ``clear_lock``, ``clear_chunk`` (bytes), ``policy``,
      ``matters`` (bool: whether it is better than never letting go), of one architecture. One row a cell.
    - `policies`: the order of their colours, so that several maps have the same; by default that of the table.

    >>> table = pd.DataFrame({"vcpus": [1, 4], "access_rate": 1e5, "clear_lock": "write", "clear_chunk": 2**20,
    ...                       "policy": "every-64", "matters": [False, True]})
    >>> [trace.name for trace in policy_map(table).data if trace.type == "scatter"]
    ['every-64', 'does not matter']
    """
    across, up = sorted(set(table["vcpus"])), sorted(set(table["access_rate"]))
    locks, chunks = in_order(table["clear_lock"]), sorted(set(table["clear_chunk"]))
    names = list(policies) or in_order(table.loc[table["matters"], "policy"])
    kinds = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)} | {"does not matter": GRID}
    shown = table["policy"].where(table["matters"], "does not matter")
    rows = table.assign(number=shown.map(list(kinds).index) + 0.5)
    scale = [[(i + end) / len(kinds), colour] for i, colour in enumerate(kinds.values()) for end in (0, 1)]
    panels = [(lock, chunk) for lock in locks for chunk in chunks]
    figure, place = facets([f"{lock}, {format_size(int(chunk))}" for lock, chunk in panels], columns=len(chunks))
    for i, (lock, chunk) in enumerate(panels):
        here = rows[(rows["clear_lock"] == lock) & (rows["clear_chunk"] == chunk)].set_index(["access_rate", "vcpus"])
        grid = here[["number", "policy"]].unstack().reindex(index=up)  # noqa: PD010  # a cell is one row
        figure.add_heatmap(
            z=grid["number"].reindex(columns=across), text=grid["policy"].reindex(columns=across).fillna(""),
            colorscale=scale, zmin=0, zmax=len(kinds), showscale=False, xgap=1, ygap=1,
            customdata=[[[short_number(rate), f"{n:g}"] for n in across] for rate in up], hoverongaps=False,
            hovertemplate="%{customdata[1]} vCPUs, %{customdata[0]} accesses/s: %{text}<extra></extra>", **place(i),
        )  # fmt: skip
    for name, colour in kinds.items():
        if name in set(shown):
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name,
                               marker={"symbol": "square", "size": 11, "color": colour}, **place(0))  # fmt: skip
    for axis, values, step, text in (("xaxes", across, 3, "{:g}".format), ("yaxes", up, 2, short_number)):
        places = list(range(0, len(values), step))
        ticks = {"tickvals": places, "ticktext": [text(values[i]) for i in places], "showgrid": False}
        getattr(figure, f"update_{axis}")(ticks)
    figure.update_yaxes(title="accesses/s of a vCPU", col=1)
    figure.update_layout(height=230 * len(locks) + 160)
    return titled(figure, title, "A panel for each mode in which CLEAR holds the lock, and the memory of one CLEAR")
