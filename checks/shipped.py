# SPDX-License-Identifier: BSD-3-Clause
"""Compute anew what data/fits ships of studies, and write it there.

    python checks/shipped.py x86-published | x86-growth | april-2024-settings

The costs of the published x86 hosts; each reading of why x86's faults take longer with more vCPUs (minutes); every
setting of its workload that the April 2024 mail does not state (twenty minutes on two cores).
"""

from __future__ import annotations

import sys
from pathlib import Path

from simlib.cli.output import progress_bar
from simlib.files import write_text, write_together
from simlib.fits.file import fit_text
from simlib.studies.migrations import settings
from simlib.studies.x86.growth import growth_fits
from simlib.studies.x86.hosts import x86_fit

FITS = Path(__file__).parents[1] / "data" / "fits"


def main(name: str) -> None:
    """Compute and write."""
    with progress_bar() as progress:
        if name == "x86-published":
            write_text(FITS / f"{name}.json", fit_text(x86_fit(progress)))
        elif name == "x86-growth":
            few = {"train": "vcpus <= 16"}
            fits = {key: fit.with_meta(**few) if "-few" in key else fit for key, fit in growth_fits(progress).items()}
            write_together(FITS / name, {f"{key}.json": fit_text(fit) for key, fit in fits.items()})
        elif name == "april-2024-settings":
            table = settings.simulate_grid(progress)
            write_text(FITS / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
