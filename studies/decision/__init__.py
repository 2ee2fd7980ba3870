# SPDX-License-Identifier: BSD-3-Clause
"""Selection of a strategy for guests of realistic size: by objective and architecture, and mapped over guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.analysis.choose import OBJECTIVES, Choice, choose, comparison, named_guest, preset_scenario
from simlib.figures.results import Answer
from simlib.model.quantities import format_seconds, format_size
from simlib.model.scenario import Scenario
from studies.decision.strategy_map import best_strategy_grid
from studies.study import COLUMNS, Study, StudyFindings

ARCHITECTURES = ("x86-tdp", "arm64", "loongarch")
"""Architectures of the study; ``simlib choose --all`` covers seven."""

STRATEGIES = ("whole-ioctl", "every-64", "every-4096", "bounded-hold", "eager-split-under-lock", "eager-split-drop",
              "no-eager-split")  # fmt: skip
"""Compared strategies; ``simlib choose`` compares more."""

INDIFFERENCE = 0.05
"""Indifference zone of the study; ``simlib choose`` uses 0.02 and takes twice as long."""

MYSQL_GUEST = "mysql-8g"
MYSQL_STRATEGIES = ("eager-split-under-lock", "every-64+eager-split-under-lock", "eager-split-drop", "no-eager-split")
"""Guest of the April 2024 mail, and the strategies that the mails propose."""

MAP_STRATEGIES = ("whole-ioctl", "every-64", "every-1024", "every-16384")
VCPUS, RATES = (16, 64, 160), (1e3, 1e4, 5e4)
"""Numbers of vCPUs, and access rates of a vCPU (1/s), of the map."""


@dataclass(frozen=True)
class Decision(StudyFindings):
    """Choices by architecture for the default guest, and the choice for the mail's guest with CLEARs of 8 GiB."""

    choices: Mapping[str, Choice]
    mysql_choice: Choice

    @property
    def readable(self) -> pd.DataFrame:
        """Table for display, one row for each architecture and objective; `comparison` has all columns."""
        return pd.DataFrame(
            [
                {
                    "architecture": row["architecture"],
                    "objective": OBJECTIVES[row["objective"]].title,
                    "selected": "any" if row["all_equivalent"] else row["recommended"] + " ?" * (not row["certain"]),
                    "value": format_seconds(row["value_s"]),
                    "maximum regret": format_seconds(row["regret_at_most_s"]) if row["regret_at_most_s"] else "",
                    "longest stall": format_seconds(row["stall_s"]),
                    "guest time lost": format_seconds(row["guest_time_lost_s"]),
                    "CPU time of CLEAR": format_seconds(row["clear_s"]),
                }
                for row in comparison(self.choices).to_dict("records")
            ]
        )


def compute(*, seed: int = 1, progress: Progress | None = None) -> Decision:
    """Choose a strategy for each architecture and for the April 2024 mail's guest, and compute the map."""
    steps = [*(f"a strategy for {name}" for name in ARCHITECTURES), f"the guest {MYSQL_GUEST}", "the map of strategies"]

    def report(number: int) -> Progress | None:
        part = subprogress(progress, number / len(steps), (number + 1) / len(steps))
        return None if part is None else lambda _, share: part(steps[number], share)

    def select(case: Scenario, strategies: Sequence[str], number: int) -> Choice:
        return choose(case, strategies=strategies, indifference=INDIFFERENCE, seed=seed, progress=report(number))

    choices = {name: select(preset_scenario(name), STRATEGIES, number) for number, name in enumerate(ARCHITECTURES)}
    guest = named_guest(MYSQL_GUEST).in_place_of(preset_scenario("x86-tdp"))
    mysql = select(guest, MYSQL_STRATEGIES, len(ARCHITECTURES))
    case, places = preset_scenario("arm64"), list(product(VCPUS, RATES))
    cells = best_strategy_grid(case, places, strategies=MAP_STRATEGIES, seed=seed, progress=report(len(steps) - 1))
    tables = {"strategies": comparison(choices), "mysql": mysql.table, "map": cells}
    return Decision(pd.DataFrame(columns=list(COLUMNS)), tables, choices, mysql)


def describe_map(cells: pd.DataFrame) -> str:
    """Describe in how many cells of the map the strategies differ.

    >>> describe_map(pd.DataFrame({"distinguished": [True, False, True], "matters": [True, True, False]}))[:61]
    'In 2 of 3 cells, at least one strategy is worse than the best'
    """
    distinguished, matters = int((cells["distinguished"] & cells["matters"]).sum()), int(cells["matters"].sum())
    return (
        f"In {matters} of {len(cells)} cells, at least one strategy is worse than the best by more than the "
        f"indifference zone. In {distinguished} of these cells, the best strategy is distinguished from every other; "
        "in the remaining cells, the map lists every strategy that may be the best."
    )


def answer(findings: Decision) -> Answer:
    """Return the strategies for two objectives, by architecture."""
    recommendations = []
    for name, choice in findings.choices.items():
        cost, stall = choice.recommended("cost"), choice.recommended("stall")
        strategies = f"`{cost}` for both" if cost == stall else f"`{cost}` for the cost, `{stall}` for the stall"
        recommendations.append(f"on {name} {strategies} ({choice.evidence_label})")
    guest = next(iter(findings.choices.values())).scenario.guest
    return Answer(
        "Strategies that minimise the weighted cost, and strategies that minimise the longest stall, for a guest of "
        f"{guest.vcpus} vCPUs and {format_size(guest.pages * guest.page_size)}: {'; '.join(recommendations)}."
    )


STUDY = Study("decision", "A strategy for CLEAR", ("05-choose-a-batch",), (), compute, answer, runtime_s=89)
