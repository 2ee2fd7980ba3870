# SPDX-License-Identifier: BSD-3-Clause
"""Costs of unmapping an arm64 stage 2, from the two published tables of FEAT_TLBIRANGE (May 2023).

One is for 4 KiB pages, the other for 2 MiB blocks and 128 vCPUs. No source says that their hosts share a cost, so each
table has separate costs, and predictions of one table from the other's costs are a check. The tables' times of
ADJUST_MAPPINGS are not used: in that phase vCPUs fault and access memory, and nothing is unmapped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from simlib.measurements import load
from simlib.model.pagetable import PageTable
from simlib.model.policy import Policy
from simlib.model.unmapping import unmapping
from studies.study import FITTED, HELD_OUT, comparison_rows, student_t

GIB = 2**30
TRAIN_GB = 8
"""Maximum memory of the training rows, GB; the other rows are held out."""


class LevelTable(NamedTuple):
    """Published table: name in data/, level of its leaf entries, last digit of its times (s), and mapping."""

    name: str
    leaf: int
    digit: float
    mapped_by: str


TABLES = {
    "4K pages": LevelTable("arm64-tlbi-range-unmap-4k", 1, 0.01, "4 KiB pages"),
    "2M blocks": LevelTable("arm64-tlbi-range-by-memory", 2, 0.001, "2 MiB blocks"),
}
"""Published tables by mapping."""

COSTS = ("rest_of_the_test", "unmap_entry", "tlb_invalidate")
"""Parameters of each table: a time that does not depend on the memory, and two costs."""

KERNELS = {"base": Policy(teardown_tlb="entry"), "series": Policy(teardown_tlb="range")}
"""Policies of the tables' kernels. The series defers invalidations, which requires FEAT_S2FWB
(stage2_unmap_defer_tlb_flush), so no cache is cleaned."""

_DESIGN = ["constant", "entries", "invalidations"]


@dataclass(frozen=True)
class UnmapFit:
    """Costs of one table by weighted least squares.

    - `mapping`: a key of `TABLES`.
    - `costs`, `covariance`: of `COSTS`, s and s².
    - `dof`: fitted rows minus three.
    - `discrepancy`: relative standard deviation of the rows from the model in addition to rounding.
    """

    mapping: str
    costs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float

    def interval(self, cost: str) -> tuple[float, float, float]:
        """Cost and ends of its interval, s, at least 0."""
        i = COSTS.index(cost)
        value, half = float(self.costs[i]), student_t(self.dof) * float(np.sqrt(self.covariance[i, i]))
        return value, max(0.0, value - half), value + half

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Predict the time of each row, with the interval for a new measurement of equal resolution."""
        design = rows[_DESIGN].to_numpy(dtype=float)
        value = design @ self.costs
        variance = np.einsum("ij,jk,ik->i", design, self.covariance, design)
        half = student_t(self.dof) * np.sqrt(variance + noise(value, TABLES[self.mapping].digit, self.discrepancy))
        return rows.assign(predicted=value, low=np.maximum(0.0, value - half), high=value + half)


def noise(times: NDArray[np.float64], digit: float, discrepancy: float) -> NDArray[np.float64]:
    """Variance of published times: rounding to the last digit, and the discrepancy."""
    return np.asarray(digit**2 / 12 + (discrepancy * times) ** 2)


def published(mapping: str) -> pd.DataFrame:
    """Rows of a table with the entries and invalidations of each unmap.

    Returns: `studies.study.COLUMNS`, ``mapping``, ``kernel``, ``memory_gb``, ``constant``, ``entries``,
    ``invalidations``.
    """
    table = TABLES[mapping]
    frame = load(table.name).frame
    work = [
        unmapping(PageTable(4096), round(gb) * GIB, table.leaf, KERNELS[kernel])
        for gb, kernel in zip(frame["memory_gb"], frame["variant"], strict=True)
    ]
    variant = frame["variant"] + f", {table.mapped_by}, " + frame["memory_gb"].map("{:g} GB".format)
    rows = pd.DataFrame({"variant": variant, "metric": "unmap time", "published": frame["unmap_time_s"]}).assign(
        unit="s", role=np.where(frame["memory_gb"] > TRAIN_GB, HELD_OUT, FITTED), mapping=mapping,
        kernel=frame["variant"], memory_gb=frame["memory_gb"], constant=1, entries=[unmap.entries for unmap in work],
        invalidations=[unmap.invalidations for unmap in work],
    )  # fmt: skip
    return comparison_rows(rows, table.name)


def least_squares(mapping: str, rows: pd.DataFrame) -> UnmapFit:
    """Fit the costs to rows of `published`, whose times have the table's resolution.

    The discrepancy makes the weighted sum of squares equal the degrees of freedom; it is 0 if rounding alone explains
    the deviations.
    """
    design = rows[_DESIGN].to_numpy(dtype=float)
    times, digit = rows["published"].to_numpy(dtype=float), TABLES[mapping].digit
    dof = len(times) - len(COSTS)

    def solve(discrepancy: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        weights = 1 / noise(times, digit, discrepancy)
        inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
        values = inverse @ design.T @ (weights * times)
        return values, inverse, float(weights @ (times - design @ values) ** 2)

    more = solve(0.0)[2] > dof
    discrepancy = float(optimize.brentq(lambda s: solve(s)[2] - dof, 0.0, 1.0)) if more else 0.0
    values, covariance, _ = solve(discrepancy)
    return UnmapFit(mapping, values, covariance, dof, discrepancy)


def fits(most_gb: float = TRAIN_GB) -> dict[str, UnmapFit]:
    """Fit each table to its rows of at most `most_gb`.

    The held-out rows test the fits with `TRAIN_GB`; predictions use the fits to all rows.

    >>> f"{fits()['4K pages'].interval('tlb_invalidate')[0] * 1e6:.2f} µs"
    '1.49 µs'
    """
    tables = {mapping: published(mapping) for mapping in TABLES}
    return {mapping: least_squares(mapping, rows[rows["memory_gb"] <= most_gb]) for mapping, rows in tables.items()}


def cost_table(fits: dict[str, UnmapFit], fitted: str) -> pd.DataFrame:
    """Costs by mapping, µs: ``mapping``, ``rows`` (`fitted`), ``cost``, ``value_us``, ``low_us``, ``high_us``."""
    rows = [(mapping, fitted, cost, *(1e6 * end for end in fit.interval(cost)))
            for (mapping, fit), cost in itertools.product(fits.items(), COSTS)]  # fmt: skip
    return pd.DataFrame(rows, columns=["mapping", "rows", "cost", "value_us", "low_us", "high_us"])


def unmap_numbers(fits: dict[str, UnmapFit]) -> pd.DataFrame:
    """All rows of `published` with their fitted or predicted times."""
    return pd.concat([fit.predict(published(mapping)) for mapping, fit in fits.items()], ignore_index=True)


def cross_predictions(fits: dict[str, UnmapFit]) -> pd.DataFrame:
    """Predict each table's time per additional GB, between its two largest sizes, from the other table's two costs.

    The time that does not depend on the memory cancels in the difference.

    Returns: ``costs_of``, ``applied_to``, ``kernel``, ``published_ms_per_gb``, ``model_ms_per_gb``, ``ratio``
    (published over model), and its interval ``low``, ``high``.
    """
    rows = []
    for mapping, other in (tuple(TABLES), tuple(TABLES)[::-1]):
        fit = fits[mapping]
        for kernel, part in published(other).groupby("kernel", sort=False):
            last = part.sort_values("memory_gb").iloc[-2:]
            growth = last[["memory_gb", "published", *_DESIGN[1:]]].diff().iloc[1]
            work = growth[_DESIGN[1:]].to_numpy(dtype=float)
            model, measured = float(work @ fit.costs[1:]), float(growth["published"])
            times = last["published"].to_numpy(dtype=float)
            variance = noise(times, TABLES[other].digit, fits[other].discrepancy).sum()
            spread = np.sqrt(float(work @ fit.covariance[1:, 1:] @ work) / model**2 + variance / measured**2)
            half, ratio = student_t(fit.dof) * spread * measured / model, measured / model
            per_gb = (1e3 * measured / growth["memory_gb"], 1e3 * model / growth["memory_gb"])
            rows.append((mapping, other, kernel, *per_gb, ratio, ratio - half, ratio + half))
    names = ["costs_of", "applied_to", "kernel", "published_ms_per_gb", "model_ms_per_gb", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=names)
