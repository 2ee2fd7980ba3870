# SPDX-License-Identifier: BSD-3-Clause
"""Does mmu_lock matter when the hardware logs? PML and dirty rings beside write protection and the bitmap."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib.measurements import load
from simlib.model.quantities import say_seconds
from simlib.parallel import Progress, portion
from simlib.studies.hardware_logs import blind, matters, rings, told
from simlib.studies.study import Answer, Found, Study


@dataclass(frozen=True)
class HardwareLogs(Found):
    """What the study found: `told.told_numbers` and `rings.ring_numbers`, each with the ``cause`` of a miss."""

    @property
    def costs(self) -> pd.DataFrame:
        """The published times of tracking."""
        return self.numbers[self.numbers["table"] != rings.AVERAGE]

    @property
    def rings(self) -> pd.DataFrame:
        """The published migrations with QEMU's dirty ring."""
        return self.numbers[self.numbers["table"] == rings.AVERAGE]

    @property
    def matters(self) -> pd.DataFrame:
        """`matters.matters_table`."""
        return self.tables["matters"]


def foretold() -> pd.DataFrame:
    """What was written down of a server with PML before it was measured."""
    parts = []
    for kind, unit in (("times", "s"), ("ratios", "ratio")):
        names = {f"{name}_{unit}": name for name in ("estimate", "low", "high")}
        parts.append(load(f"{blind.NAME}-{kind}").frame.rename(columns=names).assign(unit=unit))
    return pd.concat(parts, ignore_index=True)


def compute(*, seed: int = 1, progress: Progress | None = None) -> HardwareLogs:
    """Put what is published beside the priors, and simulate the same guest with and without PML."""
    of_rings, links = rings.ring_numbers(seed, portion(progress, 0.0, 0.5))
    found = matters.matters_table(seed, portion(progress, 0.5, 1.0))
    numbers = pd.concat([told.told_numbers(), of_rings], ignore_index=True)
    return HardwareLogs(numbers, {"matters": found, "rings": links})


def answer(found: HardwareLogs) -> Answer:
    """Where it matters, and where not."""
    rows = found.matters[found.matters["mmu"] == "TDP MMU"]
    eager, faults = (rows[rows["memory"].str.endswith(how)] for how in ("split eagerly", "split by faults"))
    pml, protected = (eager[eager["tracking"] == way] for way in ("PML", "write protection"))
    stalls = faults[faults["tracking"] == "PML"].set_index("hold")["longest_stall_s"]
    return Answer(
        f"Not for what the guest writes: with PML it loses {pml['lost_percent'].max():.2g} % of its time instead of "
        f"{protected['lost_percent'].max():.2g} %, however long CLEAR holds the lock, and its longest stall, "
        f"{say_seconds(float(pml['longest_stall_s'].max()))}, is a full log buffer. It matters where blocks are split "
        f"by faults: the longest stall is {say_seconds(float(stalls['a GiB']))} with holds of a GiB, and "
        f"{say_seconds(float(stalls['64 pages']))} with 64 pages. CLEAR needs as much CPU time with PML as without."
    )


STUDY = Study(
    "hardware_logs",
    "Does mmu_lock matter when the hardware logs?",
    ("14-hardware-logs",),
    (*dict.fromkeys(row.table for row in told.ROWS), rings.TABLE, rings.AVERAGE),
    compute,
    answer,
)
