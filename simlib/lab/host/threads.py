# SPDX-License-Identifier: BSD-3-Clause
"""QEMU's process: its QMP sockets, and the time for which its threads run on a CPU or wait for one.

``/proc/PID/task/TID/schedstat`` gives both times in nanoseconds, and how often the thread was scheduled
(Documentation/scheduler/sched-stats.rst); it exists with ``CONFIG_SCHED_INFO``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.measurements.importers.tables import Column, DescribedTable, TableRows

PROC = Path("/proc")
TIMES = (
    Column("sample", "whole", "number of the sample, from 1", unit="1"),
    Column("time_s", "number", "time of the sample, since the watch began"),
)
INTERVAL = (*TIMES, Column("interval_s", "number", "time since the previous sample, to which the differences apply"))
COLUMNS = (
    *INTERVAL,
    Column("tid", "whole", "ID of the thread", unit="1"),
    Column("name", "text", "name of the thread"),
    Column("vcpu", "text", "number of the vCPU that it runs; none: not a vCPU thread"),
    Column("cpu_ns", "whole", "time on a CPU, in the guest or not"),
    Column("delay_ns", "whole", "time for which it was runnable and waited for a CPU"),
    Column("turns", "whole", "number of times that it was scheduled on a CPU"),
)
_VCPU = re.compile(r"CPU (\d+)/")


class Threads:
    """Threads of one process, sampled repeatedly.

    `rows` has a row for each sample and each thread that ran or waited for a CPU. `vcpus` may be set to the vCPU number
    of each thread, as QEMU reports it; if not, the names of the threads give it. `cpu_ns` and `delay_ns` are sums
    by vCPU, with the sums of all other threads under ``"none"``, over `seconds`.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.rows, self.vcpus, self.seconds = pid, TableRows(COLUMNS, True), dict[int, str](), 0.0
        self.cpu_ns, self.delay_ns = Counter[str](), Counter[str]()
        self._previous: dict[int, tuple[int, int, int]] = {}
        self._previous_s: float | None = None

    @property
    def folder(self) -> Path:
        """Folder of the threads in ``/proc``."""
        return PROC / str(self.pid) / "task"

    def alive(self) -> bool:
        """True if the process exists."""
        return self.folder.is_dir()

    def tids(self) -> list[int]:
        """IDs of the threads; an empty list if the process is gone."""
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
        """Return the number of the vCPU that a thread runs; ``"none"`` for other threads.

        >>> Threads(1).vcpu_of(12, "CPU 3/KVM"), Threads(1).vcpu_of(13, "live_migration")
        ('3', 'none')
        """
        match = _VCPU.match(name)
        return self.vcpus.get(tid) or (match[1] if match and not self.vcpus else "none")

    def sample(self, number: int, time_s: float) -> None:
        """Read the times of all threads.

        Raises `OSError` if the kernel has no schedstat, or the user may not read it.
        """
        now = {tid: times for tid in self.tids() if (times := self._read(tid)) is not None}
        interval_s = 0.0 if self._previous_s is None else round(time_s - self._previous_s, 6)
        for tid, (name, numbers) in now.items():
            if self._previous_s is not None:
                before = self._previous.get(tid, (0, 0, 0))  # a thread that started in this interval began at 0
                cpu, delay, turns = (max(0, new - old) for new, old in zip(numbers, before, strict=True))
                if cpu or delay or turns:
                    vcpu = self.vcpu_of(tid, name)
                    self.rows.add(number, time_s, interval_s, tid, name, vcpu, cpu, delay, turns)
                    self.cpu_ns[vcpu] += cpu
                    self.delay_ns[vcpu] += delay
        self.seconds += interval_s
        self._previous, self._previous_s = {tid: numbers for tid, (_, numbers) in now.items()}, time_s

    def table(self) -> DescribedTable:
        """Table with a row for each sample and thread."""
        return self.rows.table("threads", "Threads of QEMU, by interval", ("sample", "tid"))

    def _read(self, tid: int) -> tuple[str, tuple[int, int, int]] | None:
        """Name of a thread, its ns on a CPU, ns waiting, and times scheduled; None if it has ended meanwhile."""
        try:
            cpu, delay, turns = (self.folder / str(tid) / "schedstat").read_text("ascii").split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            if (self.folder / str(tid)).is_dir():
                raise
            return None
        return self.name(tid), (int(cpu), int(delay), int(turns))


def command_of(pid: int) -> list[str]:
    """Return the arguments of a process's command line.

    Raises `InputError` if there is no such process, or its command line cannot be read.

    >>> command_of(2**30)
    Traceback (most recent call last):
    simlib.InputError: PID = 1073741824: is not a process; give the PID of QEMU: pgrep -a qemu
    """
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        raise InputError("PID", pid, "is not a process", "give the PID of QEMU: pgrep -a qemu") from None
    except OSError as error:
        raise InputError("PID", pid, f"cannot be read ({error.strerror})", "run as root, or as QEMU's user") from None
    return words[:-1]


def qmp_sockets(pid: int) -> list[str]:
    """Return the Unix domain sockets at which a QEMU process serves QMP, according to its command line.

    libvirt passes its monitor as a file descriptor, which has no path.
    """
    try:
        folder = os.readlink(PROC / str(pid) / "cwd")
    except OSError:
        folder = "/"
    return [str(Path(folder, path)) for path in sockets_in(command_of(pid))]


def sockets_in(command: Sequence[str]) -> list[str]:
    """Return the paths of the QMP sockets in a command line."""
    options = [(option.lstrip("-"), *_keys(value)) for option, value in pairwise(command)]
    devices = (keys for option, kind, keys in options if (option, kind) == ("chardev", "socket"))
    paths = {keys["id"]: keys["path"] for keys in devices if {"id", "path"} <= keys.keys()}
    sockets = []
    for option, first, keys in options:
        kind, _, place = first.partition(":")
        if option in ("qmp", "qmp-pretty"):
            sockets.append(place if kind == "unix" else paths.get(place, "") if kind == "chardev" else "")
        elif option == "mon" and keys.get("mode") == "control":
            sockets.append(paths.get(keys.get("chardev", first), ""))
    return [path for path in sockets if path]


def _keys(value: str) -> tuple[str, dict[str, str]]:
    """Split an option such as ``socket,id=m,path=/run/b`` into its first item and its keys."""
    parts = value.split(",")
    return parts[0], {key: text for key, equals, text in (part.partition("=") for part in parts) if equals}
