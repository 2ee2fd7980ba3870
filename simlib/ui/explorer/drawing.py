# SPDX-License-Identifier: BSD-3-Clause
"""Findings as the explorer's figures: those that a part of the answers changes."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures import explorer as figures
from simlib.simulator.engine.result import PS
from simlib.ui.explorer import answers
from simlib.ui.explorer.findings import Findings, over_time
from simlib.ui.explorer.state import standard

WAITING = "being simulated …"

TITLES = {
    "batch": "What a shorter stall costs", "guest": "The guest while it migrates", "curve": "When every write faults",
    "time": "Where time goes", "lock": "Who owns mmu_lock",
}  # fmt: skip
"""Figures, in their order, and what stands in one that has nothing to show yet."""


SIMULATED = {
    "batch": ("trips", "batches"), "guest": ("trips",),
    "time": ("glimpse", "no glimpse"), "lock": ("glimpse", "no glimpse"),
}  # fmt: skip
"""Figures of which theory says nothing, and their parts: they stay, pale, until one of these is there anew."""


def draw(found: Findings, part: str, others: bool = False) -> dict[str, go.Figure]:
    """The figures that a part of the answers changes.

    - `others`: whether to show what was measured with another kernel, or on another machine.
    """
    parts = found.parts
    drawn: dict[str, go.Figure] = {}
    if part in ("first", "curve"):
        shown, vcpus = measured(found, others), found.state.scenario.guest.vcpus
        drawn["curve"] = figures.fault_curve(found.theory.bound, parts.get("curve"), shown, vcpus)
    if part == "reason" or (part == "first" and found.generation == 1):
        drawn |= {name: figures.empty(TITLES[name], parts.get("reason", WAITING)) for name in SIMULATED}
    elif part in SIMULATED["batch"]:
        own = float(found.trips("baseline")["longest_stall_s"].iloc[0])
        drawn["batch"] = figures.tradeoff(found.trips(), found.batches(), own)
        drawn["guest"] = figures.guest_over_time(pd.concat(map(over_time, parts["trips"]), ignore_index=True))
    elif part == "no glimpse":
        drawn |= {name: figures.empty(TITLES[name], parts[part]) for name in ("time", "lock")}
    elif part == "glimpse":
        seen = parts[part]
        _, opened, cleared, _ = (float(time) * PS for time in seen.raw.stamp_ps)
        drawn["time"] = figures.time_by_class(seen.by_class())
        drawn["lock"] = figures.lock_strip(seen.shares(), (opened, cleared))
    return {name: drawn[name] for name in TITLES if name in drawn}


def measured(found: Findings, others: bool) -> pd.DataFrame:
    """The curves that were measured on the machine that is shown with its kernel; others only if they are wanted."""
    table = found.theory.published
    if others:
        return table if len(table) else answers.published(standard("arm64").host.name)
    return table[table["kernel"] == found.state.architecture]
