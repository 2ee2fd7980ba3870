# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the published x86 hosts, from several tables: faults by simulation, CLEAR by slopes, letting go by one run.

No source states its hardware; the hosts of all tables are taken to be alike, which is an assumption. Costs that differ
between the TDP MMU and the shadow MMU belong to the groups ``tdp`` and ``shadow``.
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
from simlib.analysis.predict import LEVEL, PAGES_PER_VCPU
from simlib.analysis.simulate import run_scenario
from simlib.measurements import data_dir, load
from simlib.measurements.fits import CostEstimate, Fit, complete
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.strategy import every
from simlib.simulator.workloads.scaled import scaled
from studies.study import student
from studies.x86.parked import CONTAINED, MACHINE, PAGES_PER_GIB, parked_costs

DIRTY_TIME = "x86-shadow-eager-split-dirty-time"
"""The table of the shadow MMU's faults: passes of 1 GiB a vCPU, with EPT and without, split beforehand or on fault."""

PUBLISHED_CHANGE = {"precopy_duration": "precopy_duration_change_percent",
                    "dirty_left": "postcopy_dirty_change_percent",
                    "clear_cpu_time": "clear_cpu_change_percent"}  # fmt: skip
"""Metrics of the three-configuration table, and its columns."""


def fault_problem() -> Problem:
    """Splitting on fault, as published: the shadow MMU from 2 to 64 vCPUs, the TDP MMU at 96.

    Tables ``x86-shadow-eager-split-dirty-time`` (ept=Y, eager_page_split=N, 100 and 5 % written) and
    ``x86-tdp-eager-split`` (before, no KVM_DIRTY_LOG_INITIALLY_SET, iteration 1). A fault on a write-protected block
    replaces it by an empty table, and every page then faults once.
    """
    faults = "x86-tdp-eager-split"
    shadow = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'N'")
    tdp = load(faults).rows("initially_set == 'N' and variant == 'before'")
    tdp = tdp[tdp["phase"] == "dirty-memory-iteration-1"]
    names = [f"shadow, {share} % written" for share in shadow["write_percent"]]
    split = pd.DataFrame({"table": DIRTY_TIME, "variant": names, "vcpus": shadow["vcpus"]})
    last = pd.DataFrame({"table": faults, "variant": "tdp", "vcpus": 96, "value": tdp["elapsed_time_s"]})
    frame = pd.concat([split.assign(value=shadow["dirty_memory_time_s"]), last], ignore_index=True)
    frame = frame.assign(metric="dirty_memory_time", train=True)
    scenario = Scenario.parse(
        {
            "host": {"name": MACHINE},
            "guest": {"memory_per_vcpu": "1G", "backing": "hugetlb_1gb"},
            "workload": {"iterations": 1, "initially_set": False},
            "costs": {"guest_access": f"{guest_access()}ps"} | {name: f"{time}ps" for name, time in CONTAINED.items()},
            "calibration": {
                "costs": ["fault_unlocked", "fault_hold", "line_transfer", "queue_length_penalty", "fault_jitter"],
                # Every fault takes the lock, so that fault_hold contains it; a split of 1 GiB interrupts once.
                "included_in_others": ["line_local", "kick"],
            },
            "variants": {
                "shadow, 100 % written": {"policy": {"architecture": "x86-shadow"}},
                "shadow, 5 % written": {"policy": {"architecture": "x86-shadow"}, "workload": {"write_percent": 5}},
                "tdp": {"policy": {"architecture": "x86-tdp", "eager_split": False}},
            },
        }
    )
    costs, bounds = parameters_of(scenario, tuple(scenario.variants))
    return Problem(scenario, frame, costs, bounds, f"{DIRTY_TIME}, {faults}")


def guest_access(write_percent: float = 100) -> int:
    """Mean time of one access that needs no fault, ps: the least published one, with everything split (2 vCPUs).

    A page that is read takes a twentieth of one that is written: the pass goes on while its line is fetched. After a
    fault it does not, so that a pass in which every page faults has the time of a write for each.

    >>> 200_000 < guest_access() < 250_000, 20_000 < guest_access(5) < 25_000
    (True, True)
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and write_percent == 100 and vcpus == 2")
    write, written = float(rows["dirty_memory_time_s"].iloc[0]) / PAGES_PER_GIB * 1e12, write_percent / 100
    return round(write if written == 1 else written * write + (1 - written) * split_access_bound())


def lock_free_pass() -> tuple[tuple[int, float], ...]:
    """How much longer a pass that takes neither fault nor lock lasts with more vCPUs than with 2.

    Everything is split beforehand, and EPT's entries are writable without a lock: what is left is what busy siblings,
    frequency and memory do. `simlib.model.host.HOSTS` has these numbers.
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and write_percent == 100").sort_values("vcpus")
    times = rows["dirty_memory_time_s"].to_numpy(dtype=float)
    return tuple(zip(rows["vcpus"].astype(int).tolist(), (times / times[0]).tolist(), strict=True))


def split_access_bound() -> int:
    """The most that an access to a split block may take longer, ps: all of a read's time in the published passes.

    With everything split, 2 vCPUs' pass that writes 5 % of the pages and reads the others takes so much less than one
    that writes all, that a page which is read takes 12 ns, its TLB miss included.
    """
    rows = load(DIRTY_TIME).rows("ept == 'Y' and eager_page_split == 'Y' and vcpus == 2").set_index("write_percent")
    write, mixed = (float(rows["dirty_memory_time_s"][share]) / PAGES_PER_GIB for share in (100, 5))
    return round((mixed - 0.05 * write) / 0.95 * 1e12)


def configurations() -> Scenario:
    """The three configurations of the April 2024 mail as variants; their costs are in the fit."""
    return load_scenario(data_dir() / "scenarios" / "x86-three-configurations.toml")


def configuration_metrics(estimate: CostEstimate, name: str, batch: int, factor: int) -> dict[str, float]:
    """Metrics of one configuration: a whole ioctl (batch 0) or letting go every `batch` pages, scaled by `factor`."""
    case = configurations().variants[name].changed({"policy": {"clear_drop_when": every(batch)}})
    return run_scenario(scaled(complete(estimate.apply(case)), factor)).metrics


FACTOR = 64
"""Part of the memory that calibration and studies simulate; 16 and 1 agree with it (docs/migration.md)."""


def reacquire(estimate: CostEstimate) -> dict[str, object]:
    """What letting go and asking again takes: from one published value, config 1's CLEAR CPU (+6 %).

    There nobody contends, so that the change is this cost times the words, over the CPU time without it. The interval
    takes the published whole per cent to be right within 3 points.
    """
    table = load("x86-clear-lock-drop-configurations").rows("configuration == 1")
    wanted = float(table[PUBLISHED_CHANGE["clear_cpu_time"]].iloc[0]) / 100
    points = []
    for trial in (50e3, 250e3):
        names, logs = (*estimate.names, "reacquire"), np.append(estimate.logs, np.log(trial))
        tried = dataclasses.replace(estimate, names=names, logs=logs)
        whole, batch = (configuration_metrics(tried, "config-1", n, FACTOR)["clear_cpu_time"] for n in (0, 64))
        points.append((trial, batch / whole - 1))
    (a, fa), (b, fb) = points
    value, low, high = (float(a + (wanted + shift - fa) * (b - a) / (fb - fa)) for shift in (0.0, -0.03, 0.03))
    return {"name": "reacquire", "value": value, "low": low, "high": high, "cells": 1,
            "how": "config 1: change of CLEAR CPU by the 64-page drop"}  # fmt: skip


def _joined(faults: Fit, more: pd.DataFrame, quantile: float) -> CostEstimate:
    """The faults' costs and others in one estimate.

    Where a profile interval is narrower than the linear one, as for a cost that other costs hide, the covariance is
    narrowed to it.
    """
    profile, linear = faults.parameters, np.sqrt(np.diag(faults.estimate.covariance))
    widths = np.log((profile["high"] / profile["low"]).to_numpy(dtype=float)) / 2 / quantile
    narrower = np.minimum(1.0, widths / linear)
    others = np.log((more["high"] / more["low"]).to_numpy(dtype=float)) / 2 / quantile
    covariance = block_diag(faults.estimate.covariance * np.outer(narrower, narrower), np.diag(others**2))
    logs = np.concatenate([faults.estimate.logs, np.log(more["value"].to_numpy(dtype=float))])
    names = (*faults.estimate.names, *more["name"])
    return dataclasses.replace(faults.estimate, names=names, logs=logs, covariance=covariance, spread={})


def x86_fit(progress: Callable[[str, float], None] | None = None) -> Fit:
    """The fit ``data/fits/x86-published.json``.

    - `progress`: called with (what, share done).
    """
    faults = calibrate(fault_problem(), progress=progress)
    quantile = student(faults.estimate.dof)
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
