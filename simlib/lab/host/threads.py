# SPDX-License-Identifier: BSD-3-Clause
"""The threads of a process over time: on a CPU, and ready but waiting for one.

``/proc/PID/task/TID/schedstat`` has both in nanoseconds, and how often the thread was run
(Documentation/scheduler/sched-stats.rst); it exists with ``CONFIG_SCHED_INFO``.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from simlib.measurements.importers.tables import Column, ImportedTable, TableRows

PROC = Path("/proc")
TIMES = (
    Column("sample", "whole", "number of the sample, from 1", unit="1"),
    Column("time_s", "number", "when, since the watch began"),
)
INTERVAL = (*TIMES, Column("interval_s", "number", "time since the sample before, of which the differences are"))
COLUMNS = (
    *INTERVAL,
    Column("tid", "whole", "number of the thread", unit="1"),
    Column("name", "text", "its name"),
    Column("vcpu", "text", "number of the vCPU that it runs; none"),
    Column("cpu_ns", "whole", "time on a CPU, in the guest or not"),
    Column("delay_ns", "whole", "time for which it was ready and waited for a CPU"),
    Column("turns", "whole", "how often it was put on a CPU"),
)
_VCPU = re.compile(r"CPU (\d+)/")


class Threads:
    """Threads of one process, from sample to sample.

    `rows` has a row for each sample and thread that ran, or waited for a CPU. `vcpus` may be set to the number of the
    vCPU of each thread that runs one, as QEMU says; else names of threads tell. `cpu_ns` and `delay_ns` are sums by
    vCPU (of all other threads by ``"none"``), over the time `seconds`.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.rows, self.vcpus, self.seconds = pid, TableRows(COLUMNS, True), dict[int, str](), 0.0
        self.cpu_ns, self.delay_ns = Counter[str](), Counter[str]()
        self._before: dict[int, tuple[int, int, int]] = {}
        self._before_s: float | None = None

    @property
    def folder(self) -> Path:
        """Where the system tells of them."""
        return PROC / str(self.pid) / "task"

    def alive(self) -> bool:
        """Whether the process is there."""
        return self.folder.is_dir()

    def tids(self) -> list[int]:
        """Numbers of the threads; none if the process is gone."""
        try:
            return sorted(int(path.name) for path in self.folder.iterdir())
        except OSError:
            return []

    def name(self, tid: int) -> str:
        """Name of a thread; empty if it has ended."""
        try:
            return (self.folder / str(tid) / "comm").read_text("utf-8", "replace").strip()
        except OSError:
            return ""

    def vcpu_of(self, tid: int, name: str) -> str:
        """Number of the vCPU that a thread runs; ``"none"`` if it runs none.

        >>> Threads(1).vcpu_of(12, "CPU 3/KVM"), Threads(1).vcpu_of(13, "live_migration")
        ('3', 'none')
        """
        found = _VCPU.match(name)
        return self.vcpus.get(tid) or (found[1] if found and not self.vcpus else "none")

    def take(self, sample: int, time_s: float) -> None:
        """Read all threads.

        Raises `OSError` if the kernel does not tell, or one may not look.
        """
        now = {tid: found for tid in self.tids() if (found := self._read(tid)) is not None}
        interval_s = 0.0 if self._before_s is None else round(time_s - self._before_s, 6)
        for tid, (name, numbers) in now.items():
            if self._before_s is not None:
                before = self._before.get(tid, (0, 0, 0))  # a thread of this interval began with nothing
                cpu, delay, turns = (max(0, new - old) for new, old in zip(numbers, before, strict=True))
                if cpu or delay or turns:
                    vcpu = self.vcpu_of(tid, name)
                    self.rows.add(sample, time_s, interval_s, tid, name, vcpu, cpu, delay, turns)
                    self.cpu_ns[vcpu] += cpu
                    self.delay_ns[vcpu] += delay
        self.seconds += interval_s
        self._before, self._before_s = {tid: numbers for tid, (_, numbers) in now.items()}, time_s

    def table(self) -> ImportedTable:
        """A row for each sample and thread."""
        return self.rows.table("threads", "Threads of QEMU, by interval", ("sample", "tid"))

    def _read(self, tid: int) -> tuple[str, tuple[int, int, int]] | None:
        """Name and numbers of a thread; None if it has ended meanwhile."""
        try:
            cpu, delay, turns = (self.folder / str(tid) / "schedstat").read_text("ascii").split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            if (self.folder / str(tid)).is_dir():
                raise
            return None
        return self.name(tid), (int(cpu), int(delay), int(turns))
