# SPDX-License-Identifier: BSD-3-Clause
"""What a migration, or zapping, did to the simulated guest, and what it cost: read from an engine's counters."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simlib.engine.result import ACTIVITIES, BINS, PS, EngineResult, lap_bin_end
from simlib.model.job import Job
from simlib.model.quantities import format_duration
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.workloads.migration import page_time

UNITS = {"precopy_duration": "s", "passes": "count", "converged": "0 or 1", "dirty_left": "bytes",
         "clear_cpu_time": "s", "clear_work_time": "s", "clear_wait_time": "s", "clear_flush_time": "s",
         "zap_time": "s", "guest_throughput": "share", "seconds_above_99": "s", "seconds_above_50": "s",
         "seconds_above_10": "s", "longest_stall": "s", "stall_p999": "s"}  # fmt: skip
"""Metrics of a migration and of zapping, with their units. ``seconds_above_99``: time that the guest is degraded by
more than 99 %."""

_WAIT = [ACTIVITIES.index("wait"), ACTIVITIES.index("line")]
_WORK, _IDLE, _BITMAP = ACTIVITIES.index("hold"), ACTIVITIES.index("idle"), len(ACTIVITIES)

_UNDISTURBED, _OVER, _ZAPPED = Stamp("undisturbed"), Stamp("switchover"), Stamp("zapped")

_ALL = 0.95
"""Share of the pages that the guest writes, of which a pass that finds them dirty again says no more than that."""

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
        ``time_s`` (since the guest was undisturbed, middle of the bin), ``width_s``, ``throughput``, ``degradation``
        (one less the throughput). From the first whole bin to the last before the switchover, or before all is
        zapped.
    """
    stamps = dict(zip(job.stamps, raw.stamp_ps.tolist(), strict=True))
    begin, end = stamps[_UNDISTURBED], stamps[_ZAPPED if _ZAPPED in stamps else _OVER]
    first, last = -(-begin // raw.bin_ps), min(end // raw.bin_ps, BINS)
    if last <= first:  # shorter than two bins: one value for all of it
        first, last = begin // raw.bin_ps, end // raw.bin_ps + 1
    done = raw.progress[: scenario.guest.vcpus, first:last].sum(axis=0)
    width = raw.bin_ps * PS
    throughput = done / (undisturbed_rate(scenario) * width)
    times = (np.arange(first, last) + 0.5) * width - begin * PS
    return pd.DataFrame({"time_s": times, "width_s": width, "throughput": throughput, "degradation": 1 - throughput})


def migration_metrics(scenario: Scenario, job: Job, raw: EngineResult) -> dict[str, float]:
    """The metrics of a migration.

    ``clear_cpu_time`` is the sum of three: ``clear_work_time`` with the lock held, ``clear_wait_time`` for it, and
    ``clear_flush_time``, the rest: TLB flushes, the ioctl itself, allocating without the lock, asking for it again.
    Without a value for what CLEAR costs a page, its work is NaN.
    """
    stamps = {name: i for i, name in enumerate(job.stamps)}
    over = stamps[_OVER]
    spent = raw.stamp_own[over, :_BITMAP] - raw.stamp_own[stamps[Stamp("enabled")], :_BITMAP]
    spent = spent + raw.thread_ps[scenario.guest.vcpus + 1 :].sum(axis=0)  # clearing threads do nothing else
    work = float("nan") if scenario.costs.clear_page is None else float(spent[_WORK]) * PS
    wait = float(spent[_WAIT].sum()) * PS
    rest = float(spent.sum() - spent[_WORK] - spent[_WAIT].sum() - spent[_IDLE]) * PS
    left = int(raw.stamp_own[stamps[Stamp("left")], _BITMAP])
    curve = degradation(scenario, job, raw)
    above = {
        f"seconds_above_{level}": float(curve["width_s"][curve["degradation"] > level / 100].sum()) for level in LEVELS
    }
    return {
        "precopy_duration": float(raw.stamp_ps[over] - raw.stamp_ps[stamps[_UNDISTURBED]]) * PS,
        "passes": float(_passes(job, raw)),
        "converged": float(left <= scenario.workload.downtime // page_time(scenario)),
        "dirty_left": float(left * scenario.guest.page_size),
        "clear_cpu_time": work + wait + rest,
        "clear_work_time": work,
        "clear_wait_time": wait,
        "clear_flush_time": rest,
        **above,
        **_guest_metrics(scenario, raw, curve),
    }


def zap_metrics(scenario: Scenario, job: Job, raw: EngineResult) -> dict[str, float]:
    """The metrics of zapping: how long it took, and what the guest could do meanwhile."""
    stamps = dict(zip(job.stamps, raw.stamp_ps.tolist(), strict=True))
    curve = degradation(scenario, job, raw)
    return {"zap_time": (stamps[_ZAPPED] - stamps[_UNDISTURBED]) * PS, **_guest_metrics(scenario, raw, curve)}


def _guest_metrics(scenario: Scenario, raw: EngineResult, curve: pd.DataFrame) -> dict[str, float]:
    vcpus = scenario.guest.vcpus
    longest = float(raw.lap_max_ps[:vcpus].max()) * PS
    return {
        "guest_throughput": float(np.average(curve["throughput"], weights=curve["width_s"])),
        "longest_stall": longest,
        "stall_p999": min(longest, stall_quantile(raw.lap_histogram[:vcpus].sum(axis=0), 0.999)),
    }


def _passes(job: Job, raw: EngineResult) -> int:
    """Passes that were made: the stamps of the others are zero."""
    return sum(stamp.phase == "sent" and time > 0 for stamp, time in zip(job.stamps, raw.stamp_ps, strict=True))


def no_convergence(scenario: Scenario, job: Job, raw: EngineResult) -> str:
    """Why a migration switched over although more was left than can be sent within the downtime; empty if it did not.

    The guest's rate is that of the last pass: what it found dirty again, over the time it took. If that is all that the
    guest writes, it may be faster.
    """
    workload, guest = scenario.workload, scenario.guest
    stamps = {name: i for i, name in enumerate(job.stamps)}
    left, passes = int(raw.stamp_own[stamps[Stamp("left")], _BITMAP]), _passes(job, raw)
    if left <= workload.downtime // page_time(scenario):
        return ""
    last = (raw.stamp_ps[stamps[_OVER]] - raw.stamp_ps[stamps[Stamp("collected", passes)]]) * PS
    bound = "at least " if left >= _ALL * job.pages * workload.write_percent / 100 else ""
    rate, sends = left * guest.page_size / last / 2**30, workload.link / 8 / 2**30
    stop = f"timeout of {format_duration(workload.timeout)}"
    if passes == workload.pass_limit:
        stop = f"limit of {passes} pass{'es' if passes > 1 else ''}"
    return (
        f"had not converged: the guest dirties {bound}{rate:.3g} GiB/s, the link sends {sends:.3g} GiB/s; "
        f"stopped at the {stop}"
    )


def stall_quantile(histogram: np.ndarray, share: float) -> float:
    """A quantile of the stalls, s: the upper end of the bin that holds it, so at most 12.5 % too long.

    Parameters
    ----------
    histogram : ndarray of int64, shape (488,)
        Count of stalls by `simlib.engine.result.lap_bin`.
    share : float

    Examples
    --------
    >>> counts = np.zeros(488, int)
    >>> counts[[10, 143]] = 999, 2
    >>> f"{stall_quantile(counts, 0.999):.3g}"
    '1.05e-06'
    """
    if not histogram.sum():
        return 0.0
    seen = np.cumsum(histogram)
    return lap_bin_end(int(np.searchsorted(seen, share * seen[-1]))) * PS
