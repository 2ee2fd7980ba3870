# SPDX-License-Identifier: BSD-3-Clause
"""Profile intervals: how far a cost can go while the others make up for it.

A profile is followed from the optimum outwards (Bates and Watts 1988, Nonlinear Regression Analysis and Its
Applications, 6.1.2), by runs of few pages. Where it ends, runs of all pages are asked, by which those of few are
corrected until both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from simlib._lib.parallel import Progress
from simlib.analysis.calibrate.problem import FloatArray
from simlib.analysis.calibrate.search import Led, LogResiduals, Residuals
from simlib.measurements.fits import CostEstimate

FAR = 3.0
"""Root of growth, over that at an interval's end, from which on one does not go on."""

CORRECTIONS = 5
"""Times at most that runs of all pages are asked for one end."""

AGREES = 0.1
"""How near to 1 their root of growth must come."""

ENOUGH = 0.02
"""Share of the growth of the sum of squares at an interval's end that is left when one no longer goes down to it."""

DAMPED_STEPS = 12
"""Most steps down from one point of a profile."""


def profiled(
    objective: LogResiduals, few_pages: int, estimate: CostEstimate, jacobian: FloatArray, level: float, tell: Progress
) -> FloatArray:
    """Where the sum of squares, minimised over the other costs, has grown by t² times the variance.

    - `few_pages`: pages a vCPU of the runs that lead there.
    - `jacobian`: of the objective at the optimum.

    Returns: ndarray, shape (costs, 2), logarithms.
    """
    logs, bounds = estimate.logs, objective.problem.bounds
    t = float(stdtrit(estimate.dof, 0.5 + level / 2))
    base, lead = objective(logs), Led.at(logs, objective, jacobian, few_pages)
    limits = np.empty((len(logs), 2))
    for k in range(len(logs)):
        width = max(t * float(np.sqrt(estimate.covariance[k, k])), 1e-3)
        for side, sign in enumerate((-1.0, 1.0)):
            farthest = min(abs(float(bounds[k, side] - logs[k])), 4 * width)
            ways = [_Way(0.0, logs, jacobian)]
            profile = _Profile(objective, lead, k, sign, float(base @ base), t**2 * estimate.discrepancy**2, ways)
            limits[k, side] = logs[k] + sign * profile.end(width / 4, farthest)
        tell("profile intervals", 0.6 + 0.4 * (k + 1) / len(logs))
    return np.clip(limits, bounds[:, :1], bounds[:, 1:])


@dataclass(frozen=True)
class _Way:
    """How far along a profile: the distance in one cost's logarithm, the costs there, and the slopes of the rows."""

    reach: float
    point: FloatArray
    slopes: FloatArray


@dataclass
class _Profile:
    """One cost's profile on one side: `least` sum of squares at the optimum, `room` for its growth to the end.

    - `ways`: where it went so far; the first is the optimum.
    """

    objective: LogResiduals
    lead: Led
    k: int
    sign: float
    least: float
    room: float
    ways: list[_Way]

    def end(self, start: float, farthest: float) -> float:
        """How far the interval's end is from the optimum."""
        reach = start
        for _ in range(CORRECTIONS):
            reach = _where_one(self.of_few_pages, reach, farthest)
            ratio = self.of_all_pages(reach)
            if ratio < 1 and reach == farthest:
                return reach
            if abs(ratio - 1) < AGREES:
                return min(reach / ratio, farthest)
        return _where_one(self.of_all_pages, reach, farthest)

    def of_few_pages(self, reach: float) -> float:
        """The root of the growth so far away, over that at the end; by the lead."""
        return self._go(reach, self.lead)[0]

    def of_all_pages(self, reach: float) -> float:
        """The same by the objective, by which the lead is corrected."""
        ratio, way, residuals = self._go(reach, self.objective)
        if reach > 0:
            self.lead = self.lead.corrected(way.point, residuals)
        return ratio

    def _go(self, reach: float, of: Residuals) -> tuple[float, _Way, FloatArray]:
        """From the nearest way so far."""
        near = min(self.ways, key=lambda way: abs(way.reach - reach))
        residuals, way = _least_others(of, near, self.k, self.sign * (reach - near.reach), ENOUGH * self.room)
        way = replace(way, reach=reach)
        ratio = float(np.sqrt(max(float(residuals @ residuals) - self.least, 1e-12) / self.room))
        if ratio < FAR:
            self.ways.append(way)
        return ratio, way, residuals


def _where_one(function: Callable[[float], float], start: float, farthest: float) -> float:
    """Where a function that grows from 0 comes to 1, to 5 %, or how far one may go if it does not.

    The root of a sum of squares is close to linear in the distance, unless it bends: then the bracket is halved, too.

    >>> round(_where_one(lambda x: x / 3, 1.0, 10.0), 2), round(float(_where_one(np.expm1, 7.0, 9.0)), 1)
    (3.0, 0.7)
    >>> round(float(_where_one(lambda x: np.sinh(x * x), 4.0, 5.0)), 2)  # far from linear
    0.95
    >>> _where_one(lambda x: x / 100, 1.0, 10.0)
    10.0
    """
    inside, outside = (0.0, 0.0), (np.inf, np.inf)
    reach = min(start, farthest)
    for turn in range(10):
        ratio = function(reach)
        if abs(ratio - 1) < 0.05:
            return min(reach / ratio, farthest)
        if ratio < 1:
            inside = (reach, ratio)
            if reach >= farthest:
                return farthest
        else:
            outside = (reach, ratio)
        if not np.isfinite(outside[0]):
            reach = min(reach / max(ratio, 0.5), farthest)
            continue
        width = outside[0] - inside[0]
        linear = inside[0] + (1 - inside[1]) / (outside[1] - inside[1]) * width
        if width < 0.1 * outside[0]:
            return linear
        reach = (
            inside[0] + 0.5 * width
            if turn % 2
            else float(np.clip(linear, inside[0] + 0.05 * width, outside[0] - 0.05 * width))
        )
    return reach


def _least_others(residuals: Residuals, way: _Way, k: int, further: float, enough: float) -> tuple[FloatArray, _Way]:
    """Residuals at the least sum of squares over all costs but the k-th, which is a step further, and where it is.

    Damped least squares (Levenberg 1944, Quarterly of Applied Mathematics 2(2)) from where the slopes lead to.
    Broyden's updates (1965, Mathematics of Computation 19(92)) of slopes known from elsewhere cost no run.
    """
    bounds, slopes = residuals.problem.bounds, way.slopes.copy()
    others = [i for i in range(len(way.point)) if i != k]
    step = np.zeros(len(way.point))
    step[k] = further
    step[others] = np.clip(-np.linalg.pinv(slopes[:, others], rcond=1e-3) @ slopes[:, k] * further, -0.7, 0.7)
    point = np.clip(way.point + step, bounds[:, 0], bounds[:, 1])
    r, damping = residuals(point), 1e-3
    for _ in range(DAMPED_STEPS):
        s = slopes[:, others]
        step = np.zeros(len(point))
        step[others] = -np.linalg.solve(s.T @ s + damping * np.abs(s.T @ s).max() * np.eye(len(others)), s.T @ r)
        step = np.clip(point + np.clip(step, -0.7, 0.7), bounds[:, 0], bounds[:, 1]) - point
        if float(r @ r) - float(np.sum((r + slopes @ step) ** 2)) < enough:
            break
        r_new = residuals(point + step)
        slopes += np.outer(r_new - r - slopes @ step, step) / (step @ step)
        if r_new @ r_new < r @ r:
            point, r, damping = point + step, r_new, damping / 4
        else:
            damping *= 8
    return r, _Way(way.reach, point, slopes)
