# SPDX-License-Identifier: BSD-3-Clause
"""How far measurements deviate from the model, each metric of each table by itself where its rows can tell.

The deviation is that of the logarithm of model over measured. A group of rows (one metric of one table) has its own
where it has enough rows; else the metric has one over all tables; else the pooled one times an assumed ratio. The own
ones are found in rounds: weigh, fit, and divide each group's sum of squares by what the costs left of its rows, n less
the sum of its leverages (Patterson and Thompson 1971, Biometrika 58(3), restricted maximum likelihood for groups that
differ in variance).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.simulator.workloads.metrics import split_name

ASSUMED = {"contentions": 2.0}
"""How much larger than the pooled deviation a metric's is taken to be where its rows cannot tell; 1 if not named. The
published counts come from a kernel with CONFIG_LOCK_STAT, the times need not."""

LEAST_ROWS = 6
"""Rows that a group needs for a deviation of its own."""

LEAST_FREEDOM = 3.0
"""Degrees of freedom that the costs must leave it for that."""

WIDEST = 10.0
"""Most that two groups' deviations may differ: a group that is fitted exactly would get all the weight."""

ROUNDS = 4
"""Most rounds of weighing and fitting."""

SETTLED = 0.05
"""Relative change of a deviation below which another round changes nothing that matters."""

POOLED = "pooled"

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """How much larger than the discrepancy each row's deviation is taken to be.

    - `ratios`, shape (training rows,)
    - `groups`: one row a group: table, metric, rows, freedom (rows less what the costs took of them), deviation, ratio,
      source (``own``, ``metric``: over all tables, or ``pooled``: over all rows, times the assumed ratio).
    """

    ratios: FloatArray
    groups: pd.DataFrame

    @property
    def spread(self) -> dict[str, float]:
        """Ratio of each metric, over its tables the root of the mean square; assumed ones where none was measured."""
        squares = (self.groups["ratio"] ** 2 * self.groups["rows"]).groupby(self.groups["metric"]).sum()
        rows = self.groups.groupby("metric")["rows"].sum()
        found = {str(name): float(np.sqrt(squares[name] / rows[name])) for name in rows.index}
        return ASSUMED | {name: ratio for name, ratio in found.items() if ratio != ASSUMED.get(name, 1.0)}


def labels(train: pd.DataFrame) -> pd.DataFrame:
    """Table and metric of each row, without the iteration."""
    table = train["table"] if "table" in train else pd.Series("", index=train.index)
    return pd.DataFrame({"table": table, "metric": [split_name(m)[0] for m in train["metric"]]}).reset_index(drop=True)


def assumed_ratios(train: pd.DataFrame) -> FloatArray:
    """The ratios before anything was fitted."""
    return labels(train)["metric"].map(lambda metric: ASSUMED.get(metric, 1.0)).to_numpy(dtype=np.float64)


def estimate_noise(train: pd.DataFrame, residuals: FloatArray, jacobian: FloatArray, ratios: FloatArray) -> Noise:
    """The deviations of a fit that weighed its rows by `ratios`; the ratios found are those of the next round.

    They stay as assumed unless two groups can tell theirs. `residuals`, shape (rows,), are the logarithms of model over
    measured, `jacobian`, shape (rows, costs), their derivatives by the logarithms of the costs.
    """
    group, weighted = labels(train), jacobian / ratios[:, None]
    # pinv: directions that the rows do not determine take nothing of them.
    freedom = 1 - np.einsum("ij,ji->i", weighted, np.linalg.pinv(weighted, rcond=1e-6))

    def deviation(rows: Mask, standard: FloatArray) -> float:
        return float(np.sqrt((standard[rows] ** 2).sum() / max(float(freedom[rows].sum()), 1e-9)))

    tables, metrics = group["table"].to_numpy(), group["metric"].to_numpy()
    names = list(dict.fromkeys(zip(tables.tolist(), metrics.tolist(), strict=True)))
    rows = [(tables == table) & (metrics == metric) for table, metric in names]
    tellers = [_tellers(own, metrics == metric, freedom) for own, (_, metric) in zip(rows, names, strict=True)]
    if len({told.tobytes() for told, source in tellers if source != POOLED}) < 2:
        tellers = [(told, POOLED) for told, _ in tellers]
    pooled = deviation(np.ones(len(group), dtype=np.bool_), residuals / ratios)
    deviations = np.array(
        [pooled * ASSUMED.get(metric, 1.0) if source == POOLED else deviation(told, residuals)
         for (told, source), (_, metric) in zip(tellers, names, strict=True)]
    )  # fmt: skip
    deviations = np.maximum(deviations, max(float(deviations.max()) / WIDEST, 1e-9))
    largest = int(np.argmax([own.sum() for own in rows]))
    pooling = tellers[largest][1] == POOLED
    base = deviations[largest] / (ASSUMED.get(names[largest][1], 1.0) if pooling else 1.0)
    groups = pd.DataFrame(names, columns=["table", "metric"]).assign(
        rows=[int(own.sum()) for own in rows], freedom=[float(freedom[own].sum()) for own in rows],
        deviation=deviations, ratio=deviations / base, source=[source for _, source in tellers],
    )  # fmt: skip
    new = np.ones(len(group))
    for own, ratio in zip(rows, groups["ratio"], strict=True):
        new[own] = ratio
    return Noise(new, groups)


def _tellers(own: Mask, metric: Mask, freedom: FloatArray) -> tuple[Mask, str]:
    """Rows that tell a group's deviation: its own, or its metric's in all tables, or none by themselves."""
    for rows, source in ((own, "own"), (metric, "metric")):
        if rows.sum() >= LEAST_ROWS and freedom[rows].sum() >= LEAST_FREEDOM:
            return rows, source
    return own, POOLED
