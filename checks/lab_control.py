# SPDX-License-Identifier: BSD-3-Clause
"""Check the sensitivity and the false-positive rate of `simlib lab try`.

The command must detect the kernels that lose writes (`kernel-patches/tried/wrong`).

The kernel without a series is built in 12 layouts and booted as in a trial. Random divisions of the layouts into two
halves, of the size that a trial has, are then compared as two kernels. The divisions share their boots, so they are not
independent trials.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from simlib.lab.cache import lab_lock
from simlib.lab.patches import read_series
from simlib.lab.qemu import find_qemu
from simlib.lab.trial.cells import designs, target_of
from simlib.lab.trial.differences import ALPHA, CHANGED, assign_verdicts, compare
from simlib.lab.trial.kernels import WITHOUT_SERIES, Kernel, open_source
from simlib.lab.trial.mode_trial import ModeTrial, Runs, TrialOptions, report_steps
from simlib.lab.trial.run import try_series
from simlib.lab.trial.series import MEASURING_PATCHES
from simlib.lab.trial.tree import stage_bundled
from simlib.ui.cli.output import progress_bar

WRONG = Path(__file__).parents[1] / "kernel-patches" / "tried" / "wrong"
HARMLESS = {("riscv64/h", "lost-flush.patch")}
"""MMU modes in which a wrong kernel loses no write: riscv also flushes in its own code."""

LAYOUTS, DIVISIONS, MAX_SHARE = 12, 300, 3 * ALPHA
"""Layouts, divisions of them, and the largest share of divisions that may report a change."""


def collect_runs(mmu_mode: str) -> Runs:
    """Boot all layouts of the kernel without a series, and return their runs by cell."""
    with progress_bar() as progress, lab_lock(exclusive=True):
        source = open_source(progress=report_steps(progress))
        staged = stage_bundled(source.pristine, read_series(), MEASURING_PATCHES, source.folder / "stage" / "control")
        trial = ModeTrial(mmu_mode, source, find_qemu(target_of(mmu_mode)), TrialOptions(quick=True))
        built = trial.build_layouts(Kernel(WITHOUT_SERIES, staged), LAYOUTS, progress)
        selected = [replace(design, layouts=LAYOUTS) for design in designs(mmu_mode, quick=True)]
        return trial.boot(selected, [built], progress)[0]


def compare_halves(runs: Runs, mmu_mode: str, layouts: int, generator: np.random.Generator) -> list[str]:
    """Compare the halves of a random division, and return the quantities that are reported as changed."""
    selected = generator.permutation(LAYOUTS)[: 2 * layouts].tolist()
    differences = []
    for cell, cell_runs in runs.items():
        seeds = len(cell_runs) // LAYOUTS
        halves = [
            [cell_runs[layout * seeds + seed] for layout in half for seed in range(seeds)]
            for half in (selected[:layouts], selected[layouts:])
        ]
        differences += compare(mmu_mode, cell, *halves)
    return [
        f"{number.cell}, {number.quantity.of}: {number.quantity.what}"
        for number in assign_verdicts(differences)
        if number.verdict == CHANGED
    ]


def undetected(mmu_mode: str) -> list[str]:
    """Try the wrong kernels, and return the patches whose lost writes are not detected."""
    missed = []
    for patch in sorted(path for path in WRONG.glob("*.patch") if (mmu_mode, path.name) not in HARMLESS):
        with progress_bar() as progress:
            trial = try_series(patch, TrialOptions(mmu_modes=[mmu_mode], quick=True), progress=progress)
        failure = trial.failures.get(mmu_mode, "")
        print(f"{mmu_mode}, {patch.name}: {failure or 'no failure'}")
        missed += [patch.name] * ("Lost a write" not in failure)
    return missed


def main(mmu_mode: str) -> None:
    """Try the wrong kernels, and count the divisions that report a change; exit with 1 if a check fails."""
    missed = undetected(mmu_mode)
    runs, generator = collect_runs(mmu_mode), np.random.default_rng(1)
    layouts = max(design.layouts for design in designs(mmu_mode, quick=True))
    results = (compare_halves(runs, mmu_mode, layouts, generator) for _ in range(DIVISIONS))
    wrong = [changed for changed in results if changed]
    for changed in wrong:
        print("; ".join(changed))
    print(f"{mmu_mode}: {len(wrong)} of {DIVISIONS} divisions report a change (nominal: {ALPHA:.0%})")
    if missed or len(wrong) > MAX_SHARE * DIVISIONS:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "x86_64/shadow")
