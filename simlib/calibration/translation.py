# SPDX-License-Identifier: BSD-3-Clause
"""From instructions to nanoseconds: what the lab counts, beside what was published, by kind of action.

Where both a count and a time exist, their ratio says what an instruction of such an action takes on hardware: caches,
barriers and invalidations that emulated time leaves out are in it. How far the ratios of different architectures lie
apart is how far an untried one's may be off. The statistics' own instructions are taken off first: the same cells were
run on kernels without them (``data/experiments/plain.toml``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from simlib.calibration import lab
from simlib.calibration.migrations import fit_of
from simlib.fits import CostEstimate
from simlib.measurements import data_dir, load
from simlib.model.machine import MACHINES
from simlib.model.scenario import load_scenario
from simlib.prediction import LEVEL
from simlib.studies.x86 import growth
from simlib.studies.x86.hosts import configurations

KINDS = {"exit": "fault_exit", "hold": "fault_hold", "clear": "clear_page", "letting go": "reacquire"}
"""Kinds of action, and the cost that each is."""

_WAITERS_AT, _GIB_PAGES = 16, 262144
"""vCPUs at which x86's hold is taken, since it grows with them."""


class Instructions(NamedTuple):
    """Instructions of one action without the statistics': value, and within which bounds it is known."""

    value: float
    low: float
    high: float


def instructions(name: str) -> dict[str, Instructions]:
    """What each kind of action executes on one of the lab's machines, the statistics' own taken off.

    How many of the statistics' instructions lie within the hold is not known; half of them are taken to, and the bounds
    are none and all.

    Parameters
    ----------
    name : str
        One of `simlib.calibration.lab.LABS`.

    Examples
    --------
    >>> found = instructions("x86-npt")
    >>> found["letting go"].value < 60 < 200 < statistics_own("x86-npt")["letting go"] + found["letting go"].value
    True
    """
    known = {cost.name: cost for cost in lab.instruction_costs(name)}
    own = statistics_own(name)
    hold, outside = known["fault_hold"].value, known["fault_exit"].value
    plain = {cost.name: cost.value for cost in lab.plain_costs(name)}
    within = max(0.0, own["fault"])  # none where faults take no lock
    return {
        "hold": Instructions(hold - within / 2, hold - within, hold),
        "exit": Instructions(outside - within / 2, outside - within, outside),
        "clear": Instructions(plain["clear_page"], plain["clear_page"], plain["clear_page"]),
        "letting go": Instructions(plain["reacquire"], plain["reacquire"], plain["reacquire"]),
    }


def statistics_own(name: str) -> dict[str, float]:
    """Instructions of the lab's statistics themselves: in a fault, and in letting go and taking the lock again.

    Examples
    --------
    >>> own = statistics_own("x86-npt")
    >>> abs(own["fault"]) < 10 < 100 < own["letting go"]  # a stamp of the time is read twice for each hold
    True
    """
    with_them = {cost.name: cost.value for cost in lab.instruction_costs(name)}
    plain = {cost.name: cost.value for cost in lab.plain_costs(name)}
    fault = with_them["fault_exit"] + with_them["fault_hold"] + with_them["guest_access"]
    return {"fault": fault - plain["fault"], "letting go": with_them["reacquire"] - plain["reacquire"]}


@dataclass(frozen=True)
class Pair:
    """One kind of action on one architecture: counted, and published.

    Attributes
    ----------
    kind, architecture, machine : str
        `machine` is the lab's.
    source : str
        Where the time comes from.
    """

    kind: str
    architecture: str
    machine: str
    time_ns: float
    source: str


def pairs() -> list[Pair]:
    """All actions of which both a count and a time exist.

    Examples
    --------
    >>> sorted({pair.kind for pair in pairs()})
    ['clear', 'exit', 'hold', 'letting go']
    """
    fit = fit_of(configurations())
    arm64 = fit_of(load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml"))
    x86, altra = _values(fit.estimate), _values(arm64.estimate)
    paging = _values(growth.growth_fit("shadow-paging-few").estimate)
    enable = load("arm64-enable-dirty-log-chunks").rows("page_size == '4K' and variant == 'before'")
    enabling = float(enable["enable_time_ms"].iloc[0]) / (128 * _GIB_PAGES) * 1e6
    return [
        Pair("exit", "x86-shadow-paging", "x86-shadow", paging["fault_exit"], "calibrated, ept=N"),
        Pair("exit", "arm64", "arm64-write", altra["fault_exit[fixed test]"], "calibrated, seed 000"),
        Pair("hold", "x86-shadow-paging", "x86-shadow", _hold_among_waiters(paging["fault_hold"], x86["crowding"]),
             f"calibrated, ept=N, with its growth at {_WAITERS_AT} vCPUs"),
        Pair("hold", "arm64", "arm64-write", altra["fault_hold"], "calibrated, seed 000"),
        Pair("clear", "x86-shadow-paging", "x86-shadow", x86["clear_page[shadow]"], "CLEAR with parked vCPUs"),
        Pair("clear", "x86-tdp", "x86-npt", x86["clear_page[tdp]"], "CLEAR with parked vCPUs"),
        Pair("clear", "arm64", "arm64-write", enabling, "write-protecting at enable, Kunpeng 920: not CLEAR"),
        Pair("letting go", "x86-tdp", "x86-npt", x86["reacquire"], "seed 001, configuration 1"),
    ]  # fmt: skip


def _values(estimate: CostEstimate) -> dict[str, float]:
    return dict(zip(estimate.names, (np.exp(estimate.logs) / 1000).tolist(), strict=True))


def _hold_among_waiters(hold: float, crowding: float) -> float:
    """What a fault occupies the lock for, moving the lock's own lines left out: the growth is work of some kind."""
    return MACHINES["x86-published"].slowed(_WAITERS_AT) * hold + crowding * float(np.log2(_WAITERS_AT - 1))


def ratio_table() -> pd.DataFrame:
    """Nanoseconds an instruction, by kind and architecture, and each one's as the others say it.

    Returns: ``kind``, ``architecture``, ``instructions``, ``statistics`` (taken off), ``time_ns``,
    ``ns_per_instruction``, ``by_the_others_ns``, ``factor`` (by the others over its own, or the inverse; NaN: there is
    no other), ``source``.

    Examples
    --------
    >>> table = ratio_table()
    >>> bool(table[table["kind"] == "clear"]["factor"].max() < 2)
    True
    """
    rows = []
    for pair in pairs():
        counted, own = instructions(pair.machine)[pair.kind], statistics_own(pair.machine)
        taken = {"clear": 0.0, "letting go": own["letting go"]}.get(pair.kind, own["fault"] / 2)
        rows.append({"kind": pair.kind, "architecture": pair.architecture, "instructions": counted.value,
                     "statistics": taken, "time_ns": pair.time_ns, "ns_per_instruction": pair.time_ns / counted.value,
                     "source": pair.source})  # fmt: skip
    table = pd.DataFrame(rows)
    logs = np.log(table["ns_per_instruction"])
    others = []
    for index, row in table.iterrows():
        rest = logs[(table["kind"] == row["kind"]) & (table.index != index)]
        others.append(float(np.exp(rest.mean())) * row["instructions"] if len(rest) else np.nan)
    table["by_the_others_ns"] = others
    table["factor"] = np.exp(np.abs(np.log(table["by_the_others_ns"] / table["time_ns"])))
    return table[["kind", "architecture", "instructions", "statistics", "time_ns", "ns_per_instruction",
                  "by_the_others_ns", "factor", "source"]]  # fmt: skip


class Translated(NamedTuple):
    """A time for a count: its median, ns, and the factor within which it lies with 90 %."""

    time_ns: float
    factor: float


def translate(kind: str, count: float, table: pd.DataFrame | None = None) -> Translated:
    """Nanoseconds for so many instructions of one kind of action on an architecture that nobody timed.

    The ratio is the geometric mean of the architectures that were; its spread between architectures is pooled over the
    kinds, on as many degrees of freedom as there are ratios less kinds.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    table : DataFrame, optional
        Of `ratio_table`.

    Examples
    --------
    >>> found = translate("clear", 100)
    >>> bool(15 < found.time_ns < 40 and found.factor > 1)
    True
    """
    table = ratio_table() if table is None else table
    logs = np.log(table["ns_per_instruction"])
    deviations = logs - logs.groupby(table["kind"]).transform("mean")
    dof = len(table) - table["kind"].nunique()
    spread = float(np.sqrt((deviations**2).sum() / dof))
    mine = logs[table["kind"] == kind]
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * spread * float(np.sqrt(1 + 1 / len(mine)))
    return Translated(float(np.exp(mine.mean())) * count, float(np.exp(half)))
