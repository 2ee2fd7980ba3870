# SPDX-License-Identifier: BSD-3-Clause
"""Calibration problem with polynomials as its model, fast enough for hundreds of synthetic data sets.

The logarithm of each observation is a polynomial in the logarithms of the costs that its variant has, by least squares
on runs of the engine over a box of costs (Box and Wilson 1951, Journal of the Royal Statistical Society B 13(1):
response surfaces). They are not valid outside the box, which therefore bounds the problem. Their error is measured on
runs of the engine that were not fitted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.stats import qmc

from simlib._lib import parallel
from simlib.analysis.calibrate.problem import Problem

DEGREE = 3
"""Total degree of the polynomials; 4 is hardly more accurate (docs/statistics.md)."""

RUNS = 256
"""Points of the box at which the engine runs, a Sobol sequence."""

CHECKED = 64
"""Further points at which the polynomials are compared with the engine."""

PAGES = 2048

FloatArray = NDArray[np.float64]
Point = tuple[str, int, str]
"""Variant, vCPUs and metric of an observation."""


@dataclass(frozen=True)
class SurrogateProblem(Problem):
    """Problem whose model is a set of polynomials; `pages_per_vcpu` and `seed` have no effect.

    - `powers`: for each observation: indices of the costs of its variant, degrees of each term, and coefficients.
    """

    powers: dict[Point, tuple[list[int], NDArray[np.int64], FloatArray]] = field(default_factory=dict, repr=False)

    def model(self, points: FloatArray, rows: pd.DataFrame, pages_per_vcpu: int, seed: int) -> FloatArray:
        """Return the model's value of each observation, like `Problem.model`."""
        places, low, high = np.atleast_2d(points), self.bounds[:, 0], self.bounds[:, 1]
        tables = _tables((places - low) / (high - low))
        known: dict[tuple[int, ...], FloatArray] = {}
        values = np.empty((len(places), len(rows)))
        observed = zip(rows["variant"], rows["vcpus"], rows["metric"], strict=True)
        for column, point in enumerate(observed):
            costs, degrees, coefficients = self.powers[point]
            if tuple(costs) not in known:
                known[tuple(costs)] = _terms(tables[:, costs], degrees)
            values[:, column] = np.exp(known[tuple(costs)] @ coefficients)
        return values if np.ndim(points) > 1 else values[0]


def fit_surrogate(
    problem: Problem,
    logs: FloatArray,
    half_width: FloatArray,
    *,
    runs: int = RUNS,
    checked: int = CHECKED,
    pages: int = PAGES,
    seed: int = 1,
    progress: parallel.Progress | None = None,
) -> tuple[SurrogateProblem, pd.DataFrame]:
    """Fit polynomials in place of the engine, in a box of costs.

    - `problem`: calibration problem; observations of zero, which have no logarithm, are left out.
    - `logs`, `half_width`, shape (costs,): centre and half-width of the box as logarithms, clipped to the physical
      bounds.
    - `runs`, `checked`, `pages`, `seed`: number of fitted points, number of compared points, pages per vCPU, and seed
      of the engine and the sequence.

    Returns: the surrogate, and its errors relative to the engine at points that were not fitted: variant, vcpus,
    metric, rms, largest.
    """
    bounds = np.column_stack([np.maximum(logs - half_width, problem.bounds[:, 0]),
                              np.minimum(logs + half_width, problem.bounds[:, 1])])  # fmt: skip
    rows = problem.observations[problem.observations["value"] > 0].reset_index(drop=True)
    points = rows.drop_duplicates(["variant", "vcpus", "metric"])
    unit = np.vstack([_sobol(len(logs), n, seed + k) for k, n in enumerate((runs, checked))])
    places = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * unit
    parts = np.array_split(places, max(1, len(places) // 8))
    tasks = [partial(_engine, problem, part, points, pages, seed) for part in parts]
    values = np.vstack(parallel.run_all(tasks, "running the engine over the box", progress))
    powers: dict[Point, tuple[list[int], NDArray[np.int64], FloatArray]] = {}
    errors = []
    tables = _tables(unit)
    for column, point in enumerate(zip(points["variant"], points["vcpus"], points["metric"], strict=True)):
        group = problem.cases[point[0], 1].cost_group
        costs = [i for i, name in enumerate(problem.names) if "[" not in name or name.endswith(f"[{group}]")]
        degrees: NDArray[np.int64] = np.array(
            [d for d in itertools.product(range(DEGREE + 1), repeat=len(costs)) if sum(d) <= DEGREE]
        )
        terms, targets = _terms(tables[:, costs], degrees), np.log(values[:, column])
        coefficients = np.asarray(np.linalg.lstsq(terms[:runs], targets[:runs], rcond=None)[0], dtype=np.float64)
        powers[point] = (costs, degrees, coefficients)
        error = np.expm1(terms[runs:] @ coefficients - targets[runs:])
        errors.append((*point, float(np.sqrt((error**2).mean())), float(np.abs(error).max())))
    names = {f.name: getattr(problem, f.name) for f in dataclasses.fields(Problem)}
    changed = names | {"bounds": bounds, "observations": rows, "simulated": {}}
    columns = ["variant", "vcpus", "metric", "rms", "largest"]
    return SurrogateProblem(**changed, powers=powers), pd.DataFrame(errors, columns=columns)


def _engine(
    problem: Problem, places: FloatArray, points: pd.DataFrame, pages: int, seed: int, check: parallel.Check
) -> FloatArray:
    check()
    return problem.model(places, points, pages, seed)


def _sobol(dimensions: int, count: int, seed: int) -> FloatArray:
    """Return the first points of a scrambled Sobol sequence, whose length must be a power of two."""
    sequence = qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random_base2((count - 1).bit_length())
    return np.asarray(sequence[:count], dtype=np.float64)


def _tables(unit: FloatArray) -> FloatArray:
    """Chebyshev polynomials of every cost's position in the box, shape (points, costs, degree + 1)."""
    return np.asarray(chebyshev.chebvander(2 * unit - 1, DEGREE), dtype=np.float64)


def _terms(tables: FloatArray, degrees: NDArray[np.int64]) -> FloatArray:
    """Products of Chebyshev polynomials, shape (points, terms); `tables` has shape (points, costs, degree + 1)."""
    columns: Sequence[FloatArray] = [tables[:, k, degrees[:, k]] for k in range(degrees.shape[1])]
    return np.asarray(np.prod(columns, axis=0), dtype=np.float64)
