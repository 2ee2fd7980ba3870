# SPDX-License-Identifier: BSD-3-Clause
"""The batching law: the number of pages after which CLEAR should drop the lock.

A clearing thread processes `pages` pages, each of which takes `work` seconds, and drops the lock after every
`batch` pages; taking the lock again without contention takes `reacquire`. `vcpus` threads think for `think` on average
(exponential) and then need the lock, either for write (one after another) or for read (concurrently).

Let T = work × batch be the time of a hold and s the time that each waiter adds. If k vCPUs wait when a hold ends, they
are served first. The vCPUs that fault before the clearing thread requests the lock again are served too (e on average),
and the thread gets it after W = max(reacquire, s × (k + e)). A vCPU that faults after that request waits for the end of
the next hold. If the vCPUs are assumed to be independent, k is binomial with

    p = 1 − exp(−(T + E[(W − reacquire) × (1 − k / (2 × vcpus))]) / think),   e = vcpus × (1 − p) × reacquire / think,

where the expectation is the mean time for which a vCPU thinks after the clearing thread's request; the served vCPUs
begin to think during the wait. The fixed point is computed by the secant method. A cycle takes C = T + E[W], and there
are pages / batch cycles. Each fault ends one think time: the guest's throughput, relative to an undisturbed guest, is
(E[k] + e) × think / (vcpus × C). The engine agrees within a few percent (tests/analysis/theory/test_batching.py).

For holds and waits that are short compared with the think time, the cost (CLEAR time plus `weight` times the guest time
lost) is the sum of one term proportional to 1 / batch and one proportional to batch, and the best hold is

    T* = sqrt(2 × reacquire × think / (weight × vcpus)),

the square-root law. As for the economic lot size (Harris 1913) and the checkpoint interval (Young 1974), a fixed cost
of each drop is traded against a loss that grows with the time between drops. T* depends neither on the duration of a
fault nor on the number of pages, because the clearing thread waits for faults for the same total time at any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from simlib._lib.errors import InputError
from simlib.analysis.theory.arguments import check_count, check_time, check_vector


@dataclass(frozen=True)
class Batching:
    """Parameters of the clearing thread and the vCPUs; times in seconds. Raises `InputError` if one is invalid.

    - `pages`: pages of the whole ioctl.
    - `work`: time under the lock for each page.
    - `reacquire`: time to drop the lock and take it again without contention.
    - `think`: mean time between a vCPU's return to the guest and its next fault that needs the lock.
    - `service`: time that each waiter adds to the clearing thread's wait: hold and hand-off if faults exclude each
      other, only the hand-off if they enter together.
    - `drain`: time that the waiters add once, whatever their number: one hold if they enter together.
    """

    pages: int
    work: float
    reacquire: float
    vcpus: int
    think: float
    service: float
    drain: float = 0.0

    def __post_init__(self) -> None:
        check_count("pages", self.pages)
        check_count("vcpus", self.vcpus)
        for name in ("work", "reacquire", "service", "drain"):
            check_time(name, getattr(self, name))
        for name in ("work", "think"):
            if check_time(name, getattr(self, name)) == 0:
                raise InputError(name, 0.0, "must be above 0", "give a positive time")


@dataclass(frozen=True)
class BatchCosts:
    """Costs of each batch; arrays over the batches, times in seconds.

    - `batch`: pages of a hold.
    - `clear_time`: time of the whole ioctl.
    - `throughput`: guest throughput during the ioctl, relative to an undisturbed guest.
    - `guest_time_lost`: total CPU time that the guest loses.
    - `stall`: mean stall of a vCPU that faults as a hold begins and is served last.
    - `waiting`: mean number of vCPUs that wait when a hold ends.
    """

    batch: NDArray[np.float64]
    clear_time: NDArray[np.float64]
    throughput: NDArray[np.float64]
    guest_time_lost: NDArray[np.float64]
    stall: NDArray[np.float64]
    waiting: NDArray[np.float64]

    def objective(self, weight: float = 1.0) -> NDArray[np.float64]:
        """Objective to minimise: CLEAR time plus `weight` times the guest time lost, s."""
        return self.clear_time + check_time("weight", weight, "give a ratio") * self.guest_time_lost


def batch_costs(case: Batching, batches: ArrayLike) -> BatchCosts:
    """Compute the costs of batches, which are given in pages of a hold and limited to the pages of the ioctl.

    Raises `InputError` if a batch is not above 0.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=20e-6, service=1e-6)
    >>> costs = batch_costs(case, [64, 262144])
    >>> bool(costs.clear_time[0] > 2 * costs.clear_time[1]), bool(costs.stall[0] < 0.01 * costs.stall[1])
    (True, True)
    """
    batch = np.minimum(check_vector("batches", batches, positive=True), case.pages)
    hold = case.work * batch
    waiters = np.arange(case.vcpus + 1)
    share = 1 - waiters / (2 * case.vcpus)
    log_combinations = -special.betaln(waiters + 1, case.vcpus - waiters + 1) - np.log(case.vcpus + 1)
    wait_probability = -np.expm1(-hold / case.think)
    last = last_residual = np.full_like(wait_probability, np.nan)
    for _ in range(200):
        early = case.vcpus * (1 - wait_probability) * case.reacquire / case.think
        p = wait_probability[:, None]
        weights = np.exp(log_combinations + special.xlogy(waiters, p) + special.xlog1py(case.vcpus - waiters, -p))
        served = waiters + early[:, None]
        wait = np.maximum(case.reacquire, case.service * served + case.drain * np.minimum(served, 1.0))
        thinking = (weights * (wait - case.reacquire) * share).sum(axis=1)
        residual = -np.expm1(-(hold + thinking) / case.think) - wait_probability
        if np.allclose(residual, 0.0, atol=1e-10):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (residual - last_residual) / (wait_probability - last)
            step = np.where(slope < -0.01, -residual / slope, 0.5 * residual)  # damped if flat, or without a secant yet
        last, last_residual = wait_probability, residual
        wait_probability = np.clip(wait_probability + step, 0.0, 1.0)
    cycle = hold + (weights * wait).sum(axis=1)
    cycles = case.pages / batch
    faults = case.vcpus * wait_probability + early
    throughput = np.minimum(1.0, faults * case.think / (case.vcpus * cycle))
    guest_time_lost = cycles * cycle * case.vcpus * (1 - throughput)
    columns = (batch, cycles * cycle, throughput, guest_time_lost, cycle, case.vcpus * wait_probability)
    for column in columns:
        column.setflags(write=False)
    return BatchCosts(*columns)


def square_root_batch(case: Batching, weight: float = 1.0) -> float:
    """Batch of the square-root law, pages; not rounded, and not limited to the pages of the ioctl.

    Valid if the resulting hold is short compared with `think`; `batch_costs` does not need this condition. `weight`,
    above 0, is the value of one second of vCPU time, in seconds of the clearing thread.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=1e-3, service=1e-6)
    >>> print(f"{square_root_batch(case):.0f}")
    167
    """
    if check_time("weight", weight, "give a ratio") == 0:
        raise InputError("weight", weight, "must be above 0", "if the guest's time has no value, never drop the lock")
    return float(np.sqrt(2 * case.reacquire * case.think / (weight * case.vcpus)) / case.work)


def best_batch(case: Batching, weight: float = 1.0, smallest: int = 64) -> tuple[int, BatchCosts]:
    """Return the multiple of `smallest` pages with the lowest objective, by the fixed point, not the square-root law.

    Returns: The batch, and the costs of every candidate: `smallest` pages (the kernel clears whole bitmap words of 64),
    then eight per doubling, up to all pages. `weight` is as for `square_root_batch`.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=1e-3, service=1e-6)
    >>> best_batch(case)[0]
    192
    """
    steps = max(1.0, case.pages / check_count("smallest", smallest))
    candidates = smallest * np.unique(np.rint(np.geomspace(1, steps, num=2 + int(8 * np.log2(steps))))).astype(int)
    costs = batch_costs(case, candidates)
    return int(candidates[np.argmin(costs.objective(weight))]), costs
