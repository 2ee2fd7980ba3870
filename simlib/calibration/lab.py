# SPDX-License-Identifier: BSD-3-Clause
"""The lab's data beside the model: counts, instruction costs, and the lab's cells predicted from them.

The lab's clock counts instructions over all CPUs (docs/lab.md), and so does the model
with ``machine.clock = "serial"``: nothing here is a time on hardware.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from simlib.engine.result import PS
from simlib.errors import InputError, nearest
from simlib.fits import CostEstimate, Fit
from simlib.measurements import data_dir, load
from simlib.model.costs import Costs
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario, load_scenario
from simlib.model.steps import Mode
from simlib.model.strategy import every
from simlib.prediction import LEVEL, PAGES_PER_VCPU, evaluate
from simlib.simulation import SimulationResult, run_scenario

LABS = ("x86-npt", "x86-shadow", "arm64-read", "arm64-write", "riscv")
"""The lab's machines; ``data/scenarios/lab-<name>.toml`` describes each."""

PAGE = 4096
"""Bytes of a page of the lab's guests."""


def lab_scenario(name: str) -> Scenario:
    """The scenario of one of the lab's machines; its costs are in its fit.

    Examples
    --------
    >>> lab_scenario("riscv").machine.clock
    'serial'
    """
    return load_scenario(data_dir() / "scenarios" / f"lab-{name}.toml")


def switch(switches: str, name: str, default: int = 0) -> int:
    """A whole number among a cell's switches.

    Examples
    --------
    >>> switch("dirty_log_clear_batch=512 fast_page_fault=off", "dirty_log_clear_batch")
    512
    """
    found = dict(word.split("=", 1) for word in str(switches).split())
    return int(found.get(name, default))


def lab_case(name: str, row: pd.Series) -> Scenario:
    """The scenario of one cell of the lab's tables.

    Parameters
    ----------
    name : str
        One of `LABS`.
    row : pandas.Series
        A row of any of the lab's tables.
    """
    parked = row["parked"] == "true"
    chunk = int(row["chunk_pages"])
    workload: dict[str, object] = {
        "kind": "dirty_log_perf_test" if parked else "clear_under_load",
        "iterations": int(row["rounds"]),
        "initially_set": row["protection"] == "initially_set",
        "write_percent": int(row["write_percent"]),
    }
    if chunk:
        workload["clear_chunk"] = chunk * PAGE
    return lab_scenario(name).changed(
        {
            "guest": {"vcpus": int(row["vcpus"]), "memory_per_vcpu": parse_size(row["memory_per_vcpu"])},
            "policy": {"lets_go": every(switch(row["switches"], "dirty_log_clear_batch"))},
            "workload": workload,
        }
    )


def lab_name(row: pd.Series) -> str:
    """Which of `LABS` a row of the lab's tables belongs to.

    Raises `InputError` if the row's machine is none of them.

    Examples
    --------
    >>> lab_name(pd.Series({"architecture": "x86_64", "mode": "npt", "switches": ""}))
    'x86-npt'
    """
    machine = f"{row['architecture']} {row['mode']}"
    names = {"x86_64 npt": "x86-npt", "x86_64 shadow": "x86-shadow", "riscv64 h": "riscv"}
    names["arm64 vhe"] = "arm64-write" if "permission_fault_lock=write" in row["switches"] else "arm64-read"
    if machine not in names:
        raise InputError("machine", machine, "has no scenario to compare with", nearest(machine, names))
    return names[machine]


def rows_of(table: str, name: str) -> pd.DataFrame:
    """Rows of one of the lab's machines in a collected table (``counts-locks``, ``load-ioctls`` …)."""
    frame = load(table).frame
    kind = table.partition("-")[0]
    return frame[frame["experiment"] == f"{kind}-{name}"].reset_index(drop=True)


_CELL = ("switches", "vcpus", "memory_per_vcpu", "protection", "rounds", "parked", "seed")
_PHASES = {"populated": "populate", "enabled": "enable", "dirtied": "rounds", "cleared": "rounds"}
FAULT_SITES = ("fault_fast", "fault_slow")


def count_comparison(locks: pd.DataFrame) -> pd.DataFrame:
    """Acquisitions of mmu_lock: the kernel's own count beside the simulator's, for the same cells.

    Returns: The columns of a cell, ``phase``, ``what`` (``fault``, ``clear``, ``enable``), ``lock_mode``, ``kernel``,
    ``model``, ``difference``. Sites that the model does not have are not in it.

    Parameters
    ----------
    locks : pandas.DataFrame
        The lab's table ``locks`` of parked cells of one machine, such as ``rows_of("counts-locks", "x86-npt")``.
    """
    out = []
    locks = locks.assign(what=locks["site"].where(~locks["site"].isin(FAULT_SITES), "fault"))
    for cell, rows in locks.groupby(list(_CELL), sort=False):
        first = rows.iloc[0]
        model = model_counts(run_scenario(lab_case(lab_name(first), first)))
        ours = rows[rows["what"].isin(["fault", "clear", "enable"])]
        kernel = ours.groupby(["phase", "what", "lock_mode"], as_index=False)["acquisitions"].sum()
        known = {(str(p), str(w), str(m)): int(n) for p, w, m, n in kernel.itertuples(index=False)}
        for key in sorted(known.keys() | model.keys()):
            counted, simulated = known.get(key, 0), model.get(key, 0)
            out.append((*cell, *key, counted, simulated, counted - simulated))
    return pd.DataFrame(out, columns=[*_CELL, "phase", "what", "lock_mode", "kernel", "model", "difference"])


def model_counts(run: SimulationResult) -> dict[tuple[str, str, str], int]:
    """Acquisitions of mmu_lock in a parked run: by phase, by what takes it, by mode.

    While the vCPUs run nobody clears, and the other way round, so that the stamps tell them apart.
    """
    counts: dict[tuple[str, str, str], int] = {}
    taken = run.raw.stamp_locks[:, 0, :, 0]
    for index, stamp in enumerate(run.job.stamps[1:], 1):
        what = {"enabled": "enable", "cleared": "clear"}.get(stamp.phase, "fault")
        for mode in Mode:
            # Without costs all of the populating happens at the time of the first stamp.
            spent = int(taken[index, mode] - (taken[index - 1, mode] if index > 1 else 0))
            if spent:
                key = (_PHASES[stamp.phase], what, mode.name.lower())
                counts[key] = counts.get(key, 0) + spent
    return counts


@dataclass(frozen=True)
class InstructionCost:
    """One action's cost in instructions.

    Attributes
    ----------
    name : str
        A field of `simlib.model.costs.Costs`.
    value, low, high : float
        Instructions, which are nanoseconds of the lab's clock, with the interval of `LEVEL`.
    how : str
        Which slope it is.
    cells : int
        Cells that the estimate rests on.
    """

    name: str
    value: float
    low: float
    high: float
    how: str
    cells: int


def _slope(name: str, how: str, pages: pd.Series, times: pd.Series) -> InstructionCost:
    """Slope of a line, with its interval: the median of the slopes between all pairs of points (Theil and Sen).

    All points lie on the line, but for one in which a timer's interrupt fell: least squares would follow that one.
    """
    line = stats.theilslopes(times.to_numpy(dtype=float), pages.to_numpy(dtype=float), alpha=LEVEL)
    return InstructionCost(name, float(line.slope), float(line.low_slope), float(line.high_slope), how, len(pages))


def instruction_costs(name: str) -> list[InstructionCost]:
    """Costs of single actions, from cells with one vCPU that is parked while the log is cleared.

    Every cost is the slope of a time over the pages (16 to 128 MiB), so that what happens once a run or an
    ioctl drops out. With one vCPU nobody contends: the clock is that of whoever runs.

    Parameters
    ----------
    name : str
        One of `LABS`.
    """
    ioctls, locks = rows_of("memory-ioctls", name), rows_of("memory-locks", name)
    pages = ioctls["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE)
    ioctls = ioctls.assign(pages=pages, batch=ioctls["switches"].map(lambda s: switch(s, "dirty_log_clear_batch")))
    whole = ioctls[ioctls["batch"] == 0]

    def of(what: str, number: int, rows: pd.DataFrame = whole) -> pd.DataFrame:
        return rows[(rows["name"] == what) & (rows["round"] == number)]

    second = of("write", 2)
    if (second["protection"] == "initially_set").all():  # then nothing is protected before the first CLEAR
        first = of("write", 1)
        access = _slope("guest_access", "a write that needs no fault", first["pages"], first["total_time_ns"])
    else:
        once, twice = second[second["passes"] == 1], second[second["passes"] == 2]
        both = once[once["batch"] == 0].merge(twice, on="pages", suffixes=("", "_twice"))
        second_pass = both["total_time_ns_twice"] - both["total_time_ns"]
        access = _slope("guest_access", "a write that needs no fault, as a second pass", both["pages"], second_pass)
        second, whole = once, whole[whole["passes"] == 1]
        ioctls, locks = ioctls[ioctls["passes"] == 1], locks[locks["passes"] == 1]
    fault = _slope("fault", "a write to a protected page", second["pages"], second["total_time_ns"])
    held = locks[(locks["phase"] == "rounds") & locks["site"].isin(FAULT_SITES)]
    held = held[held["switches"].map(lambda s: switch(s, "dirty_log_clear_batch")) == 0]
    found = [access]
    enable = of("enable", 0, whole)
    if (enable["protection"] == "enable").all():
        found.append(_slope("enable_page", "enabling the log", enable["pages"], enable["total_time_ns"]))
    what = "lock held over acquisitions of faults"
    if not len(held):  # lockless: the model's faults are as long in all, and these are known by those that map
        held = locks[(locks["phase"] == "populate") & locks["site"].isin(FAULT_SITES)]
        what += " that map a page"
    found.append(_slope("fault_hold", what, held["acquisitions"], held["hold_time_ns"]))
    hold = found[-1].value
    low, high = fault.low - access.high - hold, fault.high - access.low - hold
    outside = fault.value - access.value - hold
    found.append(InstructionCost("fault_exit", outside, low, high, "the rest of that write", fault.cells))
    clear = of("clear", 2, whole)
    found.append(_slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]))
    return [*found, _reacquire(ioctls[ioctls["name"] == "clear"])]


def _reacquire(clears: pd.DataFrame) -> InstructionCost:
    """Letting go and taking the lock again, from the CLEARs of both rounds: in each it is the same code."""
    more = clears[clears["batch"] == 64].merge(
        clears[clears["batch"] == 0], on=["pages", "round"], suffixes=("", "_whole")
    )
    extra = more["total_time_ns"] - more["total_time_ns_whole"]
    return _slope("reacquire", "CLEAR that lets go at every word, less the whole one", more["pages"] / 64, extra)


def plain_costs(name: str) -> list[InstructionCost]:
    """The same actions on a kernel without the lab's statistics: a whole fault, a page of CLEAR, letting go.

    Returns: ``fault`` (with the access), ``clear_page``, ``reacquire``.

    Parameters
    ----------
    name : str
        One of `LABS`.

    Examples
    --------
    >>> [cost.name for cost in plain_costs("riscv")]
    ['fault', 'clear_page', 'reacquire']
    """
    ioctls = rows_of("plain-ioctls", name)
    pages = ioctls["memory_per_vcpu"].map(lambda text: parse_size(text) // PAGE)
    ioctls = ioctls.assign(pages=pages, batch=ioctls["switches"].map(lambda s: switch(s, "dirty_log_clear_batch")))
    ioctls = ioctls[ioctls["passes"] == ioctls["passes"].min()]
    second = ioctls[(ioctls["round"] == 2) & (ioctls["batch"] == 0)]
    writes, clear = second[second["name"] == "write"], second[second["name"] == "clear"]
    return [
        _slope("fault", "a write to a protected page", writes["pages"], writes["total_time_ns"]),
        _slope("clear_page", "CLEAR of pages that are all dirty", clear["pages"], clear["total_time_ns"]),
        _reacquire(ioctls[ioctls["name"] == "clear"]),
    ]


def cost_estimate(
    costs: Sequence[InstructionCost], discrepancy: float = 0.0, spread: Mapping[str, float] | None = None
) -> CostEstimate:
    """These costs as a calibration gives them, an instruction being a nanosecond.

    Parameters
    ----------
    discrepancy, spread
        As in `simlib.prediction.CostEstimate`.
    """
    known = {field.name for field in dataclasses.fields(Costs)}
    used = [cost for cost in costs if cost.name in known]
    quantiles = np.array([float(stats.t.ppf(0.5 + LEVEL / 2, cost.cells - 2)) for cost in used])
    values, widths = np.array([[cost.value, cost.high - cost.low] for cost in used]).T
    return CostEstimate(
        tuple(cost.name for cost in used),
        np.log(values * 1000),
        np.diag((widths / 2 / quantiles / values) ** 2),
        min(cost.cells for cost in used) - 2,
        discrepancy,
        spread or {},
    )


def lab_fit(name: str) -> Fit:
    """The costs of one of the lab's machines as a fit: ``data/fits/lab-<name>.json``.

    The costs come from parked cells with one vCPU; how far the model may be off comes from the cells under load,
    which is what they are for: deviations of CLEAR times and, larger, of stalls.

    Parameters
    ----------
    name : str
        One of `LABS`.
    """
    costs = instruction_costs(name)
    seen = load_comparison(name, cost_estimate(costs))
    deviations = np.log1p(seen["error"]).pow(2).groupby(seen["metric"]).mean().pow(0.5)
    clear = float(deviations["clear_dirty_log_time"])
    spread = {"longest_stall": float(deviations["longest_stall"]) / clear}
    estimate = cost_estimate(costs, clear, spread)
    used = [cost for cost in costs if cost.name in estimate.names]
    parameters = pd.DataFrame({"name": estimate.names, "value": np.exp(estimate.logs)})
    parameters["low"], parameters["high"] = ([getattr(c, end) * 1000 for c in used] for end in ("low", "high"))
    parameters = parameters.assign(at_bound=False, determined=parameters["low"] > 0)
    observations = seen.rename(columns={"lab": "value"})[["vcpus", "batch", "metric", "value", "model", "error"]]
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": "memory-ioctls and memory-locks",
        "train": "slopes over 16 to 128 MiB, one vCPU that is parked; no observation below",
        "seed": 1,
        "pages_per_vcpu": PAGES_PER_VCPU,
        "level": LEVEL,
        "valid": {
            "more_data_than_costs": bool(min(cost.cells for cost in used) > 2),
            "all_determined": bool(parameters["determined"].all()),
        },
    }
    return Fit(lab_scenario(name), estimate, parameters, observations.assign(variant="", train=False), meta)


METRICS = {"clear_dirty_log_time": "CLEAR time", "longest_stall": "longest stall"}
"""What is compared under load."""


def load_comparison(name: str, estimate: CostEstimate, seeds: Sequence[int] = range(1, 6)) -> pd.DataFrame:
    """CLEAR time and longest stall under load: the lab's cells beside the simulator's.

    Returns: ``vcpus``, ``batch``, ``metric``, ``lab`` (median over the seeds, s), ``lab_low`` and ``lab_high`` (their
    range), ``model``, ``error`` (model over lab, less one).

    Parameters
    ----------
    name : str
        One of `LABS`.
    estimate : CostEstimate
        Such as `cost_estimate` of the machine's `instruction_costs`.
    seeds : sequence of int
        Seeds of the simulator.
    """
    ioctls, stalls = rows_of("load-ioctls", name), rows_of("load-stalls", name)
    batch = "dirty_log_clear_batch"
    cleared = ioctls[ioctls["name"] == "clear"]
    cleared = cleared.assign(batch=cleared["switches"].map(lambda s: switch(s, batch)))
    stalls = stalls.assign(batch=stalls["switches"].map(lambda s: switch(s, batch)))
    groups = dict(list(cleared.groupby(["vcpus", "batch"])))
    cases = [estimate.apply(lab_case(name, rows.iloc[0])) for rows in groups.values()]
    runs = [[run.metrics for run in evaluate(cases, seed=seed)] for seed in seeds]
    out = []
    for number, ((vcpus, pages), rows) in enumerate(groups.items()):
        seen = stalls[(stalls["vcpus"] == vcpus) & (stalls["batch"] == pages)]
        measured = {
            "clear_dirty_log_time": rows.groupby("seed")["total_time_ns"].sum(),
            "longest_stall": seen.groupby("seed")["longest_stall_in_clear_ns"].max(),
        }
        for metric, values in measured.items():
            lab, low, high = (float(x) * 1000 * PS for x in (values.median(), values.min(), values.max()))
            model = float(np.median([run[number][metric] for run in runs]))
            out.append((vcpus, pages, metric, lab, low, high, model, model / lab - 1))
    columns = ["vcpus", "batch", "metric", "lab", "lab_low", "lab_high", "model", "error"]
    return pd.DataFrame(out, columns=columns)


SWITCHES: dict[str, tuple[str, ...]] = {
    "fast-page-fault": ("contentions", "clear_time_s", "longest_stall_s"),
    "lockless-write-protect": ("contentions", "clear_time_s", "longest_stall_s"),
    "lock-inside": ("acquisitions", "clear_time_s", "longest_stall_s"),
    "yield": ("acquisitions", "clear_time_s", "longest_stall_s"),
    "get-batch": ("acquisitions", "get_time_s", "longest_stall_s"),
    "ring-reset-batch": ("acquisitions", "reset_time_s", "longest_stall_s"),
    "split-x86": ("acquisitions", "enable_hold_s", "clear_time_s"),
    "split-arm64": ("acquisitions", "enable_hold_s", "clear_time_s"),
    "teardown-arm64": ("teardown_time_s",),
}
"""Experiments of ``data/experiments/switches.toml``, each with what its switches are meant to change. Of enabling it is
how long mmu_lock was held: the ioctl's time has a grace period in it, of any length (docs/lab.md)."""


def switch_effects(experiment: str, memory_per_vcpu: str = "") -> pd.DataFrame:
    """What the settings of one experiment give: median over the seeds, and their range.

    Returns: ``setting``, ``metric``, ``value``, ``low``, ``high``. Acquisitions and contentions of mmu_lock are counted
    from the moment that the log is enabled (at it, for what happens there).

    Parameters
    ----------
    experiment : str
        One of `SWITCHES`.
    memory_per_vcpu : str, optional
        Only cells of this size; default: the largest.
    """
    tables = {}
    for name in ("locks", "ioctls", "stalls"):
        frame = load(f"switches-{name}").frame
        tables[name] = frame[frame["experiment"] == experiment]
    sizes = sorted(set(tables["ioctls"]["memory_per_vcpu"]), key=parse_size)
    size = memory_per_vcpu or sizes[-1]
    ways = set(tables["ioctls"]["protection"])
    values: dict[str, pd.Series] = {}
    keys = ["setting", "seed"]
    for name, rows in list(tables.items()):
        frame = rows[rows["memory_per_vcpu"] == size]
        protection = frame["protection"].map(lambda p: f", {p}" if len(ways) > 1 else "")
        tables[name] = frame.assign(setting=varied(frame["switches"]) + protection)
    locks = tables["locks"][tables["locks"]["phase"] != "populate"]
    values["acquisitions"] = locks.groupby(keys, sort=False)["acquisitions"].sum()
    enabling = locks[locks["phase"] == "enable"]
    values["enable_hold_s"] = enabling.groupby(keys, sort=False)["hold_time_ns"].sum() * 1000 * PS
    values["contentions"] = locks.groupby(keys, sort=False)["contentions"].sum()
    for what in ("clear", "get", "reset", "teardown"):
        calls = tables["ioctls"][tables["ioctls"]["name"] == what]
        values[f"{what}_time_s"] = calls.groupby(keys, sort=False)["total_time_ns"].sum() * 1000 * PS
    values["longest_stall_s"] = tables["stalls"].groupby(keys, sort=False)["longest_stall_ns"].max() * 1000 * PS
    out = []
    for metric in SWITCHES[experiment]:
        for setting, seeds in values[metric].groupby("setting", sort=False):
            out.append((setting, metric, float(seeds.median()), float(seeds.min()), float(seeds.max())))
    return pd.DataFrame(out, columns=["setting", "metric", "value", "low", "high"])


def clear_instructions(experiment: str, name: str) -> float:
    """What the clearing thread itself executes in all CLEARs of one cell of an experiment, s of the lab's clock.

    Its pages, times the cost of one while the vCPUs are parked.

    Parameters
    ----------
    experiment : str
        One of `SWITCHES`.
    name : str
        The machine, of `LABS`.
    """
    first = load("switches-runs").frame.query("experiment == @experiment").iloc[0]
    pages = first["vcpus"] * parse_size(first["memory_per_vcpu"]) // PAGE * first["rounds"]
    (page,) = (cost.value for cost in instruction_costs(name) if cost.name == "clear_page")
    return float(pages * page * 1000 * PS)


def varied(switches: pd.Series) -> pd.Series:
    """The switches without those that are the same in every cell.

    Examples
    --------
    >>> varied(pd.Series(["yield=never pages=512", "yield=contended pages=512"])).tolist()
    ['yield=never', 'yield=contended']
    """
    words = switches.str.split()
    common = set.intersection(*map(set, words)) if len(set(switches)) > 1 else set()
    return words.map(lambda own: " ".join(word for word in own if word not in common))


def repeat_table(names: Sequence[str] = ("counts", "memory", "load", "switches")) -> pd.DataFrame:
    """How many cells were run more than once, and how many of them gave the same bytes each time."""
    out = []
    for name in names:
        runs = load(f"{name}-runs").frame
        again = runs[runs["repeats"] > 1]
        identical = int((again["identical"] == "true").sum())
        out.append((name, len(runs), len(again), identical))
    return pd.DataFrame(out, columns=["experiments", "cells", "repeated", "identical"])
