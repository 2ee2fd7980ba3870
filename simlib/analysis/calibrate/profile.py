# SPDX-License-Identifier: BSD-3-Clause
"""Profile intervals: ranges of a cost within which the other costs can compensate for its change.

A profile is followed from the optimum outwards (Bates and Watts 1988, Nonlinear Regression Analysis and Its
Applications, 6.1.2), with runs of few pages. Runs of all pages correct these until the end is accurate to 10 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from simlib._lib.parallel import Progress
from simlib.analysis.calibrate.problem import FloatArray
from simlib.analysis.calibrate.search import CorrectedResiduals, LogResiduals, Residuals
from simlib.measurements.fits import CostEstimate


def profile_intervals(
    objective: LogResiduals, pages: int, estimate: CostEstimate, jacobian: FloatArray, level: float, progress: Progress
) -> FloatArray:
    """Find where the sum of squares, minimised over the other costs, has grown by t² times the variance.

    - `pages`: pages per vCPU of the runs that follow the profile.
    - `jacobian`: derivative of the objective at the optimum.

    Returns: ndarray, shape (costs, 2), logarithms.
    """
    logs, bounds = estimate.logs, objective.problem.bounds
    t = float(stdtrit(estimate.dof, 0.5 + level / 2))
    base, coarse = objective(logs), CorrectedResiduals.at(logs, objective, jacobian, pages)
    limits = np.empty((len(logs), 2))
    for k in range(len(logs)):
        width = max(t * float(np.sqrt(estimate.covariance[k, k])), 1e-3)
        for side, sign in enumerate((-1.0, 1.0)):
            farthest = min(abs(float(bounds[k, side] - logs[k])), 4 * width)
            points = [_ProfilePoint(0.0, logs, jacobian)]
            profile = _Profile(objective, coarse, k, sign, float(base @ base), t**2 * estimate.discrepancy**2, points)
            limits[k, side] = logs[k] + sign * profile.end(width / 4, farthest)
        progress("profile intervals", 0.6 + 0.4 * (k + 1) / len(logs))
    return np.clip(limits, bounds[:, :1], bounds[:, 1:])


@dataclass(frozen=True)
class _ProfilePoint:
    """Point of a profile: distance in one cost's logarithm, logarithms of all costs, and slopes of the residuals."""

    distance: float
    logs: FloatArray
    slopes: FloatArray


@dataclass
class _Profile:
    """Profile of one cost on one side of the optimum.

    - `least`, `room`: sum of squares at the optimum, and its growth at the interval's end.
    - `points`: points that have been computed; the first is the optimum.
    """

    objective: LogResiduals
    coarse: CorrectedResiduals
    cost: int
    sign: float
    least: float
    room: float
    points: list[_ProfilePoint]

    def end(self, start: float, farthest: float) -> float:
        """Return the distance of the interval's end from the optimum."""
        distance = start
        for _ in range(5):
            distance = _solve_for_one(lambda at: self._evaluate(at, self.coarse)[0], distance, farthest)
            ratio = self.growth_with_all_pages(distance)
            if ratio < 1 and distance == farthest:
                return distance
            if abs(ratio - 1) < 0.1:
                return min(distance / ratio, farthest)
        return _solve_for_one(self.growth_with_all_pages, distance, farthest)

    def growth_with_all_pages(self, distance: float) -> float:
        """Return sqrt(growth / growth at the interval's end) from a run of all pages; correct the coarse runs."""
        ratio, point, residuals = self._evaluate(distance, self.objective)
        if distance > 0:
            self.coarse = self.coarse.updated(point.logs, residuals)
        return ratio

    def _evaluate(self, distance: float, function: Residuals) -> tuple[float, _ProfilePoint, FloatArray]:
        """Minimise over the other costs, from the nearest known point, until a step would gain under 2 % of `room`."""
        nearest = min(self.points, key=lambda point: abs(point.distance - distance))
        step = self.sign * (distance - nearest.distance)
        residuals, point = _minimise_others(function, nearest, self.cost, step, 0.02 * self.room)
        point = replace(point, distance=distance)
        ratio = float(np.sqrt(max(float(residuals @ residuals) - self.least, 1e-12) / self.room))
        if ratio < 3.0:  # near enough for later steps to begin there
            self.points.append(point)
        return ratio, point, residuals


def _solve_for_one(function: Callable[[float], float], start: float, farthest: float) -> float:
    """Return where a function that grows from 0 reaches 1, within 5 %, or `farthest` if it does not reach 1.

    The square root of a sum of squares is nearly linear in the distance; if it is not, bisection and secants alternate.

    >>> round(_solve_for_one(lambda x: x / 3, 1.0, 10.0), 2), round(float(_solve_for_one(np.expm1, 7.0, 9.0)), 1)
    (3.0, 0.7)
    >>> round(float(_solve_for_one(lambda x: np.sinh(x * x), 4.0, 5.0)), 2)  # far from linear
    0.95
    >>> _solve_for_one(lambda x: x / 100, 1.0, 10.0)
    10.0
    """
    inside, outside = (0.0, 0.0), (np.inf, np.inf)
    distance = min(start, farthest)
    for iteration in range(10):
        ratio = function(distance)
        if abs(ratio - 1) < 0.05:
            return min(distance / ratio, farthest)
        if ratio < 1:
            inside = (distance, ratio)
            if distance >= farthest:
                return farthest
        else:
            outside = (distance, ratio)
        if not np.isfinite(outside[0]):
            distance = min(distance / max(ratio, 0.5), farthest)
            continue
        width = outside[0] - inside[0]
        linear = inside[0] + (1 - inside[1]) / (outside[1] - inside[1]) * width
        if width < 0.1 * outside[0]:
            return linear
        distance = (
            inside[0] + 0.5 * width
            if iteration % 2
            else float(np.clip(linear, inside[0] + 0.05 * width, outside[0] - 0.05 * width))
        )
    return distance


def _minimise_others(
    residuals: Residuals, start: _ProfilePoint, cost: int, change: float, negligible: float
) -> tuple[FloatArray, _ProfilePoint]:
    """Minimise the sum of squares over all costs except `cost`, which changes by `change`.

    Damped least squares (Levenberg 1944, Quarterly of Applied Mathematics 2(2)) start at the point that the slopes
    predict. Broyden's updates (1965, Mathematics of Computation 19(92)) of the slopes need no extra run.

    Returns: the residuals at the minimum, and the point.
    """
    bounds, slopes = residuals.problem.bounds, start.slopes.copy()
    others = [i for i in range(len(start.logs)) if i != cost]
    step = np.zeros(len(start.logs))
    step[cost] = change
    step[others] = np.clip(-np.linalg.pinv(slopes[:, others], rcond=1e-3) @ slopes[:, cost] * change, -0.7, 0.7)
    logs = np.clip(start.logs + step, bounds[:, 0], bounds[:, 1])
    current, damping = residuals(logs), 1e-3
    for _ in range(12):
        s = slopes[:, others]
        step = np.zeros(len(logs))
        step[others] = -np.linalg.solve(s.T @ s + damping * np.abs(s.T @ s).max() * np.eye(len(others)), s.T @ current)
        step = np.clip(logs + np.clip(step, -0.7, 0.7), bounds[:, 0], bounds[:, 1]) - logs
        if float(current @ current) - float(np.sum((current + slopes @ step) ** 2)) < negligible:
            break
        proposed = residuals(logs + step)
        slopes += np.outer(proposed - current - slopes @ step, step) / (step @ step)
        if proposed @ proposed < current @ current:
            logs, current, damping = logs + step, proposed, damping / 4
        else:
            damping *= 8
    return current, _ProfilePoint(start.distance, logs, slopes)
