# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of strategies for each objective: the best, those equivalent to it, and the excess of the others.

All results are computed from one set of intervals, which hold jointly: the intervals of the differences between *all*
pairs of strategies. Whichever strategy is selected, and by whatever function of the same data, its intervals are in the
set. Therefore, the recommendation, the table and the sentence agree, and selection does not weaken the guarantee.
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

from simlib.analysis.choose.objectives import OBJECTIVES, Floats, Objective
from simlib.analysis.choose.options import ChoiceOptions
from simlib.analysis.choose.strategies import Strategy

FRONT = ("guest_time_lost", "stall", "clear", "precopy")
"""Objectives of the Pareto front."""

BUDGETS = (10e-6, 100e-6, 1e-3, 10e-3, 100e-3)
"""Limits on the longest stall for which a strategy and its cost are reported, s."""


@dataclass(frozen=True)
class ComparisonToBest:
    """Estimates of all strategies for one objective.

    - `means`, shape (strategies,): s.
    - `mean_half_widths`, shape (strategies,): half the interval of each mean, individually.
    - `differences`, shape (strategies, strategies): mean excess of the row's strategy over the column's.
    - `half_widths`, shape (strategies, strategies): half the interval of each difference; these hold jointly.
    """

    objective: Objective
    options: ChoiceOptions
    means: Floats
    mean_half_widths: Floats
    differences: Floats
    half_widths: Floats

    def zone(self, best: int) -> float:
        """Return the width of the indifference zone around a strategy, s."""
        return self.options.zone(float(self.means[best]), self.objective)

    def equivalent(self, strategy: int, best: int) -> bool:
        """True if the whole interval of `strategy` minus `best` is below the indifference zone."""
        if strategy == best:
            return True
        return bool(self.differences[strategy, best] + self.half_widths[strategy, best] <= self.zone(best))

    def select(self, allowed: Sequence[int], strategies: Sequence[Strategy]) -> int:
        """Select, among the strategies equivalent to the one with the lowest mean, the one with the fewest changes.

        A strategy that another one beats significantly, by more than the indifference zone, is not selected.
        """
        best = min(allowed, key=lambda s: self.means[s])
        zone = self.zone(best)

        def beaten(strategy: int) -> bool:
            high = self.differences[allowed, strategy] + self.half_widths[allowed, strategy]
            low = self.differences[allowed, strategy] - self.half_widths[allowed, strategy]
            return bool(((high < 0) & (low < -zone)).any())

        candidates = [s for s in allowed if s == best or (self.equivalent(s, best) and not beaten(s))]
        return min(candidates, key=lambda s: (strategies[s].changes, self.means[s]))


@dataclass(frozen=True)
class Ranking:
    """Strategies that were simulated in the same replications, ranked.

    - `allowed`: indices of the strategies that satisfy the limit on the longest stall.
    - `simulated`, shape (replications, strategies, objectives): s.
    - `bounds`, shape (strategies,): upper prediction bounds of the longest stall of one more migration, s.
    - `looks`: maximum number of looks at the replications (interim analyses).
    """

    strategies: tuple[Strategy, ...]
    allowed: list[int]
    options: ChoiceOptions
    simulated: Floats
    bounds: Floats
    looks: int

    @cached_property
    def comparisons(self) -> dict[str, ComparisonToBest]:
        """Comparisons by objective: paired t intervals, Bonferroni over all pairs, objectives and looks."""
        n, count, kinds = self.simulated.shape
        error = (1 - self.options.confidence) / (count * (count - 1) * kinds * self.looks)
        joint = float(stdtrit(n - 1, 1 - error)) / np.sqrt(n)
        single = float(stdtrit(n - 1, 0.5 + self.options.confidence / 2)) / np.sqrt(n)
        comparisons = {}
        for i, (name, objective) in enumerate(OBJECTIVES.items()):
            values = self.simulated[:, :, i]
            differences = values[:, :, np.newaxis] - values[:, np.newaxis, :]
            comparisons[name] = ComparisonToBest(
                objective, self.options, values.mean(axis=0), single * values.std(axis=0, ddof=1),
                differences.mean(axis=0), joint * differences.std(axis=0, ddof=1),
            )  # fmt: skip
        return comparisons

    @cached_property
    def selected(self) -> dict[str, int]:
        """Index of the selected strategy by objective."""
        return {name: comparison.select(self.allowed, self.strategies) for name, comparison in self.comparisons.items()}

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Every strategy compared with the selected one, for each objective: `Choice.pairs`."""
        rows = []
        for name, comparison in self.comparisons.items():
            best = self.selected[name]
            zone, least = comparison.zone(best), -float(comparison.means[best])
            for s, strategy in enumerate(self.strategies):
                mean, half_width = float(comparison.means[s]), float(comparison.mean_half_widths[s])
                difference, reach = float(comparison.differences[s, best]), float(comparison.half_widths[s, best])
                # No value is below 0, so no difference is below `least`.
                low = min(difference, max(difference - reach, least)) + 0.0
                rows.append(
                    (name, strategy.name, mean, max(0.0, mean - half_width), mean + half_width, difference, low,
                     difference + reach, s == best, s in self.allowed,
                     s in self.allowed and comparison.equivalent(s, best), zone)
                )  # fmt: skip
        columns = ["objective", "strategy", "value_s", "low_s", "high_s", "difference_s", "difference_low_s",
                   "difference_high_s", "selected", "allowed", "equivalent", "indifference_s"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def answers(self) -> pd.DataFrame:
        """The recommended strategy for each objective, and its largest possible regret: `Choice.answers`."""
        rows = []
        for name, pairs in self.pairs.groupby("objective", sort=False):
            best, allowed = pairs[pairs["selected"]].iloc[0], pairs[pairs["allowed"]]
            regret = max(0.0, float(-allowed["difference_low_s"].min()))
            others = pairs.loc[pairs["equivalent"] & ~pairs["selected"], "strategy"]
            rows.append(
                (name, best["strategy"], best["value_s"], best["low_s"], best["high_s"], regret, best["indifference_s"],
                 regret <= float(best["indifference_s"]), bool(allowed["equivalent"].all()), "; ".join(others))
            )  # fmt: skip
        columns = ["objective", "recommended", "value_s", "low_s", "high_s", "regret_at_most_s", "indifference_s",
                   "certain", "all_equivalent", "equivalent"]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per strategy with the means of all objectives: `Choice.table`."""
        means = pd.DataFrame(self.simulated.mean(axis=0), columns=[f"{name}_s" for name in OBJECTIVES])
        frame = pd.DataFrame(
            {"strategy": [strategy.name for strategy in self.strategies],
             "as_it_is": [strategy.as_it_is for strategy in self.strategies],
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
        """Cost of each limit on the longest stall: `Choice.budgets`."""
        comparison = self.comparisons["cost"]
        unlimited = float(comparison.means[self.selected["cost"]])
        rows = []
        for budget in BUDGETS:
            within = [s for s in self.allowed if self.bounds[s] <= budget]
            if not within:
                rows.append((budget, "", math.nan, math.nan, math.nan))
                continue
            best = comparison.select(within, self.strategies)
            cost = float(comparison.means[best])
            share = cost / unlimited - 1 if unlimited else 0.0
            rows.append((budget, self.strategies[best].name, float(self.bounds[best]), cost, share))
        return pd.DataFrame(rows, columns=["stall_budget_s", "recommended", "stall_bound_s", "cost_s", "share_more"])

    def _knee(self, traded: Floats) -> int:
        """Return the knee of the allowed strategies, or one with fewer changes that is equivalent to it in `FRONT`."""
        front = np.array(self.allowed)[pareto_front(traded[self.allowed])]
        nearest = int(front[knee(traded[front])])
        candidates = [s for s in self.allowed
                      if all(self.comparisons[name].equivalent(s, nearest) for name in FRONT)]  # fmt: skip
        return min(candidates, key=lambda s: (self.strategies[s].changes, s != nearest))

    def _lines(self) -> list[int]:
        """Return, for each strategy, the first one from which it differs by no more than the indifference zone."""
        # The strategy of the scenario comes first.
        order = sorted(range(len(self.strategies)), key=lambda s: self.strategies[s].changes > 0)
        first: dict[int, int] = {}
        for s in order:
            first[s] = next((r for r in dict.fromkeys(first.values()) if self._same_line(s, r)), s)
        return [first[s] for s in range(len(self.strategies))]

    def _same_line(self, a: int, b: int) -> bool:
        """True if both strategies or neither are allowed, and means and bounds of stalls agree within the zones."""
        low, high = sorted((float(self.bounds[a]), float(self.bounds[b])))
        if (a in self.allowed) != (b in self.allowed) or high - low > self.options.zone(low, OBJECTIVES["stall"]):
            return False
        return all(abs(comparison.differences[a, b]) <= min(comparison.zone(a), comparison.zone(b))
                   for comparison in self.comparisons.values())  # fmt: skip


def pareto_front(values: Floats) -> NDArray[np.bool_]:
    """Return True for each row that no other row dominates (at most as large in all columns, and smaller in one)."""
    return np.array([not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values])


def knee(values: Floats) -> int:
    """Return the index of the row nearest to the best value of every column, on logarithmic scales."""
    logs = np.log(np.maximum(values, 1e-12))
    span = np.ptp(logs, axis=0)
    scaled = (logs - logs.min(axis=0)) / np.where(span > np.log(1.02), span, np.inf)
    return int(np.argmin((scaled**2).sum(axis=1)))
