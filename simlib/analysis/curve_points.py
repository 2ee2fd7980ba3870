# SPDX-License-Identifier: BSD-3-Clause
"""Simulation of the points of predicted curves: the runs of each point, and the values computed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simlib._lib import parallel
from simlib.analysis.prediction_options import PredictionOptions
from simlib.analysis.simulate import SimulationResult, flags_of, run_part
from simlib.measurements.fits import CostEstimate, Spread, UncertainCosts, variations
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from simlib.simulator.sampling import (
    DEFAULT_REPLICATIONS,
    WHOLE_PAGES,
    WINDOW_METRICS,
    sample_several,
    unsupported_reason,
)
from simlib.simulator.workloads import find_metric
from simlib.simulator.workloads.horizon import least_accesses, long_run_notice

Floats = NDArray[np.float64]
Read = TypeVar("Read")

MOVED_PART = 4
"""The effect of a cost is simulated with one in this many pages, relative to the same run at the central costs."""


def run_pages(
    scenario: Scenario, pages: int | None, seed: int, check: parallel.Check, part: int = 1
) -> SimulationResult:
    """Simulate all memory (if `pages` is None), or one in `part` of `pages` pages per vCPU.

    With fewer than 8 vCPUs, more pages per vCPU are simulated, because the random spread depends on their total number.
    """
    pages = None if pages is None else pages * max(1, 8 // scenario.guest.vcpus)
    return run_part(scenario, pages, part, seed=seed, progress=check)


def run_jobs(
    jobs: Sequence[tuple[Any, ...]], function: Callable[..., Read], progress: parallel.Progress | None = None
) -> list[Read]:
    """Call a function for several scenarios in parallel; a job contains all arguments except the last (the check)."""
    # The scenarios with the most vCPUs take longest: run them first, so that all CPUs finish at about the same time.
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i][0].guest.vcpus)
    results = parallel.run_all([partial(function, *jobs[i]) for i in order], "predicting", progress)
    return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


@dataclass(frozen=True)
class CurveCase:
    """One point of a curve: the names of its policy and variant, and its scenario with its costs."""

    name: str
    label: str
    vcpus: int
    known: UncertainCosts

    def runs(self, options: PredictionOptions) -> list[tuple[Scenario, int]]:
        """Return the scenarios and seeds of the runs.

        The first run has the central costs. If costs were calibrated, two runs follow for each, with its logarithm one
        step lower and one step higher; otherwise the runs with the other seeds follow. With
        ``unknown_costs="sample"``, the last runs have each uncertain cost at both ends of its prior.
        """
        central, estimate, seed = self.known.central(), self.known.estimate, options.seed
        ends = variations(self.known, options.level) if options.unknown_costs == "sample" else []
        runs = [(case, seed) for case in ends]
        if estimate is None:
            return [*((central, seed + r) for r in range(options.replications)), *runs]
        steps = np.kron(np.diag(steps_of(estimate)), [[-1.0], [1.0]])
        priors = {name: value for name, value in central.costs.given().items() if name in self.known.priors}
        moved = [estimate.apply(self.known.scenario, logs) for logs in estimate.logs + steps]
        return [(central, seed), *((case.with_costs(**priors), seed) for case in moved), *runs]


def steps_of(estimate: CostEstimate) -> Floats:
    """Return the finite-difference step in each calibrated cost's logarithm: its standard error, clipped to 0.1 … 1.

    With smaller steps, random noise dominates the difference.
    """
    return np.clip(np.sqrt(np.diag(estimate.covariance)), 0.1, 1.0)


@dataclass(frozen=True)
class Values:
    """Metrics of one case.

    - `points`, shape (points, metrics): values for `CurveCase.runs` except `ends`; the central costs come first.
    - `ends`, shape (2 costs, metrics): values at the ends of the priors.
    - `drawn`: the costs with a prior.
    """

    points: Floats
    ends: Floats
    drawn: tuple[str, ...]

    def spread(self) -> Spread:
        """Return the effect of the costs with a prior."""
        return Spread.of(self.drawn, self.points[0], self.ends, self.points)

    def extremes(self, metric: int) -> tuple[float, float]:
        """Return the smallest and the largest value of an integer metric in any run."""
        values = np.rint(np.concatenate([self.points[:, metric], self.ends[:, metric]]))
        return float(values.min()), float(values.max())

    def over(self, other: Values) -> Values:
        """Return the ratios to another case at the same costs; a cost affects only the cases that spend it."""
        names = tuple(dict.fromkeys((*self.drawn, *other.drawn)))
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = self._ends_of(names) / other._ends_of(names)
            return Values(self.points / other.points, ends, names)

    def _ends_of(self, names: Sequence[str]) -> Floats:
        pairs = [
            self.ends[2 * self.drawn.index(name) :][:2] if name in self.drawn else self.points[[0, 0]] for name in names
        ]
        return np.concatenate([np.empty((0, self.points.shape[1])), *pairs])


class CurveRun(NamedTuple):
    """One run: pages per vCPU (None: all), of which one in `part` is simulated; or one replication of a sampled run."""

    scenario: Scenario
    pages: int | None
    seed: int
    part: int
    replication: int | None

    @property
    def key(self) -> tuple[Costs, int, int, int | None]:
        """Identity of the run within its case."""
        return self.scenario.costs, self.seed, self.part, self.replication


class Point(NamedTuple):
    """Runs for one of `CurveCase.runs`: its value is the mean of `runs`, or the change from `base` (central costs)."""

    runs: Sequence[CurveRun]
    base: Sequence[CurveRun] = ()


def simulate_points(
    cases: Sequence[CurveCase], metrics: Sequence[str], options: PredictionOptions
) -> tuple[list[Values], tuple[str, ...]]:
    """Simulate all points. Returns: the values of each case, and flags."""
    points = [_points_of(case, metrics, options) for case in cases]
    runs = {(i, run.key): run for i, row in enumerate(points) for point in row for run in (*point.runs, *point.base)}
    whole = [run.scenario for run in runs.values() if run.pages is None and run.replication is None]
    longest, progress = max(whole, key=least_accesses, default=None), options.progress
    if longest and progress and (notice := long_run_notice(longest, len(whole), parallel.concurrency())):
        progress(f"{notice}; {_whole_hint(longest, metrics)}", 0.0)
    results = dict(zip(runs, run_jobs(list(runs.values()), partial(_read, metrics=metrics), progress), strict=True))
    flags = {flag for case in cases for flag in flags_of(case.known.central())}
    scales = sorted({results[i, row[0].runs[0].key][1] for i, row in enumerate(points)})
    scaled = [scale for scale in scales if scale > 1]
    if scaled:
        span = f"{scaled[0]:g}" + (f" to {scaled[-1]:g}" if len(scaled) > 1 else "")
        flags.add(f"one page in {span} was simulated; times and counts are scaled")
    if 0 in scales:
        flags.add(f"sampled: {DEFAULT_REPLICATIONS} sampled runs of each migration (docs/sampling.md)")
    sampled = options.unknown_costs == "sample"
    if any(case.known.estimate is None and not (sampled and case.known.drawn) for case in cases):
        flags.add("intervals reflect only the spread over seeds, not the uncertainty of the costs")
    values = {key: row for key, (row, _) in results.items()}
    return [_values(i, case, points[i], values, options) for i, case in enumerate(cases)], tuple(sorted(flags))


def _points_of(case: CurveCase, metrics: Sequence[str], options: PredictionOptions) -> list[Point]:
    """Return the runs of a case; runs for the effects of costs use fewer pages, or one replication."""
    central = case.known.central()
    sampled = central.guest.pages > WHOLE_PAGES and not unsupported_reason(central)
    windows = sampled and not set(metrics) - set(WINDOW_METRICS)
    # Some metrics need a run over all memory.
    whole = windows or any(find_metric(central, metric).scaling == "whole" for metric in metrics)
    pages, part = (None, 1) if whole else (options.pages_per_vcpu, MOVED_PART)
    replications: Sequence[int | None] = range(DEFAULT_REPLICATIONS) if windows else [None]
    direct = options.replications if case.known.estimate is None else 1
    points = []
    for n, (scenario, seed) in enumerate(case.runs(options)):
        if n < direct:
            points.append(Point([CurveRun(scenario, pages, seed, 1, number) for number in replications]))
        else:
            run = CurveRun(scenario, pages, seed, part, replications[n % len(replications)])
            points.append(Point([run], [run._replace(scenario=central)]))
    return points


def _whole_hint(scenario: Scenario, metrics: Sequence[str]) -> str:
    """Return a hint on which metrics need a run over all memory and can be omitted, and why windows do not apply."""
    names = ", ".join(name for name in metrics if find_metric(scenario, name).scaling == "whole")
    others = ", ".join(sorted(set(metrics) - set(WINDOW_METRICS)))
    reason = unsupported_reason(scenario) or f"windows do not give {others}"
    return f"or omit {names}, which cannot be computed from part of the memory: {reason} (docs/sampling.md)"


def _read(
    scenario: Scenario, pages: int | None, seed: int, part: int, replication: int | None, check: parallel.Check,
    metrics: Sequence[str],
) -> tuple[Floats, float]:  # fmt: skip
    """Return the metrics of a run, shape (metrics,), and the ratio of all pages to simulated ones (0: windows)."""
    if replication is not None:
        (sampled,) = sample_several(scenario, DEFAULT_REPLICATIONS, seed, check, replication)
        return np.array([sampled.metrics[metric] for metric in metrics]), 0.0
    run = run_pages(scenario, pages, seed, check, part)
    return np.array([run.value(metric) for metric in metrics]), run.scale


def _values(
    i: int, case: CurveCase, points: Sequence[Point], results: Mapping[Any, Floats], options: PredictionOptions
) -> Values:
    """Return a case's values; effects from fewer pages, or from one replication, are applied to the central value."""
    rows: list[Floats] = []
    for point in points:
        value = np.mean([results[i, run.key] for run in point.runs], axis=0)
        if point.base:
            centre, base = rows[0], np.mean([results[i, run.key] for run in point.base], axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = np.where((base > 0) & (value > 0), centre * value / base, centre + value - base)
            value = np.maximum(moved, 0.0)
        rows.append(value)
    drawn = case.known.drawn if options.unknown_costs == "sample" else ()
    count = len(points) - 2 * len(drawn)
    table = np.array(rows)
    return Values(table[:count], table[count:], drawn)
