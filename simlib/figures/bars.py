# SPDX-License-Identifier: BSD-3-Clause
"""Bars over vCPUs, a panel a variant, as several figures have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from simlib.figures.style import facets


def bars_over_vcpus(
    rows: pd.DataFrame, kind: str, value: str, looks: Mapping[str, tuple[str, dict[str, Any]]], hover: str
) -> go.Figure:
    """Bars of each kind beside or upon each other.

    - `rows`: ``variant``, ``vcpus``, and the columns `kind` and `value`; one row a bar.
    - `looks`: of the kinds, in order: what each is called, and its marker.
    - `hover`: what is said of a bar: how Plotly writes ``y``.
    """
    heights = rows.pivot_table(value, ["variant", "vcpus"], kind)
    variants = list(dict.fromkeys(rows["variant"]))
    figure, place = facets(variants)
    present = [name for name in looks if name in heights]
    for i, variant in enumerate(variants):
        mine = heights.loc[variant]
        for name in present:
            called, marker = looks[name]
            figure.add_bar(
                x=[f"{n:g}" for n in mine.index],
                y=mine[name],
                name=called,
                marker=marker,
                legendgroup=name,
                showlegend=True,
                hovertemplate=f"{variant}, %{{x}} vCPUs: {called} {hover}<extra></extra>",
                **place(i),
            )
    figure.update_xaxes(type="category")
    return figure
