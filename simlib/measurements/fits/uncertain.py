# SPDX-License-Identifier: BSD-3-Clause
"""Costs of a scenario's actions: given, calibrated or, if neither, drawn from a prior. An unknown cost is never free.

The programs determine the costs that matter: those that some step spends (`simlib.model.job.Job.costs`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from simlib._lib.errors import InputError
from simlib.measurements.fits.estimate import BOUNDS, CostEstimate, cost_key
from simlib.measurements.fits.priors import LEVEL, Prior, load_priors
from simlib.measurements.fits.tables import unit_of
from simlib.model.costs import MEANINGS, UNUSED
from simlib.model.quantities import format_seconds
from simlib.model.scenario import Scenario
from simlib.simulator.workloads import build, kind_of

FAULTS = ("fault_unlocked", "fault_hold", "line_transfer", "tlb_invalidate")
"""Costs of page faults that determine the guest's speed."""

CLEARING = ("clear_page", "reacquire")
"""Costs of CLEAR that determine the best batch size."""


@dataclass(frozen=True)
class UncertainCosts:
    """Scenario with uncertain costs.

    - `scenario`: the scenario as given; costs that have a value keep it.
    - `estimate`: calibrated costs.
    - `priors`: priors of the costs that are neither given nor calibrated.
    """

    scenario: Scenario
    estimate: CostEstimate | None
    priors: Mapping[str, Prior]

    @classmethod
    def of(cls, scenario: Scenario, estimate: CostEstimate | None = None) -> UncertainCosts:
        """Combine the costs of a scenario with an estimate, and with priors for all other costs.

        Raises `InputError` if the estimate has a cost only for cost groups and the scenario names no cost group.

        >>> costs = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "loongarch"},
        ...                                           "costs": {"reacquire": "60ns"}}))
        >>> "reacquire" in costs.priors, "fault_hold" in costs.priors
        (False, True)
        """
        known = (scenario if estimate is None else estimate.apply(scenario)).costs.given()
        if estimate is not None:
            grouped = dict.fromkeys(name.partition("[")[0] for name in estimate.names if "[" in name)
            missing = [name for name in grouped if name not in known]
            if missing and not scenario.cost_group:
                names = ", ".join(repr(group) for group in sorted(estimate.groups()))
                raise InputError(
                    "cost_group", "none", f"the fit has {', '.join(missing)} only for cost groups: {names}",
                    'write cost_group = "…" at the top of the scenario',
                )  # fmt: skip
        priors, excluded = load_priors(scenario.policy.architecture), {*known, *kind_of(scenario).included_costs}
        return cls(scenario, estimate, {name: prior for name, prior in priors.items() if name not in excluded})

    def scaled(self, factors: Mapping[str, float]) -> UncertainCosts:
        """Return the costs with some of them multiplied by `factors`, whatever their origin.

        >>> costs = UncertainCosts.of(Scenario.parse({"costs": {"reacquire": "60ns"}}))
        >>> twice = costs.scaled({"reacquire": 2.0, "clear_page": 2.0})
        >>> twice.scenario.costs.reacquire, twice.priors["clear_page"].median / costs.priors["clear_page"].median
        (120000, 2.0)
        """
        given = self.scenario.costs.given()
        costs = {name: given[name] * factor for name, factor in factors.items() if name in given}
        medians = {name: prior.median * factors.get(name, 1.0) for name, prior in self.priors.items()}
        priors = {name: replace(prior, median=medians[name]) for name, prior in self.priors.items()}
        estimate = self.estimate.scaled(factors) if self.estimate else None
        return UncertainCosts(self.scenario.with_costs(**costs), estimate, priors)

    @cached_property
    def best(self) -> Scenario:
        """The scenario with its given and calibrated costs."""
        return self.scenario if self.estimate is None else self.estimate.apply(self.scenario)

    def central(self) -> Scenario:
        """Return the scenario with its given and calibrated costs, and all others at the medians of their priors."""
        return self._central

    @cached_property
    def _central(self) -> Scenario:
        return self.best.with_costs(**{name: prior.median for name, prior in self.priors.items()})

    @cached_property
    def used(self) -> tuple[str, ...]:
        """Costs that some step of the scenario's programs spends, in alphabetical order."""
        return build(self.central()).costs

    @cached_property
    def drawn(self) -> tuple[str, ...]:
        """Costs in `used` that have only a prior, if its median is not 0."""
        return tuple(name for name in self.used if name in self.priors and self.priors[name].median)

    def exact(self) -> Scenario:
        """Return the scenario with its costs if every cost that it uses is given or calibrated.

        Raises `InputError` if one is not; the hint explains how to give it.

        >>> UncertainCosts.of(Scenario()).exact()
        Traceback (most recent call last):
        ...
        simlib.InputError: costs = clear_ioctl, ...: not given, and not calibrated for host ...
        """
        if not self.drawn:
            return self.central()
        raise InputError(
            "costs", ", ".join(self.drawn),
            f"not given, and not calibrated for host {self.scenario.host.name!r} with architecture "
            f"{self.scenario.policy.architecture!r}",
            'give them with scenario.with_costs(fault_hold="1us", …), calibrate and pass fit=…, or sample them '
            'from their priors: unknown_costs="sample"',
            "give them under [costs], calibrate and pass --fit, or sample them from their priors: "
            "--unknown-costs sample",
        )  # fmt: skip

    def ends(self, name: str, level: float = LEVEL) -> tuple[float, float]:
        """Ends of a prior's central interval with probability `level`, clipped to the physical bounds.

        >>> costs = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "riscv"}}))
        >>> [round(end) for end in costs.ends("fault_hold")]
        [168333, 1515000]
        """
        prior = self.priors[name]
        factor = np.exp(prior.deviation * float(ndtri(0.5 + level / 2)))
        low, high = np.clip([prior.median / factor, prior.median * factor], *BOUNDS[name])
        return float(low), float(high)

    def draw(self, random: np.random.Generator) -> Scenario:
        """Draw one vector of costs and return the scenario with it.

        The logarithms of calibrated costs have a multivariate t distribution; other costs come from their priors. Each
        cost is clipped to the physical bounds of `Costs`, without which a mean over costs need not exist.
        """
        scenario = self.scenario
        if self.estimate is not None:
            scenario = self.estimate.apply(scenario, self.estimate.draw(random))
        root, values = int(random.integers(2**63)), {}
        for name, prior in self.priors.items():
            # One random stream per cost name: adding or removing a cost does not change the draws of the others.
            deviate = np.random.default_rng([root, zlib.crc32(name.encode())]).standard_normal()
            value = prior.median * float(np.exp(prior.deviation * deviate))
            values[name] = float(np.clip(value, *BOUNDS[name])) if prior.median else 0.0
        return scenario.with_costs(**values)

    def sources(self) -> dict[str, str]:
        """Origin of each used cost: ``given``, ``calibrated``, ``fixed`` (during the calibration) or ``prior``."""
        given = self.scenario.costs.given()
        calibrated = () if self.estimate is None else {name.partition("[")[0] for name in self.estimate.names}
        return {
            name: "prior" if name in self.priors else "given" if name in given
            else "calibrated" if name in calibrated else "fixed"
            for name in self.used
        }  # fmt: skip

    @property
    def evidence(self) -> str:
        """Degree to which the costs that matter were calibrated, in a few words.

        >>> guest = {"policy": {"architecture": "loongarch"}, "workload": {"kind": "migration"}}
        >>> UncertainCosts.of(Scenario.parse(guest)).evidence
        'facts alone'
        """
        sources = self.sources()
        faults = {sources[name] for name in FAULTS if name in sources}
        clearing = {sources[name] for name in CLEARING if name in sources}
        if "calibrated" not in faults | clearing:
            if "prior" not in faults | clearing:
                return "costs given by hand"
            return "partly given by hand" if "given" in faults | clearing else "facts alone"
        if "prior" not in faults | clearing:
            return "calibrated"
        return "partly calibrated" + ("" if "calibrated" in clearing else ": faults only")

    def table(self) -> pd.DataFrame:
        """Return one row per used cost: cost, evidence, value, low, high, unit, source.

        ``value`` is the median; ``low`` and ``high`` are the ends of the 90 % interval.
        """
        rows, values = [], self.best.costs.given()
        for name, kind in self.sources().items():
            value, source = values.get(name, 0.0), _SOURCES.get(kind, "")
            low = high = value
            if kind == "prior":
                prior = self.priors[name]
                value, source = prior.median, prior.source
                low, high = self.ends(name) if value else (0.0, 0.0)
            elif kind == "calibrated" and self.estimate is not None:
                factor = factor_of(self.estimate, name, self.scenario.cost_group)
                low, high = value / factor, value * factor
            rows.append((name, kind, value, low, high, unit_of(name), source))
        return pd.DataFrame(rows, columns=["cost", "evidence", "value", "low", "high", "unit", "source"])


def readable_costs(table: pd.DataFrame) -> pd.DataFrame:
    """Format `UncertainCosts.table` as text: each cost with interval, origin, meaning and source."""
    rows = []
    for row in table.to_dict("records"):
        texts = [format_cost(row[name], row["unit"]) for name in ("value", "low", "high")]
        interval = "" if row["low"] == row["high"] else f"{texts[1]} to {texts[2]}"
        meaning = MEANINGS.get(row["cost"], "").rstrip(".")
        rows.append((row["cost"], texts[0], interval, row["evidence"], meaning, row["source"]))
    return pd.DataFrame(rows, columns=["cost", "value", "90 %", "from", "what it is", "source"])


def format_cost(value: float, unit: str) -> str:
    """Format a cost with its unit.

    >>> format_cost(45000.0, "ps"), format_cost(0.3, "dimensionless")
    ('45ns', '0.3')
    """
    return format_seconds(value * 1e-12, 3) if unit == "ps" else f"{value:.3g}"


_SOURCES = {"given": "the scenario", "calibrated": "the fit", "fixed": "the fixed value during the calibration"}


def describe_costs(costs: UncertainCosts) -> tuple[str, ...]:
    """Describe the origins of a scenario's costs in one line, and list given costs that are not used.

    >>> describe_costs(UncertainCosts.of(Scenario.parse({"costs": {"kick": "1us", "zap_block": "1us"}})))[1]
    'zap_block is not used: nothing is zapped'
    """
    origins = {"given": "given", "calibrated": "calibrated", "fixed": "fixed by the fit", "prior": "drawn from priors"}
    sources = costs.sources()
    used = [name for name, kind in sources.items() if kind != "prior" or name in costs.drawn]
    named = {origin: [name for name in used if sources[name] == kind] for kind, origin in origins.items()}
    parts = [f"{origin} {', '.join(names)}" for origin, names in named.items() if names]
    unused = [name for name in costs.scenario.costs.given() if name not in sources]
    return (f"costs: {'; '.join(parts)}", *(f"{name} is not used: {UNUSED[name]}" for name in unused))


def complete(scenario: Scenario) -> Scenario:
    """Return the scenario with each missing cost at the median of its prior, except costs included in others.

    >>> complete(Scenario.parse({"costs": {"fault_unlocked": "0ns"}})).costs.fault_hold
    600000
    """
    return UncertainCosts.of(scenario).central()


def factor_of(estimate: CostEstimate, cost: str, group: str) -> float:
    """Ratio of the upper end of a calibrated cost's 90 % interval to the cost.

    >>> estimate = CostEstimate(("reacquire",), np.log([60e3]), np.array([[0.01]]), 8, 0.02, {})
    >>> factor_of(estimate, "reacquire", "")
    1.2043...
    """
    key = cost_key(cost, group)
    index = estimate.names.index(key if key in estimate.names else cost)
    half = stdtrit(estimate.dof, 0.5 + LEVEL / 2) * np.sqrt(estimate.covariance[index, index])
    return float(np.exp(half))
