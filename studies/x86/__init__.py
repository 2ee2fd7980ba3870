# SPDX-License-Identifier: BSD-3-Clause
"""x86: why a fault in the saturated lock takes longer with more vCPUs, and what one thread does while they are parked.

`hosts` has the costs of the published hosts, which ``checks/shipped.py`` writes and other studies use.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simlib._lib.parallel import Progress
from studies.study import Answer, Found, Study
from studies.x86 import growth, hosts, parked


@dataclass(frozen=True)
class X86(Found):
    """What the study found."""

    @property
    def parked(self) -> pd.DataFrame:
        """The published times of enabling the log and of CLEAR; the others are those of faults."""
        return self.numbers[~self.numbers["metric"].str.startswith("dirty_memory_time")]


def compute(*, seed: int = 1, progress: Progress | None = None) -> X86:
    """Read what was calibrated, and predict what was not measured."""
    tell = progress or (lambda what, share: None)
    tell("faults of x86", 0.0)
    faults = growth.fault_numbers(seed)
    tell("x86 while the vCPUs are parked", 0.5)
    numbers = pd.concat([faults, parked.parked_numbers(), growth.beforehand_numbers()], ignore_index=True)
    tell("faults of x86, beyond what was measured", 0.7)
    tables = {
        "readings": growth.reading_table(),
        "curves": growth.curves(),
        "hand-over": growth.hand_over(),
        "beyond": growth.beyond(seed),
        "parked-costs": parked.parked_costs(),
    }
    return X86(numbers, tables)


def answer(found: X86) -> Answer:
    """What grows, and that it is empirical."""
    cost = found.tables["hand-over"].set_index("machine").loc["x86"]
    return Answer(
        "Sockets and clusters of cores explain a part. For the rest the model has one empirical cost: whenever the "
        f"number of waiting threads doubles, handing over the lock takes {cost['value_ns']:.3g} ns longer "
        f"({cost['low_ns']:.3g} to {cost['high_ns']:.3g}). No source names a mechanism "
        f"({len(found.tables['readings'])} readings were tried)."
    )


STUDY = Study(
    "x86",
    "x86's faults over vCPUs",
    ("06-x86-shadow-curves",),
    (
        hosts.DIRTY_TIME,
        "x86-shadow-eager-split-ioctl-time",
        "x86-tdp-eager-split",
        "x86-clear-dirty-log-160-vcpus",
        "x86-disable-dirty-log-flushes",
        "core-to-core-latency",
    ),
    compute,
    answer,
    takes_s=20,
)
