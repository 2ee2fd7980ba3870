# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios to curves with intervals.

A curve's points are simulated by the compiled engine with a sample of the pages (where its metrics are proportional to
them), on common random numbers. The interval joins what the calibration leaves open in the costs (first order, in
the logarithms) and the model's own discrepancy from the data it was fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib import parallel
from simlib.errors import InputError
from simlib.fits import AnyFit, CostEstimate, choose_fit, complete, load_fit
from simlib.model.costs import Costs
from simlib.model.policies import apply
from simlib.model.scenario import Scenario, as_scenario
from simlib.results import Result, result_html, text_of
from simlib.sampling import WALKS, WHOLE_PAGES, WINDOW_METRICS, walk_several, why_not
from simlib.simulation import SimulationResult, flags_of, run_scenario
from simlib.workloads import find_metric, kind_of
from simlib.workloads.metrics import split_name

PAGES_PER_VCPU = 4096
"""Pages a vCPU that a point of a curve simulates; doubling it moves no published point by more than 0.5 %."""

FEW_VCPUS = 8
"""With fewer vCPUs each simulates more pages, as many in all as these would: random spread falls with all pages."""

LEVEL = 0.90
"""Probability that an interval is meant to cover."""

REPLICATIONS = 5
"""Seeds over which the spread is shown where no cost was calibrated."""

Progress = parallel.Progress
Read = TypeVar("Read")

STEP = 0.02
"""Step in the logarithm of a cost for a derivative."""


def evaluate(
    scenarios: Sequence[Scenario],
    *,
    pages_per_vcpu: int | None = PAGES_PER_VCPU,
    seed: int = 1,
    progress: Progress | None = None,
) -> list[SimulationResult]:
    """Simulate several scenarios as they are, as many at a time as there are CPUs (the engine lets go of Python).

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": {"fault_exit": "1us"}})
    >>> [r.metrics["dirty_memory_time"] > 0 for r in evaluate([s, s.with_vcpus(2)])]
    [True, True]
    """
    jobs = [(scenario, pages_per_vcpu, seed) for scenario in scenarios]
    return _evaluate_each(jobs, _simulated, progress)


def _simulated(scenario: Scenario, pages: int | None, seed: int, check: parallel.Check) -> SimulationResult:
    """A run of all memory, or of so many pages a vCPU."""
    each = None if pages is None else pages * max(1, FEW_VCPUS // scenario.guest.vcpus)
    return run_scenario(scenario, seed=seed, pages_per_vcpu=each, progress=check)


def _evaluate_each(
    jobs: Sequence[tuple[Scenario, int | None, int]],
    one: Callable[[Scenario, int | None, int, parallel.Check], Read],
    progress: Progress | None = None,
) -> list[Read]:
    """Simulate scenarios, each with its pages a vCPU and its seed."""
    # The dearest first, so that the last one to end is short.
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i][0].guest.vcpus)
    found = parallel.each([partial(one, *jobs[i]) for i in order], "predicting", progress)
    return [read for _, read in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


@dataclass(frozen=True, repr=False)
class PredictionResult(Result):
    """Predicted curves.

    - `frame`: variant, vcpus, metric, estimate, low, high, unit.
    - `level`: probability that the intervals are meant to cover.
    - `flags`: what to know before believing the result.
    """

    frame: pd.DataFrame
    level: float
    flags: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "over_vcpus": lambda found: found.frame,
        "dirty_memory_time": lambda found: found.curves(),
        "contentions": lambda found: found.curves(),
        "speed_up": lambda found: found.curves(),
    }

    def summary(self) -> str:
        """The curves, and what to know of them."""
        frame = self.frame if (self.frame["variant"] != "").any() else self.frame.drop(columns="variant")
        return "\n".join([f"Predicted, {self.level:.0%} intervals.", text_of(frame), *self.flags])

    def curves(self) -> pd.DataFrame:
        """The table that the figures of curves draw, with measured points beside: all of its rows are predicted.

        Returns: variant, vcpus, metric, kind, value, low, high, held_out.
        """
        names = {"estimate": "value"}
        return self.frame.drop(columns="unit").rename(columns=names).assign(kind="predicted", held_out=True)

    def _repr_html_(self) -> str:
        return result_html("Predicted", f", {self.level:.0%} intervals.", self.flags, self.frame)


@dataclass(frozen=True)
class Case:
    """One point of a curve: of which policy and variant, and its scenario without the calibrated costs."""

    name: str
    label: str
    vcpus: int
    scenario: Scenario
    estimate: CostEstimate | None

    def points(self, seed: int, replications: int) -> list[tuple[Scenario, int]]:
        """Scenarios and seeds to run: the best costs, then each logarithm a step down and a step up; or seeds."""
        if self.estimate is None:
            return [(self.scenario, seed + r) for r in range(replications)]
        steps = np.kron(np.eye(len(self.estimate.names)), [[-STEP], [STEP]])
        logs = [self.estimate.logs, *(self.estimate.logs + steps)]
        return [(self.estimate.apply(self.scenario, point), seed) for point in logs]


def predict(
    scenario: Scenario | str | Path,
    vcpus: Sequence[int],
    *,
    variant: str = "",
    policy: str = "",
    fit: AnyFit | None = None,
    metrics: Sequence[str] | None = None,
    level: float = LEVEL,
    seed: int = 1,
    replications: int = REPLICATIONS,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    progress: Progress | None = None,
) -> PredictionResult:
    """Curves over vCPUs, for a scenario or each of its variants.

    Raises `InputError` if a needed cost has no value, the workload has no such metric, or vcpus is empty.

    - `scenario`: a scenario, or its file. Its variants are predicted if it has any, else itself.
    - `variant`: only this one.
    - `policy`: a way of taking the lock, by its name (`simlib.model.policies.POLICIES`).
    - `fit`: calibrated costs; by default the shipped fit of each machine, if there is one. Without any the scenario's
      own costs are used, and the intervals show only the simulation's random spread over `replications` seeds.
    - `metrics`: names of metrics of the workload, such as ``"dirty_memory_time"``, or ``"dirty_memory_time[2]"`` for
      one iteration; by default the workload's own choice.
    - `level`: probability that the intervals are to cover.
    - `progress`: called with (what, share done).

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"},
    ...                     "costs": {"fault_exit": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"}})
    >>> predict(s, [1, 2], metrics=["dirty_memory_time"]).frame.columns.tolist()
    ['variant', 'vcpus', 'metric', 'estimate', 'low', 'high', 'unit']
    """
    subject = as_scenario(scenario)
    subject = subject.variant(variant) if variant else subject
    subject = apply(subject, policy) if policy else subject
    asked = Asked(fit, metrics, level, seed, replications, pages_per_vcpu, progress)
    frame, flags = curves_of({"": subject}, vcpus, asked)
    return PredictionResult(frame.drop(columns=["policy", *CHANGES]), level, flags)


@dataclass(frozen=True)
class Asked:
    """How curves are to be predicted: what `predict` and `simlib.compare` are both told."""

    fit: AnyFit | None
    metrics: Sequence[str] | None
    level: float
    seed: int
    replications: int
    pages_per_vcpu: int
    progress: Progress | None


CHANGES = ("change_percent", "change_low", "change_high")
"""Columns that compare with the first policy."""


def curves_of(
    named: Mapping[str, Scenario], vcpus: Sequence[int], asked: Asked
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The curves of some scenarios and their variants, on common random numbers, each compared with the first.

    Raises `InputError` if there is no point or no metric, a workload has not all of these, or a cost that decides one
    has no value.

    Returns: the frame, with policy (the name), variant, vcpus, metric, estimate, low, high, unit, and `CHANGES`; and
    what to know before believing it.
    """
    cases, notes = _cases_of(named, vcpus, asked.fit)
    metrics = tuple(kind_of(cases[0].scenario).default if asked.metrics is None else asked.metrics)
    if not metrics:
        raise InputError("metrics", "", "must name at least one metric", 'write ["dirty_memory_time"]',
                         "write --metrics dirty_memory_time")  # fmt: skip
    units = [[find_metric(case.scenario, metric).unit for metric in metrics] for case in cases]
    values, flags = _sampled(cases, metrics, asked)
    first: dict[tuple[str, int], int] = {}
    for i, case in enumerate(cases):
        first.setdefault((case.label, case.vcpus), i)
    rows = []
    for case, points, its_units in zip(cases, values, units, strict=True):
        reference = values[first[case.label, case.vcpus]]
        for column, (metric, unit) in enumerate(zip(metrics, its_units, strict=True)):
            found, base = points[:, column], reference[:, column]
            centre, low, high = interval(found, case.estimate, asked.level, metric)
            high = min(high, 1.0) if unit == "share" else high
            ratio = interval(found / base, case.estimate, asked.level) if (base > 0).all() else (np.nan,) * 3
            changes = [100 * (value - 1) for value in ratio]
            rows.append((case.name, case.label, case.vcpus, metric, centre, low, high, unit, *changes))
    columns = ["policy", "variant", "vcpus", "metric", "estimate", "low", "high", "unit", *CHANGES]
    return pd.DataFrame(rows, columns=columns), (*notes, *flags)


def _cases_of(
    named: Mapping[str, Scenario], vcpus: Sequence[int], fit: AnyFit | None
) -> tuple[list[Case], tuple[str, ...]]:
    """The points of the curves, each with its calibrated costs, and what to know of these."""
    if not vcpus:
        raise InputError("vcpus", "", "must name at least one number of vCPUs", "write [16, 32, 48]",
                         "write --vcpus 16,32,48", "--vcpus")  # fmt: skip
    fit = load_fit(fit) if isinstance(fit, str | Path) else fit
    cases: list[Case] = []
    notes: list[str] = []
    for name, subject in named.items():
        for label, scenario in (dict(subject.variants) or {"": subject}).items():
            estimate, known = choose_fit(scenario, fit)
            notes += known
            cases += [Case(name, label, n, scenario.with_vcpus(n), estimate) for n in vcpus]
    for case in cases:
        complete(case.scenario, case.estimate)
    return cases, tuple(dict.fromkeys(notes))


def _sampled(
    cases: Sequence[Case], metrics: Sequence[str], asked: Asked
) -> tuple[list[NDArray[np.float64]], tuple[str, ...]]:
    """What each case gives at its `Case.points`, shape (points, metrics), and what to know before believing it."""
    jobs: dict[tuple[int, Costs, int], tuple[Scenario, int | None, int]] = {}
    points: list[list[tuple[int, Costs, int]]] = []
    for i, case in enumerate(cases):
        # What a part of the memory does not tell is asked of all of it.
        part = all(find_metric(case.scenario, metric).memory != "whole" for metric in metrics)
        runs = case.points(asked.seed, asked.replications)
        points.append([(i, scenario.costs, its_seed) for scenario, its_seed in runs])
        for key, (scenario, its_seed) in zip(points[-1], runs, strict=True):
            # A cost that is not its own changes nothing.
            jobs[key] = scenario, asked.pages_per_vcpu if part else None, its_seed

    def one(scenario: Scenario, pages: int | None, seed: int, check: parallel.Check) -> tuple[list[float], float]:
        if by_windows(scenario, metrics):
            walks = walk_several(scenario, WALKS, seed, check)
            return [float(np.mean([walk.metrics[metric] for walk in walks])) for metric in metrics], 0.0
        run = _simulated(scenario, pages, seed, check)
        return [run.value(metric) for metric in metrics], run.scale

    found = dict(zip(jobs, _evaluate_each(list(jobs.values()), one, asked.progress), strict=True))
    flags = {flag for case in cases for flag in flags_of(complete(case.scenario, case.estimate))}
    scales = sorted({scale for _, scale in found.values() if scale > 1})
    if scales:
        span = f"{scales[0]:g}" + (f" to {scales[-1]:g}" if len(scales) > 1 else "")
        flags.add(f"one page in {span} was simulated; times and counts are scaled")
    if any(scale == 0 for _, scale in found.values()):
        flags.add(f"sampled: windows of {WALKS} walks through each migration (docs/sampling.md)")
    if any(case.estimate is None for case in cases):
        flags.add("intervals show the spread over seeds only: the costs were given, not calibrated")
    return [np.array([found[key][0] for key in keys]) for keys in points], tuple(sorted(flags))


def by_windows(scenario: Scenario, metrics: Sequence[str]) -> bool:
    """Whether windows of a migration tell these metrics, and are worth it."""
    pages = scenario.guest.pages
    return pages > WHOLE_PAGES and not why_not(scenario) and not set(metrics) - set(WINDOW_METRICS)


def interval(
    values: NDArray[np.float64], estimate: CostEstimate | None, level: float, metric: str = ""
) -> tuple[float, float, float]:
    """Centre and interval of what one case gives at its points; without a metric, that of a ratio.

    In a ratio the model's own discrepancy is taken to be common to both sides.
    """
    if estimate is None:
        centre = float(values.mean())
        if len(values) < 2:
            return centre, float("nan"), float("nan")
        half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        low = centre - float(half)
        return centre, low if (values < 0).any() else max(0.0, low), centre + float(half)
    centre = float(values[0])
    own = estimate.discrepancy * estimate.spread.get(split_name(metric)[0], 1.0) if metric else 0.0
    reach = float(stats.t.ppf(0.5 + level / 2, estimate.dof))
    if (values <= 0).any():  # what can be 0 has no logarithm
        gradient = (values[2::2] - values[1::2]) / (2 * STEP)
        half = reach * float(np.sqrt(gradient @ estimate.covariance @ gradient + (own * centre) ** 2))
        return centre, max(0.0, centre - half), centre + half
    logs = np.log(values)
    gradient = (logs[2::2] - logs[1::2]) / (2 * STEP)
    half = reach * float(np.sqrt(gradient @ estimate.covariance @ gradient + own**2))
    return centre, centre * float(np.exp(-half)), centre * float(np.exp(half))
