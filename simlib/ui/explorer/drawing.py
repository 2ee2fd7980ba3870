# SPDX-License-Identifier: BSD-3-Clause
"""The explorer's figures from its findings."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from simlib.figures import explorer as figures
from simlib.simulator.engine.result import PS
from simlib.ui.explorer import answers
from simlib.ui.explorer.findings import Findings, over_time
from simlib.ui.explorer.state import preset

WAITING = "being simulated …"

TITLES = {
    "batch": "Cost of a shorter stall",
    "guest": "Guest throughput during migration",
    "curve": "When every write faults",
    "time": "Time by activity",
    "lock": "Owner of mmu_lock",
}
"""Figures in order, each with its title while it is empty."""

SIMULATED = {
    "batch": ("trips", "batches"), "guest": ("trips",),
    "time": ("glimpse", "no glimpse"), "lock": ("glimpse", "no glimpse"),
}  # fmt: skip
"""Figures that need simulation, and their parts: an old figure is pale until one of its parts is simulated again."""


def draw(findings: Findings, part: str, others: bool = False) -> dict[str, go.Figure]:
    """Draw the figures that a part of the answers changes.

    - `others`: True to show also curves that were measured with another kernel or on another host.
    """
    parts = findings.parts
    drawn: dict[str, go.Figure] = {}
    if part in ("first", "curve"):
        shown, vcpus = measured(findings, others), findings.state.scenario.guest.vcpus
        drawn["curve"] = figures.fault_curve(findings.theory.bound, parts.get("curve"), shown, vcpus)
    if part == "reason" or (part == "first" and findings.generation == 1):
        drawn |= {name: figures.empty(TITLES[name], parts.get("reason", WAITING)) for name in SIMULATED}
    elif part in SIMULATED["batch"]:
        baseline = float(findings.trips("baseline")["longest_stall_s"].iloc[0])
        drawn["batch"] = figures.tradeoff(findings.trips(), findings.batches(), baseline)
        drawn["guest"] = figures.guest_over_time(pd.concat(map(over_time, parts["trips"]), ignore_index=True))
    elif part == "no glimpse":
        drawn |= {name: figures.empty(TITLES[name], parts[part]) for name in ("time", "lock")}
    elif part == "glimpse":
        window = parts[part]
        _, opened, cleared, _ = (float(time) * PS for time in window.raw.stamp_ps)
        drawn["time"] = figures.time_by_class(window.by_class())
        drawn["lock"] = figures.lock_strip(window.shares(), (opened, cleared))
    return {name: drawn[name] for name in TITLES if name in drawn}


def measured(findings: Findings, others: bool) -> pd.DataFrame:
    """Return the curves measured on the state's host with its kernel; `others`: any kernel, else arm64's preset."""
    table = findings.theory.published
    if others:
        return table if len(table) else answers.published(preset("arm64").host.name)
    return table[table["kernel"] == findings.state.architecture]
