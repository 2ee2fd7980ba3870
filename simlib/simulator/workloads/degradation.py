# SPDX-License-Identifier: BSD-3-Clause
"""Throughput of a guest that keeps running while other threads take mmu_lock, from an engine's counters."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine.result import BINS, PS, EngineResult, lap_quantile
from simlib.simulator.workloads.metrics import Metric

UNDISTURBED, SWITCHOVER = Stamp("undisturbed"), Stamp("switchover")

LEVELS = (99, 50, 10)
"""Degradations, percent; the time above each is a metric."""

GUEST = (
    Metric("guest_throughput", "share", "Accesses of all vCPUs from the end of the warm-up to the end of the last "
           "ioctl, relative to an undisturbed guest."),
    Metric("longest_stall", "s", "Longest time that one access took, including an interrupt just before it.",
           "whole"),
    Metric("stall_p999", "s", "99.9th percentile of the stalls (faults and interrupts).", "whole"),
)  # fmt: skip
"""Metrics of every guest that keeps running."""


def undisturbed_rate(scenario: Scenario) -> float:
    """Accesses per second of the whole guest when no other thread takes a lock.

    A vCPU that catches up after a delay accesses memory more often.

    >>> undisturbed_rate(Scenario.parse({"guest": {"vcpus": 4}, "workload": {"access_interval": "2us"}}))
    2000000.0
    """
    costs, workload = scenario.host_costs, scenario.workload
    busy_ps = float(workload.access_work)
    if workload.slow_fault_every:
        busy_ps += ((costs.fault_unlocked or 0) + (costs.fault_hold or 0)) / workload.slow_fault_every
    return scenario.guest.vcpus / (max(float(workload.access_interval), busy_ps) * PS)


def degradation(scenario: Scenario, job: Job, raw: EngineResult, end: Stamp = SWITCHOVER) -> pd.DataFrame:
    """Return the guest's throughput over time, relative to an undisturbed guest.

    Returns: ``time_s`` (since the end of the warm-up, middle of the bin), ``width_s``, ``throughput``, ``degradation``
    (1 − throughput). The rows cover the whole bins from the end of the warm-up to `end`.

    - `end`: stamp at which the disturbance ends; by default the switchover of a migration.
    """
    stamps = dict(zip(job.stamps, raw.stamp_ps.tolist(), strict=True))
    begin, finish = stamps[UNDISTURBED], stamps[end]
    first, last = -(-begin // raw.bin_ps), min(finish // raw.bin_ps, BINS)
    if last <= first:  # shorter than two bins: one value for all of it
        first, last = begin // raw.bin_ps, finish // raw.bin_ps + 1
    accesses = raw.progress[: scenario.guest.vcpus, first:last].sum(axis=0)
    width = raw.bin_ps * PS
    throughput = accesses / (undisturbed_rate(scenario) * width)
    times = (np.arange(first, last) + 0.5) * width - begin * PS
    return pd.DataFrame({"time_s": times, "width_s": width, "throughput": throughput, "degradation": 1 - throughput})


def guest_metrics(scenario: Scenario, raw: EngineResult, curve: pd.DataFrame) -> dict[str, float]:
    """Values of `GUEST`, from the curve that `degradation` returns."""
    longest = float(raw.lap_max_ps[: scenario.guest.vcpus].max()) * PS
    return {
        "guest_throughput": float(np.average(curve["throughput"].to_numpy(), weights=curve["width_s"].to_numpy())),
        "longest_stall": longest,
        "stall_p999": min(longest, lap_quantile(raw.lap_histogram, 0.999)),
    }
