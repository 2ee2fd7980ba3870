# SPDX-License-Identifier: BSD-3-Clause
"""Amdahl's law and Gunther's universal scalability law, the baselines for the model of the lock.

Neither law models a lock's mechanism. Both are fitted to the logarithm of measured throughputs, so that relative errors
have equal weight at every number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads optimize, which takes half a second, on first use
from numpy.typing import ArrayLike, NDArray

from simlib._lib.errors import InputError
from simlib.analysis.theory.arguments import check_time, check_vector

_Vector = NDArray[np.float64]


def amdahl(n: ArrayLike, serial: float) -> _Vector:
    """Amdahl's speed-up n / (1 + serial (n - 1)): throughput relative to one thread (Amdahl 1967, AFIPS).

    - `serial`: fraction of the work that is not parallel, in [0, 1]; `n`: as in `universal_scalability`.

    >>> amdahl([1, 2, 4], serial=0.5)
    array([1.        , 1.33333333, 1.6       ])
    """
    return universal_scalability(n, check_time("serial", serial, "give a fraction, not a percentage", limit=1), 0.0)


def universal_scalability(n: ArrayLike, contention: float, coherency: float) -> _Vector:
    """Gunther's relative capacity n / (1 + contention (n - 1) + coherency n (n - 1)).

    Source: N. J. Gunther, "Guerrilla Capacity Planning", Springer, 2007.

    Returns: ndarray, shape (M,). Throughput relative to one thread. Raises `InputError` if an argument breaks its rule.

    - `n`, shape (M,): numbers of threads, above 0.
    - `contention`: cost of queueing for shared resources (alpha), at least 0.
    - `coherency`: cost of data consistency for each pair of threads (beta), at least 0. At 0 this is Amdahl's law.

    >>> universal_scalability([1, 2, 4], contention=0.25, coherency=0.125)
    array([1.        , 1.33333333, 1.23076923])
    """
    threads = check_vector("n", n, positive=True)
    alpha = check_time("contention", contention, "give a cost relative to one unit of work")
    beta = check_time("coherency", coherency, "give a cost relative to one unit of work")
    return threads / (1.0 + alpha * (threads - 1) + beta * threads * (threads - 1))


def from_time_per_vcpu_work(n: ArrayLike, time: ArrayLike) -> _Vector:
    """Throughput n / time, in units per second, of `n` vCPUs that each complete one unit of work within `time` seconds.

    `time` is what `dirty_log_perf_test` reports with memory per vCPU held constant. Raises `InputError` if an element
    is not above 0 or the lengths differ.

    >>> from_time_per_vcpu_work([1, 2, 4], [1.0, 1.0, 2.0])
    array([1., 2., 2.])
    """
    threads, seconds = _pair("n", n, "time", time)
    return threads / seconds


@dataclass(frozen=True)
class ScalabilityFit:
    """A fitted scalability law: X(n) = single × n / (1 + contention (n-1) + coherency n (n-1)).

    - `single`: fitted throughput of one thread, in the unit of the data.
    - `contention`, `coherency`: fitted alpha and beta; for Amdahl's law the serial fraction and 0.
    """

    single: float
    contention: float
    coherency: float

    @property
    def peak(self) -> float:
        """Number of threads at the curve's maximum, sqrt((1 - contention) / coherency); infinite if it never falls.

        If `contention` is 1 or more, a curve that falls does so from the first thread on: the number is then 1.
        """
        if self.coherency == 0:
            return math.inf if self.contention <= 1 else 1.0
        return max(1.0, math.sqrt(max(0.0, 1 - self.contention) / self.coherency))

    def predict(self, n: ArrayLike) -> _Vector:
        """Fitted throughput at each of `n`, in the unit of the data; shape as `n`."""
        return self.single * universal_scalability(n, self.contention, self.coherency)


def fit_amdahl(n: ArrayLike, throughput: ArrayLike) -> ScalabilityFit:
    """Fit Amdahl's law, X(n) = single × n / (1 + serial (n-1)), serial in [0, 1], by least squares on log X.

    Raises `InputError` if an element is not above 0, the lengths differ, or there are fewer than 2 different `n`.

    - `n`, shape (M,): numbers of threads, above 0, at least 2 different ones.
    - `throughput`, shape (M,): measured throughput at each, above 0, any unit.

    >>> fit = fit_amdahl([1, 2, 4, 8], 3.0 * amdahl([1, 2, 4, 8], 0.5))
    >>> print(f"{fit.single:.3f} {fit.contention:.3f}")
    3.000 0.500
    """
    # With these terms the serial fraction is always in [0, 1].
    parallel, serial = _terms(n, throughput, lambda n: [np.ones(n.size), n])
    return ScalabilityFit(1 / (parallel + serial), serial / (parallel + serial), 0.0)


def fit_universal_scalability(n: ArrayLike, throughput: ArrayLike) -> ScalabilityFit:
    """Fit the universal scalability law to measured throughputs, with contention and coherency at least 0.

    As `fit_amdahl`, from at least 3 different `n`. Gunther bounds both parameters by 1 as well. Here they have no upper
    bound, so that the baseline can also fit data that fall steeply.

    >>> n = [1, 2, 4, 8, 16]
    >>> fit = fit_universal_scalability(n, 3.0 * universal_scalability(n, 0.1, 0.01))
    >>> print(f"{fit.single:.3f} {fit.contention:.3f} {fit.coherency:.3f} {fit.peak:.2f}")
    3.000 0.100 0.010 9.49
    """
    single, queueing, pairs = _terms(n, throughput, lambda n: [np.ones(n.size), n - 1, n * (n - 1)])
    return ScalabilityFit(1 / single, queueing / single, pairs / single)


def _terms(n: ArrayLike, throughput: ArrayLike, law: Callable[[_Vector], list[_Vector]]) -> list[float]:
    """Nonnegative coefficients of n / X by least squares on log X; `law` returns the functions of n to combine."""
    threads, measured = _pair("n", n, "throughput", throughput)
    columns = law(threads)
    if np.unique(threads).size < len(columns):
        rule = f"must have at least {len(columns)} different values to fit {len(columns)} parameters"
        raise InputError("n", threads.tolist(), rule, "measure at more thread counts")
    terms = np.column_stack(columns) * (measured / threads)[:, None]
    size = np.linalg.norm(terms, axis=0)  # unit columns, so that all unknowns are of order 1
    return list((_least_squares_of_logarithms(terms / size) / size).tolist())


def _least_squares_of_logarithms(terms: _Vector) -> _Vector:
    """Minimise Σ log²(terms @ x) over x ≥ 0, from several starts because it is not convex."""
    lower = np.zeros(terms.shape[1])
    lower[0] = 1e-9  # keeps the throughput of one thread finite
    linear, _ = scipy.optimize.nnls(terms, np.ones(len(terms)))
    starts = [linear, linear + 0.1 * linear.max(), *(np.eye(terms.shape[1]) + 0.01)]
    options = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14, "max_nfev": 200}

    def search(start: _Vector) -> Any:
        inside = np.maximum(start / np.exp(np.log(terms @ (start + lower)).mean()), lower)
        return scipy.optimize.least_squares(
            lambda x: np.log(terms @ x), inside, lambda x: terms / (terms @ x)[:, None], (lower, np.inf),
            method="dogbox", **options,
        )  # fmt: skip

    return np.asarray(min(map(search, starts), key=lambda result: float(result.cost)).x)


def _pair(first: str, a: ArrayLike, second: str, b: ArrayLike) -> tuple[_Vector, _Vector]:
    """Check two vectors of positive numbers of equal length."""
    x, y = check_vector(first, a, positive=True), check_vector(second, b, positive=True)
    if x.size != y.size:
        raise InputError(f"len({second})", y.size, f"must equal len({first}), {x.size}", "give pairs")
    return x, y
