# SPDX-License-Identifier: BSD-3-Clause
"""Costs whose measurement could change the choice: the value of information.

Without more information, the best strategy has the lowest mean over the distribution of all costs. If one cost were
known, the best strategy would be the one with the lowest conditional mean given that cost. The average saving is the
expected value of partial perfect information. The conditional means are estimated by quadratic regressions of each
replication's difference from the chosen strategy on the logarithm of the cost (Strong, Oakley and Brennan 2014,
"Estimating multiparameter partial expected value of perfect information from a probabilistic sensitivity analysis
sample", Medical Decision Making 34(3)). The saving is computed from the replications and not from the fitted curves: a
parabola through values that are mostly 0 falls below 0, although no difference does. Regression on pure noise also
yields a positive saving; therefore, the mean saving with shuffled values of the cost is subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SHUFFLES = 40
"""Number of random permutations."""


def value_of_information(
    logs: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64], chosen: int, seed: int = 1
) -> pd.DataFrame:
    """Estimate, for each cost, the average saving if this cost were known.

    Returns: One row per cost, most valuable first: cost, saving (in the unit of the values, averaged over the cost's
    distribution; at most the mean of the chosen strategy), of_chance (the 95 % quantile of the savings with shuffled
    values), matters (True if saving exceeds of_chance), switches_to (index of the strategy that contributes most to the
    saving; -1: none).

    - `logs`, each of shape (replications,): logarithms of the costs, by name.
    - `values`, shape (replications, strategies): objective to minimise.
    - `chosen`: index of the strategy chosen without more information.
    - `seed`: random seed of the permutations.
    """
    random = np.random.default_rng([seed, 9])
    differences = values - values[:, [chosen]]
    rounding = 1e-12 * float(np.abs(differences).max())  # smaller savings count as 0
    rows = []
    for name, log in logs.items():
        saving, alternative = _saving(log, differences, chosen)
        by_chance = [_saving(random.permutation(log), differences, chosen)[0] for _ in range(SHUFFLES)]
        gain = saving - max(0.0, float(np.mean(by_chance)))
        limit = max(0.0, float(np.quantile(by_chance, 0.95, method="higher")))  # at most 5 % of the shuffles exceed it
        rows.append((name, gain if gain > rounding else 0.0, limit, saving > limit + rounding, alternative))
    frame = pd.DataFrame(rows, columns=["cost", "saving", "of_chance", "matters", "switches_to"])
    return frame.sort_values("saving", ascending=False, kind="stable").reset_index(drop=True)


def _saving(log: NDArray[np.float64], differences: NDArray[np.float64], chosen: int) -> tuple[float, int]:
    """Return the mean saving if the cost were known, and the alternative that contributes most to it (-1: none)."""
    x = (log - log.mean()) / max(1e-12, log.std())
    design = np.column_stack([np.ones_like(x), x, x * x])
    fitted = design @ np.linalg.lstsq(design, differences, rcond=None)[0]
    selected = np.argmin(fitted, axis=1)
    best = int(np.argmin(differences.mean(axis=0)))
    savings = differences[:, best] - differences[np.arange(len(x)), selected]
    by_strategy = np.bincount(selected, weights=savings, minlength=differences.shape[1])
    by_strategy[best] = by_strategy[chosen] = 0
    return float(savings.mean()), int(np.argmax(by_strategy)) if by_strategy.max() > 0 else -1
