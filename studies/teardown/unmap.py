# SPDX-License-Identifier: BSD-3-Clause
"""What unmapping an arm64 stage 2 costs, from the two published tables of FEAT_TLBIRANGE (May 2023).

A host that maps pages of 4 KiB, and one with blocks of 2 MiB and 128 vCPUs. Nothing that the sources say lets them
share a cost, so each has its own, and what one says of the other is shown as a check. The tables' times of
ADJUST_MAPPINGS are left out: there vCPUs fault and touch memory, and unmapping is no part of it.
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
from studies.study import FITTED, HELD_OUT, numbers, student

GIB = 2**30
TRAIN_GB = 8
"""Rows of at most so much memory are fitted; the others are held out."""


class LevelTable(NamedTuple):
    """A published table: its name in data/, the level of its leaf entries, and the last digit of its times, s."""

    name: str
    leaf: int
    digit: float
    mapped_by: str


TABLES = {
    "4K pages": LevelTable("arm64-tlbi-range-unmap-4k", 1, 0.01, "4 KiB pages"),
    "2M blocks": LevelTable("arm64-tlbi-range-by-memory", 2, 0.001, "2 MiB blocks"),
}
"""By what maps the memory."""

COSTS = ("rest_of_the_test", "unmap_entry", "tlb_invalidate")
"""What is determined for each table: a time that does not depend on the memory, and two costs."""

KERNELS = {"base": Policy(teardown_tlb="entry"), "series": Policy(teardown_tlb="range")}
"""The tables' kernels. That the series defers invalidations at all means FEAT_S2FWB
(stage2_unmap_defer_tlb_flush), with which no cache is cleaned."""

_DESIGN = ["constant", "entries", "invalidations"]


@dataclass(frozen=True)
class UnmapFit:
    """Costs of one table by weighted least squares.

    - `mapping`: a key of `TABLES`.
    - `costs`, `covariance`: of `COSTS`, seconds.
    - `dof`: rows fitted, less three.
    - `discrepancy`: relative standard deviation of the rows from the model beyond the rounding of their digits.
    """

    mapping: str
    costs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float

    def interval(self, cost: str) -> tuple[float, float, float]:
        """A cost and the ends of its interval, seconds; none is negative."""
        i = COSTS.index(cost)
        value, half = float(self.costs[i]), student(self.dof) * float(np.sqrt(self.covariance[i, i]))
        return value, max(0.0, value - half), value + half

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Time of each row with the interval for a new measurement of as many digits."""
        design = rows[_DESIGN].to_numpy(dtype=float)
        value = design @ self.costs
        variance = np.einsum("ij,jk,ik->i", design, self.covariance, design)
        half = student(self.dof) * np.sqrt(variance + noise(value, TABLES[self.mapping].digit, self.discrepancy))
        return rows.assign(predicted=value, low=np.maximum(0.0, value - half), high=value + half)


def noise(times: NDArray[np.float64], digit: float, discrepancy: float) -> NDArray[np.float64]:
    """Variance of published times: of rounding to the last digit, and of what is left beyond it."""
    return np.asarray(digit**2 / 12 + (discrepancy * times) ** 2)


def published(mapping: str) -> pd.DataFrame:
    """The rows of a table, with what an unmap of so much memory does.

    Returns: `studies.study.COLUMNS`, and ``mapping``, ``kernel`` (one of `KERNELS`), ``memory_gb``,
    ``constant``, ``entries``, ``invalidations``.
    """
    table = TABLES[mapping]
    frame = load(table.name).frame
    does = [
        unmapping(PageTable(4096), round(gb) * GIB, table.leaf, KERNELS[kernel])
        for gb, kernel in zip(frame["memory_gb"], frame["variant"], strict=True)
    ]
    variant = frame["variant"] + f", {table.mapped_by}, " + frame["memory_gb"].map("{:g} GB".format)
    role = np.where(frame["memory_gb"] > TRAIN_GB, HELD_OUT, FITTED)
    rows = {"variant": variant, "metric": "unmap time", "published": frame["unmap_time_s"], "unit": "s", "role": role,
            "mapping": mapping, "kernel": frame["variant"], "memory_gb": frame["memory_gb"], "constant": 1,
            "entries": [d.entries for d in does], "invalidations": [d.invalidations for d in does]}  # fmt: skip
    return numbers(pd.DataFrame(rows), table.name)


def least_squares(mapping: str, rows: pd.DataFrame) -> UnmapFit:
    """Determine the costs from rows like those of `published`, whose times have the table's digits.

    The discrepancy is chosen so that the weighted squares are what the degrees of freedom expect; where rounding alone
    explains the deviations it is zero.
    """
    design = rows[_DESIGN].to_numpy(dtype=float)
    times, digit = rows["published"].to_numpy(dtype=float), TABLES[mapping].digit
    dof = len(times) - len(COSTS)

    def solved(discrepancy: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        weights = 1 / noise(times, digit, discrepancy)
        inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
        values = inverse @ design.T @ (weights * times)
        return values, inverse, float(weights @ (times - design @ values) ** 2)

    discrepancy = 0.0
    if solved(0.0)[2] > dof:
        discrepancy = float(optimize.brentq(lambda s: solved(s)[2] - dof, 0.0, 1.0))
    values, covariance, _ = solved(discrepancy)
    return UnmapFit(mapping, values, covariance, dof, discrepancy)


def fits(most_gb: float = TRAIN_GB) -> dict[str, UnmapFit]:
    """The fit of each table to its rows of at most so much memory.

    Those of at most `TRAIN_GB` are what the held-out rows judge; those of all rows are what is then predicted with.

    >>> f"{fits()['4K pages'].interval('tlb_invalidate')[0] * 1e6:.2f} µs"
    '1.49 µs'
    """
    tables = {mapping: published(mapping) for mapping in TABLES}
    return {mapping: least_squares(mapping, rows[rows["memory_gb"] <= most_gb]) for mapping, rows in tables.items()}


def cost_table(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """Costs by mapping, µs: ``mapping``, ``cost``, ``value_us``, ``low_us``, ``high_us``."""
    rows = [(mapping, cost, *(1e6 * end for end in fit.interval(cost)))
            for (mapping, fit), cost in itertools.product(found.items(), COSTS)]  # fmt: skip
    return pd.DataFrame(rows, columns=["mapping", "cost", "value_us", "low_us", "high_us"])


def unmap_numbers(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """Every published row, as of `published`, beside its fitted or predicted time."""
    return pd.concat([fit.predict(published(mapping)) for mapping, fit in found.items()], ignore_index=True)


def across(found: dict[str, UnmapFit]) -> pd.DataFrame:
    """What each table's two costs say of the other table's time for one more GB, between its two largest sizes.

    The time that does not depend on the memory falls out of the difference.

    Returns: ``costs_of``, ``said_of``, ``kernel``, ``published_ms_per_gb``, ``model_ms_per_gb``, ``ratio`` (published
    over model), and its interval ``low``, ``high``.
    """
    rows = []
    for mine, other in (tuple(TABLES), tuple(TABLES)[::-1]):
        fit = found[mine]
        for kernel, part in published(other).groupby("kernel", sort=False):
            last = part.sort_values("memory_gb").iloc[-2:]
            more = last[["memory_gb", "published", *_DESIGN[1:]]].diff().iloc[1]
            does = more[_DESIGN[1:]].to_numpy(dtype=float)
            model, real = float(does @ fit.costs[1:]), float(more["published"])
            times = last["published"].to_numpy(dtype=float)
            variance = noise(times, TABLES[other].digit, found[other].discrepancy).sum()
            spread = np.sqrt(float(does @ fit.covariance[1:, 1:] @ does) / model**2 + variance / real**2)
            half, ratio = student(fit.dof) * spread * real / model, real / model
            each = (1e3 * real / more["memory_gb"], 1e3 * model / more["memory_gb"])
            rows.append((mine, other, kernel, *each, ratio, ratio - half, ratio + half))
    names = ["costs_of", "said_of", "kernel", "published_ms_per_gb", "model_ms_per_gb", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=names)
