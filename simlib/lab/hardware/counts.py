# SPDX-License-Identifier: BSD-3-Clause
"""How often mmu_lock is taken: the kernel's own count beside the simulator's."""

from __future__ import annotations

import pandas as pd

from simlib.analysis.simulate import SimulationResult, run_scenario
from simlib.lab.hardware.machines import lab_case, lab_name
from simlib.lab.records import FAULT_SITES
from simlib.measurements import load
from simlib.model.steps import Mode

_CELL = ("switches", "vcpus", "memory_per_vcpu", "protection", "rounds", "parked", "seed")
_PHASES = {"populated": "populate", "enabled": "enable", "dirtied": "rounds", "cleared": "rounds"}


def count_comparison(locks: pd.DataFrame) -> pd.DataFrame:
    """Acquisitions of mmu_lock: the kernel's own count beside the simulator's, for the same cells.

    Returns: The columns of a cell, ``phase``, ``what`` (``fault``, ``clear``, ``enable``), ``lock_mode``, ``kernel``,
    ``model``, ``difference``. Sites that the model does not have are not in it.

    - `locks`: the lab's table ``locks`` of parked cells of one machine, such as ``rows_of("counts-locks", "x86-npt")``.
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


def count_summary(counts: pd.DataFrame) -> pd.DataFrame:
    """Cells and differences by machine, phase and what takes the lock: how many counts are equal."""
    groups = counts.groupby(["machine", "phase", "what", "lock_mode"], sort=False)
    table = groups.agg(
        cells=("difference", "size"),
        equal=("difference", lambda d: int((d == 0).sum())),
        smallest=("difference", "min"),
        largest=("difference", "max"),
    )
    return table.reset_index()


def repeat_table() -> pd.DataFrame:
    """How many cells were run more than once, and how many of them gave the same bytes each time."""
    out = []
    for name in ("counts", "memory", "load", "switches"):
        runs = load(f"{name}-runs").frame
        again = runs[runs["repeats"] > 1]
        identical = int((again["identical"] == "true").sum())
        out.append((name, len(runs), len(again), identical))
    return pd.DataFrame(out, columns=["experiments", "cells", "repeated", "identical"])
