# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes: the lab's cells under load, compared with simulations that use the lab's costs.

In all functions, `name` is a machine, one of `simlib.lab.hardware.machines.LABS`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.histogram import quantile
from simlib.analysis.predict import evaluate
from simlib.analysis.prediction_options import LEVEL, PAGES_PER_VCPU
from simlib.lab.hardware.instructions import cost_estimate, instruction_costs
from simlib.lab.hardware.machines import COARSE_TURN, FINE_TURN, lab_case, lab_scenario, rows_of
from simlib.lab.record_tables import read_gaps
from simlib.lab.records import FAULT_SITES
from simlib.measurements.fits import CostEstimate, Fit
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS

METRICS = {
    "clear_dirty_log_time": "time of CLEAR", "longest_stall": "longest stall", "gap_p50": "median gap",
    "gap_p99": "99th percentile of gaps", "gap_p999": "99.9th percentile of gaps",
}  # fmt: skip
"""Metrics that are compared under load. Gaps: times between two accesses of a vCPU since round 1."""

MAIN_METRICS = ("clear_dirty_log_time", "gap_p999", "longest_stall")
"""Metrics in figures and text; the others are only in the table."""

SMALL_BATCH = 64
"""Pages per hold of mmu_lock with the batch of the April 2024 mail."""

SEEDS = range(1, 12)
"""Seeds of the simulator; the medians of the results over them are compared."""


def load_comparison(name: str, estimate: CostEstimate) -> pd.DataFrame:
    """Compare times and stalls under load, in the lab and in the simulator.

    Returns: ``vcpus``, ``batch``, ``metric``, ``lab`` (median over the seeds, s), ``lab_low`` and ``lab_high`` (their
    range), ``model``, ``error`` (model over lab, minus one).

    - `estimate`: costs, such as `cost_estimate` of the machine's `instruction_costs`.
    """
    return _compare(name, estimate, rows_of("fine-ioctls", name), rows_of("fine-stalls", name))


TURN_TABLES = {100: "turns", FINE_TURN: "fine", 500: "turns", 1000: "turns", COARSE_TURN: "load"}
"""Tables of the same cells, by the mean length of a turn in instructions."""


def turn_comparison(name: str, estimate: CostEstimate) -> pd.DataFrame:
    """Compare lab and simulator at several lengths of a CPU's turn, for the cell with 4 vCPUs and 64 pages per hold.

    Returns: ``turn`` (instructions), and the columns of `load_comparison`. Tables with `COARSE_TURN` have no gaps.

    - `name`: one of `TURN_MACHINES`.
    """
    parts = []
    for turn, table in TURN_TABLES.items():
        kind = f"{table}{turn}" if table == "turns" else table
        tables = (rows_of(f"{table}-{what}", name, kind) for what in ("ioctls", "stalls"))
        ioctls, stalls = (rows[(rows["vcpus"] == 4) & (rows["batch"] == SMALL_BATCH)] for rows in tables)
        parts.append(_compare(name, estimate, ioctls, stalls).assign(turn=turn))
    return pd.concat(parts, ignore_index=True)


TURN_MACHINES = ("x86-shadow", "arm64-read", "riscv")
"""Machines measured with several lengths of a turn."""


def _compare(name: str, estimate: CostEstimate, ioctls: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Compare cells of one machine with the simulator's."""
    cells, first = measured_cells(ioctls, stalls), ioctls.groupby(CELL, as_index=False).first()
    cases = [estimate.apply(lab_case(name, row)) for _, row in first.iterrows()]
    metrics = list(cells["metric"].unique())
    model = first[CELL].join(pd.DataFrame(medians(cases, metrics, SEEDS), columns=metrics))
    cells = cells.merge(model.melt(CELL, var_name="metric", value_name="model"))
    return cells.assign(error=cells["model"] / cells["lab"] - 1).drop(columns="memory_per_vcpu")


def medians(cases: Sequence[Scenario], metrics: Sequence[str], seeds: Iterable[int]) -> NDArray[np.float64]:
    """Return medians over seeds of the simulator, shape (cases, metrics)."""
    runs = [evaluate(cases, pages_per_vcpu=None, seed=seed) for seed in seeds]
    values = [[[run.value(metric) for metric in metrics] for run in seed_runs] for seed_runs in runs]
    return np.asarray(np.median(values, axis=0))


CELL = ["vcpus", "memory_per_vcpu", "batch"]
"""Columns that identify a cell of one machine."""


def measured_cells(ioctls: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Summarize the lab's results under load on one machine (`rows_of`) over the seeds of each cell; times in s.

    Returns: `CELL`, ``metric``, ``lab`` (median), ``lab_low``, ``lab_high`` (range).
    """
    stalls_by_cell, table = dict(list(stalls.groupby(CELL))), []
    for key, rows in ioctls[ioctls["name"] == "clear"].groupby(CELL):
        for metric, values in _metric_values(rows, stalls_by_cell[key]).items():
            seconds = (float(x) * 1000 * PS for x in (values.median(), values.min(), values.max()))
            table.append((*key, metric, *seconds))
    return pd.DataFrame(table, columns=[*CELL, "metric", "lab", "lab_low", "lab_high"])


def _metric_values(clears: pd.DataFrame, stalls: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the lab's results of one cell by metric: a number of instructions for each seed."""
    seeds = stalls.groupby("seed")
    values = {"clear_dirty_log_time": clears.groupby("seed")["total_time_ns"].sum()}
    values["longest_stall"] = seeds["longest_stall_in_clear_ns"].max()
    gaps = [read_gaps(texts) for _, texts in seeds["gaps"]] if "gaps" in stalls else []
    for metric, share in {"gap_p50": 0.5, "gap_p99": 0.99, "gap_p999": 0.999}.items() if gaps else ():
        values[metric] = pd.Series([quantile(rows["from"], rows["to"], rows["count"], share) for rows in gaps])
    return values


def lab_fit(name: str) -> Fit:
    """Return the costs of a machine of the lab as a fit: ``data/fits/lab-<name>.json``.

    The costs come from parked cells; the discrepancy of the model comes from the cells under load, one
    deviation per metric.
    """
    costs = instruction_costs(name)
    comparison = load_comparison(name, cost_estimate(costs, name))
    deviations = np.log1p(comparison["error"]).pow(2).groupby(comparison["metric"]).mean().pow(0.5)
    clear, dof = deviations.pop("clear_dirty_log_time"), int((comparison["metric"] == "clear_dirty_log_time").sum()) - 1
    estimate = cost_estimate(costs, name, float(clear), (deviations / clear).to_dict(), dof)
    parameters = pd.DataFrame(
        {"name": costs["name"], "value": np.exp(estimate.logs), "low": costs["low"] * 1000,
         "high": costs["high"] * 1000, "at_bound": False, "determined": costs["low"] > 0}
    )  # fmt: skip
    observations = comparison.rename(columns={"lab": "value"})[["vcpus", "batch", "metric", "value", "model", "error"]]
    determined = bool(parameters["determined"].all())
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": "memory-ioctls and memory-locks",
        "train": "slopes over 16 to 128 MiB, one vCPU that is parked; no observation below",
        "seed": 1,
        "pages_per_vcpu": PAGES_PER_VCPU,
        "level": LEVEL,
        "valid": {"more_data_than_costs": bool(costs["cells"].min() > 2), "all_determined": determined},
    }
    return Fit(lab_scenario(name), estimate, parameters, observations.assign(variant="", train=False), meta)


def load_errors(load: pd.DataFrame) -> pd.DataFrame:
    """Summarize errors under load, and separately the errors of cells with `SMALL_BATCH` pages per hold.

    Returns: machine (``all``: all machines), metric, cells, ``median_64``, ``largest_64``, ``median``, ``largest`` (of
    all batches), ``turned`` (`reversed_orders`).
    """
    machines = [(str(machine), cells) for machine, cells in load.groupby("machine", sort=False)]
    rows = []
    for machine, cells in [*machines, ("all", load)]:
        for metric, part in cells.groupby("metric", sort=False):
            error = part["error"].abs()
            small = error[part["batch"] == SMALL_BATCH]
            turned = sum(reversed_orders(machine_cells) for _, machine_cells in part.groupby("machine"))
            rows.append((machine, metric, len(part), small.median(), small.max(), error.median(), error.max(), turned))
    columns = ["machine", "metric", "cells", "median_64", "largest_64", "median", "largest", "turned"]
    return pd.DataFrame(rows, columns=columns)


def contended_share(machine: str) -> pd.Series:
    """Share of faults' acquisitions that are contended if CLEAR never drops mmu_lock, by number of vCPUs.

    The guest writes meanwhile; counts are medians over the seeds.
    """
    rows = rows_of("load-locks", machine)
    faults = rows[(rows["phase"] == "rounds") & rows["site"].isin(FAULT_SITES) & (rows["batch"] == 0)]
    sums = faults.groupby(["vcpus", "seed"])[["contentions", "acquisitions"]].sum().groupby("vcpus").median()
    return sums["contentions"] / sums["acquisitions"]


def reversed_orders(cells: pd.DataFrame) -> int:
    """Count the pairs of batches that model and lab order differently; pairs whose ranges overlap are ignored.

    - `cells`: cells of one machine and metric, from `load_comparison`.
    """
    wrong = 0
    for _, group in cells.groupby("vcpus"):
        for first, second in combinations(group.to_dict("records"), 2):
            distinct = first["lab_low"] > second["lab_high"] or first["lab_high"] < second["lab_low"]
            wrong += int(distinct and (first["lab"] < second["lab"]) != (first["model"] < second["model"]))
    return wrong
