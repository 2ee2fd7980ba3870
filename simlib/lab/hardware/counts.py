# SPDX-License-Identifier: BSD-3-Clause
"""Acquisitions of mmu_lock: the kernel's counts compared with the simulator's."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.lab.hardware.machines import lab_case, lab_name
from simlib.lab.records import FAULT_SITES
from simlib.measurements import load
from simlib.model.steps import Mode

_CELL = ("switches", "vcpus", "memory_per_vcpu", "protection", "rounds", "parked", "seed")
_PHASES = {"populated": "populate", "enabled": "enable", "dirtied": "rounds", "cleared": "rounds"}


def count_comparison(locks: pd.DataFrame) -> pd.DataFrame:
    """Compare the kernel's counts of acquisitions of mmu_lock with the simulator's, for the same parked cells.

    Returns: The columns of a cell, ``phase``, ``what`` (``fault``, ``clear``, ``enable``), ``lock_mode``, ``kernel``,
    ``model``, ``difference``. Call sites that the model lacks are omitted. `locks`: a machine's table, such as
    ``rows_of("counts-locks", "x86-npt")``.
    """
    table = []
    locks = locks.assign(what=locks["site"].where(~locks["site"].isin(FAULT_SITES), "fault"))
    for cell, rows in locks.groupby(list(_CELL), sort=False):
        first = rows.iloc[0]
        model = model_counts(run_scenario(lab_case(lab_name(first), first)))
        modelled = rows[rows["what"].isin(["fault", "clear", "enable"])]
        kernel = modelled.groupby(["phase", "what", "lock_mode"], as_index=False)["acquisitions"].sum()
        counts = {(str(p), str(w), str(m)): int(n) for p, w, m, n in kernel.itertuples(index=False)}
        for key in sorted(counts.keys() | model.keys()):
            counted, simulated = counts.get(key, 0), model[key]
            table.append((*cell, *key, counted, simulated, counted - simulated))
    return pd.DataFrame(table, columns=[*_CELL, "phase", "what", "lock_mode", "kernel", "model", "difference"])


def model_counts(run: SimulationResult) -> Counter[tuple[str, str, str]]:
    """Count acquisitions of mmu_lock in a run with parked vCPUs, by phase, operation and mode.

    vCPUs and the clearing thread never run at the same time, so that the stamps separate their acquisitions.
    """
    counts = Counter[tuple[str, str, str]]()
    taken = run.raw.stamp_locks[:, 0, :, 0]
    for index, stamp in enumerate(run.job.stamps[1:], 1):
        what = {"enabled": "enable", "cleared": "clear"}.get(stamp.phase, "fault")
        for mode in Mode:
            # Without costs, all pages are populated at the time of the first stamp.
            acquisitions = int(taken[index, mode] - (taken[index - 1, mode] if index > 1 else 0))
            counts[_PHASES[stamp.phase], what, mode.name.lower()] += acquisitions
    return +counts


def count_summary(counts: pd.DataFrame) -> pd.DataFrame:
    """Summarize differences by machine, phase, operation and mode: cells, equal counts, extremes."""
    key = ["machine", "phase", "what", "lock_mode"]
    groups = counts.assign(equal=counts["difference"] == 0).groupby(key, sort=False)
    return groups.agg(cells=("difference", "size"), equal=("equal", "sum"), smallest=("difference", "min"),
                      largest=("difference", "max")).reset_index()  # fmt: skip


def repeat_table() -> pd.DataFrame:
    """Count the cells that were run repeatedly, and the cells among them whose output was always identical."""
    rows = []
    for name in ("counts", "memory", "load", "switches"):
        runs = load(f"{name}-runs").frame
        repeated = runs[runs["repeats"] > 1]
        identical = int((repeated["identical"] == "true").sum())
        rows.append((name, len(runs), len(repeated), identical))
    return pd.DataFrame(rows, columns=["experiments", "cells", "repeated", "identical"])
