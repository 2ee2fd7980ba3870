# SPDX-License-Identifier: BSD-3-Clause
"""What the explorer knows about one question so far, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simlib.explorer import answers
from simlib.explorer.state import State
from simlib.parallel import Check, Progress, each

COLUMNS = ("figure", "series", "x", "quantity", "value", "low", "high", "unit", "kind")
"""Of the tidy table."""


@dataclass
class Findings:
    """All that is known about one state; what is missing is still being simulated.

    Attributes
    ----------
    generation : int
        Counts the states of a page; what belongs to an older one is not shown any more.
    parts : dict
        What `simlib.explorer.answers.stages` has given so far, by its names.
    """

    state: State
    generation: int = 0
    parts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def theory(self) -> answers.Theory:
        """What is known at once; found when it is first asked for."""
        return answers.theory(self.state)

    def trips(self) -> pd.DataFrame:
        """A row a strategy: the one that is asked about, then the pins; empty until they are simulated."""
        vcpus = self.state.scenario.guest.vcpus
        return pd.DataFrame([trip.row(vcpus) for trip in self.parts.get("trips", ())])

    def batches(self) -> pd.DataFrame | None:
        """A row a batch: batch_pages, stall_s, cost_s; None until they are simulated."""
        if "batches" not in self.parts:
            return None
        vcpus = self.state.scenario.guest.vcpus
        rows = pd.DataFrame([trip.row(vcpus) for trip in self.parts["batches"]])
        rows["batch_pages"] = answers.batches(self.state.scenario)
        return rows.rename(columns={"longest_stall_s": "stall_s"})

    def table(self) -> pd.DataFrame:
        """Everything that the figures show, tidy: figure, series, x, quantity, value, low, high, unit, kind.

        Kind is ``theory``, ``simulated`` or ``measured``; low and high are NaN where there is no interval.
        """
        parts = [*self._curve(), *self._strategies(), *self._batches(), *self._closely()]
        return pd.concat(
            [pd.DataFrame(columns=COLUMNS), *(part[part.notna().any(axis=1)] for part in parts if len(part))]
        )[list(COLUMNS)].reset_index(drop=True)

    def _curve(self) -> list[pd.DataFrame]:
        """When every write faults."""
        state = self.state
        shown = [
            (self.theory.bound.assign(series="bound"), "theory"),
            (self.theory.published.rename(columns={"variant": "series"}), "measured"),
        ]
        if "curve" in self.parts:
            shown.append((self.parts["curve"].assign(series=state.strategy), "simulated"))
        names = {"vcpus": "x", "times": "value"}
        same = {"figure": "curve", "quantity": "times as long as 1 vCPU", "unit": "ratio"}
        return [rows.rename(columns=names).assign(kind=kind, **same) for rows, kind in shown]

    def _strategies(self) -> list[pd.DataFrame]:
        """The guest over time, and what each strategy comes to."""
        rows = [
            over_time(trip).rename(columns={"strategy": "series", "time_s": "x", "throughput": "value"})
            for trip in self.parts.get("trips", ())
        ]
        found = [
            part.assign(figure="guest", quantity="guest throughput", unit="share", kind="simulated") for part in rows
        ]
        if rows:
            long = self.trips().rename(columns={"strategy": "series"}).melt("series", var_name="quantity")
            unit = np.where(long["quantity"] == "guest_throughput", "share", "s")
            found.append(long.assign(figure="strategies", unit=unit, kind="simulated"))
        return found

    def _batches(self) -> list[pd.DataFrame]:
        """Stall and cost over the batch."""
        found = []
        for rows, kind in ((self.theory.law, "theory"), (self.batches(), "simulated")):
            if rows is not None and len(rows):
                long = (
                    rows[["batch_pages", "stall_s", "cost_s"]]
                    .rename(columns={"batch_pages": "x"})
                    .melt("x", var_name="quantity")
                )
                found.append(long.assign(figure="batch", series=kind, unit="s", kind=kind))
        return found

    def _closely(self) -> list[pd.DataFrame]:
        """The window on one CLEAR."""
        if "glimpse" not in self.parts:
            return []
        seen, same = self.parts["glimpse"], {"unit": "share", "kind": "simulated"}
        time = seen.by_class().rename(columns={"thread_class": "series", "activity": "quantity", "share": "value"})
        lock = (
            seen.shares().rename(columns={"owner": "series", "time_s": "x", "share": "value"}).drop(columns="width_s")
        )
        return [time.assign(figure="time", **same), lock.assign(figure="lock", quantity="owned", **same)]


def find(state: State, progress: Progress | None = None) -> Findings:
    """Everything about a state, once all of it is simulated.

    Parameters
    ----------
    progress : callable, optional
        Called with (what, share done).

    Examples
    --------
    >>> found = find(State.of("arm64").changed({"guest": {"vcpus": 8, "memory": "4G"}}))
    >>> sorted(found.table()["figure"].unique())
    ['batch', 'curve', 'guest', 'lock', 'strategies', 'time']
    """
    found = Findings(state)

    def simulate(check: Check) -> None:
        for name, part in answers.stages(state, check):
            found.parts[name] = part

    each([simulate], "simulating", progress, wide=True)
    return found


def over_time(trip: answers.Trip) -> pd.DataFrame:
    """A trip's throughput over time: strategy, time_s, throughput."""
    ends, throughput = trip.journey.curve[:, 0], trip.journey.curve[:, 1]
    return pd.DataFrame({"strategy": trip.strategy, "time_s": ends, "throughput": throughput})
