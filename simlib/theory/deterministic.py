# SPDX-License-Identifier: BSD-3-Clause
"""Constant think and hold times: the D/D/1//N queue, the best that one lock can do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simlib.theory.arguments import check_count, check_cycle, check_time


@dataclass(frozen=True)
class DeterministicLock:
    """Steady cycle of `n` threads with constant think and hold times.

    Attributes
    ----------
    n : int
        Number of threads.
    think, service : float
        Time outside of and in the lock, seconds.

    Examples
    --------
    >>> DeterministicLock(n=4, think=2.0, service=1.0).mean_wait
    1.0
    """

    n: int
    think: float
    service: float

    @property
    def cycle_time(self) -> float:
        """Seconds from one acquisition of a thread to its next: max(Z + S, N S)."""
        return max(self.think + self.service, self.n * self.service)

    @property
    def throughput(self) -> float:
        """Acquisitions per second, of all threads together."""
        return self.n / self.cycle_time

    @property
    def utilisation(self) -> float:
        """Fraction of time that the lock is held."""
        return min(1.0, self.n * self.service / self.cycle_time)

    @property
    def mean_wait(self) -> float:
        """Seconds that each acquisition waits: max(0, N S - (Z + S))."""
        return max(0.0, (self.n - 1) * self.service - self.think)

    @property
    def speed_up(self) -> float:
        """Mean number of threads outside of the lock: throughput × think."""
        return self.throughput * self.think

    @property
    def saturation(self) -> float:
        """Population N* = (Z + S) / S from which the lock is always held; infinite if S is 0."""
        return (self.think + self.service) / self.service if self.service > 0 else math.inf


def deterministic_lock(n: int, think: float, service: float) -> DeterministicLock:
    """The D/D/1//N queue: exact from the second round after the last thread has joined, whatever the phases.

    Releases lie at least S apart, and so do the arrivals that follow each a time Z later. If N S ≤ Z + S, a
    whole rotation fits into one cycle: the first round spreads the threads out, no thread waits after it,
    and a cycle takes Z + S. Otherwise the lock never idles, serves the threads in rotation, and a cycle takes
    N S. The throughput min(N / (Z + S), 1 / S) is the upper asymptotic bound (Denning & Buzen 1978): no
    distribution of think or hold times with these means does better.

    Raises `InputError` if an argument breaks the rules above.

    Parameters
    ----------
    n : int
        Number of threads, at least 1.
    think, service : float
        Constant time outside of and in the lock, seconds; not both 0.

    References
    ----------
    P. J. Denning, J. P. Buzen, "The operational analysis of queueing network models", ACM Computing Surveys
    10(3), 1978 (the bound; its attainment as derived here).

    Examples
    --------
    >>> lock = deterministic_lock(4, think=2.0, service=1.0)
    >>> lock.cycle_time, lock.throughput, lock.saturation
    (4.0, 1.0, 3.0)
    """
    n, think, service = check_count("n", n), check_time("think", think), check_time("service", service)
    check_cycle("think, service", think, service)
    return DeterministicLock(n, think, service)
