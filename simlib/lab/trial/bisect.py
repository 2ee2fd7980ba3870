# SPDX-License-Identifier: BSD-3-Clause
"""Find the patch of a series that changes a number, by bisection, which needs few boots."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.parallel import Progress, subprogresses
from simlib.figures.results import Result
from simlib.lab.cache import lab_lock
from simlib.lab.process import silent
from simlib.lab.source import Source
from simlib.lab.trial.cells import designs
from simlib.lab.trial.differences import CHANGED, Difference
from simlib.lab.trial.mode_trial import ModeTrial, TrialOptions
from simlib.lab.trial.result import Trial
from simlib.lab.trial.rule import FailRule
from simlib.lab.trial.run import Request


@dataclass(frozen=True, repr=False)
class Bisection(Result):
    """The patch that changes a number.

    - `trial`: of the whole series.
    - `difference`: the number: the most significant change among the numbers with the given name.
    - `values`: its median by the number of patches that are applied.
    - `patches`: names of the series' patches, in order.
    - `patch_number`: number of that patch in the series, from 1.
    """

    trial: Trial
    difference: Difference
    values: dict[int, float]
    patches: tuple[str, ...]
    patch_number: int

    def frame(self) -> pd.DataFrame:
        """Kernels that were run: ``patches`` (applied), ``last`` (name of the last one), ``value``, ``unit``."""
        last = ("", *self.patches)
        rows = [(count, last[count], value) for count, value in sorted(self.values.items())]
        return pd.DataFrame(rows, columns=["patches", "last", "value"]).assign(unit=self.difference.quantity.unit)

    def summary(self) -> str:
        """Text for a mail, 72 columns wide."""
        lines = [f"{self.difference.quantity.title}, {self.difference.mmu_mode} {self.difference.cell}"]
        lines += [f"  {count:3} patches {value:14.6g}" for count, value in sorted(self.values.items())]
        lines.append(f"Patch {self.patch_number} changes it: {self.patches[self.patch_number - 1]}")
        return "\n".join(lines)


def bisect_series(
    series: str | Path, metric: str, options: TrialOptions | None = None, *, progress: Progress = silent
) -> Bisection:
    """Find the patch of a series that changes a number; only the cell that shows it is booted again.

    Raises as `simlib.lab.try_each_patch`, and `InputError` if the series does not change such a number. If several
    patches change the number, the result is one at which it becomes nearer to its value with the whole series.

    - `metric`: words of the number's name, such as ``clear time``.
    """
    request = Request.read(str(series), options or TrialOptions(), "--bisect")
    opening, trying, bisecting = subprogresses(progress, [0.1, 0.6, 0.3])
    with lab_lock(exclusive=True):
        source = request.open(opening)
        last = len(request.patches)
        trial = request.trial(source, (0, last), ("--bisect", metric), trying)
        difference = _clearest(trial, metric)
        values = {0: statistics.median(difference.base), last: statistics.median(difference.changed)}
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            values[middle] = _measure(request, source, middle, difference, bisecting)
            if _nearer_to_base(values[middle], values[0], values[last]):
                low = middle
            else:
                high = middle
    return Bisection(trial, difference, values, tuple(patch.name for patch in request.patches), high)


def _clearest(trial: Trial, metric: str) -> Difference:
    """Select the changed number with the given name whose change is largest relative to the scatter of its runs."""
    changed = [difference for difference in FailRule(metric).matching(trial) if difference.verdict == CHANGED]
    if not changed:
        raise InputError("--bisect", metric, "is not changed by the series", "choose a number that changes")
    return min(changed, key=lambda difference: (difference.p, -abs(math.log(difference.ratio))))


def _measure(request: Request, source: Source, count: int, difference: Difference, progress: Progress | None) -> float:
    """Measure a number with the first `count` patches: median over layouts and seeds.

    Raises `InputError` if the kernel with them does not run, or does not have the number.
    """
    kernel = replace(request.stage(source, 0, count)[1], name=f"the kernel with {count} of the patches")
    mode = difference.mmu_mode
    design = next(d for d in designs(mode, request.options.quick) if d.name == difference.cell.split()[0])
    trial = ModeTrial(mode, source, request.emulators[mode], request.options)
    built = trial.build_layouts(kernel, design.layouts, progress)
    _, runs = trial.boot([design], [[], built], progress)
    if trial.failure or difference.cell not in runs:
        rule = f"the kernel with the patches up to this one fails: {trial.failure}"
        hint = "fix that patch: the kernel must run after each patch of the series"
        raise InputError("SERIES", request.patches[count - 1].name, rule, hint)
    return statistics.median(run.get(difference.quantity, 0.0) for run in runs[difference.cell])


def _nearer_to_base(value: float, base: float, changed: float) -> bool:
    """True if a value is nearer to the one without the series, on a logarithmic scale.

    >>> _nearer_to_base(3.0, 2.0, 34.0), _nearer_to_base(30.0, 2.0, 34.0), _nearer_to_base(0.0, 0.0, 34.0)
    (True, False, True)
    """
    shift = 0.0 if min(value, base, changed) > 0 else 1.0
    at, first, last = (math.log(number + shift) for number in (value, base, changed))
    return abs(at - first) < abs(at - last)
