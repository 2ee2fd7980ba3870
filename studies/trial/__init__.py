# SPDX-License-Identifier: BSD-3-Clause
"""Patch series tried in the lab: their changes, and the predictions for hardware."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.figures.results import Answer
from simlib.lab import Trial
from simlib.lab.hardware.prediction import OnHardware, on_hardware
from simlib.lab.trial.differences import CHANGED, TOO_FEW
from simlib.lab.trial.result import read_trials
from simlib.measurements import load
from studies.study import COLUMNS, Study, StudyFindings
from studies.trial.comparison import own_patches, seed_001, seed_002

SEED_001, SEED_002 = "clear-batch", "lockless"
"""The trials of what the April 2024 mail and the 2013 series change."""

AUTHORS_CLAIMS = {
    "yield-order": "no change except one check fewer per entry of a walk",
    "collapse-flush": "one flush of all TLBs instead of one for each table",
    "arm64-destroy": "an unchanged time, and no soft lockup with a large VM",
    "ring-resched": "no stall of the CPU that resets a ring",
    "rmap-lock": "rmap walks without mmu_lock",
}
"""Claims of authors of series after Linux 6.12; the lab has reimplementations (``kernel-patches/tried``, 0016)."""


@dataclass(frozen=True)
class TrialFindings(StudyFindings):
    """Findings of the study.

    - `trials`: trials by name.
    - `hardware`: predictions for hardware from the trial of `SEED_001`.
    """

    trials: dict[str, Trial]
    hardware: OnHardware


def compute(*, seed: int = 1, progress: Progress | None = None) -> TrialFindings:
    """Assign verdicts to the trials again, and predict two of them on hardware, to compare with published changes."""
    trials = read_trials(load("tried"))
    hardware = on_hardware(trials[SEED_001], vcpus=(1, 4, 16), seed=seed, progress=subprogress(progress, 0.0, 0.5))
    tables = {
        "tries": tries(trials),
        "own": own_patches(trials),
        "seed-001": seed_001(trials[SEED_001], seed, subprogress(progress, 0.5, 0.8)),
        "seed-002": seed_002(trials[SEED_002]),
    }
    return TrialFindings(pd.DataFrame(columns=list(COLUMNS)), tables, trials, hardware)


def tries(trials: dict[str, Trial]) -> pd.DataFrame:
    """Summarise each trial: ``trial``, ``mmu_mode``, ``compared``, ``changed``, ``too_few``, ``most``, ``claim``.

    ``most`` is the largest change of a number that both kernels have, ``claim`` the author's claim.
    """
    rows = []
    for name, trial in trials.items():
        for mode in trial.mmu_modes:
            compared = [row for row in trial.differences if row.mmu_mode == mode]
            changed = [row for row in compared if row.verdict == CHANGED]
            in_both = [row for row in changed if any(row.base) and any(row.changed)]  # neither new nor gone
            most = max(in_both, key=lambda row: max(row.ratio, 1 / row.ratio), default=None)
            words = "" if most is None else f"{most.cell}, {most.quantity.of}: {most.quantity.what} × {most.ratio:.3g}"
            few = sum(row.verdict == TOO_FEW for row in compared)
            rows.append((name, mode, len(compared), len(changed), few, words, AUTHORS_CLAIMS.get(name, "")))
    columns = ["trial", "mmu_mode", "compared", "changed", "too_few", "most", "claim"]
    return pd.DataFrame(rows, columns=columns)


def answer(findings: TrialFindings) -> Answer:
    """Answer of notebook 16."""
    lab = findings.trials[SEED_001].frame().query("cell == 'load' and what == 'time a dirty page' and of == 'clear'")
    lab = lab.sort_values("ratio").iloc[[0, -1]]
    longer = [f"{100 * (row['ratio'] - 1):.0f} % on {row['mmu_mode']}" for row in lab.to_dict("records")]
    hardware = findings.hardware.frame.query("policy == 'with' and vcpus == 16 and metric == 'clear_dirty_log_time'")
    hosts = hardware.sort_values("change_percent").iloc[[0, -1]]
    there = [f"{row['change_percent']:.0f} % ({row['mmu_mode']})" for row in hosts.to_dict("records")]
    none = findings.tables["tries"].query("trial in @AUTHORS_CLAIMS and changed == 0")
    return Answer(
        f"Dropping the lock after each word lengthens CLEAR, per page, by {longer[0]} to {longer[1]} with 4 vCPUs in "
        f"the lab. For 16 vCPUs on hardware, the model predicts a change of {there[0]} to {there[1]}. Of "
        f"{len(AUTHORS_CLAIMS)} series by other authors, {len(none)} changed none of the compared numbers."
    )


TABLES = ("tried", "x86-clear-lock-drop-configurations", "x86-get-dirty-log-lockless")
STUDY = Study("trial", "Series tried in the lab", ("16-a-patch-tried",), TABLES, compute, answer, runtime_s=55)
