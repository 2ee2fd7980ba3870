# SPDX-License-Identifier: BSD-3-Clause
"""What a scenario's actions may cost: calibrated as far as they are, else by a prior; and trials that draw from it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib import parallel
from simlib.decision.objectives import METRICS
from simlib.decision.priors import LEVEL, Prior, load_priors
from simlib.decision.strategies import Strategy
from simlib.errors import InputError
from simlib.fits import BOUNDS, CostEstimate, cost_key, unit_of, used_costs
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from simlib.sampling import WHOLE_PAGES, why_not
from simlib.sampling.course import GOLDEN
from simlib.sampling.travel import travel
from simlib.simulation import run_scenario

CLEARING = ("clear_page", "reacquire")
"""Costs of CLEAR that decide about a batch; those of faults are `simlib.fits.used_costs`."""


def needed_costs(scenario: Scenario) -> tuple[str, ...]:
    """Costs that a simulated migration depends on, in the order of `Costs`.

    >>> needed = needed_costs(Scenario.parse({"policy": {"architecture": "x86-tdp"}}))
    >>> "split_block" in needed, "split_hold" in needed, "tlb_invalidate" in needed
    (True, False, False)
    """
    policy, blocks = scenario.policy.resolved(), scenario.guest.mapped_as_blocks
    names = {*used_costs(scenario), *CLEARING, "line_local", "crowding", "clear_word", "clear_ioctl", "flush",
             "flush_per_vcpu", "interrupt", "kick", "fault_jitter"}  # fmt: skip
    if blocks:
        names |= {"split_block", "split_alloc"} if policy.eager_split else {"split_hold", "clear_unsplit"}
    if not scenario.workload.initially_set:
        names.add("enable_page")
    return tuple(f.name for f in dataclasses.fields(Costs) if f.name in names)


@dataclass(frozen=True)
class UncertainCosts:
    """A scenario whose costs are known more or less.

    - `scenario`: as given: costs that have a value keep it.
    - `estimate`: calibrated costs.
    - `priors`: costs that neither gives, and calibrated ones of which the fit knows less than the prior.
    """

    scenario: Scenario
    estimate: CostEstimate | None
    priors: Mapping[str, Prior]

    @classmethod
    def of(cls, scenario: Scenario, estimate: CostEstimate | None = None) -> UncertainCosts:
        """The costs of a scenario, with an estimate's where it has them, and priors for all others.

        >>> costs = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "loongarch"},
        ...                                           "costs": {"reacquire": "60ns"}}))
        >>> "reacquire" in costs.priors, "fault_hold" in costs.priors
        (False, True)
        """
        priors = load_priors(scenario.policy.architecture)
        for name in scenario.costs.given():
            del priors[name]
        if estimate is None:
            return cls(scenario, None, priors)
        for name in priors.keys() & estimate.apply(scenario).costs.given().keys():
            # A prior of zero says that nobody is known to pay it: who calibrated it does.
            if not priors[name].median or factor_of(estimate, name, scenario.group) <= priors[name].factor:
                del priors[name]
        return cls(scenario, estimate, priors)

    def central(self) -> Scenario:
        """The scenario with each cost at its median: given, else calibrated, else from the priors.

        >>> uncertain = UncertainCosts.of(Scenario.parse({"policy": {"architecture": "riscv"}}))
        >>> uncertain.central().costs.fault_hold == uncertain.priors["fault_hold"].median
        True
        """
        filled = self.scenario if self.estimate is None else self.estimate.apply(self.scenario)
        return filled.with_costs(**{name: float(np.round(prior.median, 6)) for name, prior in self.priors.items()})

    def draw(self, random: np.random.Generator) -> Scenario:
        """The scenario with one vector of costs: what is true in one of the worlds that are possible.

        Calibrated costs come from a multivariate t in the logarithms, others from their priors; each is kept within
        the physical bounds of `Costs`, without which a mean over costs need not exist.
        """
        scenario = self.scenario
        if self.estimate is not None:
            scenario = self.estimate.apply(scenario, self.estimate.draw(random))
        root, values = int(random.integers(2**63)), {}
        for name, prior in self.priors.items():
            # A stream for each cost by its name: another cost that comes or goes leaves the draws of the rest alone.
            deviate = np.random.default_rng([root, zlib.crc32(name.encode())]).standard_normal()
            value = prior.median * float(np.exp(prior.deviation * deviate))
            values[name] = float(np.clip(value, *BOUNDS[name])) if prior.median else 0.0
        return scenario.with_costs(**values)

    def sources(self) -> dict[str, str]:
        """Where each needed cost comes from: ``calibrated``, ``given`` or ``prior``."""
        given = self.scenario.costs.given()
        return {
            name: "prior" if name in self.priors else "given" if name in given else "calibrated"
            for name in needed_costs(self.scenario)
        }

    @property
    def evidence(self) -> str:
        """How far the costs that decide were calibrated, in a few words.

        >>> UncertainCosts.of(Scenario.parse({"policy": {"architecture": "loongarch"}})).evidence
        'facts alone'
        """
        sources = self.sources()
        faults = {sources[name] for name in used_costs(self.scenario)}
        clearing = {sources[name] for name in CLEARING}
        if "calibrated" not in faults | clearing:
            if "prior" not in faults | clearing:
                return "costs given by hand"
            return "partly given by hand" if "given" in faults | clearing else "facts alone"
        if "prior" not in faults | clearing:
            return "calibrated"
        return "partly calibrated" + ("" if "calibrated" in clearing else ": faults only")

    def table(self) -> pd.DataFrame:
        """One row a needed cost: cost, evidence, value, low, high, unit, source.

        ``value`` is the median; ``low`` and ``high`` are the ends of the 90 % interval.
        """
        best = self.scenario if self.estimate is None else self.estimate.apply(self.scenario)
        rows = []
        for name, kind in self.sources().items():
            factor, source, value = 1.0, "the scenario", best.costs.given().get(name, 0.0)
            if kind == "prior":
                prior = self.priors[name]
                factor, source, value = prior.factor, prior.source, prior.median
            elif kind == "calibrated" and self.estimate is not None:
                factor, source = factor_of(self.estimate, name, self.scenario.group), "the fit"
            rows.append((name, kind, value, value / factor, value * factor, unit_of(name), source))
        return pd.DataFrame(rows, columns=["cost", "evidence", "value", "low", "high", "unit", "source"])


def factor_of(estimate: CostEstimate, cost: str, group: str) -> float:
    """How far a calibrated cost may lie from its value with 90 %, as a factor.

    >>> known = CostEstimate(("reacquire",), np.log([60e3]), np.array([[0.01]]), 8, 0.02, {})
    >>> factor_of(known, "reacquire", "")
    1.2043...
    """
    own = cost_key(cost, group)
    index = estimate.names.index(own if own in estimate.names else cost)
    half = stdtrit(estimate.dof, 0.5 + LEVEL / 2) * np.sqrt(estimate.covariance[index, index])
    return float(np.exp(half))


class Trials:
    """Replications of one scenario: the same costs, the same chunks and the same random numbers for every strategy.

    A replication is named by a stage and a number. What it draws depends on these and on the seed alone, not on what
    ran before it, nor on how many run at a time.

    - `seed`: at least 0.
    """

    def __init__(self, costs: UncertainCosts, strategies: Sequence[Strategy], seed: int) -> None:
        if seed < 0:
            raise InputError("seed", seed, "must be at least 0")
        self.costs, self.strategies, self.seed = costs, tuple(strategies), seed

    @property
    def how(self) -> str:
        """How a migration is simulated: ``sampled``, or ``whole`` if it is small or one strategy cannot be sampled."""
        return "whole" if self.costs.scenario.guest.pages <= WHOLE_PAGES or self.why_whole else "sampled"

    @property
    def why_whole(self) -> str:
        """Why not all of the strategies can be sampled by windows; empty if they can."""
        cases = (one.applied(self.costs.scenario) for one in self.strategies)
        return next((reason for case in cases if (reason := why_not(case))), "")

    def drawn(self, stage: int, number: int) -> tuple[Scenario, int, float]:
        """The scenario with the costs of one replication, the seed of its simulations, and where windows are."""
        random = np.random.default_rng([self.seed, stage, number])
        seed = int(random.integers(2**31))
        start = float(np.random.default_rng([self.seed, stage]).random())
        return self.costs.draw(random), seed, (start + number * GOLDEN) % 1.0

    def run(
        self, stage: int, numbers: Sequence[int], what: str = "", progress: parallel.Progress | None = None
    ) -> NDArray[np.float64]:
        """Simulate some replications with every strategy, as many at a time as there are CPUs.

        Returns: ndarray, shape (len(numbers), len(strategies), len(METRICS)).
        """
        how = self.how
        tasks = []
        for number in numbers:
            scenario, seed, at = self.drawn(stage, number)
            tasks += [partial(_metrics, strategy.applied(scenario), how, seed, at) for strategy in self.strategies]
        found = parallel.each(tasks, what, progress)
        return np.array(found).reshape(len(numbers), len(self.strategies), len(METRICS))

    def logs(self, stages: Mapping[int, Sequence[int]]) -> dict[str, NDArray[np.float64]]:
        """Logarithms of the costs that were drawn, vary, and are needed by any strategy, stage after stage."""
        needed = {name for one in self.strategies for name in needed_costs(one.applied(self.costs.scenario))}
        rows = [self.drawn(stage, number)[0].costs.given() for stage, numbers in stages.items() for number in numbers]
        found = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name in needed}
        return {name: np.log(values) for name, values in found.items() if values.min() > 0 and np.ptp(values) > 0}


def _metrics(scenario: Scenario, how: str, seed: int, at: float, check: parallel.Check) -> list[float]:
    if how == "sampled":
        found = travel(scenario, seed, at, check).metrics
    else:
        found = run_scenario(scenario, seed=seed, progress=check).metrics
    return [found[name] for name in METRICS]
