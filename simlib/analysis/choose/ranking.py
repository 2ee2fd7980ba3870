# SPDX-License-Identifier: BSD-3-Clause
"""Strategies beside each other, for each objective: what is best, what is as good, and by how much others are worse.

All of it is read off one set of intervals, those of the differences of *all* pairs of strategies, which hold together.
So whatever is selected, and for whatever reason that the same numbers gave, its intervals are among them: the pick, the
table and the sentence cannot disagree, and picking takes nothing from the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib._lib.errors import InputError
from simlib.analysis.choose.objectives import OBJECTIVES, Objective
from simlib.analysis.choose.strategies import Strategy

Floats = NDArray[np.float64]

FRONT = ("guest_time_lost", "stall", "clear", "precopy")
"""Objectives that are traded for each other."""

BUDGETS = (10e-6, 100e-6, 1e-3, 10e-3, 100e-3)
"""Longest stalls of which it is said what they cost, s."""


@dataclass(frozen=True)
class Terms:
    """What `choose` is told about what matters. Raises `InputError` if a value breaks its rule."""

    weight: float
    indifference: float
    confidence: float
    max_stall_s: float | None
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise InputError("weight", self.weight, "must be finite and at least 0",
                             "say what a second of a vCPU is worth")  # fmt: skip
        if not 0 < self.indifference < 1:
            raise InputError(
                "indifference",
                self.indifference,
                "must lie between 0 and 1",
                "0.02: differences below 2 % do not matter",
            )
        if not 0.5 < self.confidence < 1:
            raise InputError("confidence", self.confidence, "must lie between 0.5 and 1", "such as 0.95")
        if self.max_stall_s is not None and not 0 < self.max_stall_s < math.inf:
            raise InputError("max_stall_s", self.max_stall_s, "must be finite and above 0")

    def width(self, value: float, what: Objective) -> float:
        """The difference to this value that does not matter, s."""
        return max(self.indifference * value, what.floor)


@dataclass(frozen=True)
class ComparisonToBest:
    """What is known of the strategies for one objective.

    - `means`, shape (strategies,): s.
    - `spread`, shape (strategies,): half the interval of each mean, by itself.
    - `more`, shape (strategies, strategies): by how much the row's strategy is worse than the column's, on average.
    - `half`, shape (strategies, strategies): half the interval of that; all of these hold together.
    """

    what: Objective
    terms: Terms
    means: Floats
    spread: Floats
    more: Floats
    half: Floats

    def width(self, best: int) -> float:
        """The difference to this strategy that does not matter, s."""
        return self.terms.width(float(self.means[best]), self.what)

    def equivalent(self, one: int, best: int) -> bool:
        """Whether one is worse than the other by no more than what does not matter, with its whole interval."""
        return one == best or bool(self.more[one, best] + self.half[one, best] <= self.width(best))

    def pick(self, allowed: Sequence[int], strategies: Sequence[Strategy]) -> int:
        """The least mean; of what is as good as that the least change from what is now.

        What would be beaten for sure, by more than what does not matter, is not taken for its few changes.
        """
        best = min(allowed, key=lambda s: self.means[s])
        width = self.width(best)

        def beaten(one: int) -> bool:
            high = self.more[allowed, one] + self.half[allowed, one]
            low = self.more[allowed, one] - self.half[allowed, one]
            return bool(((high < 0) & (low < -width)).any())

        good = [s for s in allowed if s == best or (self.equivalent(s, best) and not beaten(s))]
        return min(good, key=lambda s: (strategies[s].changes, self.means[s]))


@dataclass(frozen=True)
class Ranking:
    """Strategies that were simulated in the same replications, and which are best.

    - `allowed`: those that keep to the longest stall that is allowed, by their places.
    - `simulated`, shape (replications, strategies, objectives): s.
    - `bounds`, shape (strategies,): what the longest stall of one more migration stays below.
    - `looks`: how often the replications are looked at, at most.
    """

    strategies: tuple[Strategy, ...]
    allowed: list[int]
    terms: Terms
    simulated: Floats
    bounds: Floats
    looks: int

    @cached_property
    def standings(self) -> dict[str, ComparisonToBest]:
        """By objective: paired t intervals, Bonferroni over all pairs, objectives and looks."""
        n, count, kinds = self.simulated.shape
        error = (1 - self.terms.confidence) / (count * (count - 1) * kinds * self.looks)
        reach = float(stdtrit(n - 1, 1 - error)) / np.sqrt(n)
        alone = float(stdtrit(n - 1, 0.5 + self.terms.confidence / 2)) / np.sqrt(n)
        found = {}
        for o, what in enumerate(OBJECTIVES.values()):
            values = self.simulated[:, :, o]
            gaps = values[:, :, np.newaxis] - values[:, np.newaxis, :]
            found[what.name] = ComparisonToBest(
                what,
                self.terms,
                values.mean(axis=0),
                alone * values.std(axis=0, ddof=1),
                gaps.mean(axis=0),
                reach * gaps.std(axis=0, ddof=1),
            )
        return found

    @cached_property
    def best(self) -> dict[str, int]:
        """What is selected for each objective."""
        return {name: one.pick(self.allowed, self.strategies) for name, one in self.standings.items()}

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Every strategy beside the one that was selected, for each objective: `Choice.pairs`."""
        rows = []
        for name, standing in self.standings.items():
            best = self.best[name]
            width, least = standing.width(best), -float(standing.means[best])
            for s, strategy in enumerate(self.strategies):
                mean, spread = float(standing.means[s]), float(standing.spread[s])
                more, half = float(standing.more[s, best]), float(standing.half[s, best])
                low = min(more, max(more - half, least)) + 0.0  # nothing is below 0, so no difference is below `least`
                rows.append(
                    (name, strategy.name, mean, max(0.0, mean - spread), mean + spread, more, low, more + half,
                     s == best, s in self.allowed, s in self.allowed and standing.equivalent(s, best), width)
                )  # fmt: skip
        columns = ["objective", "strategy", "value_s", "low_s", "high_s", "difference_s", "difference_low_s",
                   "difference_high_s", "selected", "allowed", "equivalent", "indifference_s"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def answers(self) -> pd.DataFrame:
        """What was selected for each objective, and by how much another may be better at most: `Choice.answers`."""
        rows = []
        for name, mine in self.pairs.groupby("objective", sort=False):
            one = mine[mine["selected"]].iloc[0]
            worst = max(0.0, float(-mine.loc[mine["allowed"], "difference_low_s"].min()))
            certain = worst <= float(one["indifference_s"])
            good = mine.loc[mine["equivalent"] & ~mine["selected"], "strategy"].tolist()
            rows.append(
                (
                    name,
                    one["strategy"],
                    one["value_s"],
                    one["low_s"],
                    one["high_s"],
                    worst,
                    one["indifference_s"],
                    certain,
                    bool(mine.loc[mine["allowed"], "equivalent"].all()),
                    "; ".join(good),
                )
            )
        columns = ["objective", "take", "value_s", "low_s", "high_s", "regret_at_most_s", "indifference_s", "certain",
                   "any_is_as_good", "equivalent"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a strategy, what it costs in every respect: `Choice.table`."""
        means = pd.DataFrame(self.simulated.mean(axis=0), columns=[f"{name}_s" for name in OBJECTIVES])
        frame = pd.DataFrame(
            {"strategy": [one.name for one in self.strategies], "as_it_is": [one.as_it_is for one in self.strategies],
             "allowed": np.isin(range(len(self.strategies)), self.allowed), "stall_bound_s": self.bounds}
        )  # fmt: skip
        frame = pd.concat([frame, means], axis=1)
        traded = frame[[f"{name}_s" for name in FRONT]].to_numpy(dtype=float)
        frame["on_front"] = pareto_front(traded)
        frame["knee"] = np.arange(len(frame)) == self._knee(traded)
        frame["line_of"] = [self.strategies[s].name for s in self._lines()]
        return frame

    @cached_property
    def budgets(self) -> pd.DataFrame:
        """What keeping the longest stall short costs: `Choice.budgets`."""
        standing = self.standings["cost"]
        now = float(standing.means[self.best["cost"]])
        rows = []
        for budget in BUDGETS:
            within = [s for s in self.allowed if self.bounds[s] <= budget]
            if not within:
                rows.append((budget, "", math.nan, math.nan, math.nan))
                continue
            take = standing.pick(within, self.strategies)
            cost = float(standing.means[take])
            more = cost / now - 1 if now else 0.0
            rows.append((budget, self.strategies[take].name, float(self.bounds[take]), cost, more))
        return pd.DataFrame(rows, columns=["stall_budget_s", "take", "stall_bound_s", "cost_s", "share_more"])

    def _knee(self, traded: Floats) -> int:
        """The knee of what is allowed, or what is as good as it in every respect with fewer changes."""
        places = np.array(self.allowed)[pareto_front(traded[self.allowed])]
        found = int(places[knee(traded[places])])
        good = [s for s in self.allowed if all(self.standings[name].equivalent(s, found) for name in FRONT)]
        return min(good, key=lambda s: (self.strategies[s].changes, s != found))

    def _lines(self) -> list[int]:
        """For each strategy the first of those from which it differs in nothing by more than does not matter."""
        order = sorted(range(len(self.strategies)), key=lambda s: self.strategies[s].changes > 0)  # what is now first
        first: dict[int, int] = {}
        for s in order:
            first[s] = next((r for r in dict.fromkeys(first.values()) if self._alike(s, r)), s)
        return [first[s] for s in range(len(self.strategies))]

    def _alike(self, one: int, other: int) -> bool:
        """Whether nobody who looks at the means and at the bounds of the stalls needs to tell them apart."""
        ends = sorted((float(self.bounds[one]), float(self.bounds[other])))
        if (one in self.allowed) != (other in self.allowed):
            return False
        if ends[1] - ends[0] > self.terms.width(ends[0], OBJECTIVES["stall"]):
            return False
        return all(abs(found.more[one, other]) <= min(found.width(one), found.width(other))
                   for found in self.standings.values())  # fmt: skip


def pareto_front(values: Floats) -> NDArray[np.bool_]:
    """Which rows no other row beats: none is as small in all columns, and smaller in one."""
    return np.array([not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values])


def knee(values: Floats) -> int:
    """The row nearest to the best of every column, each on a logarithmic scale from its best to its worst."""
    logs = np.log(np.maximum(values, 1e-12))
    span = np.ptp(logs, axis=0)
    scaled = (logs - logs.min(axis=0)) / np.where(span > np.log(1.02), span, np.inf)
    return int(np.argmin((scaled**2).sum(axis=1)))
