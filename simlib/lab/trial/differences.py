# SPDX-License-Identifier: BSD-3-Clause
"""Differences between the numbers of two kernels, beyond the scatter over seeds and layouts.

No two runs of a cell on one kernel share both seed and layout. The runs of the two kernels are not paired, because
another image runs differently even with the same seed. Counts that are equal in all runs of each kernel are compared by
value. All other numbers are compared by Welch's test of their logarithms. Holm's procedure bounds the probability that
a trial reports any change if nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from simlib.lab.trial.quantities import COUNT, TrialQuantity

ALPHA = 0.01
"""Probability that a trial reports any change if nothing changed (familywise error rate)."""

MIN_CHANGE = 0.01
"""Smallest relative change of a time that is reported."""

DETECTABLE_CHANGE = 0.10
"""Relative change that a number's runs must be able to detect; if they cannot, there are too few."""

CHANGED, ALIKE, TOO_FEW, EQUAL = "changed", "not distinguishable", "too few runs", "equal"

Runs = Sequence[Mapping[TrialQuantity, float]]
"""Numbers of each run of a kernel, in one cell."""


@dataclass(frozen=True)
class Difference:
    """Values of one number in one cell, on both kernels.

    - `mmu_mode`, `cell`: ``target/mode``, and the cell's label.
    - `base`, `changed`: the values of each kernel's runs, sorted.
    - `ratio`, `low`, `high`: changed over base, with its 95 % interval; if a value is 0, one is added to each.
    - `p`: of Welch's test; for numbers without noise, 0 if they differ and 1 if they are equal.
    - `verdict`: `CHANGED`, `ALIKE`, `TOO_FEW` or `EQUAL`.
    - `runs`: number of runs of each kernel that would show `DETECTABLE_CHANGE`.
    """

    mmu_mode: str
    cell: str
    quantity: TrialQuantity
    base: tuple[float, ...]
    changed: tuple[float, ...]
    ratio: float
    low: float
    high: float
    p: float
    verdict: str = EQUAL
    runs: int = 0

    @property
    def decided(self) -> bool:
        """True if no test is needed: all runs are equal, or the number is a count, constant on each kernel."""
        constant = len(set(self.base)) == len(set(self.changed)) == 1
        return constant and (self.quantity.countable or self.base[0] == self.changed[0])

    @property
    def new(self) -> bool:
        """True if only the changed kernel has the number: its call site is new, or took no lock before."""
        return not any(self.base) and any(self.changed)


def compare(mmu_mode: str, cell: str, base: Runs, changed: Runs) -> list[Difference]:
    """Compare all numbers of a cell, without verdicts (`assign_verdicts`); a number that a run lacks counts as 0.

    Returns: an empty list if a kernel ran only once, because its scatter is then unknown.

    >>> clear = TrialQuantity("clear write (rounds)", "acquisitions", COUNT)
    >>> [acquisitions] = assign_verdicts(compare("x86_64/npt", "parked", [{clear: 2.0}] * 2, [{clear: 32.0}] * 2))
    >>> acquisitions.verdict, round(acquisitions.ratio)
    ('changed', 16)
    """
    if min(len(base), len(changed)) < 2:
        return []
    names = dict.fromkeys(name for runs in (base, changed) for run in runs for name in run)
    sides = [[[run.get(name, 0.0) for run in runs] for name in names] for runs in (base, changed)]
    return [difference(mmu_mode, cell, name, *values) for name, *values in zip(names, *sides, strict=True)]


def difference(mmu_mode: str, cell: str, name: TrialQuantity, *values: Sequence[float]) -> Difference:
    """Compare one number, without a verdict.

    - `values`: of the runs of the kernel without the series, and of the runs of the one with it.
    """
    base, changed = (np.sort(np.asarray(runs, dtype=float)) for runs in values)
    shift = 0.0 if min(base.min(), changed.min()) > 0 else 1.0
    logs = [np.log(values + shift) for values in (base, changed)]
    middle = float(logs[1].mean() - logs[0].mean())
    half, p = welch(*logs)
    ratio, low, high = (math.exp(value) for value in (middle, middle - half, middle + half))
    return Difference(mmu_mode, cell, name, tuple(base.tolist()), tuple(changed.tolist()), ratio, low, high, p)


def welch(base: NDArray[np.float64], changed: NDArray[np.float64]) -> tuple[float, float]:
    """Half-width of the 95 % interval of the difference of two means, and the p-value.

    - `base`, `changed`, shapes (runs,): values of each kernel; at least two.

    Source: Welch, Biometrika 34 (1947), with the degrees of freedom of Satterthwaite (1946).
    """
    parts = [float(values.var(ddof=1)) / len(values) for values in (base, changed)]
    error = math.sqrt(sum(parts))
    if not error:
        return 0.0, float(base[0] == changed[0])
    dof = error**4 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (base, changed), strict=True))
    p = 2 * float(special.stdtr(dof, -abs(float(changed.mean() - base.mean())) / error))
    return float(special.stdtrit(dof, 0.975)) * error, p


def assign_verdicts(differences: Sequence[Difference]) -> list[Difference]:
    """Assign a verdict to each number, with Holm's correction for the number of comparisons."""
    tested = sorted((number for number in differences if not number.decided), key=lambda number: number.p)
    rejected = set[int]()
    for rank, number in enumerate(tested):
        if number.p > ALPHA / (len(tested) - rank):
            break
        rejected.add(id(number))
    return [_with_verdict(number, id(number) in rejected) for number in differences]


def _with_verdict(number: Difference, rejected: bool) -> Difference:
    """Assign a verdict to one number; `rejected`: the test rejects equality."""
    large_enough = number.quantity.unit == COUNT or abs(number.ratio - 1) >= MIN_CHANGE
    if number.decided:
        return replace(number, verdict=EQUAL if number.base[0] == number.changed[0] else CHANGED)
    if rejected and large_enough:
        return replace(number, verdict=CHANGED)
    width = math.log(number.high / number.ratio) / math.log1p(DETECTABLE_CHANGE)
    if width <= 1:
        return replace(number, verdict=ALIKE, runs=len(number.base))
    return replace(number, verdict=TOO_FEW, runs=math.ceil(len(number.base) * width**2))
