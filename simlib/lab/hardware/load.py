# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes: the lab's cells under load beside the simulator with the lab's instruction costs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.histogram import quantile
from simlib.analysis.predict import LEVEL, PAGES_PER_VCPU, evaluate
from simlib.lab.hardware.instructions import cost_estimate, instruction_costs
from simlib.lab.hardware.machines import COARSE, FINE, lab_case, lab_scenario, rows_of
from simlib.lab.records import FAULT_SITES, read_gaps
from simlib.measurements.fits import CostEstimate, Fit
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS

METRICS = {
    "clear_dirty_log_time": "time of CLEAR", "longest_stall": "longest stall", "gap_p50": "median gap",
    "gap_p99": "99th percentile of gaps", "gap_p999": "99.9th percentile of gaps",
}  # fmt: skip
"""What is compared under load. Gaps: times from access to access of all vCPUs, from the first round on."""

SHOWN = ("clear_dirty_log_time", "gap_p999", "longest_stall")
"""Those of `METRICS` that are drawn and told; the others are in the table."""

SMALL = 64
"""Pages a hold where the choice of a batch is made."""

SEEDS = range(1, 12)
"""Seeds of the simulator, of whose results the median counts."""


def load_comparison(name: str, estimate: CostEstimate) -> pd.DataFrame:
    """Times and stalls under load: the lab's cells beside the simulator's.

    Returns: ``vcpus``, ``batch``, ``metric``, ``lab`` (median over the seeds, s), ``lab_low`` and ``lab_high`` (their
    range), ``model``, ``error`` (model over lab, less one).

    - `name`: one of `simlib.lab.hardware.machines.LABS`.
    - `estimate`: such as `cost_estimate` of the machine's `instruction_costs`.
    """
    return _compared(name, estimate, rows_of("fine-ioctls", name), rows_of("fine-stalls", name))


RULERS = {100: "turns", FINE: "fine", 500: "turns", 1000: "turns", COARSE: "load"}
"""Lengths of a turn, instructions, at which the same cells were measured, and whose tables have them."""


def turn_comparison(name: str, estimate: CostEstimate) -> pd.DataFrame:
    """What the length of a CPU's turn makes of the cell with 4 vCPUs and 64 pages a hold.

    Returns: ``turn`` (instructions), and the columns of `load_comparison`. Tables of `COARSE` turns kept no gaps.

    - `name`: one of `RULED`.
    """
    parts = []
    for turn, table in RULERS.items():
        kind = f"{table}{turn}" if table == "turns" else table
        each = (rows_of(f"{table}-{what}", name, kind) for what in ("ioctls", "stalls"))
        ioctls, stalls = (rows[(rows["vcpus"] == 4) & (rows["batch"] == SMALL)] for rows in each)
        parts.append(_compared(name, estimate, ioctls, stalls).assign(turn=turn))
    return pd.concat(parts, ignore_index=True)


RULED = ("x86-shadow", "arm64-read", "riscv")
"""Machines that were measured with several lengths of a turn."""


def _compared(name: str, estimate: CostEstimate, ioctls: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """Cells of one machine beside the simulator's."""
    cells, first = measured_cells(ioctls, stalls), ioctls.groupby(CELL, as_index=False).first()
    cases = [estimate.apply(lab_case(name, row)) for _, row in first.iterrows()]
    metrics = list(cells["metric"].unique())
    model = first[CELL].join(pd.DataFrame(medians(cases, metrics, SEEDS), columns=metrics))
    cells = cells.merge(model.melt(CELL, var_name="metric", value_name="model"))
    return cells.assign(error=cells["model"] / cells["lab"] - 1).drop(columns="memory_per_vcpu")


def medians(cases: Sequence[Scenario], metrics: Sequence[str], seeds: Iterable[int]) -> NDArray[np.float64]:
    """Medians over some seeds of the simulator, shape (cases, metrics)."""
    runs = [evaluate(cases, pages_per_vcpu=None, seed=seed) for seed in seeds]
    return np.asarray(np.median([[[run.value(metric) for metric in metrics] for run in each] for each in runs], axis=0))


CELL = ["vcpus", "memory_per_vcpu", "batch"]
"""Columns that tell the cells of one machine apart."""


def measured_cells(ioctls: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """What the lab measured under load, over the seeds of each cell, s.

    Returns: `CELL`, ``metric``, ``lab`` (median), ``lab_low``, ``lab_high`` (range).

    - `ioctls`, `stalls`: rows of one machine, as `rows_of` gives them.
    """
    seen, out = dict(list(stalls.groupby(CELL))), []
    for key, rows in ioctls[ioctls["name"] == "clear"].groupby(CELL):
        for metric, values in _measured(rows, seen[key]).items():
            numbers = (float(x) * 1000 * PS for x in (values.median(), values.min(), values.max()))
            out.append((*key, metric, *numbers))
    return pd.DataFrame(out, columns=[*CELL, "metric", "lab", "lab_low", "lab_high"])


def _measured(clears: pd.DataFrame, stalls: pd.DataFrame) -> dict[str, pd.Series]:
    """What the lab measured in one cell, by metric: a value a seed, instructions."""
    seeds = stalls.groupby("seed")
    found = {
        "clear_dirty_log_time": clears.groupby("seed")["total_time_ns"].sum(),
        "longest_stall": seeds["longest_stall_in_clear_ns"].max(),
    }
    if "gaps" in stalls:
        gaps = [read_gaps(texts) for _, texts in seeds["gaps"]]
        found |= {
            f"gap_p{digits}": pd.Series(
                [quantile(own["from"], own["to"], own["count"], float(f"0.{digits}")) for own in gaps]
            )
            for digits in ("50", "99", "999")
        }
    return found


def lab_fit(name: str) -> Fit:
    """The costs of one of the lab's machines as a fit: ``data/fits/lab-<name>.json``.

    The costs come from parked cells; how far the model may be off comes from the cells under load, a deviation for
    each metric.

    - `name`: one of `simlib.lab.hardware.machines.LABS`.
    """
    costs = instruction_costs(name)
    seen = load_comparison(name, cost_estimate(costs, name))
    deviations = np.log1p(seen["error"]).pow(2).groupby(seen["metric"]).mean().pow(0.5)
    own, dof = float(deviations["clear_dirty_log_time"]), int((seen["metric"] == "clear_dirty_log_time").sum()) - 1
    estimate = cost_estimate(costs, name, own, (deviations.drop("clear_dirty_log_time") / own).to_dict(), dof)
    parameters = pd.DataFrame(
        {"name": costs["name"], "value": np.exp(estimate.logs), "low": costs["low"] * 1000,
         "high": costs["high"] * 1000, "at_bound": False, "determined": costs["low"] > 0}
    )  # fmt: skip
    observations = seen.rename(columns={"lab": "value"})[["vcpus", "batch", "metric", "value", "model", "error"]]
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": "memory-ioctls and memory-locks",
        "train": "slopes over 16 to 128 MiB, one vCPU that is parked; no observation below",
        "seed": 1,
        "pages_per_vcpu": PAGES_PER_VCPU,
        "level": LEVEL,
        "valid": {
            "more_data_than_costs": bool(costs["cells"].min() > 2),
            "all_determined": bool(parameters["determined"].all()),
        },
    }
    return Fit(lab_scenario(name), estimate, parameters, observations.assign(variant="", train=False), meta)


def load_errors(load: pd.DataFrame) -> pd.DataFrame:
    """Median and largest error under load: those of cells with `SMALL` pages a hold, where batches are decided, first.

    Returns: machine (``all``: of all of them), metric, cells, ``median_64``, ``largest_64``, ``median``, ``largest``
    (of all batches), ``turned`` (`directions`).
    """
    each = [(str(machine), cells) for machine, cells in load.groupby("machine", sort=False)]
    rows = []
    for machine, cells in [*each, ("all", load)]:
        for metric, part in cells.groupby("metric", sort=False):
            error = part["error"].abs()
            small = error[part["batch"] == SMALL]
            turned = sum(directions(own) for _, own in part.groupby("machine"))
            rows.append((machine, metric, len(part), small.median(), small.max(), error.median(), error.max(), turned))
    columns = ["machine", "metric", "cells", "median_64", "largest_64", "median", "largest", "turned"]
    return pd.DataFrame(rows, columns=columns)


def contended_share(machine: str) -> pd.Series:
    """Of the acquisitions by faults while the guest writes and CLEAR holds on, the share that had to wait, by vCPUs.

    - `machine`: one of the lab's, ``arm64-read`` say; the median over its seeds.
    """
    rows = rows_of("load-locks", machine)
    faults = rows[(rows["phase"] == "rounds") & rows["site"].isin(FAULT_SITES) & (rows["batch"] == 0)]
    sums = faults.groupby(["vcpus", "seed"])[["contentions", "acquisitions"]].sum().groupby("vcpus").median()
    return sums["contentions"] / sums["acquisitions"]


def directions(cells: pd.DataFrame) -> int:
    """How many pairs of batches the model orders the other way than the lab, of those beyond the range of its seeds.

    - `cells`: cells of one machine and metric, as `load_comparison` gives them.
    """
    wrong = 0
    for _, group in cells.groupby("vcpus"):
        for one, other in combinations(group.to_dict("records"), 2):
            apart = one["lab_low"] > other["lab_high"] or one["lab_high"] < other["lab_low"]
            wrong += int(apart and (one["lab"] < other["lab"]) != (one["model"] < other["model"]))
    return wrong
