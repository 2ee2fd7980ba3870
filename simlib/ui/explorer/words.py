# SPDX-License-Identifier: BSD-3-Clause
"""Sentences and a table next to the explorer's figures, as HTML in which user-supplied strings are escaped."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simlib.figures.explorer import strategy_colours
from simlib.figures.results import rendered
from simlib.figures.style import signed
from simlib.model.policies import BASELINE
from simlib.model.quantities import seconds_text, size_text
from simlib.ui.explorer.findings import Findings

TERMS = {
    "longest_stall_s": "longest stall", "stall_p999_s": "99.9th percentile", "clear_cpu_time_s": "CPU time of CLEAR",
    "cost_s": "weighted cost", "guest_throughput": "guest throughput",
}  # fmt: skip
"""Quantities of the table of strategies, and the terms for them."""


def answer(findings: Findings) -> str:
    """Return the strategy's effects, the cheapest strategy that halves the longest stall, and a table with the pins."""
    rows = []
    if "trips" in findings.parts:
        table = findings.compared().set_index(["series", "quantity"], drop=False).to_dict("index")
        for name, colour in strategy_colours(findings.trips()["strategy"].tolist()).items():
            cells = {quantity: table[name, quantity] for quantity in TERMS}
            rows.append({"name": name, "colour": colour, "cells": cells})
    state, least = findings.state, _least(findings) if rows else None
    filters = {"seconds": seconds_text, "percent": percent, "shown": _shown}
    given = {"rows": rows, "terms": TERMS.values(), "least": least, "reason": findings.parts.get("reason")}
    strategy = {"as_it_is": state.case() == state.case(BASELINE), "now": state.scenario.policy.clear_drop_when}
    return rendered("simlib.ui.explorer", "answer.html.j2", filters=filters, **given, **strategy)


def percent(ratio: float) -> str:
    """Format a ratio as a change.

    >>> [percent(ratio) for ratio in (1.26, 0.00437, 0.0000001, 1.0)]
    ['+26 %', '−99.6 %', '−99.9 %', '0 %']
    """
    change = 100 * (ratio - 1)
    return f"−{min(-change, 99.9):.1f} %" if change < -90 else f"{signed(change)} %"


def _shown(value: float, quantity: str) -> str:
    return f"{100 * value:.2f} %" if quantity == "guest_throughput" else seconds_text(value)


def _least(findings: Findings) -> dict[Any, Any] | None:
    """Row of the simulated strategy that halves the longest stall for the least CPU time of CLEAR."""
    baseline = findings.trips("baseline").iloc[0]
    simulated = pd.concat([findings.trips(), findings.trips("batches")], ignore_index=True)
    halved = simulated[simulated["longest_stall_s"] <= baseline["longest_stall_s"] / 2].sort_values("clear_cpu_time_s")
    rows = halved.assign(change=halved["clear_cpu_time_s"] / baseline["clear_cpu_time_s"]).to_dict("records")
    return rows[0] if rows else None


def grounds_in_words(findings: Findings) -> str:
    """Return the question, and the evidence for the numbers."""
    case = findings.state.case()
    memory = case.guest.pages * case.guest.page_size
    return rendered(
        "simlib.ui.explorer", "grounds.html.j2", case=case, theory=findings.theory, memory=size_text(memory),
        chunk=size_text(case.workload.clear_chunk or memory),
        decisive=findings.parts["ranges"].decisive if "ranges" in findings.parts else "",
    )  # fmt: skip
