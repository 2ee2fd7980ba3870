# SPDX-License-Identifier: BSD-3-Clause
"""What else goes on while something is measured: the hypervisor, other programs, the clock's frequency."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STEAL_PERCENT = 1.0
"""Most time that the hypervisor may have given to others during a quiet run."""

FOREIGN_PERCENT = 3.0
"""Most time that other programs may have run on the CPUs that a quiet run uses."""

FREQUENCY_PERCENT = 5.0
"""Most that the clock of any CPU in use may have changed during a quiet run."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Snapshot:
    """What the kernel has counted so far."""

    wall_s: float
    steal_s: float
    busy_s: float
    children_s: float
    """Time; time given to others, and time not idle, over the CPUs in use; CPU time of children that have ended."""
    hertz: tuple[float, ...]
    """Frequency of each CPU; empty where the kernel does not tell."""


@dataclass(frozen=True)
class HostNoise:
    """What went on during a run."""

    wall_s: float
    steal_percent: float
    foreign_percent: float
    """Share of the time of all CPUs in use."""
    frequency_percent: float | None
    """Largest change of a CPU's frequency; None where the kernel does not tell."""

    @property
    def quiet(self) -> bool:
        """Whether a time that was measured meanwhile can be used."""
        steady = (self.frequency_percent or 0.0) <= FREQUENCY_PERCENT
        return steady and self.steal_percent <= STEAL_PERCENT and self.foreign_percent <= FOREIGN_PERCENT

    def words(self) -> str:
        """What there is to complain of."""
        parts = [f"other programs ran for {self.foreign_percent:.1f} % of the time"]
        if self.steal_percent > STEAL_PERCENT:
            parts.append(f"the hypervisor took {self.steal_percent:.1f} %")
        if (self.frequency_percent or 0.0) > FREQUENCY_PERCENT:
            parts.append(f"the clock changed by {self.frequency_percent:.0f} %")
        return ", ".join(parts)


def look(cpus: Sequence[int]) -> Snapshot:
    """Look at what the kernel has counted of the CPUs in use."""
    steal = busy = 0
    names = {f"cpu{cpu}" for cpu in cpus}
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq, stolen = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    hertz = []
    for cpu in cpus:
        try:
            path = Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
            hertz.append(float(path.read_text("ascii")) * 1e3)
        except (OSError, ValueError):
            hertz = []
            break
    children = spent.ru_utime + spent.ru_stime
    return Snapshot(time.monotonic(), steal / _TICKS, busy / _TICKS, children, tuple(hertz))


def between(before: Snapshot, after: Snapshot, cpus: int) -> HostNoise:
    """What went on between two looks, of which the children that ended meanwhile are not a part."""
    wall = max(after.wall_s - before.wall_s, 1e-9)
    own = after.children_s - before.children_s
    foreign = max(after.busy_s - before.busy_s - own, 0.0)
    changed = None
    if before.hertz and len(before.hertz) == len(after.hertz):
        changed = float(np.max(np.abs(np.array(after.hertz) / np.array(before.hertz) - 1)) * 100)
    share = 100 / (wall * cpus)
    return HostNoise(wall, round((after.steal_s - before.steal_s) * share, 6), round(foreign * share, 6), changed)
