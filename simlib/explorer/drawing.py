# SPDX-License-Identifier: BSD-3-Clause
"""Findings as the explorer's figures: those that a part of the answers changes."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from simlib.engine.result import PS
from simlib.explorer import answers
from simlib.explorer.findings import Findings, over_time
from simlib.explorer.state import State
from simlib.figures import explorer as figures

WAITING = "being simulated …"

TITLES = {
    "curve": "When every write faults", "guest": "The guest while it migrates", "batch": "The batch: stall beside cost",
    "time": "Where time goes", "lock": "Who owns mmu_lock",
}  # fmt: skip
"""Figures, in their order, and what stands in one that has nothing to show yet."""


CLOSELY = ("time", "lock")
"""Figures of the window on one CLEAR, of which theory says nothing: they stay, pale, until it is simulated anew."""


def draw(found: Findings, before: Findings | None, part: str) -> dict[str, go.Figure]:
    """The figures that a part of the answers changes."""
    state, parts = found.state, found.parts
    old = before.parts if before is not None else {}
    reason = parts.get("reason")
    drawn: dict[str, go.Figure] = {}
    if part in ("first", "curve"):
        drawn["curve"] = figures.fault_curve(
            found.theory.bound, parts.get("curve"), found.theory.published, old.get("curve"), state.scenario.guest.vcpus
        )
    if part in ("first", "trips", "reason"):
        drawn["guest"] = _guest(found, old) if reason is None else figures.empty(TITLES["guest"], reason)
    if part in ("first", "trips", "batches", "reason"):
        drawn["batch"] = _batch(found, before) if reason is None else figures.empty(TITLES["batch"], reason)
    if part in ("glimpse", "no glimpse", "reason") or (part == "first" and before is None):
        seen, why = parts.get("glimpse"), parts.get("no glimpse", reason or WAITING)
        for name in CLOSELY:
            drawn[name] = figures.empty(TITLES[name], why)
        if seen is not None:
            _, opened, cleared, _ = (float(time) * PS for time in seen.raw.stamp_ps)
            drawn["time"] = figures.time_by_class(seen.by_class())
            drawn["lock"] = figures.lock_strip(seen.shares(), (opened, cleared))
    return {name: drawn[name] for name in TITLES if name in drawn}


def _guest(found: Findings, old: dict[str, Any]) -> go.Figure:
    trips = found.parts.get("trips", ())
    theory = None
    if not trips:
        law = found.theory.law
        mine = law[law["batch_pages"] == _batch_of(found.state)]
        theory = float(mine["throughput"].iloc[0]) if len(mine) else None
    rows = [over_time(trip) for trip in trips]
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=["strategy", "time_s", "throughput"])
    before = over_time(old["trips"][0]) if "trips" in old else None
    return figures.guest_over_time(table, theory, before)


def _batch_of(state: State) -> int:
    """The batch of a state's strategy, pages; 0: the whole ioctl; -1: it is no batch."""
    text = str(state.case().policy.lets_go)
    known = {"never": 0} | {f"pages >= {batch}": batch for batch in answers.BATCHES if batch}
    return known.get(text, -1)


def _batch(found: Findings, before: Findings | None) -> go.Figure:
    pins = found.trips().rename(columns={"longest_stall_s": "stall_s"}) if "batches" in found.parts else None
    old = before.batches() if before is not None else None
    return figures.tradeoff(found.theory.law, found.batches(), pins, old)
