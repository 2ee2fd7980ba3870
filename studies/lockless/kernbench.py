# SPDX-License-Identifier: BSD-3-Clause
"""The 2013 series' two comparisons as statistics: twelve runs of kernbench, and two means of ten GETs.

Times are compared as logarithms, so that a difference is a relative one. Cells have variances of their own: every
comparison is a contrast of cell means with the degrees of freedom of Welch (1947) and Satterthwaite (1946); for one
pair of cells that is Welch's t test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from simlib.analysis.predict import LEVEL
from simlib.measurements import load
from studies.study import NONE, numbers

POWER, ALPHA = 0.80, 0.05
"""What a test is to notice a regression with, and how often it may cry wolf."""

CONTRASTS: dict[str, dict[str, float]] = {
    "EPT on": {"Y": 1.0},
    "EPT off": {"N": 1.0},
    "both, averaged": {"Y": 0.5, "N": 0.5},
}
"""What is compared, after with before: weights of the differences with EPT and without."""


@dataclass(frozen=True)
class Contrast:
    """A difference of logarithms of times, after less before, its standard error and Satterthwaite's degrees."""

    value: float
    error: float
    dof: float

    @property
    def p_value(self) -> float:
        """Two-sided, of no difference."""
        return 2 * float(stats.t.sf(abs(self.value / self.error), self.dof))

    def limit(self, level: float) -> float:
        """What the true difference is below, one-sided; a relative change."""
        return float(np.expm1(self.value + stats.t.ppf(level, self.dof) * self.error))

    def shown(self, sides: int = 1) -> float:
        """The smallest slowdown that a test of so many sides notices with `POWER`, as a relative change.

        By the noncentral t distribution, the standard error taken for the true one.
        """
        critical = stats.t.ppf(1 - ALPHA / sides, self.dof)
        distance = optimize.brentq(lambda far: float(stats.nct.sf(critical, self.dof, far)) - POWER, 0.0, 50.0)
        return float(np.expm1(distance * self.error))

    def shown_range(self) -> tuple[float, float]:
        """The same, with the standard error at the ends of its own interval (chi-squared)."""
        ends = stats.chi2.ppf([0.5 + LEVEL / 2, 0.5 - LEVEL / 2], self.dof)
        errors = self.error * np.sqrt(self.dof / ends)
        low, high = (Contrast(0.0, float(error), self.dof).shown() for error in errors)
        return low, high


def runs(skip: int = 0) -> pd.DataFrame:
    """The twelve runs: ``variant``, ``ept``, ``run``, ``real_time_s``; `skip`: without the first ones of each cell."""
    frame = load("x86-kernbench-lockless").frame
    return frame[frame["run"] > skip].reset_index(drop=True)


def cells() -> pd.DataFrame:
    """A row a cell: ``ept``, ``variant``, ``runs``, ``mean_s``, ``sd_s``, ``sd_percent``.

    >>> cells()["mean_s"].round(2).tolist()
    [84.0, 83.2, 139.1, 139.19]
    """
    times = runs().groupby(["ept", "variant"], sort=False)["real_time_s"]
    frame = times.agg(runs="count", mean_s="mean", sd_s="std").sort_index(ascending=False).reset_index()
    return frame.assign(sd_percent=100 * frame["sd_s"] / frame["mean_s"])


def contrast(frame: pd.DataFrame, weights: Mapping[str, float]) -> Contrast:
    """After less before, with so much weight on each value of ``ept``."""
    value, parts = 0.0, []
    for (ept, weight), (variant, sign) in itertools.product(weights.items(), (("after", 1.0), ("before", -1.0))):
        rows = frame[(frame["ept"] == ept) & (frame["variant"] == variant)]
        logs = np.log(rows["real_time_s"].to_numpy(dtype=float))
        value += sign * weight * float(logs.mean())
        parts.append((weight**2 * float(logs.var(ddof=1)) / len(logs), len(logs) - 1))
    total = sum(part for part, _ in parts)
    return Contrast(value, float(np.sqrt(total)), total**2 / sum(part**2 / dof for part, dof in parts))


def comparison(skip: int = 0) -> pd.DataFrame:
    """What the runs say of a regression, a row a comparison.

    Returns: ``comparison``; ``change_percent`` with the two-sided 90 % interval ``low_percent``, ``high_percent``,
    whose upper end is the largest slowdown that a one-sided test at 5 % leaves open; ``p``, ``p_holm`` (of the three);
    ``dof``; ``shown_percent``: the smallest slowdown that they would have shown with 80 % power, with its range
    ``shown_low_percent``, ``shown_high_percent``; ``shown_two_sided_percent``.
    """
    rows = []
    for name, weights in CONTRASTS.items():
        each = contrast(runs(skip), weights)
        low, high = each.shown_range()
        rows.append(
            {"comparison": name, "change_percent": 100 * np.expm1(each.value),
             "low_percent": 100 * each.limit(ALPHA), "high_percent": 100 * each.limit(1 - ALPHA),
             "p": each.p_value, "p_holm": np.nan, "dof": each.dof, "shown_percent": 100 * each.shown(),
             "shown_low_percent": 100 * low, "shown_high_percent": 100 * high,
             "shown_two_sided_percent": 100 * each.shown(sides=2)}
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.assign(p_holm=holm(frame["p"]))


def holm(values: pd.Series) -> pd.Series:
    """Holm's (1979) adjusted p-values.

    >>> holm(pd.Series([0.01, 0.04, 0.03])).round(6).tolist()
    [0.03, 0.06, 0.06]
    """
    return (values.sort_values() * np.arange(len(values), 0, -1)).cummax().clip(upper=1.0)[values.index]


def runs_needed(percent: float, ept: str) -> int:
    """Runs of each kernel that show a slowdown of so much, one-sided, if they scatter as those of this cell did."""
    error = contrast(runs(), {ept: 1.0}).error * np.sqrt(3)  # of one run before and one after
    many = (Contrast(0.0, float(error / np.sqrt(number)), 2 * (number - 1)) for number in itertools.count(2))
    return next(number for number, each in enumerate(many, 2) if each.shown() * 100 <= percent)


@dataclass(frozen=True)
class Means:
    """Two means, s, of as many runs each, whose spread nobody states."""

    before: float
    after: float
    runs: int

    @property
    def saved(self) -> float:
        """The difference, seconds."""
        return self.before - self.after

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before

    @property
    def insignificant_sd(self) -> float:
        """Standard deviation of a run, s, the same before and after, from which on p is 5 % or more, two-sided."""
        return self.saved / self._quantile / float(np.sqrt(2 / self.runs))

    @property
    def insignificant_variation(self) -> float:
        """The same as a coefficient of variation that both have."""
        return self.saved / self._quantile / float(np.sqrt((self.before**2 + self.after**2) / self.runs))

    @property
    def outlier(self) -> float:
        """One of the runs before that would be all of the difference, if the others were as the runs after, s."""
        return self.runs * self.before - (self.runs - 1) * self.after

    @property
    def _quantile(self) -> float:
        return float(stats.t.ppf(1 - ALPHA / 2, 2 * (self.runs - 1)))


def get_means() -> Means:
    """The 2013 series' means of GET."""
    frame = load("x86-get-dirty-log-lockless").frame.set_index("variant")
    times = frame["get_dirty_log_time_ns"] * 1e-9
    return Means(float(times["before"]), float(times["after"]), int(frame["runs"].iloc[0]))


def published_numbers() -> pd.DataFrame:
    """The twelve runs and the two means: the source says too little to predict them (`COLUMNS`)."""
    every, means = runs(), get_means()
    ept = every["ept"].map({"Y": "on", "N": "off"})
    variant = every["variant"] + ", EPT " + ept + ", run " + every["run"].astype(str)
    parts: dict[str, dict[str, Any]] = {
        "x86-kernbench-lockless": {"variant": variant, "metric": "kernbench", "published": every["real_time_s"]},
        "x86-get-dirty-log-lockless": {"variant": ["before", "after"], "metric": "mean GET",
                                       "published": [means.before, means.after]},
    }  # fmt: skip
    rows = [numbers(pd.DataFrame(part).assign(vcpus=12, unit="s", role=NONE), table) for table, part in parts.items()]
    return pd.concat(rows, ignore_index=True)
