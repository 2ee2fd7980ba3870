# SPDX-License-Identifier: BSD-3-Clause
"""How often the intervals of calibrated costs and of predictions cover: the table of docs/statistics.md.

The costs of seed 000's fit are the truth; synthetic data sets of two designs are drawn from it and calibrated.
``--write`` puts the table into docs/statistics.md. Ends with status 1 if a coverage lies outside 85 to 95 %.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from simlib.calibration.coverage import HALF_WIDTH, SETS, UNLIKE, WIDE, Coverage, coverage, published_design
from simlib.calibration.surrogate import CHECKED, DEGREE, RUNS, fit_surrogate
from simlib.files import write_text
from simlib.fits import load_fit
from simlib.measurements import data_dir

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"

BAR = (0.85, 0.95)
"""Share of the 90 % intervals that must cover."""

SEED = 1


def tell(what: str, share: float) -> None:
    """Say how far it is, once every tenth."""
    if int(share * 10) != told.get(what):
        told[what] = int(share * 10)
        print(f"{what}: {share:.0%}", file=sys.stderr, flush=True)


told: dict[str, int] = {}


def page(found: dict[str, Coverage], errors: dict[str, pd.DataFrame]) -> str:
    """The table and what to know of it, as the page has it."""
    shares = pd.concat(
        [one.table.set_index(["kind", "name"])["covered"].rename(name) for name, one in found.items()], axis=1
    )
    lines = ["| interval | " + " | ".join(shares.columns) + " |", "|---" * (len(shares.columns) + 1) + "|"]
    for (kind, name), row in shares.iterrows():
        what = f"`{name}`" if kind == "cost" else f"held-out `{name}`"
        lines.append(f"| {what} | " + " | ".join(f"{share:.1%}" for share in row) + " |")
    one = next(iter(found.values()))
    wide = errors["the same, wide box"]
    off = pd.concat([frame for frame in errors.values() if frame is not wide])
    times = off[off["metric"] == "dirty_memory_time"]
    counts = off[off["metric"] == "contentions"]
    words = (
        f"Share of {100 * one.level:.0f} % intervals that covered, over {one.sets} synthetic data sets a design "
        f"(seed {SEED}; the standard error of 90 % is {np.sqrt(0.9 * 0.1 / one.sets):.1%}). The polynomials (degree "
        f"{DEGREE}, {RUNS} runs) are off by {times['rms'].max():.2%} of a time and {counts['rms'].max():.2%} of a "
        f"count in the worst row (root mean square over {CHECKED} fresh points); in the wide box by "
        f"{wide['rms'].max():.1%}."
    )
    return f"{BEGIN}\n{textwrap.fill(words, 118)}\n\n" + "\n".join(lines) + f"\n{END}"


def main() -> None:
    """Run the study and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=SETS, help="synthetic data sets a design")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    arguments = parser.parse_args()
    fit = load_fit(data_dir() / "fits" / "ampere-altra.json")
    deviations = np.sqrt(np.diag(fit.estimate.covariance))
    designs = {
        "rows of seed 000": (published_design(fit), HALF_WIDTH),
        "the same, wide box": (published_design(fit), WIDE),
        "more rows, counts 5 times as noisy": (UNLIKE, HALF_WIDTH),
    }
    found, errors = {}, {}
    for name, (design, width) in designs.items():
        told.clear()
        logs = fit.estimate.logs
        problem, errors[name] = fit_surrogate(design.problem(fit), logs, width * deviations, progress=tell)
        found[name] = coverage(
            problem, fit.estimate.logs, design.deviations, sets=arguments.sets, seed=SEED, progress=tell
        )
    text = page(found, errors)
    print(f"\n{text}")
    for name, one in found.items():
        print(one.table.to_string(index=False), one.valid, sep="\n", file=sys.stderr)
        outside = one.table[~one.table["covered"].between(*BAR)]
        if len(outside):
            print(f"{name}: outside {BAR}: {', '.join(outside['name'])}", file=sys.stderr)
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :])
    sys.exit(any(not one.table["covered"].between(*BAR).all() for one in found.values()))


if __name__ == "__main__":
    main()
