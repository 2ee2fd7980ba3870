# SPDX-License-Identifier: BSD-3-Clause
"""What a published workload does not state, as a distribution: six settings of the April 2024 mail, and what follows.

The mail gives 16 vCPUs, 64 GB and nine changes by the 64-page drop, and says of the workload that it writes
aggressively. Every combination of what sources allow is simulated in all three configurations, and the nine numbers
weigh the combinations (Bayes's rule on a grid). A number is a prediction as far as the other eight determine it. What
was simulated is kept in ``data/fits/april-2024-settings.csv``, written by ``checks/shipped.py``.
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
from simlib.analysis.predict import LEVEL
from simlib.analysis.simulate import run_scenario
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, complete
from simlib.model.pagetable import WORD_PAGES
from simlib.model.strategy import every
from simlib.simulator.workloads.scaled import scaled
from studies.migrations.drops import TABLE
from studies.x86.hosts import FACTOR, PUBLISHED_CHANGE, configurations

SETTINGS: dict[str, tuple[tuple[Any, ...], str]] = {
    "access_interval": (
        ("50ns", "80ns", "130ns", "220ns", "400ns"),
        "a write-heavy guest: the selftest's takes 224 ns a page with everything split, 12 ns if it only reads",
    ),
    "write_percent": ((20, 40, 70, 100), "\"write-heavy\"; the selftest's -f knows these and more"),
    "link": (
        ("100Gbit/s", "200Gbit/s"), "Ethernet between the hosts of a cloud in 2024",
    ),
    "pass_limit": ((1, 2, 3), "a pre-copy that a post-copy follows; the mail measures what the latter finds dirty"),
    "clear_chunk": (
        ("1G", "8G"), "CLEARs of 1 and 8 GiB are what the same author tested (cf3ff0ee24d6, 9 May 2024)",
    ),
    "clear_threads": ((0, 1), "the sender clears, as QEMU's does; or a thread beside it"),
}  # fmt: skip
"""What is not stated: the values that are tried, each as likely, and why these."""

GRID_FACTOR = 4 * FACTOR
"""Part of the memory that is simulated for each combination."""

SPREAD = (0.03, 0.10)
"""Standard deviation of the logarithm of a change: a part that all have, and a share of it that the model may miss."""

OWN_SPREADS = 2.0
"""A number counts as predicted if its interval is at most so many times as wide as `SPREAD` alone makes it."""

NUMBERS = tuple((number, metric) for number in (1, 2, 3) for metric in PUBLISHED_CHANGE)
"""The nine numbers, as configuration and metric."""


def published() -> NDArray[np.float64]:
    """The nine published changes as logarithms of after over before, in the order of `NUMBERS`."""
    table = load(TABLE).frame.set_index("configuration")
    return np.array([np.log1p(float(table[PUBLISHED_CHANGE[metric]][n]) / 100) for n, metric in NUMBERS])


def changes(settings: Mapping[str, Any], estimate: CostEstimate, check: parallel.Check) -> list[float]:
    """Logarithms of after over before for all `NUMBERS`, by simulation of a part of the memory."""
    found = []
    for number in (1, 2, 3):
        variant = configurations().variants[f"config-{number}"]
        case = estimate.apply(variant.changed({"workload": dict(settings)}))
        cases = [case.changed({"policy": {"clear_drop_when": every(pages)}}) for pages in (0, WORD_PAGES)]
        runs = [run_scenario(scaled(complete(each), GRID_FACTOR), progress=check).metrics for each in cases]
        found += [float(np.log(runs[1][metric] / runs[0][metric])) for metric in PUBLISHED_CHANGE]
    return found


def grid() -> list[dict[str, Any]]:
    """Every combination of the settings."""
    return [dict(zip(SETTINGS, values, strict=True)) for values in product(*(tried for tried, _ in SETTINGS.values()))]


def column(number: tuple[int, str]) -> str:
    """Name of one number's column."""
    return f"{number[1]}[{number[0]}]"


def load_grid() -> pd.DataFrame:
    """A column for each of `SETTINGS`, and for each of `NUMBERS` the logarithm of after over before."""
    table = pd.read_csv(data_dir() / "fits" / "april-2024-settings.csv")
    for name, (values, _) in SETTINGS.items():
        table[name] = table[name].astype(type(values[0]))
    return table


def posterior(table: pd.DataFrame, without: int | None = None) -> pd.DataFrame:
    """The combinations with their weights by the nine numbers, or by eight; all are as likely before.

    Returns: With a column ``weight``; they add up to 1.

    - `table`: of `load_grid`.
    - `without`: index in `NUMBERS` of the number that does not count.
    """
    wanted = published()
    deviation = SPREAD[0] + SPREAD[1] * np.abs(wanted)
    misses = (table[[column(n) for n in NUMBERS]].to_numpy(dtype=float) - wanted) / deviation
    counts = np.array([index != without for index in range(len(NUMBERS))])
    logs = -0.5 * (misses[:, counts] ** 2).sum(axis=1)
    weights = np.exp(logs - logs.max())
    return table.assign(weight=weights / weights.sum())


def predictive(table: pd.DataFrame) -> pd.DataFrame:
    """Each number beside what the settings allow, and what the other eight make of it.

    Returns: ``configuration``, ``metric``, ``published`` (percent, as all); ``before_low``, ``before_high``: the
    interval over all allowed settings; ``predicted``, ``low``, ``high``: weighted by the other eight; ``effective``
    (combinations that carry the weight); ``role``: ``predicted`` where the interval holds the number and the settings
    widen it no more than `OWN_SPREADS` says; ``not determined`` where they do; ``missed`` where it does not hold the
    number.
    """
    rows = []
    wanted = published()
    for index, (number, metric) in enumerate(NUMBERS):
        weighted = posterior(table, index)
        values, weights = weighted[column((number, metric))].to_numpy(dtype=float), weighted["weight"].to_numpy()
        spread = SPREAD[0] + SPREAD[1] * abs(wanted[index])
        low, middle, high = _quantiles(values, weights, spread)
        before = _quantiles(values, np.full(len(values), 1 / len(values)), spread)
        holds = low <= wanted[index] <= high
        narrow = high - low <= OWN_SPREADS * 2 * spread * float(stats.norm.ppf((1 + LEVEL) / 2))
        role = "missed" if not holds else "predicted" if narrow else "not determined"
        percent = [100 * float(np.expm1(v)) for v in (wanted[index], before[0], before[2], middle, low, high)]
        names = ("published", "before_low", "before_high", "predicted", "low", "high")
        rows.append({"configuration": number, "metric": metric, **dict(zip(names, percent, strict=True)),
                     "effective": float(1 / (weights**2).sum()), "role": role})  # fmt: skip
    return pd.DataFrame(rows)


def _quantiles(values: NDArray[np.float64], weights: NDArray[np.float64], spread: float) -> tuple[float, float, float]:
    """Interval and median of weighted values, each blurred by a normal spread; by 41 equally likely shifts."""
    shifts = stats.norm.ppf((np.arange(41) + 0.5) / 41) * spread
    all_values = (values[:, None] + shifts).ravel()
    all_weights = np.repeat(weights / 41, 41)
    order = np.argsort(all_values)
    total = np.cumsum(all_weights[order])
    at = np.searchsorted(total, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    found = all_values[order][np.minimum(at, len(order) - 1)]
    return float(found[0]), float(found[1]), float(found[2])


def settings_table(table: pd.DataFrame) -> pd.DataFrame:
    """How likely each value of each setting is after the nine numbers.

    Returns: ``setting``, ``value``, ``probability``, ``source``.
    """
    weighted = posterior(table)
    rows = [
        {"setting": name, "value": str(value), "probability": float(weighted["weight"][weighted[name] == value].sum()),
         "source": why}
        for name, (values, why) in SETTINGS.items() for value in values
    ]  # fmt: skip
    return pd.DataFrame(rows)
