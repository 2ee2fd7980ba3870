# SPDX-License-Identifier: BSD-3-Clause
"""Which strategy, for guests of real size: what to take for which objective, what it costs, and the map over guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.analysis.choose import OBJECTIVES, Choice, choose, comparison, named_guest, preset_scenario
from simlib.analysis.choose.grid import best_strategy_grid
from simlib.model.quantities import format_seconds, format_size
from simlib.model.scenario import Scenario
from studies.study import COLUMNS, Answer, Found, Study

ARCHITECTURES = ("x86-tdp", "arm64", "loongarch")
"""Those of the study; ``simlib choose --all`` does seven."""

STRATEGIES = ("whole-ioctl", "every-64", "every-4096", "bounded-hold", "eager-split-under-lock", "eager-split-drop",
              "no-eager-split")  # fmt: skip
"""What is compared; ``simlib choose`` compares more."""

ZONE = 0.05
"""Share of an objective that is taken not to matter here; ``simlib choose`` takes 0.02, and twice as long."""

MYSQL_GUEST, MYSQL_ARCHITECTURE = "mysql-8g", "x86-tdp"
SEED_STRATEGIES = ("eager-split-under-lock", "every-64+eager-split-under-lock", "eager-split-drop", "no-eager-split")
"""The April 2024 mail's guest, and what the mails propose."""

MAP_ARCHITECTURE = "arm64"
MAP_STRATEGIES = ("whole-ioctl", "every-64", "every-1024", "every-16384")
VCPUS = (16, 64, 160)
RATES = (1e3, 1e4, 5e4)
"""Accesses of a vCPU in a second, for the map."""


@dataclass(frozen=True)
class Decision(Found):
    """What the study found: choices by architecture for the default guest; for the mail's with CLEARs of 8 GiB."""

    choices: Mapping[str, Choice]
    seed_guest: Choice

    @property
    def readable(self) -> pd.DataFrame:
        """One row an architecture and objective, as a reader wants it; `comparison` has all columns."""
        return pd.DataFrame(
            [
                {
                    "architecture": row["architecture"],
                    "who cares most about": OBJECTIVES[row["objective"]].title,
                    "takes": "any" if row["any_is_as_good"] else row["take"] + " ?" * (not row["certain"]),
                    "it is": format_seconds(row["value_s"]),
                    "at most worse by": format_seconds(row["regret_at_most_s"]) if row["regret_at_most_s"] else "",
                    "longest stall": format_seconds(row["stall_s"]),
                    "guest time lost": format_seconds(row["guest_time_lost_s"]),
                    "CPU time of CLEAR": format_seconds(row["clear_s"]),
                }
                for row in comparison(self.choices).to_dict("records")
            ]
        )


def compute(*, seed: int = 1, progress: Progress | None = None) -> Decision:
    """Choose a strategy for each architecture and for the April 2024 mail's guest, and draw the map."""
    steps = [*(f"a strategy for {name}" for name in ARCHITECTURES), f"the guest {MYSQL_GUEST}", "the map of strategies"]

    def told(number: int) -> Progress | None:
        own = subprogress(progress, number / len(steps), (number + 1) / len(steps))
        return None if own is None else lambda _, share: own(steps[number], share)

    def take(case: Scenario, among: Sequence[str], number: int) -> Choice:
        return choose(case, strategies=among, indifference=ZONE, seed=seed, progress=told(number))

    choices = {name: take(preset_scenario(name), STRATEGIES, number) for number, name in enumerate(ARCHITECTURES)}
    guest = named_guest(MYSQL_GUEST).in_place_of(preset_scenario(MYSQL_ARCHITECTURE))
    stalled = take(guest, SEED_STRATEGIES, len(ARCHITECTURES))
    case = preset_scenario(MAP_ARCHITECTURE)
    cells = best_strategy_grid(case, VCPUS, RATES, strategies=MAP_STRATEGIES, seed=seed, progress=told(len(steps) - 1))
    tables = {"strategies": comparison(choices), "mysql": stalled.table, "map": cells}
    return Decision(pd.DataFrame(columns=list(COLUMNS)), tables, choices, stalled)


def map_told(cells: pd.DataFrame) -> str:
    """How many cells of the map can be told apart, in words.

    >>> map_told(pd.DataFrame({"distinguished": [True, False, True], "matters": [True, True, False]}))[:60]
    'In 2 of 3 cells some strategy is worse by what matters; in 1'
    """
    sure, matters = int((cells["distinguished"] & cells["matters"]).sum()), int(cells["matters"].sum())
    return (
        f"In {matters} of {len(cells)} cells some strategy is worse by what matters; in {sure} of these the best is "
        "distinguished from all others, and in the others the map has all that are not."
    )


def answer(found: Decision) -> Answer:
    """What to take for two objectives, by architecture."""
    said = []
    for name, choice in found.choices.items():
        cost, stall = choice.take("cost"), choice.take("stall")
        both = f"`{cost}` for both" if cost == stall else f"`{cost}` for CPU time, `{stall}` for the stall"
        said.append(f"{name}: {both} ({choice.evidence_shown})")
    guest = next(iter(found.choices.values())).scenario.guest
    return Answer(
        f"For the least CPU time in all and the shortest longest stall of {guest.vcpus} vCPUs with "
        f"{format_size(guest.pages * guest.page_size)}, take on {'; on '.join(said)}."
    )


STUDY = Study("decision", "A strategy for CLEAR", ("05-choose-a-batch",), (), compute, answer,
              takes_s=89)  # fmt: skip
