# SPDX-License-Identifier: BSD-3-Clause
"""The April 2024 mail: effect of the 64-page drop in three configurations of x86 and on LoongArch.

The costs come from fits that used one number of a migration: the change of CLEAR's CPU time in configuration 1. The
scenario file contains the settings of the guest, the link and userspace that the mail does not state; the nine numbers
were used to choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib.analysis.prediction_options import LEVEL
from simlib.analysis.simulate import run_scenario
from simlib.measurements import load
from simlib.measurements.fits import Fit, complete
from simlib.model.pagetable import WORD_PAGES
from simlib.model.scenario import Scenario
from simlib.model.strategy import every
from simlib.simulator.workloads.migration import unscaled
from simlib.simulator.workloads.scaled import scaled
from studies.study import CHANGE, FITTED, comparison_rows, shipped_fit
from studies.x86.hosts import FACTOR, PUBLISHED_CHANGE, configuration_metrics, configurations

TABLE = "x86-clear-lock-drop-configurations"
"""The published table of the April 2024 mail."""

BARS = {
    (1, "precopy_duration"): (-6, 4), (1, "dirty_left"): (-6, 4), (1, "clear_cpu_time"): (1, 11),
    (2, "precopy_duration"): (-6, 4), (2, "dirty_left"): (-4, 6), (2, "clear_cpu_time"): (80, 180),
    (3, "precopy_duration"): (20, 45), (3, "dirty_left"): (100, 240), (3, "clear_cpu_time"): (3000, 8000),
}  # fmt: skip
"""Range that counts as agreement with each change, percent."""


def change_by_drop(
    cases: Mapping[str, Scenario], draws: int, seed: int = 1, progress: parallel.Progress | None = None
) -> pd.DataFrame:
    """Simulate the changes in migrations by the 64-page drop, in percent, with intervals from draws of the costs.

    Returns: ``variant``, ``metric``, ``predicted``, ``low``, ``high`` (interval of the draws at `LEVEL`).

    - `cases`: migrations without costs, on a host with a fit.
    - `draws`: of the costs, 0: no interval; the estimate uses the best costs, and four times the memory of a draw.
    - `seed`: of the draws and of the engine.
    """

    def run(case: Scenario, logs: np.ndarray, batch: int, factor: int, check: parallel.Check) -> dict[str, float]:
        with_costs = shipped_fit(case).estimate.apply(case.changed({"policy": {"clear_drop_when": every(batch)}}), logs)
        return run_scenario(scaled(complete(with_costs), factor), seed=seed, progress=check).metrics

    jobs: list[Callable[[parallel.Check], dict[str, float]]] = []
    for case in cases.values():
        estimate, random = shipped_fit(case).estimate, np.random.default_rng(seed)
        points = [(estimate.logs, FACTOR), *((estimate.draw(random), 4 * FACTOR) for _ in range(draws))]
        jobs += [partial(run, case, logs, batch, factor) for logs, factor in points for batch in (0, WORD_PAGES)]
    runs = iter(parallel.run_all(jobs, "the April 2024 mail", progress))
    rows = []
    for name in cases:
        pairs = [(next(runs), next(runs)) for _ in range(draws + 1)]
        for metric in PUBLISHED_CHANGE:
            best, *drawn = (100 * (after[metric] / before[metric] - 1) for before, after in pairs)
            low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if draws else (np.nan, np.nan)
            rows.append((name, metric, best, min(low, best), max(high, best)))
    return pd.DataFrame(rows, columns=["variant", "metric", "predicted", "low", "high"])


def changes(draws: int, seed: int = 1, progress: parallel.Progress | None = None) -> pd.DataFrame:
    """Compute the nine published changes with the model.

    Returns: `studies.study.COLUMNS`, ``emulates``, ``low_bar``, ``high_bar``. All have the role fitted, because they
    were used to choose the settings that the mail does not state.
    """
    cases = {f"configuration {name[-1]}": case for name, case in configurations().variants.items()}
    simulated = change_by_drop(cases, draws, seed, progress)
    keys = [
        (int(variant[-1]), metric) for variant, metric in zip(simulated["variant"], simulated["metric"], strict=True)
    ]
    emulates = {1: "x86", 2: "arm64", 3: "LoongArch, if lockless"}
    low_bar, high_bar = np.array([BARS[key] for key in keys], dtype=float).T
    rows = simulated.assign(published=[published_change(*key) for key in keys], unit=CHANGE, role=FITTED,
                            emulates=[emulates[n] for n, _ in keys], low_bar=low_bar, high_bar=high_bar)  # fmt: skip
    return comparison_rows(rows, TABLE)


def published_change(number: int, metric: str) -> float:
    """Published change of a metric in a configuration, percent."""
    return float(load(TABLE).frame.set_index("configuration")[PUBLISHED_CHANGE[metric]][number])


def loongarch() -> Scenario:
    """Return the same VM and workload with the locking policy of LoongArch, at the costs of the x86 hosts.

    Nobody has published such measurements of a LoongArch host. The prediction covers the effect of its *policy*, a
    queued spinlock that a fault takes twice (`simlib.model.architectures`), at the x86 hosts' costs of the shadow MMU.
    """
    third = configurations().variants["config-3"]
    return third.changed({"policy": {"architecture": "loongarch", "eager_split": False}})


def clear_split(fit: Fit) -> pd.DataFrame:
    """Divide the CPU time of CLEAR into work, waits and flushes, per configuration, without and with the 64-page drop.

    Returns: ``configuration``, ``hold`` (``whole ioctl`` or ``64 pages``); ``work_s``, ``wait_s``, ``flush_s`` (with
    reacquiring), ``all_s``; ``passes``.
    """
    metrics = ("clear_work_time", "clear_wait_time", "clear_flush_time", "clear_cpu_time", "passes")
    rows = []
    for name, (batch, hold) in product(configurations().variants, ((0, "whole ioctl"), (WORD_PAGES, "64 pages"))):
        values = unscaled(configuration_metrics(fit.estimate, name, batch, FACTOR), FACTOR)
        rows.append((name, hold, *(values[metric] for metric in metrics)))
    columns = ["configuration", "hold", "work_s", "wait_s", "flush_s", "all_s", "passes"]
    return pd.DataFrame(rows, columns=columns)


def reacquisitions(split: pd.DataFrame) -> pd.DataFrame:
    """Compute, per 64-page word, the cost of a drop with its reacquisition and its share of CLEAR without drops.

    Returns: ``configuration``, ``reacquisition_us``, ``waiting_us`` (of it), ``work_before_us``, ``ratio_percent``.

    - `split`: the table of `clear_split`.
    """
    case = configurations()
    words = case.guest.pages // WORD_PAGES * case.workload.pass_limit
    whole, drop = (1e6 / words * split[split["hold"] == hold].set_index("configuration")[["work_s", "wait_s", "all_s"]]
                   for hold in ("whole ioctl", "64 pages"))  # fmt: skip
    increase = drop - whole
    times = {"reacquisition_us": increase["all_s"], "waiting_us": increase["wait_s"], "work_before_us": whole["work_s"]}
    return pd.DataFrame(times).assign(ratio_percent=100 * increase["all_s"] / whole["all_s"]).reset_index()


def cost_rows(fit: Fit) -> pd.DataFrame:
    """Return the costs with readable units: name, value, low, high, unit, interval (``none``, ``wide``, empty).

    An interval is called wide if its ends differ by more than a factor of 2.
    """
    rows = fit.costs()[["name", "value", "low", "high", "unit"]]
    factor = rows["high"] / rows["low"]
    return rows.assign(interval=np.select([factor <= 1 + 1e-9, factor > 2.0], ["none", "wide"], ""))
