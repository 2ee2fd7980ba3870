# SPDX-License-Identifier: BSD-3-Clause
"""The JSON lines of ``mmu_lock_contention_test``, the selftest of simlib's kernel patches.

``tools/testing/selftests/kvm/mmu_lock_contention_test.c`` prints one object per line; its ``type`` is config, ioctl,
vcpu, stat, check or end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from simlib._lib.errors import InputError
from simlib.measurements.importers.kvm_stats import KvmStatistics
from simlib.measurements.importers.lines import LARGEST, ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, DescribedTable, TableRows

_RUN = Column("run", "whole", "number of the run in the log, from 1")
_VCPU = Column("vcpu", "whole", "number of the vCPU, from 0", unit="1")
IOCTLS = (
    _RUN,
    Column("event", "whole", "number of the ioctl or phase in the run, from 1"),
    Column(
        "name",
        "text",
        "populate, enable, get, clear, reset, disable or teardown; write: the vCPUs run; probe: empty CLEARs while "
        "they run; probe_idle: empty CLEARs while they do not run",
    ),
    Column("round", "whole", "round of GET and CLEAR, from 1; 0: before the first round"),
    Column("thread", "whole", "number of the clear thread that issued the ioctl, from 0", unit="1"),
    Column("first_page", "whole", "first page of the ioctl's range"),
    Column("range_pages", "whole", "pages of the ioctl's range"),
    Column("dirty_pages", "whole", "bits set in the bitmap given or returned; only for get and clear", True),
    Column("writes", "whole", "writes of all vCPUs; only for phases in which they write", True),
    Column("calls", "whole", "ioctls in the row; only for probes of the lock", True),
    Column("start_ns", "whole", "start, relative to the start of the test"),
    Column("duration_ns", "whole", "duration"),
)
VCPUS = (
    _RUN,
    _VCPU,
    Column("writes", "whole", "writes of the vCPU"),
    Column("reads", "whole", "reads of the vCPU"),
    Column("longest_ns", "whole", "longest time between two consecutive accesses of the vCPU"),
    Column("late_writes", "whole", "writes after the last time bucket in the table 'progress'", optional=True),
)
LONGEST = (
    _RUN,
    _VCPU,
    Column("rank", "whole", "1: the longest", unit="1"),
    Column("start_ns", "whole", "start of the gap, relative to the start of the test"),
    Column("gap_ns", "whole", "length of the gap"),
)
ROUNDS = (
    _RUN,
    _VCPU,
    Column("round", "whole", "round of GET and CLEAR, from 1"),
    Column("longest_stall_ns", "whole", "longest gap that began or continued while the round's ioctls ran"),
    Column("longest_pause_ns", "whole", "longest gap that began between the round's last ioctl and the next round"),
)
GAPS = (
    _RUN,
    _VCPU,
    Column("bucket", "whole", "number of the bucket, from 1, not counting buckets without gaps"),
    Column("low_ns", "whole", "lower end of the bucket, included"),
    Column("high_ns", "whole", "upper end of the bucket, excluded"),
    Column("count", "whole", "gaps in the bucket"),
)
PROGRESS = (
    _RUN,
    _VCPU,
    Column("bucket", "whole", "number of the time bucket, from 0"),
    Column("start_ns", "whole", "start of the bucket, relative to the start of the test"),
    Column("writes", "whole", "writes in the bucket"),
)

TABLES = {
    "ioctls": ("ioctls and phases", ("run", "event"), IOCTLS),
    "vcpus": ("accesses of each vCPU", ("run", "vcpu"), VCPUS),
    "longest": ("each vCPU's longest gaps", ("run", "vcpu", "rank"), LONGEST),
    "rounds": ("longest gaps in each round", ("run", "vcpu", "round"), ROUNDS),
    "gaps": ("gaps between accesses", ("run", "vcpu", "bucket"), GAPS),
    "progress": ("writes over time", ("run", "vcpu", "bucket"), PROGRESS),
}
"""Title, key and columns of each table, by name."""

_TEST = "mmu_lock_contention_test"
looks_like = any_line(re.compile(r'\{.*"type" *: *"(config|ioctl|vcpu)".*'))
_TYPES = ("config", "ioctl", "vcpu", "stat", "check", "end")


@dataclass
class Log:
    """Tables of the test, filled line by line."""

    rows: dict[str, TableRows] = field(default_factory=lambda: {n: TableRows(table[2]) for n, table in TABLES.items()})
    statistics: KvmStatistics = field(default_factory=KvmStatistics)
    warnings: list[str] = field(default_factory=list)
    configs: list[dict[str, Any]] = field(default_factory=list)
    events: int = 0
    open: bool = False

    def take(self, lines: Lines, item: dict[str, Any]) -> None:
        """Take one line."""
        kind = item.get("type")
        if kind == "config":
            if self.open:
                raise lines.end_fault("config", "a run must end with a line of type 'end' before the next run begins")
            self.configs.append({key: value for key, value in item.items() if key != "type"})
            self.open, self.events = True, 0
        elif kind not in _TYPES:
            return
        elif not self.open:
            rule = "must come between a line of type 'config' and one of type 'end'"
            raise lines.fault(str(kind), rule, "save the whole log")
        elif kind == "ioctl":
            self.events += 1
            self.rows["ioctls"].add(
                len(self.configs), self.events, lines.text_of(item, "name"),
                *(lines.whole_of(item, n) for n in ("round", "thread", "first_page", "pages")),
                *(lines.whole_of(item, n) if n in item else None for n in ("dirty", "writes", "calls")),
                *(lines.whole_of(item, n) for n in ("start_ns", "duration_ns")),
            )  # fmt: skip
        elif kind == "vcpu":
            self._vcpu(lines, item)
        elif kind == "stat":
            self.statistics.take_json(lines, len(self.configs), item)
        elif kind == "check":
            lost = lines.whole_of(item, "lost")
            if lost:
                self.warnings.append(f"dirty logging was not correct; writes that the log lost: {lost}")
        else:
            if item.get("ok") is not True:
                self.warnings.append("the test failed: 'ok' is not true in the line of type 'end'")
            self.open = False

    def _vcpu(self, lines: Lines, item: dict[str, Any]) -> None:
        vcpu = (len(self.configs), lines.whole_of(item, "id"))
        late = lines.whole_of(item, "progress_late") if "progress_late" in item else None
        self.rows["vcpus"].add(*vcpu, *(lines.whole_of(item, name) for name in ("writes", "reads", "longest_ns")), late)
        lists = (("gaps", "gap_hist", ("from", "to", "count")), ("longest", "longest", ("start_ns", "ns")))
        for table, name, parts in lists:
            entries = item.get(name, [])
            for number, values in enumerate(entries if isinstance(entries, list) else [entries], 1):
                rule = f"{name!r} must be a list of [{', '.join(parts)}]"
                self.rows[table].add(*vcpu, number, *_wholes(lines, values, rule, len(parts)))
        stalls, pauses = (_counts(lines, item, f"{part}_longest_ns") for part in ("round", "pause"))
        if len(stalls) != len(pauses):
            counts = f"{len(stalls)} and {len(pauses)}"
            raise lines.fault(counts, "each round must have one stall and one pause", "is the line complete?")
        for number, (stall, pause) in enumerate(zip(stalls, pauses, strict=True), 1):
            self.rows["rounds"].add(*vcpu, number, stall, pause)
        progress = _counts(lines, item, "progress")
        start, width = (lines.whole_of(item, f"progress_{n}_ns") if progress else 0 for n in ("start", "bucket"))
        if start + width * len(progress) > LARGEST:
            raise lines.fault(str(width), "the end of the last 'progress' must be at most 2^53 ns", "correct it")
        for bucket, count in enumerate(progress):
            self.rows["progress"].add(*vcpu, bucket, start + bucket * width, count)

    def tables(self, histograms: bool) -> tuple[DescribedTable, ...]:
        """Return all tables, the ioctls first."""
        tables = (self.rows[name].table(name, f"{_TEST}: {title}", key) for name, (title, key, _) in TABLES.items())
        return (*tables, *self.statistics.tables(histograms))


def read_log(lines: Lines, histograms: bool = False) -> Contents:
    """Read the log of ``mmu_lock_contention_test``, optionally with the histograms of waits and holds.

    Lines that are not JSON objects (messages of the selftest library) and unknown types are skipped. The setup has
    the options of the test.
    """
    log = Log()
    for line in lines:
        text = line.strip()
        if text.startswith("{"):
            log.take(lines, lines.json_object(text))
    if not log.configs:
        raise ForeignText(f"the log of {_TEST}: JSON lines, from type 'config' to type 'end'")
    if log.open:
        raise lines.end_fault("the end", "a run must end with a line of type 'end'")
    tables = log.tables(histograms)
    if not any(map(len, tables)):
        raise InputError(lines.where, "options only", "must contain measurements", "run the test again")
    setup = log.configs[0] if len(log.configs) == 1 else {"runs": log.configs}
    return Contents(tables, tuple(dict.fromkeys([*log.warnings, *log.statistics.warnings()])), setup)


def _counts(lines: Lines, item: dict[str, Any], name: str) -> list[int]:
    return _wholes(lines, item.get(name, []), f"{name!r} must be a list of counts")


def _wholes(lines: Lines, values: Any, rule: str, number: int | None = None) -> list[int]:
    """Return a list of whole numbers; refuse other values, and any length but `number` unless `number` is None."""
    valid = isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
    if not valid or number not in (None, len(values)):
        raise lines.fault(str(values), rule, "is the line complete?")
    return list(values)
