# SPDX-License-Identifier: BSD-3-Clause
"""What somebody who chooses a strategy may care about."""

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
"""What is kept of a simulated migration (`simlib.simulator.workloads.migration.METRICS`)."""


@dataclass(frozen=True)
class Objective:
    """Something that is to be small, in seconds.

    - `short`: the title as a narrow column has it.
    - `value`: (metrics of shape (..., len(METRICS)), vCPUs, weight) to seconds.
    - `floor`: differences below do not matter to anybody, s.
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


def _lost(values: Floats, vcpus: int, weight: float) -> Floats:
    precopy, throughput = (values[..., METRICS.index(name)] for name in ("precopy_duration", "guest_throughput"))
    found: Floats = vcpus * precopy * (1 - throughput)
    return found


def _cost(values: Floats, vcpus: int, weight: float) -> Floats:
    thread: Floats = values[..., METRICS.index("enable_cpu_time")] + values[..., METRICS.index("clear_cpu_time")]
    return thread + weight * _lost(values, vcpus, weight)


OBJECTIVES: dict[str, Objective] = {
    row.name: row
    for row in (
        Objective(
            "cost",
            "CPU time in all",
            "CPU in all",
            "CPU time of enabling the log and of CLEAR, and guest time lost times the weight.",
            _cost,
        ),
        Objective(
            "guest_time_lost",
            "guest time lost",
            "guest_time_lost",
            "What all vCPUs together lose of their own time before the "
            "switchover: vCPUs × pre-copy × (1 − throughput).",
            _lost,
        ),
        Objective(
            "stall",
            "longest stall",
            "stall",
            "Longest time that one access of any vCPU takes.",
            _metric("longest_stall"),
            10e-6,
        ),
        Objective(
            "p999",
            "99.9th percentile",
            "p99.9",
            "Time that 99.9 % of the vCPUs' stalls do not exceed: low where long ones are rare.",
            _metric("stall_p999"),
            10e-6,
        ),
        *(
            Objective(
                f"above{level}",
                f"time above {level} %",
                f">{level} %",
                f"Time in which the guest is degraded by more than {level} %.",
                _metric(f"seconds_above_{level}"),
                0.1,
            )
            for level in sorted(LEVELS)
        ),
        Objective(
            "clear",
            "CPU time of CLEAR",
            "CLEAR",
            "CPU time of the thread that clears, waiting for the lock included.",
            _metric("clear_cpu_time"),
        ),
        Objective(
            "precopy",
            "pre-copy",
            "pre-copy",
            "From the beginning of the migration to the switchover.",
            _metric("precopy_duration"),
        ),
    )
}
"""The objectives, by name."""


def objective(name: str) -> Objective:
    """One of them.

    Raises `InputError` if there is none of this name.

    >>> values = np.array([0.001, 1e-4, 0.01, 2.0, 0.75, 0.0, 0.0, 0.0, 0.02])
    >>> objective("cost").value(values, 4, 2.0).item()
    4.03
    """
    if name not in OBJECTIVES:
        raise InputError("objective", name, "unknown objective", nearest(name, OBJECTIVES))
    return OBJECTIVES[name]
