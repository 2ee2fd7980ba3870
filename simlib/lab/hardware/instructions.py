# SPDX-License-Identifier: BSD-3-Clause
"""What actions cost on the lab's machines, in instructions: slopes over memory, with one vCPU that is parked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from simlib._lib.histogram import quantile
from simlib.analysis.predict import LEVEL
from simlib.lab.hardware.machines import PAGE, lab_scenario, rows_of
from simlib.lab.records import FAULT_SITES, read_gaps
from simlib.measurements.fits import CostEstimate, conventions
from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import parse_size
from simlib.model.scenario import OF_AN_ENTRY

COST_COLUMNS = ["name", "value", "low", "high", "how", "cells"]
"""Columns of costs: a field of `simlib.model.costs.Costs`; instructions, which are nanoseconds of the lab's clock, with
the interval of `LEVEL`; which slope it is; how many cells the estimate rests on."""

Cost = tuple[str, float, float, float, str, int]


def _slope(name: str, how: str, pages: pd.Series, times: pd.Series) -> Cost:
    """Slope of a line, with its interval: the median of the slopes between all pairs of points (Theil and Sen).

    All points lie on the line, but for one in which a timer's interrupt fell: least squares would follow that one.
    """
    line = stats.theilslopes(times.to_numpy(dtype=float), pages.to_numpy(dtype=float), alpha=LEVEL)
    return name, float(line.slope), float(line.low_slope), float(line.high_slope), how, len(pages)


def _ioctls(kind: str, name: str) -> pd.DataFrame:
    """Ioctls of an experiment with ``pages``, those of its whole memory."""
    rows = rows_of(f"{kind}-ioctls", name)
    return rows.assign(pages=rows["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE))


def instruction_costs(name: str) -> pd.DataFrame:
    """Costs of single actions (`COST_COLUMNS`), from cells with one vCPU that is parked while the log is cleared.

    Every cost is the slope of a time over the pages (16 to 128 MiB), so that what happens once a run or an
    ioctl drops out. With one vCPU nobody contends: the clock is that of whoever runs.

    - `name`: one of `simlib.lab.hardware.machines.LABS`.
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
        access = _slope("guest_access", "a write that needs no fault, as a second pass", both["pages"], second_pass)
        second, whole = once, whole[whole["passes"] == 1]
        ioctls, locks = ioctls[ioctls["passes"] == 1], locks[locks["passes"] == 1]
    faults = locks[locks["site"].isin(FAULT_SITES)]
    enable, clear = of("enable", 0), of("clear", 2)
    found = [access]
    if (enable["protection"] == "enable").all():
        found.append(_slope("enable_page", "enabling the log", enable["pages"], enable["total_time_ns"]))
    what, held = "lock held over acquisitions of faults", faults[(faults["phase"] == "rounds") & (faults["batch"] == 0)]
    if not len(held):  # lockless: the model's faults are as long in all, and these are known by those that map
        what, held = f"{what} that map a page", faults[faults["phase"] == "populate"]
    hold = _slope("fault_hold", what, held["acquisitions"], held["hold_time_ns"])
    _, fault, low, high, _, cells = _slope("", "", second["pages"], second["total_time_ns"])
    outside = (fault - access[1] - hold[1], low - access[3] - hold[1], high - access[2] - hold[1])
    found += [hold, ("fault_unlocked", *outside, "the rest of that write", cells)]
    found.append(_slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]))
    return _taken_apart(pd.DataFrame([*found, _reacquire(ioctls)], columns=COST_COLUMNS), name)


def _taken_apart(costs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Costs without the guest's flushes and without the fences of entries, and these beside them."""
    scenario = lab_scenario(name)
    if every := scenario.workload.flush_accesses:
        costs = _without(costs, _flush(name, every), 1 / every, ("guest_access", "fault"))
    if scenario.policy.facts.page_fence:  # one vCPU was told of each entry
        costs = _without(costs, _fence(name), 1, (*OF_AN_ENTRY, "fault"))
    return costs


def _without(costs: pd.DataFrame, part: Cost, share: float, names: Sequence[str]) -> pd.DataFrame:
    """Costs of which a share of another one is a part, without it, and that one beside them."""
    name, value, low, high, how, cells = part
    rows = costs["name"].isin(names).to_numpy()
    left = costs.copy()
    for key, most in (("value", value), ("low", high), ("high", low)):
        left[key] -= rows * share * most
    return pd.concat(
        [left, pd.DataFrame([(name, value, low, high, how, cells)], columns=COST_COLUMNS)], ignore_index=True
    )


def _flush(name: str, every: int) -> Cost:
    """A flush of the guest's own TLB, from the gaps of parked cells: one in so many has one, beside its fault."""
    stalls = rows_of("memory-stalls", name)
    found = []
    for texts in (stalls["gaps"].iloc[i : i + 1] for i in range(len(stalls))):
        gaps = read_gaps(texts)
        usual, flushed = (quantile(gaps["from"], gaps["to"], gaps["count"], at) for at in (0.5, 1 - 0.5 / every))
        found.append(flushed - usual)
    values = pd.Series(found)
    middle, low, high = float(values.median()), float(values.min()), float(values.max())
    return "guest_flush", middle, low, high, "a write with a flush, less the usual one", len(values)


def _fence(name: str) -> Cost:
    """Telling one vCPU of an entry that changed, from whole CLEARs with one parked vCPU and with several."""
    ioctls = _ioctls("counts", name)
    clear = ioctls[(ioctls["name"] == "clear") & (ioctls["batch"] == 0)]
    return _slope(
        "fence_vcpu", "CLEAR of a page, by vCPUs", clear["vcpus"], clear["total_time_ns"] / clear["dirty_pages"]
    )


def _reacquire(ioctls: pd.DataFrame) -> Cost:
    """Letting go and taking the lock again, from the CLEARs of both rounds: in each it is the same code."""
    clears = ioctls[ioctls["name"] == "clear"]
    more = clears[clears["batch"] == WORD_PAGES].merge(
        clears[clears["batch"] == 0], on=["pages", "round"], suffixes=("", "_whole")
    )
    extra = more["total_time_ns"] - more["total_time_ns_whole"]
    return _slope(
        "reacquire", "CLEAR that lets go at every word, less the whole one", more["pages"] / WORD_PAGES, extra
    )


def plain_costs(name: str) -> pd.DataFrame:
    """The same actions on a kernel without the lab's statistics: a whole fault, a page of CLEAR, letting go.

    Returns: `COST_COLUMNS` of ``fault`` (with the access), ``clear_page``, ``reacquire``, and of what is taken apart.

    - `name`: one of `simlib.lab.hardware.machines.LABS`.
    """
    ioctls = _ioctls("plain", name)
    ioctls = ioctls[ioctls["passes"] == ioctls["passes"].min()]
    second = ioctls[(ioctls["round"] == 2) & (ioctls["batch"] == 0)]
    writes, clear = second[second["name"] == "write"], second[second["name"] == "clear"]
    found = [
        _slope("fault", "a write to a protected page", writes["pages"], writes["total_time_ns"]),
        _slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]),
        _reacquire(ioctls),
    ]
    return _taken_apart(pd.DataFrame(found, columns=COST_COLUMNS), name)


def cost_estimate(
    costs: pd.DataFrame, name: str, discrepancy: float = 0.0, spread: Mapping[str, float] | None = None, dof: int = 0
) -> CostEstimate:
    """Costs as of `instruction_costs` as a calibration gives them, an instruction being a nanosecond.

    - `name`: the machine, one of `simlib.lab.hardware.machines.LABS`.
    - `discrepancy`, `spread`: as in `simlib.measurements.fits.CostEstimate`.
    - `dof`: degrees of freedom of the discrepancy; 0: as few as the costs have.
    """
    values, widths = costs["value"].to_numpy(), (costs["high"] - costs["low"]).to_numpy()
    names, dof = tuple(costs["name"]), dof or int(costs["cells"].min()) - 2
    # So that the costs have these intervals, whatever the degrees of freedom of what is predicted from them.
    covariance = np.diag((widths / 2 / stats.t.ppf(0.5 + LEVEL / 2, dof) / values) ** 2)
    fixed = conventions(lab_scenario(name))
    return CostEstimate(names, np.log(values * 1000), covariance, dof, discrepancy, spread or {}, **fixed)
