# SPDX-License-Identifier: BSD-3-Clause
"""Measurements to costs: least squares in the logarithms, from several starts, with profile intervals.

The objective is deterministic: the engine runs on common random numbers, so
that two trial points differ by their costs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import lmfit
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.stats import qmc

from simlib import parallel
from simlib.calibration.problem import SPREAD, Problem
from simlib.errors import CalibrationError
from simlib.fits import CostEstimate
from simlib.fits.file import costs_in_ns, fitted_curves
from simlib.model.scenario import Scenario
from simlib.prediction import LEVEL, PAGES_PER_VCPU
from simlib.results import Result, text_of

STARTS = 12
"""Points of the first screening, by Latin hypercube around a guess from the asymptotes."""

REFINED = 4
"""How many of them are followed to a minimum."""

FloatArray = NDArray[np.float64]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, repr=False)
class Calibrated(Result):
    """Costs that explain a set of measurements.

    Attributes
    ----------
    problem : Problem
    estimate : CostEstimate
        Best values, covariance, degrees of freedom and discrepancy.
    intervals : DataFrame
        name, value, low, high (profile interval; picoseconds or dimensionless), at_bound, determined.
    correlation : DataFrame
        Correlation of the logarithms, names by names.
    fitted : DataFrame
        The observations with the model's value: variant, vcpus, metric, value, train, model, error.
    starts : DataFrame
        start, first and last objective (of the coarse runs), agrees with the best: as likely, at the level.
    level : float
    pages_per_vcpu, seed : int
    valid : dict of str to bool
        Named flags: ``converged``, ``starts_agree``, ``inside_bounds``, ``more_data_than_costs``,
        ``all_determined``.
    sensitivity : DataFrame
        variant, vcpus, name, first, total and their confidences: Sobol indices of each variant's time in the
        middle of the training vCPUs, over the costs' intervals. Empty without profile intervals.
    """

    problem: Problem
    estimate: CostEstimate
    intervals: pd.DataFrame
    correlation: pd.DataFrame
    fitted: pd.DataFrame
    starts: pd.DataFrame
    level: float
    pages_per_vcpu: int
    seed: int
    valid: dict[str, bool]
    sensitivity: pd.DataFrame = field(default_factory=pd.DataFrame)

    FIGURES: ClassVar[Mapping[str, str]] = {
        "cost_intervals": "costs", "dirty_memory_time": "curves", "contentions": "curves",
        "correlation": "_correlation", "sensitivity": "_sensitivity",
    }  # fmt: skip

    @property
    def scenario(self) -> Scenario:
        """What was calibrated."""
        return self.problem.scenario

    def costs(self) -> pd.DataFrame:
        """The costs with their intervals, times in nanoseconds: name, value, low, high, unit, fit."""
        return costs_in_ns(self.intervals, self.problem.dataset)

    def curves(self) -> pd.DataFrame:
        """What was measured, and the model beside it: variant, vcpus, metric, kind, value, low, high, held_out."""
        return fitted_curves(self.fitted)

    def summary(self) -> str:
        """The costs, and how far to believe them."""
        faults = [f"warning: not {name.replace('_', ' ')}" for name, good in self.valid.items() if not good]
        title = (
            f"Calibrated on {len(self.problem.train)} observations of {self.problem.dataset}: "
            f"{len(self.estimate.names)} costs, discrepancy {self.estimate.discrepancy:.1%}, {self.level:.0%} intervals"
        )
        return "\n".join([title, text_of(self.costs().drop(columns="fit")), *faults])

    def _correlation(self) -> pd.DataFrame:
        return self.correlation

    def _sensitivity(self) -> pd.DataFrame:
        rows = self.sensitivity
        return pd.DataFrame(rows[rows["variant"] == rows["variant"].iloc[0]] if len(rows) else rows)

    def _repr_html_(self) -> str:
        flags = "".join(f"<li>{name}: {value}</li>" for name, value in self.valid.items())
        return (
            f"<p><b>Calibrated</b> on {len(self.problem.train)} observations, {len(self.estimate.names)} costs, "
            f"discrepancy {self.estimate.discrepancy:.1%}</p><ul>{flags}</ul>{self.intervals.to_html(index=False)}"
        )


def calibrate(
    problem: Problem,
    *,
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Progress | None = None,
) -> Calibrated:
    """Determine the costs of a problem.

    Parameters
    ----------
    problem : Problem
    level : float
        Probability of the intervals.
    seed : int
        Root of the engine's random streams and of the starting points.
    pages_per_vcpu : int
        Pages a vCPU that each evaluation simulates.
    profile : bool
        Profile intervals; without them the intervals are those of the linearised problem.
    progress : callable, optional
        Called with (what, share done).

    Returns
    -------
    Calibrated

    Raises
    ------
    CalibrationError
        If no start converges.
    """
    tell = progress or (lambda what, share: None)
    starts, results = _multi_start(problem, seed, max(512, pages_per_vcpu // 4), tell)
    best = min(results, key=lambda r: r[0])
    final = _minimise(problem, best[1], pages_per_vcpu, seed, 20)
    tell("calibrating", 0.6)
    logs = final[1]

    def residuals(point: FloatArray) -> FloatArray:
        return problem.residuals(point, pages_per_vcpu, seed)

    base = residuals(logs)
    jacobian = _jacobian(residuals, logs)
    dof = len(base) - len(logs)
    variance = float(base @ base) / dof + _simulation_variance(problem, logs, pages_per_vcpu, seed)
    information = jacobian.T @ jacobian
    covariance = np.asarray(np.linalg.pinv(information, rcond=1e-8) * variance, dtype=np.float64)
    deviations = np.sqrt(np.diag(covariance))
    estimate = CostEstimate(problem.names, logs, covariance, dof, float(np.sqrt(variance)), SPREAD)
    limits = _profile(problem, residuals, estimate, jacobian, base, level, tell) if profile else None
    t = float(stats.t.ppf(0.5 + level / 2, dof))
    lows = logs - t * deviations if limits is None else limits[:, 0]
    highs = logs + t * deviations if limits is None else limits[:, 1]
    low_bound, high_bound = problem.bounds.T
    at_bound = (logs - low_bound < 1e-3) | (high_bound - logs < 1e-3)
    determined = (lows > low_bound + 1e-6) & (highs < high_bound - 1e-6) & ~at_bound
    intervals = pd.DataFrame(
        {"name": problem.names, "value": np.exp(logs), "low": np.exp(lows), "high": np.exp(highs),
         "at_bound": at_bound, "determined": determined}
    )  # fmt: skip
    scale = np.where(deviations > 0, deviations, 1.0)
    correlation = pd.DataFrame(covariance / np.outer(scale, scale), index=problem.names, columns=problem.names)
    rows = problem.observations.copy()
    rows["model"] = problem.model(logs, rows, pages_per_vcpu, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows["error"] = np.where(rows["value"] > 0, rows["model"] / rows["value"] - 1, np.nan)
    # A start agrees if its minimum is as likely as the best one, at the level of the intervals.
    least = float(starts["last"].min())
    starts["agrees"] = starts["last"] <= least * (1 + t**2 / dof) + 1e-9
    valid = {
        "converged": bool(final[2]),
        "starts_agree": int(starts["agrees"].sum()) >= 2,
        "inside_bounds": not at_bound.any(),
        "more_data_than_costs": dof >= len(logs),
        "all_determined": bool(determined.all()),
    }
    tell("calibrated", 1.0)
    return Calibrated(problem, estimate, intervals, correlation, rows, starts, level, pages_per_vcpu, seed, valid)


def first_guess(problem: Problem) -> FloatArray:
    """Logarithms of costs from the asymptotes of a closed lock: time alone, and time each when saturated.

    With one vCPU a fault takes think plus service, with many vCPUs it takes their number times the
    service (Denning and Buzen 1978); that gives exit and hold, and small shares of the hold the rest.
    """
    train = problem.train
    times = train[train["metric"].str.startswith("dirty_memory_time")]
    if times.empty:
        return np.asarray(problem.bounds.mean(axis=1))
    pages = problem.scenario.guest.pages_per_vcpu
    n, seconds = times["vcpus"].to_numpy(dtype=float), times["value"].to_numpy(dtype=float)
    few, many = int(np.argmin(n)), int(np.argmax(n))
    service = max(seconds[many] / n[many] / pages * 1e12, 1e3)
    alone = max(seconds[few] / pages * 1e12 - service, 0.3 * service)
    guess = {
        "fault_exit": alone, "fault_hold": 0.5 * service, "tlb_invalidate": 0.4 * service,
        "line_transfer": 0.05 * service, "fault_jitter": 0.4,
    }  # fmt: skip
    names = [name.partition("[")[0] for name in problem.names]
    logs = [np.log(guess[n]) if n in guess else problem.bounds[i].mean() for i, n in enumerate(names)]
    return np.asarray(np.clip(logs, problem.bounds[:, 0] + 0.01, problem.bounds[:, 1] - 0.01), dtype=np.float64)


def _simulation_variance(problem: Problem, logs: FloatArray, pages: int, seed: int) -> float:
    """Largest variance of a residual over seeds: what simulating a sample of the pages leaves open."""
    again = [problem.residuals(logs, pages, seed + k) for k in range(1, 5)]
    return float(np.max(np.var(again, axis=0, ddof=1)))


def _multi_start(
    problem: Problem, seed: int, pages: int, tell: Progress
) -> tuple[pd.DataFrame, list[tuple[float, FloatArray, bool]]]:
    guess = first_guess(problem)
    cube = qmc.LatinHypercube(len(guess), rng=np.random.default_rng(seed)).random(STARTS - 1)
    points = np.vstack([guess, guess + 1.2 * (2 * cube - 1)])
    points = np.clip(points, problem.bounds[:, 0] + 0.01, problem.bounds[:, 1] - 0.01)
    first = []
    for i, point in enumerate(points):
        r = problem.residuals(point, pages, seed)
        first.append(float(r @ r))
        tell("trying starting points", 0.1 * (i + 1) / STARTS)
    order = np.argsort(first)[:REFINED]
    tasks = [partial(_minimise, problem, points[i], pages, seed, 30) for i in order]
    results = parallel.each(tasks, "calibrating", lambda what, share: tell(what, 0.1 + 0.4 * share))
    if not any(np.isfinite(r[0]) for r in results):
        raise CalibrationError("no starting point leads to finite residuals; check the measurements' units")
    starts = pd.DataFrame({"start": order, "first": np.array(first)[order], "last": [r[0] for r in results]})
    return starts, results


def _minimise(
    problem: Problem, start: FloatArray, pages: int, seed: int, steps: int, check: parallel.Check | None = None
) -> tuple[float, FloatArray, bool]:
    parameters = lmfit.Parameters()
    for i, (value, (low, high)) in enumerate(zip(start, problem.bounds, strict=True)):
        parameters.add(f"p{i}", value=float(value), min=float(low), max=float(high))

    def residuals(p: lmfit.Parameters) -> FloatArray:
        if check is not None:
            check(0, 0)
        return problem.residuals(np.array([p[f"p{i}"].value for i in range(len(start))]), pages, seed)

    result = lmfit.minimize(
        residuals, parameters, method="least_squares", diff_step=0.01, max_nfev=steps * (len(start) + 1),
        calc_covar=False, ftol=1e-5, xtol=1e-6,
    )  # fmt: skip
    logs = np.array([result.params[f"p{i}"].value for i in range(len(start))])
    return float(np.sum(result.residual**2)), logs, bool(result.success)


def _jacobian(residuals: Callable[[FloatArray], FloatArray], point: FloatArray) -> FloatArray:
    columns = []
    for k in range(len(point)):
        step = np.zeros(len(point))
        step[k] = 0.02
        columns.append((residuals(point + step) - residuals(point - step)) / 0.04)
    return np.column_stack(columns)


def _profile(
    problem: Problem,
    residuals: Callable[[FloatArray], FloatArray],
    estimate: CostEstimate,
    jacobian: FloatArray,
    base: FloatArray,
    level: float,
    tell: Progress,
) -> FloatArray:
    """Where the sum of squares, minimised over the other costs, has grown by t² times the variance.

    The inner minimisation takes Gauss-Newton steps with the Jacobian of the optimum.
    """
    n = len(estimate.logs)
    t = float(stats.t.ppf(0.5 + level / 2, estimate.dof))
    room = t**2 * estimate.discrepancy**2
    least = float(base @ base)

    def growth(k: int, distance: float, inverse: FloatArray, others: list[int]) -> float:
        point = estimate.logs.copy()
        point[k] += distance
        point[others] -= inverse @ (jacobian[:, k] * distance)
        smallest = np.inf
        for _ in range(3):
            point = np.clip(point, problem.bounds[:, 0], problem.bounds[:, 1])
            r = residuals(point)
            smallest = min(smallest, float(r @ r))
            point[others] -= inverse @ r
        return max(smallest - least, 1e-12)

    limits = np.empty((n, 2))
    for k in range(n):
        others = [i for i in range(n) if i != k]
        inverse = np.asarray(np.linalg.pinv(jacobian[:, others], rcond=1e-6), dtype=np.float64)
        width = max(t * float(np.sqrt(estimate.covariance[k, k])), 1e-3)
        for side, sign in enumerate((-1.0, 1.0)):
            inside, outside, reach = 0.0, np.inf, width
            for _ in range(4):
                ratio = float(np.sqrt(growth(k, sign * reach, inverse, others) / room))
                if ratio < 1:
                    inside = reach
                else:
                    outside = reach
                if abs(ratio - 1) < 0.05:
                    break
                # The root of the growth is close to linear in the distance.
                reach = min(max(reach / ratio, 1.02 * inside), 0.98 * outside, 4 * width)
            limits[k, side] = estimate.logs[k] + sign * max(inside, reach)
        tell("profile intervals", 0.6 + 0.4 * (k + 1) / n)
    return np.clip(limits, problem.bounds[:, :1], problem.bounds[:, 1:])
