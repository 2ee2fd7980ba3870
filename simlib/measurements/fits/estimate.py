# SPDX-License-Identifier: BSD-3-Clause
"""Calibrated costs and how far they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.model.costs import Costs
from simlib.model.scenario import Scenario

BOUNDS = {cost.name: cost.metadata["bounds"] for cost in fields(Costs)}
"""Least and largest value of each cost that is physically possible: picoseconds, or a coefficient of variation."""


def cost_key(cost: str, group: str = "") -> str:
    """Name of a parameter: a cost, or a cost of one group of variants.

    >>> cost_key("fault_unlocked"), cost_key("fault_unlocked", "old test")
    ('fault_unlocked', 'fault_unlocked[old test]')
    """
    return f"{cost}[{group}]" if group else cost


@dataclass(frozen=True)
class CostEstimate:
    """Calibrated costs, and how far they are known.

    - `names`: costs (``"fault_hold"``), or costs of a group of variants (``"fault_unlocked[old test]"``).
    - `logs`, shape (n,): natural logarithms of the values (picoseconds, or dimensionless).
    - `covariance`, shape (n, n): of `logs`.
    - `dof`: degrees of freedom: observations less parameters.
    - `discrepancy`: standard deviation of measured over model, relative, that is left after the fit.
    - `spread`: how much larger than `discrepancy` a metric's deviation is taken to be; 1 if not named.
    - `held`: costs that were given when these were calibrated, and hold where these do.
    - `included_in_others`: costs that the calibrated ones contain, and the workload of which that is true: there they
      are 0.
    """

    names: tuple[str, ...]
    logs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float
    spread: Mapping[str, float]
    held: Mapping[str, float] = field(default_factory=dict)
    included_in_others: tuple[tuple[str, ...], str] = ((), "")

    def apply(self, scenario: Scenario, logs: NDArray[np.float64] | None = None) -> Scenario:
        """The scenario with these costs, those of its own group where the estimate has them.

        A cost that the scenario gives by hand keeps its value.
        """
        given = scenario.costs.given()
        values = np.exp(self.logs if logs is None else logs)
        names, kind = self.included_in_others
        fixed = dict(self.held) | (dict.fromkeys(names, 0.0) if scenario.workload.kind == kind else {})
        mine = {name: value for name, value in fixed.items() if name not in given}
        for name, value in zip(self.names, values.tolist(), strict=True):
            cost, _, rest = name.partition("[")
            if cost not in given and (not rest or rest.removesuffix("]") == scenario.cost_group):
                mine[cost] = value
        return scenario.with_costs(**mine)

    def scaled(self, factors: Mapping[str, float]) -> CostEstimate:
        """The same, with some costs, of all groups, so many times as large; how far they are known stays."""
        more = [math.log(factors.get(name.partition("[")[0], 1.0)) for name in self.names]
        held = {name: value * factors.get(name, 1.0) for name, value in self.held.items()}
        return replace(self, logs=self.logs + np.array(more), held=held)

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Logarithms of costs that may be true: multivariate t around the best ones, within their physical bounds."""
        deviates = random.multivariate_normal(np.zeros(len(self.logs)), self.covariance)
        wide = np.sqrt(self.dof / random.chisquare(self.dof))
        bounds = np.log([BOUNDS[name.partition("[")[0]] for name in self.names])
        return np.asarray(np.clip(self.logs + deviates * wide, bounds[:, 0], bounds[:, 1]), dtype=np.float64)

    def correlation(self) -> tuple[pd.DataFrame | None, tuple[str, ...]]:
        """Correlation of the costs' logarithms, names by names, and what is missing, in a sentence each."""
        deviations = np.sqrt(np.diag(self.covariance))
        if len(self.names) > 1 and not (self.covariance - np.diag(np.diag(self.covariance))).any():
            return None, ("correlations: missing, since the covariance has variances only",)
        fixed = [name for name, deviation in zip(self.names, deviations, strict=True) if not deviation > 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix = np.where(deviations > 0, self.covariance / np.outer(deviations, deviations), np.nan)
        matrix[~(deviations > 0)] = np.nan
        frame = pd.DataFrame(np.clip(matrix, -1, 1), index=self.names, columns=self.names)
        missing = (f"correlations with {', '.join(fixed)}: missing, since their variance is 0",) if fixed else ()
        return frame, missing

    def groups(self) -> set[str]:
        """Groups that have costs of their own."""
        return {name.partition("[")[2].removesuffix("]") for name in self.names if "[" in name}


def conventions(scenario: Scenario) -> dict[str, Any]:
    """What a calibration of this scenario takes as given, as `CostEstimate` keeps it."""
    return {
        "held": scenario.costs.given(),
        "included_in_others": (scenario.calibration.included_in_others, scenario.workload.kind),
    }
