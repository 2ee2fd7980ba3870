# SPDX-License-Identifier: BSD-3-Clause
"""Effects of each switch of the patch series on a running kernel."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from simlib.lab.hardware.instructions import instruction_costs
from simlib.measurements import load
from simlib.model.quantities import parse_size
from simlib.simulator.engine.result import PS
from simlib.vmm.qemu_rules import PAGE


class Switch(NamedTuple):
    """An experiment of ``data/experiments/switches.toml``.

    - `title`: title of its figure.
    - `changes`: metrics that its settings are meant to change. Of enabling, this is the time that mmu_lock is held: the
      ioctl's time also contains a grace period, of any length (docs/lab.md).
    """

    title: str
    changes: tuple[str, ...]


_WAITS = ("contentions", "clear_time_s", "longest_stall_s")
_HOLDS = ("acquisitions", "clear_time_s", "longest_stall_s")
_GETS = ("acquisitions", "get_time_s", "longest_stall_s")
_RESETS = ("acquisitions", "reset_time_s", "longest_stall_s")
_SPLITS = ("acquisitions", "enable_hold_s", "clear_time_s")
SWITCHES = {
    "fast-page-fault": Switch("x86, TDP MMU: locking of the fast page fault", _WAITS),
    "lockless-write-protect": Switch("x86, shadow paging: write-protection without mmu_lock", _WAITS),
    "lock-inside": Switch("x86, shadow paging: mmu_lock outside or inside CLEAR's loop", _HOLDS),
    "yield": Switch("x86, shadow paging: when CLEAR drops mmu_lock", _HOLDS),
    "get-batch": Switch("x86, shadow paging: GET without manual protection, pages per hold", _GETS),
    "ring-reset-batch": Switch("x86, shadow paging: dirty-ring reset, pages per hold", _RESETS),
    "split-x86": Switch("x86, TDP MMU: eager splitting, and allocation of page tables", _SPLITS),
    "split-arm64": Switch("arm64: eager splitting by chunks, and the walk that skips the last level", _SPLITS),
    "teardown-arm64": Switch("arm64: maintenance for each page at teardown, on or off", ("teardown_time_s",)),
}
"""Experiments by name."""


def switch_effects(experiment: str) -> pd.DataFrame:
    """Compute the effects of one experiment's settings in its largest cells: median over the seeds, and range.

    Returns: ``setting``, ``metric``, ``value``, ``low``, ``high``. Acquisitions and contentions of mmu_lock are counted
    from the beginning of enabling the log, without populating.

    - `experiment`: one of `SWITCHES`.
    """
    tables = {}
    for name in ("locks", "ioctls", "stalls"):
        rows = load(f"switches-{name}").frame.query("experiment == @experiment")
        rows = rows[rows["memory_per_vcpu"] == max(rows["memory_per_vcpu"], key=parse_size)]
        protection = ", " + rows["protection"] if len(set(rows["protection"])) > 1 else ""
        tables[name] = rows.assign(setting=varied_switches(rows["switches"]) + protection)
    locks, ioctls, stalls = tables["locks"].query("phase != 'populate'"), tables["ioctls"], tables["stalls"]

    def sums(rows: pd.DataFrame, column: str) -> pd.Series:
        return rows.groupby(["setting", "seed"], sort=False)[column].sum()

    values = {name: sums(locks, name) for name in ("acquisitions", "contentions")}
    values["enable_hold_s"] = sums(locks[locks["phase"] == "enable"], "hold_time_ns") * 1000 * PS
    for ioctl in ("clear", "get", "reset", "teardown"):
        values[f"{ioctl}_time_s"] = sums(ioctls[ioctls["name"] == ioctl], "total_time_ns") * 1000 * PS
    values["longest_stall_s"] = stalls.groupby(["setting", "seed"], sort=False)["longest_stall_ns"].max() * 1000 * PS
    effects: list[pd.DataFrame] = [
        values[metric].groupby("setting", sort=False).agg(value="median", low="min", high="max").assign(metric=metric)
        for metric in SWITCHES[experiment].changes
    ]
    return pd.concat(effects).reset_index()[["setting", "metric", "value", "low", "high"]]


def clear_instructions(experiment: str, name: str) -> float:
    """Lab time, s, of the instructions that the clearing thread executes in all CLEARs of a cell of an experiment.

    This is the number of pages times the cost of a page while the vCPUs are parked.

    - `experiment`: one of `SWITCHES`.
    - `name`: the machine, of `simlib.lab.hardware.machines.LABS`.
    """
    first = load("switches-runs").frame.query("experiment == @experiment").iloc[0]
    pages = first["vcpus"] * parse_size(first["memory_per_vcpu"]) // PAGE * first["rounds"]
    page = instruction_costs(name).set_index("name")["value"]["clear_page"]
    return float(pages * page * 1000 * PS)


def varied_switches(switches: pd.Series) -> pd.Series:
    """Remove the switches that have the same setting in every cell.

    >>> varied_switches(pd.Series(["yield=never pages=512", "yield=contended pages=512"])).tolist()
    ['yield=never', 'yield=contended']
    """
    words = switches.str.split()
    common = set.intersection(*map(set, words)) if len(set(switches)) > 1 else set()
    return words.map(lambda cell: " ".join(word for word in cell if word not in common))
