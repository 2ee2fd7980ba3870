# SPDX-License-Identifier: BSD-3-Clause
"""Exact results and bounds that the engines are held against. Times in seconds; docs/theory.md says when each is exact.

Notation: N threads, Z think time, S or D time in service, X throughput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simlib.analysis.theory import closed_lock
from simlib.analysis.theory.machine_repairman import ClosedLock


class MeanValues(NamedTuple):
    """Exact means for populations 1 … N, a row each: throughput, and response time and queue length of each station."""

    throughput: np.ndarray
    response_time: np.ndarray
    queue_length: np.ndarray


def mean_value_analysis(n: int, think: float, demands: list[float]) -> MeanValues:
    """A delay and FIFO stations with exponential service (Reiser and Lavenberg 1980, J. ACM 27(2)).

    R[k](N) = D[k] (1 + Q[k](N-1)), by the arrival theorem; X = N / (Z + Σ R[k]) and Q[k] = X R[k], by Little's law.
    """
    demand, queue, rows = np.array(demands), np.zeros(len(demands)), []
    for population in range(1, n + 1):
        response = demand * (1.0 + queue)
        throughput = population / (think + response.sum())
        queue = throughput * response
        rows.append((throughput, response, queue))
    return MeanValues(*(np.array(column) for column in zip(*rows, strict=True)))


def ticket_lock(n: int, think: float, service: float, transfer: float) -> ClosedLock:
    """The non-scalable ticket lock, whose hand-offs take longer if more threads spin on its word.

    With k threads holding or waiting, the rate of k → k-1 is 1 / (service + transfer × k / 2): the release invalidates
    every spinner's copy of the cache line, the home directory answers their reads one by one, and that of the next
    holder is on average in the middle (Boyd-Wickizer et al., "Non-scalable locks are dangerous", Linux Symposium 2012;
    a, s and c are think, service and transfer, and `speed_up` is n - w). Accounts of the paper differ on whether k
    includes the holder, as here.
    """
    return closed_lock(n, think, lambda k: service + transfer * (k / 2))


def deterministic_lock(n: int, think: float, service: float) -> tuple[float, float]:
    """Cycle, max(Z + S, N S), and wait of each acquisition, if times are constant: from the second round on.

    Releases lie at least S apart, and so do the arrivals that follow each a time Z later: a rotation fits into a cycle,
    or the lock never idles. No distribution with these means does better (Denning and Buzen 1978, ACM Computing Surveys
    10(3)).
    """
    return max(think + service, n * service), max(0.0, (n - 1) * service - think)


@dataclass(frozen=True)
class ReaderWriterBounds:
    """What the throughput of a fair reader/writer lock lies between: `low`, and the least of the limits."""

    low: float
    limits: dict[str, float]

    @property
    def high(self) -> float:
        return min(self.limits.values())

    @property
    def limited_by(self) -> str:
        return min(self.limits, key=self.limits.__getitem__)


def reader_writer_bounds(
    n: int, think: float, *, read_hold: float, write_hold: float, write_share: float, line: float = 0.0
) -> ReaderWriterBounds:
    """Bounds for any distribution of times with these means, of which `line` moves the lock word's cache line.

    With p the share of writes and S = p S_w + (1-p) S_r + line: X ≤ N / (Z + S), as no cycle is shorter than its work;
    X ≤ 1 / (p S_w), as writers exclude all; X ≤ 1 / line, as the line is at one core at a time; X ≥ N / (Z + N S), as
    when not all think, someone holds the lock or moves the line: X Z ≥ N P(all think) ≥ N (1 - X S).
    """
    writing = write_share * write_hold
    work = writing + (1 - write_share) * read_hold + line
    rates = {name: 1 / busy if busy > 0 else math.inf for name, busy in (("writer", writing), ("line", line))}
    return ReaderWriterBounds(n / (think + n * work), {"population": n / (think + work), **rates})
