# SPDX-License-Identifier: BSD-3-Clause
"""Replications of a migration with every strategy: costs drawn from what is known of them, windows placed anew."""

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
from simlib.simulator.sampling import WHOLE_PAGES, why_not
from simlib.simulator.sampling.estimator import sample_once
from simlib.simulator.sampling.fluid_model import GOLDEN
from simlib.simulator.workloads import build


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
        found = parallel.run_all(tasks, what, progress)
        return np.array(found).reshape(len(numbers), len(self.strategies), len(METRICS))

    def logs(self, stages: Mapping[int, Sequence[int]]) -> dict[str, NDArray[np.float64]]:
        """Logarithms of the costs that were drawn, vary, and are spent by any strategy, stage after stage."""
        case = self.costs.central()
        needed = {name for one in self.strategies for name in build(one.applied(case)).costs}
        rows = [self.drawn(stage, number)[0].costs.given() for stage, numbers in stages.items() for number in numbers]
        found = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name in needed}
        return {name: np.log(values) for name, values in found.items() if values.min() > 0 and np.ptp(values) > 0}


def _metrics(scenario: Scenario, how: str, seed: int, at: float, check: parallel.Check) -> list[float]:
    if how == "sampled":
        found = sample_once(scenario, seed, at, check).metrics
    else:
        found = run_scenario(scenario, seed=seed, progress=check).metrics
    return [found[name] for name in METRICS]
