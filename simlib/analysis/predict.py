# SPDX-License-Identifier: BSD-3-Clause
"""Prediction of metrics at several vCPU counts, with intervals.

The compiled engine simulates the points of a curve with a sample of the pages (if the metrics are proportional to
them) and with common random numbers. The interval combines the uncertainty of the costs (to first order in their
logarithms, from runs with fewer pages) with the model's discrepancy from the data on which the costs were calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simlib._lib.errors import InputError
from simlib.analysis.curve_points import CurveCase, Values, run_jobs, run_pages, simulate_points, steps_of
from simlib.analysis.prediction_options import PAGES_PER_VCPU, PredictionKeywords, PredictionOptions, Progress
from simlib.analysis.simulate import SimulationResult
from simlib.figures.results import Result, result_html, text_of
from simlib.measurements.fits import (
    CostEstimate,
    Spread,
    UncertainCosts,
    choose_fit,
    decisive,
    describe_costs,
    load_fit,
)
from simlib.model.policies import apply
from simlib.model.scenario import Scenario, as_scenario
from simlib.simulator.workloads import find_metric, kind_of

CHANGES = ("change_percent", "change_low", "change_high")
"""Columns of the comparison with the first policy."""


@dataclass(frozen=True, repr=False)
class PredictionResult(Result):
    """Predicted curves.

    - `frame`: variant, vcpus, metric, estimate, low, high, unit.
    - `level`: confidence level of the intervals.
    - `costs`: one row per cost that the programs spend: cost, evidence, value, low, high, unit, source.
    - `flags`: assumptions and limits that affect the result.
    """

    frame: pd.DataFrame
    level: float
    costs: pd.DataFrame
    flags: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "over_vcpus": lambda result: result.frame,
        "dirty_memory_time": lambda result: result.curves(),
        "contentions": lambda result: result.curves(),
        "speed_up": lambda result: result.curves(),
    }

    def summary(self) -> str:
        """Return the curves and the flags as text."""
        frame = self.frame if (self.frame["variant"] != "").any() else self.frame.drop(columns="variant")
        return "\n".join([f"Predicted, {100 * self.level:g} % intervals.", text_of(frame), *self.flags])

    def curves(self) -> pd.DataFrame:
        """Return the predictions in the columns that figures of measured and predicted points use.

        Returns: variant, vcpus, metric, kind, value, low, high, held_out.
        """
        names = {"estimate": "value"}
        return self.frame.drop(columns="unit").rename(columns=names).assign(kind="predicted", held_out=True)

    def _repr_html_(self) -> str:
        return result_html("Predicted", f", {100 * self.level:g} % intervals.", self.flags, self.frame)


def predict(
    scenario: Scenario | str | Path,
    vcpus: Sequence[int],
    *,
    variant: str = "",
    policy: str = "",
    **options: Unpack[PredictionKeywords],
) -> PredictionResult:
    """Predict metrics at each given vCPU count, for a scenario or for each of its variants.

    Raises `InputError` if the workload lacks one of the metrics, if `vcpus` is empty, or if `unknown_costs` is
    ``"exact"`` and a cost has no value.

    - `scenario`: a scenario, or its file. If it has variants, these are predicted, otherwise the scenario itself.
    - `variant`: variant to predict; by default all of them.
    - `policy`: name of a strategy for taking the lock (`simlib.model.policies.POLICIES`).
    - `fit`, `metrics`, `level`, `seed`, `replications`, `pages_per_vcpu`, `unknown_costs`, `progress`: see
      `simlib.analysis.prediction_options.PredictionOptions`.

    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"},
    ...                     "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns"}})
    >>> predict(s, [1, 2], metrics=["dirty_memory_time"]).frame.columns.tolist()
    ['variant', 'vcpus', 'metric', 'estimate', 'low', 'high', 'unit']
    """
    subject = as_scenario(scenario)
    subject = subject.variant(variant) if variant else subject
    subject = apply(subject, policy) if policy else subject
    precision = PredictionOptions(**options)
    frame, costs, flags = curves_of({"": subject}, vcpus, precision)
    return PredictionResult(frame.drop(columns=["policy", *CHANGES]), precision.level, costs, flags)


def evaluate(
    scenarios: Sequence[Scenario],
    *,
    pages_per_vcpu: int | None = PAGES_PER_VCPU,
    seed: int = 1,
    progress: Progress | None = None,
) -> list[SimulationResult]:
    """Simulate several scenarios with their own costs, in parallel on all CPUs (the engine releases the GIL)."""
    return run_jobs([(scenario, pages_per_vcpu, seed) for scenario in scenarios], run_pages, progress)


def curves_of(
    scenarios: Mapping[str, Scenario], vcpus: Sequence[int], options: PredictionOptions
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[str, ...]]:
    """Predict the curves of scenarios and their variants with common random numbers; compare each with the first.

    Raises `InputError` if there is no point or no metric, a workload lacks a metric, or if `options.unknown_costs` is
    ``"exact"`` and a cost has no value.

    Returns: the frame, with policy (the name), variant, vcpus, metric, estimate, low, high, unit, and `CHANGES`; the
    costs that the programs spend, as `PredictionResult.costs`; and the flags.
    """
    cases, notes = _cases_of(scenarios, vcpus, options)
    names = tuple(kind_of(cases[0].known.scenario).default_metrics if options.metrics is None else options.metrics)
    if not names:
        raise InputError("metrics", "", "must name at least one metric", 'write ["dirty_memory_time"]',
                         "write --metrics dirty_memory_time")  # fmt: skip
    metrics = [[find_metric(case.known.scenario, name) for name in names] for case in cases]
    results, flags = simulate_points(cases, names, options)
    first: dict[tuple[str, int], int] = {}
    for i, case in enumerate(cases):
        first.setdefault((case.label, case.vcpus), i)
    rows, shares = [], []
    for i, (case, values) in enumerate(zip(cases, results, strict=True)):
        reference = results[first[case.label, case.vcpus]]
        spread, paired = values.spread(), values.over(reference)
        paired_spread = paired.spread()
        shares.append(spread.shares())
        bounds = kind_of(case.known.scenario).lower_bounds(case.known.scenario)
        for column, (name, metric) in enumerate(zip(names, metrics[i], strict=True)):
            centre, low, high = interval(values, column, case.known.estimate, options.level, spread, metric.name)
            if metric.integer:
                low, high = values.extremes(column)
            low, high = metric.within(low, high, bounds.get(name, 0.0))
            ratio = (np.nan,) * 3
            if (reference.points[:, column] > 0).all() and (reference.ends[:, column] > 0).all():
                ratio = interval(paired, column, case.known.estimate, options.level, paired_spread)
            changes = [100 * (value - 1) for value in ratio]
            rows.append((case.name, case.label, case.vcpus, name, centre, low, high, metric.unit, *changes))
    columns = ["policy", "variant", "vcpus", "metric", "estimate", "low", "high", "unit", *CHANGES]
    note = decisive(pd.concat(shares, axis=1).fillna(0.0).mean(axis=1).sort_values(ascending=False))
    costs = pd.concat([case.known.table() for case in cases if case.vcpus == vcpus[0]], ignore_index=True)
    costs = costs.drop_duplicates(ignore_index=True)
    return pd.DataFrame(rows, columns=columns), costs, (*notes, *flags, *([note] if note else ()))


def _cases_of(
    scenarios: Mapping[str, Scenario], vcpus: Sequence[int], options: PredictionOptions
) -> tuple[list[CurveCase], tuple[str, ...]]:
    """Return the points of the curves, each with its costs, and notes on the costs."""
    if not vcpus:
        raise InputError("vcpus", "", "must contain at least one vCPU count", "write [16, 32, 48]",
                         "write --vcpus 16,32,48", "--vcpus")  # fmt: skip
    fit = load_fit(options.fit) if isinstance(options.fit, str | Path) else options.fit
    cases: list[CurveCase] = []
    notes: list[str] = []
    for name, subject in scenarios.items():
        for label, scenario in (dict(subject.variants) or {"": subject}).items():
            estimate, fit_notes = choose_fit(scenario, fit)
            notes += fit_notes
            for count in vcpus:
                costs = UncertainCosts.of(scenario.with_vcpus(count), estimate).scaled(options.factors.get(name, {}))
                if options.unknown_costs == "exact":
                    costs.exact()
                notes += describe_costs(costs)
                cases.append(CurveCase(name, label, count, costs))
    return cases, tuple(dict.fromkeys(notes))


def interval(
    values: Values, column: int, estimate: CostEstimate | None, level: float, spread: Spread, metric: str = ""
) -> tuple[float, float, float]:
    """Return the centre and the ends of the interval of a case's metric or, if `metric` is empty, of a ratio.

    The model's discrepancy is assumed to be common to both sides of a ratio.
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
    discrepancy = estimate.discrepancy * estimate.spread.get(metric, 1.0) if metric else 0.0
    quantile = float(stdtrit(estimate.dof, 0.5 + level / 2))
    logs = bool((points > 0).all()) and bool(spread.logs[column])
    scaled = np.log(points) if logs else points
    gradient = (scaled[2::2] - scaled[1::2]) / (2 * steps_of(estimate))
    variance = gradient @ estimate.covariance @ gradient + (discrepancy if logs else discrepancy * centre) ** 2
    return centre, *spread.interval(column, centre, quantile * float(np.sqrt(variance)))
