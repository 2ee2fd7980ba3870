# SPDX-License-Identifier: BSD-3-Clause
"""What the lab's one processor does beside KVM's work: ticks of the timer, and what CPUs execute while they wait.

Counted where nothing is predicted: ticks in cells in which the one vCPU reads and is left alone, waiting by the
instructions of the functions that wait. What comes out stands in ``data/scenarios/lab-*.toml``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.lab.hardware.machines import rows_of
from simlib.lab.record_tables import read_gaps

WAITING = ("queued_spin_lock_slowpath", "queued_read_lock_slowpath",
           "queued_write_lock_slowpath", "kvm_mmu_read_lock", "kvm_mmu_write_lock", "kvm_mmu_lock_account")  # fmt: skip
"""Functions in which a CPU waits for mmu_lock, and those of the patches' statistics that count it."""

TICK = (1000, 8000)
"""Lengths of a gap in the quiet cells that is a tick's, instructions: in longer ones the clearing thread wakes up."""


def ticks(name: str) -> tuple[float, float]:
    """What a tick of the timer takes of a CPU: mean and coefficient of variation, instructions.

    A gap of `TICK` is that of both CPUs at once: the idle one keeps the time.

    - `name`: one of `simlib.lab.hardware.machines.LABS` that has quiet cells of its own: not x86-shadow, whose guest
      leaves for other reasons, nor arm64-write.
    """
    stalls = rows_of("ticks-stalls", name)
    gaps = read_gaps(stalls["gaps"])
    middle = (gaps["from"] + gaps["to"]) / 2
    usual = float(np.average(middle[middle < TICK[0]], weights=gaps.loc[middle < TICK[0], "count"]))
    tick = (middle > TICK[0]) & (middle < TICK[1])
    own, count = (middle[tick] - usual) / 2, gaps.loc[tick, "count"]
    mean = float(np.average(own, weights=count))
    return mean, float(np.sqrt(np.average((own - mean) ** 2, weights=count))) / mean


def waiting(name: str) -> tuple[float, float]:
    """What it takes to queue for mmu_lock, and to look for it in vain: instructions.

    The instructions in `WAITING` are, in every cell, a sum over acquisitions, those of them that waited, and times
    that a CPU gave its turn away. The coefficients of the last two are what is asked for.

    - `name`: ``x86-shadow`` or ``arm64-read``.
    """
    kinds = [f"waiting-{what}" for what in ("functions", "locks")]
    functions, locks = (pd.concat([rows_of(kind, name, f"waiting{turn}") for turn in (200, 2000)]) for kind in kinds)
    cell = ["turn_instructions", "vcpus"]
    seen = functions[functions["function"].isin(WAITING)].groupby(cell)[["instructions", "gave_way"]].sum()
    taken = locks.groupby(cell)[["acquisitions", "contentions"]].sum()
    of = np.column_stack([taken["acquisitions"], taken["contentions"], seen["gave_way"]]).astype(float)
    _, queue, look = np.linalg.lstsq(of, seen["instructions"].to_numpy(dtype=float))[0]
    return float(queue), float(look)
