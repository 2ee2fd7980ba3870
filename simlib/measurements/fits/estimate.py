# SPDX-License-Identifier: BSD-3-Clause
"""Calibrated costs and their covariance."""

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
"""Physical bounds of each cost, in picoseconds or, for a coefficient of variation, dimensionless."""


def cost_key(cost: str, group: str = "") -> str:
    """Name of a parameter: a cost, or a cost of one cost group.

    >>> cost_key("fault_unlocked"), cost_key("fault_unlocked", "old test")
    ('fault_unlocked', 'fault_unlocked[old test]')
    """
    return f"{cost}[{group}]" if group else cost


@dataclass(frozen=True)
class CostEstimate:
    """Calibrated costs with their covariance.

    - `names`: costs (``"fault_hold"``), or costs of one cost group (``"fault_unlocked[old test]"``).
    - `logs`, shape (n,): natural logarithms of the values (picoseconds, or dimensionless).
    - `covariance`, shape (n, n): covariance of `logs`.
    - `dof`: degrees of freedom: observations minus parameters.
    - `discrepancy`: relative standard deviation of the measurements from the model after the fit.
    - `spread`: ratio of a metric's deviation to `discrepancy`; 1 for a metric that it does not contain.
    - `held`: costs that were fixed during the calibration, and that apply in addition to the calibrated ones.
    - `included_in_others`: costs that the calibrated ones include, and the kind of workload for which they do so and
      these costs are therefore 0.
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
        """Return the scenario with these costs; costs of its cost group take precedence over costs of all groups.

        A cost that the scenario gives keeps its value.
        """
        given = scenario.costs.given()
        values = np.exp(self.logs if logs is None else logs)
        names, kind = self.included_in_others
        fixed = dict(self.held) | (dict.fromkeys(names, 0.0) if scenario.workload.kind == kind else {})
        new_costs = {name: value for name, value in fixed.items() if name not in given}
        for name, value in zip(self.names, values.tolist(), strict=True):
            cost, _, group = name.partition("[")
            if cost not in given and group.removesuffix("]") in ("", scenario.cost_group):
                new_costs[cost] = value
        return scenario.with_costs(**new_costs)

    def scaled(self, factors: Mapping[str, float]) -> CostEstimate:
        """Return the estimate with some costs multiplied by `factors` in every group; the covariance is unchanged."""
        shifts = [math.log(factors.get(name.partition("[")[0], 1.0)) for name in self.names]
        held = {name: value * factors.get(name, 1.0) for name, value in self.held.items()}
        return replace(self, logs=self.logs + np.array(shifts), held=held)

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Draw logarithms of the costs, which have a multivariate t distribution, clipped to the physical bounds."""
        deviates = random.multivariate_normal(np.zeros(len(self.logs)), self.covariance)
        scale = np.sqrt(self.dof / random.chisquare(self.dof))
        bounds = np.log([BOUNDS[name.partition("[")[0]] for name in self.names])
        return np.asarray(np.clip(self.logs + deviates * scale, bounds[:, 0], bounds[:, 1]), dtype=np.float64)

    def correlation(self) -> tuple[pd.DataFrame | None, tuple[str, ...]]:
        """Return the correlation matrix of the costs' logarithms, or None, and notes on missing correlations."""
        deviations = np.sqrt(np.diag(self.covariance))
        if len(self.names) > 1 and not (self.covariance - np.diag(np.diag(self.covariance))).any():
            return None, ("correlations: missing, since the covariance matrix has only variances",)
        constant = [name for name, deviation in zip(self.names, deviations, strict=True) if not deviation > 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix = np.where(deviations > 0, self.covariance / np.outer(deviations, deviations), np.nan)
        matrix[~(deviations > 0)] = np.nan
        frame = pd.DataFrame(np.clip(matrix, -1, 1), index=self.names, columns=self.names)
        notes = (f"correlations with {', '.join(constant)}: missing, since their variance is 0",) if constant else ()
        return frame, notes

    def groups(self) -> set[str]:
        """Return the cost groups for which the estimate has separate costs."""
        return {name.partition("[")[2].removesuffix("]") for name in self.names if "[" in name}


def conventions(scenario: Scenario) -> dict[str, Any]:
    """Fields of `CostEstimate` that a calibration of this scenario takes as given."""
    included = (scenario.calibration.included_in_others, scenario.workload.kind)
    return {"held": scenario.costs.given(), "included_in_others": included}
