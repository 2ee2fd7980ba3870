# SPDX-License-Identifier: BSD-3-Clause
"""What was measured on a host and not calibrated to, beside the model: CLEAR under load, faults of several vCPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from simlib.analysis.predict import LEVEL, Progress, evaluate
from simlib.lab.host.design import PAGE
from simlib.lab.host.measured import Floats, HostData, batches, host_scenario
from simlib.measurements.fits import CostEstimate, Fit
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS

SEEDS = 60
"""Replications of each cell that is held out, each with costs drawn from the estimate."""

CLEAR_BAR, STALL_BAR = 0.15, 1.5
"""What is asked of a prediction: times within this share, longest stall within this factor."""

_CELL = ["study", "vcpus", "chunk_pages", "batch"]


def held_out(
    data: HostData, estimate: CostEstimate, seed: int = 1, progress: Progress = lambda text, share: None
) -> pd.DataFrame:
    """What was measured and not calibrated to, beside the model.

    Returns: ``study``, ``vcpus``, ``chunk_pages``, ``batch`` (pages per hold of the lock; 0: an ioctl), ``metric``;
    ``value`` (median over rounds and repeats, s), ``value_low`` and ``value_high`` (its interval of `LEVEL`, of the
    median); ``model`` (median over replications with drawn costs), ``model_low`` and ``model_high`` (between which
    `LEVEL` of them lie).
    """
    random = np.random.default_rng([seed, 7])
    cells = _measured(data)
    keys = list(dict.fromkeys(cells[[*_CELL, "memory"]].itertuples(index=False, name=None)))
    cases = []
    for key in keys:
        case = _case(data, *key)
        cases.append([estimate.apply(case, estimate.draw(random)) for _ in range(SEEDS)])
    runs = []
    for number in range(SEEDS) if cases else ():
        progress(f"predicting what was held out, replication {number + 1} of {SEEDS}", number / SEEDS)
        runs.append(evaluate([own[number] for own in cases], pages_per_vcpu=None, seed=seed + number))
    by_key = dict(zip(keys, zip(*runs, strict=True), strict=True))
    rows = []
    for *cell, memory, metric, value, value_low, value_high in cells.to_numpy().tolist():
        name = "dirty_memory_time[2]" if metric == "dirty_memory_time" else metric
        found = [run.value(name) for run in by_key[*cell, memory]]
        low, middle, high = np.quantile(found, [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
        rows.append((*cell, metric, value, value_low, value_high, middle, low, high))
    columns = [*_CELL, "metric", "value", "value_low", "value_high", "model", "model_low", "model_high"]
    return pd.DataFrame(rows, columns=columns)


def _case(data: HostData, study: str, vcpus: int, chunk: int, batch: int, memory: int) -> Scenario:
    """The scenario of a cell that is held out."""
    case = host_scenario(data, vcpus, memory)
    if study == "faults":
        return case.changed({"workload": {"kind": "dirty_log_perf_test", "iterations": 2}})
    # The test pins the clearing thread first, then the vCPUs, and begins again with the first CPU.
    workload: dict[str, object] = {"preempted_vcpus": int(vcpus >= len(data.facts["cpus"]))}
    if chunk:
        workload["clear_chunk"] = chunk * PAGE
    policy = {"clear_drop_when": f"pages >= {batch}"} if batch else {}
    return case.changed({"workload": workload, "policy": policy})


def _measured(data: HostData) -> pd.DataFrame:
    """Medians of the cells that are held out, with their intervals."""
    ioctls, rounds = (
        frame.assign(study=frame["experiment"], batch=batches(frame)) for frame in (data.ioctls, data.rounds)
    )
    known, rows = [*_CELL, "memory_per_vcpu"], []
    clears = ioctls[ioctls["study"].isin(("load", "batches")) & (ioctls["name"] == "clear")]
    full = clears[clears["dirty_pages"] == clears["range_pages"]]  # as the model's: every page was written again
    longest = rounds.groupby([*known, "seed", "round"])["longest_stall_ns"].max().reset_index()
    stalls = longest.merge(full[[*known, "seed", "round"]], on=[*known, "seed", "round"])
    several = ioctls[(ioctls["study"] == "faults") & (ioctls["name"] == "write") & (ioctls["round"] > 1)]
    several = several[several["vcpus"] > 1]
    parts = (
        ("clear_dirty_log_time", full, "total_time_ns"),
        ("longest_stall", stalls, "longest_stall_ns"),
        ("dirty_memory_time", several, "total_time_ns"),
    )
    for metric, frame, column in parts:
        for cell, own in frame.groupby(known):
            study, vcpus, chunk, batch, memory = map(str, cell)
            values = own[column].to_numpy(dtype=float) * 1000 * PS
            middle = float(np.median(values)), *median_interval(values)
            rows.append((study, int(vcpus), int(chunk), int(batch), parse_size(memory), metric, *middle))
    return pd.DataFrame(rows, columns=[*_CELL, "memory", "metric", "value", "low", "high"])


def median_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Between which of the values their median lies with probability `LEVEL`, whatever their distribution.

    Source: the binomial distribution of how many lie below it.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    (2.0, 8.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    below = max(int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5)), 1)
    return float(ordered[below - 1]), float(ordered[len(ordered) - below])


def judged(fit: Fit) -> pd.DataFrame:
    """What was held out, with ``ratio`` (model over measured), ``bar`` in words and ``within``."""
    seen = fit.observations.copy()
    seen["ratio"] = seen["model"] / seen["value"]
    stall = seen["metric"] == "longest_stall"
    seen["bar"] = np.where(stall, f"factor {STALL_BAR:g}", f"±{CLEAR_BAR:.0%}")
    inside = np.where(stall, np.abs(np.log(seen["ratio"])) <= np.log(STALL_BAR), np.abs(seen["ratio"] - 1) <= CLEAR_BAR)
    return seen.assign(within=inside)


def interrupted_shares(fit: Fit, data: HostData) -> pd.DataFrame:
    """Of the flushes of CLEAR under load, the share that interrupted a vCPU: counted by KVM, and predicted.

    Predicted is what CLEAR takes in the model beyond its own costs, over what an interrupt costs; a wait for the lock
    counts as a part of one.

    Returns: ``vcpus``, ``chunk_pages``, ``counted``, ``predicted``; a row for each cell of several ioctls, and none
    where the kernel does not count them.
    """
    costs = dict(zip(fit.parameters["name"], fit.parameters["value"], strict=True))
    columns = ["vcpus", "chunk_pages", "counted", "predicted"]
    if "interrupt" not in costs or "flush_interrupts" not in data.runs:
        return pd.DataFrame(columns=columns)
    seen = fit.observations
    rows = seen[(seen["study"] == "load") & (seen["metric"] == "clear_dirty_log_time") & (seen["chunk_pages"] > 0)]
    pages = rows["vcpus"] * fit.scenario.guest.pages_per_vcpu
    calls = pages / rows["chunk_pages"]
    own = calls * sum(costs.get(name, 0.0) for name in ("clear_ioctl", "flush")) + pages * costs["clear_page"]
    predicted = ((rows["model"] / PS - own) / (calls * costs["interrupt"])).clip(0, 1)
    runs = data.runs[data.runs["experiment"] == "load"]
    counts = runs.groupby(["vcpus", "chunk_pages"])[["flush_interrupts", "flush_requests"]].sum()
    counted = (counts["flush_interrupts"] / counts["flush_requests"]).rename("counted").reset_index()
    return rows[["vcpus", "chunk_pages"]].assign(predicted=predicted).merge(counted)[columns]
