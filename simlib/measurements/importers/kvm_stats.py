# SPDX-License-Identifier: BSD-3-Clause
"""KVM's statistics: how often each call site took mmu_lock, how long it waited and held it.

The statistics ``mmu_lock_<site>_<mode>_…`` are those of simlib's kernel patches (``virt/kvm/mmu_lock_stat.c``). They
come as JSON lines of the selftest ``mmu_lock_contention_test`` (its ``print_stats()``), which reads
``KVM_GET_STATS_FD``, or as text, ``name: value``, as tools for that file descriptor print them. debugfs shows all
others (``vm_stat_fops`` in ``virt/kvm/kvm_main.c``), and so does ``kvm_stat -d -1``. What the tool
``kvm_stat`` prints of tracepoints is read by ``kvm_stat.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, ImportedTable, TableRows

WHAT = ("acquired", "contended", "wait_ns", "timed", "hold_ns")
_RUN = Column("run", "whole", "which of the runs in the file, from 1")
_WHEN = (
    _RUN,
    Column("when", "text", "moment of the reading: populated, enabled or end of the test"),
    Column("scope", "text", "vm, or vcpu: summed over all of them"),
)
PLACE = (
    Column("site", "text", "call site's class (clear, fault_slow …)"),
    Column("mode", "text", "write or read"),
)
LOCKS = (
    *_WHEN,
    *PLACE,
    Column("acquired", "whole", "times that the lock was taken", optional=True),
    Column("contended", "whole", "times that it was not free", optional=True),
    Column("wait_ns", "whole", "all waits together", optional=True),
    Column("timed", "whole", "holds that were timed (kvm.mmu_lock_stat_period)", optional=True),
    Column("hold_ns", "whole", "the timed holds together", optional=True),
)
HISTOGRAMS = (
    *_WHEN,
    *PLACE,
    Column("quantity", "text", "wait (of contended acquisitions) or hold"),
    Column("bucket", "whole", "number of the bucket, from 0"),
    Column("low_ns", "whole", "least time of the bucket"),
    Column("high_ns", "whole", "first time above the bucket; empty: no limit", optional=True),
    Column("count", "whole", "acquisitions in the bucket"),
)
OTHERS = (
    *_WHEN,
    Column("name", "text", "name of the statistic"),
    Column("value", "whole", "its value, in the unit that KVM gives it", unit="not stated"),
)

LOCK = re.compile(r"mmu_lock_(?P<site>\w+)_(?P<mode>read|write)_(?P<what>acquired|contended|wait_ns|hold_ns)")
HISTOGRAM = re.compile(r"mmu_lock_(?P<site>\w+)_(?P<mode>read|write)_(?P<what>wait|hold)_hist")
_TEXT = re.compile(
    r"\s*(?:\S*/)?(?P<name>[A-Za-z_]\w*)(?:\s*\([^)]*\))?(?:\s*[:=]\s*|\s+)(?P<values>\[?-?\d+(?:[\s,]+-?\d+)*\]?)\s*",
    re.ASCII,
)
_CHILD = re.compile(r"\w+\([A-Z0-9]\w*\)\s", re.ASCII)
"""What the tool kvm_stat prints of the reason of an exit."""

_KNOWN = re.compile(
    r"mmu_\w+|kvm_\w+|pf_\w+|pages_\w+|halt_\w+|remote_tlb_flush\w*|insn_emulation\w*|\w*exits?(?:_stat)?", re.ASCII
)
"""Statistics that tell KVM's from others': its own, or those that every architecture has (``kvm_host.h``)."""

MOST_BUCKETS = 64
"""Most buckets of a histogram of 64-bit times."""

ALL_TIMED = 0.9
"""Least share of the holds that were timed, if all were: a reading sums up counters of CPUs that may be running, so
that a few holds may be in one counter and not yet in the other. A period of 2, the least that leaves any out, times
half of them."""

_WHENS = ("populated", "enabled", "end")
_SCOPES = ("vm", "vcpu")


@dataclass
class KvmStatistics:
    """Statistics while they are read; keys begin with run, moment and scope."""

    locks: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    histograms: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    others: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def take(self, lines: Lines, run: int, when: str, scope: str, name: str, values: list[int]) -> None:
        """Sort one statistic into its table."""
        snapshot = (run, when, scope)
        if found := HISTOGRAM.fullmatch(name):
            self._histogram(lines, (*snapshot, found["site"], found["mode"], found["what"]), name, values)
            return
        if len(values) != 1:
            if name.startswith("mmu_lock_"):
                raise lines.fault(f"{len(values)} values", f"{name} must be one number", "is the line complete?")
            return  # another statistic's histogram
        if found := LOCK.fullmatch(name):
            if values[0] < 0:
                raise lines.fault(str(values[0]), f"{name} must not be negative", "is the number right?")
            row = self.locks.setdefault((*snapshot, found["site"], found["mode"]), {})
            self._once(lines, found["what"] in row, name)
            row[found["what"]] = values[0]
        else:
            self._once(lines, (*snapshot, name) in self.others, name)
            self.others[*snapshot, name] = values[0]

    def take_json(self, lines: Lines, run: int, item: dict[str, Any]) -> None:
        """Take one JSON line of type ``stat``."""
        name = lines.text_of(item, "name")
        when, scope = item.get("when", "end"), item.get("scope", "vm")
        for what, value, known in (("when", when, _WHENS), ("scope", scope, _SCOPES)):
            if value not in known:
                rule = f"{what} must be one of {', '.join(known)}"
                raise lines.fault(str(value), rule, "is this the log of the test?")
        values = item["values"] if "values" in item else [item.get("value")]
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise lines.fault(str(values), f"{name} must have a whole number, or a list of them", "correct the line")
        self.take(lines, run, when, scope, name, values)

    def _histogram(self, lines: Lines, key: tuple[Any, ...], name: str, values: list[int]) -> None:
        self._once(lines, key in self.histograms, name)
        if not 2 <= len(values) <= MOST_BUCKETS or min(values) < 0:
            rule = f"{name} must be 2 to {MOST_BUCKETS} counts"
            raise lines.fault(f"{len(values)} values", rule, "is the line complete?")
        self.histograms[key] = values
        if key[-1] == "hold":
            self.locks.setdefault(key[:-1], {})["timed"] = sum(values)

    def warnings(self) -> list[str]:
        """What to say about holds that were not timed."""
        known = [row for row in self.locks.values() if "timed" in row and "acquired" in row]
        timed, acquired = (sum(row[what] for row in known) for what in ("timed", "acquired"))
        if timed >= ALL_TIMED * acquired:
            return []
        return [f"{timed} of {acquired} holds were timed (kvm.mmu_lock_stat_period): hold_ns is the sum of these"]

    @staticmethod
    def _once(lines: Lines, seen: bool, name: str) -> None:
        """Refuse a statistic that stands twice in a reading."""
        if seen:
            raise lines.fault(name, "must occur once in a reading", "give one VM's statistics, read once")

    def tables(self, histograms: bool) -> tuple[ImportedTable, ...]:
        """The tables ``locks``, ``histograms`` if asked for, and ``others``."""
        locks, buckets, others = TableRows(LOCKS), TableRows(HISTOGRAMS), TableRows(OTHERS)
        for key, row in self.locks.items():
            locks.add(*key, *(row.get(what) for what in WHAT))
        for key, counts in self.histograms.items() if histograms else ():
            for bucket, count in enumerate(counts):
                buckets.add(*key, bucket, *bounds(bucket, len(counts)), count)
        for key, value in self.others.items():
            others.add(*key, value)
        place = ("run", "when", "scope", "site", "mode")
        return (
            locks.table("locks", "KVM statistics: mmu_lock by call site and mode", place),
            buckets.table("histograms", "KVM statistics: waits and holds of mmu_lock", (*place, "quantity", "bucket")),
            others.table("others", "KVM statistics: all others", ("run", "when", "scope", "name")),
        )


def bounds(bucket: int, buckets: int) -> tuple[int, int | None]:
    """Times of a bucket of a logarithmic histogram: from the first, below the second.

    The kernel counts a value in bucket ``min(fls64(value), size - 1)``: ``kvm_stats_log_hist_update()`` in
    ``include/linux/kvm_host.h``.

    >>> [bounds(n, 32) for n in (0, 1, 2, 31)]
    [(0, 1), (1, 2), (2, 4), (1073741824, None)]
    """
    low = 2 ** (bucket - 1) if bucket else 0
    return low, None if bucket == buckets - 1 else 2**bucket


def looks_like(head: list[str]) -> bool:
    """Tell whether the first lines of a text are KVM's statistics."""
    if any("mmu_lock_" in line or '"type":"stat"' in line.replace(" ", "") for line in head):
        return True
    found = [_TEXT.fullmatch(line) for line in head if line.strip()]
    return len(head) > 4 and all(found) and any(one and _KNOWN.fullmatch(one["name"]) for one in found)


def read_kvm_stats(lines: Lines, histograms: bool = False) -> Contents:
    """Read KVM's statistics, JSON lines of type ``stat`` or text ``name: value``; the histograms too if asked for."""
    statistics, run, skipped, used = KvmStatistics(), 1, 0, 0
    known = begun = False
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if text.startswith("{"):
            item = lines.json_object(text)
            if item.get("type") in ("config", "end"):
                begun = item["type"] == "config"
                run += begun and used > 0
            elif item.get("type") == "stat":
                known, used = True, used + 1
                statistics.take_json(lines, run, item)
        elif _CHILD.match(text):
            raise ForeignText("KVM statistics, and no tracepoints")
        elif found := _TEXT.fullmatch(line):
            known, used = known or _KNOWN.fullmatch(found["name"]) is not None, used + 1
            statistics.take(lines, run, "end", "vm", found["name"], _values(lines, found["name"], found["values"]))
        elif re.search(r"\bmmu_lock_\w+", text):
            raise lines.fault(line, "must be NAME: VALUE", "is the line complete?")
        else:
            skipped += 1
    if not known or (skipped > used and not statistics.locks):
        raise ForeignText("KVM statistics: JSON lines of type 'stat', or lines NAME: VALUE")
    if begun:
        raise lines.end_fault("the end", "a run must end with a line of type 'end'")
    warnings = [] if statistics.locks else ["no statistics of mmu_lock: a kernel without CONFIG_KVM_MMU_LOCK_STAT"]
    warnings += statistics.warnings()
    warnings += [f"{skipped} lines are no statistics, left out"] if skipped else []
    return Contents(statistics.tables(histograms), tuple(warnings))


def _values(lines: Lines, name: str, text: str) -> list[int]:
    """Numbers behind a name; of kvm_stat's two, the total and its rate, the first."""
    cells = re.split(r"[\s,]+", text.strip("[]"))
    numbers = [lines.signed(cell, name) for cell in cells]
    return numbers[:1] if len(numbers) == 2 else numbers
