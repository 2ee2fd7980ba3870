# SPDX-License-Identifier: BSD-3-Clause
"""Times of enabling the log and of CLEAR on x86 with parked vCPUs, with and without splitting.

The lock is uncontended, so each cost is a slope of a published table. Costs of the shadow MMU are means over its rows
with at most 32 vCPUs; those of the TDP MMU come from its two published hosts, with 96 and 160 vCPUs. Memory on the
other socket takes `remote_ratio` times as long (`Scenario.host_costs`), a factor that was not fitted to these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simlib.analysis.predict import evaluate
from simlib.measurements import load
from simlib.model.pagetable import WORD_PAGES
from simlib.model.scenario import Scenario
from studies.study import FITTED, HELD_OUT, comparison_rows, student_t

MACHINE = "x86-published"
"""Name of the host that the x86 tables are taken to describe."""

ONE_SOCKET = 32
"""Number of vCPUs up to which the shadow MMU's table shows a constant time per GiB; the costs come from these rows."""

TOLERANCE_PERCENT = 15.0
"""Maximum deviation from a published time at which the model counts as agreeing, percent."""

CONTAINED = dict.fromkeys(("clear_word", "split_alloc", "flush"), 0)
"""Costs that other costs include, ps: of a word (in its pages), a table (in the split), a flush (in its vCPUs)."""

BLOCKS_PER_GIB, PAGES_PER_GIB = 512, 262144
_SHADOW, _TDP, _HOST_160 = "x86-shadow-eager-split-ioctl-time", "x86-tdp-eager-split", "x86-clear-dirty-log-160-vcpus"
_FLUSHES = "x86-disable-dirty-log-flushes"
TABLES = (_SHADOW, _TDP, _HOST_160, _FLUSHES)


def host(vcpus: int) -> dict[str, Any]:
    """Host section of a table's scenario; with 160 vCPUs the host has 160 CPUs."""
    return {"name": MACHINE} | ({"cores": 160} if vcpus == 160 else {})


def remote_factor(vcpus: int) -> float:
    """Slowdown of a walk over the page tables because part of them is on the other socket."""
    page_ps = 1_000_000
    case = Scenario.parse({"host": host(vcpus), "guest": {"vcpus": vcpus}}).with_costs(clear_page=page_ps)
    return (case.host_costs.clear_page or 0) / page_ps


def parked_costs() -> pd.DataFrame:
    """Costs of the ioctls with parked vCPUs: name, value, low, high (ps), how, cells.

    The interval is that of the mean of the logarithms over a table's rows. A single row has no interval; only the
    discrepancy of the whole fit covers its error. The cost of a split is the difference of two rows of one table: a
    CLEAR that splits blocks, and one that finds all blocks split. In unsplit blocks CLEAR pays for one entry in each
    word; the remaining time is `clear_unsplit`.
    """
    shadow = load(_SHADOW).rows(f"vcpus <= {ONE_SOCKET}")
    per_gib = shadow.assign(ps=shadow["ioctl_time_s"] / shadow["memory_gib"] * 1e12)
    every_page = per_gib[per_gib["phase"] == "clear-iteration-2"]["ps"]
    first = per_gib[per_gib["phase"] == "clear-iteration-1"].set_index("eager_page_split")["ps"]
    now = load(_HOST_160).rows("variant == 'after' and iteration >= 2")["clear_time_s"] / remote_factor(160) * 1e12
    tdp = load(_TDP).rows("initially_set == 'Y'").set_index(["phase", "variant"])["elapsed_time_s"]
    tdp = tdp / (96 * remote_factor(96)) * 1e12
    split = tdp["clear-iteration-1", "after"] - tdp["clear-iteration-3", "after"]
    flushes = load(_FLUSHES).frame.set_index("variant")
    saved = flushes.loc["before"] - flushes.loc["after"]
    flush = saved["disable_time_s"] / saved["flushes"] / 64 * 1e12
    page, entries = every_page.mean() / PAGES_PER_GIB, PAGES_PER_GIB // WORD_PAGES
    costs = [
        _mean("clear_page[shadow]", every_page / PAGES_PER_GIB, "CLEAR of all pages, iteration 2"),
        _mean("clear_unsplit[shadow]", (first["N"] - entries * page) / PAGES_PER_GIB,
              "CLEAR of unsplit blocks, iteration 1"),
        _mean("split_block[shadow]", (first["Y"] - every_page.mean()) / BLOCKS_PER_GIB,
              "CLEAR that splits, less clearing all pages"),
        _mean("clear_page[tdp]", now / (160 * PAGES_PER_GIB),
              "CLEAR of all pages, 160 vCPUs, after the change, iterations 2 and 3"),
        _mean("clear_unsplit[tdp]", pd.Series([(tdp["clear-iteration-1", "before"] - entries * page) / PAGES_PER_GIB]),
              "CLEAR of unsplit blocks, 96 vCPUs"),
        _mean("split_block[tdp]", pd.Series([split / BLOCKS_PER_GIB]),
              "CLEAR that splits, 96 vCPUs, less clearing all pages"),
        _mean("flush_per_vcpu", pd.Series([flush]), "disabling the log: time saved by each flush saved, 64 vCPUs"),
    ]  # fmt: skip
    return pd.DataFrame(costs)


def _mean(name: str, values: pd.Series, how: str) -> dict[str, object]:
    """Geometric mean of a cost's values with its interval."""
    logs = np.log(values.to_numpy(dtype=float))
    half = student_t(len(logs) - 1) * float(stats.sem(logs)) if len(logs) > 1 else 0.0
    value, low, high = (float(np.exp(logs.mean() + shift)) for shift in (0.0, -half, half))
    return {"name": name, "value": value, "low": low, "high": high, "how": how, "cells": len(logs)}


def parked_numbers() -> pd.DataFrame:
    """All published times of enabling the log and of CLEAR on x86, with the model's.

    Two equalities are assumed, not fitted: a page of the TDP MMU before March 2023 costs as much as one of the shadow
    MMU, and enabling the log costs as much per page as CLEAR.
    """
    rows = _published()
    known = {str(name): float(value) for name, value in parked_costs().set_index("name")["value"].items()}
    keys = ["kernel", "split", "vcpus", "initially_set"]
    runs = evaluate([_case(known, *key) for key in rows[keys].itertuples(index=False)], pages_per_vcpu=512)
    model = [run.value(metric) for run, metric in zip(runs, rows["metric"], strict=True)]
    metric = rows["phase"] + ", eager_page_split=" + rows["split"].map({True: "Y", False: "N"})
    role = np.where(_fitted(rows), FITTED, HELD_OUT)
    rows = rows.assign(variant=_describe(rows), metric=metric, unit="s", predicted=model, role=role)
    columns = ["variant", "vcpus", "metric", "published", "unit", "predicted", "role"]
    return comparison_rows(rows[columns], list(rows["table"]))


def _describe(rows: pd.DataFrame) -> pd.Series:
    """Description of each row's kernel and phase."""
    ioctl = rows["initially_set"].map({True: "CLEAR", False: "enabling"})
    action = np.where(rows["split"], " that splits", " of unsplit blocks")
    action = np.where(rows["initially_set"] & (rows["phase"] != "clear-iteration-1"), " of all pages", action)
    host = np.where(rows["table"] == _SHADOW, "", ", " + rows["vcpus"].astype(str) + " vCPUs")
    return rows["kernel"] + host + ": " + ioctl + action


_KERNELS = {"shadow MMU": ("shadow", "shadow"), "TDP MMU": ("shadow", "tdp"), "TDP MMU, 2023 change": ("tdp", "tdp")}
"""For each kernel in the tables: the MMU of its `clear_page`, and the MMU of its `clear_unsplit` and `split_block`."""


def _published() -> pd.DataFrame:
    """Published rows in a common format; ``split``: blocks are split eagerly; ``published``: s."""
    shadow, tdp, late = (load(name).frame for name in (_SHADOW, _TDP, _HOST_160))
    tdp = tdp[~tdp["phase"].str.startswith("dirty")]
    shadow = shadow.assign(table=_SHADOW, kernel="shadow MMU", split=shadow["eager_page_split"] == "Y",
                           published=shadow["ioctl_time_s"])  # fmt: skip
    tdp = tdp.assign(table=_TDP, kernel="TDP MMU", split=tdp["variant"] == "after", published=tdp["elapsed_time_s"],
                     vcpus=96)  # fmt: skip
    kernels = late["variant"].map({"before": "TDP MMU", "after": "TDP MMU, 2023 change"})
    late = late.assign(table=_HOST_160, kernel=kernels, split=True, published=late["clear_time_s"], vcpus=160,
                       phase="clear-iteration-" + late["iteration"].astype(str))  # fmt: skip
    rows = pd.concat([shadow, tdp, late], ignore_index=True)
    clears = rows["phase"].str.extract(r"clear-iteration-(\d)")[0]
    rows["initially_set"] = clears.notna()
    rows["metric"] = np.where(clears.notna(), "clear_dirty_log_time[" + clears.fillna("") + "]", "enable_time")
    return rows[["table", "kernel", "phase", "metric", "initially_set", "split", "vcpus", "published"]]


def _case(known: Mapping[str, float], kernel: str, split: bool, vcpus: int, initially_set: bool) -> Scenario:
    """Scenario of a published row, with the costs of its kernel."""
    page, block = _KERNELS[kernel]
    costs = {name: known[f"{name}[{block}]"] for name in ("clear_unsplit", "split_block")}
    costs |= dict.fromkeys(("clear_page", "enable_page"), known[f"clear_page[{page}]"])
    costs |= {"flush_per_vcpu": known["flush_per_vcpu"], **CONTAINED}
    architecture = "x86-shadow" if kernel == "shadow MMU" else "x86-tdp"
    guest = {"vcpus": vcpus, "memory_per_vcpu": "1G", "backing": "hugetlb_1gb"}
    policy = {"architecture": architecture, "eager_split": split, "split_alloc": "under_lock"}
    workload = {"iterations": 3 if initially_set else 1, "initially_set": initially_set}
    case = {"host": host(vcpus), "guest": guest, "policy": policy, "workload": workload}
    return Scenario.parse(case).with_costs(**costs)


def _fitted(rows: pd.DataFrame) -> pd.Series:
    """Mask of the rows from which a cost of `parked_costs` was taken."""
    few = (rows["table"] == _SHADOW) & (rows["vcpus"] <= ONE_SOCKET) & rows["phase"].str.startswith("clear")
    first = (rows["table"] == _TDP) & (rows["phase"] == "clear-iteration-1")
    third = (rows["table"] == _TDP) & (rows["phase"] == "clear-iteration-3") & rows["split"]
    late = (rows["kernel"] == "TDP MMU, 2023 change") & (rows["phase"] != "clear-iteration-1")
    return few | first | third | late
