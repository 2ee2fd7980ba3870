# SPDX-License-Identifier: BSD-3-Clause
"""What a simulated migration did to its guest, and what it cost: read from an engine's counters."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.engine.result import ACTIVITIES, BINS, PS, EngineResult
from simlib.model.scenario import Scenario
from simlib.model.steps import Job

UNITS = {"precopy_duration": "s", "passes": "count", "dirty_left": "bytes", "clear_cpu_time": "s",
         "clear_wait_time": "s", "guest_throughput": "share", "seconds_above_99": "s", "seconds_above_50": "s",
         "seconds_above_10": "s", "longest_stall": "s", "stall_p999": "s"}  # fmt: skip
"""Metrics of a migration, with their units. ``seconds_above_99``: time that the guest is degraded by more than 99 %."""

_WAIT = [ACTIVITIES.index("wait"), ACTIVITIES.index("line")]

LEVELS = (99, 50, 10)
"""Degradations, percent, of which the time above is a metric."""


def undisturbed_rate(scenario: Scenario) -> float:
    """Accesses a second of the whole guest when nobody takes a lock from it.

    Examples
    --------
    >>> undisturbed_rate(Scenario.parse({"guest": {"vcpus": 4}, "workload": {"access_interval": "2us"}}))
    2000000.0
    """
    costs, workload = scenario.costs, scenario.workload
    each = float(workload.access_interval)
    if workload.slow_fault_every:
        each += ((costs.fault_exit or 0) + (costs.fault_hold or 0)) / workload.slow_fault_every
    return scenario.guest.vcpus / (each * PS)


def degradation(scenario: Scenario, job: Job, raw: EngineResult) -> pd.DataFrame:
    """The guest's throughput over time, relative to undisturbed.

    Returns
    -------
    DataFrame
        ``time_s`` (since the log was enabled, middle of the bin), ``width_s``, ``throughput``, ``degradation``
        (one less the throughput). From the first whole bin to the last before the switchover.
    """
    stamps = dict(zip(job.stamps, raw.stamp_ps.tolist(), strict=True))
    begin, end = stamps["undisturbed"], stamps["switchover"]
    first, last = -(-begin // raw.bin_ps), min(end // raw.bin_ps, BINS)
    if last <= first:  # shorter than two bins: one value for all of it
        first, last = begin // raw.bin_ps, end // raw.bin_ps + 1
    done = raw.progress[: scenario.guest.vcpus, first:last].sum(axis=0)
    width = raw.bin_ps * PS
    throughput = done / (undisturbed_rate(scenario) * width)
    times = (np.arange(first, last) + 0.5) * width - begin * PS
    return pd.DataFrame({"time_s": times, "width_s": width, "throughput": throughput, "degradation": 1 - throughput})


def migration_metrics(scenario: Scenario, job: Job, raw: EngineResult) -> dict[str, float]:
    """The metrics of `UNITS`; ``clear_wait_time`` is the part of ``clear_cpu_time`` that waited for the lock."""
    stamps = {name: i for i, name in enumerate(job.stamps)}
    start, over = stamps["undisturbed"], stamps["switchover"]
    own = raw.stamp_own[over] - raw.stamp_own[stamps["enabled"]]
    cleared = int(own[len(ACTIVITIES) + 1])
    waited = int(own[_WAIT].sum())
    helpers = raw.thread_ps[scenario.guest.vcpus + 1 :]  # these do nothing but CLEAR
    cleared += int(helpers.sum() - helpers[:, ACTIVITIES.index("idle")].sum())
    waited += int(helpers[:, _WAIT].sum())
    curve = degradation(scenario, job, raw)
    vcpus = scenario.guest.vcpus
    values = {
        "precopy_duration": float(raw.stamp_ps[over] - raw.stamp_ps[start]) * PS,
        "passes": float(sum(raw.stamp_ps[i] > 0 for name, i in stamps.items() if name.startswith("sent "))),
        "dirty_left": float(raw.stamp_own[stamps["left"], len(ACTIVITIES)]) * scenario.guest.page_size,
        "clear_cpu_time": cleared * PS,
        "clear_wait_time": waited * PS,
        "guest_throughput": float(np.average(curve["throughput"], weights=curve["width_s"])),
        "longest_stall": float(raw.lap_max_ps[:vcpus].max()) * PS,
        "stall_p999": stall_quantile(raw.lap_histogram[:vcpus].sum(axis=0), 0.999),
    }
    for level in LEVELS:
        above = curve["degradation"] > level / 100
        values[f"seconds_above_{level}"] = float(curve["width_s"][above].sum())
    return values


def stall_quantile(histogram: np.ndarray, share: float) -> float:
    """A quantile of the stalls, s: the upper end of the bin that holds it, so at most twice too long.

    Parameters
    ----------
    histogram : ndarray of int64, shape (65,)
        Count of stalls whose picoseconds have that many bits.
    share : float

    Examples
    --------
    >>> counts = np.zeros(65, int)
    >>> counts[[10, 20]] = 999, 2
    >>> stall_quantile(counts, 0.999) == 2.0**20 * 1e-12
    True
    """
    if not histogram.sum():
        return 0.0
    seen = np.cumsum(histogram)
    return float(2.0 ** int(np.searchsorted(seen, share * seen[-1]))) * PS
