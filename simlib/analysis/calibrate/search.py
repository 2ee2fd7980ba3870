# SPDX-License-Identifier: BSD-3-Clause
"""The least squares behind a calibration: starts over the whole physical range, and the way down from some of them.

The objective is deterministic: the engine runs on common random numbers, so
that two trial points differ by their costs only.
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
"""Starting points over the whole physical range, by a Sobol sequence in the logarithms; the guess comes on top."""

FOLLOWED = 4
"""How many of the starting points are followed to a minimum: the guess, and the best of the others."""

STEPS = 20
"""Steps of one descent; where it has not converged by then it goes on from where it came to."""

CONTINUED = 5
"""Descents after each other at most."""

SETTLED = 1e-5
"""Part of the sum of squares below which a gain is none."""

STEP = 0.05
"""Step in the logarithm of a cost for a derivative. Common random numbers leave some roughness, on which descents with
smaller ones stop."""

WIDE_STEP = 0.1
"""The same for coarse runs, which are rougher."""

CENTRAL_STEP = 0.2
"""The same on both sides, for the slopes on which intervals rest: from smaller ones, costs look better known."""

GUESS = "guess from the asymptotes"


@dataclass(frozen=True)
class LogResiduals:
    """Logarithm of model over measured, over each row's ratio (`noise`), shape (training rows,)."""

    problem: Problem
    ratios: FloatArray
    pages: int
    seed: int

    def __call__(self, points: FloatArray) -> FloatArray:
        """Residuals, shape (rows,), or (points, rows) of several points."""
        return self.problem.residuals(points, self.pages, self.seed) / self.ratios

    def derivative(self, point: FloatArray, step: float = STEP) -> FloatArray:
        """Derivatives by each cost's logarithm from a step on one side, shape (rows, costs)."""
        low, high = self.problem.bounds.T
        steps = np.where(point + step <= high, step, -step)
        moved = self(np.vstack([point, point + np.diag(np.clip(point + steps, low, high) - point)]))
        return np.asarray((moved[1:] - moved[0]).T / steps)

    def jacobian(self, point: FloatArray) -> FloatArray:
        """The same from steps on both sides, which is twice the work."""
        steps = CENTRAL_STEP * np.eye(len(point))
        up, down = self(point + steps), self(point - steps)
        return np.asarray((up - down).T / (2 * CENTRAL_STEP))


@dataclass(frozen=True)
class Led:
    """Runs of few pages, moved so that at one point values and slopes are those of an objective of more pages.

    The additive correction of Alexandrov and Lewis (2001, Optimization and Engineering 2(4)).

    - `shift`, shape (rows,), `slopes`, shape (rows, costs): what the coarse runs lack at the point.
    """

    coarse: LogResiduals
    point: FloatArray
    shift: FloatArray
    slopes: FloatArray

    @classmethod
    def at(cls, point: FloatArray, fine: LogResiduals, jacobian: FloatArray, pages: int) -> Led:
        """What leads near a point, where `jacobian` is the fine one's; the fine one itself if it has no more pages."""
        coarse = replace(fine, pages=min(pages, fine.pages))
        return cls(coarse, point, fine(point) - coarse(point), jacobian - coarse.jacobian(point))

    @property
    def problem(self) -> Problem:
        """What is calibrated."""
        return self.coarse.problem

    def corrected(self, point: FloatArray, residuals: FloatArray) -> Led:
        """The same with the values of more pages at another point, too: Broyden's update of the slopes."""
        way = point - self.point
        return replace(self, slopes=self.slopes + np.outer(residuals - self(point), way) / (way @ way))

    def __call__(self, points: FloatArray) -> FloatArray:
        """Residuals, shapes as those of `LogResiduals`."""
        return self.coarse(points) + self.shift + (points - self.point) @ self.slopes.T


Residuals = LogResiduals | Led


@dataclass(frozen=True)
class Minimum:
    """Where a descent ended: the sum of squares of its residuals, of which its last steps took off the part `gain`."""

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
    """Go down from a point until it converges: no longer by 1e-5 of the sum, or by steps below about 0.05 %.

    It goes on by itself where the steps of one descent do not suffice: `CONTINUED` descents, or so many, at most.
    """

    def residuals(point: FloatArray) -> FloatArray:
        if check is not None:
            check()
        return objective(point)

    low, high = objective.problem.bounds.T
    point, steps, squares, gain = start, 0, np.inf, 0.0
    for _ in range(descents or CONTINUED):
        inside = np.clip(point, low + 1e-9, high - 1e-9)
        found = optimize.least_squares(
            residuals, inside, jac=partial(objective.derivative, step=step), bounds=(low, high), ftol=SETTLED,
            xtol=1e-5, gtol=1e-12, x_scale=0.3, max_nfev=STEPS,
        )  # fmt: skip
        gain = 1.0 - 2 * found.cost / squares if np.isfinite(squares) and squares > 0 else 1.0
        point, squares, steps = found.x, 2 * float(found.cost), steps + int(found.nfev)
        if found.status > 0 or gain < SETTLED:
            return Minimum(point, squares, True, steps, gain)
    return Minimum(point, squares, False, steps, gain)


def first_guess(problem: Problem) -> FloatArray:
    """Logarithms of costs from the asymptotes of a closed lock: time alone, and time each when saturated.

    With one vCPU a fault takes think plus service, with many vCPUs it takes their number times the
    service (Denning and Buzen 1978); that gives exit and hold, and small shares of the hold the rest. CLEAR's cost of a
    page is its time over the pages.
    """
    train = problem.train
    pages = problem.scenario.guest.pages_per_vcpu
    guess = {"fault_jitter": 0.4}
    times = train[train["metric"].str.startswith("dirty_memory_time")]
    if len(times):
        n, seconds = times["vcpus"].to_numpy(dtype=float), times["value"].to_numpy(dtype=float)
        few, many = int(np.argmin(n)), int(np.argmax(n))
        service = max(seconds[many] / n[many] / pages * 1e12, 1e3)
        alone = max(seconds[few] / pages * 1e12 - service, 0.3 * service)
        guess |= {"fault_unlocked": alone, "fault_hold": 0.5 * service, "tlb_invalidate": 0.4 * service,
                  "line_transfer": 0.05 * service}  # fmt: skip
    clears = train[train["metric"].str.startswith("clear_dirty_log_time")]
    if len(clears):
        one = [1 if "[" in metric else problem.scenario.workload.iterations for metric in clears["metric"]]
        each = clears["value"] / (clears["vcpus"] * pages * np.array(one)) * 1e12
        guess["clear_page"] = float(each.median())
    names = [name.partition("[")[0] for name in problem.names]
    logs = [np.log(guess[n]) if n in guess else problem.bounds[i].mean() for i, n in enumerate(names)]
    return np.asarray(np.clip(logs, problem.bounds[:, 0] + 0.01, problem.bounds[:, 1] - 0.01), dtype=np.float64)


def starting_points(problem: Problem, seed: int) -> pd.DataFrame:
    """The guess, and points over the whole physical range: origin, and each cost's logarithm."""
    sequence = qmc.Sobol(len(problem.names), rng=np.random.default_rng(seed)).random(SCREENED)
    low, high = problem.bounds.T
    points = np.vstack([first_guess(problem), low + (high - low) * sequence])
    origin = [GUESS, *(f"Sobol point {i + 1} of {SCREENED}" for i in range(SCREENED))]
    return pd.DataFrame(points, columns=problem.names).assign(origin=origin)


def explore(objective: LogResiduals, tell: parallel.Progress) -> tuple[pd.DataFrame, list[Minimum]]:
    """Screen the starting points and follow some.

    Returns: What a fit says of its starts (`simlib.measurements.fits.Fit.starts`) that were followed, and where they
    ended. Raises `CalibrationError` if no start leads to finite residuals.
    """
    problem = objective.problem
    starts = starting_points(problem, objective.seed)
    points = starts[list(problem.names)].to_numpy()

    def first(point: FloatArray, check: parallel.Check) -> float:
        check()
        try:
            residuals = objective(point)
        except HorizonError:  # costs so large that the run would not end
            return np.inf
        return float(residuals @ residuals)

    tasks = [partial(first, point) for point in points]
    sums = np.array(parallel.run_all(tasks, "trying starting points", lambda what, share: tell(what, 0.15 * share)))
    if not np.isfinite(sums).any():
        raise CalibrationError("no starting point leads to finite residuals; check the measurements' units")
    others = [i for i in np.argsort(sums, kind="stable") if i != 0 and np.isfinite(sums[i])]
    order = [0, *others[: FOLLOWED - 1]] if np.isfinite(sums[0]) else others[:FOLLOWED]
    descents = [partial(_descend, objective, points[i]) for i in order]
    minima = parallel.run_all(descents, "calibrating", lambda what, share: tell(what, 0.15 + 0.35 * share))
    frame = pd.DataFrame(
        {"start": order, "origin": starts["origin"].to_numpy()[order], "first": sums[order],
         "last": [m.squares for m in minima], "steps": [m.steps for m in minima]}
    )  # fmt: skip
    return frame.join(pd.DataFrame(np.exp(points[order]), columns=problem.names)), minima


def _descend(objective: LogResiduals, start: FloatArray, check: parallel.Check) -> Minimum:
    try:
        return minimise(objective, start, WIDE_STEP, 2, check)
    except HorizonError:  # on the way; another start may do better
        return Minimum(start, np.inf, False, 0)
