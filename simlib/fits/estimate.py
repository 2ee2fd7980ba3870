# SPDX-License-Identifier: BSD-3-Clause
"""Calibrated costs and how far they are known, and which costs a scenario needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.errors import InputError
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario

BOUNDS = {field.name: field.metadata["bounds"] for field in fields(Costs)}
"""Least and largest value of each cost that is physically possible: picoseconds, or a coefficient of variation."""


def cost_key(cost: str, group: str = "") -> str:
    """Name of a parameter: a cost, or a cost of one group of variants.

    >>> cost_key("fault_exit"), cost_key("fault_exit", "old test")
    ('fault_exit', 'fault_exit[old test]')
    """
    return f"{cost}[{group}]" if group else cost


@dataclass(frozen=True)
class CostEstimate:
    """Calibrated costs, and how far they are known.

    - `names`: costs (``"fault_hold"``), or costs of a group of variants (``"fault_exit[old test]"``).
    - `logs`, shape (n,): natural logarithms of the values (picoseconds, or dimensionless).
    - `covariance`, shape (n, n): of `logs`.
    - `dof`: degrees of freedom: observations less parameters.
    - `discrepancy`: standard deviation of measured over model, relative, that is left after the fit.
    - `spread`: how much larger than `discrepancy` a metric's deviation is taken to be; 1 if not named.
    """

    names: tuple[str, ...]
    logs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float
    spread: Mapping[str, float]

    def apply(self, scenario: Scenario, logs: NDArray[np.float64] | None = None) -> Scenario:
        """The scenario with these costs, those of its own group where the estimate has them.

        A cost that the scenario gives by hand keeps its value.
        """
        given = scenario.costs.given()
        values = np.exp(self.logs if logs is None else logs)
        mine: dict[str, float] = {}
        for name, value in zip(self.names, values.tolist(), strict=True):
            cost, _, rest = name.partition("[")
            if cost not in given and (not rest or rest.removesuffix("]") == scenario.group):
                mine[cost] = value
        return scenario.with_costs(**mine)

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Logarithms of costs that may be true: multivariate t around the best ones, within their physical bounds.

        >>> known = CostEstimate(("fault_hold",), np.log([600e3]), np.array([[0.01]]), 8, 0.02, {})
        >>> bool(abs(known.draw(np.random.default_rng(1))[0] - known.logs[0]) < 0.5)
        True
        """
        deviates = random.multivariate_normal(np.zeros(len(self.logs)), self.covariance)
        wide = np.sqrt(self.dof / random.chisquare(self.dof))
        bounds = np.log([BOUNDS[name.partition("[")[0]] for name in self.names])
        return np.asarray(np.clip(self.logs + deviates * wide, bounds[:, 0], bounds[:, 1]), dtype=np.float64)

    def correlation(self) -> tuple[pd.DataFrame | None, tuple[str, ...]]:
        """Correlation of the costs' logarithms, names by names, and what is missing, in a sentence each.

        >>> both = np.array([[4.0, 1.0], [1.0, 1.0]])
        >>> estimate = CostEstimate(("fault_exit", "fault_hold"), np.zeros(2), both, 3, 0.1, {})
        >>> estimate.correlation()[0].to_numpy().tolist()
        [[1.0, 0.5], [0.5, 1.0]]
        """
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


def used_costs(scenario: Scenario) -> tuple[str, ...]:
    """Costs that decide how long the scenario's guest takes, so that a value must be known.

    >>> used_costs(Scenario.parse({"policy": {"architecture": "arm64-2022"}}))
    ('fault_exit', 'fault_hold', 'line_transfer', 'tlb_invalidate')
    """
    teardown = _teardown_costs(scenario)
    if teardown and not scenario.workload.guest_runs:
        return teardown
    names = ["fault_exit", "fault_hold", "line_transfer"]
    if scenario.machine.line_transfer_local is not None:
        names.remove("line_transfer")
    if scenario.policy.facts.fault_flush == "broadcast":
        names.append("tlb_invalidate")
    return tuple(dict.fromkeys((*names, *teardown)))


def _teardown_costs(scenario: Scenario) -> tuple[str, ...]:
    """Costs that decide how long a teardown takes; of another workload, none."""
    policy = scenario.policy
    if scenario.workload.kind != "teardown":
        return ()
    cleans = ("clean_line",) if policy.teardown_cache == "entry" else ()
    invalidates = {"entry": "tlb_invalidate", "range": "tlb_invalidate", "vm": "flush"}.get(policy.teardown_tlb)
    return ("unmap_entry", *cleans, *((invalidates,) if invalidates else ()))


def missing_costs(scenario: Scenario) -> tuple[str, ...]:
    """Those of `used_costs` that have no value."""
    given = scenario.costs.given()
    return tuple(name for name in used_costs(scenario) if name not in given)


def complete(scenario: Scenario, estimate: CostEstimate | None = None) -> Scenario:
    """The scenario with the estimate's costs, once every cost that its time depends on has a value.

    Raises `InputError` if one has none; the message says how to give it.

    >>> complete(Scenario())
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: costs = fault_exit, fault_hold, line_transfer: no value, ...
    """
    scenario.policy.resolved()
    filled = scenario if estimate is None else estimate.apply(scenario)
    missing = missing_costs(filled)
    if not missing:
        return filled
    cure = 'give them with scenario.with_costs(fault_hold="1us", …), or calibrate and pass fit=…'
    option = "give them under [costs], or calibrate and pass --fit"
    if estimate is not None and estimate.groups() - {scenario.group}:
        names = ", ".join(repr(g) for g in sorted(estimate.groups()))
        cure = option = f'the fit has them for the groups {names}: write group = "…" at the top of the scenario'
    raise InputError(
        "costs", ", ".join(missing),
        f"no value, and no calibrated one for machine {scenario.machine.name!r} with architecture "
        f"{scenario.policy.architecture!r}",
        cure, option,
    )  # fmt: skip
