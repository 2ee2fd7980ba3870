# SPDX-License-Identifier: BSD-3-Clause
"""Objectives of a choice: quantities to minimise, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import InputError, nearest
from simlib.simulator.workloads.degradation import LEVELS

Floats = NDArray[np.float64]

METRICS = ("longest_stall", "stall_p999", "clear_cpu_time", "precopy_duration", "guest_throughput",
           *(f"seconds_above_{level}" for level in LEVELS), "enable_cpu_time")  # fmt: skip
"""Metrics of a migration from which the objectives are computed (`simlib.simulator.workloads.migration.METRICS`)."""


@dataclass(frozen=True)
class Objective:
    """A quantity to minimise.

    - `short`: the title for a narrow column.
    - `value`: function of (metrics of shape (..., len(METRICS)), vCPUs, weight) that returns seconds.
    - `floor`: differences below it count as equal, s.
    """

    name: str
    title: str
    short: str
    definition: str
    value: Callable[[Floats, int, float], Floats]
    floor: float = 0.0


def _metric(name: str) -> Callable[[Floats, int, float], Floats]:
    column = METRICS.index(name)
    return lambda values, vcpus, weight: values[..., column]


def _guest_time_lost(values: Floats, vcpus: int, weight: float) -> Floats:
    precopy, throughput = (values[..., METRICS.index(name)] for name in ("precopy_duration", "guest_throughput"))
    lost: Floats = vcpus * precopy * (1 - throughput)
    return lost


def _cost(values: Floats, vcpus: int, weight: float) -> Floats:
    thread: Floats = values[..., METRICS.index("enable_cpu_time")] + values[..., METRICS.index("clear_cpu_time")]
    return thread + weight * _guest_time_lost(values, vcpus, weight)


OBJECTIVES: dict[str, Objective] = {
    row.name: row
    for row in (
        Objective("cost", "weighted cost", "cost",
                  "CPU time of enabling the log and of CLEAR, plus weight × guest time lost.", _cost),
        Objective("guest_time_lost", "guest time lost", "time lost",
                  "Time that all vCPUs lose before the switchover: vCPUs × pre-copy × (1 − throughput).",
                  _guest_time_lost),
        Objective("stall", "longest stall", "stall",
                  "Longest time that one access of any vCPU takes.", _metric("longest_stall"), 10e-6),
        Objective("p999", "99.9th percentile", "p99.9",
                  "99.9th percentile of the vCPUs' stalls; it is low if long stalls are rare.",
                  _metric("stall_p999"), 10e-6),
        *(
            Objective(f"above{level}", f"time above {level} %", f">{level} %",
                      f"Time during which the guest is degraded by more than {level} %.",
                      _metric(f"seconds_above_{level}"), 0.1)
            for level in sorted(LEVELS)
        ),
        Objective("clear", "CPU time of CLEAR", "CLEAR",
                  "CPU time of the thread that runs CLEAR, including its waits for the lock.",
                  _metric("clear_cpu_time")),
        Objective("precopy", "pre-copy", "pre-copy",
                  "Time from the beginning of the migration to the switchover.", _metric("precopy_duration")),
    )
}  # fmt: skip
"""The objectives, by name."""


def objective(name: str) -> Objective:
    """Return an objective by its name.

    Raises `InputError` if the name is unknown.

    >>> values = np.array([0.001, 1e-4, 0.01, 2.0, 0.75, 0.0, 0.0, 0.0, 0.02])
    >>> objective("cost").value(values, 4, 2.0).item()
    4.03
    """
    if name not in OBJECTIVES:
        raise InputError("objective", name, "unknown objective", nearest(name, OBJECTIVES))
    return OBJECTIVES[name]
