# SPDX-License-Identifier: BSD-3-Clause
"""Distribution of six settings that the April 2024 mail does not state, and the predictions that follow from it.

The mail gives 16 vCPUs, 64 GB and nine changes by the 64-page drop, and calls the workload aggressive and write-heavy.
Every combination of the values that sources allow is simulated in all three configurations, and the nine numbers weight
the combinations (Bayes's rule on a grid). A number counts as predicted if the other eight constrain it.
``checks/shipped.py`` writes the simulated grid to ``data/fits/april-2024-settings.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib._lib import parallel
from simlib.analysis.prediction_options import LEVEL
from simlib.analysis.simulate import run_scenario
from simlib.measurements import data_dir
from simlib.measurements.fits import CostEstimate, complete
from simlib.model.pagetable import WORD_PAGES
from simlib.model.strategy import every
from simlib.simulator.workloads.scaled import scaled
from studies.migrations.drops import published_change
from studies.x86.hosts import FACTOR, PUBLISHED_CHANGE, configurations

SETTINGS: dict[str, tuple[tuple[Any, ...], str]] = {
    "access_interval": (
        ("50ns", "80ns", "130ns", "220ns", "400ns"),
        "\"write-heavy\": the selftest's guest takes 224 ns per page (all split), 12 ns if it only reads",
    ),
    "write_percent": ((20, 40, 70, 100), "\"write-heavy\"; option -w of the selftest accepts any percentage"),
    "link": (("100Gbit/s", "200Gbit/s"), "Ethernet between the hosts of a cloud in 2024"),
    "pass_limit": ((1, 2, 3), "pre-copy, then post-copy; the mail gives the memory that is dirty at the switch"),
    "clear_chunk": (("1G", "8G"), "the same author tested CLEARs of 1 and 8 GiB (cf3ff0ee24d6, 9 May 2024)"),
    "clear_threads": ((0, 1), "the sending thread clears, as in QEMU, or a separate thread does"),
}  # fmt: skip
"""Settings that the mail does not state: their values, equally likely a priori, and the reason for these values."""

SPREAD = (0.03, 0.10)
"""Standard deviation of the logarithm of a change: a constant, and a share of the logarithm for the model's error."""

OWN_SPREADS = 2.0
"""A number counts as predicted if its interval's width is at most this multiple of the width for `SPREAD` alone."""

NUMBERS = tuple((number, metric) for number in (1, 2, 3) for metric in PUBLISHED_CHANGE)
"""The nine numbers, as configuration and metric."""


def published() -> NDArray[np.float64]:
    """Return the nine published changes as logarithms of the ratio of after to before, in the order of `NUMBERS`."""
    return np.array([np.log1p(published_change(*number) / 100) for number in NUMBERS])


def changes(settings: Mapping[str, Any], estimate: CostEstimate, check: parallel.Check) -> list[float]:
    """Simulate the logarithms of the ratios of after to before for all `NUMBERS`, with a part of the memory."""
    logs = []
    for number in (1, 2, 3):
        variant = configurations().variants[f"config-{number}"]
        case = estimate.apply(variant.changed({"workload": dict(settings)}))
        cases = [case.changed({"policy": {"clear_drop_when": every(pages)}}) for pages in (0, WORD_PAGES)]
        runs = [run_scenario(scaled(complete(run), 4 * FACTOR), progress=check).metrics for run in cases]
        logs += [float(np.log(runs[1][metric] / runs[0][metric])) for metric in PUBLISHED_CHANGE]
    return logs


def grid() -> list[dict[str, Any]]:
    """Return every combination of the settings."""
    combinations = product(*(choice for choice, _ in SETTINGS.values()))
    return [dict(zip(SETTINGS, values, strict=True)) for values in combinations]


def column(number: tuple[int, str]) -> str:
    """Return the column name of one of `NUMBERS`."""
    return f"{number[1]}[{number[0]}]"


def load_grid() -> pd.DataFrame:
    """Load the grid: columns for `SETTINGS`, and for `NUMBERS` the logarithms of the ratios of after to before."""
    table = pd.read_csv(data_dir() / "fits" / "april-2024-settings.csv")
    for name, (values, _) in SETTINGS.items():
        table[name] = table[name].astype(type(values[0]))
    return table


def posterior(table: pd.DataFrame, without: int | None = None) -> pd.DataFrame:
    """Weight the combinations by the nine numbers, or by eight; all combinations are equally likely a priori.

    Returns: The table with a column ``weight``, which sums to 1.

    - `table`: of `load_grid`.
    - `without`: index in `NUMBERS` of a number to leave out.
    """
    observed = published()
    deviation = SPREAD[0] + SPREAD[1] * np.abs(observed)
    residuals = (table[[column(n) for n in NUMBERS]].to_numpy(dtype=float) - observed) / deviation
    included = [index for index in range(len(NUMBERS)) if index != without]
    logs = -0.5 * (residuals[:, included] ** 2).sum(axis=1)
    weights = np.exp(logs - logs.max())
    return table.assign(weight=weights / weights.sum())


def predictive(table: pd.DataFrame) -> pd.DataFrame:
    """Predict each number from the other eight.

    Returns: ``configuration``, ``metric``, ``published`` (percent, like all changes); ``before_low``, ``before_high``:
    the interval over all allowed settings; ``predicted``, ``low``, ``high``: weighted by the other eight;
    ``effective``: effective number of combinations; ``role``: ``missed`` if the interval does not contain the number,
    ``predicted`` if it does and is at most `OWN_SPREADS` times as wide as with `SPREAD` alone, else ``not determined``.
    """
    rows = []
    observed = published()
    for index, (number, metric) in enumerate(NUMBERS):
        weighted = posterior(table, index)
        values, weights = weighted[column((number, metric))].to_numpy(dtype=float), weighted["weight"].to_numpy()
        spread = SPREAD[0] + SPREAD[1] * abs(observed[index])
        low, middle, high = _quantiles(values, weights, spread)
        before = _quantiles(values, np.full(len(values), 1 / len(values)), spread)
        inside = low <= observed[index] <= high
        narrow = high - low <= OWN_SPREADS * 2 * spread * float(stats.norm.ppf((1 + LEVEL) / 2))
        role = "missed" if not inside else "predicted" if narrow else "not determined"
        percent = [100 * float(np.expm1(v)) for v in (observed[index], before[0], before[2], middle, low, high)]
        rows.append((number, metric, *percent, float(1 / (weights**2).sum()), role))
    names = ["published", "before_low", "before_high", "predicted", "low", "high", "effective", "role"]
    return pd.DataFrame(rows, columns=["configuration", "metric", *names])


def _quantiles(values: NDArray[np.float64], weights: NDArray[np.float64], spread: float) -> tuple[float, float, float]:
    """Compute interval and median of weighted values with a normal spread, approximated by 41 equally likely shifts."""
    shifts = stats.norm.ppf((np.arange(41) + 0.5) / 41) * spread
    all_values = (values[:, None] + shifts).ravel()
    order = np.argsort(all_values)
    total = np.cumsum(np.repeat(weights / 41, 41)[order])
    indices = np.searchsorted(total, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    low, median, high = all_values[order][np.minimum(indices, len(order) - 1)]
    return float(low), float(median), float(high)


def settings_table(table: pd.DataFrame) -> pd.DataFrame:
    """Compute the posterior probability of each value of each setting, given the nine numbers.

    Returns: ``setting``, ``value``, ``probability``, ``source``.
    """
    weighted = posterior(table)
    rows = [
        (name, str(value), float(weighted["weight"][weighted[name] == value].sum()), source)
        for name, (values, source) in SETTINGS.items()
        for value in values
    ]
    return pd.DataFrame(rows, columns=["setting", "value", "probability", "source"])
