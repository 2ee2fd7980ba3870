# SPDX-License-Identifier: BSD-3-Clause
"""The batching law: how often a thread that holds a lock for long should let go.

A clearing thread has `pages` to write-protect, at `work` seconds each, and lets go after every `batch` of them; getting
the lock back takes it `reacquire` when nobody else wants it. `vcpus` threads think for `think` on average (exponential)
and then need the lock: for write, one after another, or for read, together.

Write T = work × batch for a hold and s for what each waiter adds. Let k vCPUs wait when a hold ends: they are served
first, those that fault while the clearing thread has not asked again are served too (e of them on average), and it
gets the lock after W = max(reacquire, s × (k + e)). Who faults after it has asked waits for the next hold's end. Taking
the vCPUs as independent, k is binomial with

    p = 1 − exp(−(T + E[(W − reacquire) × (1 − k / (2 × vcpus))]) / think),   e = vcpus × (1 − p) × reacquire / think,

where the bracket is how long a vCPU has been thinking, on average, after the clearing thread asked: those that were
served began in between. The fixed point is found by secants. A cycle takes C = T + E[W], and there are pages / batch
of them. Each fault ends one time of thinking, so that the guest's throughput, relative to undisturbed, is
(E[k] + e) × think / (vcpus × C). The engine agrees within a few percent (tests/analysis/theory/test_batching.py).

For holds and waits that are short beside the thinking the cost, CLEAR time plus `weight` times what the guest loses,
is a sum of one term in 1 / batch and one in batch, and the best hold is

    T* = sqrt(2 × reacquire × think / (weight × vcpus)),

the square-root law: as in the economic lot size (Harris 1913) and the checkpoint interval (Young 1974), a fixed cost of
letting go against a loss that grows with the time one does not. Neither the length of a fault nor the number of pages
is in it: the waits of the clearing thread behind the guest's faults are the same however they are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from simlib._lib.errors import InputError
from simlib.analysis.theory.arguments import check_count, check_time, check_vector

_ROUNDS = 200
_SHALLOW = 0.01
"""Slope of the fixed point's equation below which a secant would jump too far."""


@dataclass(frozen=True)
class Batching:
    """What meets at the lock; times in seconds.

    - `pages`: pages of the whole ioctl.
    - `work`: under the lock, for each page.
    - `reacquire`: letting go and getting the lock back when nobody else wants it.
    - `think`: mean time between a vCPU's return to the guest and its next fault that needs the lock.
    - `service`: what each waiter adds to the clearing thread's wait: hold and hand-over if faults exclude each other,
      the hand-over alone if they enter together.
    - `drain`: what the waiters add once, however many they are: one hold, if they enter together.
    """

    pages: int
    work: float
    reacquire: float
    vcpus: int
    think: float
    service: float
    drain: float = 0.0

    def __post_init__(self) -> None:
        """Check the arguments; `InputError` if one breaks its rule."""
        check_count("pages", self.pages)
        check_count("vcpus", self.vcpus)
        for name in ("work", "reacquire", "service", "drain"):
            check_time(name, getattr(self, name))
        for name in ("work", "think"):
            if check_time(name, getattr(self, name)) == 0:
                raise InputError(name, 0.0, "must be above 0", "without it there is nothing to divide")


@dataclass(frozen=True)
class BatchCosts:
    """What each batch costs; arrays over the batches, times in seconds.

    - `batch`: pages of a hold.
    - `clear_time`: of the whole ioctl.
    - `throughput`: the guest's meanwhile, relative to undisturbed.
    - `lost`: CPU time that the guest loses in all.
    - `stall`: mean of a vCPU that faults as a hold begins and is served last.
    - `waiting`: vCPUs that wait when a hold ends.
    """

    batch: NDArray[np.float64]
    clear_time: NDArray[np.float64]
    throughput: NDArray[np.float64]
    lost: NDArray[np.float64]
    stall: NDArray[np.float64]
    waiting: NDArray[np.float64]

    def objective(self, weight: float = 1.0) -> NDArray[np.float64]:
        """CLEAR time and, `weight` times, the guest's lost time: what is to be least, s."""
        return self.clear_time + check_time("weight", weight, "give a ratio") * self.lost


def batch_costs(case: Batching, batches: ArrayLike) -> BatchCosts:
    """What each of some batches costs: pages of a hold, each above 0; more than all pages is all pages.

    Raises `InputError` if a batch is not above 0.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=20e-6, service=1e-6)
    >>> costs = batch_costs(case, [64, 262144])
    >>> bool(costs.clear_time[0] > 2 * costs.clear_time[1]), bool(costs.stall[0] < 0.01 * costs.stall[1])
    (True, True)
    """
    batch = np.minimum(check_vector("batches", batches, positive=True), case.pages)
    hold = case.work * batch
    number = np.arange(case.vcpus + 1)
    share = 1 - number / (2 * case.vcpus)
    choices = -special.betaln(number + 1, case.vcpus - number + 1) - np.log(case.vcpus + 1)
    chance = -np.expm1(-hold / case.think)
    last = last_gap = np.full_like(chance, np.nan)
    for _ in range(_ROUNDS):
        early = case.vcpus * (1 - chance) * case.reacquire / case.think
        p = chance[:, None]
        odds = np.exp(choices + special.xlogy(number, p) + special.xlog1py(case.vcpus - number, -p))
        served = number + early[:, None]
        back = np.maximum(case.reacquire, case.service * served + case.drain * np.minimum(served, 1.0))
        thought = (odds * (back - case.reacquire) * share).sum(axis=1)
        gap = -np.expm1(-(hold + thought) / case.think) - chance
        if np.allclose(gap, 0.0, atol=1e-10):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (gap - last_gap) / (chance - last)
            step = np.where(slope < -_SHALLOW, -gap / slope, 0.5 * gap)  # the secant; damped, as long as there is none
        last, last_gap = chance, gap
        chance = np.clip(chance + step, 0.0, 1.0)
    cycle = hold + (odds * back).sum(axis=1)
    cycles = case.pages / batch
    faults = case.vcpus * chance + early
    throughput = np.minimum(1.0, faults * case.think / (case.vcpus * cycle))
    lost = cycles * cycle * case.vcpus * (1 - throughput)
    columns = (batch, cycles * cycle, throughput, lost, cycle, case.vcpus * chance)
    for column in columns:
        column.setflags(write=False)
    return BatchCosts(*columns)


def square_root_batch(case: Batching, weight: float = 1.0) -> float:
    """The batch of the square-root law, pages: not rounded, and not cut to what the ioctl has.

    Holds where the hold that comes out is short beside `think`; `batch_costs` has no such limit. `weight`, above 0, is
    what a second of a vCPU is worth, in seconds of the clearing thread.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=1e-3, service=1e-6)
    >>> print(f"{square_root_batch(case):.0f}")
    167
    """
    if check_time("weight", weight, "give a ratio") == 0:
        raise InputError("weight", weight, "must be above 0", "if the guest's time is worth nothing, never let go")
    return float(np.sqrt(2 * case.reacquire * case.think / (weight * case.vcpus)) / case.work)


def best_batch(case: Batching, weight: float = 1.0, smallest: int = 64) -> tuple[int, BatchCosts]:
    """The multiple of `smallest` pages with the least objective, by the fixed point and not by its limit.

    Returns: The batch, and the costs of every candidate: `smallest` pages (a bitmap word of 64 is the least that the
    kernel does at a time), then eight to the octave up to all pages. `weight` is as for `square_root_batch`.

    >>> case = Batching(pages=262144, work=30e-9, reacquire=0.2e-6, vcpus=16, think=1e-3, service=1e-6)
    >>> best_batch(case)[0]
    192
    """
    steps = max(1.0, case.pages / check_count("smallest", smallest))
    candidates = smallest * np.unique(np.rint(np.geomspace(1, steps, num=2 + int(8 * np.log2(steps))))).astype(int)
    costs = batch_costs(case, candidates)
    return int(candidates[np.argmin(costs.objective(weight))]), costs
