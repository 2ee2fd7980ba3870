# SPDX-License-Identifier: BSD-3-Clause
"""Simulated migrations with each of some batches, on common random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simlib import parallel
from simlib.decision.uncertainty import UncertainCosts
from simlib.errors import InputError
from simlib.model.scenario import Scenario
from simlib.model.strategy import every
from simlib.simulation import run_scenario

METRICS = ("longest_stall", "stall_p999", "clear_cpu_time", "precopy_duration", "guest_throughput")
"""What is kept of a run; metrics of a migration."""

OBJECTIVES = ("cost", "stall", "clear", "precopy")
"""What is to be least; see `objective_of`."""

Progress = Callable[[str, float], None]


class Trials:
    """Replications of one scenario: the same costs and the same random numbers for every batch.

    A replication is named by a stage and a number. What it draws depends on these and on the seed alone, not on what
    ran before it, nor on how many run at a time.

    Parameters
    ----------
    costs : UncertainCosts
    batches : sequence of int
        Pages of a hold of each alternative; 0: the whole ioctl.
    seed : int
        At least 0.
    """

    def __init__(self, costs: UncertainCosts, batches: Sequence[int], seed: int) -> None:
        if seed < 0:
            raise InputError("seed", seed, "must be at least 0")
        self.costs, self.batches, self.seed = costs, tuple(batches), seed

    def drawn(self, stage: int, number: int) -> tuple[Scenario, int]:
        """The scenario with the costs of one replication, and the seed of its simulations."""
        random = np.random.default_rng([self.seed, stage, number])
        seed = int(random.integers(2**31))
        return self.costs.draw(random), seed

    def run(
        self, stage: int, numbers: Sequence[int], alternatives: Sequence[int], progress: Progress | None = None
    ) -> NDArray[np.float64]:
        """Simulate some replications with some alternatives, as many at a time as there are CPUs.

        Parameters
        ----------
        stage : int
        numbers : sequence of int
            Replications.
        alternatives : sequence of int
            Indices of `batches`.
        progress : callable, optional
            Called with (what, share done).

        Returns
        -------
        ndarray, shape (len(numbers), len(batches), len(METRICS))
            NaN for alternatives that were not asked for.
        """
        found = np.full((len(numbers), len(self.batches), len(METRICS)), np.nan)
        places, tasks = [], []
        for row, number in enumerate(numbers):
            scenario, seed = self.drawn(stage, number)
            places += [(row, alternative) for alternative in alternatives]
            tasks += [partial(_metrics, scenario, self.batches[alternative], seed) for alternative in alternatives]
        for place, metrics in zip(places, parallel.each(tasks, "simulating", progress), strict=True):
            found[place] = metrics
        return found


def _metrics(scenario: Scenario, batch: int, seed: int, check: parallel.Check) -> list[float]:
    policy = dataclasses.replace(scenario.policy, lets_go=every(batch))
    found = run_scenario(dataclasses.replace(scenario, policy=policy), seed=seed, progress=check).metrics
    return [found[name] for name in METRICS]


def objective_of(values: NDArray[np.float64], name: str, weight: float, vcpus: int) -> NDArray[np.float64]:
    """What is to be least, s.

    Parameters
    ----------
    values : ndarray, shape (..., len(METRICS))
    name : str
        ``cost``: CPU time of CLEAR, and `weight` times what all vCPUs lose of their own; ``stall``: the longest stall
        of a vCPU; ``clear``: CPU time of CLEAR; ``precopy``: how long pre-copy lasts.
    weight : float
        What a second of a vCPU is worth, in seconds of the clearing thread.
    vcpus : int

    Examples
    --------
    >>> objective_of(np.array([0.01, 0.001, 0.5, 2.0, 0.75]), "cost", weight=2.0, vcpus=4).item()
    4.5
    """
    stall, _, clear, precopy, throughput = np.moveaxis(values, -1, 0)
    lost = vcpus * precopy * (1 - throughput)
    value: NDArray[np.float64] = {
        "cost": clear + weight * lost, "stall": stall, "clear": clear, "precopy": precopy,
    }[name]  # fmt: skip
    return value
