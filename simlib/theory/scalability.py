# SPDX-License-Identifier: BSD-3-Clause
"""Amdahl's law and Gunther's universal scalability law: the baselines that a model of the lock has to beat.

Both are curves through measured throughputs with no mechanism of a lock in them. They are fitted to the
logarithm of the throughput, so that a relative error counts the same at every number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its parts are imported when they are first used: optimize takes half a second
from numpy.typing import ArrayLike, NDArray

from simlib.errors import InputError
from simlib.theory.arguments import check_probability, check_time, check_vector

_Vector = NDArray[np.float64]
_NEGLIGIBLE = 1e-6  # relative effect on the largest point below which a parameter counts as lying on its bound


def amdahl(n: ArrayLike, serial: float) -> _Vector:
    """Amdahl's speed-up n / (1 + serial (n - 1)): throughput relative to one thread (Amdahl 1967, AFIPS).

    `serial`, the fraction of the work that cannot be shared out, is in [0, 1]; `n` as in `universal_scalability`.

    Examples
    --------
    >>> amdahl([1, 2, 4], serial=0.5)
    array([1.        , 1.33333333, 1.6       ])
    """
    serial = check_probability("serial", serial)
    return universal_scalability(n, serial, 0.0)


def universal_scalability(n: ArrayLike, contention: float, coherency: float) -> _Vector:
    """Gunther's relative capacity n / (1 + contention (n - 1) + coherency n (n - 1)).

    Source: N. J. Gunther, "Guerrilla Capacity Planning", Springer, 2007.

    Returns: ndarray, shape (M,). Throughput relative to one thread. Raises `InputError` if an argument breaks its rule.

    Parameters
    ----------
    n : array_like, shape (M,)
        Numbers of threads, above 0.
    contention : float
        Cost of queueing for what is shared (alpha), at least 0.
    coherency : float
        Cost of each pair keeping its data consistent (beta), at least 0. At 0 this is Amdahl's law.

    Examples
    --------
    >>> universal_scalability([1, 2, 4], contention=0.25, coherency=0.125)
    array([1.        , 1.33333333, 1.23076923])
    """
    threads = check_vector("n", n, positive=True)
    alpha = check_time("contention", contention, "give a cost relative to one portion of work")
    beta = check_time("coherency", coherency, "give a cost relative to one portion of work")
    capacity: _Vector = threads / (1.0 + alpha * (threads - 1) + beta * threads * (threads - 1))
    return capacity


def from_time_per_vcpu_work(n: ArrayLike, time: ArrayLike) -> _Vector:
    """Portions per second of `n` vCPUs that each do one fixed portion of work, all done after `time` seconds: n / time.

    This is what `dirty_log_perf_test` reports with memory per vCPU held constant. Raises `InputError` if an element is
    not above 0 or the lengths differ.

    Examples
    --------
    >>> from_time_per_vcpu_work([1, 2, 4], [1.0, 1.0, 2.0])
    array([1., 2., 2.])
    """
    threads, seconds = _pair("n", n, "time", time)
    throughput: _Vector = threads / seconds
    return throughput


@dataclass(frozen=True, eq=False)
class ScalabilityFit:
    """A fitted scalability law: X(n) = single × n / (1 + contention (n-1) + coherency n (n-1)).

    Attributes
    ----------
    law : {"amdahl", "universal"}
        Which law. Amdahl's has `coherency` 0, not fitted.
    single : float
        Fitted throughput of one thread, in the unit of the data.
    contention, coherency : float
        Fitted alpha and beta; Amdahl's serial fraction is `contention`.
    standard_errors : dict of str to float
        Of each fitted parameter, from the linearised fit. NaN where the parameter lies on its bound or no
        degree of freedom is left.
    on_bound : tuple of str
        Fitted parameters that lie on a bound of their range; they are held there for the errors of the
        others. `single` is one where the data hold no small `n` and only a ratio of parameters is determined.
    points : int
        Number of data points.
    residual_std : float
        Standard deviation of the logarithm of the throughput about the curve: about the relative error of
        one point. NaN without a degree of freedom.

    Examples
    --------
    >>> fit = fit_amdahl([1, 2, 4, 8], [1.0, 1.34, 1.6, 1.77])
    >>> print(round(fit.contention, 2), fit.valid, fit.predict([16]).round(2))
    0.5 True [1.88]
    """

    law: Literal["amdahl", "universal"]
    single: float
    contention: float
    coherency: float
    standard_errors: dict[str, float]
    on_bound: tuple[str, ...]
    points: int
    residual_std: float
    covariance: _Vector
    """Covariance of log(single), contention and (universal only) coherency; 0 for those on a bound."""

    @property
    def degrees_of_freedom(self) -> int:
        """Data points less fitted parameters."""
        return self.points - len(self.standard_errors)

    @property
    def valid(self) -> bool:
        """Whether every parameter is inside its range and a degree of freedom is left for its error."""
        return not self.on_bound and self.degrees_of_freedom > 0

    @property
    def peak(self) -> float:
        """Number of threads where the curve is highest, sqrt((1 - alpha) / beta); infinite if it never falls.

        1 where `contention` is 1 or more and the curve falls from the first thread on.
        """
        if self.coherency == 0:
            return math.inf if self.contention <= 1 else 1.0
        return max(1.0, math.sqrt(max(0.0, 1 - self.contention) / self.coherency))

    def predict(self, n: ArrayLike) -> _Vector:
        """Fitted throughput at each of `n`, in the unit of the data; shape as `n`."""
        return self.single * universal_scalability(n, self.contention, self.coherency)

    def prediction_interval(self, n: ArrayLike, level: float = 0.95) -> tuple[_Vector, _Vector]:
        """Interval (low, high) for one new measurement at each of `n`: for scatter and the parameters, not a wrong law.

        By the delta method on the logarithm: log X ± t sqrt(s² + g' C g), with s the residual deviation, C
        the covariance of the parameters, g the gradient of log X by them, and t Student's quantile.

        Raises `InputError` if the fit has no degree of freedom left, or `level` is not inside (0, 1).
        """
        if not 0 < check_probability("level", level) < 1:
            raise InputError("level", level, "must be inside (0, 1)", "0.95 is usual")
        if self.degrees_of_freedom < 1:
            least = len(self.standard_errors) + 1
            raise InputError("points", self.points, f"must be at least {least} for an interval", "measure more")
        threads = check_vector("n", n, positive=True)
        gradient = _gradient(threads, self)
        variance = self.residual_std**2 + np.einsum("ij,jk,ik->i", gradient, self.covariance, gradient)
        half = scipy.special.stdtrit(self.degrees_of_freedom, 0.5 + level / 2) * np.sqrt(variance)
        centre = self.predict(threads)
        return centre * np.exp(-half), centre * np.exp(half)


def fit_amdahl(n: ArrayLike, throughput: ArrayLike) -> ScalabilityFit:
    """Fit Amdahl's law, X(n) = single × n / (1 + serial (n-1)), serial in [0, 1], by least squares on log X.

    Raises `InputError` if an element is not above 0, the lengths differ, or there are fewer than 2 different `n`.

    Parameters
    ----------
    n : array_like, shape (M,)
        Numbers of threads, above 0, at least 2 different ones.
    throughput : array_like, shape (M,)
        Measured throughput at each, above 0, any unit.

    Examples
    --------
    >>> fit = fit_amdahl([1, 2, 4, 8], 3.0 * amdahl([1, 2, 4, 8], 0.5))
    >>> print(f"{fit.single:.3f} {fit.contention:.3f}")
    3.000 0.500
    """
    return _fit("amdahl", n, throughput)


def fit_universal_scalability(n: ArrayLike, throughput: ArrayLike) -> ScalabilityFit:
    """Fit the universal scalability law to measured throughputs, with contention and coherency at least 0.

    As `fit_amdahl`, from at least 3 different `n`. Gunther bounds both parameters by 1 as well; here they have no upper
    bound, which gives the baseline every chance on data that fall steeply.

    Examples
    --------
    >>> n = [1, 2, 4, 8, 16]
    >>> fit = fit_universal_scalability(n, 3.0 * universal_scalability(n, 0.1, 0.01))
    >>> print(f"{fit.single:.3f} {fit.contention:.3f} {fit.coherency:.3f} {fit.peak:.2f}")
    3.000 0.100 0.010 9.49
    """
    return _fit("universal", n, throughput)


def _gradient(threads: _Vector, fit: ScalabilityFit) -> _Vector:
    """Gradient of log X by log(single), contention and, if fitted, coherency; shape (M, parameters)."""
    costs = np.column_stack([threads - 1, threads * (threads - 1)])
    loss = 1 + costs @ np.array([fit.contention, fit.coherency])
    return np.column_stack([np.ones(threads.size), -costs / loss[:, None]])[:, : len(fit.covariance)]


def _fit(law: Literal["amdahl", "universal"], n: ArrayLike, throughput: ArrayLike) -> ScalabilityFit:
    """Fit n / X, a sum of terms ≥ 0: p + q n for Amdahl's law, a + b (n - 1) + c n (n - 1) for Gunther's."""
    threads, measured = _pair("n", n, "throughput", throughput)
    names = ("single", "contention") if law == "amdahl" else ("single", "contention", "coherency")
    if np.unique(threads).size < len(names):
        rule = f"must have at least {len(names)} different values to fit {len(names)} parameters"
        raise InputError("n", threads.tolist(), rule, "measure at more numbers of threads")
    ones = np.ones(threads.size)
    columns = [ones, threads] if law == "amdahl" else [ones, threads - 1, threads * (threads - 1)]
    terms = np.column_stack(columns) * (measured / threads)[:, None]
    size = np.linalg.norm(terms, axis=0)  # unit columns, so that every unknown is of order 1
    terms /= size
    best = _least_squares_of_logarithms(terms)
    residuals, shares = np.log(terms @ best), terms * best / (terms @ best)[:, None]
    fixed = shares.max(axis=0) < _NEGLIGIBLE
    free = threads.size - len(names)
    spread = math.sqrt(float(residuals @ residuals) / free) if free > 0 else math.nan
    inverse = np.linalg.pinv((terms / (terms @ best)[:, None])[:, ~fixed])
    of_terms = np.zeros((len(names), len(names)))
    of_terms[np.ix_(~fixed, ~fixed)] = spread**2 * (inverse @ inverse.T)
    single, slopes, change = _parameters(law, best / size)
    covariance = (change / size) @ of_terms @ (change / size).T
    covariance.setflags(write=False)
    if law == "amdahl":  # both of its terms vanish only where the serial fraction is on a bound: 1 or 0
        fixed = np.array([False, fixed.any()])
    errors = np.where(fixed, np.nan, np.sqrt(np.diag(covariance))) * np.append(single, ones[: len(names) - 1])
    return ScalabilityFit(
        law=law,
        single=single,
        contention=slopes[0],
        coherency=slopes[1],
        standard_errors=dict(zip(names, errors.tolist(), strict=True)),
        on_bound=tuple(name for name, held in zip(names, fixed, strict=True) if held),
        points=threads.size,
        residual_std=spread,
        covariance=covariance,
    )


def _parameters(law: str, terms: _Vector) -> tuple[float, list[float], _Vector]:
    """Single, [contention, coherency], and the change of log(single) and the fitted ones with each term.

    Amdahl's p + q n: single = 1 / (p + q), serial = q / (p + q), which is in [0, 1] by itself. Gunther's
    a + b (n - 1) + c n (n - 1): single = 1 / a, contention = b / a, coherency = c / a.
    """
    if law == "amdahl":
        base = float(terms.sum())
        serial = float(terms[1]) / base
        return 1 / base, [serial, 0.0], np.array([[-1.0, -1.0], [-serial, 1 - serial]]) / base
    base = float(terms[0])
    alpha, beta = (terms[1:] / base).tolist()
    return 1 / base, [alpha, beta], np.array([[-1.0, 0.0, 0.0], [-alpha, 1.0, 0.0], [-beta, 0.0, 1.0]]) / base


def _least_squares_of_logarithms(terms: _Vector) -> _Vector:
    """The x ≥ 0 that minimises Σ log²(terms @ x): the best of several starts, as it is not convex."""
    lower = np.zeros(terms.shape[1])
    lower[0] = 1e-9  # some time for one thread, lest its throughput be infinite
    linear, _ = scipy.optimize.nnls(terms, np.ones(len(terms)))
    alone = np.eye(terms.shape[1])
    starts = [linear, linear + 0.1 * linear.max(), *(alone + 0.01)]

    def residuals(x: _Vector) -> _Vector:
        gap: _Vector = np.log(terms @ x)
        return gap

    def jacobian(x: _Vector) -> _Vector:
        slope: _Vector = terms / (terms @ x)[:, None]
        return slope

    results = []
    for start in starts:
        inside = np.maximum(start / np.exp(residuals(start + lower).mean()), lower)
        options = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14, "max_nfev": 200}
        results.append(
            scipy.optimize.least_squares(residuals, inside, jacobian, (lower, np.inf), method="dogbox", **options)
        )
    best: _Vector = min(results, key=lambda result: float(result.cost)).x
    return best


def _pair(first: str, a: ArrayLike, second: str, b: ArrayLike) -> tuple[_Vector, _Vector]:
    """Two vectors of positive numbers of one length."""
    x, y = check_vector(first, a, positive=True), check_vector(second, b, positive=True)
    if x.size != y.size:
        raise InputError(f"len({second})", y.size, f"must be {x.size}, as len({first})", "give pairs")
    return x, y
