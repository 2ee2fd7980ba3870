# SPDX-License-Identifier: BSD-3-Clause
"""Traces of locks as text: ``trace-cmd report`` and ``/sys/kernel/tracing/trace``.

The formats are those of:

- a line: ``trace_print_context()`` in ``kernel/trace/trace_output.c``, or ``trace_show_data()`` in trace-cmd's
  ``tracecmd/trace-read.c``;
- an event: its ``TP_printk`` in ``include/trace/events/lock.h`` and, with simlib's kernel patches,
  ``include/trace/events/kvm.h``;
- an exit reason (``kvm_exit``): ``arch/x86/kvm/trace.h`` and ``arch/arm64/kvm/trace_arm.h``;
- lost events: ``print_trace_line()`` in ``kernel/trace/trace.c`` (``CPU:3 [LOST 12 EVENTS]``), or
  ``trace_show_data()`` (``CPU:3 [12 EVENTS DROPPED]``).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from simlib._lib.errors import InputError
from simlib.measurements.importers.lines import ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

_THREAD = (
    Column("task", "text", "name of the task"),
    Column("pid", "whole", "thread number", unit="1"),
    Column("cpu", "whole", "CPU on which the event was recorded", unit="1"),
)
WAITS = (
    Column("episode", "whole", "number of the wait, from 1, in the order in which waits end"),
    *_THREAD,
    Column("start_s", "number", "beginning of the wait, on the trace's clock"),
    Column("wait_ns", "whole", "duration of the wait, at the resolution of the trace's clock"),
    Column("lock", "text", "address of the lock as printed, possibly hashed"),
    Column("flags", "text", "type of lock, and mode (SPIN|WRITE is a writer of an rwlock)", optional=True),
    Column("ret", "whole", "0, or the error code of an aborted wait", unit="1"),
)
_AT_LOCK = (
    Column("event", "whole", "number of the event, from 1"),
    *_THREAD,
    Column("time_s", "number", "time on the trace's clock"),
    Column("site", "text", "class of the call site (clear, fault_slow …)"),
    Column("mode", "text", "write or read"),
)
_OF_VM = Column("vm", "text", "virtual machine, if the event states it", optional=True)
ACQUIRED = (
    *_AT_LOCK,
    Column("contended", "whole", "1 if the lock was not free, otherwise 0"),
    Column("wait_ns", "whole", "wait time"),
    _OF_VM,
)
RELEASED = (*_AT_LOCK, Column("hold_ns", "whole", "hold time"), _OF_VM)
EVENTS = (
    Column("event", "text", "name of the KVM event; the events of mmu_lock are in other tables"),
    Column("reason", "text", "exit reason of kvm_exit; none for other events"),
    *_THREAD[:2],
    Column("events", "whole", "number of events"),
    Column("first_s", "number", "time of the first event, on the trace's clock"),
    Column("last_s", "number", "time of the last event"),
)

_EVENT = re.compile(
    r"(?P<thread>.*?\S)-(?P<pid>\d+)\s+(?:\(\s*(?:-+|\d+)\)\s+)?\[(?P<cpu>\d+)\]\s+(?:[^\s:]{2,9}\s+)?"
    r"(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,9}))?:\s+(?:\(\+\d+\)\s+)?(?P<event>[\w:]+):\s*(?P<text>.*)",
    re.ASCII,
)
looks_like = any_line(re.compile(r"# tracer:.*|cpus=\d+"), _EVENT)
_BEGIN = re.compile(r"(?P<lock>[0-9a-fA-FxX]+|\(\w+\))\s+\(flags=(?P<flags>[\w|]*)\)\s*", re.ASCII)
_END = re.compile(r"(?P<lock>[0-9a-fA-FxX]+|\(\w+\))\s+\(ret=(?P<ret>-?\d{1,9})\)\s*", re.ASCII)
_LOST = re.compile(r".*?(?:CPU:(?P<cpu>\d+) )?\[(?:LOST (?P<lost>\d+ )?EVENTS|(?P<dropped>\d+ )?EVENTS DROPPED)\]\s*")
_WRITTEN = re.compile(r"# entries-in-buffer/entries-written: (\d+)/(\d+)\b.*")
_PATTERNS = {"site": r"(\w+)(?=\s)", "mode": r"(read|write)(?=\s)", "contended": r"([01])(?=\s)"}
_PATTERNS |= dict.fromkeys(("wait", "hold"), r"(\d+) ns(?!\S)")
_FIELDS = {name: re.compile(rf"\b{name} {pattern}", re.ASCII) for name, pattern in _PATTERNS.items()}
_VM = re.compile(r"\bvm\w*[ =:]\s*(\S+)", re.ASCII)
_KVM = re.compile(
    r"kvm_\w+|fast_page_fault|(?:handle_mmio_page_fault|vcpu_match_mmio|mark_mmio_spte|check_mmio_spte)|vgic_\w+",
    re.ASCII,
)
"""Events of the subsystems ``kvm`` and ``kvmmmu``, whose names neither tracefs nor trace-cmd prints."""
_REASON = re.compile(r"\breason ([\w-]+)|HSR_EC: 0x[0-9a-fA-F]+ \((\w+)\)", re.ASCII)
_MARKS = ("contention_begin:", "contention_end:", "kvm_mmu_lock_acquired:", "kvm_mmu_lock_released:")
_TRACE = "a trace as `trace-cmd report` or /sys/kernel/tracing/trace prints it"


class Waiting(NamedTuple):
    """A wait that has begun."""

    begin_ns: int
    flags: str
    cpu: int


@dataclass
class Episodes:
    """Waits, paired from their begin and end events.

    A thread waits for one lock at a time, but an interrupt on its CPU may wait for another lock meanwhile; therefore
    thread and lock identify a wait. The idle threads of all CPUs share pid 0; their CPU distinguishes them.
    """

    rows: TableRows = field(default_factory=lambda: TableRows(WAITS))  # complete waits
    open: dict[tuple[int, str], Waiting] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)  # unused events, by reason

    def begin(self, pid: int, cpu: int, time_ns: int, lock: str, flags: str) -> None:
        """Record the beginning of a wait.

        A mutex reports it again when the thread changes between spinning and sleeping (``__mutex_lock_common()``): the
        first report counts, as in ``perf lock contention``.
        """
        key = (pid or -1 - cpu, lock)
        before = self.open.get(key)
        if before is not None and "MUTEX" in before.flags and "MUTEX" in flags:
            return
        if before is not None:
            self.left_out["beginnings without an end"] += 1
        self.open[key] = Waiting(time_ns, sys.intern(flags), cpu)

    def end(self, task: str, pid: int, cpu: int, time_ns: int, lock: str, ret: int) -> None:
        """Record the end of a wait."""
        begun = self.open.pop((pid or -1 - cpu, lock), None)
        if begun is None:
            self.left_out["ends without a beginning"] += 1
        elif time_ns < begun.begin_ns:
            self.left_out["waits that end before they begin (the clocks of the CPUs differ)"] += 1
        else:
            self.rows.add(
                len(self.rows) + 1, sys.intern(task), pid, cpu, begun.begin_ns / 1e9, time_ns - begun.begin_ns,
                sys.intern(lock), begun.flags, ret,
            )  # fmt: skip

    def lose(self, cpu: int | None) -> None:
        """Drop the open waits whose end may be among the lost events of a CPU (None: of an unknown CPU).

        A thread that spins stays on its CPU; one that sleeps may have been woken on any CPU.
        """
        doubtful = [k for k, w in self.open.items() if cpu is None or w.cpu == cpu or "SPIN" not in w.flags]
        for key in doubtful:
            del self.open[key]
        self.left_out["beginnings before lost events"] += len(doubtful)

    def close(self) -> None:
        """Count the waits that are open at the end of the trace."""
        self.left_out["beginnings without an end"] += len(self.open)
        self.open.clear()


@dataclass
class Trace:
    """Content of a trace, filled line by line."""

    episodes: Episodes = field(default_factory=Episodes)
    acquired: TableRows = field(default_factory=lambda: TableRows(ACQUIRED))
    released: TableRows = field(default_factory=lambda: TableRows(RELEASED))
    counts: dict[tuple[str, str, str, int], list[int]] = field(default_factory=dict)
    """KVM's other events by event, reason, task and thread: count, and times of the first and last event in ns."""
    lost: Counter[str] = field(default_factory=Counter)  # events, by CPU
    unknown: int = 0  # reports of lost events without a number
    overwritten: int = 0  # events that were overwritten in the buffer

    @property
    def used(self) -> bool:
        """True if any event was used, even as only one end of a wait."""
        waits = self.episodes
        return bool(waits.rows or waits.open or waits.left_out or self.acquired or self.released or self.counts)

    def take(self, lines: Lines, line: str) -> None:
        """Add the next line; `lines` gives its number for error messages."""
        if "EVENTS" in line and (match := _LOST.fullmatch(line)):
            count = match["lost"] or match["dropped"]
            self.unknown += count is None
            if count is not None:
                self.lost[match["cpu"] or "?"] += lines.whole(count.strip(), "lost events")
            self.episodes.lose(None if match["cpu"] is None else int(match["cpu"]))
        elif any(mark in line for mark in _MARKS):
            _event(lines, line, self)
        elif match := _EVENT.fullmatch(line):
            self._count(lines, match)
        elif match := _WRITTEN.fullmatch(line):
            written, present = lines.whole(match[2], "entries written"), lines.whole(match[1], "entries")
            self.overwritten += max(0, written - present)

    def contents(self) -> Contents:
        """Return the tables after the last line."""
        self.episodes.close()
        events = TableRows(EVENTS)
        for (event, reason, task, pid), (count, first, last) in sorted(self.counts.items()):
            events.add(event, reason, task, pid, count, first / 1e9, last / 1e9)
        tables = (
            self.episodes.rows.table("waits", "Trace: waits", ("episode",)),
            self.acquired.table("acquired", "Trace: acquisitions of mmu_lock", ("event",)),
            self.released.table("released", "Trace: releases of mmu_lock", ("event",)),
            events.table("events", "Trace: counts of KVM's other events", ("event", "reason", "task", "pid")),
        )
        return Contents(tables, tuple(self._warnings()))

    def _warnings(self) -> list[str]:
        warnings = [f"events overwritten in the buffer: {self.overwritten}"] if self.overwritten else []
        if self.lost:
            cpus = ", ".join(f"CPU {cpu}: {count}" for cpu, count in sorted(self.lost.items()))
            warnings.append(f"events lost while recording: {self.lost.total()} ({cpus}); waits are missing")
        if times := self.unknown:
            warnings.append(f"reports of lost events without a number: {times}; waits may be missing")
        return warnings + [f"{reason}, left out: {count}" for reason, count in self.episodes.left_out.items() if count]

    def _count(self, lines: Lines, match: re.Match[str]) -> None:
        """Count an event of KVM that does not concern the lock."""
        name = _name(match)
        if not _KVM.fullmatch(name) or match["fraction"] is None:
            return
        reason = _REASON.search(match["text"]) if name == "kvm_exit" else None
        task, pid, _ = _thread_of(lines, match)
        key = (sys.intern(name), "none" if reason is None else sys.intern(reason[1] or reason[2]), task, pid)
        now = _time_ns(lines, match)
        count = self.counts.setdefault(key, [0, now, now])
        count[0], count[1], count[2] = count[0] + 1, min(count[1], now), max(count[2], now)


def read_log(lines: Lines) -> Contents:
    """Read a trace: each ``contention_begin`` with its ``contention_end``, simlib's two events, and KVM's other events.

    simlib's events, ``kvm_mmu_lock_acquired`` and ``kvm_mmu_lock_released``, may have more fields than are read here.
    KVM's other events are counted; all remaining events are skipped. An end without a beginning, a beginning without an
    end, and a beginning whose end may be among lost events are counted and reported, never completed by a guess.
    """
    trace = Trace()
    for line in lines:
        trace.take(lines, line)
    if not trace.used:
        if looks_like(lines.head):
            hint = "record them: trace-cmd record -e lock:contention_begin -e lock:contention_end COMMAND"
            rule = f"must contain {', '.join(_MARKS[:2])} … or events of KVM"
            raise InputError(lines.where, "a trace without lock events", rule, hint)
        raise ForeignText(_TRACE)
    contents = trace.contents()
    if not any(map(len, contents.tables)):
        counts = ", ".join(f"{reason}: {count}" for reason, count in trace.episodes.left_out.items() if count)
        hint = "record both events, with larger buffers: trace-cmd record -b 20000"
        raise InputError(lines.where, counts, "at least one wait must be complete", hint)
    return contents


def _event(lines: Lines, line: str, trace: Trace) -> None:
    match = _EVENT.fullmatch(line)
    if match is None:
        hint = "is the line complete? print it without the option latency-format (trace-cmd: without -l)"
        raise lines.fault(line, "must be TASK-PID [CPU] SECONDS: EVENT: …", hint)
    if f"{_name(match)}:" not in _MARKS:
        return  # the name occurs in the text of another event
    if match["fraction"] is None:
        hint = "record with a clock in seconds: echo mono > /sys/kernel/tracing/trace_clock"
        raise lines.fault(line, "the time must be in seconds, with decimals", hint)
    take = _wait if _name(match).startswith("contention") else _at_lock
    take(lines, match, _time_ns(lines, match), trace)


def _name(match: re.Match[str]) -> str:
    return match["event"].rpartition(":")[2]


def _time_ns(lines: Lines, match: re.Match[str]) -> int:
    seconds = lines.whole(match["seconds"], "seconds")
    return lines.whole(f"{seconds}{match['fraction']:0<9}", "the time in ns")


def _thread_of(lines: Lines, match: re.Match[str]) -> tuple[str, int, int]:
    """Task, thread and CPU of an event. The task name occupies the 16 characters before the thread number."""
    task = sys.intern(match["thread"][-16:].strip())
    return task, lines.whole(match["pid"], "pid"), lines.whole(match["cpu"], "CPU")


def _wait(lines: Lines, match: re.Match[str], time_ns: int, trace: Trace) -> None:
    begins = _name(match) == "contention_begin"
    fields = (_BEGIN if begins else _END).fullmatch(match["text"])
    if fields is None:
        rule = f"{_name(match)} must have LOCK ({'flags' if begins else 'ret'}=…)"
        raise lines.fault(match["text"], rule, "is the line complete?")
    task, pid, cpu = _thread_of(lines, match)
    if begins:
        trace.episodes.begin(pid, cpu, time_ns, fields["lock"], fields["flags"])
    else:
        trace.episodes.end(task, pid, cpu, time_ns, fields["lock"], int(fields["ret"]))


def _at_lock(lines: Lines, match: re.Match[str], time_ns: int, trace: Trace) -> None:
    acquired = _name(match) == "kvm_mmu_lock_acquired"
    rows, numbers = (trace.acquired, ("contended", "wait")) if acquired else (trace.released, ("hold",))
    fields = [_FIELDS[name].search(match["text"]) for name in ("site", "mode", *numbers)]
    if not all(fields):
        rule = f"{_name(match)} must have site … mode … {' … '.join(numbers)} … ns"
        raise lines.fault(match["text"], rule, "is the line complete?")
    site, mode, *values = (sys.intern(item[1]) for item in fields if item)
    vm = _VM.search(match["text"])
    rows.add(
        len(rows) + 1, *_thread_of(lines, match), time_ns / 1e9, site, mode,
        *(lines.whole(value, name) for name, value in zip(numbers, values, strict=True)),
        sys.intern(vm[1]) if vm else "",
    )  # fmt: skip
