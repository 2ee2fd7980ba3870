# SPDX-License-Identifier: BSD-3-Clause
"""Which cost, if it were known, would change the answer: the value of information.

Who chooses now takes the strategy with the least mean over all that the costs may be. Who knew one cost would take the
one with the least mean given that cost: what that saves on average is the expected value of partial perfect
information. Which one that is, quadratic regressions say, of each replication's difference to the chosen strategy on
the cost's logarithm (Strong, Oakley and Brennan 2014, "Estimating multiparameter partial expected value of perfect
information from a probabilistic sensitivity analysis sample", Medical Decision Making 34(3)). What it saves is counted
in the replications themselves, and not read off the curves: a parabola through values that are 0, but for a few, falls
below 0, where nothing can be. Regression on chance alone saves something too: what it saves with the cost's values
shuffled is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SHUFFLES = 40
"""How often values are shuffled."""

ROUNDING = 1e-12
"""A saving of this share of the largest difference, or less, is none: it comes from the arithmetic, and from whose."""


def value_of_information(
    logs: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64], chosen: int, seed: int = 1
) -> pd.DataFrame:
    """What it would save to know each cost.

    Returns: One row a cost, most valuable first: cost, saving (in the unit of the values, on average over what the cost
    may be; no more than what is best now costs on average), of_chance (what 95 % of the shuffles stay below), matters
    (more than that), switches_to (the strategy by which most of it is saved, by its index; -1: none).

    - `logs`, shape (replications,): logarithms of the costs.
    - `values`, shape (replications, strategies): what is to be small.
    - `chosen`: the strategy that is taken now.
    - `seed`: of the shuffles.
    """
    random = np.random.default_rng([seed, 9])
    differences = values - values[:, [chosen]]
    none = ROUNDING * float(np.abs(differences).max())
    rows = []
    for name, log in logs.items():
        saving, other = _saving(log, differences, chosen)
        chance = [_saving(random.permutation(log), differences, chosen)[0] for _ in range(SHUFFLES)]
        gain = saving - max(0.0, float(np.mean(chance)))
        most = max(0.0, float(np.quantile(chance, 0.95, method="higher")))  # chance exceeds it once in twenty at most
        rows.append((name, gain if gain > none else 0.0, most, saving > most + none, other))
    frame = pd.DataFrame(rows, columns=["cost", "saving", "of_chance", "matters", "switches_to"])
    return frame.sort_values("saving", ascending=False, kind="stable").reset_index(drop=True)


def _saving(log: NDArray[np.float64], differences: NDArray[np.float64], chosen: int) -> tuple[float, int]:
    """What knowing the cost saves beyond knowing none, and by which strategy instead of the chosen most of it."""
    x = (log - log.mean()) / max(1e-12, log.std())
    design = np.column_stack([np.ones_like(x), x, x * x])
    fitted = design @ np.linalg.lstsq(design, differences, rcond=None)[0]
    taken = np.argmin(fitted, axis=1)
    best = int(np.argmin(differences.mean(axis=0)))
    saved = differences[:, best] - differences[np.arange(len(x)), taken]
    by = np.bincount(taken, weights=saved, minlength=differences.shape[1])
    by[best] = by[chosen] = 0
    return float(saved.mean()), int(np.argmax(by)) if by.max() > 0 else -1
