# SPDX-License-Identifier: BSD-3-Clause
"""Statistical tests of the 2013 series' two comparisons: twelve runs of kernbench, and two means of ten GETs.

Times are compared as logarithms, so that differences are relative. Cells have unequal variances: each comparison is a
contrast of cell means with the degrees of freedom of Welch (1947) and Satterthwaite (1946). For one pair of cells it is
Welch's t test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import load
from studies.study import NOT_PREDICTED, comparison_rows

RUNS, GETS = "x86-kernbench-lockless", "x86-get-dirty-log-lockless"
"""Published tables of kernbench and of GET."""

POWER, ALPHA = 0.80, 0.05
"""Power of a test to detect a regression, and its probability of a false alarm."""

CONTRASTS = {"EPT on": {"Y": 1.0}, "EPT off": {"N": 1.0}, "both, averaged": {"Y": 0.5, "N": 0.5}}
"""Comparisons of after with before: weights of the differences with EPT (``Y``) and without (``N``)."""


@dataclass(frozen=True)
class Contrast:
    """Difference of logarithms of times, after minus before, with standard error and Satterthwaite's `dof`."""

    value: float
    error: float
    dof: float

    def upper_bound(self, level: float) -> float:
        """One-sided upper confidence bound of the difference, as a relative change."""
        return float(np.expm1(self.value + stats.t.ppf(level, self.dof) * self.error))

    def detectable(self, sides: int = 1) -> float:
        """Smallest slowdown that a one- or two-sided test detects with `POWER`, as a relative change.

        It follows from the noncentral t distribution, with the standard error taken as the true one.
        """
        critical = stats.t.ppf(1 - ALPHA / sides, self.dof)
        distance = optimize.brentq(lambda shift: float(stats.nct.sf(critical, self.dof, shift)) - POWER, 0.0, 50.0)
        return float(np.expm1(distance * self.error))


def runs(skip: int = 0) -> pd.DataFrame:
    """Twelve runs: ``variant``, ``ept``, ``run``, ``real_time_s``; `skip`: number of each cell's first runs to omit."""
    frame = load(RUNS).frame
    return frame[frame["run"] > skip].reset_index(drop=True)


def cells() -> pd.DataFrame:
    """Summary by cell: ``ept``, ``variant``, ``runs``, ``mean_s``, ``sd_s``, ``sd_percent``.

    >>> cells()["mean_s"].round(2).tolist()
    [84.0, 83.2, 139.1, 139.19]
    """
    times = runs().groupby(["ept", "variant"], sort=False)["real_time_s"]
    frame = times.agg(runs="count", mean_s="mean", sd_s="std").sort_index(ascending=False).reset_index()
    return frame.assign(sd_percent=100 * frame["sd_s"] / frame["mean_s"])


def contrast(frame: pd.DataFrame, weights: Mapping[str, float]) -> Contrast:
    """Contrast of after minus before, weighted by value of ``ept``."""
    value, parts = 0.0, []
    for (ept, weight), (variant, sign) in itertools.product(weights.items(), (("after", 1.0), ("before", -1.0))):
        rows = frame[(frame["ept"] == ept) & (frame["variant"] == variant)]
        logs = np.log(rows["real_time_s"].to_numpy(dtype=float))
        value += sign * weight * float(logs.mean())
        parts.append((weight**2 * float(logs.var(ddof=1)) / len(logs), len(logs) - 1))
    total = sum(part for part, _ in parts)
    return Contrast(value, float(np.sqrt(total)), total**2 / sum(part**2 / dof for part, dof in parts))


def comparison(skip: int = 0) -> pd.DataFrame:
    """Test each comparison of `CONTRASTS` for a regression.

    Returns: ``comparison``; ``change_percent`` with the two-sided 90 % interval ``low_percent``, ``high_percent``,
    whose upper end is the largest slowdown that a one-sided test at 5 % does not exclude; ``p``, ``p_holm`` (corrected
    for three comparisons); ``dof``; ``shown_percent``: the smallest slowdown detectable with 80 % power, with its range
    ``shown_low_percent``, ``shown_high_percent``; ``shown_two_sided_percent``.
    """
    rows = []
    for name, weights in CONTRASTS.items():
        result = contrast(runs(skip), weights)
        chi_squared = stats.chi2.ppf([0.5 + LEVEL / 2, 0.5 - LEVEL / 2], result.dof)
        errors = result.error * np.sqrt(result.dof / chi_squared)  # ends of the interval of the standard error
        low, high = (Contrast(0.0, float(error), result.dof).detectable() for error in errors)
        rows.append(
            {"comparison": name, "change_percent": 100 * np.expm1(result.value),
             "low_percent": 100 * result.upper_bound(ALPHA), "high_percent": 100 * result.upper_bound(1 - ALPHA),
             "p": 2 * float(stats.t.sf(abs(result.value / result.error), result.dof)), "p_holm": np.nan,
             "dof": result.dof, "shown_percent": 100 * result.detectable(), "shown_low_percent": 100 * low,
             "shown_high_percent": 100 * high, "shown_two_sided_percent": 100 * result.detectable(sides=2)}
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
    """Runs of each kernel that a one-sided test needs to detect a slowdown, with the scatter of the cells of `ept`."""
    error = contrast(runs(), {ept: 1.0}).error * np.sqrt(3)  # of a single run before and a single run after
    number = 2
    while Contrast(0.0, float(error / np.sqrt(number)), 2 * (number - 1)).detectable() * 100 > percent:
        number += 1
    return number


@dataclass(frozen=True)
class Means:
    """Two means, in s, of the times of `runs` runs each; the source does not state their spread."""

    before: float
    after: float
    runs: int

    @property
    def saved(self) -> float:
        """Difference, s."""
        return self.before - self.after

    @property
    def ratio(self) -> float:
        """Ratio of after to before."""
        return self.after / self.before

    @property
    def insignificant_sd(self) -> float:
        """Smallest standard deviation of a run, s, if equal before and after, for a two-sided p of at least 5 %."""
        return self.saved / self._quantile / float(np.sqrt(2 / self.runs))

    @property
    def insignificant_variation(self) -> float:
        """Smallest common coefficient of variation at which the two-sided p is at least 5 %."""
        return self.saved / self._quantile / float(np.sqrt((self.before**2 + self.after**2) / self.runs))

    @property
    def outlier(self) -> float:
        """Time, s, of one run before the series that explains the difference if all others took as long as after it."""
        return self.runs * self.before - (self.runs - 1) * self.after

    @property
    def _quantile(self) -> float:
        return float(stats.t.ppf(1 - ALPHA / 2, 2 * (self.runs - 1)))


def get_means() -> Means:
    """Return the 2013 series' means of GET."""
    frame = load(GETS).frame.set_index("variant")
    times = frame["get_dirty_log_time_ns"] * 1e-9
    return Means(float(times["before"]), float(times["after"]), int(frame["runs"].iloc[0]))


def published_numbers() -> pd.DataFrame:
    """Published numbers of kernbench and of GET; the source lacks what a prediction needs."""
    times, means = runs(), get_means()
    ept = times["ept"].map({"Y": "on", "N": "off"})
    variant = times["variant"] + ", EPT " + ept + ", run " + times["run"].astype(str)
    kernbench = pd.DataFrame({"variant": variant, "metric": "kernbench", "published": times["real_time_s"]})
    gets = pd.DataFrame({"variant": ["before", "after"], "published": [means.before, means.after]})
    parts = [kernbench.assign(table=RUNS), gets.assign(metric="mean GET", table=GETS)]
    rows = pd.concat(parts, ignore_index=True).assign(vcpus=12, unit="s", role=NOT_PREDICTED)
    return comparison_rows(rows, list(rows["table"]))
