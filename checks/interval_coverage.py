# SPDX-License-Identifier: BSD-3-Clause
"""Coverage of the intervals of calibrated costs and of predictions: the table of docs/statistics.md.

The costs fitted to the January 2022 series are the truth. A synthetic data set consists of the model's values times
lognormal deviations with a separate standard deviation for each metric: like a calibration, it does not distinguish
noise from errors of the model. Calibrations use polynomials in place of the engine (surrogate.py), and otherwise
`simlib.analysis.calibrate` unchanged. ``--write`` puts the table into docs/statistics.md. The exit status is 1 if a
coverage is outside 85 to 95 %.
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
from simlib.analysis.curve_points import Values, steps_of
from simlib.analysis.predict import interval
from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import data_dir
from simlib.measurements.fits import BOUNDS, CostEstimate, Fit, load_fit
from simlib.simulator.workloads.metrics import split_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "statistics.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"

BAR = (0.85, 0.95)
"""Required share of 90 % intervals that cover."""

SEED = 1

SETS = 300
"""Synthetic data sets; a coverage of 90 % then has a standard error of 1.7 %."""

HALF_WIDTH = 3.5
"""Half-width of the box of costs in standard deviations, within which the polynomials are accurate."""

WIDE_HALF_WIDTH = 6.0
"""Half-width of a wide box: there the polynomials are as nonlinear as the engine near the bounds, but less accurate."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """Coverage of intervals.

    - `table`: one row per interval: kind (``cost``, or ``held-out`` value of a metric), name, intervals (number),
      covered (share), low, high (95 % Clopper-Pearson interval of that share).
    - `level`: nominal coverage of the intervals.
    - `valid`: share of the calibrations for which each flag is true.
    """

    table: pd.DataFrame
    sets: int
    level: float
    valid: dict[str, float]


@dataclass(frozen=True)
class Design:
    """Rows of a synthetic data set and their deviations.

    - `vcpus`: vCPUs of each metric, or of a metric of one variant (``"contentions of spinlock-old-test"``).
    - `trained`: rows with more vCPUs are held out.
    - `deviations`: standard deviation of the logarithm of an observation, by metric.
    """

    vcpus: Mapping[str, tuple[int, ...]]
    trained: int
    deviations: Mapping[str, float]

    def problem(self, fit: Fit) -> Problem:
        """Return the problem of these rows, with placeholders for the measured values.

        - `fit`: fit with the costs to determine and a scenario with variants.
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
    """Return the rows of the January 2022 series with the deviations of its fit."""
    vcpus = {"dirty_memory_time": (1, 2, 4, 8, 16, 32, 64), "contentions of spinlock-old-test": (2, 4, 8, 16, 32, 64)}
    time = fit.estimate.discrepancy
    return Design(vcpus, 8, {"dirty_memory_time": time, "contentions": time * fit.estimate.spread["contentions"]})


NOISY_COUNTS = Design(
    {"dirty_memory_time": (1, 2, 3, 4, 6, 8, 16), "contentions of spinlock-old-test": (2, 3, 4, 6, 8, 16),
     "contentions of rwlock-old-test": (4, 6, 8, 16)}, 8, {"dirty_memory_time": 0.01, "contentions": 0.05},
)  # fmt: skip
"""Design with enough counts to estimate their deviation, which is five times that of a time instead of twice."""


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
    """Calibrate synthetic data sets and count the intervals that cover their targets.

    Returns: the coverage. The target of a cost's interval is the true cost, the target of a predicted interval is a
    held-out value including its deviation, like a future measurement.

    - `problem`: observations, some of them held out. A `surrogate.SurrogateProblem` takes a fraction of a second per
      set, the engine half a minute.
    - `truth`, shape (costs,): logarithms of the costs that generate the data.
    - `deviations`: standard deviation of the logarithm of an observation, by metric.
    - `seed`: seed of the deviations; set k uses (seed, k).
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
    parts = [_share("cost", name, covered) for name, covered in zip(problem.names, np.array(costs).T, strict=True)]
    columns = {metric: [m == metric for m in metrics] for metric in metrics}
    parts += [_share("held-out", metric, inside[:, of_metric]) for metric, of_metric in columns.items()]
    valid = {name: float(np.mean([of_set[name] for of_set in flags])) for name in flags[0]}
    return Coverage(pd.DataFrame(parts), sets, level, valid)


def _covered(
    problem: Problem, estimate: CostEstimate, rows: pd.DataFrame, values: FloatArray, level: float
) -> NDArray[np.bool_]:
    """Flag the values that lie in the intervals of a prediction with these costs."""
    moved = estimate.logs + np.kron(np.diag(steps_of(estimate)), [[-1.0], [1.0]])
    model = problem.model(np.vstack([estimate.logs, moved]), rows, 0, 0)
    all_values = Values(model, np.empty((0, len(rows))), ())
    spread = all_values.spread()
    intervals = [interval(all_values, i, estimate, level, spread, metric) for i, metric in enumerate(rows["metric"])]
    return np.array([low <= value <= high for (_, low, high), value in zip(intervals, values, strict=True)])


def _share(kind: str, name: str, covered: NDArray[np.bool_]) -> dict[str, object]:
    """Return the share that covered; its uncertainty follows from the number of sets, not of intervals."""
    sets, share = len(covered), float(covered.mean())
    hits = share * sets
    low = float(stats.beta.ppf(0.025, hits, sets - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(0.975, hits + 1, sets - hits)) if hits < sets else 1.0
    return {"kind": kind, "name": name, "intervals": covered.size, "covered": share, "low": low, "high": high}


def report_progress(what: str, share: float) -> None:
    """Print the progress at every tenth."""
    if int(share * 10) != reported.get(what):
        reported[what] = int(share * 10)
        print(f"{what}: {100 * share:.0f} %", file=sys.stderr, flush=True)


reported: dict[str, int] = {}


def page(results: dict[str, Coverage], errors: dict[str, pd.DataFrame]) -> str:
    """Return the table and its caption for the page."""
    shares = pd.concat(
        [result.table.set_index(["kind", "name"])["covered"].rename(name) for name, result in results.items()], axis=1
    )
    lines = ["| interval of | " + " | ".join(shares.columns) + " |", "|---" * (len(shares.columns) + 1) + "|"]
    for (kind, name), row in shares.iterrows():
        label = f"`{name}`" if kind == "cost" else f"held-out `{name}`"
        lines.append(f"| {label} | " + " | ".join(f"{100 * share:.1f} %" for share in row) + " |")
    first = next(iter(results.values()))
    wide = errors["same rows, wide box"]
    narrow = pd.concat([frame for frame in errors.values() if frame is not wide])
    times = narrow[narrow["metric"] == "dirty_memory_time"]
    counts = narrow[narrow["metric"] == "contentions"]
    words = (
        f"The table shows the coverage of {100 * first.level:g} % intervals over {first.sets} synthetic data sets "
        f"per column (seed {SEED}). The standard error of a coverage of 90 % is "
        f"{100 * np.sqrt(0.9 * 0.1 / first.sets):.1f} %. "
        f"The polynomials have degree {DEGREE} and are fitted to {RUNS} runs. Their root-mean-square error over "
        f"{CHECKED} other runs is at most {100 * times['rms'].max():.2f} % for a time and "
        f"{100 * counts['rms'].max():.2f} % for a count, and at most {100 * wide['rms'].max():.1f} % in the wide box."
    )
    return f"{BEGIN}\n{textwrap.fill(words, 118)}\n\n" + "\n".join(lines) + f"\n{END}"


def main() -> None:
    """Run the study and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=SETS, help="synthetic data sets per design")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    arguments = parser.parse_args()
    fit = load_fit(data_dir() / "fits" / "ampere-altra.json")
    deviations = np.sqrt(np.diag(fit.estimate.covariance))
    designs = {
        "rows of the January 2022 series": (published_design(fit), HALF_WIDTH),
        "same rows, wide box": (published_design(fit), WIDE_HALF_WIDTH),
        "more rows, noisier counts": (NOISY_COUNTS, HALF_WIDTH),
    }
    results, errors = {}, {}
    for name, (design, width) in designs.items():
        reported.clear()
        logs = fit.estimate.logs
        problem, errors[name] = fit_surrogate(design.problem(fit), logs, width * deviations, progress=report_progress)
        results[name] = coverage(
            problem, fit.estimate.logs, design.deviations, sets=arguments.sets, seed=SEED, progress=report_progress
        )
    text = page(results, errors)
    print(f"\n{text}")
    for name, result in results.items():
        print(result.table.to_string(index=False), result.valid, sep="\n", file=sys.stderr)
        outside = result.table[~result.table["covered"].between(*BAR)]
        if len(outside):
            print(f"{name}: outside {BAR}: {', '.join(outside['name'])}", file=sys.stderr)
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :])
    sys.exit(any(not result.table["covered"].between(*BAR).all() for result in results.values()))


if __name__ == "__main__":
    main()
