# SPDX-License-Identifier: BSD-3-Clause
"""Which strategy, for guests of real size: what to take for which objective, what it costs, and the map over guests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from simlib import figures
from simlib.decision import OBJECTIVES, Choice, choose, comparison, named_guest, standard_scenario
from simlib.decision.grid import best_strategy_grid
from simlib.model.quantities import format_seconds, format_size
from simlib.parallel import portion
from simlib.report.block import Chart, Note, Prose, Table
from simlib.report.page import Section

ARCHITECTURES = ("x86-tdp", "arm64", "loongarch")
"""Those of the section; ``simlib choose --all`` does seven."""

STRATEGIES = ("whole-ioctl", "every-64", "every-4096", "bounded-hold", "eager-split-under-lock", "eager-split-drop",
              "no-eager-split")  # fmt: skip
"""What is compared; ``simlib choose`` compares more."""

ZONE = 0.05
"""Share of an objective that is taken not to matter here; ``simlib choose`` takes 0.02, and twice as long."""

SEED_GUEST, SEED_ARCHITECTURE = "seed-001-mysql-8g", "x86-tdp"
SEED_STRATEGIES = ("eager-split-under-lock", "every-64+eager-split-under-lock", "eager-split-drop", "no-eager-split")
"""Seed 001's guest, and what its mails propose."""

MAP_ARCHITECTURE = "arm64"
MAP_STRATEGIES = ("whole-ioctl", "every-64", "every-1024", "every-16384")
VCPUS = (16, 64, 160)
RATES = (1e3, 1e4, 5e4)
"""Accesses of a vCPU in a second, for the map."""


@dataclass(frozen=True)
class DecisionStudy:
    """What the section shows.

    Attributes
    ----------
    choices : mapping of str to Choice
        By architecture, for the default guest.
    seed_guest : Choice
        Of seed 001's guest with CLEARs of 8 GiB.
    map : DataFrame
        `simlib.decision.grid.best_strategy_grid` of `MAP_ARCHITECTURE`.
    """

    choices: Mapping[str, Choice]
    seed_guest: Choice
    map: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """One row an architecture and objective, as a reader wants it; `comparison` has all columns."""
        return pd.DataFrame(
            [
                {"architecture": row["architecture"], "who cares most about": OBJECTIVES[row["objective"]].title,
                 "takes": "any" if row["any_is_as_good"] else row["take"] + " ?" * (not row["certain"]),
                 "it is": format_seconds(row["value_s"]),
                 "at most worse by": format_seconds(row["regret_at_most_s"]),
                 "longest stall": format_seconds(row["stall_s"]), "guest time lost": format_seconds(row["lost_s"]),
                 "CPU time of CLEAR": format_seconds(row["clear_s"])}
                for row in comparison(self.choices).to_dict("records")
            ]
        )  # fmt: skip


def study(
    seed: int = 1, progress: Callable[[str, float], None] | None = None, names: Sequence[str] | None = None
) -> DecisionStudy:
    """Choose a strategy for each architecture.

    Parameters
    ----------
    names : sequence of str, optional
        Architectures; by default `ARCHITECTURES`.
    progress : callable, optional
        Called with (what, share done).
    """
    names = ARCHITECTURES if names is None else names

    def part(what: str, number: int) -> Callable[[str, float], None] | None:
        own = portion(progress, number / (len(names) + 2), (number + 1) / (len(names) + 2))
        return None if own is None else lambda _, share: own(what, share)

    choices = {}
    for number, name in enumerate(names):
        case = standard_scenario(name)
        choices[name] = choose(
            case, among=STRATEGIES, zone=ZONE, seed=seed, progress=part(f"a strategy for {name}", number)
        )
    guest = named_guest(SEED_GUEST).in_place_of(standard_scenario(SEED_ARCHITECTURE))
    told = part(f"the guest {SEED_GUEST}", len(names))
    stalled = choose(guest, among=SEED_STRATEGIES, zone=ZONE, seed=seed, progress=told)
    case = standard_scenario(MAP_ARCHITECTURE)
    cells = best_strategy_grid(
        case, VCPUS, RATES, among=MAP_STRATEGIES, seed=seed, progress=part("the map of strategies", len(names) + 1)
    )
    return DecisionStudy(choices, stalled, cells)


def sections(found: DecisionStudy) -> list[Section]:
    """The study as a section of a report."""
    first = next(iter(found.choices.values()))
    name = MAP_ARCHITECTURE if MAP_ARCHITECTURE in found.choices else next(iter(found.choices))
    shown = found.choices[name]
    stalls = found.seed_guest.table.set_index("strategy")["stall_s"]
    worst, *others = (format_seconds(float(stalls[one])) for one in SEED_STRATEGIES)
    guest, strategies = found.seed_guest, len(STRATEGIES)
    chunk = format_size(guest.scenario.workload.clear_chunk or 0)
    evidence = ", ".join(f"{key}: {one.evidence}" for key, one in found.choices.items())
    return [
        Section(
            "A strategy for CLEAR",
            [
                Prose(
                    f"A guest of real size: {first.guest}. Each strategy is a migration of it over "
                    f"{first.scenario.workload.pass_limit} passes, sampled by windows (docs/sampling.md), with costs "
                    "drawn from what is known of them: calibrated where a fit exists, else from published ranges or "
                    f"assumptions. {first.runs[0]} replications select, {first.runs[1]} or more fresh ones measure; "
                    f"{first.guarantee}."
                ),
                Table(
                    found.table,
                    "What to take, by what one cares about, and what that strategy costs in other respects. **Any**: "
                    f"no strategy of {strategies} differs by {first.zone:.0%} of it; **?**: another may be better by "
                    f"more than that. Evidence: {evidence}.",
                ),
                Chart(
                    figures.pareto(shown.table),
                    f"{name}: longest stall against CLEAR's CPU time; colour: guest time lost.",
                ),
                Table(
                    guest.readable(),
                    f"Seed 001's guest with CLEARs of {chunk}: {guest.guest}. Splitting under the lock stops a vCPU "
                    f"for {worst}; letting go after 64 pages too, for {others[0]}; the drop of commit cf3ff0ee24d6 "
                    f"alone, for {others[1]}. Memory, work and rates are assumed (data/priors/guests.toml).",
                ),
                Chart(
                    figures.best_strategy_map(found.map),
                    f"{MAP_ARCHITECTURE}: the least CPU time in all over vCPUs and their accesses per second, "
                    f"all costs at their medians. {_told(found.map)}",
                ),
                Note(
                    "What a guest loses are mostly faults that it takes whatever the strategy. Who counts CLEAR's CPU "
                    "time alone, or pre-copy, or the longest stall, chooses differently, as the table shows.",
                    "What the measure says, and what it does not",
                ),
            ],
        )
    ]


def _told(cells: pd.DataFrame) -> str:
    """How many cells of the map can be told apart, in words."""
    sure, matters = int((cells["distinguished"] & cells["matters"]).sum()), int(cells["matters"].sum())
    return (
        f"In {matters} of {len(cells)} cells some strategy is worse by what matters; in {sure} of these the best is "
        "distinguished from all others, and in the others the map has all that are not."
    )
