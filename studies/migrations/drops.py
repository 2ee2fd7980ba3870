# SPDX-License-Identifier: BSD-3-Clause
"""The April 2024 mail: what the 64-page drop changes, in three configurations of x86 and on LoongArch.

The costs come from fits that saw no migration but one number (configuration 1's CLEAR CPU). What the mail does not
state of the guest, the link and userspace stands in the scenario file, and was chosen on the nine numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib.analysis.predict import LEVEL
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

EMULATES = {1: "x86", 2: "arm64", 3: "LoongArch, if lockless"}
"""What the configurations stand for."""

BARS = {
    (1, "precopy_duration"): (-6, 4), (1, "dirty_left"): (-6, 4), (1, "clear_cpu_time"): (1, 11),
    (2, "precopy_duration"): (-6, 4), (2, "dirty_left"): (-4, 6), (2, "clear_cpu_time"): (80, 180),
    (3, "precopy_duration"): (20, 45), (3, "dirty_left"): (100, 240), (3, "clear_cpu_time"): (3000, 8000),
}  # fmt: skip
"""Range that counts as agreement with each change, percent."""


def change_by_drop(
    cases: Mapping[str, Scenario], draws: int, seed: int = 1, progress: parallel.Progress | None = None
) -> pd.DataFrame:
    """What letting go every 64 pages changes in a migration, in percent, with intervals over the costs.

    Returns: ``variant``, ``metric``, ``predicted``, ``low``, ``high``: the interval of `simlib.analysis.predict.LEVEL`
    of the draws.

    - `cases`: migrations without costs, of a machine with a fit.
    - `draws`: of the costs for the interval, 0: none; the estimate uses the best costs, and four times the memory of a
      draw.
    - `seed`: of the draws and of the engine.
    """

    def run(case: Scenario, logs: np.ndarray, batch: int, factor: int, check: parallel.Check) -> dict[str, float]:
        mine = shipped_fit(case).estimate.apply(case.changed({"policy": {"clear_drop_when": every(batch)}}), logs)
        return run_scenario(scaled(complete(mine), factor), seed=seed, progress=check).metrics

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
            best, *others = (100 * (after[metric] / before[metric] - 1) for before, after in pairs)
            low, high = np.quantile(others, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if draws else (np.nan, np.nan)
            rows.append((name, metric, best, min(low, best), max(high, best)))
    return pd.DataFrame(rows, columns=["variant", "metric", "predicted", "low", "high"])


def changes(draws: int, seed: int = 1, progress: parallel.Progress | None = None) -> pd.DataFrame:
    """The nine published changes beside the model's (`COLUMNS`, ``emulates``, ``low_bar``, ``high_bar``).

    All are fitted: what the mail does not state was chosen on them.
    """
    cases = {f"configuration {name[-1]}": case for name, case in configurations().variants.items()}
    found = change_by_drop(cases, draws, seed, progress)
    table = load(TABLE).frame.set_index("configuration")
    keys = [(int(variant[-1]), metric) for variant, metric in zip(found["variant"], found["metric"], strict=True)]
    bars = np.array([BARS[key] for key in keys], dtype=float)
    published = [float(table[PUBLISHED_CHANGE[metric]][number]) for number, metric in keys]
    rows = found.assign(published=published, unit=CHANGE, role=FITTED, emulates=[EMULATES[n] for n, _ in keys],
                        low_bar=bars[:, 0], high_bar=bars[:, 1])  # fmt: skip
    return comparison_rows(rows, TABLE)


def loongarch() -> Scenario:
    """The same VM and workload with LoongArch's way of taking the lock, on hosts that cost what the x86 ones do.

    Nobody has measured a LoongArch host in such a way: what is predicted is what its *policy* does, a queued spinlock
    that a fault takes twice (`simlib.model.architectures`), at the x86 hosts' costs of the shadow MMU.
    """
    third = configurations().variants["config-3"]
    return third.changed({"policy": {"architecture": "loongarch", "eager_split": False}})


def clear_split(fit: Fit) -> pd.DataFrame:
    """CPU time of CLEAR by what it was spent on, with one hold and with the 64-page drop, in each configuration.

    Returns: ``configuration``, ``hold`` (``whole ioctl`` or ``64 pages``); ``work_s``, ``wait_s``, ``flush_s`` (with
    reacquiring), ``all_s``; ``passes``.
    """
    names = {"clear_work_time": "work_s", "clear_wait_time": "wait_s", "clear_flush_time": "flush_s",
             "clear_cpu_time": "all_s", "passes": "passes"}  # fmt: skip
    rows = []
    for name in configurations().variants:
        for batch, hold in ((0, "whole ioctl"), (WORD_PAGES, "64 pages")):
            metrics = unscaled(configuration_metrics(fit.estimate, name, batch, FACTOR), FACTOR)
            rows.append({"configuration": name, "hold": hold} | {names[key]: metrics[key] for key in names})
    return pd.DataFrame(rows)


def reacquisitions(split: pd.DataFrame) -> pd.DataFrame:
    """What letting go once costs, beside the work that it interrupts, µs, and the ratio of both in percent.

    Returns: ``configuration``, ``reacquisition_us``, ``waiting_us`` (of it), ``work_before_us``, ``ratio_percent``.

    - `split`: as of `clear_split`.
    """
    case = configurations()
    words = case.guest.pages // WORD_PAGES * case.workload.pass_limit
    whole, drop = (1e6 / words * split[split["hold"] == hold].set_index("configuration")[["work_s", "wait_s", "all_s"]]
                   for hold in ("whole ioctl", "64 pages"))  # fmt: skip
    more = drop - whole
    each = {"reacquisition_us": more["all_s"], "waiting_us": more["wait_s"], "work_before_us": whole["work_s"],
            "ratio_percent": 100 * more["all_s"] / whole["all_s"]}  # fmt: skip
    return pd.DataFrame(each).reset_index()
