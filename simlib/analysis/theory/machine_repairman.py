# SPDX-License-Identifier: BSD-3-Clause
"""One lock and `n` threads: the machine-repairman queue M/M/1//N, solved as a birth–death chain.

State `k` is the number of threads at the lock, including the holder: 0 … n. A thinking thread arrives at rate
1 / think, so the chain goes k → k+1 at rate (n - k) / think and k → k-1 at rate 1 / service(k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simlib._lib.errors import InputError
from simlib.analysis.theory.arguments import check_count, check_cycle, check_time, check_vector


@dataclass(frozen=True, eq=False)
class ClosedLock:
    """Stationary state of `n` threads that think and then take one lock.

    - `n`: number of threads.
    - `think`: mean time outside the lock, seconds.
    - `probabilities`, shape (n + 1,): P[k], the fraction of time that `k` threads hold or wait for the lock. Read-only.
    - `throughput`: total acquisitions per second of all threads.
    - `wait_probability`: fraction of acquisitions that have to wait because the lock is taken.
    """

    n: int
    think: float
    probabilities: NDArray[np.float64]
    throughput: float
    wait_probability: float

    @property
    def utilisation(self) -> float:
        """Fraction of time that the lock is held or handed off: 1 - P[0]."""
        return float(self.probabilities[1:].sum())

    @property
    def mean_at_lock(self) -> float:
        """Mean number of threads that hold or wait: Σ k P[k]. It is `w` in Boyd-Wickizer et al."""
        return float(np.arange(self.n + 1) @ self.probabilities)

    @property
    def mean_waiting(self) -> float:
        """Mean number of threads that wait, without the holder: Σ (k - 1) P[k] over k ≥ 1."""
        return float(np.arange(self.n) @ self.probabilities[1:])

    @property
    def speed_up(self) -> float:
        """Mean number of threads outside the lock: n - w, equal to throughput × think.

        The speed-up of Boyd-Wickizer et al.: work per second in units of a core that never needs the lock.
        """
        return float(np.arange(self.n, -1, -1) @ self.probabilities)

    @property
    def mean_wait(self) -> float:
        """Mean time from requesting the lock to getting it, seconds: mean waiting / throughput."""
        return self.mean_waiting / self.throughput


def birth_death(arrival_rates: ArrayLike, service_rates: ArrayLike) -> NDArray[np.float64]:
    """Stationary probabilities of a finite birth–death chain (Kleinrock 1975, "Queueing Systems", volume 1, chapter 3).

    P[k+1] / P[k] = arrival_rates[k] / service_rates[k], the rates of k → k+1 (at least 0) and back (above 0), per
    second. The exponent of each product is kept separately as an integer, so that nothing overflows and the relative
    error is about k rounding errors: the result is accurate for thousands of states.

    Returns: ndarray, shape (N + 1,). Probabilities of the states 0 … N. Raises `InputError` if a rate is invalid or
    the lengths differ.

    >>> birth_death([2.0, 1.0], [1.0, 1.0])
    array([0.2, 0.4, 0.4])
    """
    arrivals = check_vector("arrival_rates", arrival_rates, positive=False)
    services = check_vector("service_rates", service_rates, positive=True)
    if arrivals.size != services.size:
        hint = "give one service rate for each arrival rate: services[k] takes state k+1 back to k"
        raise InputError("len(service_rates)", services.size, f"must be {arrivals.size}", hint)
    probabilities = np.zeros(arrivals.size + 1)
    reached = arrivals.size if arrivals.all() else int(np.argmin(arrivals != 0))
    arrival_digits, arrival_power = np.frexp(arrivals[:reached])
    service_digits, service_power = np.frexp(services[:reached])
    digits, power = arrival_digits / service_digits, arrival_power - service_power
    scale = np.zeros(reached + 1, dtype=np.int32)
    scale[1:] = np.rint(np.cumsum(np.log2(digits) + power))
    weights = np.ones(reached + 1)
    weights[1:] = np.cumprod(np.ldexp(digits, power - np.diff(scale)))
    weights = np.ldexp(weights, scale - np.max(scale))
    probabilities[: reached + 1] = weights / weights.sum()
    return probabilities


def closed_lock(n: int, think: float, service_of_state: Callable[[int], float]) -> ClosedLock:
    """Stationary state of `n` threads and one lock whose mean service time depends on the number of threads at it.

    Exact for exponential service at the rate of the current state, whatever the distribution of the think time (Baskett
    et al. 1975, J. ACM 22(2)). `wait_probability` uses the arrival theorem (Sevcik and Mitrani 1981, J. ACM 28(2)): an
    arriving thread sees the stationary state of the same lock with n - 1 threads.

    Raises `InputError` if an argument or a returned service time is invalid.

    - `n`: number of threads, at least 1.
    - `think`: mean time outside the lock, seconds. At 0, all threads are always at the lock.
    - `service_of_state`: mean service time, seconds, as a function of `k` (1 … n, including the holder). A state with 0
      is left at once.

    A lock whose hand-off costs 0.1 s for each waiting thread:

    >>> closed_lock(2, think=1.0, service_of_state=lambda k: 1.0 + 0.1 * (k - 1)).probabilities.round(4)
    array([0.1923, 0.3846, 0.4231])
    """
    n, think = check_count("n", n), check_time("think", think)
    service = np.array([check_time(f"service_of_state({k})", service_of_state(k)) for k in range(1, n + 1)])
    if think == 0.0:
        check_cycle(f"think, service_of_state({n})", think, float(service[-1]))
        all_at_lock = np.zeros(n + 1)
        all_at_lock[n] = 1.0
        all_at_lock.setflags(write=False)
        return ClosedLock(n, think, all_at_lock, float(1 / service[-1]), float(n > 1))
    probabilities = _occupancy(n, think, service)
    thinking = float(np.arange(n, -1, -1) @ probabilities)
    if thinking >= 0.5:
        throughput = thinking / think
    else:  # the outflow is equal, and more accurate if hardly any thread thinks
        positive = service > 0
        throughput = float(probabilities[1:][positive] @ (1 / service[positive]))
    waits = float(_occupancy(n - 1, think, service[:-1])[1:].sum()) if n > 1 else 0.0
    probabilities.setflags(write=False)
    return ClosedLock(n, think, probabilities, throughput, waits)


def _occupancy(n: int, think: float, service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of 0 … n threads at the lock. Both rates are multiplied by both times, as either may be 0."""
    idle = np.arange(n, 0, -1, dtype=np.float64)
    return birth_death(idle * service, np.full(n, think))


def machine_repairman(n: int, think: float, service: float) -> ClosedLock:
    """Stationary state of the queue M/M/1//N, the machine repairman (Kleinrock 1975, volume 1, section 3.8).

    P[k] = P[0] n! / (n-k)! (service / think)^k, for any distribution of the think time; this is an approximation if
    the service time is not exponential. `think` and `service` are the mean times outside the lock and under it,
    seconds; they must not both be 0.

    Raises `InputError` if an argument is invalid.

    >>> lock = machine_repairman(2, think=1.0, service=1.0)
    >>> lock.probabilities, lock.utilisation
    (array([0.2, 0.4, 0.4]), 0.8)
    """
    service = check_time("service", service)
    check_cycle("think, service", check_time("think", think), service)
    return closed_lock(n, think, lambda _: service)
