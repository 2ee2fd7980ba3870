# SPDX-License-Identifier: BSD-3-Clause
"""Options of `simlib.choose` and `simlib.choose_batch`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.choose.objectives import Objective, objective
from simlib.measurements.fits import AnyFit


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Costs, criteria, random seed and reporting of a choice.

    Raises `InputError` if a value is invalid.

    - `fit`: calibrated costs. By default the shipped fit for the scenario's host, if there is one. Costs that neither
      the scenario nor the fit has are drawn from the priors.
    - `objective`: objective to optimise: a name in `simlib.analysis.choose.objectives.OBJECTIVES`. It comes first in
      the sentences and the tables; all objectives are evaluated.
    - `weight`: value of one second of vCPU time, in seconds of the clearing thread, for the weighted cost.
    - `indifference`: relative difference that counts as equal, as a share of an objective's best value; differences
      below `Objective.floor` count as equal, too.
    - `confidence`: joint confidence level of all intervals of differences.
    - `max_stall_s`: exclude strategies with which the longest stall of a migration exceeds this time, s, with a
      probability of more than 10 %: with the scenario's CLEARs, or with QEMU's of 1 GiB if the scenario's are smaller.
    - `seed`: random seed.
    - `announce`: called with a description of the runs, and their expected duration.
    - `progress`: called with (stage, share of all stages done).
    """

    fit: AnyFit | None = None
    objective: str = "cost"
    weight: float = 1.0
    indifference: float = 0.02
    confidence: float = 0.95
    max_stall_s: float | None = None
    seed: int = 1
    announce: Callable[[str], None] | None = None
    progress: parallel.Progress | None = None

    def __post_init__(self) -> None:
        objective(self.objective)
        if not 0 <= self.weight < math.inf:
            raise InputError("weight", self.weight, "must be finite and at least 0", "such as 1.0")
        if not 0 < self.indifference < 1:
            raise InputError("indifference", self.indifference, "must lie between 0 and 1",
                             "with 0.02, differences below 2 % count as equal")  # fmt: skip
        if not 0.5 < self.confidence < 1:
            raise InputError("confidence", self.confidence, "must lie between 0.5 and 1", "such as 0.95")
        if self.max_stall_s is not None and not 0 < self.max_stall_s < math.inf:
            raise InputError("max_stall_s", self.max_stall_s, "must be finite and above 0")

    def zone(self, value: float, criterion: Objective) -> float:
        """Return the width of the indifference zone around a value of an objective, s."""
        return max(self.indifference * value, criterion.floor)


class ChoiceKeywords(TypedDict, total=False):
    """`ChoiceOptions` as keyword arguments of `simlib.choose` and `simlib.choose_batch`."""

    fit: AnyFit | None
    objective: str
    weight: float
    indifference: float
    confidence: float
    max_stall_s: float | None
    seed: int
    announce: Callable[[str], None] | None
    progress: parallel.Progress | None
