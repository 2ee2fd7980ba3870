# SPDX-License-Identifier: BSD-3-Clause
"""Guest performance in two published migrations: seconds of degradation with 48 vCPUs, throughput dips with 160."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib import parallel
from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.measurements import data_dir, load
from simlib.measurements.fits import complete
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.steps import Stamp
from simlib.simulator.workloads.degradation import LEVELS, degradation
from simlib.simulator.workloads.migration import unscaled
from simlib.simulator.workloads.scaled import scaled
from studies.study import FITTED, HELD_OUT, comparison_rows, interval_from_draws, shipped_fit
from studies.x86.hosts import split_access_bound

TABLE = "arm64-migration-degradation"
"""Published table of the seconds of degradation."""

BARS = {"arm64-before": 0.25, "x86-reference": 0.25, "arm64-after": 0.3}
"""Relative deviation of the seconds of degradation up to which the model counts as agreeing."""

INTERVALS = ("50ns", "100ns", "130ns", "200ns")
"""Intervals between two accesses that `one_guest` tries."""

KERNELS = {"before": "before", "drop-64-pages": "64-page drop", "drop-at-split": "drop at each split"}
"""Variants of the 160-vCPU migration, and their names in figures."""

_PART = 1024


def published_migration() -> Scenario:
    """Load the 48-vCPU migration; its variants are the published hosts and kernels."""
    return load_scenario(data_dir() / "scenarios" / "migration-48-vcpus.toml")


def published_seconds(variant: str) -> list[float]:
    """Published seconds of a variant above each of `LEVELS`."""
    rows = load(TABLE).frame.set_index(["series", "degradation_above_percent"])["duration_s"]
    return [float(rows[variant, level]) for level in LEVELS]


def seconds(
    draws: int, seed: int = 1, progress: parallel.Progress | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Compute the seconds above 99, 50 and 10 % degradation of the 48-vCPU migration, published and by the model.

    Returns: the numbers (`studies.study.COLUMNS`, ``low_bar``, ``high_bar``); the curves (``series``, ``time_s``,
    ``width_s``, ``degradation``, ``role``); and the work (``series``, ``faults_per_page``, ``precopy_s``, ``clear_s``,
    ``clear_wait_s`` (of it), ``throughput`` (mean)).

    - `draws`: of the costs, for the intervals; `seed`: of the draws and of the engine.
    """
    variants = published_migration().variants
    curves, work, rows = [], [], []
    for step, (name, case) in enumerate(variants.items()):
        estimate, random = shipped_fit(case).estimate, np.random.default_rng(seed)
        role = HELD_OUT if name == "arm64-after" else FITTED  # its seconds determined neither a cost nor a setting
        run = run_scenario(scaled(complete(estimate.apply(case)), _PART), seed=seed)
        best = unscaled(run.metrics, _PART)
        curve = degradation(run.scenario, run.job, run.raw).drop(columns="throughput")
        full_times = {"time_s": curve["time_s"] * _PART, "width_s": curve["width_s"] * _PART}
        curves.append(curve.assign(**full_times, series=name, role="predicted" if role == HELD_OUT else role))
        faults = int(run.raw.faults[: case.guest.vcpus].sum()) / run.job.pages
        names = ("precopy_duration", "clear_cpu_time", "clear_wait_time", "guest_throughput")
        work.append((name, faults, *(best[key] for key in names)))
        jobs = [partial(_above, estimate.apply(case, estimate.draw(random)), seed) for _ in range(draws)]
        drawn = np.array(parallel.run_all(jobs))
        for level, published, sample in zip(LEVELS, published_seconds(name), drawn.T, strict=True):
            model = best[f"seconds_above_{level}"]
            low, high = float(min(model, *sample)), float(max(model, *sample))
            if low > 0:
                low, high = interval_from_draws(model, np.log(sample / model))
            rows.append((name, f"seconds above {level} %", published, model, low, high, role,
                         published * (1 - BARS[name]), published * (1 + BARS[name])))  # fmt: skip
        if progress is not None:
            progress("48 vCPUs", (step + 1) / len(variants))
    columns = ["variant", "metric", "published", "predicted", "low", "high", "role", "low_bar", "high_bar"]
    work_columns = ["series", "faults_per_page", "precopy_s", "clear_s", "clear_wait_s", "throughput"]
    return (
        comparison_rows(pd.DataFrame(rows, columns=columns).assign(unit="s", vcpus=48), TABLE),
        pd.concat(curves, ignore_index=True),
        pd.DataFrame(work, columns=work_columns),
    )


def _above(case: Scenario, seed: int, check: parallel.Check) -> list[float]:
    """Simulate the seconds above each of `LEVELS`, with half the memory that `seconds` simulates at the best costs."""
    run = run_scenario(scaled(complete(case), 2 * _PART), seed=seed, progress=check)
    metrics = unscaled(run.metrics, 2 * _PART)
    return [metrics[f"seconds_above_{level}"] for level in LEVELS]


def one_guest(seed: int = 1, progress: parallel.Progress | None = None) -> pd.DataFrame:
    """Simulate the same guest on both hosts, with each of `INTERVALS` between two accesses.

    x86 also runs with its vCPUs on one socket, and with accesses to a split block that take
    `studies.x86.hosts.split_access_bound` longer.

    Returns: ``case``, ``access_interval`` (``published``: the published seconds), and ``above_…`` (s) by `LEVELS`.
    """
    scenario = published_migration()
    x86_host, bound = scenario.variants["x86-reference"], f"{split_access_bound()}ps"
    cases = {
        "arm64-after": scenario.variants["arm64-after"],
        "x86, one socket": x86_host.changed({"host": {"cores": 2 * x86_host.guest.vcpus}}),
        "x86, both sockets": x86_host,
        "x86, both sockets, split access": x86_host.changed({"costs": {"split_access": bound}}),
    }
    combinations = [(name, interval) for name in cases for interval in INTERVALS]
    jobs = []
    for name, interval in combinations:
        case = cases[name].changed({"workload": {"access_interval": interval}})
        jobs.append(partial(_above, shipped_fit(case).estimate.apply(case), seed))
    runs = parallel.run_all(jobs, "one guest", progress)
    rows: list[tuple[Any, ...]] = [(*pair, *levels) for pair, levels in zip(combinations, runs, strict=True)]
    published = (("arm64-after", "arm64-after"), ("x86", "x86-reference"))
    rows += [(name, "published", *published_seconds(variant)) for name, variant in published]
    return pd.DataFrame(rows, columns=["case", "access_interval", *(f"above_{level}" for level in LEVELS)])


def dips(seed: int = 1, progress: parallel.Progress | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Simulate the throughput of the 160-vCPU guest while CLEAR splits huge pages, with each of `KERNELS`.

    Returns: the curves, with ``time_s``, ``throughput``, ``series``, ``panel``; and a table, one row per chunk and
    series: ``longest_stall_ms`` of the whole migration, ``bin_ms``, and for each pass n ``lowest_percent_n`` and
    ``mean_percent_n`` of undisturbed throughput, by bins of width ``bin_ms``.
    """
    scenario = load_scenario(data_dir() / "scenarios" / "x86-160-vcpus.toml")
    curves, rows = [], []
    for step, chunk in enumerate(("1G", "8G")):
        for name, series in KERNELS.items():
            case = scenario.variants[name].changed({"workload": {"clear_chunk": chunk}})
            run = run_scenario(shipped_fit(case).estimate.apply(case), seed=seed)
            curve = degradation(run.scenario, run.job, run.raw)
            panel = f"{chunk[0]} GiB CLEARs"
            curves.append(curve[["time_s", "throughput"]].assign(series=series, panel=panel))
            stall, width = 1e3 * run.metrics["longest_stall"], 1e3 * float(curve["width_s"].iloc[0])
            row: dict[str, Any] = {"chunk": panel, "series": series, "longest_stall_ms": stall, "bin_ms": width}
            for number, bins in enumerate(_by_pass(run, curve), 1):
                row[f"lowest_percent_{number}"] = 100 * float(bins["throughput"].min())
                row[f"mean_percent_{number}"] = 100 * float(bins["throughput"].mean())
            rows.append(row)
        if progress is not None:
            progress("160 vCPUs", (step + 1) / 2)
    return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)


def _by_pass(run: SimulationResult, curve: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the bins of the curve that lie wholly within each pass."""
    stamps = dict(zip(run.job.stamps, (run.raw.stamp_ps * 1e-12).tolist(), strict=True))
    passes = range(1, int(run.metrics["passes"]) + 1)
    ends = [0.0, *(stamps[Stamp("sent", number)] - stamps[Stamp("undisturbed")] for number in passes)]
    half = curve["width_s"] / 2
    first, last = curve["time_s"] - half, curve["time_s"] + half
    return [curve[(first >= ends[number - 1]) & (last <= ends[number])] for number in passes]
