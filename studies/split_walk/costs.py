# SPDX-License-Identifier: BSD-3-Clause
"""Ratios of costs of arm64's eager-split walk, fitted to the relative changes of the June 2026 mail.

Relative changes determine only ratios of costs; `walk_entry` is the unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from simlib.analysis.prediction_options import LEVEL
from simlib.measurements import load
from studies.split_walk.theory import COSTS, PROTECT_VISIT, Counts, SplitCounts
from studies.study import CHANGE, HELD_OUT, comparison_rows

TABLES = {"AmpereOne": ("arm64-split-walk-skip-levels", 64 * 2**30),
          "ThunderX2": ("arm64-split-walk-thunderx2", 16 * 2**30)}  # fmt: skip
"""Published tables by machine, with the memory of the guest, bytes."""

MODES = tuple((bits, size * 2**10) for bits in (48, 40) for size in (4, 16, 64))
"""Guest modes over which the published numbers are averages: bits of physical address, page size in bytes."""

BACKINGS = {"4k-already-split": "4k", "thp": "thp", "hugetlb-1gb": "hugetlb_1gb"}
"""Backings of the memory: published name and `Guest.backing`."""

CASES = tuple((scenario, backing) for scenario in ("enable", "clear") for backing in BACKINGS)
"""Cases of the six published changes: ioctl and backing."""

NAMES = (*COSTS, PROTECT_VISIT)
"""Names of the costs that a hypothesis may use; the first is the unit."""

_LOWEST, _HIGHEST = 1e-4, 1e6
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WalkHypothesis:
    """A hypothesis that may explain the changes.

    - `name`, `description`: for tables and text.
    - `decisive`: measurement that would distinguish it from the first hypothesis.
    - `ratios`: free costs, as multiples of `walk_entry`; the others are zero.
    - `chunk`: bytes that KVM splits at a time; None: the largest block.
    - `spreads`: True if the published standard deviations of already split memory are observations too.
    """

    name: str
    description: str
    decisive: str = ""
    ratios: tuple[str, ...] = ("protect_entry", "table_entry", "split_block", "clear_word")
    chunk: int | None = None
    spreads: bool = False


_LEAVES = ("protect_entry", PROTECT_VISIT, "table_entry", "split_block", "clear_word")

HYPOTHESES = (
    WalkHypothesis("four costs", "four costs in addition to a visit; the hypothesis used for predictions"),
    WalkHypothesis("2 MiB chunks", "KVM splits 2 MiB at a time, so 1 GiB is split in two steps",
            "the chunk size set by the kernel or the test", chunk=2**21),
    WalkHypothesis("free replacement", "replacing a block by a table, with its invalidation, takes no time",
            "the times of one 2 MiB split and of one 1 GiB split, with tracepoints around the invalidation",
            ("protect_entry", "table_entry", "clear_word")),
    WalkHypothesis("every leaf", "write-protecting costs more for every visited leaf, not only for leaves that change",
            "times of enabling by guest mode: with guest pages of 64 KiB, one in 16 entries is valid",
            (PROTECT_VISIT, "table_entry", "split_block", "clear_word")),
    WalkHypothesis("five costs", "write-protecting costs more for every visited leaf, and most for leaves that change",
            "times of enabling by guest mode", _LEAVES),
    WalkHypothesis("five costs, spreads", "five costs, with the two spreads over guest modes as observations",
            "times of enabling by guest mode", _LEAVES, spreads=True),
)  # fmt: skip
"""Hypotheses that may explain the changes; predictions use the first."""


def published(machine: str) -> pd.DataFrame:
    """Published changes of a machine, in the order of `CASES`."""
    return load(TABLES[machine][0]).frame.set_index(["scenario", "backing"]).loc[list(CASES)]


def count_row(counts: Counts) -> Floats:
    """Counts in the order of `NAMES`."""
    return np.array([counts[name] for name in NAMES], dtype=float)


def count_array(machine: str, walk: str, chunk: int | None = None) -> Floats:
    """Counts of the published experiment, shape (`CASES`, `MODES`, `NAMES`)."""
    memory = TABLES[machine][1]
    return np.array(
        [[count_row(SplitCounts(memory, BACKINGS[backing], 4096, size, bits, chunk).counts_of(scenario, walk))
          for bits, size in MODES] for scenario, backing in CASES]
    )  # fmt: skip


def change(before: Floats, after: Floats, costs: Floats) -> Floats:
    """Change in the time, percent, from counts before and after; the last axis has the costs."""
    return np.asarray(100 * (after @ costs) / (before @ costs) - 100)


@dataclass(frozen=True)
class WalkFit:
    """Costs of a machine under a hypothesis.

    - `costs`, in the order of `NAMES`: the first, `walk_entry`, is 1.
    - `draws`, shape (n, 6): costs for observations drawn from their published standard deviations.
    - `observations`: `scenario`, `backing`, `published_percent`, `stdev_percent`, `fitted_percent`, `spread_percent`
      (the model's standard deviation over guest modes, to which nothing was fitted), `error_points`, `within`.
    - `chi_squared`: sum of squared errors over squared published deviations.
    """

    machine: str
    hypothesis: WalkHypothesis
    costs: Floats
    draws: Floats = field(repr=False)
    observations: pd.DataFrame = field(repr=False)
    chi_squared: float

    @property
    def parameters(self) -> pd.DataFrame:
        """Ratios with intervals: `name`, `ratio`, `low`, `high`, `determined` (ends within a factor of 4)."""
        rows = []
        for name in self.hypothesis.ratios:
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
    """Central interval at `LEVEL`."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class _Problem:
    """Least-squares problem with residuals in published standard deviations."""

    def __init__(self, machine: str, hypothesis: WalkHypothesis) -> None:
        table = published(machine)
        self.hypothesis = hypothesis
        self.free = [NAMES.index(name) for name in hypothesis.ratios]
        self.before, self.after = (count_array(machine, walk, hypothesis.chunk) for walk in ("all", "skip_levels"))
        self.observed = table["runtime_change_percent"].to_numpy(dtype=float)
        self.deviation = table["stdev_percent"].to_numpy(dtype=float)
        scale = {"protect_entry": 1.0, PROTECT_VISIT: 0.3, "table_entry": 5.0, "split_block": 300.0, "clear_word": 30.0}
        middle = np.log([scale[name] for name in hypothesis.ratios])
        self.starts = [middle, *(middle + step for step in (np.eye(len(middle)) * 2.0)), middle - 2.0]

    def draw_observations(self, draws: int, seed: int) -> Floats:
        """Draw observations `draws` times from normal distributions with the published standard deviations."""
        return np.random.default_rng(seed).normal(self.observed, self.deviation, (draws, len(CASES)))

    def costs(self, logs: Floats) -> Floats:
        """Return the costs in the order of `NAMES` from the logarithms of the free ratios."""
        costs: Floats = np.eye(len(NAMES))[0]
        costs[self.free] = np.exp(logs)
        return costs

    def by_mode(self, logs: Floats) -> Floats:
        """Return the changes by case and guest mode."""
        return change(self.before, self.after, self.costs(logs))

    def solve(self, observed: Floats, starts: Sequence[Floats], omitted: int = -1) -> optimize.OptimizeResult:
        """Find the best logarithms of the ratios, `x`, from several starts; the case `omitted` is not used."""
        included = np.arange(len(CASES)) != omitted

        def residuals(logs: Floats) -> Floats:
            model = self.by_mode(logs)
            errors = ((model.mean(axis=1) - observed) / self.deviation)[included]
            return np.concatenate([errors, self.spread_errors(model)]) if self.hypothesis.spreads else errors

        bounds = (np.log(_LOWEST), np.log(_HIGHEST))
        results = (optimize.least_squares(residuals, start, bounds=bounds) for start in starts)
        return min(results, key=lambda result: result.cost)

    def spread_errors(self, model: Floats) -> Floats:
        """Errors of the two spreads of already split memory, in standard errors of a standard deviation of six values.

        The part of the blocks' deviations that the model does not explain is noise, which these spreads have too.
        """
        # Rows: enabling, CLEAR; columns: already split memory, and two kinds of blocks.
        spread, deviation = model.std(axis=1, ddof=1).reshape(2, 3), self.deviation.reshape(2, 3)
        noise = np.maximum(0.0, np.mean(deviation[:, 1:] ** 2 - spread[:, 1:] ** 2, axis=1))
        errors: Floats = np.hypot(spread[:, 0], np.sqrt(noise)) / deviation[:, 0] - 1
        return errors * float(np.sqrt(2 * (len(MODES) - 1)))


def fit(
    machine: str = "AmpereOne", hypothesis: WalkHypothesis = HYPOTHESES[0], *, draws: int = 200, seed: int = 1
) -> WalkFit:
    """Fit ratios of costs by least squares in published standard deviations, with `draws` for intervals."""
    problem = _Problem(machine, hypothesis)
    best = problem.solve(problem.observed, problem.starts)
    starts, drawn = [best.x, problem.starts[0]], problem.draw_observations(draws, seed)
    samples = np.array([problem.costs(problem.solve(observed, starts).x) for observed in drawn])
    model = problem.by_mode(best.x)
    table = pd.DataFrame(list(CASES), columns=["scenario", "backing"])
    table["published_percent"], table["stdev_percent"] = problem.observed, problem.deviation
    table["fitted_percent"], table["spread_percent"] = model.mean(axis=1), model.std(axis=1, ddof=1)
    table["error_points"] = table["fitted_percent"] - table["published_percent"]
    table["within"] = table["error_points"].abs() <= table["stdev_percent"].clip(lower=2.0)
    return WalkFit(machine, hypothesis, problem.costs(best.x), samples, table, 2 * float(best.cost))


def leave_one_out(machine: str = "AmpereOne", *, draws: int = 100, seed: int = 1) -> pd.DataFrame:
    """Predict each of the six changes from the other five; a wide interval means that these do not constrain it.

    Returns: `studies.study.COLUMNS`, and ``machine``, ``backing``, ``deviation`` (published, over the guest
    modes, points), ``meets`` (the published interval of one standard deviation meets that of the prediction).
    """
    problem, rows = _Problem(machine, HYPOTHESES[0]), []
    drawn = problem.draw_observations(draws, seed)
    for case, (scenario, backing) in enumerate(CASES):

        def predict(observed: Floats, *starts: Floats, case: int = case) -> float:
            return float(problem.by_mode(problem.solve(observed, starts, case).x).mean(axis=1)[case])

        best = problem.solve(problem.observed, problem.starts, case).x
        low, high = interval(np.array([predict(observed, best, problem.starts[0]) for observed in drawn]))
        observed, deviation = problem.observed[case], problem.deviation[case]
        rows.append(
            {"variant": f"{machine}, {backing}", "metric": scenario, "published": observed, "unit": CHANGE,
             "role": HELD_OUT, "predicted": predict(problem.observed, best), "low": low, "high": high,
             "machine": machine, "backing": backing, "deviation": deviation,
             "meets": bool(low <= observed + deviation and high >= observed - deviation)}
        )  # fmt: skip
    return comparison_rows(pd.DataFrame(rows), TABLES[machine][0])


def hypotheses_table() -> pd.DataFrame:
    """Fit all hypotheses to all machines: goodness of fit, and spread over guest modes.

    Returns: ``machine``, ``hypothesis``, ``ratios`` (number of free ones), ``observations``, ``chi_squared``,
    ``missed`` (changes off by more than the standard deviation and 2 points), ``spread_enable_4k``, ``spread_clear_4k``
    (model) and ``published_enable_4k``, ``published_clear_4k`` (points).
    """
    rows = []
    for machine, hypothesis in itertools.product(TABLES, HYPOTHESES):
        result = fit(machine, hypothesis, draws=1)
        table, observations = result.observations, len(CASES) + 2 * hypothesis.spreads
        missed, presplit = int((~table["within"]).sum()), table[table["backing"] == "4k-already-split"]
        rows.append((machine, hypothesis.name, len(hypothesis.ratios), observations, result.chi_squared, missed,
                     *presplit["spread_percent"].round(3), *presplit["stdev_percent"]))  # fmt: skip
    columns = ["machine", "hypothesis", "ratios", "observations", "chi_squared", "missed", "spread_enable_4k",
               "spread_clear_4k", "published_enable_4k", "published_clear_4k"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def share_table(fits: Sequence[WalkFit]) -> pd.DataFrame:
    """Composition of each ioctl's time, mean over guest modes, as input of `figures.shares`."""
    tables = []
    for fit in fits:
        before, after = (fit.costs * count_array(fit.machine, walk, fit.hypothesis.chunk)
                         for walk in ("all", "skip_levels"))  # fmt: skip
        times = {name: before[:, :, index] for index, name in enumerate(NAMES)}
        visits, protect = times.pop("walk_entry"), times.pop("protect_entry") + times.pop(PROTECT_VISIT)
        above = after[:, :, 0]
        parts = {"walk_entry, last level": visits - above, "walk_entry, other": above, "protect_entry": protect} | times
        shares = {activity: (100 * part / before.sum(axis=2)).mean(axis=1) for activity, part in parts.items()}
        table = pd.DataFrame(shares).assign(panel=fit.machine, case=[", ".join(case) for case in CASES])
        tables.append(table.melt(["panel", "case"], var_name="what", value_name="share_percent"))
    return pd.concat(tables, ignore_index=True)
