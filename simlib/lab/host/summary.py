# SPDX-License-Identifier: BSD-3-Clause
"""Summary of a watch: rates, shares and extremes, one row each."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from simlib.lab.host.migration import MigrationWatch, status_of
from simlib.lab.host.statistics import StatisticsWatch
from simlib.lab.host.threads import Threads
from simlib.measurements.importers.kvm_stats import ALL_TIMED
from simlib.measurements.importers.trace import Trace

Row = tuple[str, str, Any, str]
"""Subject, quantity, value and unit."""

FAULTS = ("pf_taken", "pf_fixed", "pf_fast", "pf_spurious", "insn_emulation", "exits")
"""Statistics of a vCPU: faults of x86 guests (``kvm_vcpu_stats_desc`` in ``arch/x86/kvm/x86.c``), and exits."""

FLUSHES = ("remote_tlb_flush", "remote_tlb_flush_requests")
"""Statistics of a VM: TLB flushes, on every architecture (``KVM_GENERIC_VM_STATS`` in ``kvm_host.h``)."""

_MIGRATION = (
    ("total_time_ms", "total time", "ms"), ("setup_time_ms", "setup time", "ms"), ("downtime_ms", "downtime", "ms"),
    ("transferred_bytes", "transferred", "B"), ("remaining_bytes", "remaining", "B"),
    ("dirty_sync_count", "dirty bitmap syncs", "count"), ("dirty_pages_per_s", "dirty rate, last pass", "pages/s"),
    ("throttle_percent", "throttling of vCPUs", "%"),
)  # fmt: skip


def migration_summary(migration: MigrationWatch) -> list[Row]:
    """Summarize a migration: last state, times and sizes, and the longest pass."""
    if migration.last is None or status_of(migration.last) == "none":
        return []
    frame = migration.table().frame
    rows: list[Row] = [("migration", "status", status_of(migration.last), "")]
    for column, what, unit in _MIGRATION:
        values = frame[column].dropna()
        if len(values):
            rows.append(("migration", what, int(values.iloc[-1]), unit))
    passes = migration.passes().frame
    if len(passes):
        longest = passes.iloc[int(passes["seen_s"].to_numpy().argmax())]
        rows.append(("migration", "passes seen", len(passes), "count"))
        rows.append(("migration", f"longest, pass {int(longest['pass'])}", round(float(longest["seen_s"]), 3), "s"))
    return rows


def statistics_summary(statistics: StatisticsWatch) -> list[Row]:
    """Summarize KVM's statistics: faults, exits and flushes per second; acquisitions, waits and holds of mmu_lock."""
    seconds = statistics.seconds
    if not seconds:
        return []
    rows = []
    for scope, names in (("vcpu", FAULTS), ("vm", FLUSHES)):
        counts = [(name, statistics.totals[scope, name]) for name in names if statistics.totals[scope, name]]
        rows += [("statistics", name, float(f"{count / seconds:.4g}"), "1/s") for name, count in counts]
    for (site, mode), total in sorted(statistics.lock_totals.items()):
        if total["acquired"]:
            rows += _lock(statistics, site, mode, total["acquired"], total)
    return rows


def _lock(statistics: StatisticsWatch, site: str, mode: str, acquired: int, total: Any) -> list[Row]:
    """Summarize one call site and mode; untimed holds (kvm.mmu_lock_stat_period) count as the mean of timed ones."""
    timed = total.get("timed", acquired)
    held_ns = total["hold_ns"] * acquired / timed if timed else math.nan
    about, seconds = f"mmu_lock {site} {mode}", statistics.seconds
    rows = [
        (about, "acquired", float(f"{acquired / seconds:.4g}"), "1/s"),
        (about, "contended", round(100 * total["contended"] / acquired, 2), "%"),
        (about, "wait, total of all threads", float(f"{100 * total['wait_ns'] / seconds / 1e9:.4g}"), "% of the time"),
        (about, "held", float(f"{100 * held_ns / seconds / 1e9:.4g}"), "% of the time"),
    ]
    if timed < ALL_TIMED * acquired:
        rows.append((about, "timed holds (held is an estimate)", timed, "count"))
    for quantity in ("wait", "hold"):
        longest = statistics.highest_bucket("vm", f"mmu_lock_{site}_{mode}_{quantity}_hist")
        if longest is not None:
            bound, value = ("at least", longest[0]) if longest[1] is None else ("below", longest[1])
            rows.append((about, f"longest {quantity}, {bound}", value, "ns"))
    return rows


def threads_summary(threads: Threads) -> list[Row]:
    """Summarize threads: shares of the time in which vCPUs and other threads ran, and waited for a CPU."""
    if not threads.seconds:
        return []
    nanoseconds = threads.seconds * 1e9
    vcpus = [name for name in threads.cpu_ns if name != "none"]
    rows = []
    if vcpus:
        ran = [100 * threads.cpu_ns[name] / nanoseconds for name in vcpus]
        waited = [100 * threads.delay_ns[name] / nanoseconds for name in vcpus]
        rows += [
            ("threads", "vCPUs that ran", len(vcpus), "count"),
            ("threads", "vCPU on a CPU, mean", round(sum(ran) / len(ran), 2), "% of the time"),
            ("threads", "vCPU on a CPU, minimum", round(min(ran), 2), "% of the time"),
            ("threads", "vCPU waiting for a CPU, maximum", round(max(waited), 2), "% of the time"),
        ]
    others = round(100 * threads.cpu_ns["none"] / nanoseconds, 2)
    return [*rows, ("threads", "other threads on a CPU, total", others, "% of the time")]


def trace_summary(trace: Trace) -> list[Row]:
    """Summarize tracepoints: waits for all locks of the kernel, the longest hold of mmu_lock, and KVM's events."""
    rows = []
    waits = trace.episodes.rows.table("waits", "", ()).frame
    if len(waits):
        rows += [
            ("tracepoints", "waits for locks of the kernel", len(waits), "count"),
            ("tracepoints", "waits for locks, total", int(waits["wait_ns"].sum()), "ns"),
            ("tracepoints", "waits for locks, maximum", int(waits["wait_ns"].max()), "ns"),
        ]
    held = trace.released.table("released", "", ()).frame
    if len(held):
        longest = held.iloc[int(held["hold_ns"].to_numpy().argmax())]
        what = f"longest hold of mmu_lock, {longest['site']} {longest['mode']}"
        rows.append(("tracepoints", what, int(longest["hold_ns"]), "ns"))
    counts = Counter[str]()
    for (event, _, _, _), (count, _, _) in trace.counts.items():
        counts[event] += count
    return rows + [("tracepoints", event, count, "count") for event, count in sorted(counts.items())]
