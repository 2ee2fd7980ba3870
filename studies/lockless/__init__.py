# SPDX-License-Identifier: BSD-3-Clause
"""Getting the dirty log without mmu_lock (the 2013 series): measured, what it can mean, what would follow today."""

from __future__ import annotations

from dataclasses import dataclass

from simlib._lib.parallel import Progress
from studies.lockless import get_time, get_variants, kernbench
from studies.lockless.get_time import Budget, Walk
from studies.study import Answer, Found, Study


@dataclass(frozen=True)
class LocklessFindings(Found):
    """What the study found: the walk of the lab's prototype, and what two means can be made of."""

    walk: Walk
    budget: Budget


def compute(*, seed: int = 1, progress: Progress | None = None) -> LocklessFindings:
    """Test, determine, read, predict."""
    walk = get_time.fit_walk()
    budget, witness = get_time.budget(walk), get_time.witness(walk)
    predictions = get_variants.predictions(walk, seed=seed, progress=progress)
    tables = {
        "cells": kernbench.cells(),
        "kernbench": kernbench.comparison(),
        "kernbench-without-first": kernbench.comparison(skip=1),
        "readings": get_time.readings(budget, walk.ratio, witness),
        "lab": get_time.lab_comparison(walk),
        "witness": witness,
        "rewalks": get_time.rewalk_table(),
        "guests": get_variants.guests(walk),
        "predictions": predictions,
        "verdicts": get_variants.verdicts(predictions),
    }
    return LocklessFindings(kernbench.published_numbers(), tables, walk, budget)


def answer(found: LocklessFindings) -> Answer:
    """What the halving can be, and whether it is worth it."""
    return Answer(
        f"GET took {found.budget.means.ratio:.2f} of its time. A faster walk, fewer pages found, or one slow run "
        "explain that, and the mail cannot tell which. The guest gains nearly as much from a batch. GET itself stays "
        f"short only without the lock ({len(found.tables['verdicts'])} cases compared)."
    )


STUDY = Study(
    "lockless",
    "The dirty log without mmu_lock",
    ("07-lockless-write-protect",),
    ("x86-kernbench-lockless", "x86-get-dirty-log-lockless", "switches-ioctls", "switches-locks", "switches-stalls"),
    compute,
    answer,
    takes_s=50,
)
