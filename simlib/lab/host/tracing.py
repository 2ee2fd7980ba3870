# SPDX-License-Identifier: BSD-3-Clause
"""Tracepoints of one process, read from a private instance of tracefs, so that other users' tracing is not affected.

An instance (Documentation/trace/ftrace.rst, "Instances") has its own event switches, filter and buffers; removing the
instance resets all of them. ``set_event_pid`` restricts events to the given threads, and ``event-fork`` adds the
threads that they start.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from simlib._lib.errors import InputError
from simlib._lib.signals import DeferSignals
from simlib.lab.native import TRACING
from simlib.measurements.importers.lines import Lines
from simlib.measurements.importers.tables import Contents, TableRows
from simlib.measurements.importers.trace import ACQUIRED, RELEASED, WAITS, Episodes, Trace

EVENTS = (
    "lock:contention_begin", "lock:contention_end", "kvm:kvm_mmu_lock_acquired", "kvm:kvm_mmu_lock_released",
    "kvm:kvm_page_fault", "kvmmmu:fast_page_fault", "kvm:kvm_guest_fault",
)  # fmt: skip
"""Events traced by default, where the kernel has them: waits for locks, holds of mmu_lock, faults of the guest."""

_NAME = "simlib-watch-"


class Tracing(contextlib.AbstractContextManager["Tracing"]):
    """An instance of tracefs for the duration of a watch.

    Raises `InputError` if there is no writable tracefs, or the kernel does not have any of the events.

    `events`: ``system:event``; ``*`` matches any name, as in a shell. `tids`: threads to trace. `root`: mount point of
    tracefs.

    `enabled` holds the events that are traced, `unreadable` counts lines that could not be parsed, and `unread` is true
    if events were left in the buffer at the end.

    >>> Tracing(EVENTS, [1], Path("/no/such/folder"))
    Traceback (most recent call last):
    simlib.InputError: tracepoints = /no/such/folder: must be a writable tracefs; run as root, or mount it:
    mount -t tracefs nodev /sys/kernel/tracing
    """

    def __init__(self, events: Iterable[str], tids: Iterable[int], root: Path = TRACING) -> None:
        self.trace = Trace(Episodes(TableRows(WAITS, True)), TableRows(ACQUIRED, True), TableRows(RELEASED, True))
        self.lines, self.unreadable, self.unread = Lines.of("", "trace_pipe"), 0, False
        self.folder, self._tail, self._pipe = root / "instances" / f"{_NAME}{os.getpid()}", "", -1
        if not os.access(root / "instances", os.W_OK):
            hint = f"run as root, or mount it: mount -t tracefs nodev {TRACING}"
            raise InputError("tracepoints", str(root), "must be a writable tracefs", hint)
        _remove_stale(root / "instances")
        try:
            with DeferSignals():
                _make(self.folder)
            self.enabled = self._start(list(events), list(tids))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                hint = "run as root, or disable tracepoints with --events ''"
                raise InputError("tracepoints", error.strerror or str(error), "cannot be enabled", hint) from None
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, events: list[str], tids: list[int]) -> tuple[str, ...]:
        """Set clock, buffer and filter, then enable the events; return their names."""
        patterns = [f"events/{event.replace(':', '/', 1)}/enable" for event in events]
        switches = [switch for pattern in patterns for switch in sorted(self.folder.glob(pattern))]
        if not switches:
            raise InputError("tracepoints", ", ".join(events), "this kernel has no such event", "give others: --events")
        self._write("trace_clock", "mono")  # the clock of time.monotonic
        self._write("buffer_size_kb", "4096")  # of each CPU
        self._write("options/event-fork", "1")
        self._write("set_event_pid", " ".join(map(str, tids)))
        self._pipe = os.open(self.folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        for switch in switches:
            switch.write_text("1", "ascii")
        return tuple(f"{switch.parents[1].name}:{switch.parent.name}" for switch in switches)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "ascii")

    def read(self, limit_s: float = float("inf")) -> None:
        """Read the events traced since the last call, for at most `limit_s` seconds."""
        deadline, size = time.monotonic() + limit_s, 0
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            with DeferSignals():
                self._parse(data.decode("utf-8", "backslashreplace"))
            size += len(data)
            if size > 2**24 or time.monotonic() > deadline:
                self.unread = True  # the rest stays in the buffer, or is overwritten, which the kernel counts
                return

    def _parse(self, text: str) -> None:
        """Parse a piece of the trace, which may end within a line."""
        *complete, self._tail = (self._tail + text).split("\n")
        for line in complete:
            self.lines.number += 1
            try:
                self.trace.take(self.lines, line)
            except InputError:
                self.unreadable += 1

    def close(self) -> None:
        """Disable all events, read the rest of the buffer, and remove the instance."""
        if self.folder.is_dir():
            with contextlib.suppress(OSError):
                (self.folder / "events" / "enable").write_text("0", "ascii")
        if self._pipe >= 0:
            self.unread = False
            self.read(0.2)  # a signal leaves 0.8 s for all cleanup
            os.close(self._pipe)
            self._pipe = -1
        _remove(self.folder)

    def contents(self) -> Contents:
        """Tables ``waits``, ``acquired``, ``released`` and ``events``, with warnings about lost events."""
        contents = self.trace.contents()
        warnings = list(contents.warnings)
        if self.unreadable:
            warnings.append(f"trace lines that could not be parsed: {self.unreadable}")
        if self.unread:
            warnings.append("the trace was not read to its end: its last events are missing")
        return Contents(contents.tables, tuple(warnings))


def _make(folder: Path) -> None:
    """Create an instance; the kernel creates its files."""
    folder.mkdir()


def _remove_stale(instances: Path) -> None:
    """Remove the instances of killed watches: nothing else removes them, and their events would stay enabled."""
    for folder in instances.glob(f"{_NAME}*"):
        pid = folder.name.removeprefix(_NAME)
        if pid.isdecimal() and not Path("/proc", pid).exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove an instance with its files; retry, as the kernel answers EBUSY while a reader has it open."""
    for _ in range(10):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
