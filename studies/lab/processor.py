# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the lab's emulated processor outside KVM: timer ticks, and instructions of CPUs that wait for mmu_lock.

Ticks are counted in cells where the only vCPU reads undisturbed; waiting CPUs execute the functions in `WAITING`. No
cell that the model predicts is used. The results are entered in ``data/scenarios/lab-*.toml``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.lab.hardware.machines import rows_of
from simlib.lab.record_tables import read_gaps

WAITING = ("queued_spin_lock_slowpath", "queued_read_lock_slowpath",
           "queued_write_lock_slowpath", "kvm_mmu_read_lock", "kvm_mmu_write_lock", "kvm_mmu_lock_account")  # fmt: skip
"""Functions in which a CPU waits for mmu_lock, and functions of the patches' statistics that count the waiting."""

TICK = (1000, 8000)
"""Range of the quiet cells' gaps that are timer ticks, instructions. In longer gaps the clearing thread wakes up."""


def ticks(name: str) -> tuple[float, float]:
    """Work of a timer tick on one CPU: its mean, in instructions, and its coefficient of variation.

    A gap within `TICK` contains the ticks of two CPUs, since the idle CPU does the timekeeping.

    - `name`: one of `simlib.lab.hardware.machines.LABS` with its own quiet cells: neither x86-shadow, whose guest exits
      for other reasons, nor arm64-write.
    """
    stalls = rows_of("ticks-stalls", name)
    gaps = read_gaps(stalls["gaps"])
    middle = (gaps["from"] + gaps["to"]) / 2
    usual = float(np.average(middle[middle < TICK[0]], weights=gaps.loc[middle < TICK[0], "count"]))
    tick = (middle > TICK[0]) & (middle < TICK[1])
    work, count = (middle[tick] - usual) / 2, gaps.loc[tick, "count"]
    mean = float(np.average(work, weights=count))
    return mean, float(np.sqrt(np.average((work - mean) ** 2, weights=count))) / mean


def waiting(name: str) -> tuple[float, float]:
    """Numbers of instructions of enqueueing for mmu_lock, and of a poll that finds it held.

    In every cell, the instructions in `WAITING` are a linear combination of acquisitions, contended acquisitions and
    turns that a CPU gave away. The coefficients of the last two are returned.

    - `name`: ``x86-shadow`` or ``arm64-read``.
    """
    kinds = [f"waiting-{table}" for table in ("functions", "locks")]
    functions, locks = (pd.concat([rows_of(kind, name, f"waiting{turn}") for turn in (200, 2000)]) for kind in kinds)
    cell = ["turn_instructions", "vcpus"]
    executed = functions[functions["function"].isin(WAITING)].groupby(cell)[["instructions", "gave_way"]].sum()
    counts = locks.groupby(cell)[["acquisitions", "contentions"]].sum()
    terms = np.column_stack([counts["acquisitions"], counts["contentions"], executed["gave_way"]]).astype(float)
    _, enqueue, poll = np.linalg.lstsq(terms, executed["instructions"].to_numpy(dtype=float))[0]
    return float(enqueue), float(poll)
