# SPDX-License-Identifier: BSD-3-Clause
"""Replications of a migration with every strategy; each has newly drawn costs and newly placed sampling windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.objectives import METRICS
from simlib.analysis.choose.strategies import Strategy
from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import UncertainCosts
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import WHOLE_PAGES, unsupported_reason
from simlib.simulator.sampling.estimator import sample_once
from simlib.simulator.sampling.fluid_model import GOLDEN
from simlib.simulator.workloads import build


class Trials:
    """Replications of one scenario. In each, all strategies share the costs, the sampled chunks and the random numbers.

    A replication is identified by a stage and a number. Its random draws depend only on these and on the seed, not on
    the order or the number of parallel runs.

    - `seed`: at least 0.
    """

    def __init__(self, costs: UncertainCosts, strategies: Sequence[Strategy], seed: int) -> None:
        if seed < 0:
            raise InputError("seed", seed, "must be at least 0")
        self.costs, self.strategies, self.seed = costs, tuple(strategies), seed

    @property
    def how(self) -> str:
        """``"sampled"``, or ``"whole"`` if the migration is small or a strategy cannot be sampled."""
        return "whole" if self.costs.scenario.guest.pages <= WHOLE_PAGES or self.why_whole else "sampled"

    @property
    def why_whole(self) -> str:
        """Reason why a strategy cannot be sampled with windows; empty if all can."""
        cases = (strategy.applied(self.costs.scenario) for strategy in self.strategies)
        return next((reason for case in cases if (reason := unsupported_reason(case))), "")

    def draw(self, stage: int, number: int) -> tuple[Scenario, int, float]:
        """Return one replication: the scenario with its costs, the seed, and the windows' offset (0 to 1)."""
        random = np.random.default_rng([self.seed, stage, number])
        seed = int(random.integers(2**31))
        start = float(np.random.default_rng([self.seed, stage]).random())
        return self.costs.draw(random), seed, (start + number * GOLDEN) % 1.0

    def run(
        self, stage: int, numbers: Sequence[int], what: str = "", progress: parallel.Progress | None = None
    ) -> NDArray[np.float64]:
        """Simulate replications with every strategy, in parallel on all CPUs.

        Returns: ndarray, shape (len(numbers), len(strategies), len(METRICS)).
        """
        how = self.how
        tasks = []
        for number in numbers:
            scenario, seed, offset = self.draw(stage, number)
            tasks += [partial(_metrics, strategy.applied(scenario), how, seed, offset) for strategy in self.strategies]
        metrics = parallel.run_all(tasks, what, progress)
        return np.array(metrics).reshape(len(numbers), len(self.strategies), len(METRICS))

    def logs(self, stages: Mapping[int, Sequence[int]]) -> dict[str, NDArray[np.float64]]:
        """Return the logarithms of the drawn costs that vary and that some strategy uses, stage after stage."""
        central = self.costs.central()
        used = {name for strategy in self.strategies for name in build(strategy.applied(central)).costs}
        draws = [self.draw(stage, number)[0].costs.given() for stage, numbers in stages.items() for number in numbers]
        costs = {name: np.array([float(draw[name]) for draw in draws]) for name in draws[0] if name in used}
        return {name: np.log(values) for name, values in costs.items() if values.min() > 0 and np.ptp(values) > 0}


def _metrics(scenario: Scenario, how: str, seed: int, offset: float, check: parallel.Check) -> list[float]:
    if how == "sampled":
        metrics = sample_once(scenario, seed, offset, check).metrics
    else:
        metrics = run_scenario(scenario, seed=seed, progress=check).metrics
    return [metrics[name] for name in METRICS]
