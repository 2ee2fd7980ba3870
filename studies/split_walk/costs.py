# SPDX-License-Identifier: BSD-3-Clause
"""The eager-split walk that skips levels (the June 2026 mail): costs from relative changes.

Relative changes determine ratios of costs only: `walk_entry` is the unit, and the scale is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from simlib.analysis.predict import LEVEL
from simlib.measurements import load
from studies.split_walk.theory import COSTS, PROTECT_VISIT, Counts, SplitCounts
from studies.study import CHANGE, HELD_OUT, numbers

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

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WalkHypothesis:
    """One way to explain the changes: its name, what it says, and what would tell it from the first one.

    - `ratios`: costs that are free, as multiples of `walk_entry`; the others are zero.
    - `chunk`: bytes that KVM splits at a time; None: the largest block.
    - `spreads`: whether the published standard deviations of memory that is split already are observations too.
    """

    name: str
    says: str
    decides: str = ""
    ratios: tuple[str, ...] = ("protect_entry", "table_entry", "split_block", "clear_word")
    chunk: int | None = None
    spreads: bool = False


_LEAVES = ("protect_entry", PROTECT_VISIT, "table_entry", "split_block", "clear_word")

READINGS = (
    WalkHypothesis("four costs", "four costs beside a visit; the reading that is used"),
    WalkHypothesis("2 MiB chunks", "KVM was told to split 2 MiB at a time, so that 1 GiB goes in two steps",
            "the chunk size that the kernel or the test was given", chunk=2**21),
    WalkHypothesis("free replacement", "putting a table in a block's place, with its invalidation, takes no time",
            "the time of one split, of 2 MiB and of 1 GiB, with tracepoints around the invalidation",
            ("protect_entry", "table_entry", "clear_word")),
    WalkHypothesis("every leaf", "the write-protecting walk is dearer for every leaf, not for those that it changes",
            "enabling by guest mode: with pages of 64K only one in 16 entries is valid",
            (PROTECT_VISIT, "table_entry", "split_block", "clear_word")),
    WalkHypothesis("five costs", "it is dearer for every leaf, and more so for those that it changes",
            "enabling by guest mode", _LEAVES),
    WalkHypothesis("five costs, spreads", "the same, with the two spreads over guest modes as observations",
            "enabling by guest mode", _LEAVES, spreads=True),
)  # fmt: skip
"""What may explain the changes; the first is used."""


def published(machine: str) -> pd.DataFrame:
    """The six published changes of a machine, in the order of `CASES`."""
    return load(TABLES[machine][0]).frame.set_index(["scenario", "backing"]).loc[list(CASES)]


def count_row(counts: Counts) -> Floats:
    """Counts in the order of `NAMES`."""
    return np.array([counts[name] for name in NAMES], dtype=float)


def count_array(machine: str, walk: str, chunk: int | None = None) -> Floats:
    """Counts of the published experiment, by case, guest mode and cost (`CASES`, `MODES`, `NAMES`)."""
    memory = TABLES[machine][1]
    return np.array(
        [[count_row(SplitCounts(memory, BACKINGS[backing], 4096, size, bits, chunk).pays(scenario, walk))
          for bits, size in MODES] for scenario, backing in CASES]
    )  # fmt: skip


def change(before: Floats, after: Floats, costs: Floats) -> Floats:
    """Change of the time, percent, from counts before and after; the last axis is that of the costs."""
    return np.asarray(100 * (after @ costs) / (before @ costs) - 100)


@dataclass(frozen=True)
class WalkFit:
    """Costs of one machine in one reading.

    - `costs`, by `NAMES`: the first, `walk_entry`, is 1.
    - `draws`, shape (n, 6): the same for observations drawn from their published standard deviations.
    - `observations`: `scenario`, `backing`, `published_percent`, `stdev_percent`, `fitted_percent`, `spread_percent`
      (standard deviation over the guest modes in the model, to which nothing was fitted), `error_points`, `within`.
    - `chi_squared`: sum of squared errors over squared published deviations.
    """

    machine: str
    reading: WalkHypothesis
    costs: Floats
    draws: Floats = field(repr=False)
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
        old, new = count_row(before), count_row(after)
        if (old == new).all():
            return 0.0, 0.0, 0.0
        return float(change(old, new, self.costs)), *interval(change(old, new, self.draws.T))


def interval(values: Floats) -> tuple[float, float]:
    """The central interval of `LEVEL`."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class _Problem:
    """Least squares in the published standard deviations."""

    def __init__(self, machine: str, how: WalkHypothesis) -> None:
        table = published(machine)
        self.how = how
        self.free = [NAMES.index(name) for name in how.ratios]
        self.before, self.after = (count_array(machine, walk, how.chunk) for walk in ("all", "skip_levels"))
        self.seen = table["runtime_change_percent"].to_numpy(dtype=float)
        self.deviation = table["stdev_percent"].to_numpy(dtype=float)
        scale = {"protect_entry": 1.0, PROTECT_VISIT: 0.3, "table_entry": 5.0, "split_block": 300.0, "clear_word": 30.0}
        middle = np.log([scale[name] for name in how.ratios])
        self.starts = [middle, *(middle + step for step in (np.eye(len(middle)) * 2.0)), middle - 2.0]

    def drawn(self, draws: int, seed: int) -> Floats:
        """So many times the observations, from normal distributions with the published standard deviations."""
        return np.random.default_rng(seed).normal(self.seen, self.deviation, (draws, len(CASES)))

    def costs(self, logs: Floats) -> Floats:
        out = np.zeros(len(NAMES))
        out[0] = 1.0
        out[self.free] = np.exp(logs)
        return out

    def by_mode(self, logs: Floats) -> Floats:
        return change(self.before, self.after, self.costs(logs))

    def solve(self, seen: Floats, starts: Sequence[Floats], out: int = -1) -> optimize.OptimizeResult:
        """The best logarithms of the ratios from several starts, `x`; the case `out` is no observation."""
        kept = np.arange(len(CASES)) != out

        def residuals(logs: Floats) -> Floats:
            model = self.by_mode(logs)
            errors = ((model.mean(axis=1) - seen) / self.deviation)[kept]
            return np.concatenate([errors, self.spread_errors(model)]) if self.how.spreads else errors

        bounds = (np.log(_LOWEST), np.log(_HIGHEST))
        return min((optimize.least_squares(residuals, start, bounds=bounds) for start in starts), key=lambda r: r.cost)

    def spread_errors(self, model: Floats) -> Floats:
        """Errors of the two spreads of memory that is split already, in the standard error of a deviation of six.

        What the deviations of blocks have that the model does not explain is noise, which these have too.
        """
        spread, seen = model.std(axis=1, ddof=1), self.deviation
        errors = []
        for first in (0, 3):  # enabling, CLEAR
            blocks = slice(first + 1, first + 3)
            noise = max(0.0, float(np.mean(seen[blocks] ** 2 - spread[blocks] ** 2)))
            errors.append((np.hypot(spread[first], np.sqrt(noise)) / seen[first] - 1) * np.sqrt(2 * (len(MODES) - 1)))
        return np.array(errors)


def fit(machine: str = "AmpereOne", how: WalkHypothesis = READINGS[0], *, draws: int = 200, seed: int = 1) -> WalkFit:
    """Ratios of costs by least squares in the published standard deviations; `draws` are for the intervals."""
    problem = _Problem(machine, how)
    best = problem.solve(problem.seen, problem.starts)
    starts = [best.x, problem.starts[0]]
    samples = np.array([problem.costs(problem.solve(seen, starts).x) for seen in problem.drawn(draws, seed)])
    model = problem.by_mode(best.x)
    table = pd.DataFrame(list(CASES), columns=["scenario", "backing"])
    table["published_percent"], table["stdev_percent"] = problem.seen, problem.deviation
    table["fitted_percent"], table["spread_percent"] = model.mean(axis=1), model.std(axis=1, ddof=1)
    table["error_points"] = table["fitted_percent"] - table["published_percent"]
    table["within"] = table["error_points"].abs() <= table["stdev_percent"].clip(lower=2.0)
    return WalkFit(machine, how, problem.costs(best.x), samples, table, 2 * float(best.cost))


def left_out(machine: str = "AmpereOne", *, draws: int = 100, seed: int = 1) -> pd.DataFrame:
    """Each of the six changes predicted from the other five. A wide interval: the other five do not determine it.

    Returns: `studies.study.COLUMNS`, and ``machine``, ``backing``, ``deviation`` (published, over the guest
    modes, points), ``meets`` (the published interval of one standard deviation meets that of the prediction).
    """
    problem, rows = _Problem(machine, READINGS[0]), []
    drawn = problem.drawn(draws, seed)
    for out, (scenario, backing) in enumerate(CASES):

        def predicted(seen: Floats, *starts: Floats, out: int = out) -> float:
            return float(problem.by_mode(problem.solve(seen, starts, out).x).mean(axis=1)[out])

        best = problem.solve(problem.seen, problem.starts, out).x
        low, high = interval(np.array([predicted(seen, best, problem.starts[0]) for seen in drawn]))
        seen, deviation = problem.seen[out], problem.deviation[out]
        rows.append(
            {"variant": f"{machine}, {backing}", "metric": scenario, "published": seen, "unit": CHANGE,
             "role": HELD_OUT, "predicted": predicted(problem.seen, best), "low": low, "high": high,
             "machine": machine, "backing": backing, "deviation": deviation,
             "meets": bool(low <= seen + deviation and high >= seen - deviation)}
        )  # fmt: skip
    return numbers(pd.DataFrame(rows), TABLES[machine][0])


def readings_table() -> pd.DataFrame:
    """Every reading of every machine: how well it fits, and what it says of the spread over guest modes.

    Returns: ``machine``, ``reading``, ``ratios`` (how many are free), ``observations``, ``chi_squared``, ``missed``
    (out of deviation and 2 points), ``spread_enable_4k``, ``spread_clear_4k`` (model) and ``published_enable_4k``,
    ``published_clear_4k`` (points).
    """
    rows = []
    for machine, how in itertools.product(TABLES, READINGS):
        found = fit(machine, how, draws=1)
        table, observations = found.observations, len(CASES) + 2 * how.spreads
        missed, split = int((~table["within"]).sum()), table[table["backing"] == "4k-already-split"]
        rows.append((machine, how.name, len(how.ratios), observations, found.chi_squared, missed,
                     *split["spread_percent"].round(3), *split["stdev_percent"]))  # fmt: skip
    columns = ["machine", "reading", "ratios", "observations", "chi_squared", "missed", "spread_enable_4k",
               "spread_clear_4k", "published_enable_4k", "published_clear_4k"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def share_table(fits: Sequence[WalkFit]) -> pd.DataFrame:
    """What the time of each ioctl consists of, mean over guest modes, as `figures.shares` draws it."""
    tables = []
    for found in fits:
        before, after = (found.costs * count_array(found.machine, walk, found.reading.chunk)
                         for walk in ("all", "skip_levels"))  # fmt: skip
        times = {name: before[:, :, index] for index, name in enumerate(NAMES)}
        visits, protect = times.pop("walk_entry"), times.pop("protect_entry") + times.pop(PROTECT_VISIT)
        above = after[:, :, 0]
        parts = {"walk_entry, last level": visits - above, "walk_entry, other": above, "protect_entry": protect} | times
        shares = {what: (100 * part / before.sum(axis=2)).mean(axis=1) for what, part in parts.items()}
        table = pd.DataFrame(shares).assign(panel=found.machine, case=[", ".join(case) for case in CASES])
        tables.append(table.melt(["panel", "case"], var_name="what", value_name="share_percent"))
    return pd.concat(tables, ignore_index=True)
