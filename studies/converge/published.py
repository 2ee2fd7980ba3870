# SPDX-License-Identifier: BSD-3-Clause
"""The migration that made QEMU throttle: 20 vCPUs, 256 GB, without and with auto-converge (Chegu Vinod, 2013).

Without auto-converge it did not end within 1487.5 s. The mail states how much was sent, not what the guest writes. The
sampled guests write too fast for the link, and have the working set for which auto-converge sends that amount.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simlib.measurements import load
from simlib.vmm import qemu_rules
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.precopy import PrecopyTrajectory, precopy_trajectory
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.settings import QEMU_1_6, Settings
from studies.study import FITTED, HELD_OUT, SHOWN_ONLY, comparison_rows

TABLE = "qemu-auto-converge"
DRAWS = 40

MEMORY = 256 * 2**30
_WRITES = (70e3, 240e3)
"""Range of writes per second: the link can send a quarter of them (the throttled guest's), but not all."""

_ZERO_S = (1e-6, 2.5e-6)
"""Time to find that a page is zero, s: memory read at 1.6 to 4 GB/s. A prior."""

_PART = (0.2, 1.0)
"""Share of the memory in use that is written repeatedly. A prior."""

_OFF = Settings(max_bandwidth=0, downtime_limit=4000)
_ON = Settings(max_bandwidth=0, downtime_limit=4000, auto_converge=True, cpu_throttle_initial=75, max_cpu_throttle=75)


def _runs() -> dict[str, dict[Any, Any]]:
    """The published rows, by the setting of auto-converge."""
    return {row["auto_converge"]: row for row in load(TABLE).frame.to_dict("records")}


def migrated(working_set: float, part: float, writes: float, zero_s: float, settings: Settings) -> PrecopyTrajectory:
    """Compute the migration of one sampled guest.

    - `working_set`: bytes that are written; `part`: share of the used memory; `writes`: per s; `zero_s`: see `_ZERO_S`.
    """
    off = _runs()["off"]
    page_s = off["total_time_ms"] / 1e3 / (off["transferred_kb"] * 1024 / qemu_rules.WHOLE_PAGE)
    hot, used = working_set / PAGE, min(MEMORY, working_set / part) / PAGE
    count = np.array([hot, used - hot, MEMORY / PAGE - used])
    pages = WorkingSet(
        count, np.array([writes / hot, 0.0, 0.0]), np.zeros(3), np.zeros(3), np.ones(3), np.array([0.0, 0.0, 1.0])
    )
    line = LinkModel(page_s, zero_s=zero_s, vcpus=20)
    return precopy_trajectory(pages, line, settings, off["total_time_ms"] / 1e3, QEMU_1_6)


def published_numbers(seed: int = 1, draws: int = DRAWS) -> pd.DataFrame:
    """Compare published times and amounts with those of sampled guests."""
    runs, random = _runs(), np.random.default_rng(seed)
    sent = runs["on"]["transferred_kb"] * 1024
    outcomes = []
    for _ in range(draws):
        writes, zero_s = (np.exp(random.uniform(*np.log(ends))) for ends in (_WRITES, _ZERO_S))
        drawn = (random.uniform(*_PART), writes, zero_s)
        low, high = 2.0**28, 2.0**35  # by halves: more is sent of a larger working set
        for _ in range(24):
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if migrated(middle, *drawn, _ON).sent_bytes > sent else (middle, high)
        on, off = migrated(low, *drawn, _ON), migrated(low, *drawn, _OFF)
        outcomes.append((off.completed, on.total_s, on.downtime_s, on.sent_bytes))
    ends, *drawn_values = np.array(outcomes, dtype=float).T
    total, downtime, amount = (np.quantile(values, [0.5, 0.05, 0.95]) for values in drawn_values)
    rows = [
        ("off", "ends within 1487.5 s", 0.0, "share", SHOWN_ONLY, ends.mean(), np.nan, np.nan),
        ("on", "total time", runs["on"]["total_time_ms"] / 1e3, "s", HELD_OUT, *total),
        ("on", "downtime", runs["on"]["downtime_ms"] / 1e3, "s", HELD_OUT, *downtime),
        ("on", "sent", sent / 1e9, "GB", FITTED, *amount / 1e9),
    ]
    columns = ["variant", "metric", "published", "unit", "role", "predicted", "low", "high"]
    return comparison_rows(pd.DataFrame(rows, columns=columns).assign(vcpus=20), TABLE)
