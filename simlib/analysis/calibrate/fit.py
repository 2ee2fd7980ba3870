# SPDX-License-Identifier: BSD-3-Clause
"""Measurements to costs: least squares in the logarithms, from several starts, with profile intervals."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from simlib._lib.parallel import Progress
from simlib.analysis.calibrate.advice import advice, repeats
from simlib.analysis.calibrate.noise import ROUNDS, SETTLED, Noise, assumed_ratios, estimate_noise
from simlib.analysis.calibrate.problem import FloatArray, Problem
from simlib.analysis.calibrate.profile import profiled
from simlib.analysis.calibrate.search import LogResiduals, Minimum, explore, minimise
from simlib.analysis.predict import LEVEL, PAGES_PER_VCPU
from simlib.measurements.fits import CostEstimate, Fit, UncertainCosts, conventions
from simlib.measurements.fits.priors import LEVEL as PRIOR_LEVEL

MOVES = 1e-4
"""Change of a logarithm that is none."""

LEAST_PAGES = 512
"""Pages a vCPU of the coarse runs at least: the entries of a 2 MiB block, of which no part can be simulated."""

TELLS_NOTHING = 1e-6
"""If no row changes by more than this share of a change of a cost, the rows tell nothing of that cost."""

EXPLAINED = 0.5
"""Discrepancy from which on a model does not explain the rows, whatever its costs: a factor of 1.6 either way."""


def calibrate(
    problem: Problem,
    *,
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Progress | None = None,
) -> Fit:
    """Determine the costs of a problem; without their sensitivity, which `simlib.calibrate` adds.

    Raises `CalibrationError` if no start leads to finite residuals.

    - `level`: probability of the intervals.
    - `seed`: root of the engine's random streams and of the starting points.
    - `pages_per_vcpu`: pages a vCPU that each evaluation simulates.
    - `profile`: profile intervals; without them the intervals are those of the linearised problem.
    - `progress`: called with (what, share done).
    """
    tell = progress or (lambda what, share: None)
    coarse = LogResiduals(problem, assumed_ratios(problem.train), max(LEAST_PAGES, pages_per_vcpu // 8), seed)
    starts, minima = explore(coarse, tell)
    begin = min(minima, key=lambda minimum: minimum.squares).logs
    objective, end, noise, jacobian = _settle(problem, begin, pages_per_vcpu, seed)
    tell("calibrating", 0.6)
    logs, base = end.logs, objective(end.logs)
    dof = len(base) - len(logs)
    variance = float(base @ base) / dof + _simulation_variance(objective, logs)
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-8) * variance + _untold(problem.bounds, jacobian, level)
    deviations = np.sqrt(np.diag(covariance))
    estimate = CostEstimate(
        problem.names, logs, covariance, dof, float(np.sqrt(variance)), noise.spread, **conventions(problem.scenario)
    )
    limits = profiled(objective, coarse.pages, estimate, jacobian, level, tell) if profile else None
    t = float(stdtrit(dof, 0.5 + level / 2))
    lows = logs - t * deviations if limits is None else limits[:, 0]
    highs = logs + t * deviations if limits is None else limits[:, 1]
    few = replace(objective, pages=coarse.pages)
    held, moved = held_at_medians(few, estimate, jacobian, variance / _anywhere(problem.bounds, level))
    estimate = replace(estimate, covariance=covariance + moved @ moved.T)
    far = float(ndtri(0.5 + level / 2)) * np.sqrt((moved**2).sum(axis=1))
    lows, highs = logs - np.hypot(logs - lows, far), logs + np.hypot(highs - logs, far)
    lows, highs, at_bound, determined = _within(problem.bounds, logs, lows, highs, jacobian)
    parameters = pd.DataFrame(
        {"name": problem.names, "value": np.exp(logs), "low": np.exp(lows), "high": np.exp(highs),
         "at_bound": at_bound, "determined": determined}
    )  # fmt: skip
    rows = problem.observations.copy()
    rows["model"] = problem.model(logs, rows, pages_per_vcpu, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows["error"] = np.where(rows["value"] > 0, rows["model"] / rows["value"] - 1, np.nan)
    # A start agrees if its minimum is as likely as the best one, at the level of the intervals. Coarse runs cannot tell
    # minima apart that differ by no more than the simulation itself.
    least, rough = float(starts["last"].min()), _simulation_variance(coarse, logs)
    starts["agrees"] = starts["last"] <= least + t**2 * (least / dof + rough)
    valid = {
        "converged": end.converged,
        "starts_agree": int(starts["agrees"].sum()) >= 2,
        "inside_bounds": not at_bound.any(),
        "more_data_than_costs": dof - repeats(problem.train) >= len(logs),
        "all_determined": bool(determined.all()),
        "rows_explained": estimate.discrepancy < EXPLAINED,
    }
    tell("calibrated", 1.0)
    spread = np.sqrt(np.diag(estimate.covariance))
    scale = np.where(spread > 0, spread, 1.0)
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": problem.dataset,
        "train": problem.condition,
        "seed": seed,
        "pages_per_vcpu": pages_per_vcpu,
        "level": level,
        "valid": valid,
        "held_at_medians": list(held),
        "not_used": list(problem.not_used),
        "correlation": (estimate.covariance / np.outer(scale, scale)).round(4).tolist(),
    }
    fit = Fit(problem.scenario, estimate, parameters, rows, meta, noise=noise.groups, starts=starts)
    return replace(fit, advice=advice(fit, end))


def _untold(bounds: FloatArray, jacobian: FloatArray, level: float) -> FloatArray:
    """Variances of the costs of which no row tells anything: they may be anywhere within their bounds."""
    return np.diag(np.where(np.abs(jacobian).max(axis=0) < TELLS_NOTHING, _anywhere(bounds, level), 0.0))


def _anywhere(bounds: FloatArray, level: float) -> FloatArray:
    """Variances of costs that are within their bounds with that probability."""
    return np.asarray(((bounds[:, 1] - bounds[:, 0]) / 2 / float(ndtri(0.5 + level / 2))) ** 2)


def _within(
    bounds: FloatArray, logs: FloatArray, lows: FloatArray, highs: FloatArray, jacobian: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """Ends within the bounds, which of the costs are at one, and which are determined; none of which no row tells."""
    low_bound, high_bound = bounds.T
    untold = np.abs(jacobian).max(axis=0) < TELLS_NOTHING
    lows = np.where(untold, low_bound, np.maximum(lows, low_bound))
    highs = np.where(untold, high_bound, np.minimum(highs, high_bound))
    at_bound = (logs - low_bound < 1e-3) | (high_bound - logs < 1e-3)
    return lows, highs, at_bound, (lows > low_bound + 1e-6) & (highs < high_bound - 1e-6) & ~at_bound


def held_at_medians(
    objective: LogResiduals, estimate: CostEstimate, jacobian: FloatArray, weights: FloatArray
) -> tuple[tuple[str, ...], FloatArray]:
    """Costs that the programs spend and that stand at the medians of their priors, and what that leaves open.

    - `weights`, shape (calibrated costs,): of the squares of their moves beside those of the residuals, so that what
      the rows hardly tell apart does not go further than to its bounds.

    Returns: their names, and what a standard deviation of each moves the logarithms of the calibrated costs, to first
    order, shape (calibrated costs, names); those that move nothing are left out.
    """
    problem, spread = objective.problem, float(ndtri(0.5 + PRIOR_LEVEL / 2))
    cases = [problem.scenario.variants[name] if name else problem.scenario for name in set(problem.train["variant"])]
    ends: dict[str, tuple[float, float]] = {}
    for case in cases:
        known = UncertainCosts.of(estimate.apply(case))
        ends |= {name: known.ends(name) for name in known.drawn}
    moves = np.linalg.pinv(jacobian.T @ jacobian + np.diag(weights), hermitian=True) @ jacobian.T
    moved = {}
    for name, pair in sorted(ends.items()):
        low, high = (replace(objective, problem=problem.with_cost(name, end))(estimate.logs) for end in pair)
        moved[name] = -moves @ (high - low) / (2 * spread)
    names = tuple(name for name, step in moved.items() if np.abs(step).max() > MOVES)
    return names, np.array([moved[name] for name in names]).reshape(len(names), len(estimate.logs)).T


def _settle(
    problem: Problem, logs: FloatArray, pages: int, seed: int
) -> tuple[LogResiduals, Minimum, Noise, FloatArray]:
    """Fit and weigh in turn, until the deviations of the metrics no longer change."""
    ratios = assumed_ratios(problem.train)
    for _ in range(ROUNDS):
        objective = LogResiduals(problem, ratios, pages, seed)
        end = minimise(objective, logs)
        jacobian = objective.jacobian(end.logs)
        noise = estimate_noise(problem.train, objective(end.logs) * ratios, jacobian * ratios[:, None], ratios)
        if np.abs(noise.ratios / ratios - 1).max() < SETTLED:
            break
        logs, ratios = end.logs, noise.ratios
    return objective, end, noise, jacobian


def _simulation_variance(objective: LogResiduals, logs: FloatArray) -> float:
    """Largest variance of a residual over seeds: what simulating a sample of the pages leaves open."""
    again = [replace(objective, seed=objective.seed + k)(logs) for k in range(1, 5)]
    return float(np.max(np.var(again, axis=0, ddof=1)))
