# SPDX-License-Identifier: BSD-3-Clause
"""How often the intervals of calibrated costs and of predictions cover: the table of docs/statistics.md.

The costs fitted to the January 2022 series are the truth. A synthetic data set is the model's values times lognormal
deviations, each metric's own: noise and what the model lacks are not told apart in a calibration, and so not here.
Calibrations run on polynomials in place of the engine (surrogate.py); all else is `simlib.analysis.calibrate` as it is.
``--write`` puts the table into docs/statistics.md. Ends with status 1 if a coverage lies outside 85 to 95 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from surrogate import CHECKED, DEGREE, RUNS, fit_surrogate

from simlib._lib.files import write_text
from simlib._lib.parallel import Progress
from simlib.analysis.calibrate.fit import calibrate
from simlib.analysis.calibrate.problem import Problem
from simlib.analysis.predict import LEVEL, Values, interval, steps_of
from simlib.measurements import data_dir
from simlib.measurements.fits import BOUNDS, CostEstimate, Fit, load_fit
from simlib.simulator.workloads.metrics import split_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"

BAR = (0.85, 0.95)
"""Share of the 90 % intervals that must cover."""

SEED = 1

SETS = 300
"""Synthetic data sets; a coverage of 90 % then has a standard error of 1.7 %."""

HALF_WIDTH = 3.5
"""Standard deviations of each cost on either side that the box of costs reaches: there the polynomials are close."""

WIDE = 6.0
"""The same for a box in which the model bends as it does towards the bounds, if not in each row as the engine does."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """What covered what.

    - `table`: one row an interval: kind (``cost``, or ``held-out`` value of a metric), name, intervals (how many),
      covered (share), low, high (95 % Clopper-Pearson interval of that share).
    - `level`: what the intervals are meant to cover.
    - `valid`: share of the calibrations for which each flag holds.
    """

    table: pd.DataFrame
    sets: int
    level: float
    valid: dict[str, float]


@dataclass(frozen=True)
class Design:
    """Which rows there are, and how far they deviate.

    - `vcpus`: vCPUs of each metric, or of one variant's (``"contentions of spinlock-old-test"``).
    - `trained`: rows with more vCPUs are held out.
    - `deviations`: standard deviation of the logarithm of an observation, by metric.
    """

    vcpus: Mapping[str, tuple[int, ...]]
    trained: int
    deviations: Mapping[str, float]

    def problem(self, fit: Fit) -> Problem:
        """The problem of these rows, in which the measured values are still to be filled in.

        - `fit`: its costs are those to determine; its scenario has variants.
        """
        rows = [
            {"table": "synthetic", "variant": variant, "vcpus": n, "metric": name.partition(" of ")[0], "value": 1.0}
            for name, numbers in self.vcpus.items()
            for variant in fit.scenario.variants
            if name.partition(" of ")[2] in ("", variant)
            for n in numbers
        ]
        frame = pd.DataFrame(rows)
        frame["train"] = frame["vcpus"] <= self.trained
        bounds = np.log([BOUNDS[name.partition("[")[0]] for name in fit.estimate.names])
        return Problem(fit.scenario, frame, fit.estimate.names, np.asarray(bounds, dtype=np.float64), "synthetic")


def published_design(fit: Fit) -> Design:
    """The January 2022 series' rows, deviating as its fit found them to."""
    vcpus = {"dirty_memory_time": (1, 2, 4, 8, 16, 32, 64), "contentions of spinlock-old-test": (2, 4, 8, 16, 32, 64)}
    time = fit.estimate.discrepancy
    return Design(vcpus, 8, {"dirty_memory_time": time, "contentions": time * fit.estimate.spread["contentions"]})


UNLIKE = Design(
    {"dirty_memory_time": (1, 2, 3, 4, 6, 8, 16), "contentions of spinlock-old-test": (2, 3, 4, 6, 8, 16),
     "contentions of rwlock-old-test": (4, 6, 8, 16)}, 8, {"dirty_memory_time": 0.01, "contentions": 0.05},
)  # fmt: skip
"""Enough counts to tell their own deviation, which is five times that of a time and not twice."""


def coverage(
    problem: Problem,
    truth: FloatArray,
    deviations: Mapping[str, float],
    *,
    sets: int = SETS,
    level: float = LEVEL,
    seed: int = 1,
    progress: Progress | None = None,
) -> Coverage:
    """Calibrate synthetic data sets and count which intervals cover what they should.

    Returns: A cost's interval is to cover the true cost; a prediction's a held-out value with its deviation, which is
    what somebody will measure.

    - `problem`: which observations there are, and which are held out. A `surrogate.SurrogateProblem` takes a fraction
      of a second a set, the engine half a minute.
    - `truth`, shape (costs,): logarithms of the costs that the data come from.
    - `deviations`: standard deviation of the logarithm of an observation, by metric.
    - `seed`: root of the deviations; set k draws from (seed, k).
    - `progress`: called with (what, share done).
    """
    rows = problem.observations
    exact = problem.model(truth, rows, 0, 0)
    width = np.array([deviations[split_name(metric)[0]] for metric in rows["metric"]])
    held = rows[~rows["train"]]
    costs, predicted, flags = [], [], []
    for k in range(sets):
        values = exact * np.exp(width * np.random.default_rng((seed, k)).standard_normal(len(rows)))
        fit = calibrate(dataclasses.replace(problem, observations=rows.assign(value=values), simulated={}), level=level)
        low, high = np.log(fit.parameters[["low", "high"]].to_numpy()).T
        costs.append((low <= truth) & (truth <= high))
        predicted.append(_covered(problem, fit.estimate, held, values[held.index], level))
        flags.append(fit.valid)
        if progress is not None:
            progress("calibrating synthetic data", (k + 1) / sets)
    inside, metrics = np.array(predicted), [split_name(metric)[0] for metric in held["metric"]]
    parts = [_share("cost", name, found) for name, found in zip(problem.names, np.array(costs).T, strict=True)]
    columns = {metric: [m == metric for m in metrics] for metric in metrics}
    parts += [_share("held-out", metric, inside[:, of_metric]) for metric, of_metric in columns.items()]
    valid = {name: float(np.mean([of_set[name] for of_set in flags])) for name in flags[0]}
    return Coverage(pd.DataFrame(parts), sets, level, valid)


def _covered(
    problem: Problem, estimate: CostEstimate, rows: pd.DataFrame, values: FloatArray, level: float
) -> NDArray[np.bool_]:
    """Which values lie in the intervals that a prediction gives with these costs."""
    moved = estimate.logs + np.kron(np.diag(steps_of(estimate)), [[-1.0], [1.0]])
    model = problem.model(np.vstack([estimate.logs, moved]), rows, 0, 0)
    all_known = Values(model, np.empty((0, len(rows))), ())
    spread = all_known.spread()
    found = [interval(all_known, i, estimate, level, spread, metric) for i, metric in enumerate(rows["metric"])]
    return np.array([low <= value <= high for (_, low, high), value in zip(found, values, strict=True)])


def _share(kind: str, name: str, covered: NDArray[np.bool_]) -> dict[str, object]:
    """The share that covered; of several intervals of each set the uncertainty is that of as many sets."""
    sets, share = len(covered), float(covered.mean())
    hits = share * sets
    low = float(stats.beta.ppf(0.025, hits, sets - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(0.975, hits + 1, sets - hits)) if hits < sets else 1.0
    return {"kind": kind, "name": name, "intervals": covered.size, "covered": share, "low": low, "high": high}


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
        "rows of the January 2022 series": (published_design(fit), HALF_WIDTH),
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
