# SPDX-License-Identifier: BSD-3-Clause
"""Recompute the fits of studies that are shipped in data/fits, and write them there.

    python checks/shipped.py ampere-altra | x86-published | x86-growth | april-2024-settings | lab-instruction-times

The costs of the Ampere Altra; those of the published x86 hosts; the fits of all hypotheses about the growth of x86's
fault time with the vCPUs (minutes); the combinations of the settings that the April 2024 mail does not state (twenty
minutes on two cores); the time of an instruction of the lab on hardware.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pandas as pd

from simlib._lib import parallel
from simlib._lib.files import write_text, write_together
from simlib.analysis.calibrate.fit import calibrate
from simlib.analysis.calibrate.problem import Problem
from simlib.lab.hardware import translation
from simlib.measurements.fits import Fit
from simlib.measurements.fits.file import fit_text
from simlib.ui.cli.output import progress_bar
from studies.arm64 import altra
from studies.lab import translation as lab_translation
from studies.migrations import settings
from studies.study import shipped_fit
from studies.x86 import growth
from studies.x86.hosts import configurations, x86_fit

FITS = Path(__file__).parents[1] / "data" / "fits"


def growth_fits(progress: parallel.Progress) -> dict[str, Fit]:
    """Compute the fits of the growth by file name: hypotheses on few and on all vCPUs, shadow paging, arm64."""
    known = growth.hypotheses()
    problems = {f"{name}-few": growth.hypothesis_problem(hypothesis) for name, hypothesis in known.items()}
    problems |= {f"{name}-all": growth.hypothesis_problem(known[name], None) for name in growth.PLAUSIBLE}
    problems |= {f"arm64-{'grows' if grows else 'constant'}": growth.arm64_problem(grows) for grows in (False, True)}
    chosen = f"{growth.CHOSEN}-all"
    tasks = [partial(_calibrated, problem, name in (chosen, "arm64-grows")) for name, problem in problems.items()]
    fits = dict(zip(problems, parallel.run_all(tasks, "hypotheses of the growth", progress), strict=True))
    paging = calibrate(growth.paging_problem(fits[chosen].estimate), profile=False)
    fits |= {"shadow-paging-few": paging}
    return {name: fit.with_meta(train="vcpus <= 16") if "-few" in name else fit for name, fit in fits.items()}


def _calibrated(problem: Problem, profile: bool, check: parallel.Check) -> Fit:
    return calibrate(problem, profile=profile, progress=lambda *_: check(0, 0))


def april_2024_settings(progress: parallel.Progress) -> pd.DataFrame:
    """Simulate the combinations of the settings that the mail does not state, as in `settings.load_grid`."""
    fit, grid = shipped_fit(configurations()), settings.grid()
    tasks = [partial(settings.changes, setting, fit.estimate) for setting in grid]
    rows = parallel.run_all(tasks, "the April 2024 mail's settings", progress)
    return pd.concat(
        [pd.DataFrame(grid), pd.DataFrame(rows, columns=[*map(settings.column, settings.NUMBERS)])], axis=1
    )


def main(name: str) -> None:
    """Compute and write a fit."""
    with progress_bar() as progress:
        if name == "ampere-altra":
            write_text(FITS / f"{name}.json", fit_text(altra.calibrate_training_rows(progress=progress)))
        elif name == "x86-published":
            write_text(FITS / f"{name}.json", fit_text(x86_fit(progress)))
        elif name == "x86-growth":
            write_together(FITS / name, {f"{key}.json": fit_text(fit) for key, fit in growth_fits(progress).items()})
        elif name == "april-2024-settings":
            write_text(FITS / f"{name}.csv", april_2024_settings(progress).to_csv(index=False, float_format="%.6g"))
        elif name == "lab-instruction-times":
            write_text(FITS / translation.FILE, lab_translation.shipped_text())
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
