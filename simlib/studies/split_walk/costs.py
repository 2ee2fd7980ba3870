# SPDX-License-Identifier: BSD-3-Clause
"""The eager-split walk that skips levels (seed 004): costs from relative changes, and what they say elsewhere.

Relative changes determine ratios of costs only: `walk_entry` is the unit, and the scale is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from simlib.measurements import load
from simlib.prediction import LEVEL
from simlib.studies.study import CHANGE, HELD_OUT, numbers
from simlib.theory.split_walk import COSTS, PROTECT_VISIT, Counts, EagerSplit

TABLES = {"AmpereOne": ("arm64-split-walk-skip-levels", 64 * 2**30),
          "ThunderX2": ("arm64-split-walk-thunderx2", 16 * 2**30)}  # fmt: skip
"""Published tables by machine, with the memory of the guest, bytes."""

MODES = tuple((bits, size * 2**10) for bits in (48, 40) for size in (4, 16, 64))
"""Guest modes over which the published numbers are averages: bits of its physical addresses, size of its pages."""

BACKINGS = {"4k-already-split": "4k", "thp": "thp", "hugetlb-1gb": "hugetlb_1gb"}
"""The published names of what backs the memory, and the model's."""

CASES = tuple((scenario, backing) for scenario in ("enable", "clear") for backing in BACKINGS)
"""The six published changes."""

NAMES = (*COSTS, PROTECT_VISIT)
"""What a reading may give a price; the first is the unit."""

_LOWEST, _HIGHEST = 1e-4, 1e6


@dataclass(frozen=True)
class Reading:
    """One way to explain the changes.

    Attributes
    ----------
    name, says : str
        A short name, and a sentence.
    decides : str
        The measurement that would tell it from the first reading.
    ratios : tuple of str
        Costs that are free, as multiples of `walk_entry`; the others are zero.
    chunk : int or None
        Bytes that KVM splits at a time; None: the largest block.
    spreads : bool
        Whether the published standard deviations of memory that is split already are observations too.
    """

    name: str
    says: str
    decides: str = ""
    ratios: tuple[str, ...] = ("protect_entry", "table_entry", "split_block", "clear_word")
    chunk: int | None = None
    spreads: bool = False


_LEAVES = ("protect_entry", PROTECT_VISIT, "table_entry", "split_block", "clear_word")

READINGS = (
    Reading("four costs", "four costs beside a visit; the reading that is used"),
    Reading("2 MiB chunks", "KVM was told to split 2 MiB at a time, so that 1 GiB goes in two steps",
            "the chunk size that the kernel or the test was given", chunk=2**21),
    Reading("free replacement", "putting a table in a block's place, with its invalidation, takes no time",
            "the time of one split, of 2 MiB and of 1 GiB, with tracepoints around the invalidation",
            ("protect_entry", "table_entry", "clear_word")),
    Reading("every leaf", "the write-protecting walk is dearer for every leaf, not for those that it changes",
            "enabling by guest mode: with pages of 64K only one in 16 entries is valid",
            (PROTECT_VISIT, "table_entry", "split_block", "clear_word")),
    Reading("five costs", "it is dearer for every leaf, and more so for those that it changes",
            "enabling by guest mode", _LEAVES),
    Reading("five costs, spreads", "the same, with the two spreads over guest modes as observations",
            "enabling by guest mode", _LEAVES, spreads=True),
)  # fmt: skip
"""What may explain the changes; the first is used."""


def published(machine: str) -> pd.DataFrame:
    """The six published changes of a machine, in the order of `CASES`.

    Examples
    --------
    >>> published("AmpereOne").loc[("enable", "thp"), "runtime_change_percent"]
    np.float64(-11.94)
    """
    return load(TABLES[machine][0]).frame.set_index(["scenario", "backing"]).loc[list(CASES)]


def count_row(counts: Counts) -> list[int]:
    """Counts in the order of `NAMES`."""
    return [counts[name] for name in NAMES]


def count_array(machine: str, walk: str, chunk: int | None = None) -> NDArray[np.float64]:
    """Counts of the published experiment.

    Returns: ndarray, shape (6, 6, 6). By case, guest mode and cost (`CASES`, `MODES`, `NAMES`).
    """
    memory = TABLES[machine][1]
    rows = []
    for scenario, backing in CASES:
        slots = [EagerSplit(memory, BACKINGS[backing], 4096, size, bits, chunk) for bits, size in MODES]
        rows.append([count_row(s.enable(walk) if scenario == "enable" else s.clear(walk)) for s in slots])
    return np.array(rows, dtype=float)


def change(before: NDArray[np.float64], after: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Change of the time, percent, from counts before and after; the last axis is that of the costs."""
    return np.asarray(100 * (after @ costs) / (before @ costs) - 100)


@dataclass(frozen=True)
class WalkFit:
    """Costs of one machine in one reading.

    Attributes
    ----------
    costs : ndarray, shape (6,)
        By `NAMES`; the first, `walk_entry`, is 1.
    draws : ndarray, shape (n, 6)
        The same for observations drawn from their published standard deviations.
    observations : DataFrame
        `scenario`, `backing`, `published_percent`, `stdev_percent`, `fitted_percent`, `spread_percent` (standard
        deviation over the guest modes in the model, to which nothing was fitted), `error_points`, `within`.
    chi_squared : float
        Sum of squared errors over squared published deviations.
    """

    machine: str
    reading: Reading
    costs: NDArray[np.float64]
    draws: NDArray[np.float64] = field(repr=False)
    observations: pd.DataFrame = field(repr=False)
    chi_squared: float

    @property
    def parameters(self) -> pd.DataFrame:
        """Ratios with intervals: `name`, `ratio`, `low`, `high`, `determined` (their ends within a factor of 4)."""
        rows = []
        for name in self.reading.ratios:
            index = NAMES.index(name)
            low, high = interval(self.draws[:, index])
            inside = 2 * _LOWEST < self.costs[index] < _HIGHEST / 2
            rows.append((name, self.costs[index], low, high, bool(inside and high < 4 * low)))
        return pd.DataFrame(rows, columns=["name", "ratio", "low", "high", "determined"])

    def predict(self, before: Counts, after: Counts) -> tuple[float, float, float]:
        """Change from one count to another, percent, with the interval of the draws."""
        old, new = (np.array(count_row(counts), dtype=float) for counts in (before, after))
        if (old == new).all():
            return 0.0, 0.0, 0.0
        low, high = interval(change(old, new, self.draws.T))
        return float(change(old, new, self.costs)), low, high


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The central interval of `LEVEL`."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class _Problem:
    """Least squares in the published standard deviations."""

    def __init__(self, machine: str, how: Reading) -> None:
        table = published(machine)
        self.how = how
        self.free = [NAMES.index(name) for name in how.ratios]
        self.before, self.after = (count_array(machine, walk, how.chunk) for walk in ("all", "skip_levels"))
        self.seen = table["runtime_change_percent"].to_numpy(dtype=float)
        self.deviation = table["stdev_percent"].to_numpy(dtype=float)

    def costs(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros(len(NAMES))
        out[0] = 1.0
        out[self.free] = np.exp(logs)
        return out

    def by_mode(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        return change(self.before, self.after, costs)

    def solve(
        self, seen: NDArray[np.float64], kept: Sequence[int], starts: Sequence[NDArray[np.float64]]
    ) -> tuple[NDArray[np.float64], float]:
        """The best logarithms of the ratios from several starts, and the sum of squares."""

        def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
            found = self.by_mode(self.costs(logs))
            errors = ((found.mean(axis=1) - seen) / self.deviation)[list(kept)]
            return np.concatenate([errors, self.spread_errors(found)]) if self.how.spreads else np.asarray(errors)

        bounds = (np.log(_LOWEST), np.log(_HIGHEST))
        best = min((optimize.least_squares(residuals, start, bounds=bounds) for start in starts), key=lambda r: r.cost)
        return best.x, 2 * float(best.cost)

    def spread_errors(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Errors of the two spreads of memory that is split already, in the standard error of a deviation of six.

        What the deviations of blocks have that the model does not explain is noise, which these have too.
        """
        model, seen = found.std(axis=1, ddof=1), self.deviation
        errors = []
        for first in (0, 3):  # enabling, CLEAR
            blocks = slice(first + 1, first + 3)
            noise = max(0.0, float(np.mean(seen[blocks] ** 2 - model[blocks] ** 2)))
            errors.append((np.hypot(model[first], np.sqrt(noise)) / seen[first] - 1) * np.sqrt(2 * (len(MODES) - 1)))
        return np.array(errors)

    def starts(self) -> list[NDArray[np.float64]]:
        scale = {"protect_entry": 1.0, PROTECT_VISIT: 0.3, "table_entry": 5.0, "split_block": 300.0, "clear_word": 30.0}
        middle = np.log([scale[NAMES[index]] for index in self.free])
        return [middle, *(middle + step for step in (np.eye(len(middle)) * 2.0)), middle - 2.0]


def fit(machine: str = "AmpereOne", how: Reading = READINGS[0], *, draws: int = 200, seed: int = 1) -> WalkFit:
    """Ratios of costs by least squares in the published standard deviations.

    Parameters
    ----------
    machine : str
        One of `TABLES`.
    draws : int
        Of the observations, each from a normal distribution with the published standard deviation, for the intervals.

    Examples
    --------
    >>> fit(draws=2).observations["within"].all()
    np.True_
    """
    problem = _Problem(machine, how)
    random = np.random.default_rng(seed)
    every = range(len(CASES))
    best, chi_squared = problem.solve(problem.seen, every, problem.starts())
    drawn = random.normal(problem.seen, problem.deviation, (draws, len(CASES)))
    starts = [best, problem.starts()[0]]
    samples = np.array([problem.costs(problem.solve(seen, every, starts)[0]) for seen in drawn])
    costs = problem.costs(best)
    found = problem.by_mode(costs)
    table = pd.DataFrame(list(CASES), columns=["scenario", "backing"])
    table["published_percent"], table["stdev_percent"] = problem.seen, problem.deviation
    table["fitted_percent"], table["spread_percent"] = found.mean(axis=1), found.std(axis=1, ddof=1)
    table["error_points"] = table["fitted_percent"] - table["published_percent"]
    table["within"] = table["error_points"].abs() <= table["stdev_percent"].clip(lower=2.0)
    return WalkFit(machine, how, costs, samples, table, chi_squared)


def _predicted(
    problem: _Problem, kept: Sequence[int], out: int, seen: NDArray[np.float64], starts: Sequence[NDArray[np.float64]]
) -> float:
    """The change that was left out, by costs from those that were kept."""
    logs, _ = problem.solve(seen, kept, starts)
    return float(problem.by_mode(problem.costs(logs)).mean(axis=1)[out])


def left_out(
    machine: str = "AmpereOne", how: Reading = READINGS[0], *, draws: int = 100, seed: int = 1
) -> pd.DataFrame:
    """Each of the six changes predicted from the other five. A wide interval: the other five do not determine it.

    Returns: `simlib.studies.study.COLUMNS`, and ``machine``, ``backing``, ``deviation`` (published, over the guest
    modes, points), ``meets`` (the published interval of one standard deviation meets that of the prediction).
    """
    problem = _Problem(machine, how)
    random = np.random.default_rng(seed)
    drawn = random.normal(problem.seen, problem.deviation, (draws, len(CASES)))
    rows = []
    for out, (scenario, backing) in enumerate(CASES):
        kept = [index for index in range(len(CASES)) if index != out]
        predicted = partial(_predicted, problem, kept, out)
        best, _ = problem.solve(problem.seen, kept, problem.starts())
        low, high = interval(np.array([predicted(seen, [best, problem.starts()[0]]) for seen in drawn]))
        seen, deviation = problem.seen[out], problem.deviation[out]
        rows.append(
            {"variant": f"{machine}, {backing}", "metric": scenario, "published": seen, "unit": CHANGE,
             "role": HELD_OUT, "predicted": predicted(problem.seen, [best]), "low": low, "high": high,
             "machine": machine, "backing": backing, "deviation": deviation,
             "meets": bool(low <= seen + deviation and high >= seen - deviation)}
        )  # fmt: skip
    return numbers(pd.DataFrame(rows), TABLES[machine][0])


def readings_table(draws: int = 2) -> pd.DataFrame:
    """Every reading of every machine: how well it fits, and what it says of the spread over guest modes.

    Returns: ``machine``, ``reading``, ``ratios`` (how many are free), ``observations``, ``chi_squared``, ``missed``
    (out of deviation and 2 points), ``spread_enable_4k``, ``spread_clear_4k`` (model) and ``published_enable_4k``,
    ``published_clear_4k`` (points).
    """
    rows = []
    for machine in TABLES:
        for how in READINGS:
            found = fit(machine, how, draws=draws)
            table = found.observations.set_index(["scenario", "backing"])
            split = table.loc[[("enable", "4k-already-split"), ("clear", "4k-already-split")]]
            observations = len(CASES) + 2 * how.spreads
            missed = int((~table["within"]).sum())
            rows.append((machine, how.name, len(how.ratios), observations, found.chi_squared, missed,
                         *split["spread_percent"].round(3), *split["stdev_percent"]))  # fmt: skip
    columns = ["machine", "reading", "ratios", "observations", "chi_squared", "missed", "spread_enable_4k",
               "spread_clear_4k", "published_enable_4k", "published_clear_4k"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def share_table(fits: Sequence[WalkFit]) -> pd.DataFrame:
    """What the time of each ioctl consists of, mean over guest modes, as `figures.shares` draws it."""
    rows = []
    for found in fits:
        before, after = (count_array(found.machine, walk, found.reading.chunk) for walk in ("all", "skip_levels"))
        times = before * found.costs
        above = after[:, :, 0] * found.costs[0]
        total = times.sum(axis=2)
        for index, (scenario, backing) in enumerate(CASES):
            parts = {"walk_entry, last level": times[index, :, 0] - above[index], "walk_entry, other": above[index]}
            parts |= {name: times[index, :, NAMES.index(name)] for name in COSTS[1:]}
            parts["protect_entry"] = parts["protect_entry"] + times[index, :, NAMES.index(PROTECT_VISIT)]
            for what, part in parts.items():
                share = float((100 * part / total[index]).mean())
                rows.append((found.machine, f"{scenario}, {backing}", what, share))
    return pd.DataFrame(rows, columns=["panel", "case", "what", "share_percent"])
