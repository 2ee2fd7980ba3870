# SPDX-License-Identifier: BSD-3-Clause
"""Ranking and selection: the alternative with the least mean, with a stated probability of being right.

The fully sequential procedure of Kim and Nelson (2001, "A fully sequential procedure for indifference-zone selection in
simulation", ACM TOMACS 11(3), procedure KN with c = 1). Every replication simulates all alternatives that are still in
play on common random numbers, so that their differences vary less than they do; an alternative is dropped as soon as
its sum lies outside of a triangular region around another's. If the best is better than all others by the indifference
zone at least, it is selected with at least the stated probability; within the zone, which one is selected is of
no importance.

That region is wide where differences vary much, even if they are far from zero, as those of costs that go over orders
of magnitude do. Half of the probability of an error is therefore spent on screening the first replications by paired t
tests (Nelson, Swann, Goldsman and Song 2001, "Simple procedures for selecting the best simulated system when the number
of alternatives is large", Operations Research 49(6)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.errors import InputError

Sample = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""Values of one replication: its number, and the alternatives (by index) to simulate in it."""


@dataclass(frozen=True)
class Selection:
    """What was selected, and on what evidence.

    Attributes
    ----------
    best : int
        Index of the alternative.
    samples : ndarray, shape (replications, alternatives)
        Values; NaN where an alternative was no longer in play.
    zone : float
        Indifference zone: differences that do not matter.
    confidence : float
        Probability of a correct selection, if the best is better by the zone.
    exhausted : bool
        Whether the limit of replications came first: then the guarantee does not hold.
    """

    best: int
    samples: NDArray[np.float64]
    zone: float
    confidence: float
    exhausted: bool

    def table(self) -> pd.DataFrame:
        """One row an alternative: replications, mean, and its difference to the selected one.

        ``low`` and ``high`` hold for all differences together with the stated confidence (paired t intervals,
        Bonferroni); ``as_good``: all of the interval lies within the indifference zone.
        """
        rows = []
        others = self.samples.shape[1] - 1
        for index in range(self.samples.shape[1]):
            both = ~np.isnan(self.samples[:, index])
            difference = (self.samples[:, index] - self.samples[:, self.best])[both]
            n = len(difference)
            half = 0.0
            if index != self.best:
                level = 1 - (1 - self.confidence) / (2 * others)
                half = float(stats.t.ppf(level, n - 1)) * float(difference.std(ddof=1)) / np.sqrt(n)
            mean = float(difference.mean())
            rows.append((n, float(self.samples[both, index].mean()), mean, mean - half, mean + half,
                         index == self.best or mean + half <= self.zone))  # fmt: skip
        return pd.DataFrame(rows, columns=["replications", "mean", "difference", "low", "high", "as_good"])


def select_best(
    alternatives: int,
    sample: Sample,
    zone: float,
    *,
    confidence: float = 0.95,
    first: int = 16,
    limit: int = 2000,
    progress: Callable[[str, float], None] | None = None,
) -> Selection:
    """Find the alternative with the least mean.

    Parameters
    ----------
    alternatives : int
        How many there are.
    sample : callable
        See `Sample`; the same replication number must give the same random numbers to every alternative.
    zone : float
        Indifference zone, above 0, in the unit of the values.
    confidence : float
        Probability of a correct selection: between 1 / alternatives and 1.
    first : int
        Replications before anything is dropped; they estimate the variances of the differences.
    limit : int
        Replications at most.
    progress : callable, optional
        Told (what, share done): the share of the alternatives that are out.

    Returns
    -------
    Selection

    Raises
    ------
    InputError
        If an argument breaks its rule, or a value is not finite.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> found = select_best(3, lambda number, alive: np.array([1.0, 0.0, 2.0])[alive] + rng.normal(), zone=0.5)
    >>> found.best, found.exhausted
    (1, False)
    """
    _check(alternatives, zone, confidence, first, limit)
    values = np.full((limit, alternatives), np.nan)
    alive = np.arange(alternatives)
    for number in range(first):
        values[number] = _values(sample, number, alive)
    if alternatives == 1:
        return Selection(0, values[:first], zone, confidence, False)
    error = (1 - confidence) / 2 / (alternatives - 1)  # of screening, and of the rest, for each pair
    variance = (values[:first, :, None] - values[:first, None, :]).var(axis=0, ddof=1)
    margin = np.maximum(0.0, stats.t.ppf(1 - error, first - 1) * np.sqrt(variance / first) - zone)
    means = values[:first].mean(axis=0)
    alive = alive[(means[:, None] <= means[None, :] + margin).all(axis=1)]
    eta = ((2 * error) ** (-2 / (first - 1)) - 1) / 2
    reach = 2 * eta * (first - 1) * variance / zone**2
    used = first
    while True:
        sums = values[:used, alive].sum(axis=0)
        slack = np.maximum(0.0, zone / 2 * (reach[np.ix_(alive, alive)] - used))
        alive = alive[(sums[:, None] <= sums[None, :] + slack).all(axis=1)]
        if progress is not None:
            progress("selecting", (alternatives - len(alive)) / (alternatives - 1))
        if len(alive) == 1 or used == limit:
            break
        values[used, alive] = _values(sample, used, alive)
        used += 1
    best = int(alive[np.argmin(values[:used, alive].mean(axis=0))])
    return Selection(best, values[:used], zone, confidence, len(alive) > 1)


def _values(sample: Sample, number: int, alive: NDArray[np.int64]) -> NDArray[np.float64]:
    """One replication, checked."""
    found = np.asarray(sample(number, alive), dtype=np.float64)
    if found.shape != alive.shape or not np.isfinite(found).all():
        raise InputError(
            f"replication {number}", found.tolist(), f"must give {len(alive)} finite numbers", "look at the simulation"
        )
    return found


def _check(alternatives: int, zone: float, confidence: float, first: int, limit: int) -> None:
    """Refuse arguments for which the procedure is not defined."""
    if alternatives < 1:
        raise InputError("alternatives", alternatives, "must be at least 1")
    if not zone > 0:
        raise InputError("indifference zone", zone, "must be above 0", "say which difference would not matter")
    if not 1 / max(2, alternatives) < confidence < 1:
        raise InputError("confidence", confidence, f"must lie between {1 / max(2, alternatives):.3g} and 1")
    if not 2 <= first <= limit:
        raise InputError("first replications", first, f"must be at least 2 and at most the limit, {limit}")
