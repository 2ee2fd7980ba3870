# SPDX-License-Identifier: BSD-3-Clause
"""Results for one state of an explorer page, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from simlib._lib.parallel import Check, Progress, run_all
from simlib.analysis.migrate import Migration, MigrationOptions, migrate
from simlib.ui.explorer import answers
from simlib.ui.explorer.migration_state import DRAWS, MigrationState
from simlib.ui.explorer.state import ExplorerQuestion, ExplorerState

COLUMNS = ("figure", "series", "x", "quantity", "value", "low", "high", "unit", "kind")  # columns of the tidy table

Q = TypeVar("Q", bound=ExplorerQuestion)


@dataclass
class PartialFindings(Generic[Q]):
    """Results for one state so far; the other parts are still being simulated.

    - `generation`: counts the states of a page; results of an older one are not shown.
    - `parts`: results of the page's stages by name.
    """

    state: Q
    generation: int = 0
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Findings(PartialFindings[ExplorerState]):
    """Results about mmu_lock in one migration (`simlib.ui.explorer.answers.stages`)."""

    @cached_property
    def theory(self) -> answers.Theory:
        """Answer of the theory, computed on first use."""
        return answers.theory(self.state)

    def trips(self, part: str = "trips") -> pd.DataFrame:
        """Table with a row for each strategy of a part; in ``trips``, the selected strategy comes first."""
        return pd.DataFrame([trip.row(self.state.scenario.guest.vcpus) for trip in self.parts.get(part, ())])

    def compared(self) -> pd.DataFrame:
        """Compare each strategy with the baseline.

        Returns: series (the strategy), quantity, value, change (its ratio to the baseline), known (True if drawn costs
        give a range), and low, high, change_low, change_high (`answers.Ranges`; NaN if not known).
        """
        long = self.trips().rename(columns={"strategy": "series"}).melt("series", var_name="quantity")
        long["baseline"] = long["quantity"].map(self.trips("baseline").iloc[0])
        long["change"] = (long["value"] / long["baseline"]).astype(float).fillna(1.0)
        ranges = self.parts["ranges"].frame if "ranges" in self.parts else pd.DataFrame(columns=answers.RANGED)
        long = long.merge(ranges, on=["series", "quantity"], how="left")
        return long.assign(known=long["low"].notna())

    def batches(self) -> pd.DataFrame | None:
        """Table with a row for each batch: batch_pages and the columns of `trips`; None before the simulation."""
        if "batches" not in self.parts:
            return None
        return self.trips("batches").assign(batch_pages=answers.batches(self.state.scenario))

    def table(self) -> pd.DataFrame:
        """Everything that the figures show, tidy: figure, series, x, quantity, value, low, high, unit, kind.

        Kind is ``theory``, ``simulated`` or ``measured``; low and high are NaN where there is no interval.
        """
        parts = [*self._curve(), *self._strategies(), *self._batches(), *self._closely()]
        every = [pd.DataFrame(columns=COLUMNS), *(part for part in parts if len(part))]  # objects: 64 vCPUs stay "64"
        return pd.concat(every, ignore_index=True)[list(COLUMNS)]

    def _curve(self) -> Iterator[pd.DataFrame]:
        shown = {"theory": self.theory.bound.assign(variant="bound"), "measured": self.theory.published}
        if "curve" in self.parts:
            shown["simulated"] = self.parts["curve"].assign(variant=self.state.strategy)
        for kind, rows in shown.items():
            named = rows.rename(columns={"variant": "series", "vcpus": "x", "times": "value"})
            yield named.assign(figure="curve", quantity="time relative to 1 vCPU", unit="ratio", kind=kind)

    def _strategies(self) -> Iterator[pd.DataFrame]:
        """Guest throughput over time, and the totals of each strategy."""
        for trip in self.parts.get("trips", ()):
            rows = over_time(trip).rename(columns={"strategy": "series", "time_s": "x", "throughput": "value"})
            yield rows.assign(figure="guest", quantity="guest throughput", unit="share", kind="simulated")
        if "trips" in self.parts:
            long = self.compared()
            unit = np.where(long["quantity"] == "guest_throughput", "share", "s")
            yield long.assign(figure="strategies", unit=unit, kind="simulated")

    def _batches(self) -> Iterator[pd.DataFrame]:
        rows = self.batches()
        if rows is not None:
            named = rows.rename(columns={"batch_pages": "x", "longest_stall_s": "stall_s"})
            long = named.melt("x", ["stall_s", "clear_cpu_time_s", "cost_s"], "quantity")
            yield long.assign(figure="batch", series="batches", unit="s", kind="simulated")

    def _closely(self) -> Iterator[pd.DataFrame]:
        if "glimpse" in self.parts:
            window, same = self.parts["glimpse"], {"unit": "share", "kind": "simulated"}
            names = {"thread_class": "series", "owner": "series", "activity": "quantity", "time_s": "x"}
            yield window.by_class().rename(columns=names | {"share": "value"}).assign(figure="time", **same)
            lock = window.shares().rename(columns=names | {"share": "value"})
            yield lock.assign(figure="lock", quantity="owned", **same)


def find(state: ExplorerState, progress: Progress | None = None) -> Findings:
    """Simulate all parts of the answer for a state; `progress` is called with (what, share done).

    >>> findings = find(ExplorerState.of("arm64").changed({"guest": {"vcpus": 8, "memory": "4G"}}))
    >>> sorted(findings.table()["figure"].unique())
    ['batch', 'curve', 'guest', 'lock', 'strategies', 'time']
    """
    findings = Findings(state)

    def simulate(check: Check) -> None:
        for name, part in answers.stages(state, check):
            findings.parts[name] = part

    run_all([simulate], "simulating", progress, nested=True)
    return findings


@dataclass
class MigrationFindings(PartialFindings[MigrationState]):
    """Results of the page about a migration."""

    def table(self) -> pd.DataFrame:
        """Return the table of plans (`simlib.analysis.migrate.Migration`); empty before the simulation."""
        return self.parts["answer"].frame if "answer" in self.parts else pd.DataFrame()


def migration_answer(state: MigrationState, progress: Progress | None = None) -> Migration:
    """Return the answer that the page about a migration shows."""
    options = MigrationOptions(draws=DRAWS, lock=False, emit=state.texts["emit"])
    return migrate(state.guest, state.targets, options=options, progress=progress)


def find_migration(state: MigrationState, progress: Progress | None = None) -> MigrationFindings:
    """Compute the answer for a state; `progress` is called with (what, share done).

    >>> state = MigrationState({"memory": "8G", "working-set": "1G", "link": "100Gbit/s"})
    >>> find_migration(state).table()["plan"].iloc[0]
    'current'
    """
    return MigrationFindings(state, parts={"answer": migration_answer(state, progress)})


def over_time(trip: answers.Trip) -> pd.DataFrame:
    """Throughput of a trip over time: strategy, time_s, throughput."""
    ends, throughput = trip.run.curve[:, 0], trip.run.curve[:, 1]
    return pd.DataFrame({"strategy": trip.strategy, "time_s": ends, "throughput": throughput})
