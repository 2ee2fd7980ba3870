# SPDX-License-Identifier: BSD-3-Clause
"""GET_DIRTY_LOG without mmu_lock (the 2013 series): published results, explanations, and predictions for today."""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.parallel import Progress
from simlib.figures.results import Answer
from studies.lockless import get_time, get_variants, kernbench
from studies.lockless.get_time import Budget, Walk
from studies.study import Study, StudyFindings


@dataclass(frozen=True)
class LocklessFindings(StudyFindings):
    """Findings on the 2013 series: the walk of the lab's prototype, and the arithmetic of the two published means."""

    walk: Walk
    budget: Budget


def compute(*, seed: int = 1, progress: Progress | None = None) -> LocklessFindings:
    """Test the kernbench runs, fit the lab's walk, evaluate the hypotheses of the means, and predict other guests."""
    walk = get_time.fit_walk()
    budget, settings = get_time.budget(walk), get_time.simulate_settings(walk)
    predictions = get_variants.predictions(walk, seed=seed, progress=progress)
    tables = {
        "cells": kernbench.cells(),
        "kernbench": kernbench.comparison(),
        "kernbench-without-first": kernbench.comparison(skip=1),
        "hypotheses": get_time.hypotheses(budget, walk.ratio, settings),
        "lab": get_time.lab_comparison(walk),
        "witness": settings,
        "rewalks": get_time.rewalk_table(),
        "guests": get_variants.guests(walk),
        "predictions": predictions,
        "verdicts": get_variants.verdicts(predictions),
    }
    return LocklessFindings(kernbench.published_numbers(), tables, walk, budget)


def answer(findings: LocklessFindings) -> Answer:
    """Return the conclusion: possible explanations of the shorter GET, and its benefit compared with batches."""
    return Answer(
        f"The series reduced the time of GET to {findings.budget.means.ratio:.2f} of its former value. A faster walk, "
        "fewer dirty pages or one slow run can explain it; the mail does not distinguish them. Dropping the lock "
        "in batches helps the guest nearly as much, but GET itself is short only without the lock "
        f"({len(findings.tables['verdicts'])} cases compared)."
    )


TABLES = (kernbench.RUNS, kernbench.GETS, "switches-ioctls", "switches-locks", "switches-stalls")
STUDY = Study(
    "lockless", "The dirty log without mmu_lock", ("07-lockless-write-protect",), TABLES, compute, answer, runtime_s=50
)
