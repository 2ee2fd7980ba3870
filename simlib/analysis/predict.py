# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios to curves with intervals.

A curve's points are simulated by the compiled engine with a sample of the pages (where its metrics are proportional to
them), on common random numbers. The interval joins what the calibration leaves open in the costs (first order, in
the logarithms, from runs of fewer pages) and the model's own discrepancy from the data it was fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib._lib import parallel
from simlib._lib.errors import InputError
from simlib.analysis.simulate import Known, SimulationResult, flags_of, run_scenario
from simlib.figures.results import Result, result_html, text_of
from simlib.measurements.fits import (
    AnyFit,
    CostEstimate,
    Spread,
    UncertainCosts,
    choose_fit,
    decisive,
    describe_costs,
    load_fit,
    variations,
)
from simlib.model.costs import Costs
from simlib.model.policies import apply
from simlib.model.scenario import Scenario, as_scenario
from simlib.simulator.sampling import SAMPLED_RUNS, WHOLE_PAGES, WINDOW_METRICS, sample_several, why_not
from simlib.simulator.workloads import find_metric, kind_of
from simlib.simulator.workloads.horizon import how_long, least_accesses

PAGES_PER_VCPU = 4096
"""Pages a vCPU that a point of a curve simulates; doubling it moves no published point by more than 0.5 %."""

FEW_VCPUS = 8
"""With fewer vCPUs each simulates more pages, as many in all as these would: random spread falls with all pages."""

MOVED_PART = 4
"""What moves with a cost is found on one page in so many of a point's, beside the same run at the best costs."""

LEVEL = 0.90
"""Probability that an interval is meant to cover."""

REPLICATIONS = 5
"""Seeds over which the spread is shown where no cost was calibrated."""

Progress = parallel.Progress
Floats = NDArray[np.float64]
Read = TypeVar("Read")

STEPS = 0.1, 1.0
"""Least and most that the logarithm of a cost is moved for a derivative: what less changes is mostly chance."""


def evaluate(
    scenarios: Sequence[Scenario],
    *,
    pages_per_vcpu: int | None = PAGES_PER_VCPU,
    seed: int = 1,
    progress: Progress | None = None,
) -> list[SimulationResult]:
    """Simulate several scenarios as they are, as many at a time as there are CPUs (the engine lets go of Python)."""
    jobs = [(scenario, pages_per_vcpu, seed) for scenario in scenarios]
    return _evaluate_each(jobs, _simulated, progress)


def _simulated(
    scenario: Scenario, pages: int | None, seed: int, check: parallel.Check, part: int = 1
) -> SimulationResult:
    """A run of all memory, or of so many pages a vCPU, or of one in `part` of these."""
    each = None if pages is None else pages * max(1, FEW_VCPUS // scenario.guest.vcpus)
    return run_scenario(scenario, seed=seed, pages_per_vcpu=each, part=part, progress=check)


def _evaluate_each(
    jobs: Sequence[tuple[Any, ...]],
    one: Callable[..., Read],
    progress: Progress | None = None,
) -> list[Read]:
    """Simulate scenarios, each with its pages a vCPU, its seed, and what else `one` takes before its check."""
    # The dearest first, so that the last one to end is short.
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i][0].guest.vcpus)
    found = parallel.run_all([partial(one, *jobs[i]) for i in order], "predicting", progress)
    return [read for _, read in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


@dataclass(frozen=True, repr=False)
class PredictionResult(Result):
    """Predicted curves.

    - `frame`: variant, vcpus, metric, estimate, low, high, unit.
    - `level`: probability that the intervals are meant to cover.
    - `costs`: one row a cost that the programs spend: cost, evidence, value, low, high, unit, source.
    - `flags`: what to know before believing the result.
    """

    frame: pd.DataFrame
    level: float
    costs: pd.DataFrame
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
class CurveCase:
    """One point of a curve: of which policy and variant, and its scenario with its costs."""

    name: str
    label: str
    vcpus: int
    known: UncertainCosts

    @property
    def estimate(self) -> CostEstimate | None:
        """Calibrated costs."""
        return self.known.estimate

    def runs(self, asked: PredictionOptions) -> list[tuple[Scenario, int]]:
        """Scenarios and seeds: the best costs, then each logarithm a step down and a step up, or seeds; then the ends.

        These are each cost that is drawn at both ends of its prior, if that is wanted.
        """
        best = self.known.central()
        ends = [(case, asked.seed) for case in variations(self.known, asked.level)] if asked.costs == "drawn" else []
        if self.estimate is None:
            return [*((best, asked.seed + r) for r in range(asked.replications)), *ends]
        steps = np.kron(np.diag(steps_of(self.estimate)), [[-1.0], [1.0]])
        rest = {name: value for name, value in best.costs.given().items() if name in self.known.priors}
        moved = [self.estimate.apply(self.known.scenario, logs) for logs in self.estimate.logs + steps]
        return [(best, asked.seed), *((case.with_costs(**rest), asked.seed) for case in moved), *ends]


def steps_of(estimate: CostEstimate) -> Floats:
    """How far each calibrated logarithm is moved for a derivative: as far as it may be off, within `STEPS`."""
    return np.clip(np.sqrt(np.diag(estimate.covariance)), *STEPS)


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
    costs: Known = "drawn",
    progress: Progress | None = None,
) -> PredictionResult:
    """Curves over vCPUs, for a scenario or each of its variants.

    Raises `InputError` if the workload has no such metric, vcpus is empty, or a cost has no value and `costs` is
    ``"exact"``.

    - `scenario`: a scenario, or its file. Its variants are predicted if it has any, else itself.
    - `variant`: only this one.
    - `policy`: a way of taking the lock, by its name (`simlib.model.policies.POLICIES`).
    - `fit`: calibrated costs; by default the shipped fit of each machine, if there is one. Without any the scenario's
      own costs are used, and the intervals show the simulation's random spread over `replications` seeds.
    - `metrics`: names of metrics of the workload, such as ``"dirty_memory_time"``, or ``"dirty_memory_time[2]"`` for
      one iteration; by default the workload's own choice.
    - `level`: probability that the intervals are to cover.
    - `costs`: a cost that the programs spend and that neither the scenario nor a fit has is ``"drawn"`` from its prior,
      which widens the intervals; ``"median"``: taken for its median; ``"exact"``: refused.
    - `progress`: called with (what, share done), and before a long run with how long it takes at least.

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"},
    ...                     "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"}})
    >>> predict(s, [1, 2], metrics=["dirty_memory_time"]).frame.columns.tolist()
    ['variant', 'vcpus', 'metric', 'estimate', 'low', 'high', 'unit']
    """
    subject = as_scenario(scenario)
    subject = subject.variant(variant) if variant else subject
    subject = apply(subject, policy) if policy else subject
    asked = PredictionOptions(fit, metrics, level, seed, replications, pages_per_vcpu, costs, progress)
    frame, costs_used, flags = curves_of({"": subject}, vcpus, asked)
    return PredictionResult(frame.drop(columns=["policy", *CHANGES]), level, costs_used, flags)


@dataclass(frozen=True)
class PredictionOptions:
    """How curves are to be predicted: what `predict` and `simlib.compare` are both told."""

    fit: AnyFit | None
    metrics: Sequence[str] | None
    level: float
    seed: int
    replications: int
    pages_per_vcpu: int
    costs: Known
    progress: Progress | None
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By the name of a scenario: how many times as large some of its costs are as those that are known."""


CHANGES = ("change_percent", "change_low", "change_high")
"""Columns that compare with the first policy."""


def curves_of(
    named: Mapping[str, Scenario], vcpus: Sequence[int], asked: PredictionOptions
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[str, ...]]:
    """The curves of some scenarios and their variants, on common random numbers, each compared with the first.

    Raises `InputError` if there is no point or no metric, a workload has not all of these, or a cost has no value
    although `asked` wants all of them.

    Returns: the frame, with policy (the name), variant, vcpus, metric, estimate, low, high, unit, and `CHANGES`;
    the costs that are spent, as `PredictionResult.costs`; and what to know before believing it.
    """
    cases, notes = _cases_of(named, vcpus, asked)
    metrics = tuple(kind_of(cases[0].known.scenario).default if asked.metrics is None else asked.metrics)
    if not metrics:
        raise InputError("metrics", "", "must name at least one metric", 'write ["dirty_memory_time"]',
                         "write --metrics dirty_memory_time")  # fmt: skip
    wanted = [[find_metric(case.known.scenario, name) for name in metrics] for case in cases]
    found, flags = _sampled(cases, metrics, asked)
    first: dict[tuple[str, int], int] = {}
    for i, case in enumerate(cases):
        first.setdefault((case.label, case.vcpus), i)
    rows, moved = [], []
    for case, values, those in zip(cases, found, wanted, strict=True):
        reference = found[first[case.label, case.vcpus]]
        spread = values.spread()
        paired = values.over(reference)
        against = paired.spread()
        moved.append(spread.shares())
        least = kind_of(case.known.scenario).least(case.known.scenario)
        for column, (name, metric) in enumerate(zip(metrics, those, strict=True)):
            centre, low, high = interval(values, column, case.estimate, asked.level, spread, metric.name)
            if metric.whole:
                low, high = values.extremes(column)
            low, high = metric.within(low, high, least.get(name, 0.0))
            ratio = (np.nan,) * 3
            if (reference.points[:, column] > 0).all() and (reference.ends[:, column] > 0).all():
                ratio = interval(paired, column, case.estimate, asked.level, against)
            changes = [100 * (value - 1) for value in ratio]
            rows.append((case.name, case.label, case.vcpus, name, centre, low, high, metric.unit, *changes))
    columns = ["policy", "variant", "vcpus", "metric", "estimate", "low", "high", "unit", *CHANGES]
    words = decisive(pd.concat(moved, axis=1).fillna(0.0).mean(axis=1).sort_values(ascending=False))
    costs = pd.concat([case.known.table() for case in cases if case.vcpus == vcpus[0]], ignore_index=True)
    costs = costs.drop_duplicates(ignore_index=True)
    return pd.DataFrame(rows, columns=columns), costs, (*notes, *flags, *([words] if words else ()))


@dataclass(frozen=True)
class Values:
    """What one case gives.

    - `points`, shape (points, metrics): of `CurveCase.runs`, the best costs first.
    - `ends`, shape (2 costs, metrics): the rest of them.
    - `drawn`: the costs that are drawn.
    """

    points: Floats
    ends: Floats
    drawn: tuple[str, ...]

    def spread(self) -> Spread:
        """What the costs that are drawn move."""
        return Spread.of(self.drawn, self.points[0], self.ends, self.points)

    def extremes(self, metric: int) -> tuple[float, float]:
        """The least and the most that a metric was at any point; of one that comes in whole numbers."""
        every = np.rint(np.concatenate([self.points[:, metric], self.ends[:, metric]]))
        return float(every.min()), float(every.max())

    def over(self, other: Values) -> Values:
        """Ratios to another case, at the same costs; a cost that one of both does not spend leaves that one alone."""
        names = tuple(dict.fromkeys((*self.drawn, *other.drawn)))
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = self._ends_of(names) / other._ends_of(names)
            return Values(self.points / other.points, ends, names)

    def _ends_of(self, names: Sequence[str]) -> Floats:
        pairs = [
            self.ends[2 * self.drawn.index(name) :][:2] if name in self.drawn else self.points[[0, 0]] for name in names
        ]
        return np.concatenate([np.empty((0, self.points.shape[1])), *pairs])


def _cases_of(
    named: Mapping[str, Scenario], vcpus: Sequence[int], asked: PredictionOptions
) -> tuple[list[CurveCase], tuple[str, ...]]:
    """The points of the curves, each with its calibrated costs, and what to know of these."""
    if not vcpus:
        raise InputError("vcpus", "", "must name at least one number of vCPUs", "write [16, 32, 48]",
                         "write --vcpus 16,32,48", "--vcpus")  # fmt: skip
    fit = load_fit(asked.fit) if isinstance(asked.fit, str | Path) else asked.fit
    cases: list[CurveCase] = []
    notes: list[str] = []
    for name, subject in named.items():
        for label, scenario in (dict(subject.variants) or {"": subject}).items():
            estimate, known = choose_fit(scenario, fit)
            notes += known
            for n in vcpus:
                costs = UncertainCosts.of(scenario.with_vcpus(n), estimate).scaled(asked.factors.get(name, {}))
                if asked.costs == "exact":
                    costs.exact()
                notes += describe_costs(costs)
                cases.append(CurveCase(name, label, n, costs))
    return cases, tuple(dict.fromkeys(notes))


class CurveRun(NamedTuple):
    """One run: pages a vCPU (None: all), one in `part` of which is simulated, and by windows, which walk it is."""

    scenario: Scenario
    pages: int | None
    seed: int
    part: int
    walk: int | None

    @property
    def key(self) -> tuple[Costs, int, int, int | None]:
        """What tells it from others of its case: a cost that is not its own changes nothing."""
        return self.scenario.costs, self.seed, self.part, self.walk


class Point(NamedTuple):
    """What one of `CurveCase.runs` is read from: the mean of `runs`, or what these differ by from `beside`."""

    runs: Sequence[CurveRun]
    beside: Sequence[CurveRun] = ()


def _points_of(case: CurveCase, metrics: Sequence[str], asked: PredictionOptions) -> list[Point]:
    """Each of a case's runs; what moves with a cost is read from fewer pages, or one walk, beside the best costs."""
    best = case.known.central()
    windows = by_windows(best, metrics)
    # What a part of the memory does not tell is asked of all of it.
    whole = windows or any(find_metric(best, metric).memory == "whole" for metric in metrics)
    pages, part = (None, 1) if whole else (asked.pages_per_vcpu, MOVED_PART)
    walks: Sequence[int | None] = range(SAMPLED_RUNS) if windows else [None]
    alone = asked.replications if case.estimate is None else 1
    points = []
    for n, (its, seed) in enumerate(case.runs(asked)):
        if n < alone:
            points.append(Point([CurveRun(its, pages, seed, 1, walk) for walk in walks]))
        else:
            run = CurveRun(its, pages, seed, part, walks[n % len(walks)])
            points.append(Point([run], [run._replace(scenario=best)]))
    return points


def _sampled(
    cases: Sequence[CurveCase], metrics: Sequence[str], asked: PredictionOptions
) -> tuple[list[Values], tuple[str, ...]]:
    """What each case gives, and what to know before believing it."""
    points = [_points_of(case, metrics, asked) for case in cases]
    runs = {(i, run.key): run for i, own in enumerate(points) for point in own for run in (*point.runs, *point.beside)}
    whole = [run.scenario for run in runs.values() if run.pages is None and run.walk is None]
    longest = max(whole, key=least_accesses, default=None)
    if longest and asked.progress and (long := how_long(longest, len(whole), parallel.concurrency())):
        asked.progress(f"{long}; {_why_whole(longest, metrics)}", 0.0)
    each = _evaluate_each(list(runs.values()), partial(_read, metrics=metrics), asked.progress)
    found = dict(zip(runs, each, strict=True))
    flags = {flag for case in cases for flag in flags_of(case.known.central())}
    scales = sorted({found[i, own[0].runs[0].key][1] for i, own in enumerate(points)})
    scaled = [scale for scale in scales if scale > 1]
    if scaled:
        span = f"{scaled[0]:g}" + (f" to {scaled[-1]:g}" if len(scaled) > 1 else "")
        flags.add(f"one page in {span} was simulated; times and counts are scaled")
    if 0 in scales:
        flags.add(f"sampled: windows of {SAMPLED_RUNS} walks through each migration (docs/sampling.md)")
    if any(case.estimate is None and not (asked.costs == "drawn" and case.known.drawn) for case in cases):
        flags.add("intervals show the spread over seeds only: the costs were given, not calibrated")
    rows = {key: row for key, (row, _) in found.items()}
    return [_values(i, case, points[i], rows, asked) for i, case in enumerate(cases)], tuple(sorted(flags))


def _why_whole(scenario: Scenario, metrics: Sequence[str]) -> str:
    """Which metrics need all memory, why no windows tell them, and what to do about it."""
    names = ", ".join(name for name in metrics if find_metric(scenario, name).memory == "whole")
    reason = why_not(scenario) or f"windows do not tell {', '.join(sorted(set(metrics) - set(WINDOW_METRICS)))}"
    return f"or ask without {names}, for which a part of the memory is not enough: {reason} (docs/sampling.md)"


def _read(
    scenario: Scenario, pages: int | None, seed: int, part: int, walk: int | None, check: parallel.Check,
    metrics: Sequence[str],
) -> tuple[Floats, float]:  # fmt: skip
    """Metrics of a run, or of a walk, shape (metrics,); and the scale of its pages, 0 of a walk."""
    if walk is not None:
        (one,) = sample_several(scenario, SAMPLED_RUNS, seed, check, walk)
        return np.array([one.metrics[metric] for metric in metrics]), 0.0
    run = _simulated(scenario, pages, seed, check, part)
    return np.array([run.value(metric) for metric in metrics]), run.scale


def _values(
    i: int, case: CurveCase, points: Sequence[Point], found: Mapping[Any, Floats], asked: PredictionOptions
) -> Values:
    """What a case gives; what moves beside the best costs with fewer pages, or on one walk, moves so with all."""
    rows: list[Floats] = []
    for point in points:
        value = np.mean([found[i, run.key] for run in point.runs], axis=0)
        if point.beside:
            centre, same = rows[0], np.mean([found[i, run.key] for run in point.beside], axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where((same > 0) & (value > 0), centre * value / same, centre + value - same)
            value = np.maximum(ratio, 0.0)
        rows.append(value)
    drawn = case.known.drawn if asked.costs == "drawn" else ()
    alone = len(points) - 2 * len(drawn)
    table = np.array(rows)
    return Values(table[:alone], table[alone:], drawn)


def by_windows(scenario: Scenario, metrics: Sequence[str]) -> bool:
    """Whether windows of a migration tell these metrics, and are worth it."""
    pages = scenario.guest.pages
    return pages > WHOLE_PAGES and not why_not(scenario) and not set(metrics) - set(WINDOW_METRICS)


def interval(
    values: Values, column: int, estimate: CostEstimate | None, level: float, spread: Spread, metric: str = ""
) -> tuple[float, float, float]:
    """Centre and interval of what one case gives of a metric; without its name, that of a ratio.

    In a ratio the model's own discrepancy is taken to be common to both sides.
    """
    points = values.points[:, column]
    if estimate is None:
        centre = float(points.mean())
        if len(points) < 2:
            return (centre, *spread.interval(column, centre)) if values.drawn else (centre, float("nan"), float("nan"))
        half = float(stdtrit(len(points) - 1, 0.5 + level / 2) * points.std(ddof=1) / np.sqrt(len(points)))
        if values.drawn:
            return centre, *spread.interval(column, centre, half / centre if spread.logs[column] else half)
        low = centre - half
        return centre, low if (points < 0).any() else max(0.0, low), centre + half
    centre = float(points[0])
    own = estimate.discrepancy * estimate.spread.get(metric, 1.0) if metric else 0.0
    reach = float(stdtrit(estimate.dof, 0.5 + level / 2))
    logs = bool((points > 0).all()) and bool(spread.logs[column])
    told = np.log(points) if logs else points
    gradient = (told[2::2] - told[1::2]) / (2 * steps_of(estimate))
    half = reach * float(np.sqrt(gradient @ estimate.covariance @ gradient + (own if logs else own * centre) ** 2))
    return centre, *spread.interval(column, centre, half)
