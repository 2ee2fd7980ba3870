# SPDX-License-Identifier: BSD-3-Clause
"""What differs between two kernels, beyond what comes from seeds and from where code lies.

Every run of a cell has a seed and a layout that no other run of the same kernel has both of. The runs of one kernel are
not paired with those of the other, as another image is another run. A count that every run of a kernel has alike is
decided, and decided counts are compared by value. All others are compared by Welch's test of their logarithms. Holm's
procedure bounds the chance that any of a trial is called changed though nothing changed.
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
"""Chance that a trial in which nothing changed calls anything changed."""

RULER = 0.01
"""Smallest relative change of a time that is told."""

WISHED = 0.10
"""Change that a trial should be able to see: if it cannot, its runs are too few."""

CHANGED, ALIKE, TOO_FEW, EQUAL = "changed", "not distinguishable", "too few runs", "equal"

Runs = Sequence[Mapping[TrialQuantity, float]]
"""The numbers of each run of a kernel, in one cell."""


@dataclass(frozen=True)
class Difference:
    """One number in one cell, of both kernels.

    - `machine`, `cell`: ``target/mode``, and the cell in words.
    - `base`, `changed`: the values of each kernel's runs, sorted.
    - `ratio`, `low`, `high`: changed over base, with its 95 % interval; of counts with one added to each if one is 0.
    - `p`: of Welch's test; of numbers without noise 0 if they differ, else 1.
    - `verdict`: `CHANGED`, `ALIKE`, `TOO_FEW` or `EQUAL`.
    - `runs`: of each kernel that would do to see `WISHED`.
    """

    machine: str
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
        """Whether its value needs no test: all runs gave the same, or all of each kernel did, and it is a count."""
        alike = len(set(self.base)) == len(set(self.changed)) == 1
        return alike and (self.quantity.countable or self.base[0] == self.changed[0])

    @property
    def new(self) -> bool:
        """Whether only the changed kernel has it: a call site that was not there, or took no lock."""
        return not any(self.base) and any(self.changed)


def compare(machine: str, cell: str, base: Runs, changed: Runs) -> list[Difference]:
    """All numbers of a cell, without verdicts (`judge`); what a kernel's boot does not have is 0 there.

    Returns: None of them if a kernel ran only once: that does not tell what is decided.

    >>> clear = TrialQuantity("clear write (rounds)", "acquisitions", COUNT)
    >>> [one] = judge(compare("x86_64/npt", "parked", [{clear: 2.0}] * 2, [{clear: 32.0}] * 2))
    >>> one.verdict, round(one.ratio)
    ('changed', 16)
    """
    if min(len(base), len(changed)) < 2:
        return []
    names = dict.fromkeys(name for runs in (base, changed) for run in runs for name in run)
    return [
        difference(machine, cell, name, *([run.get(name, 0.0) for run in runs] for runs in (base, changed)))
        for name in names
    ]


def difference(machine: str, cell: str, name: TrialQuantity, *values: Sequence[float]) -> Difference:
    """One number, without a verdict.

    - `values`: of each run of the kernel without the series, and of the one with it.
    """
    base, changed = (np.sort(np.asarray(each, dtype=float)) for each in values)
    shift = 0.0 if min(base.min(), changed.min()) > 0 else 1.0
    logs = [np.log(values + shift) for values in (base, changed)]
    middle = float(logs[1].mean() - logs[0].mean())
    half, p = welch(*logs)
    ratio, low, high = (math.exp(value) for value in (middle, middle - half, middle + half))
    return Difference(machine, cell, name, tuple(base.tolist()), tuple(changed.tolist()), ratio, low, high, p)


def welch(base: NDArray[np.float64], changed: NDArray[np.float64]) -> tuple[float, float]:
    """Half of the 95 % interval of the difference of two means, and p.

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


def judge(found: Sequence[Difference]) -> list[Difference]:
    """Give each number its verdict, corrected for how many of them are compared."""
    tested = sorted((one for one in found if not one.decided), key=lambda one: one.p)
    rejected = set[int]()
    for rank, one in enumerate(tested):
        if one.p > ALPHA / (len(tested) - rank):
            break
        rejected.add(id(one))
    return [_judged(one, id(one) in rejected) for one in found]


def _judged(one: Difference, rejected: bool) -> Difference:
    enough = one.quantity.unit == COUNT or abs(one.ratio - 1) >= RULER
    if one.decided:
        return replace(one, verdict=EQUAL if one.base[0] == one.changed[0] else CHANGED)
    if rejected and enough:
        return replace(one, verdict=CHANGED)
    wider = math.log(one.high / one.ratio) / math.log1p(WISHED)
    if wider <= 1:
        return replace(one, verdict=ALIKE, runs=len(one.base))
    return replace(one, verdict=TOO_FEW, runs=math.ceil(len(one.base) * wider**2))
