# SPDX-License-Identifier: BSD-3-Clause
"""Mean-value analysis of a closed network: threads that think, then queue at one or more locks.

`N` customers (threads) circulate. Each spends a time `Z` at a delay station (outside of any lock), then
visits queueing station `k` (a lock, a cache line) for a total service demand `D[k]` a cycle. Recursion over
the population gives exact means in O(N K) without ever summing over states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simlib.theory.arguments import check_count, check_cycle, check_time, check_vector


@dataclass(frozen=True, eq=False)
class MeanValues:
    """Exact means of a closed network, for each population 1 … N. Arrays are read-only.

    Attributes
    ----------
    think : float
        Time at the delay station per cycle, seconds.
    demands : ndarray, shape (K,)
        Service demand at each queueing station per cycle, seconds.
    population : ndarray of int, shape (N,)
        1 … N; row `i` of the other arrays is for this population.
    throughput : ndarray, shape (N,)
        Cycles per second, of all customers together.
    response_time : ndarray, shape (N, K)
        Seconds per cycle at station `k`, waiting and in service.
    queue_length : ndarray, shape (N, K)
        Mean number of customers at station `k`, waiting and in service.
    utilisation : ndarray, shape (N, K)
        Fraction of time that station `k` is busy.

    Examples
    --------
    >>> mean_value_analysis(2, think=1.0, demands=[1.0]).cycle_time
    array([2. , 2.5])
    """

    think: float
    demands: NDArray[np.float64]
    population: NDArray[np.int64]
    throughput: NDArray[np.float64]
    response_time: NDArray[np.float64]
    queue_length: NDArray[np.float64]
    utilisation: NDArray[np.float64]

    @property
    def cycle_time(self) -> NDArray[np.float64]:
        """Think time and all response times together, seconds; shape (N,)."""
        cycle: NDArray[np.float64] = self.think + self.response_time.sum(axis=1)
        return cycle


class ThroughputBounds(NamedTuple):
    """What the throughput cannot be below or above, cycles per second.

    Examples
    --------
    >>> ThroughputBounds(0.5, 1.0).high
    1.0
    """

    low: float
    high: float


def mean_value_analysis(n: int, think: float, demands: ArrayLike) -> MeanValues:
    """Exact throughput, response times, queue lengths and utilisations for populations 1 … `n`.

    For each population N, with Q[k](0) = 0:

    - R[k](N) = D[k] (1 + Q[k](N-1))      (the arrival theorem: an arriving customer sees the network
      without itself)
    - X(N) = N / (Z + Σ R[k](N))          (Little's law over the cycle)
    - Q[k](N) = X(N) R[k](N)              (Little's law at the station)

    Exact for product-form networks: FIFO stations with exponential service, or processor sharing with any
    service distribution; the delay may have any distribution. An approximation for anything else (FIFO with
    constant holds waits less than this says).

    Raises `InputError` for a population, time or vector that breaks the rules above.

    Parameters
    ----------
    n : int
        Largest population, at least 1.
    think : float
        Z, seconds; at least 0.
    demands : array_like, shape (K,)
        D, seconds; each at least 0. `think` and `demands` must not all be 0.

    References
    ----------
    M. Reiser, S. S. Lavenberg, "Mean-value analysis of closed multichain queuing networks", J. ACM 27(2),
    1980 (single chain, fixed-rate stations; form as derived here).

    Examples
    --------
    One vCPU thinks 1 s and holds 1 s; the second one waits half a second on average:

    >>> result = mean_value_analysis(2, think=1.0, demands=[1.0])
    >>> result.throughput
    array([0.5, 0.8])
    >>> result.response_time[:, 0]
    array([1. , 1.5])
    """
    n, think = check_count("n", n), check_time("think", think)
    demand = check_vector("demands", demands, positive=False)
    check_cycle("think, demands", think, *demand.tolist())
    throughput = np.empty(n)
    response = np.empty((n, demand.size))
    queue = np.empty((n, demand.size))
    seen = np.zeros(demand.size)
    for row in range(n):
        response[row] = demand * (1.0 + seen)
        throughput[row] = (row + 1) / (think + response[row].sum())
        seen = queue[row] = throughput[row] * response[row]
    utilisation = throughput[:, None] * demand
    population = np.arange(1, n + 1, dtype=np.int64)
    for array in (demand, population, throughput, response, queue, utilisation):
        array.setflags(write=False)
    return MeanValues(think, demand, population, throughput, response, queue, utilisation)


def asymptotic_bounds(n: int, think: float, demands: ArrayLike) -> ThroughputBounds:
    """Bounds on throughput from the means alone.

    N / (Z + N D) ≤ X(N) ≤ min(1 / Dmax, N / (Z + D)), with D the sum and Dmax the largest of the demands.

    Valid for **any** distribution of think and service times, product form or not. Above: no station serves
    more than one customer at a time, and no cycle is shorter than its own work. Below: when not all N
    think, some station serves, so P(all think) ≥ 1 - X D; the mean number thinking is X Z (Little) and at
    least N P(all think), hence X Z ≥ N (1 - X D).

    Returns: Cycles per second. Raises `InputError` as `mean_value_analysis`.

    Parameters
    ----------
    n : int
        Population, at least 1.
    think : float
        Z, seconds.
    demands : array_like, shape (K,)
        D[k], seconds, each a single work-conserving server.

    References
    ----------
    P. J. Denning, J. P. Buzen, "The operational analysis of queueing network models", ACM Computing Surveys
    10(3), 1978 (asymptotic upper bound; proof of the lower one as derived here).

    Examples
    --------
    >>> asymptotic_bounds(2, think=1.0, demands=[1.0])
    ThroughputBounds(low=0.6666666666666666, high=1.0)
    """
    n, think = check_count("n", n), check_time("think", think)
    demand = check_vector("demands", demands, positive=False)
    check_cycle("think, demands", think, *demand.tolist())
    total, largest = float(demand.sum()), float(np.max(demand))
    high = n / (think + total)
    return ThroughputBounds(n / (think + n * total), min(high, 1 / largest) if largest > 0 else high)


def balanced_job_bounds(n: int, think: float, demands: ArrayLike) -> ThroughputBounds:
    """Tighter bounds on throughput than the asymptotic ones, for product-form networks only.

    With D the sum, Dmax the largest and Dmean the mean of the demands:

    - X(N) ≥ N / (Z + D + (N-1) Dmax / (1 + Z / (N D)))
    - X(N) ≤ min(1 / Dmax, N / (Z + D + (N-1) Dmean / (1 + Z / D)))

    Among networks of equal total demand the balanced one is fastest, and among those of equal largest
    demand the one with D / Dmax stations of demand Dmax is slowest; the think time enters by a bound on how
    many customers are away. Not valid for constant holds, which can exceed the upper bound.

    Returns: Cycles per second. Raises `InputError` as `mean_value_analysis`.

    Parameters
    ----------
    n : int
        Population, at least 1.
    think : float
        Z, seconds.
    demands : array_like, shape (K,)
        D[k], seconds.

    References
    ----------
    J. Zahorjan, K. C. Sevcik, D. L. Eager, B. Galler, "Balanced job bound analysis of queueing networks",
    Comm. ACM 25(2), 1982; the form with think time is that of E. D. Lazowska et al., "Quantitative System
    Performance", 1984, chapter 5. The tests check it against `mean_value_analysis`.

    Examples
    --------
    >>> low, high = balanced_job_bounds(2, think=1.0, demands=[1.0])
    >>> print(f"{low:.4f} {high:.4f}")
    0.7500 0.8000
    """
    n, think = check_count("n", n), check_time("think", think)
    demand = check_vector("demands", demands, positive=False)
    check_cycle("think, demands", think, *demand.tolist())
    total, largest = float(demand.sum()), float(np.max(demand))
    if largest == 0:
        return ThroughputBounds(n / think, n / think)
    base, others = think + total, n - 1
    low = n / (base + others * largest * (n * total / (n * total + think)))
    high = n / (base + others * (total / demand.size) * (total / (total + think)))
    return ThroughputBounds(low, min(high, 1 / largest))
