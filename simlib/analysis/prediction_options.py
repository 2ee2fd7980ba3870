# SPDX-License-Identifier: BSD-3-Clause
"""Options of `simlib.predict` and `simlib.compare`, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from simlib._lib import parallel
from simlib.analysis.simulate import UnknownCosts
from simlib.measurements.fits import AnyFit

PAGES_PER_VCPU = 4096
"""Simulated pages per vCPU of a point; twice as many change the value of no published point by more than 0.5 %."""

LEVEL = 0.90
"""Default confidence level of intervals."""

Progress = parallel.Progress


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """Costs, metrics, precision and reporting of `simlib.predict` and `simlib.compare`.

    - `fit`: calibrated costs; by default the shipped fit of each host, if there is one. Without a fit, the scenario's
      own costs are used, and the intervals reflect the random spread over `replications` seeds.
    - `metrics`: names of metrics of the workload, such as ``"dirty_memory_time"``, or ``"dirty_memory_time[2]"`` for
      one iteration; by default the workload's default metrics.
    - `level`: confidence level of the intervals.
    - `seed`: random seed.
    - `replications`: number of runs with different seeds, from which the spread is estimated without a fit.
    - `pages_per_vcpu`: simulated pages per vCPU.
    - `unknown_costs`: treatment of a cost that the programs spend and that neither the scenario nor a fit has.
      ``"sample"``: the cost is sampled from its prior, which widens the intervals; ``"median"``: it is the prior's
      median; ``"exact"``: the scenario is refused.
    - `progress`: called with (stage, share done), and before a long run with its expected duration.
    - `factors`: factors for known costs, by the scenario's name; not an argument of `simlib.predict`.
    """

    fit: AnyFit | None = None
    metrics: Sequence[str] | None = None
    level: float = LEVEL
    seed: int = 1
    replications: int = 5
    pages_per_vcpu: int = PAGES_PER_VCPU
    unknown_costs: UnknownCosts = "sample"
    progress: Progress | None = None
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class PredictionKeywords(TypedDict, total=False):
    """`PredictionOptions` as keyword arguments of `simlib.predict` and `simlib.compare`."""

    fit: AnyFit | None
    metrics: Sequence[str] | None
    level: float
    seed: int
    replications: int
    pages_per_vcpu: int
    unknown_costs: UnknownCosts
    progress: Progress | None
