# SPDX-License-Identifier: BSD-3-Clause
"""Uncertainty of an answer due to costs that have only priors: each cost in turn is set to the ends of its interval.

The deviations are treated as independent and combined as the root of the sum of their squares, upwards and downwards
separately; where all values are positive, they are deviations of the logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.measurements.fits.priors import LEVEL
from simlib.measurements.fits.uncertain import UncertainCosts
from simlib.model.scenario import Scenario

Floats = NDArray[np.float64]

NAMED_SHARE, MAX_NAMED = 0.95, 4
"""Share of the spread that the costs named by `decisive` explain, and the maximum number of these costs."""


def variations(known: UncertainCosts, level: float = LEVEL) -> list[Scenario]:
    """Scenarios with one cost of `UncertainCosts.drawn` at an end of its interval, and the others at their medians.

    >>> known = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "arm64"}}))
    >>> len(variations(known)) == 2 * len(known.drawn)
    True
    """
    central = known.central()
    return [central.with_costs(**{name: end}) for name in known.drawn for end in known.ends(name, level)]


class Spread(NamedTuple):
    """Deviations that each cost with a prior causes in the values of an answer.

    - `names`: the costs.
    - `moved`, shape (2, costs, values): downward and upward deviation; at least 0.
    - `logs`, shape (values,): True if the deviation is in the logarithm, False if it is a difference.
    """

    names: tuple[str, ...]
    moved: Floats
    logs: NDArray[np.bool_]

    @classmethod
    def of(cls, names: Sequence[str], centre: Floats, ends: Floats, others: Floats | None = None) -> Spread:
        """Compare the values at the ends of each cost's interval with those at the medians.

        - `centre`, shape (values,): at the medians; or (2 costs, values): with the random numbers of each end.
        - `ends`, shape (2 costs, values): in the scenarios of `variations`.
        - `others`, shape (n, values): additional samples; a value that is 0 in one of them has no logarithm either.

        >>> Spread.of(["clear_page"], np.array([4.0]), np.array([[2.0], [4.0]])).moved.ravel().round(3).tolist()
        [0.693, 0.0]
        """
        base = np.broadcast_to(centre, ends.shape)
        logs = np.atleast_1d(((ends > 0) & (base > 0)).all(axis=0))
        if others is not None:
            logs = logs & (others > 0).all(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(logs, np.log(ends) - np.log(base), ends - base)
        pairs = moved.reshape(len(names), 2, ends.shape[1])
        down, up = np.maximum(-pairs.min(axis=1, initial=0.0), 0.0), np.maximum(pairs.max(axis=1, initial=0.0), 0.0)
        return cls(tuple(names), np.stack([down, up]), logs)

    def interval(self, value: int, centre: float, reach: float = 0.0) -> tuple[float, float]:
        """Interval of one value; its lower end is at least 0.

        - `reach`: deviation due to other sources, in both directions; of the logarithm if `logs` is True for the value.

        >>> low, high = Spread(("a", "b"), np.array([[[0.3], [0.4]], [[0.0], [0.0]]]), np.array([False])).interval(0, 4)
        >>> round(low, 3), high
        (3.5, 4.0)
        """
        down, up = np.sqrt((self.moved[:, :, value] ** 2).sum(axis=1) + reach**2).tolist()
        if self.logs[value]:
            return float(centre * np.exp(-down)), float(centre * np.exp(up))
        return max(0.0, centre - down), centre + up

    def widened(self, value: int, centre: float, low: float, high: float) -> tuple[float, float]:
        """Widen an interval of one value, which reflects other uncertainties, by the deviations due to the costs.

        >>> spread = Spread(("a",), np.array([[[0.3]], [[0.0]]]), np.array([False]))
        >>> low, high = spread.widened(0, 4.0, 3.6, 4.4)
        >>> round(low, 3), high
        (3.5, 4.4)
        """
        down, up = np.sqrt((self.moved[:, :, value] ** 2).sum(axis=1)).tolist()
        if self.logs[value]:
            down, up = centre * -np.expm1(-down), centre * np.expm1(up)
        return max(0.0, centre - float(np.hypot(centre - low, down))), centre + float(np.hypot(high - centre, up))

    def extremes(self, value: int, centre: float) -> tuple[float, float]:
        """Minimum and maximum of one value over all variations of a single cost, rounded to integers.

        >>> Spread.of(["a", "b"], np.array([2.0]), np.array([[1.0], [2.0], [2.0], [3.0]])).extremes(0, 2.0)
        (1.0, 3.0)
        """
        down, up = (float(self.moved[end, :, value].max(initial=0.0)) for end in (0, 1))
        low, high = (centre * np.exp(-down), centre * np.exp(up)) if self.logs[value] else (centre - down, centre + up)
        return float(np.rint(low)), float(np.rint(high))

    def shares(self) -> pd.Series[float]:
        """Share of each cost in the squared deviations, averaged over the values that change, in descending order.

        >>> Spread(("a", "b"), np.array([[[3.0], [4.0]], [[3.0], [4.0]]]), np.array([False])).shares().to_dict()
        {'b': 0.64, 'a': 0.36}
        """
        squares = (self.moved**2).sum(axis=0)
        squares = squares[:, squares.sum(axis=0) > 0]
        parts = (squares / squares.sum(axis=0)).mean(axis=1) if squares.size else np.zeros(len(self.names))
        return pd.Series(parts, index=list(self.names), dtype=float).sort_values(ascending=False)


def decisive(shares: pd.Series[float]) -> str:
    """Name the costs that cause nearly all of the spread; empty if nothing changes.

    >>> decisive(pd.Series({"clear_page": 0.93, "reacquire": 0.05, "kick": 0.02}))
    'of the spread from priors, clear_page causes 93 %, reacquire 5 %'
    """
    largest = shares[(shares.cumsum().shift(fill_value=0.0) < NAMED_SHARE) & (shares > 0)].head(MAX_NAMED)
    if largest.empty:
        return ""
    (first, percent), *others = ((name, f"{share * 100:.0f} %") for name, share in largest.items())
    listed = "".join(f", {name} {share}" for name, share in others)
    return f"of the spread from priors, {first} causes {percent}{listed}"
