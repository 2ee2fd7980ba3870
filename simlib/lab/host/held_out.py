# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of a host's held-out measurements: CLEAR under load, and faults of several vCPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from simlib.analysis.predict import evaluate
from simlib.analysis.prediction_options import LEVEL, Progress
from simlib.lab.host.measured import Floats, HostData, batch_sizes, host_scenario
from simlib.lab.process import silent
from simlib.measurements.fits import CostEstimate, Fit
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS
from simlib.vmm.qemu_rules import PAGE

SEEDS = 60
"""Replications of each held-out cell, each with costs sampled from the estimate."""

CLEAR_TOLERANCE, STALL_TOLERANCE = 0.15, 1.5
"""Tolerances of a prediction: relative error of a time, and factor between predicted and measured longest stalls."""

_CELL = ["study", "vcpus", "chunk_pages", "batch"]


def predict_held_out(
    data: HostData, estimate: CostEstimate, seed: int = 1, progress: Progress = silent
) -> pd.DataFrame:
    """Predict the held-out measurements.

    Returns: ``study``, ``vcpus``, ``chunk_pages``, ``batch`` (pages per hold of mmu_lock; 0: the whole ioctl),
    ``metric``; ``value`` (measured: median over rounds and repeats, s), ``value_low`` and ``value_high`` (interval of
    the median, with `LEVEL`); ``model`` (median over replications with sampled costs), ``model_low`` and
    ``model_high`` (quantiles of the replications, for `LEVEL`).
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
        progress(f"predicting the held-out cells, replication {number + 1} of {SEEDS}", number / SEEDS)
        runs.append(evaluate([replications[number] for replications in cases], pages_per_vcpu=None, seed=seed + number))
    by_key = dict(zip(keys, zip(*runs, strict=True), strict=True))
    rows = []
    for *cell, memory, metric, value, value_low, value_high in cells.to_numpy().tolist():
        name = "dirty_memory_time[2]" if metric == "dirty_memory_time" else metric
        values = [run.value(name) for run in by_key[*cell, memory]]
        low, middle, high = np.quantile(values, [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
        rows.append((*cell, metric, value, value_low, value_high, middle, low, high))
    columns = [*_CELL, "metric", "value", "value_low", "value_high", "model", "model_low", "model_high"]
    return pd.DataFrame(rows, columns=columns)


def _case(data: HostData, study: str, vcpus: int, chunk: int, batch: int, memory: int) -> Scenario:
    case = host_scenario(data, vcpus, memory)
    if study == "faults":
        return case.changed({"workload": {"kind": "dirty_log_perf_test", "iterations": 2}})
    # The test pins the clearing thread first, then the vCPUs, and wraps around to the first CPU.
    workload: dict[str, object] = {"preempted_vcpus": int(vcpus >= len(data.facts["cpus"]))}
    if chunk:
        workload["clear_chunk"] = chunk * PAGE
    policy = {"clear_drop_when": f"pages >= {batch}"} if batch else {}
    return case.changed({"workload": workload, "policy": policy})


def _measured(data: HostData) -> pd.DataFrame:
    """Medians of the held-out cells, with their intervals."""
    frames = (data.ioctls, data.rounds)
    ioctls, rounds = (frame.assign(study=frame["experiment"], batch=batch_sizes(frame)) for frame in frames)
    keys, rows = [*_CELL, "memory_per_vcpu"], []
    clears = ioctls[ioctls["study"].isin(("load", "batches")) & (ioctls["name"] == "clear")]
    full = clears[clears["dirty_pages"] == clears["range_pages"]]  # as in the model: every page was written again
    longest = rounds.groupby([*keys, "seed", "round"])["longest_stall_ns"].max().reset_index()
    stalls = longest.merge(full[[*keys, "seed", "round"]], on=[*keys, "seed", "round"])
    several = ioctls[(ioctls["study"] == "faults") & (ioctls["name"] == "write") & (ioctls["round"] > 1)]
    several = several[several["vcpus"] > 1]
    parts = (
        ("clear_dirty_log_time", full, "total_time_ns"),
        ("longest_stall", stalls, "longest_stall_ns"),
        ("dirty_memory_time", several, "total_time_ns"),
    )
    for metric, frame, column in parts:
        for cell, cell_rows in frame.groupby(keys):
            study, vcpus, chunk, batch, memory = map(str, cell)
            values = cell_rows[column].to_numpy(dtype=float) * 1000 * PS
            interval = float(np.median(values)), *median_interval(values)
            rows.append((study, int(vcpus), int(chunk), int(batch), parse_size(memory), metric, *interval))
    return pd.DataFrame(rows, columns=[*_CELL, "memory", "metric", "value", "low", "high"])


def median_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Interval that contains the median with probability `LEVEL`, for any distribution of the values.

    Source: the binomial distribution of the number of values below the median.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    (2.0, 8.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    below = max(int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5)), 1)
    return float(ordered[below - 1]), float(ordered[len(ordered) - below])


def compare_held_out(fit: Fit) -> pd.DataFrame:
    """Compare held-out measurements with their predictions.

    Returns: The fit's observations with ``ratio`` (predicted over measured), ``bar`` (the tolerance as a string) and
    ``within`` (true if the prediction is within the tolerance).
    """
    cells = fit.observations.copy()
    cells["ratio"] = cells["model"] / cells["value"]
    stall = cells["metric"] == "longest_stall"
    cells["bar"] = np.where(stall, f"factor {STALL_TOLERANCE:g}", f"±{100 * CLEAR_TOLERANCE:.0f} %")
    stall_within = np.abs(np.log(cells["ratio"])) <= np.log(STALL_TOLERANCE)
    return cells.assign(within=np.where(stall, stall_within, np.abs(cells["ratio"] - 1) <= CLEAR_TOLERANCE))


def interrupted_shares(fit: Fit, data: HostData) -> pd.DataFrame:
    """Share of CLEAR's TLB flushes under load that interrupted a vCPU: as KVM counted it, and as predicted.

    The predicted share is the time of CLEAR in the model minus its own costs, divided by the cost of one interrupt per
    ioctl. Waits for the lock thus count as interrupts.

    Returns: ``vcpus``, ``chunk_pages``, ``counted``, ``predicted``; a row for each cell with several ioctls; no rows if
    the kernel does not count interrupts.
    """
    costs = dict(zip(fit.parameters["name"], fit.parameters["value"], strict=True))
    columns = ["vcpus", "chunk_pages", "counted", "predicted"]
    if "interrupt" not in costs or "flush_interrupts" not in data.runs:
        return pd.DataFrame(columns=columns)
    rows = fit.observations.query("study == 'load' and metric == 'clear_dirty_log_time' and chunk_pages > 0")
    pages = rows["vcpus"] * fit.scenario.guest.pages_per_vcpu
    calls = pages / rows["chunk_pages"]
    clear_costs = calls * sum(costs.get(name, 0.0) for name in ("clear_ioctl", "flush")) + pages * costs["clear_page"]
    predicted = ((rows["model"] / PS - clear_costs) / (calls * costs["interrupt"])).clip(0, 1)
    runs = data.runs[data.runs["experiment"] == "load"]
    counts = runs.groupby(["vcpus", "chunk_pages"])[["flush_interrupts", "flush_requests"]].sum()
    counted = (counts["flush_interrupts"] / counts["flush_requests"]).rename("counted").reset_index()
    return rows[["vcpus", "chunk_pages"]].assign(predicted=predicted).merge(counted)[columns]
