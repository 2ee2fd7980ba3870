# SPDX-License-Identifier: BSD-3-Clause
"""Disturbances during a measurement: the hypervisor, other programs, the CPUs' frequency."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STEAL_PERCENT = 1.0
"""Maximum steal time of a quiet run, percent of the time of the CPUs in use."""

FOREIGN_PERCENT = 3.0
"""Maximum time that other programs run during a quiet run, percent of the time of the CPUs in use."""

FREQUENCY_PERCENT = 5.0
"""Maximum change in the frequency of a CPU in use during a quiet run, percent."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Snapshot:
    """Counters of the kernel at one moment."""

    wall_s: float
    steal_s: float
    busy_s: float
    children_s: float
    """Time; steal time and busy time, summed over the CPUs in use; CPU time of children that have ended."""
    hertz: tuple[float, ...]
    """Frequency of each CPU; empty if the kernel does not report it."""


@dataclass(frozen=True)
class HostNoise:
    """Disturbances during a run."""

    wall_s: float
    steal_percent: float
    foreign_percent: float
    """Shares of the time of all CPUs in use."""
    frequency_percent: float | None
    """Largest change in a CPU's frequency; None if the kernel does not report it."""

    @property
    def quiet(self) -> bool:
        """True if a time measured during the run can be used."""
        steady = (self.frequency_percent or 0.0) <= FREQUENCY_PERCENT
        return steady and self.steal_percent <= STEAL_PERCENT and self.foreign_percent <= FOREIGN_PERCENT

    @property
    def description(self) -> str:
        """Description of the disturbances for a message."""
        parts = [f"other programs ran for {self.foreign_percent:.1f} % of the time"]
        if self.steal_percent > STEAL_PERCENT:
            parts.append(f"the hypervisor took {self.steal_percent:.1f} % of the CPU time")
        if (self.frequency_percent or 0.0) > FREQUENCY_PERCENT:
            parts.append(f"the CPU frequency changed by {self.frequency_percent:.0f} %")
        return ", ".join(parts)


def take_snapshot(cpus: Sequence[int]) -> Snapshot:
    """Read the kernel's counters for the CPUs in use."""
    steal = busy = 0
    names = {f"cpu{cpu}" for cpu in cpus}
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq, stolen = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    paths = (Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus)
    try:
        hertz = tuple(float(path.read_text("ascii")) * 1e3 for path in paths)
    except (OSError, ValueError):
        hertz = ()
    children_s = usage.ru_utime + usage.ru_stime
    return Snapshot(time.monotonic(), steal / _TICKS, busy / _TICKS, children_s, hertz)


def noise_between(before: Snapshot, after: Snapshot, cpus: int) -> HostNoise:
    """Disturbances between two snapshots, without the CPU time of this process's children."""
    wall = max(after.wall_s - before.wall_s, 1e-9)
    children = after.children_s - before.children_s
    foreign = max(after.busy_s - before.busy_s - children, 0.0)
    frequency = None
    if before.hertz and len(before.hertz) == len(after.hertz):
        frequency = float(np.max(np.abs(np.array(after.hertz) / np.array(before.hertz) - 1)) * 100)
    share = 100 / (wall * cpus)
    return HostNoise(wall, round((after.steal_s - before.steal_s) * share, 6), round(foreign * share, 6), frequency)
