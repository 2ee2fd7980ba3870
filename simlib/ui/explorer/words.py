# SPDX-License-Identifier: BSD-3-Clause
"""What the explorer's figures say, in sentences and a table; HTML, with every text of the user escaped."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simlib.figures.explorer import strategy_colours
from simlib.figures.results import rendered
from simlib.figures.style import signed
from simlib.model.policies import BASELINE
from simlib.model.quantities import say_seconds, say_size
from simlib.ui.explorer.findings import Findings

TERMS = {
    "longest_stall_s": "longest stall", "stall_p999_s": "99.9th percentile", "clear_cpu_time_s": "CPU time of CLEAR",
    "cost_s": "CPU time in all", "guest_throughput": "guest throughput",
}  # fmt: skip
"""Quantities of the table of strategies, and their terms."""


def answer(found: Findings) -> str:
    """What the strategy gains and costs, what halves the longest stall for least, and a table with the pins."""
    rows = []
    if "trips" in found.parts:
        table = found.compared().set_index(["series", "quantity"], drop=False).to_dict("index")
        for name, colour in strategy_colours(found.trips()["strategy"].tolist()).items():
            cells = {quantity: table[name, quantity] for quantity in TERMS}
            rows.append({"name": name, "colour": colour, "cells": cells})
    return rendered(
        "simlib.ui.explorer", "answer.html.j2", rows=rows, least=_least(found) if rows else None, terms=TERMS.values(),
        reason=found.parts.get("reason"), as_it_is=found.state.case() == found.state.case(BASELINE),
        now=found.state.scenario.policy.clear_drop_when,
        filters={"seconds": say_seconds, "percent": percent, "shown": _shown},
    )  # fmt: skip


def percent(ratio: float) -> str:
    """A ratio as a change.

    >>> [percent(ratio) for ratio in (1.26, 0.00437, 0.0000001, 1.0)]
    ['+26 %', '−99.6 %', '−99.9 %', '0 %']
    """
    change = 100 * (ratio - 1)
    return f"−{min(-change, 99.9):.1f} %" if change < -90 else f"{signed(change)} %"


def _shown(value: float, quantity: str) -> str:
    return f"{100 * value:.2f} %" if quantity == "guest_throughput" else say_seconds(value)


def _least(found: Findings) -> dict[Any, Any] | None:
    """Of all that was simulated, what halves the longest stall for the least CPU time of CLEAR."""
    own = found.trips("baseline").iloc[0]
    every = pd.concat([found.trips(), found.trips("batches")], ignore_index=True)
    halved = every[every["longest_stall_s"] <= own["longest_stall_s"] / 2].sort_values("clear_cpu_time_s")
    rows = halved.assign(change=halved["clear_cpu_time_s"] / own["clear_cpu_time_s"]).to_dict("records")
    return rows[0] if rows else None


def grounds_in_words(found: Findings) -> str:
    """What is asked, and what the numbers rest on."""
    case = found.state.case()
    memory = case.guest.pages * case.guest.page_size
    return rendered(
        "simlib.ui.explorer", "grounds.html.j2", case=case, theory=found.theory, memory=say_size(memory),
        chunk=say_size(case.workload.clear_chunk or memory),
        decisive=found.parts["ranges"].decisive if "ranges" in found.parts else "",
    )  # fmt: skip
