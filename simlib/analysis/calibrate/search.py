# SPDX-License-Identifier: BSD-3-Clause
"""Least squares of a calibration: starting points over the whole physical range, and descents from some of them.

The objective is deterministic: the engine uses common random numbers, so values of the objective at two points differ
only because of the costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import optimize
from scipy.stats import qmc

from simlib._lib import parallel
from simlib._lib.errors import CalibrationError, HorizonError
from simlib.analysis.calibrate.problem import FloatArray, Problem

SCREENED = 32
"""Number of starting points over the physical range, a Sobol sequence in the logarithms; the guess is added to them."""

FOLLOWED = 4
"""Number of starting points that are followed to a minimum: the guess, and the best of the others."""

MAX_STEPS, MAX_DESCENTS = 20, 5
"""Maximum numbers of steps in a descent, and of descents; the next descent continues one that has not converged."""

CONVERGED = 1e-5
"""Relative decrease of the sum of squares below which a descent has converged."""

STEP = 0.05
"""Finite-difference step in the logarithm of a cost. The objective is rough even with common random numbers: descents
with smaller steps get stuck."""

GUESS = "guess from the asymptotes"


@dataclass(frozen=True)
class LogResiduals:
    """Values of log(model / measured), divided by each row's ratio (`noise`), shape (training rows,)."""

    problem: Problem
    ratios: FloatArray
    pages: int
    seed: int

    def __call__(self, points: FloatArray) -> FloatArray:
        """Return residuals, shape (rows,), or (points, rows) for several points."""
        return self.problem.residuals(points, self.pages, self.seed) / self.ratios

    def derivative(self, point: FloatArray, step: float = STEP) -> FloatArray:
        """Return derivatives with respect to each cost's logarithm by one-sided differences, shape (rows, costs)."""
        low, high = self.problem.bounds.T
        steps = np.where(point + step <= high, step, -step)
        residuals = self(np.vstack([point, point + np.diag(np.clip(point + steps, low, high) - point)]))
        return np.asarray((residuals[1:] - residuals[0]).T / steps)

    def jacobian(self, point: FloatArray) -> FloatArray:
        """Return derivatives by central differences, which need twice as many runs."""
        steps = 0.2 * np.eye(len(point))  # with smaller steps the resulting intervals are too narrow
        return np.asarray((self(point + steps) - self(point - steps)).T / (2 * 0.2))


@dataclass(frozen=True)
class CorrectedResiduals:
    """Residuals of runs with few pages, corrected to match runs with more pages in value and slope at one point.

    This is the additive correction of Alexandrov and Lewis (2001, Optimization and Engineering 2(4)).

    - `shift`, shape (rows,), `slopes`, shape (rows, costs): differences of values and slopes at the point.
    """

    coarse: LogResiduals
    point: FloatArray
    shift: FloatArray
    slopes: FloatArray

    @classmethod
    def at(cls, point: FloatArray, fine: LogResiduals, jacobian: FloatArray, pages: int) -> CorrectedResiduals:
        """Correct runs with `pages` pages per vCPU at a point; `jacobian` is the derivative of `fine` there."""
        coarse = replace(fine, pages=min(pages, fine.pages))
        return cls(coarse, point, fine(point) - coarse(point), jacobian - coarse.jacobian(point))

    @property
    def problem(self) -> Problem:
        """The calibration problem."""
        return self.coarse.problem

    def updated(self, point: FloatArray, residuals: FloatArray) -> CorrectedResiduals:
        """Return the residuals corrected at another point by Broyden's update of the slopes."""
        step = point - self.point
        return replace(self, slopes=self.slopes + np.outer(residuals - self(point), step) / (step @ step))

    def __call__(self, points: FloatArray) -> FloatArray:
        """Return residuals with the shapes of `LogResiduals`."""
        return self.coarse(points) + self.shift + (points - self.point) @ self.slopes.T


Residuals = LogResiduals | CorrectedResiduals


@dataclass(frozen=True)
class Minimum:
    """Result of a descent: logarithms of the costs, sum of squares, and its last relative decrease `gain`."""

    logs: FloatArray
    squares: float
    converged: bool
    steps: int
    gain: float = 0.0


def minimise(
    objective: LogResiduals,
    start: FloatArray,
    step: float = STEP,
    descents: int | None = None,
    check: parallel.Check | None = None,
) -> Minimum:
    """Descend until a step reduces the sum of squares by a share below 1e-5, or changes costs by under about 0.05 %.

    If one descent does not converge, others follow, up to a total of `descents` (by default `MAX_DESCENTS`).
    """

    def residuals(point: FloatArray) -> FloatArray:
        if check is not None:
            check()
        return objective(point)

    low, high = objective.problem.bounds.T
    point, steps, squares, gain = start, 0, np.inf, 0.0
    for _ in range(descents or MAX_DESCENTS):
        inside = np.clip(point, low + 1e-9, high - 1e-9)
        result = optimize.least_squares(
            residuals, inside, jac=partial(objective.derivative, step=step), bounds=(low, high), ftol=CONVERGED,
            xtol=1e-5, gtol=1e-12, x_scale=0.3, max_nfev=MAX_STEPS,
        )  # fmt: skip
        gain = 1.0 - 2 * result.cost / squares if np.isfinite(squares) and squares > 0 else 1.0
        point, squares, steps = result.x, 2 * float(result.cost), steps + int(result.nfev)
        if result.status > 0 or gain < CONVERGED:
            return Minimum(point, squares, True, steps, gain)
    return Minimum(point, squares, False, steps, gain)


def first_guess(problem: Problem) -> FloatArray:
    """Guess logarithms of costs from a closed queueing network's asymptotes: the times with one vCPU and in saturation.

    With one vCPU, a fault takes the think time plus the service time; with many, it takes the service time multiplied
    by the number of vCPUs (Denning and Buzen 1978). The two times give ``fault_unlocked`` and the service time, of
    which the other costs of a fault are fixed shares. CLEAR's cost per page is its time divided by the number of pages.
    """
    train = problem.train
    pages = problem.scenario.guest.pages_per_vcpu
    guess = {"fault_jitter": 0.4}
    times = train[train["metric"].str.startswith("dirty_memory_time")]
    if len(times):
        n, seconds = times["vcpus"].to_numpy(dtype=float), times["value"].to_numpy(dtype=float)
        fewest, most = int(np.argmin(n)), int(np.argmax(n))
        service = max(seconds[most] / n[most] / pages * 1e12, 1e3)
        unlocked = max(seconds[fewest] / pages * 1e12 - service, 0.3 * service)
        guess |= {"fault_unlocked": unlocked, "fault_hold": 0.5 * service, "tlb_invalidate": 0.4 * service,
                  "line_transfer": 0.05 * service}  # fmt: skip
    clears = train[train["metric"].str.startswith("clear_dirty_log_time")]
    if len(clears):
        iterations = [1 if "[" in metric else problem.scenario.workload.iterations for metric in clears["metric"]]
        page_times = clears["value"] / (clears["vcpus"] * pages * np.array(iterations)) * 1e12
        guess["clear_page"] = float(page_times.median())
    names = [name.partition("[")[0] for name in problem.names]
    logs = [np.log(guess[n]) if n in guess else problem.bounds[i].mean() for i, n in enumerate(names)]
    return np.asarray(np.clip(logs, problem.bounds[:, 0] + 0.01, problem.bounds[:, 1] - 0.01), dtype=np.float64)


def starting_points(problem: Problem, seed: int) -> pd.DataFrame:
    """Return the guess and points over the whole physical range: origin, and each cost's logarithm."""
    sequence = qmc.Sobol(len(problem.names), rng=np.random.default_rng(seed)).random(SCREENED)
    low, high = problem.bounds.T
    points = np.vstack([first_guess(problem), low + (high - low) * sequence])
    origin = [GUESS, *(f"Sobol point {i + 1} of {SCREENED}" for i in range(SCREENED))]
    return pd.DataFrame(points, columns=problem.names).assign(origin=origin)


def explore(objective: LogResiduals, progress: parallel.Progress) -> tuple[pd.DataFrame, list[Minimum]]:
    """Screen the starting points, and descend from the guess and from the best others.

    Returns: the table `simlib.measurements.fits.Fit.starts` of the points that were followed, and the ends of their
    descents. Raises `CalibrationError` if no start leads to finite residuals.
    """
    problem = objective.problem
    starts = starting_points(problem, objective.seed)
    points = starts[list(problem.names)].to_numpy()

    def screen(point: FloatArray, check: parallel.Check) -> float:
        check()
        try:
            residuals = objective(point)
        except HorizonError:  # the costs are so large that the run exceeds a limit
            return np.inf
        return float(residuals @ residuals)

    tasks = [partial(screen, point) for point in points]
    sums = np.array(parallel.run_all(tasks, "trying starting points", lambda what, share: progress(what, 0.15 * share)))
    if not np.isfinite(sums).any():
        raise CalibrationError("no starting point leads to finite residuals; check the measurements' units")
    others = [i for i in np.argsort(sums, kind="stable") if i != 0 and np.isfinite(sums[i])]
    order = [0, *others[: FOLLOWED - 1]] if np.isfinite(sums[0]) else others[:FOLLOWED]
    descents = [partial(_descend, objective, points[i]) for i in order]
    minima = parallel.run_all(descents, "calibrating", lambda what, share: progress(what, 0.15 + 0.35 * share))
    frame = pd.DataFrame(
        {"start": order, "origin": starts["origin"].to_numpy()[order], "first": sums[order],
         "last": [m.squares for m in minima], "steps": [m.steps for m in minima]}
    )  # fmt: skip
    return frame.join(pd.DataFrame(np.exp(points[order]), columns=problem.names)), minima


def _descend(objective: LogResiduals, start: FloatArray, check: parallel.Check) -> Minimum:
    try:
        return minimise(objective, start, 0.1, 2, check)  # a wide step, as coarse runs are rougher
    except HorizonError:  # another start may not reach such costs
        return Minimum(start, np.inf, False, 0)
