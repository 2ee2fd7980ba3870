# SPDX-License-Identifier: BSD-3-Clause
"""arm64's eager split skips the last level (the June 2026 mail): what changes, what the costs foretell elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlib._lib.parallel import Progress
from studies.split_walk import costs, extrapolation
from studies.split_walk.costs import READINGS, TABLES, WalkFit
from studies.study import Answer, Found, Study

DRAWS = 100
"""Draws of the published deviations, for the intervals."""


@dataclass(frozen=True)
class SplitWalk(Found):
    """What the study found: a fit of each machine by the first reading, and the lab's own costs, instructions."""

    fits: tuple[WalkFit, ...]
    lab_costs: pd.Series

    @property
    def parameters(self) -> pd.DataFrame:
        """Ratios of costs of each machine, with the lab's, of instructions."""
        parts = [found.parameters.assign(machine=found.machine) for found in self.fits]
        lab = pd.DataFrame({"name": self.lab_costs.index[1:], "ratio": self.lab_costs[1:] / self.lab_costs.iloc[0]})
        table = pd.concat([*parts, lab.assign(machine="lab, instructions")], ignore_index=True)
        return table[["machine", "name", "ratio", "low", "high", "determined"]]

    @property
    def within(self) -> pd.Series:
        """Which fitted changes lie within the published deviation or 2 points."""
        return pd.concat([found.observations["within"] for found in self.fits], ignore_index=True)


def compute(*, seed: int = 1, progress: Progress | None = None) -> SplitWalk:
    """Fit, leave out, predict."""
    tell = progress or (lambda what, share: None)
    tell("the eager-split walk", 0.0)
    fits = tuple(costs.fit(machine, draws=DRAWS, seed=seed) for machine in TABLES)
    other = costs.fit(how=READINGS[-1], draws=1)
    tell("the eager-split walk, each change from the others", 0.3)
    outs = [costs.left_out(machine, draws=DRAWS, seed=seed) for machine in TABLES]
    fitted = np.concatenate([found.observations["fitted_percent"] for found in fits])
    numbers = pd.concat(outs, ignore_index=True).assign(fitted=fitted)
    tell("the eager-split walk, other readings", 0.9)
    lab_costs, cells = extrapolation.lab_costs()
    tables = {
        "readings": costs.readings_table(),
        "other-walks": extrapolation.walks_table(fits[0]),
        "granules": extrapolation.granules_table(fits[0], other),
        "lab": extrapolation.lab_test(fits),
        "lab-cells": cells,
        "barrier": pd.concat(extrapolation.barrier_table(found).assign(machine=found.machine) for found in fits),
        "engine": extrapolation.engine_table(fits[0]),
    }
    return SplitWalk(numbers, tables, fits, lab_costs)


def answer(found: SplitWalk) -> Answer:
    """How many of the changes follow from counting visits."""
    errors = (found.numbers["fitted"] - found.numbers["published"]).abs()
    return Answer(
        f"{int(found.within.sum())} of {len(found.within)} published changes follow from the entries that a walk "
        f"visits, with four ratios of costs for each machine; the worst is off by {errors.max():.2g} points. They "
        "predict neither the lab's change in instructions nor what moving a barrier changed in 2024."
    )


STUDY = Study(
    "split_walk",
    "arm64's eager split without the last level",
    ("09-split-walk",),
    (*(name for name, _ in TABLES.values()), "arm64-split-walk-barrier", "switches-ioctls"),
    compute,
    answer,
    takes_s=17,
)
