# SPDX-License-Identifier: BSD-3-Clause
"""Deviation of measurements from the model, estimated separately for each metric of each table with enough rows.

The deviation is the standard deviation of log(model / measured). A group (the rows of one metric in one table) has a
separate deviation if it has enough rows. A smaller group has the deviation of its metric over all tables or, if the
metric has too few rows as well, the pooled deviation times an assumed ratio. The deviations are estimated iteratively:
weight, fit, and divide each group's sum of squares by its degrees of freedom, n minus the sum of its leverages
(restricted maximum likelihood: Patterson and Thompson 1971, Biometrika 58(3)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.analysis.calibrate.problem import FloatArray
from simlib.simulator.workloads.metrics import split_name

ASSUMED = {"contentions": 2.0}
"""Assumed ratio of a metric's deviation to the pooled one, if the metric has too few rows; 1 for other metrics. The
published counts come from a kernel with CONFIG_LOCK_STAT; the times may come from a kernel without it."""

MIN_ROWS, MIN_FREEDOM = 6, 3.0
"""Minimum numbers of rows and of degrees of freedom of a group with a separate deviation."""

MAX_RATIO = 10.0
"""Largest ratio of two groups' deviations; without it, a group that is fitted exactly would get all the weight."""

POOLED = "pooled"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """Ratio of each row's deviation to the discrepancy.

    - `ratios`, shape (training rows,)
    - `groups`: one row per group: table, metric, rows, freedom (rows minus the sum of leverages), deviation, ratio,
      source (``own``: the group, ``metric``: the metric in all tables, ``pooled``: all rows, times the assumed ratio).
    """

    ratios: FloatArray
    groups: pd.DataFrame

    @property
    def spread(self) -> dict[str, float]:
        """Ratio of each metric: the root mean square over its tables or, if there are no rows, the assumed ratio."""
        squares = (self.groups["ratio"] ** 2 * self.groups["rows"]).groupby(self.groups["metric"]).sum()
        rows = self.groups.groupby("metric")["rows"].sum()
        ratios = {str(name): float(np.sqrt(squares[name] / rows[name])) for name in rows.index}
        return ASSUMED | {name: ratio for name, ratio in ratios.items() if ratio != ASSUMED.get(name, 1.0)}


def row_groups(train: pd.DataFrame) -> pd.DataFrame:
    """Table and metric (without the iteration) of each row."""
    table = train["table"] if "table" in train else pd.Series("", index=train.index)
    return pd.DataFrame({"table": table, "metric": [split_name(m)[0] for m in train["metric"]]}).reset_index(drop=True)


def assumed_ratios(train: pd.DataFrame) -> FloatArray:
    """Ratios before the first fit."""
    return row_groups(train)["metric"].map(lambda metric: ASSUMED.get(metric, 1.0)).to_numpy(dtype=np.float64)


def estimate_noise(train: pd.DataFrame, residuals: FloatArray, jacobian: FloatArray, ratios: FloatArray) -> Noise:
    """Estimate the deviations after a fit whose rows were weighted by `ratios`, and the ratios for the next fit.

    The assumed ratios remain unless at least two deviations can be estimated separately. `residuals`, shape (rows,),
    are log(model / measured), and `jacobian`, shape (rows, costs), their derivatives by the logarithms of the costs.
    """
    group, weighted = row_groups(train), jacobian / ratios[:, None]
    # With pinv, directions that the rows do not constrain use no degrees of freedom.
    freedom = 1 - np.einsum("ij,ji->i", weighted, np.linalg.pinv(weighted, rcond=1e-6))

    def deviation(rows: Mask, standard: FloatArray) -> float:
        return float(np.sqrt((standard[rows] ** 2).sum() / max(float(freedom[rows].sum()), 1e-9)))

    tables, metrics = group["table"].to_numpy(), group["metric"].to_numpy()
    names = list(dict.fromkeys(zip(tables.tolist(), metrics.tolist(), strict=True)))
    rows = [(tables == table) & (metrics == metric) for table, metric in names]
    sources = [_deviation_rows(mask, metrics == metric, freedom) for mask, (_, metric) in zip(rows, names, strict=True)]
    if len({mask.tobytes() for mask, source in sources if source != POOLED}) < 2:
        sources = [(mask, POOLED) for mask, _ in sources]
    pooled = deviation(np.ones(len(group), dtype=np.bool_), residuals / ratios)
    deviations = np.array(
        [pooled * ASSUMED.get(metric, 1.0) if source == POOLED else deviation(mask, residuals)
         for (mask, source), (_, metric) in zip(sources, names, strict=True)]
    )  # fmt: skip
    deviations = np.maximum(deviations, max(float(deviations.max()) / MAX_RATIO, 1e-9))
    largest = int(np.argmax([mask.sum() for mask in rows]))
    pooling = sources[largest][1] == POOLED
    base = deviations[largest] / (ASSUMED.get(names[largest][1], 1.0) if pooling else 1.0)
    groups = pd.DataFrame(names, columns=["table", "metric"]).assign(
        rows=[int(mask.sum()) for mask in rows], freedom=[float(freedom[mask].sum()) for mask in rows],
        deviation=deviations, ratio=deviations / base, source=[source for _, source in sources],
    )  # fmt: skip
    return Noise(np.select(rows, groups["ratio"].tolist()), groups)


def _deviation_rows(group: Mask, metric: Mask, freedom: FloatArray) -> tuple[Mask, str]:
    """Return the rows that give a group's deviation, and their source; for `POOLED`, the rows are the group's."""
    for rows, source in ((group, "own"), (metric, "metric")):
        if rows.sum() >= MIN_ROWS and freedom[rows].sum() >= MIN_FREEDOM:
            return rows, source
    return group, POOLED
