# SPDX-License-Identifier: BSD-3-Clause
"""Traces of locks as text: ``trace-cmd report`` and ``/sys/kernel/tracing/trace``.

The line is printed by ``trace_print_context()`` in ``kernel/trace/trace_output.c``, respectively by
``trace_show_data()`` in trace-cmd's ``tracecmd/trace-read.c``; what an event says by its ``TP_printk`` in
``include/trace/events/lock.h`` and, with simlib's kernel patches, ``include/trace/events/kvm.h``; why a guest was left
(``kvm_exit``) by ``arch/x86/kvm/trace.h`` and ``arch/arm64/kvm/trace_arm.h``; lost events by
``print_trace_line()`` in ``kernel/trace/trace.c`` (``CPU:3 [LOST 12 EVENTS]``), respectively ``trace_show_data()``
(``CPU:3 [12 EVENTS DROPPED]``).
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

_WHO = (
    Column("task", "text", "name of the task"),
    Column("pid", "whole", "its thread's number", unit="1"),
    Column("cpu", "whole", "CPU on which the event was written", unit="1"),
)
WAITS = (
    Column("episode", "whole", "number of the waiting episode, in the order in which they ended, from 1"),
    *_WHO,
    Column("start_s", "number", "when waiting began, on the trace's clock"),
    Column("wait_ns", "whole", "how long it took; as fine as the trace's clock"),
    Column("lock", "text", "address of the lock, hashed or not, as printed"),
    Column("flags", "text", "kind of lock and mode (SPIN|WRITE is a writer of an rwlock)", optional=True),
    Column("ret", "whole", "0, or the error with which waiting was given up", unit="1"),
)
_AT_LOCK = (
    Column("event", "whole", "number of the event, from 1"),
    *_WHO,
    Column("time_s", "number", "when, on the trace's clock"),
    Column("site", "text", "call site's class (clear, fault_slow …)"),
    Column("mode", "text", "write or read"),
)
_OF_VM = Column("vm", "text", "which virtual machine, where the event says", optional=True)
ACQUIRED = (
    *_AT_LOCK,
    Column("contended", "whole", "1 if the lock was not free, else 0"),
    Column("wait_ns", "whole", "time waited"),
    _OF_VM,
)
RELEASED = (*_AT_LOCK, Column("hold_ns", "whole", "time held"), _OF_VM)
EVENTS = (
    Column("event", "text", "name of the event, one of KVM's other than those of mmu_lock"),
    Column("reason", "text", "why the guest was left, of kvm_exit; none for other events"),
    *_WHO[:2],
    Column("events", "whole", "how many"),
    Column("first_s", "number", "when the first one was, on the trace's clock"),
    Column("last_s", "number", "when the last one was"),
)

_EVENT = re.compile(
    r"(?P<before>.*?\S)-(?P<pid>\d+)\s+(?:\(\s*(?:-+|\d+)\)\s+)?\[(?P<cpu>\d+)\]\s+(?:[^\s:]{2,9}\s+)?"
    r"(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,9}))?:\s+(?:\(\+\d+\)\s+)?(?P<event>[\w:]+):\s*(?P<rest>.*)",
    re.ASCII,
)
looks_like = any_line(re.compile(r"# tracer:.*|cpus=\d+"), _EVENT)
_BEGIN = re.compile(r"(?P<lock>[0-9a-fA-FxX]+|\(\w+\))\s+\(flags=(?P<flags>[\w|]*)\)\s*", re.ASCII)
_END = re.compile(r"(?P<lock>[0-9a-fA-FxX]+|\(\w+\))\s+\(ret=(?P<ret>-?\d{1,9})\)\s*", re.ASCII)
_LOST = re.compile(r".*?(?:CPU:(?P<cpu>\d+) )?\[(?:LOST (?P<lost>\d+ )?EVENTS|(?P<dropped>\d+ )?EVENTS DROPPED)\]\s*")
_WRITTEN = re.compile(r"# entries-in-buffer/entries-written: (\d+)/(\d+)\b.*")
_FIELDS = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in {
        "site": r"\bsite (\w+)(?=\s)",
        "mode": r"\bmode (read|write)(?=\s)",
        "contended": r"\bcontended ([01])(?=\s)",
        "wait": r"\bwait (\d+) ns(?!\S)",
        "hold": r"\bhold (\d+) ns(?!\S)",
        "vm": r"\bvm\w*[ =:]\s*(\S+)",
    }.items()
}
_KVM = re.compile(
    r"kvm_\w+|fast_page_fault|(?:handle_mmio_page_fault|vcpu_match_mmio|mark_mmio_spte|check_mmio_spte)|vgic_\w+",
    re.ASCII,
)
"""Events of the systems ``kvm`` and ``kvmmmu``: neither tracefs nor trace-cmd prints the system."""
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
    """Waiting episodes: beginnings until their ends come.

    A thread waits for one lock at a time, but an interrupt may wait for another one meanwhile; so a beginning is
    known by thread and lock. The idle threads of all CPUs share pid 0: they are told apart by their CPU.
    """

    rows: TableRows = field(default_factory=lambda: TableRows(WAITS))  # episodes that are complete
    open: dict[tuple[int, str], Waiting] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)  # what was not used, by reason

    def begin(self, pid: int, cpu: int, time_ns: int, lock: str, flags: str) -> None:
        """A task begins to wait.

        A mutex says so again when it changes between spinning and sleeping (``__mutex_lock_common()``): the first
        one counts, as in ``perf lock contention``.
        """
        key = (pid or -1 - cpu, lock)
        before = self.open.get(key)
        if before is not None and "MUTEX" in before.flags and "MUTEX" in flags:
            return
        if before is not None:
            self.left_out["beginnings without an end"] += 1
        self.open[key] = Waiting(time_ns, sys.intern(flags), cpu)

    def end(self, task: str, pid: int, cpu: int, time_ns: int, lock: str, ret: int) -> None:
        """It has waited."""
        begun = self.open.pop((pid or -1 - cpu, lock), None)
        if begun is None:
            self.left_out["ends without a beginning"] += 1
        elif time_ns < begun.begin_ns:
            self.left_out["episodes that end before they begin (the CPUs' clocks differ)"] += 1
        else:
            self.rows.add(
                len(self.rows) + 1, sys.intern(task), pid, cpu, begun.begin_ns / 1e9, time_ns - begun.begin_ns,
                sys.intern(lock), begun.flags, ret,
            )  # fmt: skip

    def lose(self, cpu: int | None) -> None:
        """Events of a CPU are lost, perhaps the ends of open episodes, and new beginnings: forget those.

        Who spins stays on its CPU; who sleeps may have been woken on any.
        """
        doubtful = [k for k, w in self.open.items() if cpu is None or w.cpu == cpu or "SPIN" not in w.flags]
        for key in doubtful:
            del self.open[key]
        self.left_out["beginnings before lost events"] += len(doubtful)

    def close(self) -> None:
        """The trace ends."""
        self.left_out["beginnings without an end"] += len(self.open)
        self.open.clear()


@dataclass
class Trace:
    """A trace while it is read, line by line."""

    episodes: Episodes = field(default_factory=Episodes)
    acquired: TableRows = field(default_factory=lambda: TableRows(ACQUIRED))
    released: TableRows = field(default_factory=lambda: TableRows(RELEASED))
    counts: dict[tuple[str, str, str, int], list[int]] = field(default_factory=dict)
    """By event, reason, task and thread: how many of KVM's other events, when the first and last one was, ns."""
    lost: Counter[str] = field(default_factory=Counter)  # events, by CPU
    unknown: int = 0  # how often events were lost without their number being said
    overwritten: int = 0  # events that were no longer in the buffer

    @property
    def used(self) -> bool:
        """Whether any event was of use so far, if only as one end of a wait."""
        waits = self.episodes
        return bool(waits.rows or waits.open or waits.left_out or self.acquired or self.released or self.counts)

    def take(self, lines: Lines, line: str) -> None:
        """Take the next line; `lines` says where it stands if it has a fault."""
        if "EVENTS" in line and (found := _LOST.fullmatch(line)):
            count = found["lost"] or found["dropped"]
            self.unknown += count is None
            if count is not None:
                self.lost[found["cpu"] or "?"] += lines.whole(count.strip(), "lost events")
            self.episodes.lose(None if found["cpu"] is None else int(found["cpu"]))
        elif any(mark in line for mark in _MARKS):
            _event(lines, line, self)
        elif found := _EVENT.fullmatch(line):
            self._count(lines, found)
        elif found := _WRITTEN.fullmatch(line):
            written, there = lines.whole(found[2], "entries written"), lines.whole(found[1], "entries")
            self.overwritten += max(0, written - there)

    def contents(self) -> Contents:
        """What was found, when all lines were taken."""
        self.episodes.close()
        events = TableRows(EVENTS)
        for (event, reason, task, pid), (count, first, last) in sorted(self.counts.items()):
            events.add(event, reason, task, pid, count, first / 1e9, last / 1e9)
        tables = (
            self.episodes.rows.table("waits", "Trace: waiting episodes", ("episode",)),
            self.acquired.table("acquired", "Trace: acquisitions of mmu_lock", ("event",)),
            self.released.table("released", "Trace: releases of mmu_lock", ("event",)),
            events.table("events", "Trace: KVM's other events, counted", ("event", "reason", "task", "pid")),
        )
        return Contents(tables, tuple(self._warnings()))

    def _warnings(self) -> list[str]:
        """Sentences on what the trace lacks."""
        said = [f"{self.overwritten} earlier events were no longer in the buffer"] if self.overwritten else []
        if self.lost:
            cpus = ", ".join(f"CPU {cpu}: {count}" for cpu, count in sorted(self.lost.items()))
            said.append(f"{self.lost.total()} events were lost while recording ({cpus}): waits are missing")
        if times := self.unknown:
            said.append(f"{times} times events were lost, and the trace does not say how many: waits are missing")
        return said + [f"{count} {what}, left out" for what, count in self.episodes.left_out.items() if count]

    def _count(self, lines: Lines, found: re.Match[str]) -> None:
        """Count one of KVM's other events."""
        name = _name(found)
        if not _KVM.fullmatch(name) or found["fraction"] is None:
            return
        reason = _REASON.search(found["rest"]) if name == "kvm_exit" else None
        task, pid, _ = _who(lines, found)
        key = (sys.intern(name), "none" if reason is None else sys.intern(reason[1] or reason[2]), task, pid)
        now = _time_ns(lines, found)
        count = self.counts.setdefault(key, [0, now, now])
        count[0], count[1], count[2] = count[0] + 1, min(count[1], now), max(count[2], now)


def read_trace(lines: Lines) -> Contents:
    """Read a trace: each ``contention_begin`` with its ``contention_end``, simlib's own two events, and KVM's others.

    simlib's events, ``kvm_mmu_lock_acquired`` and ``kvm_mmu_lock_released``, may say more than is read here. KVM's
    others are counted, the rest is passed over. An end without a beginning, a beginning without an end, and a beginning
    whose end may be among lost events are counted and reported, never guessed.
    """
    trace = Trace()
    for line in lines:
        trace.take(lines, line)
    if not trace.used:
        if looks_like(lines.head):
            cure = "record them: trace-cmd record -e lock:contention_begin -e lock:contention_end COMMAND"
            rule = f"must hold {', '.join(_MARKS[:2])} … or events of KVM"
            raise InputError(lines.where, "a trace without lock events", rule, cure)
        raise ForeignText(_TRACE)
    contents = trace.contents()
    if not any(map(len, contents.tables)):
        counts = ", ".join(f"{count} {what}" for what, count in trace.episodes.left_out.items() if count)
        cure = "record both events, with larger buffers: trace-cmd record -b 20000"
        raise InputError(lines.where, counts, "one wait must be complete", cure)
    return contents


def _event(lines: Lines, line: str, trace: Trace) -> None:
    """Take one line that names one of the four events."""
    found = _EVENT.fullmatch(line)
    if found is None:
        cure = "is the line complete? print it without the option latency-format (trace-cmd: without -l)"
        raise lines.fault(line, "must be TASK-PID [CPU] SECONDS: EVENT: …", cure)
    if f"{_name(found)}:" not in _MARKS:
        return  # the mark stands in what another event says
    if found["fraction"] is None:
        cure = "record with a clock that counts time: echo mono > /sys/kernel/tracing/trace_clock"
        raise lines.fault(line, "its time must be in seconds, with decimals", cure)
    take = _wait if _name(found).startswith("contention") else _at_lock
    take(lines, found, _time_ns(lines, found), trace)


def _name(found: re.Match[str]) -> str:
    """Name of an event, without that of its system."""
    return found["event"].rpartition(":")[2]


def _time_ns(lines: Lines, found: re.Match[str]) -> int:
    """When an event was, ns on the trace's clock."""
    seconds = lines.whole(found["seconds"], "seconds")
    return lines.whole(f"{seconds}{found['fraction']:0<9}", "the time in ns")


def _who(lines: Lines, found: re.Match[str]) -> tuple[str, int, int]:
    """Task, thread and CPU of an event. The task's name takes the 16 places before the thread's number."""
    task = sys.intern(found["before"][-16:].strip())
    return task, lines.whole(found["pid"], "pid"), lines.whole(found["cpu"], "CPU")


def _wait(lines: Lines, found: re.Match[str], time_ns: int, trace: Trace) -> None:
    """Take one of the kernel's two events."""
    begins = _name(found) == "contention_begin"
    said = (_BEGIN if begins else _END).fullmatch(found["rest"])
    if said is None:
        rule = f"{_name(found)} must say LOCK ({'flags' if begins else 'ret'}=…)"
        raise lines.fault(found["rest"], rule, "is the line complete?")
    task, pid, cpu = _who(lines, found)
    if begins:
        trace.episodes.begin(pid, cpu, time_ns, said["lock"], said["flags"])
    else:
        trace.episodes.end(task, pid, cpu, time_ns, said["lock"], int(said["ret"]))


def _at_lock(lines: Lines, found: re.Match[str], time_ns: int, trace: Trace) -> None:
    """Take one of simlib's own two events."""
    acquired = _name(found) == "kvm_mmu_lock_acquired"
    rows, numbers = (trace.acquired, ("contended", "wait")) if acquired else (trace.released, ("hold",))
    said = [_FIELDS[name].search(found["rest"]) for name in ("site", "mode", *numbers)]
    if not all(said):
        rule = f"{_name(found)} must say site … mode … {' … '.join(numbers)} … ns"
        raise lines.fault(found["rest"], rule, "is the line complete?")
    site, mode, *values = (sys.intern(one[1]) for one in said if one)
    vm = _FIELDS["vm"].search(found["rest"])
    rows.add(
        len(rows) + 1, *_who(lines, found), time_ns / 1e9, site, mode,
        *(lines.whole(value, name) for name, value in zip(numbers, values, strict=True)),
        sys.intern(vm[1]) if vm else "",
    )  # fmt: skip
