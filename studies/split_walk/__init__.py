# SPDX-License-Identifier: BSD-3-Clause
"""arm64's eager split without the last level (the June 2026 mail): fits of the changes, and predictions from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from studies.split_walk import costs, extrapolation
from studies.split_walk.costs import HYPOTHESES, TABLES, WalkFit
from studies.study import Study, StudyFindings

DRAWS = 100
"""Number of draws of observations with the published standard deviations, for the intervals."""


@dataclass(frozen=True)
class SplitWalk(StudyFindings):
    """Findings on the eager-split walk: each machine's fit by the first hypothesis, and the lab's costs."""

    fits: tuple[WalkFit, ...]
    lab_costs: pd.Series

    @property
    def parameters(self) -> pd.DataFrame:
        """Ratios of costs of each machine, and of the lab's instructions."""
        parts = [fit.parameters.assign(machine=fit.machine) for fit in self.fits]
        lab = pd.DataFrame({"name": self.lab_costs.index[1:], "ratio": self.lab_costs[1:] / self.lab_costs.iloc[0]})
        table = pd.concat([*parts, lab.assign(machine="lab, instructions")], ignore_index=True)
        return table[["machine", "name", "ratio", "low", "high", "determined"]]

    @property
    def within(self) -> pd.Series:
        """True for fitted changes that are off by at most the published standard deviation or 2 percentage points."""
        return pd.concat([fit.observations["within"] for fit in self.fits], ignore_index=True)


def compute(*, seed: int = 1, progress: Progress | None = None) -> SplitWalk:
    """Fit the changes, predict each from the others, and predict other walks, page sizes and the lab."""
    report = progress or (lambda what, share: None)
    report("the eager-split walk", 0.0)
    fits = tuple(costs.fit(machine, draws=DRAWS, seed=seed) for machine in TABLES)
    other = costs.fit(hypothesis=HYPOTHESES[-1], draws=1)
    report("the eager-split walk, each change from the others", 0.3)
    parts = [costs.leave_one_out(machine, draws=DRAWS, seed=seed) for machine in TABLES]
    fitted = np.concatenate([fit.observations["fitted_percent"] for fit in fits])
    numbers = pd.concat(parts, ignore_index=True).assign(fitted=fitted)
    report("the eager-split walk, other hypotheses", 0.9)
    lab_costs, cells = extrapolation.lab_costs()
    tables = {
        "hypotheses": costs.hypotheses_table(),
        "other-walks": extrapolation.walks_table(fits[0]),
        "granules": extrapolation.granules_table(fits[0], other),
        "lab": extrapolation.lab_test(fits),
        "lab-cells": cells,
        "barrier": pd.concat(extrapolation.barrier_table(fit).assign(machine=fit.machine) for fit in fits),
        "engine": extrapolation.engine_table(fits[0]),
    }
    return SplitWalk(numbers, tables, fits, lab_costs)


def answer(findings: SplitWalk) -> Answer:
    """Return the conclusion: how many published changes the counts of visits explain."""
    errors = (findings.numbers["fitted"] - findings.numbers["published"]).abs()
    return Answer(
        f"{int(findings.within.sum())} of {len(findings.within)} published changes follow from the number of visited "
        f"entries, with four ratios of costs per machine; the largest error is {errors.max():.2g} percentage points. "
        "The ratios predict neither the lab's change in instructions nor the effect of moving a barrier in 2024."
    )


_INPUTS = (*(name for name, _ in TABLES.values()), "arm64-split-walk-barrier", "switches-ioctls")
_TITLE = "arm64's eager split without the last level"
STUDY = Study("split_walk", _TITLE, ("09-split-walk",), _INPUTS, compute, answer, runtime_s=17)
