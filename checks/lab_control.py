# SPDX-License-Identifier: BSD-3-Clause
"""Whether `simlib lab try` finds what is wrong, and how often it calls something changed where nothing is.

Kernels that lose writes (`kernel-patches/tried/wrong`) have to be found.

The kernel without a series is built in 12 layouts and booted as a trial boots it. Random divisions into two halves, of
as many layouts as a trial has, are then compared as two kernels are. They share their boots, so that they are no
independent trials.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from simlib.lab.cache import at_work
from simlib.lab.patches import read_series
from simlib.lab.qemu import find_qemu
from simlib.lab.trial.cells import designs, target_of
from simlib.lab.trial.differences import ALPHA, CHANGED, compare, judge
from simlib.lab.trial.kernels import WITHOUT, Kernel, open_source
from simlib.lab.trial.machine import BootedKernels, How, Runs, boot, layouts_of, steps
from simlib.lab.trial.run import try_series
from simlib.lab.trial.series import MEASURES
from simlib.lab.trial.tree import stage_own
from simlib.ui.cli.output import progress_bar

WRONG = Path(__file__).parents[1] / "kernel-patches" / "tried" / "wrong"
RIGHT_THERE = {("riscv64/h", "lost-flush.patch")}
"""Machines on which such a kernel loses nothing: riscv flushes in its own code, too."""

LAYOUTS, DIVISIONS, MOST = 12, 300, 3 * ALPHA
"""Layouts, divisions of them, and the share of the latter that may call anything changed."""


def booted(machine: str) -> Runs:
    """What all layouts gave, by cell."""
    with progress_bar() as progress, at_work(alone=True):
        source = open_source(progress=steps(progress))
        staged = stage_own(source.pristine, read_series(), MEASURES, source.folder / "stage" / "control")
        built = layouts_of(machine, source, Kernel(WITHOUT, staged), LAYOUTS, progress)
        own = [replace(design, layouts=LAYOUTS) for design in designs(machine, quick=True)]
        return boot(machine, own, [built], find_qemu(target_of(machine)), How(quick=True), progress, BootedKernels())[0]


def divide(runs: Runs, machine: str, layouts: int, generator: np.random.Generator) -> list[str]:
    """What a random division into two halves calls changed, in words."""
    selected = generator.permutation(LAYOUTS)[: 2 * layouts].tolist()
    found = []
    for cell, mine in runs.items():
        each = len(mine) // LAYOUTS
        halves = [
            [mine[layout * each + seed] for layout in half for seed in range(each)]
            for half in (selected[:layouts], selected[layouts:])
        ]
        found += compare(machine, cell, *halves)
    return [f"{one.cell}, {one.quantity.of}: {one.quantity.what}" for one in judge(found) if one.verdict == CHANGED]


def not_found(machine: str) -> list[str]:
    """The wrong kernels in which no lost write was found."""
    missed = []
    for patch in sorted(path for path in WRONG.glob("*.patch") if (machine, path.name) not in RIGHT_THERE):
        with progress_bar() as progress:
            failed = try_series(patch, machines=[host], quick=True, progress=progress).failures.get(machine, "")
        print(f"{machine}, {patch.name}: {failed or 'nothing found'}")
        missed += [patch.name] * ("Lost a write" not in failed)
    return missed


def main(machine: str) -> None:
    """Try the wrong kernels, and count divisions that call anything changed. Ends with 1 if either is not as meant."""
    missed = not_found(machine)
    runs, generator = booted(machine), np.random.default_rng(1)
    layouts = max(design.layouts for design in designs(machine, quick=True))
    wrong = [found for _ in range(DIVISIONS) if (found := divide(runs, machine, layouts, generator))]
    for found in wrong:
        print("; ".join(found))
    print(f"{machine}: {len(wrong)} of {DIVISIONS} divisions call something changed ({ALPHA:.0%} is meant)")
    if missed or len(wrong) > MOST * DIVISIONS:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "x86_64/shadow")
