# SPDX-License-Identifier: BSD-3-Clause
"""Tracepoints of one process, from an instance of tracefs of our own: nobody else's tracing is touched.

An instance (Documentation/trace/ftrace.rst, "Instances") has switches, filter and buffers of its own, and removing it
sets all of them back. ``set_event_pid`` keeps events to the given threads, ``event-fork`` adds what they start.
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
"""What is traced by default, where the kernel has it: waits, holds of mmu_lock, faults of the guest."""

BUFFER_KIB = 4096
"""Buffer of each CPU."""

MOST_BYTES = 2**24
"""What is read in one sample at most; more stays in the buffer, or is lost and counted there."""

DRAIN_S = 0.2
"""How long what is left is read when the watch ends, s: a signal leaves 0.8 s for all."""

_NAME = "simlib-watch-"


class Tracing(contextlib.AbstractContextManager["Tracing"]):
    """An instance of tracefs while a watch runs.

    Raises `InputError` if there is no tracefs that can be written, or none of the events.

    `events`: ``system:event``; ``*`` stands for any name, as in a shell. `tids`: threads to be traced. `root`: where
    tracefs is.

    `enabled` holds the events that are traced, `unreadable` counts lines that could not be read, and `left` tells
    whether something was left in the buffer at the end.

    >>> Tracing(EVENTS, [1], Path("/no/such/folder"))
    Traceback (most recent call last):
    simlib.InputError: tracepoints = /no/such/folder: must be a tracefs that may be written; run as root, or
    mount it: mount -t tracefs nodev /sys/kernel/tracing
    """

    def __init__(self, events: Iterable[str], tids: Iterable[int], root: Path = TRACING) -> None:
        self.trace = Trace(Episodes(TableRows(WAITS, True)), TableRows(ACQUIRED, True), TableRows(RELEASED, True))
        self.lines, self.unreadable, self.left = Lines.of("", "trace_pipe"), 0, False
        self.folder, self._tail, self._pipe = root / "instances" / f"{_NAME}{os.getpid()}", "", -1
        if not os.access(root / "instances", os.W_OK):
            cure = f"run as root, or mount it: mount -t tracefs nodev {TRACING}"
            raise InputError("tracepoints", str(root), "must be a tracefs that may be written", cure)
        _remove_stale(root / "instances")
        try:
            with DeferSignals():
                _make(self.folder)
            self.enabled = self._start(list(events), list(tids))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                cure = "run as root; --events '' leaves tracepoints out"
                raise InputError("tracepoints", error.strerror or str(error), "must be allowed", cure) from None
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, events: list[str], tids: list[int]) -> tuple[str, ...]:
        """Set clock, buffer and filter, then turn the events on."""
        places = [f"events/{event.replace(':', '/', 1)}/enable" for event in events]
        found = [switch for place in places for switch in sorted(self.folder.glob(place))]
        if not found:
            raise InputError("tracepoints", ", ".join(events), "this kernel has none of them", "name others: --events")
        self._write("trace_clock", "mono")  # that of time.monotonic
        self._write("buffer_size_kb", str(BUFFER_KIB))
        self._write("options/event-fork", "1")
        self._write("set_event_pid", " ".join(map(str, tids)))
        self._pipe = os.open(self.folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        for switch in found:
            switch.write_text("1", "ascii")
        return tuple(f"{switch.parents[1].name}:{switch.parent.name}" for switch in found)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "ascii")

    def take(self, most_s: float = float("inf")) -> None:
        """Read what was traced since the last time, for so long at most."""
        deadline, done = time.monotonic() + most_s, 0
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            with DeferSignals():
                self._take(data.decode("utf-8", "backslashreplace"))
            done += len(data)
            if done > MOST_BYTES or time.monotonic() > deadline:
                self.left = True
                return

    def _take(self, text: str) -> None:
        """Take a piece of the trace, which may end within a line."""
        *whole, self._tail = (self._tail + text).split("\n")
        for line in whole:
            self.lines.number += 1
            try:
                self.trace.take(self.lines, line)
            except InputError:
                self.unreadable += 1

    def close(self) -> None:
        """Turn everything off, read what is left, and remove the instance."""
        if self.folder.is_dir():
            with contextlib.suppress(OSError):
                (self.folder / "events" / "enable").write_text("0", "ascii")
        if self._pipe >= 0:
            self.left = False
            self.take(DRAIN_S)
            os.close(self._pipe)
            self._pipe = -1
        _remove(self.folder)

    def contents(self) -> Contents:
        """Tables ``waits``, ``acquired``, ``released`` and ``events``, and what was lost."""
        found = self.trace.contents()
        warnings = list(found.warnings)
        if self.unreadable:
            warnings.append(f"{self.unreadable} lines of the trace could not be read")
        if self.left:
            warnings.append("the trace was not read to its end: its last events are missing")
        return Contents(found.tables, tuple(warnings))


def _make(folder: Path) -> None:
    """Make an instance; the kernel fills it."""
    folder.mkdir()


def _remove_stale(instances: Path) -> None:
    """Remove instances of watches that were killed: nobody else does, and their events stay on."""
    for folder in instances.glob(f"{_NAME}*"):
        pid = folder.name.removeprefix(_NAME)
        if pid.isdecimal() and not Path("/proc", pid).exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove an instance; the kernel removes what is in it, and is busy while somebody reads it."""
    for _ in range(10):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
