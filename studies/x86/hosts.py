# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the published x86 hosts: faults from simulation, CLEAR from slopes, lock drops from one published run.

No source states its hardware; the tables' hosts are assumed to have equal costs. Costs that differ between the TDP MMU
and the shadow MMU belong to the cost groups ``tdp`` and ``shadow``.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.linalg import block_diag

from simlib.analysis.calibrate.fit import calibrate
from simlib.analysis.calibrate.problem import Problem, parameters_of
from simlib.analysis.prediction_options import LEVEL, PAGES_PER_VCPU
from simlib.analysis.simulate import run_scenario
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, Fit, complete
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.strategy import every
from simlib.simulator.workloads.scaled import scaled
from studies.study import student_t
from studies.x86.parked import CONTAINED, MACHINE, PAGES_PER_GIB, parked_costs

DIRTY_TIME = "x86-shadow-eager-split-dirty-time"
"""Table of the shadow MMU's faults: passes of 1 GiB per vCPU, with and without EPT, split beforehand or on fault."""

PUBLISHED_CHANGE = {"precopy_duration": "precopy_duration_change_percent",
                    "dirty_left": "postcopy_dirty_change_percent",
                    "clear_cpu_time": "clear_cpu_change_percent"}  # fmt: skip
"""Columns of the three-configuration table by metric."""


def fault_problem() -> Problem:
    """Calibration problem of the published times with blocks split on fault: shadow MMU, 2 to 64 vCPUs; TDP MMU, 96.

    Tables ``x86-shadow-eager-split-dirty-time`` (ept=Y, eager_page_split=N, 100 and 5 % written) and
    ``x86-tdp-eager-split`` (before, no KVM_DIRTY_LOG_INITIALLY_SET, iteration 1). A fault on a write-protected block
    replaces it with an empty table, and each page then faults once.
    """
    faults = "x86-tdp-eager-split"
    shadow = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'N'")
    tdp = load(faults).rows("initially_set == 'N' and variant == 'before' and phase == 'dirty-memory-iteration-1'")
    names = [f"shadow, {share} % written" for share in shadow["write_percent"]]
    split = pd.DataFrame({"table": DIRTY_TIME, "variant": names, "vcpus": shadow["vcpus"]})
    last = pd.DataFrame({"table": faults, "variant": "tdp", "vcpus": 96, "value": tdp["elapsed_time_s"]})
    frame = pd.concat([split.assign(value=shadow["dirty_memory_time_s"]), last], ignore_index=True)
    frame = frame.assign(metric="dirty_memory_time", train=True)
    fitted = ["fault_unlocked", "fault_hold", "line_transfer", "queue_length_penalty", "fault_jitter"]
    shadow_mmu = {"policy": {"architecture": "x86-shadow"}}
    scenario = Scenario.parse(
        {
            "host": {"name": MACHINE},
            "guest": {"memory_per_vcpu": "1G", "backing": "hugetlb_1gb"},
            "workload": {"iterations": 1, "initially_set": False},
            "costs": {name: f"{time}ps" for name, time in {"guest_access": guest_access(), **CONTAINED}.items()},
            # Every fault takes the lock, so fault_hold contains line_local; a split of 1 GiB kicks only once.
            "calibration": {"costs": fitted, "included_in_others": ["line_local", "kick"]},
            "variants": {
                "shadow, 100 % written": shadow_mmu,
                "shadow, 5 % written": {**shadow_mmu, "workload": {"write_percent": 5}},
                "tdp": {"policy": {"architecture": "x86-tdp", "eager_split": False}},
            },
        }
    )
    costs, bounds = parameters_of(scenario, tuple(scenario.variants))
    return Problem(scenario, frame, costs, bounds, f"{DIRTY_TIME}, {faults}")


def guest_access(write_percent: float = 100) -> int:
    """Mean time of an access without a fault, ps: the shortest published one, with all blocks split (2 vCPUs).

    Reading a page takes a twentieth of the time of writing one, because the pass continues while the line is fetched.
    It does not continue after a fault, so a pass in which every page faults takes the time of a write for each page.

    >>> 200_000 < guest_access() < 250_000, 20_000 < guest_access(5) < 25_000
    (True, True)
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and write_percent == 100 and vcpus == 2")
    write, written = float(rows["dirty_memory_time_s"].iloc[0]) / PAGES_PER_GIB * 1e12, write_percent / 100
    return round(write if written == 1 else written * write + (1 - written) * split_access_bound())


def lock_free_pass() -> tuple[tuple[int, float], ...]:
    """Ratio of the time of a pass without faults or locks to its time with 2 vCPUs, by number of vCPUs.

    All blocks are split beforehand, and EPT's entries are writable without a lock. The remaining growth is due to busy
    hyper-threads, CPU frequency and memory. `simlib.model.host.HOSTS` has these numbers.
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and write_percent == 100").sort_values("vcpus")
    times = rows["dirty_memory_time_s"].to_numpy(dtype=float)
    return tuple(zip(rows["vcpus"].astype(int).tolist(), (times / times[0]).tolist(), strict=True))


def split_access_bound() -> int:
    """Upper bound of the extra time of an access to a split block, ps: a read's whole time in the published passes.

    With all blocks split and 2 vCPUs, a pass that writes 5 % of the pages and reads the others is so much shorter than
    one that writes all pages that a page read takes 12 ns, including its TLB miss.
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and vcpus == 2").set_index("write_percent")
    write, mixed = (float(rows["dirty_memory_time_s"][share]) / PAGES_PER_GIB for share in (100, 5))
    return round((mixed - 0.05 * write) / 0.95 * 1e12)


def configurations() -> Scenario:
    """Scenario with the three configurations of the April 2024 mail as variants; their costs are in the fit."""
    return load_scenario(data_dir() / "scenarios" / "x86-three-configurations.toml")


def configuration_metrics(estimate: CostEstimate, name: str, batch: int, factor: int) -> dict[str, float]:
    """Metrics of a configuration, scaled by `factor`: one hold per ioctl (`batch` 0), or a drop every `batch` pages."""
    case = configurations().variants[name].changed({"policy": {"clear_drop_when": every(batch)}})
    return run_scenario(scaled(complete(estimate.apply(case)), factor)).metrics


FACTOR = 64
"""Calibration and studies simulate 1/64 of the memory; 1/16 and all of it give the same results (docs/migration.md)."""


def reacquire(estimate: CostEstimate) -> dict[str, object]:
    """Cost of dropping and reacquiring the lock, from one published value: config 1's CLEAR CPU time (+6 %).

    Config 1 has no contention, so the change is this cost times the words over the CPU time without it. The interval
    assumes that the published percentage is right within 3 points.

    Returns: ``name``, ``value``, ``low``, ``high`` (ps), ``cells`` and ``how``.
    """
    table = load("x86-clear-lock-drop-configurations").rows("configuration == 1")
    target = float(table[PUBLISHED_CHANGE["clear_cpu_time"]].iloc[0]) / 100
    points = []
    for trial in (50e3, 250e3):
        names, logs = (*estimate.names, "reacquire"), np.append(estimate.logs, np.log(trial))
        candidate = dataclasses.replace(estimate, names=names, logs=logs)
        whole, batch = (configuration_metrics(candidate, "config-1", n, FACTOR)["clear_cpu_time"] for n in (0, 64))
        points.append((trial, batch / whole - 1))
    (a, fa), (b, fb) = points
    value, low, high = (float(a + (target + shift - fa) * (b - a) / (fb - fa)) for shift in (0.0, -0.03, 0.03))
    return {"name": "reacquire", "value": value, "low": low, "high": high, "cells": 1,
            "how": "config 1: change of CLEAR CPU by the 64-page drop"}  # fmt: skip


def _joined(faults: Fit, other: pd.DataFrame, quantile: float) -> CostEstimate:
    """Merge the faults' costs and the other costs into one estimate.

    Where a profile interval is narrower than the linear one, as for a cost that others mask, the covariance is reduced
    to match it.
    """
    profile, linear = faults.parameters, np.sqrt(np.diag(faults.estimate.covariance))
    widths = np.log((profile["high"] / profile["low"]).to_numpy(dtype=float)) / 2 / quantile
    narrower = np.minimum(1.0, widths / linear)
    deviations = np.log((other["high"] / other["low"]).to_numpy(dtype=float)) / 2 / quantile
    covariance = block_diag(faults.estimate.covariance * np.outer(narrower, narrower), np.diag(deviations**2))
    logs = np.concatenate([faults.estimate.logs, np.log(other["value"].to_numpy(dtype=float))])
    names = (*faults.estimate.names, *other["name"])
    return dataclasses.replace(faults.estimate, names=names, logs=logs, covariance=covariance, spread={})


def x86_fit(progress: Callable[[str, float], None] | None = None) -> Fit:
    """Compute the fit ``data/fits/x86-published.json``; `progress` is called with (what, share done)."""
    faults = calibrate(fault_problem(), progress=progress)
    quantile = student_t(faults.estimate.dof)
    parked = parked_costs()
    first = _joined(faults, parked, quantile)
    parked = pd.concat([parked, pd.DataFrame([reacquire(first)])], ignore_index=True)
    estimate = _joined(faults, parked, quantile)
    known = parked[["name", "value", "low", "high"]].assign(at_bound=False, determined=parked["high"] > parked["low"])
    parameters = pd.concat([faults.parameters, known], ignore_index=True)
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": f"{DIRTY_TIME}, x86-shadow-eager-split-ioctl-time, x86-tdp-eager-split, "
        "x86-clear-dirty-log-160-vcpus, x86-disable-dirty-log-flushes, x86-clear-lock-drop-configurations (config 1)",
        "train": "",
        "seed": faults.meta["seed"],
        "pages_per_vcpu": PAGES_PER_VCPU,
        "level": LEVEL,
        "valid": faults.valid,
        "held_at_medians": faults.meta["held_at_medians"],
        "how": dict(zip(parked["name"], parked["how"], strict=True)),
    }
    return Fit(faults.scenario, estimate, parameters, faults.observations, meta)
