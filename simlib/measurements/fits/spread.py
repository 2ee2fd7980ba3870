# SPDX-License-Identifier: BSD-3-Clause
"""How far an answer may lie off because some costs are drawn from priors: each at the ends of its interval, alone.

The deviations of all costs are taken as independent and join as the root of the sum of their squares, up and down
apart, in the logarithms where the answer has any.
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

TOLD, MOST = 0.95, 4
"""Part of the spread whose costs are named, and how many at most."""


def variations(known: UncertainCosts, level: float = LEVEL) -> list[Scenario]:
    """The scenario with each of `UncertainCosts.drawn` at the lower, and at the upper end, all others at their best.

    >>> known = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "arm64"}}))
    >>> len(variations(known)) == 2 * len(known.drawn)
    True
    """
    central = known.central()
    return [central.with_costs(**{name: end}) for name in known.drawn for end in known.ends(name, level)]


class Spread(NamedTuple):
    """What each drawn cost moves.

    - `names`: the costs.
    - `moved`, shape (2, costs, values): how far down, and how far up; at least 0.
    - `logs`, shape (values,): whether that is in the logarithm; else it is a difference.
    """

    names: tuple[str, ...]
    moved: Floats
    logs: NDArray[np.bool_]

    @classmethod
    def of(cls, names: Sequence[str], centre: Floats, ends: Floats, others: Floats | None = None) -> Spread:
        """What moves from the best costs to the ends.

        - `centre`, shape (values,): at the best costs; or (2 costs, values): of the same draws as each end.
        - `ends`, shape (2 costs, values): at `variations`.
        - `others`, shape (n, values): what else there is of them; one that is 0 leaves its value no logarithm either.

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
        """Where one of the values lies; not below 0.

        - `reach`: how far other things move it up and down: a share where the value has a logarithm, else a difference.

        >>> low, high = Spread(("a", "b"), np.array([[[0.3], [0.4]], [[0.0], [0.0]]]), np.array([False])).interval(0, 4)
        >>> round(low, 3), high
        (3.5, 4.0)
        """
        down, up = np.sqrt((self.moved[:, :, value] ** 2).sum(axis=1) + reach**2).tolist()
        if self.logs[value]:
            return float(centre * np.exp(-down)), float(centre * np.exp(up))
        return max(0.0, centre - down), centre + up

    def widened(self, value: int, centre: float, low: float, high: float) -> tuple[float, float]:
        """An interval of one of the values that other things leave open, with what the costs leave open, too.

        >>> one = Spread(("a",), np.array([[[0.3]], [[0.0]]]), np.array([False]))
        >>> low, high = one.widened(0, 4.0, 3.6, 4.4)
        >>> round(low, 3), high
        (3.5, 4.4)
        """
        down, up = np.sqrt((self.moved[:, :, value] ** 2).sum(axis=1)).tolist()
        if self.logs[value]:
            down, up = centre * -np.expm1(-down), centre * np.expm1(up)
        return max(0.0, centre - float(np.hypot(centre - low, down))), centre + float(np.hypot(high - centre, up))

    def extremes(self, value: int, centre: float) -> tuple[float, float]:
        """The least and the most that one of the values was, wherever a cost was alone.

        >>> Spread.of(["a", "b"], np.array([2.0]), np.array([[1.0], [2.0], [2.0], [3.0]])).extremes(0, 2.0)
        (1.0, 3.0)
        """
        down, up = (float(self.moved[end, :, value].max(initial=0.0)) for end in (0, 1))
        low, high = (centre * np.exp(-down), centre * np.exp(up)) if self.logs[value] else (centre - down, centre + up)
        return float(np.rint(low)), float(np.rint(high))

    def shares(self) -> pd.Series[float]:
        """Which part of the squared deviations each cost has, on average over the values that move; the largest first.

        >>> Spread(("a", "b"), np.array([[[3.0], [4.0]], [[3.0], [4.0]]]), np.array([False])).shares().to_dict()
        {'b': 0.64, 'a': 0.36}
        """
        squares = (self.moved**2).sum(axis=0)
        squares = squares[:, squares.sum(axis=0) > 0]
        parts = (squares / squares.sum(axis=0)).mean(axis=1) if squares.size else np.zeros(len(self.names))
        return pd.Series(parts, index=list(self.names), dtype=float).sort_values(ascending=False)


def decisive(shares: pd.Series[float]) -> str:
    """Which costs make nearly all of the spread, in words; empty if nothing moves.

    >>> decisive(pd.Series({"clear_page": 0.93, "reacquire": 0.05, "kick": 0.02}))
    'of the spread from priors, clear_page makes 93 %, reacquire 5 %'
    """
    told = shares[(shares.cumsum().shift(fill_value=0.0) < TOLD) & (shares > 0)].head(MOST)
    if told.empty:
        return ""
    (first, most), *others = ((name, f"{share * 100:.0f} %") for name, share in told.items())
    rest = "".join(f", {name} {share}" for name, share in others)
    return f"of the spread from priors, {first} makes {most}{rest}"
