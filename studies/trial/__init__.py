# SPDX-License-Identifier: BSD-3-Clause
"""Series of patches that were tried in the lab: what each changes, and what that means on hardware."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress, subprogress
from simlib.lab import Trial
from simlib.lab.hardware.prediction import OnHardware, on_hardware
from simlib.lab.trial.data import read_trials
from simlib.lab.trial.differences import CHANGED, TOO_FEW
from simlib.measurements import load
from studies.study import COLUMNS, Answer, Study, StudyFindings
from studies.trial.comparison import own_patches, seed_001, seed_002

SEED_001, SEED_002 = "clear-batch", "lockless"
"""The trials of what the April 2024 mail and the 2013 series change."""

SAID = {
    "yield-order": "no change but one check less for each entry of a walk",
    "collapse-flush": "one flush of all TLBs where there was one for each table",
    "arm64-destroy": "the same time, and no soft lockup of a large VM",
    "ring-resched": "no stall of the CPU that resets a ring",
    "rmap-lock": "walks of rmaps that need no mmu_lock",
}
"""What authors say of series after 6.12 that were written anew (``kernel-patches/tried``, 0016)."""


@dataclass(frozen=True)
class TrialFindings(StudyFindings):
    """What the study found.

    - `trials`: by name.
    - `meant`: the trial of `SEED_001` on hardware.
    """

    trials: dict[str, Trial]
    meant: OnHardware


def compute(*, seed: int = 1, progress: Progress | None = None) -> TrialFindings:
    """Judge the trials again, and carry two of them to hardware, beside what was published."""
    trials = read_trials(load("tried"))
    meant = on_hardware(trials[SEED_001], vcpus=(1, 4, 16), seed=seed, progress=subprogress(progress, 0.0, 0.5))
    tables = {
        "tries": tries(trials),
        "own": own_patches(trials),
        "seed-001": seed_001(trials[SEED_001], seed, subprogress(progress, 0.5, 0.8)),
        "seed-002": seed_002(trials[SEED_002]),
    }
    return TrialFindings(pd.DataFrame(columns=list(COLUMNS)), tables, trials, meant)


def tries(trials: dict[str, Trial]) -> pd.DataFrame:
    """What came of each trial: ``trial``, ``mmu_mode``, ``compared``, ``changed``, ``too_few``, ``most``, ``said``.

    ``most`` is the number that changed most of those that both kernels have, ``said`` what its author said.
    """
    rows = []
    for name, trial in trials.items():
        for mode in trial.mmu_modes:
            own = [one for one in trial.differences if one.mmu_mode == mode]
            changed = [one for one in own if one.verdict == CHANGED]
            both = [one for one in changed if any(one.base) and any(one.changed)]  # neither new nor gone
            most = max(both, key=lambda one: max(one.ratio, 1 / one.ratio), default=None)
            words = "" if most is None else f"{most.cell}, {most.quantity.of}: {most.quantity.what} × {most.ratio:.3g}"
            few = sum(one.verdict == TOO_FEW for one in own)
            rows.append((name, mode, len(own), len(changed), few, words, SAID.get(name, "")))
    columns = ["trial", "mmu_mode", "compared", "changed", "too_few", "most", "said"]
    return pd.DataFrame(rows, columns=columns)


def answer(found: TrialFindings) -> Answer:
    """What letting go at each word of CLEAR does, in the lab and on hardware."""
    lab = found.trials[SEED_001].frame().query("cell == 'load' and what == 'time a dirty page' and of == 'clear'")
    lab = lab.sort_values("ratio").iloc[[0, -1]]
    longer = [f"{100 * (row['ratio'] - 1):.0f} % on {row['mmu_mode']}" for row in lab.to_dict("records")]
    hardware = found.meant.frame.query("policy == 'with' and vcpus == 16 and metric == 'clear_dirty_log_time'")
    hosts = hardware.sort_values("change_percent").iloc[[0, -1]]
    there = [f"{row['change_percent']:.0f} % ({row['mmu_mode']})" for row in hosts.to_dict("records")]
    none = found.tables["tries"].query("trial in @SAID and changed == 0")
    return Answer(
        f"Letting go at each word makes CLEAR of a page between {longer[0]} and {longer[1]} longer with 4 vCPUs in the "
        f"lab. With 16 on hardware the model has {there[0]} to {there[1]}. Of {len(SAID)} series of others, "
        f"{len(none)} changed none of the numbers that were compared."
    )


STUDY = Study(
    "trial",
    "Series tried in the lab",
    ("16-a-patch-tried",),
    ("tried", "x86-clear-lock-drop-configurations", "x86-get-dirty-log-lockless"),
    compute,
    answer,
    runtime_s=55,
)
