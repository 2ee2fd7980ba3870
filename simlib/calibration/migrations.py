# SPDX-License-Identifier: BSD-3-Clause
"""Published migrations beside the model: seed 001's configurations, the 160 vCPU dips, the 48 vCPU degradation.

The costs come from fits that saw no migration but one number (config 1's CLEAR CPU). What the sources do not state of
the guest, the link and userspace stands in the scenario files, and was chosen on the values called fitted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simlib import parallel
from simlib.errors import InputError
from simlib.fits import CostEstimate, Fit, find_fit
from simlib.measurements import data_dir, load
from simlib.model.pagetable import WORD_PAGES
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.steps import Stamp
from simlib.model.strategy import every
from simlib.prediction import LEVEL
from simlib.simulation import SimulationResult, run_scenario
from simlib.studies.x86.hosts import (
    FACTOR,
    PUBLISHED_CHANGE,
    configuration_metrics,
    configurations,
    split_access_bound,
)
from simlib.workloads.degradation import LEVELS, degradation
from simlib.workloads.migration import unscaled
from simlib.workloads.scaled import scaled

Progress = parallel.Progress

CHANGE_BARS = {
    (1, "precopy_duration"): (-6, 4), (1, "dirty_left"): (-6, 4), (1, "clear_cpu_time"): (1, 11),
    (2, "precopy_duration"): (-6, 4), (2, "dirty_left"): (-4, 6), (2, "clear_cpu_time"): (80, 180),
    (3, "precopy_duration"): (20, 45), (3, "dirty_left"): (100, 240), (3, "clear_cpu_time"): (3000, 8000),
}  # fmt: skip
"""Range that counts as agreement with each change of the three-configuration table, percent."""

SECONDS_BARS = {"arm64-before": 0.25, "x86-reference": 0.25, "arm64-after": 0.3}
"""Relative deviation of the seconds of degradation up to which the model counts as agreeing."""

ONE_GUEST = ("50ns", "100ns", "130ns", "200ns")
"""Intervals between two accesses that `one_guest` tries."""

PASSES = 2
"""Passes over all words in the configurations' workload."""

_DRAW_FACTOR = 4 * FACTOR
_DEGRADATION_FACTOR = 1024


def fit_of(scenario: Scenario) -> Fit:
    """The shipped fit of a scenario's machine.

    Raises `InputError` if there is none.

    Examples
    --------
    >>> fit_of(configurations()).meta["level"]
    0.9
    """
    found = find_fit(scenario)
    if found is None:
        raise InputError("machine.name", scenario.machine.name, "has no fit in data/fits")
    return found


def draws(estimate: CostEstimate, number: int, seed: int = 1) -> list[np.ndarray]:
    """Vectors of costs that may be true, as logarithms; the same for the same seed.

    Examples
    --------
    >>> known = CostEstimate(("fault_hold",), np.log([600e3]), np.array([[0.01]]), 8, 0.02, {})
    >>> len(draws(known, 3))
    3
    """
    random = np.random.default_rng(seed)
    return [estimate.draw(random) for _ in range(number)]


def change_by_drop(
    cases: Mapping[str, Scenario], number: int = 16, batch: int = 64, seed: int = 1, progress: Progress | None = None
) -> pd.DataFrame:
    """What letting go every `batch` pages changes in a migration, in percent, with intervals over the costs.

    Returns: case, metric, model_percent, low, high: the interval of `simlib.prediction.LEVEL` of the draws.

    Parameters
    ----------
    cases : mapping of str to Scenario
        Migrations without costs, of a machine with a fit.
    number : int
        Draws of the costs for the interval, 0: none; the estimate uses the best costs, and four times the memory of a
        draw.
    batch : int
        Pages.
    seed : int
        Of the draws and of the engine.

    Examples
    --------
    >>> small = configurations().variants["config-1"].changed({"workload": {"pass_limit": 1}})
    >>> frame = change_by_drop({"config-1": small}, number=2)
    >>> frame.columns.tolist()
    ['case', 'metric', 'model_percent', 'low', 'high']
    """

    def run(case: Scenario, logs: np.ndarray, policy: int, factor: int, check: parallel.Check) -> dict[str, float]:
        mine = fit_of(case).estimate.apply(case.changed({"policy": {"lets_go": every(policy)}}), logs)
        return run_scenario(scaled(mine, factor), seed=seed, progress=check).metrics

    jobs: list[Callable[[parallel.Check], dict[str, float]]] = []
    for case in cases.values():
        estimate = fit_of(case).estimate
        points = [(estimate.logs, FACTOR), *((drawn, _DRAW_FACTOR) for drawn in draws(estimate, number, seed))]
        jobs += [partial(run, case, logs, policy, factor) for logs, factor in points for policy in (0, batch)]
    runs = iter(parallel.each(jobs, "seed 001", progress))
    rows = []
    for name in cases:
        pairs = [(next(runs), next(runs)) for _ in range(number + 1)]
        for metric in PUBLISHED_CHANGE:
            values = np.array([100 * (after[metric] / before[metric] - 1) for before, after in pairs])
            low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if number else (np.nan, np.nan)
            rows.append((name, metric, float(values[0]), min(low, float(values[0])), max(high, float(values[0]))))
    return pd.DataFrame(rows, columns=["case", "metric", "model_percent", "low", "high"])


def configuration_table(number: int = 16, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """The three-configuration table of seed 001, published and by the model, and LoongArch's as a prediction.

    Returns: ``configuration`` (4: LoongArch), ``emulates``, ``metric``, ``published_percent``, ``low_bar``,
    ``high_bar``, ``model_percent``, ``low``, ``high``, ``role``: what the table itself was used for is fitted.
    """
    variants = configurations().variants
    cases = dict(variants) | {"loongarch": loongarch()}
    found = change_by_drop(cases, number, seed=seed, progress=progress)
    table = load("x86-clear-lock-drop-configurations").frame.set_index("configuration")
    published = {
        (n, metric): float(table[column][n]) for metric, column in PUBLISHED_CHANGE.items() for n in table.index
    }
    titles = {1: "x86", 2: "arm64", 3: "LoongArch, if lockless", 4: "LoongArch as it is"}
    numbers = {f"config-{n}": n for n in (1, 2, 3)} | {"loongarch": 4}
    rows = []
    for row in found.to_dict("records"):
        n, metric = numbers[row["case"]], row["metric"]
        known = (n, metric) in published
        low, high = CHANGE_BARS.get((n, metric), (np.nan, np.nan))
        rows.append(
            {
                "configuration": n, "emulates": titles[n], "metric": metric,
                "published_percent": published.get((n, metric), np.nan),
                "low_bar": low, "high_bar": high, "model_percent": row["model_percent"],
                "low": row["low"], "high": row["high"], "role": "fitted" if known else "predicted",
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def loongarch() -> Scenario:
    """The same VM and workload with LoongArch's way of taking the lock, on hosts that cost what the x86 ones do.

    Nobody has measured a LoongArch host in such a way: what is predicted is what its *policy* does, a queued spinlock
    that a fault takes twice (`simlib.model.architectures`), at the x86 hosts' costs of the shadow MMU.

    Examples
    --------
    >>> loongarch().policy.resolved().fault_lock_sections
    2
    """
    third = configurations().variants["config-3"]
    return third.changed({"policy": {"architecture": "loongarch", "eager_split": False}})


def dips(progress: Progress | None = None, seed: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Guest throughput of the 160 vCPU VM while CLEAR splits blocks: before, with the 64-page drop, drop at each split.

    Returns
    -------
    curves : DataFrame
        ``series``, ``panel``, ``time_s``, ``throughput``.
    table : DataFrame
        One row a chunk and series: ``longest_stall_ms`` of the whole migration, ``bin_ms``, and for each pass n
        ``lowest_percent_n`` and ``mean_percent_n`` of undisturbed throughput, by bins of that width.
    """
    scenario = load_scenario(data_dir() / "scenarios" / "x86-160-vcpus.toml")
    titles = {"before": "before", "drop-64-pages": "64-page drop", "drop-at-split": "drop at each split"}
    curves, rows = [], []
    for step, chunk in enumerate(("1G", "8G")):
        for name, variant in scenario.variants.items():
            run = run_scenario(
                fit_of(variant).estimate.apply(variant.changed({"workload": {"clear_chunk": chunk}})), seed=seed
            )
            curve = degradation(run.scenario, run.job, run.raw)
            panel = f"{chunk[0]} GiB CLEARs"
            curves.append(curve[["time_s", "throughput"]].assign(series=titles[name], panel=panel))
            row: dict[str, Any] = {"chunk": panel, "series": titles[name],
                                   "longest_stall_ms": 1e3 * run.metrics["longest_stall"],
                                   "bin_ms": 1e3 * float(curve["width_s"].iloc[0])}  # fmt: skip
            for number, part in _by_pass(run, curve).items():
                row[f"lowest_percent_{number}"] = 100 * float(part["throughput"].min())
                row[f"mean_percent_{number}"] = 100 * float(part["throughput"].mean())
            rows.append(row)
            if progress is not None:
                progress("160 vCPUs", (step + 1) / 2)
    return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)


def _by_pass(run: SimulationResult, curve: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The curve's bins that lie wholly within each pass."""
    stamps = dict(zip(run.job.stamps, (run.raw.stamp_ps * 1e-12).tolist(), strict=True))
    begin, parts = stamps[Stamp("undisturbed")], {}
    edge = 0.0
    for number in range(1, int(run.metrics["passes"]) + 1):
        end = stamps[Stamp("sent", number)] - begin
        half = curve["width_s"] / 2
        parts[number] = curve[(curve["time_s"] - half >= edge) & (curve["time_s"] + half <= end)]
        edge = end
    return parts


def published_migration() -> Scenario:
    """The 48 vCPU migration; its variants are the hosts and kernels that were published.

    Examples
    --------
    >>> sorted(published_migration().variants)
    ['arm64-after', 'arm64-before', 'x86-reference']
    """
    return load_scenario(data_dir() / "scenarios" / "migration-48-vcpus.toml")


def clear_split(fit: Fit) -> pd.DataFrame:
    """CPU time of CLEAR by what it was spent on, with one hold and with the 64-page drop, in each configuration.

    Returns: ``configuration``, ``hold`` (``whole ioctl`` or ``64 pages``); ``work s``, ``wait s``, ``flush and
    reacquire s``, ``all s``; ``passes``.

    Parameters
    ----------
    fit : Fit
        Of the published x86 hosts.
    """
    names = {"clear_work_time": "work s", "clear_wait_time": "wait s", "clear_flush_time": "flush and reacquire s",
             "clear_cpu_time": "all s", "passes": "passes"}  # fmt: skip
    rows = []
    for name in configurations().variants:
        for batch, hold in ((0, "whole ioctl"), (64, "64 pages")):
            metrics = unscaled(configuration_metrics(fit.estimate, name, batch, FACTOR), FACTOR)
            rows.append({"configuration": name, "hold": hold} | {names[key]: metrics[key] for key in names})
    return pd.DataFrame(rows)


def reacquisitions(split: pd.DataFrame) -> pd.DataFrame:
    """What letting go once costs, beside the work that it interrupts, µs, and the ratio of both in percent.

    Parameters
    ----------
    split : DataFrame
        As of `clear_split`.
    """
    guest = configurations().guest
    words = guest.pages // WORD_PAGES * PASSES
    whole, drop = (split[split["hold"] == hold].set_index("configuration") for hold in ("whole ioctl", "64 pages"))
    each = pd.DataFrame(
        {
            "one reacquisition µs": (drop["all s"] - whole["all s"]) / words * 1e6,
            "of it waiting µs": (drop["wait s"] - whole["wait s"]) / words * 1e6,
            "work of a word before µs": whole["work s"] / words * 1e6,
        }
    )
    return each.assign(**{"ratio percent": 100 * each["one reacquisition µs"] / (whole["all s"] / words * 1e6)})


def degradation_table(
    number: int = 6, seed: int = 1, progress: Progress | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Seconds above 99, 50 and 10 % degradation of the 48 vCPU migration, published and by the model.

    Parameters
    ----------
    number : int
        Draws of the costs for the intervals.

    Returns
    -------
    curves : DataFrame
        ``series``, ``time_s``, ``width_s``, ``degradation``, ``role``.
    table : DataFrame
        ``series``, ``level_percent``, ``published_s``, ``low_bar_s``, ``high_bar_s``, ``model_s``, ``low_s``,
        ``high_s``, ``role``.
    """
    scenario = published_migration()
    published = load("arm64-migration-degradation").frame
    curves, rows = [], []

    def seconds(case: Scenario, logs: np.ndarray, check: parallel.Check) -> dict[str, float]:
        small = scaled(fit_of(case).estimate.apply(case, logs), 2 * _DEGRADATION_FACTOR)
        run = run_scenario(small, seed=seed, progress=check)
        return unscaled(run.metrics, 2 * _DEGRADATION_FACTOR)

    for step, (name, case) in enumerate(scenario.variants.items()):
        estimate = fit_of(case).estimate
        role = "predicted" if name == "arm64-after" else "fitted"
        run = run_scenario(scaled(estimate.apply(case), _DEGRADATION_FACTOR), seed=seed)
        best = unscaled(run.metrics, _DEGRADATION_FACTOR)
        curve = degradation(run.scenario, run.job, run.raw)
        curve = curve.assign(
            time_s=curve["time_s"] * _DEGRADATION_FACTOR, width_s=curve["width_s"] * _DEGRADATION_FACTOR
        )
        curves.append(curve.drop(columns="throughput").assign(series=name, role=role))
        jobs = [partial(seconds, case, logs) for logs in draws(estimate, number, seed)]
        spread = parallel.each(jobs)
        if progress is not None:
            progress("48 vCPUs", (step + 1) / len(scenario.variants))
        mine = published[published["series"] == name].set_index("degradation_above_percent")["duration_s"]
        for level in LEVELS:
            key = f"seconds_above_{level}"
            low, high = _log_interval(best[key], np.array([found[key] for found in spread]))
            rows.append(
                {"series": name, "level_percent": level, "published_s": float(mine[level]),
                 "low_bar_s": float(mine[level]) * (1 - SECONDS_BARS[name]),
                 "high_bar_s": float(mine[level]) * (1 + SECONDS_BARS[name]),
                 "model_s": best[key], "low_s": low, "high_s": high, "role": role}
            )  # fmt: skip
    return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)


def one_guest(seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """The same guest on both hosts, at some intervals between two accesses: which of them could be true.

    x86 also with its vCPUs on one socket, and with what an access takes longer once its block was split: at
    most `simlib.studies.x86.hosts.split_access_bound`.

    Returns: ``case``, ``access_interval``, and for each of `LEVELS` ``above_…`` (s); the published ones in rows whose
    interval is ``published``.
    """
    scenario = published_migration()
    x86_host, bound = scenario.variants["x86-reference"], f"{split_access_bound()}ps"
    cases = {
        "arm64-after": scenario.variants["arm64-after"],
        "x86, one socket": x86_host.changed({"machine": {"cores": 2 * x86_host.guest.vcpus}}),
        "x86, both sockets": x86_host,
        "x86, both sockets, split access": x86_host.changed({"costs": {"split_access": bound}}),
    }
    asked = [(name, interval) for name in cases for interval in ONE_GUEST]

    def seconds(name: str, interval: str, check: parallel.Check) -> list[float]:
        case = cases[name].changed({"workload": {"access_interval": interval}})
        small = scaled(fit_of(case).estimate.apply(case), 2 * _DEGRADATION_FACTOR)
        found = unscaled(run_scenario(small, seed=seed, progress=check).metrics, 2 * _DEGRADATION_FACTOR)
        return [found[f"seconds_above_{level}"] for level in LEVELS]

    runs = parallel.each([partial(seconds, *each) for each in asked], "one guest", progress)
    published = load("arm64-migration-degradation").frame
    rows: list[tuple[Any, ...]] = [(*each, *found) for each, found in zip(asked, runs, strict=True)]
    for name, series in (("arm64-after", "arm64-after"), ("x86", "x86-reference")):
        mine = published[published["series"] == series].set_index("degradation_above_percent")["duration_s"]
        rows.append((name, "published", *(float(mine[level]) for level in LEVELS)))
    return pd.DataFrame(rows, columns=["case", "access_interval", *(f"above_{level}" for level in LEVELS)])


def _log_interval(best: float, spread: np.ndarray) -> tuple[float, float]:
    """Interval around the best value from few draws: t of their logarithms' deviation from it."""
    if best <= 0 or (spread <= 0).any():
        return float(min(best, *spread)), float(max(best, *spread))
    deviation = float(np.sqrt(np.mean(np.log(spread / best) ** 2)))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, len(spread))) * deviation
    return best * float(np.exp(-half)), best * float(np.exp(half))
