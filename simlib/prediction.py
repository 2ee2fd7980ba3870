# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios to curves with intervals.

A curve's points are simulated by the compiled engine with a sample of the pages
(the steady state is proportional to them), on common random numbers. The
interval joins what the calibration leaves open in the costs (first order, in
the logarithms) and the model's own discrepancy from the data it was fitted to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.errors import InputError
from simlib.model.costs import Costs
from simlib.model.scenario import Scenario
from simlib.simulation import UNITS, SimulationResult, flags_of, simulate, used_costs

PAGES_PER_VCPU = 4096
"""Pages a vCPU that a point of a curve simulates; doubling it moves no published point by more than 0.5 %."""

FEW_VCPUS = 8
"""With fewer vCPUs each simulates more pages, as many in all as these would: random spread falls with all pages."""

LEVEL = 0.90
"""Probability that an interval is meant to cover."""

BOUNDS = {field.name: field.metadata["bounds"] for field in fields(Costs)}
"""Least and largest value of each cost that is physically possible: picoseconds, or a coefficient of variation."""

METRICS = ("dirty_memory_time", "contentions")
"""Metrics that a prediction gives unless told otherwise."""


def evaluate(
    scenarios: Sequence[Scenario], *, pages_per_vcpu: int = PAGES_PER_VCPU, seed: int = 1
) -> list[SimulationResult]:
    """Simulate several scenarios, as many at a time as there are CPUs (the engine releases the interpreter).

    Examples
    --------
    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": {"fault_exit": "1us"}})
    >>> [r.metrics["dirty_memory_time"] > 0 for r in evaluate([s, s.with_vcpus(2)])]
    [True, True]
    """
    # The dearest first, so that the last one to end is short.
    order = sorted(range(len(scenarios)), key=lambda i: -scenarios[i].guest.vcpus)
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        pages = [pages_per_vcpu * max(1, FEW_VCPUS // s.guest.vcpus) for s in scenarios]
        futures = {i: pool.submit(simulate, scenarios[i], seed=seed, pages_per_vcpu=pages[i]) for i in order}
        return [futures[i].result() for i in range(len(scenarios))]
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C: do not start what has not begun


def cost_key(cost: str, group: str = "") -> str:
    """Name of a parameter: a cost, or a cost of one group of variants.

    Examples
    --------
    >>> cost_key("fault_exit"), cost_key("fault_exit", "old test")
    ('fault_exit', 'fault_exit[old test]')
    """
    return f"{cost}[{group}]" if group else cost


@dataclass(frozen=True)
class CostEstimate:
    """Calibrated costs, and how far they are known.

    Attributes
    ----------
    names : tuple of str
        Costs (``"fault_hold"``), or costs of a group of variants (``"fault_exit[old test]"``).
    logs : ndarray, shape (n,)
        Natural logarithms of the values (picoseconds, or dimensionless).
    covariance : ndarray, shape (n, n)
        Of `logs`.
    dof : int
        Degrees of freedom: observations less parameters.
    discrepancy : float
        Standard deviation of measured over model, relative, that is left after the fit.
    spread : mapping of str to float
        How much larger than `discrepancy` a metric's deviation is taken to be; 1 if not named.
    """

    names: tuple[str, ...]
    logs: NDArray[np.float64]
    covariance: NDArray[np.float64]
    dof: int
    discrepancy: float
    spread: Mapping[str, float]

    def apply(self, scenario: Scenario, logs: NDArray[np.float64] | None = None) -> Scenario:
        """The scenario with these costs, those of its own group where the estimate has them.

        A cost that the scenario gives by hand keeps its value.
        """
        given = scenario.costs.given()
        values = np.exp(self.logs if logs is None else logs)
        mine: dict[str, float] = {}
        for name, value in zip(self.names, values.tolist(), strict=True):
            cost, _, rest = name.partition("[")
            if cost not in given and (not rest or rest.removesuffix("]") == scenario.group):
                mine[cost] = value
        return scenario.with_costs(**mine)

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Logarithms of costs that may be true: multivariate t around the best ones, within their physical bounds.

        Examples
        --------
        >>> known = CostEstimate(("fault_hold",), np.log([600e3]), np.array([[0.01]]), 8, 0.02, {})
        >>> bool(abs(known.draw(np.random.default_rng(1))[0] - known.logs[0]) < 0.5)
        True
        """
        deviates = random.multivariate_normal(np.zeros(len(self.logs)), self.covariance)
        wide = np.sqrt(self.dof / random.chisquare(self.dof))
        bounds = np.log([BOUNDS[name.partition("[")[0]] for name in self.names])
        return np.asarray(np.clip(self.logs + deviates * wide, bounds[:, 0], bounds[:, 1]), dtype=np.float64)

    def groups(self) -> set[str]:
        """Groups that have costs of their own."""
        return {name.partition("[")[2].removesuffix("]") for name in self.names if "[" in name}


@dataclass(frozen=True)
class PredictionResult:
    """Predicted curves.

    Attributes
    ----------
    frame : DataFrame
        variant, vcpus, metric, estimate, low, high, unit.
    level : float
        Probability that the intervals are meant to cover.
    flags : tuple of str
        What to know before believing the result.
    """

    frame: pd.DataFrame
    level: float
    flags: tuple[str, ...]

    def _repr_html_(self) -> str:
        flags = "".join(f"<li>{flag}</li>" for flag in self.flags)
        return f"<p><b>Predicted</b>, {self.level:.0%} intervals.</p><ul>{flags}</ul>{self.frame.to_html(index=False)}"


def predict(
    scenario: Scenario,
    vcpus: Sequence[int],
    *,
    estimate: CostEstimate | None = None,
    metrics: Sequence[str] = METRICS,
    level: float = LEVEL,
    seed: int = 1,
    replications: int = 5,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    progress: Callable[[str, float], None] | None = None,
) -> PredictionResult:
    """Curves over vCPUs, for a scenario or each of its variants.

    Parameters
    ----------
    scenario : Scenario
        Its variants are predicted if it has any, else itself.
    vcpus : sequence of int
    estimate : CostEstimate, optional
        Calibrated costs. Without it the scenario's own costs are used, and the intervals show only the
        simulation's random spread over `replications` seeds.
    metrics : sequence of str
        Names of `simlib.simulation.UNITS`.
    level : float
        Probability that the intervals are to cover.
    seed, replications, pages_per_vcpu : int
    progress : callable, optional
        Called with (what, share done).

    Returns
    -------
    PredictionResult

    Raises
    ------
    InputError
        If a needed cost has no value, a metric is unknown, or vcpus is empty.

    Examples
    --------
    >>> s = Scenario.parse({"guest": {"memory_per_vcpu": "2M"},
    ...                     "policy": {"architecture": "x86-shadow-paging"},
    ...                     "costs": {"fault_exit": "1us", "fault_hold": "500ns", "line_transfer": "50ns"}})
    >>> predict(s, [1, 2]).frame.columns.tolist()
    ['variant', 'vcpus', 'metric', 'estimate', 'low', 'high', 'unit']
    """
    if not vcpus:
        raise InputError("vcpus", "", "must name at least one number of vCPUs", "write --vcpus 16,32,48")
    for metric in metrics:
        if metric not in UNITS:
            raise InputError("metric", metric, f"must be one of {', '.join(UNITS)}")
    named = dict(scenario.variants) or {"": scenario}
    cases = [(name, n, variant.with_vcpus(n)) for name, variant in named.items() for n in vcpus]
    for _, _, case in cases:
        complete(case, estimate)
    if estimate is None:
        runs = []
        for r in range(replications):
            runs.append(evaluate([c for _, _, c in cases], pages_per_vcpu=pages_per_vcpu, seed=seed + r))
            _tell(progress, "replications", (r + 1) / replications)
    else:
        runs = _derivative_runs([c for _, _, c in cases], estimate, pages_per_vcpu, seed, progress)
    rows = []
    for i, (name, n, _) in enumerate(cases):
        for metric in metrics:
            values = np.array([run[i].metrics[metric] for run in runs])
            centre, low, high = _interval(values, metric, estimate, level)
            rows.append((name, n, metric, centre, low, high, UNITS[metric]))
    frame = pd.DataFrame(rows, columns=["variant", "vcpus", "metric", "estimate", "low", "high", "unit"])
    flags = {flag for _, _, c in cases for flag in flags_of(c if estimate is None else estimate.apply(c))}
    if estimate is None:
        flags.add("intervals show the spread over seeds only: the costs were given, not calibrated")
    return PredictionResult(frame, level, tuple(sorted(flags)))


def complete(scenario: Scenario, estimate: CostEstimate | None = None) -> Scenario:
    """The scenario with the estimate's costs, once every cost that its time depends on has a value.

    Raises
    ------
    InputError
        If one has none; the message says how to give it.

    Examples
    --------
    >>> complete(Scenario())
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: costs = fault_exit, fault_hold, line_transfer: no value, ...
    """
    scenario.policy.resolved()
    filled = scenario if estimate is None else estimate.apply(scenario)
    missing = [name for name in used_costs(filled) if name not in filled.costs.given()]
    if missing:
        cure = "give them under [costs], or calibrate and pass --fit"
        if estimate is not None and estimate.groups() - {scenario.group}:
            names = ", ".join(repr(g) for g in sorted(estimate.groups()))
            cure = f'the fit has them for the groups {names}: write group = "…" at the top of the scenario'
        raise InputError(
            "costs", ", ".join(missing),
            f"no value, and no calibrated one for machine {scenario.machine.name!r} with architecture "
            f"{scenario.policy.architecture!r}",
            cure,
        )  # fmt: skip
    return filled


def _tell(progress: Callable[[str, float], None] | None, what: str, share: float) -> None:
    if progress is not None:
        progress(what, share)


_STEP = 0.02


def _derivative_runs(
    cases: list[Scenario], estimate: CostEstimate, pages: int, seed: int,
    progress: Callable[[str, float], None] | None,
) -> list[list[SimulationResult]]:  # fmt: skip
    """The best costs first, then each logarithm a step down and a step up."""
    points = [estimate.logs]
    for k in range(len(estimate.names)):
        for sign in (-1, 1):
            shifted = estimate.logs.copy()
            shifted[k] += sign * _STEP
            points.append(shifted)
    runs = []
    for number, point in enumerate(points):
        runs.append(evaluate([estimate.apply(c, point) for c in cases], pages_per_vcpu=pages, seed=seed))
        _tell(progress, "predicting", (number + 1) / len(points))
    return runs


def _interval(
    values: NDArray[np.float64], metric: str, estimate: CostEstimate | None, level: float
) -> tuple[float, float, float]:
    if estimate is None:
        centre = float(values.mean())
        if len(values) < 2:
            return centre, float("nan"), float("nan")
        half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        return centre, centre - float(half), centre + float(half)
    centre = float(values[0])
    if centre <= 0:
        return centre, centre, centre
    logs = np.log(np.maximum(values, 1e-300))
    gradient = (logs[2::2] - logs[1::2]) / (2 * _STEP)
    own = estimate.discrepancy * estimate.spread.get(metric, 1.0)
    deviation = float(np.sqrt(gradient @ estimate.covariance @ gradient + own**2))
    half = float(stats.t.ppf(0.5 + level / 2, estimate.dof)) * deviation
    return centre, centre * float(np.exp(-half)), centre * float(np.exp(half))
