# SPDX-License-Identifier: BSD-3-Clause
"""Measure a running guest from outside, as docs/migrate.md says: dirty rates, CPU time of the vCPUs, memory of QEMU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simlib._lib.errors import SimlibError
from simlib.lab.migration.progress import RunningQemu
from simlib.lab.migration.report import ReportHead
from simlib.measurements.importers.tables import Column

WINDOWS_S = (1, 10, 60)
"""Lengths of the measurements of the dirty rate, s."""

QUERIES = (
    "query-cpus-fast", "query-memory-size-summary", "query-migrate", "query-migrate-parameters",
    "query-migrate-capabilities",
)  # fmt: skip

_POLL_S = 0.05
_EXTRA_S = 60.0
"""Time beyond a window after which QEMU must have answered, s; page sampling reads the sampled pages twice."""

READINGS = (
    Column("reading", "whole", "number of the measurement, from 1"),
    Column("mode", "text", "mode of calc-dirty-rate"),
    Column("window_s", "number", "calc-time"),
    Column("dirty_rate_mib_per_s", "whole", "dirty-rate: whole MiB/s, rounded down"),
    Column("vcpu_cpu_percent", "number", "CPU time of QEMU's vCPU threads, mean of the vCPUs"),
    Column("guest_cpu_percent", "number", "CPU time that is not idle in the guest's /proc/stat, mean of the vCPUs"),
    Column("operations_per_s", "number", "operations of the workload", unit="1/s"),
    Column("resident_bytes", "whole", "resident memory of QEMU (/proc/PID/statm) at the end"),
    Column("base_memory_bytes", "whole", "base-memory of query-memory-size-summary"),
)
"""Columns of a measurement's table; one row a reading."""


def measure_guest(machine: RunningQemu, head: Callable[[], ReportHead], check: Callable[[], None]) -> dict[str, Any]:
    """Measure a guest for about 75 s.

    Returns: ``readings``, rows of `READINGS`; and the evidence as it was read: ``replies``, QEMU's answers with their
    commands; ``threads``, the CPU time of each vCPU thread before and after each reading, s; ``resident_bytes``.
    Raises `SimlibError` if QEMU refuses a command, or does not answer.

    - `head`: reads the guest's counters; `check`: called meanwhile.
    """
    log: list[dict[str, Any]] = []

    def ask(command: str, **arguments: Any) -> Any:
        answer = machine.query(command, **arguments)
        log.append({"execute": command, "arguments": arguments, "return": answer})
        return answer

    vcpus = ask("query-cpus-fast")
    base = ask("query-memory-size-summary")["base-memory"]
    threads, readings = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, window_s in enumerate(WINDOWS_S, 1):
        first, begun, before = head(), time.monotonic(), _cpu_times(machine.pid, vcpus)
        ask("calc-dirty-rate", **{"calc-time": window_s, "mode": "page-sampling"})
        time.sleep(window_s)
        last, ended, after = head(), time.monotonic(), _cpu_times(machine.pid, vcpus)
        reply = _dirty_rate(machine, window_s, check)
        log.append({"execute": "query-dirty-rate", "arguments": {}, "return": reply})
        span_s = ended - begun
        used_s = sum(after.values()) - sum(before.values())
        operations = sum(b.operations - a.operations for a, b in zip(first.vcpus, last.vcpus, strict=True))
        resident = resident_bytes(machine.pid)
        threads.append({"reading": number, "span_s": span_s, "before_s": before, "after_s": after})
        readings.append({
            "reading": number, "mode": reply["mode"], "window_s": window_s,
            "dirty_rate_mib_per_s": reply["dirty-rate"],
            "vcpu_cpu_percent": round(100 * used_s / span_s / len(vcpus), 2),
            "guest_cpu_percent": round(100 * (last.busy - first.busy) / max(1, last.total - first.total), 2),
            "operations_per_s": round(operations / span_s, 2), "resident_bytes": resident, "base_memory_bytes": base,
        })  # fmt: skip
    for query in QUERIES:
        ask(query)
    return {"readings": readings, "replies": log, "threads": threads, "resident_bytes": resident_bytes(machine.pid)}


def _dirty_rate(machine: RunningQemu, window_s: float, check: Callable[[], None]) -> dict[str, Any]:
    """Wait until QEMU has measured; return its answer."""
    deadline = time.monotonic() + window_s + _EXTRA_S
    while time.monotonic() < deadline:
        check()
        reply: dict[str, Any] = machine.query("query-dirty-rate")
        if reply["status"] == "measured":
            return reply
        time.sleep(_POLL_S)
    raise SimlibError(f"QEMU did not measure a dirty rate over {window_s} s within {window_s + _EXTRA_S:g} s")


def _cpu_times(pid: int, vcpus: list[dict[str, Any]]) -> dict[str, float]:
    """CPU time of each vCPU thread by the vCPU's number, s."""
    tasks = Path("/proc") / str(pid) / "task"
    return {str(vcpu["cpu-index"]): cpu_time((tasks / str(vcpu["thread-id"]) / "stat").read_text()) for vcpu in vcpus}


def cpu_time(stat: str) -> float:
    """User and system time of a thread, s; `stat`: text of its /proc/PID/task/TID/stat (proc(5)).

    >>> fields = "41 (CPU 0/TCG) S 1 41 41 0 -1 4194368 900 0 0 0 250 50 0 0 20 0 4 0"
    >>> cpu_time(fields) * os.sysconf("SC_CLK_TCK")
    300.0
    """
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process (/proc/PID/statm), bytes."""
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
