# SPDX-License-Identifier: BSD-3-Clause
"""What each switch of the patch series changes on a running kernel."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from simlib.lab.hardware.instructions import instruction_costs
from simlib.lab.hardware.machines import PAGE
from simlib.measurements import load
from simlib.model.quantities import parse_size
from simlib.simulator.engine.result import PS


class Switch(NamedTuple):
    """An experiment of ``data/experiments/switches.toml``.

    - `title`: of its figure.
    - `changes`: what its settings are meant to change. Of enabling it is how long mmu_lock was held: the ioctl's time
      has a grace period in it, of any length (docs/lab.md).
    - `why`: what it shows, and why: no numbers, which `studies.lab.told.switch_told` adds.
    """

    title: str
    changes: tuple[str, ...]
    why: str


_STALL = "longest_stall_s"
SWITCHES = {
    "fast-page-fault": Switch(
        "x86, TDP MMU: how the fast page fault takes the lock",
        ("contentions", "clear_time_s", _STALL),
        "A lockless fault waits for nobody. With the lock held for read, or with every fault slow, a vCPU waits until "
        "a whole CLEAR is over.",
    ),
    "lockless-write-protect": Switch(
        "x86, shadow paging: write-protection without mmu_lock",
        ("contentions", "clear_time_s", _STALL),
        "Without `mmu_lock` CLEAR makes nobody wait. The faults still take the lock, and meet each other there.",
    ),
    "lock-inside": Switch(
        "x86, shadow paging: the lock outside or inside CLEAR's loop",
        ("acquisitions", "clear_time_s", _STALL),
        "The architecture takes the lock for one word at a time, and lets the vCPUs in between: CLEAR waits for them, "
        "and nobody waits for all of CLEAR.",
    ),
    "yield": Switch(
        "x86, shadow paging: when CLEAR lets go",
        ("acquisitions", "clear_time_s", _STALL),
        "`needbreak` lets go on a preemptible kernel alone (include/linux/spinlock.h rwlock_needbreak); on the lab's "
        "it equals `never`. The other two let go, and the longest stall is shorter.",
    ),
    "get-batch": Switch(
        "x86, shadow paging: GET without manual protection, pages a hold",
        ("acquisitions", "get_time_s", _STALL),
        "Letting go within GET trades its time for the longest stall.",
    ),
    "ring-reset-batch": Switch(
        "x86, shadow paging: dirty-ring reset, pages a hold",
        ("acquisitions", "reset_time_s", _STALL),
        "The same trade, in the reset of the dirty ring; today it lets go for each mask of 64 pages.",
    ),
    "split-x86": Switch(
        "x86, TDP MMU: eager splitting, and where page tables are allocated",
        ("acquisitions", "enable_hold_s", "clear_time_s"),
        "Where everything begins dirty (initially_set), blocks that are not split ahead cost an acquisition for each "
        "page, and split ones are split by the first CLEAR. Where enabling write-protects, it splits. Where the tables "
        "are allocated decides how often the lock is let go, and hardly how long it is held.",
    ),
    "split-arm64": Switch(
        "arm64: eager splitting by chunks, and the walk that skips the last level",
        ("acquisitions", "enable_hold_s", "clear_time_s"),
        "Chunks matter little to the sum; skipping the last level makes both enabling and the CLEAR that splits "
        "shorter.",
    ),
    "teardown-arm64": Switch(
        "arm64: maintenance at teardown, for each page or not",
        ("teardown_time_s",),
        "Each kind of maintenance for each page makes teardown longer, cleaning the cache by more.",
    ),
}
"""Each experiment by its name."""


def switch_effects(experiment: str) -> pd.DataFrame:
    """What the settings of one experiment give, in its largest cells: median over the seeds, and their range.

    Returns: ``setting``, ``metric``, ``value``, ``low``, ``high``. Acquisitions and contentions of mmu_lock are counted
    from the moment that the log is enabled (at it, for what happens there).

    - `experiment`: one of `SWITCHES`.
    """
    tables = {}
    for name in ("locks", "ioctls", "stalls"):
        rows = load(f"switches-{name}").frame.query("experiment == @experiment")
        rows = rows[rows["memory_per_vcpu"] == max(rows["memory_per_vcpu"], key=parse_size)]
        protection = ", " + rows["protection"] if len(set(rows["protection"])) > 1 else ""
        tables[name] = rows.assign(setting=varied(rows["switches"]) + protection)
    locks, ioctls, stalls = tables["locks"].query("phase != 'populate'"), tables["ioctls"], tables["stalls"]

    def sums(rows: pd.DataFrame, column: str) -> pd.Series:
        return rows.groupby(["setting", "seed"], sort=False)[column].sum()

    values = {name: sums(locks, name) for name in ("acquisitions", "contentions")}
    values["enable_hold_s"] = sums(locks[locks["phase"] == "enable"], "hold_time_ns") * 1000 * PS
    for what in ("clear", "get", "reset", "teardown"):
        values[f"{what}_time_s"] = sums(ioctls[ioctls["name"] == what], "total_time_ns") * 1000 * PS
    values["longest_stall_s"] = stalls.groupby(["setting", "seed"], sort=False)["longest_stall_ns"].max() * 1000 * PS
    out = []
    for metric in SWITCHES[experiment].changes:
        for setting, seeds in values[metric].groupby("setting", sort=False):
            out.append((setting, metric, float(seeds.median()), float(seeds.min()), float(seeds.max())))
    return pd.DataFrame(out, columns=["setting", "metric", "value", "low", "high"])


def clear_instructions(experiment: str, name: str) -> float:
    """What the clearing thread itself executes in all CLEARs of one cell of an experiment, s of the lab's clock.

    Its pages, times the cost of one while the vCPUs are parked.

    - `experiment`: one of `SWITCHES`.
    - `name`: the machine, of `simlib.lab.hardware.machines.LABS`.
    """
    first = load("switches-runs").frame.query("experiment == @experiment").iloc[0]
    pages = first["vcpus"] * parse_size(first["memory_per_vcpu"]) // PAGE * first["rounds"]
    page = instruction_costs(name).set_index("name")["value"]["clear_page"]
    return float(pages * page * 1000 * PS)


def varied(switches: pd.Series) -> pd.Series:
    """The switches without those that are the same in every cell.

    >>> varied(pd.Series(["yield=never pages=512", "yield=contended pages=512"])).tolist()
    ['yield=never', 'yield=contended']
    """
    words = switches.str.split()
    common = set.intersection(*map(set, words)) if len(set(switches)) > 1 else set()
    return words.map(lambda own: " ".join(word for word in own if word not in common))
