# SPDX-License-Identifier: BSD-3-Clause
"""Which patch of a series changes a number: halved by the number itself, so that it costs few boots."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress, subprogresses
from simlib.figures.results import Result
from simlib.lab.cache import at_work
from simlib.lab.qemu import Qemu
from simlib.lab.source import Source
from simlib.lab.trial.cells import designs
from simlib.lab.trial.differences import Difference
from simlib.lab.trial.kernels import COUNTED
from simlib.lab.trial.machine import BootedKernels, How, boot, layouts_of
from simlib.lab.trial.request import Request
from simlib.lab.trial.result import Trial
from simlib.lab.trial.rule import FailRule


@dataclass(frozen=True, repr=False)
class Bisection(Result):
    """Which patch changes a number.

    - `trial`: of the whole series.
    - `number`: the one that was followed: of those that the words name and that are changed, the clearest.
    - `values`: by how many patches are applied, the median of it.
    - `patches`: of the series, in order.
    - `found`: number of the patch with which it changes most, from 1.
    """

    trial: Trial
    number: Difference
    values: dict[int, float]
    patches: tuple[str, ...]
    found: int

    def frame(self) -> pd.DataFrame:
        """What was tried: ``patches`` (applied), ``last`` (the last of them), ``value``, ``unit``."""
        rows = [
            (count, self.patches[count - 1] if count else "", value, self.number.quantity.unit)
            for count, value in sorted(self.values.items())
        ]
        return pd.DataFrame(rows, columns=["patches", "last", "value", "unit"])

    def summary(self) -> str:
        """Text for a mail: 72 columns."""
        one = self.number
        lines = [f"{one.quantity.of}: {one.quantity.what}, {one.machine} {one.cell}"]
        lines += [f"  {count:3} patches {value:14.6g}" for count, value in sorted(self.values.items())]
        lines.append(f"Patch {self.found} changes it: {self.patches[self.found - 1]}")
        return "\n".join(lines)


def bisect_series(
    series: str | Path,
    metric: str,
    *,
    source: str | Path | None = None,
    machines: Sequence[str] = (),
    quick: bool = False,
    kernel: str = COUNTED,
    jobs: int = 0,
    progress: Progress = lambda what, share: None,
) -> Bisection:
    """Find the patch of a series that changes a number, by halves: only the cell that shows it is booted again.

    Raises `InputError` if the series does not change such a number, and as `simlib.lab.try_series`. Where several
    patches change it, the one that is found changes it from nearer the value without the series to nearer the other.

    - `metric`: words that the number's name has, such as ``clear time``.
    - `series`, `source`, `machines`, `quick`, `kernel`, `jobs`, `progress`: as in `simlib.lab.try_series`.
    """
    asked = Request.read(str(series), source, machines, How(quick, kernel=kernel, jobs=jobs)).piecewise("--bisect")
    opening, whole, halving = subprogresses(progress, [0.1, 0.6, 0.3])
    with at_work(alone=True):
        tree = asked.open(opening)
        last = len(asked.patches)
        trial = asked.trial(tree, 0, last, ("--bisect", metric), whole)
        number = _clearest(trial, metric)
        values = {0: statistics.median(number.base), last: statistics.median(number.changed)}
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            values[middle] = _value(asked, tree, middle, number, halving)
            if _nearer(values[middle], values[0], values[last]):
                low = middle
            else:
                high = middle
    return Bisection(trial, number, values, tuple(patch.name for patch in asked.patches), high)


def _clearest(trial: Trial, metric: str) -> Difference:
    """Of the numbers that words name and that are changed, the one that is changed most for what its runs scatter."""
    rule = FailRule(metric)
    rule.named(trial)
    found = [one for one in trial.changed if rule.names(one)]
    if not found:
        raise InputError("--bisect", metric, "the series does not change such a number", "take one of the answer's")
    return min(found, key=lambda one: (one.p, -abs(math.log(one.ratio))))


def _value(asked: Request, source: Source, count: int, number: Difference, progress: Progress | None) -> float:
    """The number with so many patches applied: median over layouts and seeds.

    Raises `InputError` if the kernel with them does not run, or does not give it.
    """
    kernel = replace(asked.both(source, 0, count)[1], name=f"the kernel with {count} patches")
    qemu: Qemu = asked.machines[number.machine]
    own = [one for one in designs(number.machine, asked.how.quick) if one.name == number.cell.split()[0]]
    tried = BootedKernels()
    built = layouts_of(number.machine, source, kernel, own[0].layouts, progress)
    _, runs = boot(number.machine, own, [[], built], qemu, asked.how, progress, tried)
    if tried.failed or number.cell not in runs:
        cure = "mend that patch, or leave those before it out"
        raise InputError("SERIES", asked.patches[count - 1].name, f"with it the kernel fails: {tried.failed}", cure)
    return statistics.median(run.get(number.quantity, 0.0) for run in runs[number.cell])


def _nearer(value: float, base: float, changed: float) -> bool:
    """Whether a value is nearer to that without the series, in its logarithm.

    >>> _nearer(3.0, 2.0, 34.0), _nearer(30.0, 2.0, 34.0), _nearer(0.0, 0.0, 34.0)
    (True, False, True)
    """
    shift = 0.0 if min(value, base, changed) > 0 else 1.0
    at, first, last = (math.log(one + shift) for one in (value, base, changed))
    return abs(at - first) < abs(at - last)
