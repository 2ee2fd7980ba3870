# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes: the lab's cells under load beside the simulator with the lab's instruction costs."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd

from simlib.engine.result import PS
from simlib.fits import CostEstimate, Fit
from simlib.histogram import quantile
from simlib.lab.records import FAULT_SITES, read_gaps
from simlib.prediction import LEVEL, PAGES_PER_VCPU, evaluate
from simlib.studies.lab.instructions import cost_estimate, instruction_costs
from simlib.studies.lab.machines import lab_case, lab_scenario, rows_of

METRICS = {"clear_dirty_log_time": "CLEAR time", "longest_stall": "longest stall", "gap_p50": "median gap",
           "gap_p99": "99 % of the gaps", "gap_p999": "99.9 % of the gaps"}  # fmt: skip
"""What is compared under load. Gaps: times from access to access of all vCPUs, from the first round on."""

SEEDS = range(1, 12)
"""Seeds of the simulator, of whose results the median counts."""


def load_comparison(name: str, estimate: CostEstimate, experiment: str = "fine") -> pd.DataFrame:
    """Times and stalls under load: the lab's cells beside the simulator's.

    Returns: ``vcpus``, ``batch``, ``metric``, ``lab`` (median over the seeds, s), ``lab_low`` and ``lab_high`` (their
    range), ``model``, ``error`` (model over lab, less one).

    - `name`: one of `simlib.studies.lab.machines.LABS`.
    - `estimate`: such as `cost_estimate` of the machine's `instruction_costs`.
    - `experiment`: ``fine``, or ``load``, whose turns were ten times as long, and which kept no gaps.
    """
    ioctls, stalls = rows_of(f"{experiment}-ioctls", name), rows_of(f"{experiment}-stalls", name)
    groups = dict(list(ioctls[ioctls["name"] == "clear"].groupby(["vcpus", "batch"])))
    cases = [estimate.apply(lab_case(name, rows.iloc[0])) for rows in groups.values()]
    runs = [[run.metrics for run in evaluate(cases, seed=seed)] for seed in SEEDS]
    out = []
    for number, ((vcpus, pages), rows) in enumerate(groups.items()):
        seen = stalls[(stalls["vcpus"] == vcpus) & (stalls["batch"] == pages)]
        for metric, values in _measured(rows, seen).items():
            lab, low, high = (float(x) * 1000 * PS for x in (values.median(), values.min(), values.max()))
            model = float(np.median([run[number][metric] for run in runs]))
            out.append((vcpus, pages, metric, lab, low, high, model, model / lab - 1))
    columns = ["vcpus", "batch", "metric", "lab", "lab_low", "lab_high", "model", "error"]
    return pd.DataFrame(out, columns=columns)


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

    The costs come from parked cells with one vCPU; how far the model may be off comes from the cells under load,
    which is what they are for: deviations of CLEAR times and, larger, of stalls.

    - `name`: one of `simlib.studies.lab.machines.LABS`.
    """
    costs = instruction_costs(name)
    seen = load_comparison(name, cost_estimate(costs, name))
    deviations = np.log1p(seen["error"]).pow(2).groupby(seen["metric"]).mean().pow(0.5)
    clear = float(deviations["clear_dirty_log_time"])
    estimate = cost_estimate(costs, name, clear, {"longest_stall": float(deviations["longest_stall"]) / clear})
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
    """Median and largest error of cells under load: machine, metric, cells, median, largest, turned."""
    rows = []
    for (machine, metric), cells in load.groupby(["machine", "metric"], sort=False):
        error = cells["error"].abs()
        rows.append((machine, metric, len(cells), float(error.median()), float(error.max()), directions(cells)))
    for metric, cells in load.groupby("metric", sort=False):
        error, turned = cells["error"].abs(), sum(row[-1] for row in rows if row[1] == metric)
        rows.append(("all", metric, len(error), float(error.median()), float(error.max()), turned))
    return pd.DataFrame(rows, columns=["machine", "metric", "cells", "median", "largest", "turned"])


def contended_share(machine: str) -> pd.Series:
    """Of the acquisitions by faults while the guest writes and CLEAR holds on, the share that had to wait, by vCPUs.

    - `machine`: one of the lab's, ``arm64-read`` say; the median over its seeds.
    """
    rows = rows_of("load-locks", machine)
    faults = rows[(rows["phase"] == "rounds") & rows["site"].isin(FAULT_SITES) & (rows["batch"] == 0)]
    sums = faults.groupby(["vcpus", "seed"])[["contentions", "acquisitions"]].sum().groupby("vcpus").median()
    return sums["contentions"] / sums["acquisitions"]


def directions(cells: pd.DataFrame) -> int:
    """In how many cells a batch moves the model the other way than the lab, beyond the range of the lab's seeds.

    - `cells`: cells of one machine and metric, as `load_comparison` gives them.
    """
    wrong = 0
    for _, group in cells.groupby("vcpus"):
        rows = group.set_index("batch")
        whole = rows.loc[0]
        for batch in rows.index[rows.index != 0]:
            cell = rows.loc[batch]
            apart = cell["lab_low"] > whole["lab_high"] or cell["lab_high"] < whole["lab_low"]
            wrong += int(apart and np.sign(cell["lab"] - whole["lab"]) != np.sign(cell["model"] - whole["model"]))
    return wrong
