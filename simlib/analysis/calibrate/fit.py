# SPDX-License-Identifier: BSD-3-Clause
"""Calibration of a problem: least squares on logarithmic scales, from several starts, with profile intervals."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from simlib._lib.parallel import Progress
from simlib.analysis.calibrate.advice import advice, repeats
from simlib.analysis.calibrate.noise import Noise, assumed_ratios, estimate_noise
from simlib.analysis.calibrate.problem import FloatArray, Problem
from simlib.analysis.calibrate.profile import profile_intervals
from simlib.analysis.calibrate.search import LogResiduals, Minimum, explore, minimise
from simlib.analysis.prediction_options import LEVEL, PAGES_PER_VCPU
from simlib.measurements.fits import CostEstimate, Fit, UncertainCosts, conventions
from simlib.measurements.fits.priors import LEVEL as PRIOR_LEVEL

MIN_COARSE_PAGES = 512
"""Smallest number of pages per vCPU in coarse runs: the 512 pages of a 2 MiB block, which is simulated as a whole."""


def calibrate(
    problem: Problem,
    *,
    level: float = LEVEL,
    seed: int = 1,
    pages_per_vcpu: int = PAGES_PER_VCPU,
    profile: bool = True,
    progress: Progress | None = None,
) -> Fit:
    """Estimate the costs of a problem; `simlib.calibrate` adds their sensitivity.

    Raises `CalibrationError` if no start leads to finite residuals.

    - `level`, `pages_per_vcpu`, `profile`: see `simlib.analysis.calibrate.CalibrationOptions`.
    - `seed`: random seed of the engine and of the starting points.
    - `progress`: called with (stage, share done).
    """
    report = progress or (lambda what, share: None)
    coarse = LogResiduals(problem, assumed_ratios(problem.train), max(MIN_COARSE_PAGES, pages_per_vcpu // 8), seed)
    starts, minima = explore(coarse, report)
    begin = min(minima, key=lambda minimum: minimum.squares).logs
    objective, end, noise, jacobian = _settle(problem, begin, pages_per_vcpu, seed)
    report("calibrating", 0.6)
    logs, base = end.logs, objective(end.logs)
    dof = len(base) - len(logs)
    variance = float(base @ base) / dof + _simulation_variance(objective, logs)
    uninformed = np.abs(jacobian).max(axis=0) < 1e-6  # no row depends on these: any value within the bounds
    bounds_variance = np.diag(np.where(uninformed, _bounds_variance(problem.bounds, level), 0.0))
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-8) * variance + bounds_variance
    deviations = np.sqrt(np.diag(covariance))
    estimate = CostEstimate(
        problem.names, logs, covariance, dof, float(np.sqrt(variance)), noise.spread, **conventions(problem.scenario)
    )
    limits = profile_intervals(objective, coarse.pages, estimate, jacobian, level, report) if profile else None
    t = float(stdtrit(dof, 0.5 + level / 2))
    lows = logs - t * deviations if limits is None else limits[:, 0]
    highs = logs + t * deviations if limits is None else limits[:, 1]
    held, moved = held_at_medians(
        replace(objective, pages=coarse.pages), estimate, jacobian, variance / _bounds_variance(problem.bounds, level)
    )
    estimate = replace(estimate, covariance=covariance + moved @ moved.T)
    reach = float(ndtri(0.5 + level / 2)) * np.sqrt((moved**2).sum(axis=1))
    lows, highs = logs - np.hypot(logs - lows, reach), logs + np.hypot(highs - logs, reach)
    lows, highs, at_bound, determined = _clip_to_bounds(problem.bounds, logs, lows, highs, uninformed)
    parameters = pd.DataFrame(
        {"name": problem.names, "value": np.exp(logs), "low": np.exp(lows), "high": np.exp(highs),
         "at_bound": at_bound, "determined": determined}
    )  # fmt: skip
    rows = problem.observations.assign(model=problem.model(logs, problem.observations, pages_per_vcpu, seed))
    rows["error"] = (rows["model"] / rows["value"] - 1).where(rows["value"] > 0)
    # A start agrees if its minimum lies within the interval of the best one. Coarse runs cannot distinguish minima that
    # differ by no more than the variance of the simulation.
    best, roughness = float(starts["last"].min()), _simulation_variance(coarse, logs)
    starts["agrees"] = starts["last"] <= best + t**2 * (best / dof + roughness)
    valid = {
        "converged": end.converged,
        "starts_agree": int(starts["agrees"].sum()) >= 2,
        "inside_bounds": not at_bound.any(),
        "more_data_than_costs": dof - repeats(problem.train) >= len(logs),
        "all_determined": bool(determined.all()),
        "rows_explained": estimate.discrepancy < 0.5,  # a factor of 1.6 up or down
    }
    report("calibrated", 1.0)
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


def _bounds_variance(bounds: FloatArray, level: float) -> FloatArray:
    """Return variances such that the logarithm of each cost lies within its bounds with probability `level`."""
    return np.asarray(((bounds[:, 1] - bounds[:, 0]) / 2 / float(ndtri(0.5 + level / 2))) ** 2)


def _clip_to_bounds(
    bounds: FloatArray, logs: FloatArray, lows: FloatArray, highs: FloatArray, uninformed: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """Clip intervals to the bounds; flag costs at a bound, and costs whose intervals do not reach a bound."""
    low_bound, high_bound = bounds.T
    lows = np.where(uninformed, low_bound, np.maximum(lows, low_bound))
    highs = np.where(uninformed, high_bound, np.minimum(highs, high_bound))
    at_bound = (logs - low_bound < 1e-3) | (high_bound - logs < 1e-3)
    return lows, highs, at_bound, (lows > low_bound + 1e-6) & (highs < high_bound - 1e-6) & ~at_bound


def held_at_medians(
    objective: LogResiduals, estimate: CostEstimate, jacobian: FloatArray, weights: FloatArray
) -> tuple[tuple[str, ...], FloatArray]:
    """Effect of costs that were held at the medians of their priors on the calibrated costs.

    - `weights`, shape (calibrated costs,): weights of the squared changes of the calibrated costs relative to the
      squared residuals. They keep costs that the rows hardly distinguish within their bounds.

    Returns: the names of the held costs that have an effect, and the first-order change of the calibrated costs'
    logarithms if a held cost changes by its standard deviation, shape (calibrated costs, names).
    """
    problem, quantile = objective.problem, float(ndtri(0.5 + PRIOR_LEVEL / 2))
    cases = [problem.scenario.variants[name] if name else problem.scenario for name in set(problem.train["variant"])]
    ends: dict[str, tuple[float, float]] = {}
    for case in cases:
        costs = UncertainCosts.of(estimate.apply(case))
        ends |= {name: costs.ends(name) for name in costs.drawn}
    gain = np.linalg.pinv(jacobian.T @ jacobian + np.diag(weights), hermitian=True) @ jacobian.T
    moved = {}
    for name, pair in sorted(ends.items()):
        low, high = (replace(objective, problem=problem.with_cost(name, end))(estimate.logs) for end in pair)
        moved[name] = -gain @ (high - low) / (2 * quantile)
    names = tuple(name for name, step in moved.items() if np.abs(step).max() > 1e-4)
    return names, np.array([moved[name] for name in names]).reshape(len(names), len(estimate.logs)).T


def _settle(
    problem: Problem, logs: FloatArray, pages: int, seed: int
) -> tuple[LogResiduals, Minimum, Noise, FloatArray]:
    """Fit and reweight in turn, up to four times, until the deviations of all groups change by less than 5 %."""
    ratios = assumed_ratios(problem.train)
    for _ in range(4):
        objective = LogResiduals(problem, ratios, pages, seed)
        end = minimise(objective, logs)
        jacobian = objective.jacobian(end.logs)
        noise = estimate_noise(problem.train, objective(end.logs) * ratios, jacobian * ratios[:, None], ratios)
        if np.abs(noise.ratios / ratios - 1).max() < 0.05:
            break
        logs, ratios = end.logs, noise.ratios
    return objective, end, noise, jacobian


def _simulation_variance(objective: LogResiduals, logs: FloatArray) -> float:
    """Return the largest variance of any residual over seeds, due to simulating only some of the pages."""
    repeated = [replace(objective, seed=objective.seed + k)(logs) for k in range(1, 5)]
    return float(np.max(np.var(repeated, axis=0, ddof=1)))
