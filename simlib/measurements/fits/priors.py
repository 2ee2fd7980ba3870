# SPDX-License-Identifier: BSD-3-Clause
"""Priors of costs that are neither given nor calibrated, read from data that names the source of every number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from simlib._lib.reading import read_toml
from simlib.measurements import data_dir
from simlib.model.architectures import architecture
from simlib.model.costs import Costs
from simlib.model.quantities import parse_duration

LEVEL = 0.90
"""Probability that a cost lies between median / factor and median × factor."""

_QUANTILE = float(ndtri(0.5 + LEVEL / 2))


@dataclass(frozen=True)
class Prior:
    """Lognormal prior of one cost.

    - `median`: picoseconds, or dimensionless; 0: the cost is not paid.
    - `factor`: the cost lies between median / factor and median × factor with probability `LEVEL`.
    - `source`: source of the number; it begins with ``assumed`` if nothing is published.

    >>> Prior(600e3, 2.0, "assumed").deviation
    0.42140...
    """

    median: float
    factor: float
    source: str

    @property
    def deviation(self) -> float:
        """Standard deviation of the natural logarithm."""
        return math.log(self.factor) / _QUANTILE


def priors_path() -> Path:
    """Path of the priors of all costs (``data/priors/costs.toml``)."""
    return data_dir() / "priors" / "costs.toml"


def load_priors(name: str) -> dict[str, Prior]:
    """Load the prior of every cost for one architecture.

    Raises `InputError` if the architecture is unknown.

    - `name`: the architecture; an entry for its family (the name up to the first hyphen) takes precedence.

    >>> load_priors("arm64-2022")["clear_page"].median, load_priors("x86-tdp")["clear_page"].factor
    (30000.0, 1.7)
    """
    return dict(_priors(architecture(name).name.partition("-")[0]))


@lru_cache(maxsize=16)
def _priors(family: str) -> Mapping[str, Prior]:
    tables = read_toml(priors_path(), "a list of priors (TOML)")
    priors = {}
    for cost in (f.name for f in dataclasses.fields(Costs)):
        row: Mapping[str, Any] = tables[cost].get(family, tables[cost])
        median = row["median"]
        value = float(median if cost == "fault_jitter" else parse_duration(median, f"{cost}.median"))
        priors[cost] = Prior(value, float(row["factor"]), row["source"])
    return priors
