# SPDX-License-Identifier: BSD-3-Clause
"""Costs of actions on the lab's machines as numbers of instructions: slopes against memory size, one parked vCPU.

In all functions, `name` is a machine, one of `simlib.lab.hardware.machines.LABS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from simlib._lib.histogram import quantile
from simlib.analysis.prediction_options import LEVEL
from simlib.lab.hardware.machines import lab_scenario, rows_of
from simlib.lab.record_tables import read_gaps
from simlib.lab.records import FAULT_SITES
from simlib.measurements.fits import CostEstimate, conventions
from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import parse_size
from simlib.model.scenario import ENTRY_COSTS
from simlib.vmm.qemu_rules import PAGE

COST_COLUMNS = ["name", "value", "low", "high", "how", "cells"]
"""Columns of costs: a field of `simlib.model.costs.Costs`; number of instructions, each 1 ns of the lab's clock,
with its `LEVEL` interval; how the cost is estimated; the number of cells used."""

Cost = tuple[str, float, float, float, str, int]


def _slope(name: str, how: str, pages: pd.Series, times: pd.Series) -> Cost:
    """Return the slope of a line with its interval: the median of the slopes between all pairs of points (Theil–Sen).

    A point that includes a timer interrupt is far from the line; it would distort a least-squares fit.
    """
    line = stats.theilslopes(times.to_numpy(dtype=float), pages.to_numpy(dtype=float), alpha=LEVEL)
    return name, float(line.slope), float(line.low_slope), float(line.high_slope), how, len(pages)


def _ioctls(kind: str, name: str) -> pd.DataFrame:
    """Load the ioctls of an experiment, with a column ``pages``: the pages of a vCPU's memory."""
    rows = rows_of(f"{kind}-ioctls", name)
    return rows.assign(pages=rows["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE))


def instruction_costs(name: str) -> pd.DataFrame:
    """Estimate costs of single actions (`COST_COLUMNS`) from cells with one vCPU, parked while the log is cleared.

    Every cost is the slope of a time against the pages (16 to 128 MiB), so that costs per run and ioctl cancel. With
    one vCPU there is no contention, and the clock advances only with the running thread.
    """
    ioctls, locks = _ioctls("memory", name), rows_of("memory-locks", name)
    whole = ioctls[ioctls["batch"] == 0]

    def of(what: str, number: int) -> pd.DataFrame:
        return whole[(whole["name"] == what) & (whole["round"] == number)]

    second = of("write", 2)
    if (second["protection"] == "initially_set").all():  # then nothing is protected before the first CLEAR
        first = of("write", 1)
        access = _slope("guest_access", "a write that needs no fault", first["pages"], first["total_time_ns"])
    else:
        once, twice = second[second["passes"] == 1], second[second["passes"] == 2]
        both = once.merge(twice, on="pages", suffixes=("", "_twice"))
        second_pass = both["total_time_ns_twice"] - both["total_time_ns"]
        access = _slope("guest_access", "a write that needs no fault, in a second pass", both["pages"], second_pass)
        second, whole = once, whole[whole["passes"] == 1]
        ioctls, locks = ioctls[ioctls["passes"] == 1], locks[locks["passes"] == 1]
    faults = locks[locks["site"].isin(FAULT_SITES)]
    enable, clear = of("enable", 0), of("clear", 2)
    costs = [access]
    if (enable["protection"] == "enable").all():
        costs.append(_slope("enable_page", "enabling the log", enable["pages"], enable["total_time_ns"]))
    what, held = "hold of mmu_lock by faults", faults[(faults["phase"] == "rounds") & (faults["batch"] == 0)]
    if not len(held):  # lockless faults: the hold is then that of the faults that map pages
        what, held = f"{what} that map a page", faults[faults["phase"] == "populate"]
    hold = _slope("fault_hold", what, held["acquisitions"], held["hold_time_ns"])
    _, fault, low, high, _, cells = _slope("", "", second["pages"], second["total_time_ns"])
    unlocked = (fault - access[1] - hold[1], low - access[3] - hold[1], high - access[2] - hold[1])
    costs += [hold, ("fault_unlocked", *unlocked, "a write with a fault, minus access and hold", cells)]
    costs.append(_slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]))
    return _separate_costs(pd.DataFrame([*costs, _reacquire(ioctls)], columns=COST_COLUMNS), name)


def _separate_costs(costs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Separate the guest's TLB flushes, and the fences of page-table entries, from the other costs."""
    scenario = lab_scenario(name)
    if every := scenario.workload.flush_accesses:
        costs = _subtract(costs, _flush(name, every), 1 / every, ("guest_access", "fault"))
    if scenario.policy.facts.page_fence:  # each changed entry was fenced for one vCPU
        costs = _subtract(costs, _fence(name), 1, (*ENTRY_COSTS, "fault"))
    return costs


def _subtract(costs: pd.DataFrame, part: Cost, share: float, names: Sequence[str]) -> pd.DataFrame:
    """Subtract a share of the cost `part` from the costs in `names`, and append `part` to the table."""
    _, value, low, high, _, _ = part
    rows = costs["name"].isin(names).to_numpy()
    remaining = costs.copy()
    for key, amount in (("value", value), ("low", high), ("high", low)):
        remaining[key] -= rows * share * amount
    return pd.concat([remaining, pd.DataFrame([part], columns=COST_COLUMNS)], ignore_index=True)


def _flush(name: str, every: int) -> Cost:
    """Estimate the cost of a guest's TLB flush from the gaps of parked cells; one gap in `every` includes a flush."""
    stalls = rows_of("memory-stalls", name)
    differences = []
    for texts in (stalls["gaps"].iloc[i : i + 1] for i in range(len(stalls))):
        gaps = read_gaps(texts)
        usual, flushed = (quantile(gaps["from"], gaps["to"], gaps["count"], at) for at in (0.5, 1 - 0.5 / every))
        differences.append(flushed - usual)
    values = pd.Series(differences)
    middle, low, high = float(values.median()), float(values.min()), float(values.max())
    return "guest_flush", middle, low, high, "a write with a flush, minus one without", len(values)


def _fence(name: str) -> Cost:
    """Estimate the cost of fencing a changed entry for one vCPU from whole-ioctl CLEARs, by number of parked vCPUs."""
    ioctls = _ioctls("counts", name)
    clear = ioctls[(ioctls["name"] == "clear") & (ioctls["batch"] == 0)]
    page_times = clear["total_time_ns"] / clear["dirty_pages"]
    return _slope("fence_vcpu", "CLEAR of a page, slope against the number of vCPUs", clear["vcpus"], page_times)


def _reacquire(ioctls: pd.DataFrame) -> Cost:
    """Estimate the cost of dropping and reacquiring mmu_lock from both rounds' CLEARs, which execute the same code."""
    clears = ioctls[ioctls["name"] == "clear"]
    batched, whole = (clears[clears["batch"] == batch] for batch in (WORD_PAGES, 0))
    both = batched.merge(whole, on=["pages", "round"], suffixes=("", "_whole"))
    how = "CLEAR that drops mmu_lock after every word, minus CLEAR that does not drop it"
    extra = both["total_time_ns"] - both["total_time_ns_whole"]
    return _slope("reacquire", how, both["pages"] / WORD_PAGES, extra)


def plain_costs(name: str) -> pd.DataFrame:
    """Estimate costs on a kernel without the lab's statistics: a whole fault, a page of CLEAR, a drop of mmu_lock.

    Returns: `COST_COLUMNS` of ``fault`` (with the access), ``clear_page``, ``reacquire``, and of separated costs.
    """
    ioctls = _ioctls("plain", name)
    ioctls = ioctls[ioctls["passes"] == ioctls["passes"].min()]
    second = ioctls[(ioctls["round"] == 2) & (ioctls["batch"] == 0)]
    writes, clear = second[second["name"] == "write"], second[second["name"] == "clear"]
    costs = [
        _slope("fault", "a write to a protected page", writes["pages"], writes["total_time_ns"]),
        _slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]),
        _reacquire(ioctls),
    ]
    return _separate_costs(pd.DataFrame(costs, columns=COST_COLUMNS), name)


def cost_estimate(
    costs: pd.DataFrame, name: str, discrepancy: float = 0.0, spread: Mapping[str, float] | None = None, dof: int = 0
) -> CostEstimate:
    """Convert costs from `instruction_costs` into an estimate, with 1 ns per instruction.

    - `discrepancy`, `spread`: as in `simlib.measurements.fits.CostEstimate`.
    - `dof`: degrees of freedom of the discrepancy; 0: those of the cost with the fewest cells.
    """
    values, widths = costs["value"].to_numpy(), (costs["high"] - costs["low"]).to_numpy()
    names, dof = tuple(costs["name"]), dof or int(costs["cells"].min()) - 2
    # The covariance gives the costs these intervals for any degrees of freedom of the predictions.
    covariance = np.diag((widths / 2 / stats.t.ppf(0.5 + LEVEL / 2, dof) / values) ** 2)
    fixed = conventions(lab_scenario(name))
    return CostEstimate(names, np.log(values * 1000), covariance, dof, discrepancy, spread or {}, **fixed)
