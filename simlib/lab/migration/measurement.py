# SPDX-License-Identifier: BSD-3-Clause
"""Measure a running guest from outside, as docs/migrate.md says: dirty rates, CPU time of the vCPUs, memory of QEMU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simlib.lab.migration.progress import RunningQemu
from simlib.lab.migration.report import ReportHead
from simlib.measurements.importers.tables import Column
from simlib.vmm.measure import (
    QUERIES,
    WINDOWS_S,
    cpu_time,
    cpu_times,
    resident_bytes,
    start_dirty_rate,
    wait_for_dirty_rate,
)

READINGS = (
    Column("reading", "whole", "number of the measurement, from 1"),
    Column("mode", "text", "mode of calc-dirty-rate"),
    Column("window_s", "number", "calc-time"),
    Column("dirty_rate_mib_per_s", "whole", "dirty-rate: whole MiB/s, rounded down"),
    Column("vcpu_cpu_percent", "number", "CPU time of QEMU's vCPU threads, mean of the vCPUs"),
    Column("guest_cpu_percent", "number", "CPU time that is not idle in the guest's /proc/stat, mean of the vCPUs"),
    Column("operations_per_s", "number", "operations of the workload", unit="1/s"),
    Column("other_cpu_percent", "number", "CPU time of this machine apart from QEMU's and the lab's, of one CPU"),
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

    def ask(command: str, arguments: dict[str, Any]) -> Any:
        answer = machine.query(command, **arguments)
        if command != "query-dirty-rate" or answer["status"] == "measured":
            log.append({"execute": command, "arguments": arguments, "return": answer})
        return answer

    vcpus = ask("query-cpus-fast", {})
    base = ask("query-memory-size-summary", {})["base-memory"]
    threads, readings = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, window_s in enumerate(WINDOWS_S, 1):
        first, begun, before = head(), time.monotonic(), cpu_times(machine.pid, vcpus)
        others = OtherWork([machine.pid])
        start_dirty_rate(ask, window_s, base)
        time.sleep(window_s)
        last, ended, after = head(), time.monotonic(), cpu_times(machine.pid, vcpus)
        reply = wait_for_dirty_rate(ask, window_s, check)
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
            "operations_per_s": round(operations / span_s, 2), "other_cpu_percent": others.percent(),
            "resident_bytes": resident, "base_memory_bytes": base,
        })  # fmt: skip
    for query in QUERIES:
        ask(query, {})
    return {"readings": readings, "replies": log, "threads": threads, "resident_bytes": resident_bytes(machine.pid)}


class OtherWork:
    """CPU time of the whole machine since now, without that of some processes and of this one.

    - `pids`: process IDs of running processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (*pids, os.getpid())
        self._begun, self._before = time.monotonic(), self._spent()

    def percent(self) -> float:
        """CPU time of the other work, in percent of one CPU."""
        span_s = max(time.monotonic() - self._begun, 1e-3)
        return round(max(0.0, 100 * (self._spent() - self._before) / span_s), 1)

    def _spent(self) -> float:
        """CPU time of the other work since the machine started, s."""
        with open("/proc/stat") as file:
            busy = busy_time(file.readline())
        return busy - sum(cpu_time((Path("/proc") / str(pid) / "stat").read_text()) for pid in self._pids)


def busy_time(line: str) -> float:
    """CPU time of all CPUs that was not idle, s, including time that the hypervisor took (steal).

    - `line`: first line of /proc/stat (proc(5)).

    >>> busy_time("cpu 100 0 50 900 30 0 10 40 0 0") * os.sysconf("SC_CLK_TCK")
    200.0
    """
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
