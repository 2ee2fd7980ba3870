# SPDX-License-Identifier: BSD-3-Clause
"""KVM's statistics: acquisitions of mmu_lock by call site, with wait and hold times.

The statistics ``mmu_lock_<site>_<mode>_…`` come from simlib's kernel patches (``virt/kvm/mmu_lock_stat.c``). The
selftest ``mmu_lock_contention_test`` reads them through ``KVM_GET_STATS_FD`` and prints JSON lines (``print_stats()``);
other tools that read this file descriptor print lines ``name: value``. KVM's other statistics are also in debugfs
(``vm_stat_fops`` in ``virt/kvm/kvm_main.c``) and in the output of ``kvm_stat -d -1``. ``kvm_stat.py`` imports the
tracepoint counts of the tool ``kvm_stat``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, DescribedTable, TableRows

WHAT = ("acquired", "contended", "wait_ns", "timed", "hold_ns")
_RUN = Column("run", "whole", "number of the run in the file, from 1")
_WHEN = (
    _RUN,
    Column("when", "text", "moment of the reading: populated, enabled, or end (of the test)"),
    Column("scope", "text", "vm, or vcpu (sum over all vCPUs)"),
)
PLACE = (Column("site", "text", "class of call sites (clear, fault_slow …)"), Column("mode", "text", "write or read"))
LOCKS = (
    *_WHEN,
    *PLACE,
    Column("acquired", "whole", "acquisitions of the lock", optional=True),
    Column("contended", "whole", "acquisitions for which the lock was not free", optional=True),
    Column("wait_ns", "whole", "sum of all waits", optional=True),
    Column("timed", "whole", "holds that were timed (kvm.mmu_lock_stat_period)", optional=True),
    Column("hold_ns", "whole", "sum of the timed holds", optional=True),
)
HISTOGRAMS = (
    *_WHEN,
    *PLACE,
    Column("quantity", "text", "wait (of contended acquisitions) or hold"),
    Column("bucket", "whole", "number of the bucket, from 0"),
    Column("low_ns", "whole", "lower end of the bucket, included"),
    Column("high_ns", "whole", "upper end of the bucket, excluded; empty: no upper end", optional=True),
    Column("count", "whole", "acquisitions in the bucket"),
)
OTHERS = (
    *_WHEN,
    Column("name", "text", "name of the statistic"),
    Column("value", "whole", "value, in KVM's unit", unit="not stated"),
)

LOCK = re.compile(r"mmu_lock_(?P<site>\w+)_(?P<mode>read|write)_(?P<what>acquired|contended|wait_ns|hold_ns)")
HISTOGRAM = re.compile(r"mmu_lock_(?P<site>\w+)_(?P<mode>read|write)_(?P<what>wait|hold)_hist")
_TEXT = re.compile(
    r"\s*(?:\S*/)?(?P<name>[A-Za-z_]\w*)(?:\s*\([^)]*\))?(?:\s*[:=]\s*|\s+)(?P<values>\[?-?\d+(?:[\s,]+-?\d+)*\]?)\s*",
    re.ASCII,
)
_CHILD = re.compile(r"\w+\([A-Z0-9]\w*\)\s", re.ASCII)
"""Pattern of a line of kvm_stat's output for an exit reason."""

_KNOWN = re.compile(
    r"mmu_\w+|kvm_\w+|pf_\w+|pages_\w+|halt_\w+|remote_tlb_flush\w*|insn_emulation\w*|\w*exits?(?:_stat)?", re.ASCII
)
"""Names by which KVM's statistics are recognised: generic ones (``kvm_host.h``), and those of some architectures."""

MOST_BUCKETS = 64
"""Maximum number of buckets of a histogram of 64-bit times."""

ALL_TIMED = 0.9
"""Smallest share of timed holds that counts as all holds: CPUs may run while their counters are summed, so a few holds
may be in one counter and not yet in the other. With a period of 2, the smallest that skips holds, half of the holds
are timed."""

_WHENS = ("populated", "enabled", "end")
_SCOPES = ("vm", "vcpu")


@dataclass
class KvmStatistics:
    """Statistics, filled line by line; keys begin with run, moment and scope."""

    locks: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    histograms: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    others: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def take(self, lines: Lines, run: int, when: str, scope: str, name: str, values: list[int]) -> None:
        """Add a statistic to its table."""
        snapshot = (run, when, scope)
        if match := HISTOGRAM.fullmatch(name):
            self._histogram(lines, (*snapshot, match["site"], match["mode"], match["what"]), name, values)
            return
        if len(values) != 1:
            if name.startswith("mmu_lock_"):
                raise lines.fault(f"{len(values)} values", f"{name} must have one number", "is the line complete?")
            return  # the histogram of another statistic
        if match := LOCK.fullmatch(name):
            if values[0] < 0:
                raise lines.fault(str(values[0]), f"{name} must not be negative", "is the number right?")
            row = self.locks.setdefault((*snapshot, match["site"], match["mode"]), {})
            self._once(lines, match["what"] in row, name)
            row[match["what"]] = values[0]
        else:
            self._once(lines, (*snapshot, name) in self.others, name)
            self.others[*snapshot, name] = values[0]

    def take_json(self, lines: Lines, run: int, item: dict[str, Any]) -> None:
        """Add the statistic of a JSON line of type ``stat``."""
        name = lines.text_of(item, "name")
        when, scope = item.get("when", "end"), item.get("scope", "vm")
        for key, value, known in (("when", when, _WHENS), ("scope", scope, _SCOPES)):
            if value not in known:
                rule = f"{key} must be one of {', '.join(known)}"
                raise lines.fault(str(value), rule, "is this a log of mmu_lock_contention_test?")
        values = item["values"] if "values" in item else [item.get("value")]
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise lines.fault(str(values), f"{name} must have only whole numbers", "correct the line")
        self.take(lines, run, when, scope, name, values)

    def _histogram(self, lines: Lines, key: tuple[Any, ...], name: str, values: list[int]) -> None:
        self._once(lines, key in self.histograms, name)
        if not 2 <= len(values) <= MOST_BUCKETS or min(values) < 0:
            rule = f"{name} must have 2 to {MOST_BUCKETS} counts"
            raise lines.fault(f"{len(values)} values", rule, "is the line complete?")
        self.histograms[key] = values
        if key[-1] == "hold":
            self.locks.setdefault(key[:-1], {})["timed"] = sum(values)

    def warnings(self) -> list[str]:
        """Return a warning if not all holds were timed."""
        known = [row for row in self.locks.values() if "timed" in row and "acquired" in row]
        timed, acquired = (sum(row[what] for row in known) for what in ("timed", "acquired"))
        if timed >= ALL_TIMED * acquired:
            return []
        return [f"holds timed: {timed} of {acquired} (kvm.mmu_lock_stat_period); hold_ns is the sum of the timed holds"]

    @staticmethod
    def _once(lines: Lines, repeated: bool, name: str) -> None:
        """Refuse a statistic that occurs twice in a reading."""
        if repeated:
            raise lines.fault(name, "must occur only once in a reading", "give one reading of the statistics of one VM")

    def tables(self, histograms: bool) -> tuple[DescribedTable, ...]:
        """Return the tables ``locks``, ``histograms`` (empty unless requested) and ``others``."""
        locks, buckets, others = TableRows(LOCKS), TableRows(HISTOGRAMS), TableRows(OTHERS)
        for key, row in self.locks.items():
            locks.add(*key, *(row.get(what) for what in WHAT))
        for key, counts in self.histograms.items() if histograms else ():
            for bucket, count in enumerate(counts):
                buckets.add(*key, bucket, *bounds(bucket, len(counts)), count)
        for key, value in self.others.items():
            others.add(*key, value)
        place, bucket_key = ("run", "when", "scope", "site", "mode"), ("quantity", "bucket")
        return (
            locks.table("locks", "KVM statistics: mmu_lock by call site and mode", place),
            buckets.table("histograms", "KVM statistics: waits and holds of mmu_lock", (*place, *bucket_key)),
            others.table("others", "KVM statistics other than those of mmu_lock", (*place[:3], "name")),
        )


def bounds(bucket: int, buckets: int) -> tuple[int, int | None]:
    """Ends of a bucket of a logarithmic histogram: the lower is included; the upper is excluded, or None for no end.

    The kernel counts a value in bucket ``min(fls64(value), size - 1)``: ``kvm_stats_log_hist_update()`` in
    ``include/linux/kvm_host.h``.

    >>> [bounds(n, 32) for n in (0, 1, 2, 31)]
    [(0, 1), (1, 2), (2, 4), (1073741824, None)]
    """
    low = 2 ** (bucket - 1) if bucket else 0
    return low, None if bucket == buckets - 1 else 2**bucket


def looks_like(head: list[str]) -> bool:
    """True if the first lines of a file are KVM's statistics."""
    if any("mmu_lock_" in line or '"type":"stat"' in line.replace(" ", "") for line in head):
        return True
    matches = [_TEXT.fullmatch(line) for line in head if line.strip()]
    return len(head) > 4 and all(matches) and any(match and _KNOWN.fullmatch(match["name"]) for match in matches)


def read_log(lines: Lines, histograms: bool = False) -> Contents:
    """Read KVM's statistics, JSON lines of type ``stat`` or text ``name: value``, optionally with the histograms."""
    statistics, run, skipped, count = KvmStatistics(), 1, 0, 0
    recognised = run_open = False
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if text.startswith("{"):
            item = lines.json_object(text)
            if item.get("type") in ("config", "end"):
                run_open = item["type"] == "config"
                run += run_open and count > 0
            elif item.get("type") == "stat":
                recognised, count = True, count + 1
                statistics.take_json(lines, run, item)
        elif _CHILD.match(text):
            raise ForeignText("KVM statistics, not tracepoints")
        elif match := _TEXT.fullmatch(line):
            recognised, count = recognised or _KNOWN.fullmatch(match["name"]) is not None, count + 1
            statistics.take(lines, run, "end", "vm", match["name"], _values(lines, match["name"], match["values"]))
        elif re.search(r"\bmmu_lock_\w+", text):
            raise lines.fault(line, "must be NAME: VALUE", "is the line complete?")
        else:
            skipped += 1
    if not recognised or (skipped > count and not statistics.locks):
        raise ForeignText("KVM statistics: JSON lines of type 'stat', or lines NAME: VALUE")
    if run_open:
        raise lines.end_fault("the end", "a run must end with a line of type 'end'")
    warnings = [] if statistics.locks else ["no statistics of mmu_lock: the kernel lacks CONFIG_KVM_MMU_LOCK_STAT"]
    warnings += statistics.warnings()
    warnings += [f"lines left out, since they are not statistics: {skipped}"] if skipped else []
    return Contents(statistics.tables(histograms), tuple(warnings))


def _values(lines: Lines, name: str, text: str) -> list[int]:
    """Parse the numbers after a name; of the two that kvm_stat prints, the total and its change, return the total."""
    cells = re.split(r"[\s,]+", text.strip("[]"))
    numbers = [lines.signed(cell, name) for cell in cells]
    return numbers[:1] if len(numbers) == 2 else numbers
