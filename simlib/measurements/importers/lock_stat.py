# SPDX-License-Identifier: BSD-3-Clause
"""``/proc/lock_stat``: wait and hold times by lock class, and the call sites of contentions.

``seq_header()`` and ``seq_stats()`` in ``kernel/locking/lockdep_proc.c`` print it (version 0.4 of the format);
``Documentation/locking/lockstat.rst`` describes the columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simlib._lib.errors import InputError, nearest
from simlib.measurements.importers.lines import ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

_TITLES = (
    "con-bounces", "contentions", "waittime-min", "waittime-max", "waittime-total", "waittime-avg",
    "acq-bounces", "acquisitions", "holdtime-min", "holdtime-max", "holdtime-total", "holdtime-avg",
)  # fmt: skip

_SNAPSHOT = Column("snapshot", "whole", "number of the copy of /proc/lock_stat in the file, from 1")
CLASSES = (
    _SNAPSHOT,
    Column("entry", "whole", "number of the line in the copy, from 1; the most contended class is first"),
    Column("lock", "text", "lock class; #2 is a second class of the same name, /1 a nesting level"),
    Column("mode", "text", "write or read; only write for a lock that was never taken for read, such as a spinlock"),
    Column("con_bounces", "whole", "contentions for which the lock's data came from another CPU"),
    Column("contentions", "whole", "acquisitions that had to wait"),
    Column("wait_min_us", "number", "shortest wait that was not 0"),
    Column("wait_max_us", "number", "longest wait"),
    Column("wait_total_us", "number", "sum of all waits"),
    Column("wait_avg_us", "number", "average wait, over contentions"),
    Column("acq_bounces", "whole", "acquisitions for which the lock's data came from another CPU"),
    Column("acquisitions", "whole", "acquisitions of the lock"),
    Column("hold_min_us", "number", "shortest hold that was not 0"),
    Column("hold_max_us", "number", "longest hold"),
    Column("hold_total_us", "number", "sum of all holds"),
    Column("hold_avg_us", "number", "average hold, over acquisitions"),
)
POINTS = (
    _SNAPSHOT,
    Column("entry", "whole", "number of the call site in the copy, from 1"),
    Column("lock", "text", "lock class"),
    Column("role", "text", "waiter: the site that had to wait; holder: the site that held the lock meanwhile"),
    Column("contentions", "whole", "contentions at this site; the kernel keeps at most four sites per class and role"),
    Column("address", "text", "address as printed, possibly hashed"),
    Column("site", "text", "function, offset, length and module"),
)

_NUMBERS = r"\s+".join(rf"(?P<{column.name}>[\d.]+)" for column in CLASSES[4:])
_CLASS = re.compile(rf"\s*(?P<class>\S.*?):\s*{_NUMBERS}\s*", re.ASCII)
_POINT = re.compile(r"\s*(?P<lock>\S.*?)\s+(?P<contentions>\d+)\s+\[<(?P<address>[^>]*)>\]\s+(?P<site>\S.*)", re.ASCII)
_MMU_LOCK = re.compile(r"(?:.*\W)?mmu_lock(?:#\d+)?(?:/\d+)?")
_VERSION = "lock_stat version"
looks_like = any_line(re.compile(f"{_VERSION}.*"))


@dataclass
class LockStatReader:
    """Tables filled line by line, and the position in the text."""

    lock: str  # part of the name of the classes to import
    classes: TableRows = field(default_factory=lambda: TableRows(CLASSES))
    points: TableRows = field(default_factory=lambda: TableRows(POINTS))
    names: dict[str, None] = field(default_factory=dict)  # of all classes, in their order
    warnings: dict[str, None] = field(default_factory=dict)
    snapshot: int = 0
    entry: int = 0
    point: int = 0
    role: str = ""  # list of call sites that is open: waiter, holder, or none
    pending: str = ""  # contended class whose call sites have not come yet

    def take(self, lines: Lines, line: str) -> None:
        """Add a line that is not empty."""
        if line.startswith(_VERSION):
            self._begin(lines, line)
        elif match := _CLASS.fullmatch(line):
            self._class(lines, match)
        elif not self.snapshot:
            pass  # output of a shell or a script before the text
        elif match := _POINT.fullmatch(line):
            self._point(lines, match)
        elif not self._mark(lines, line):
            hint = "is the line complete? save the file again: cat /proc/lock_stat > FILE"
            raise lines.fault(line, "must be a lock class with 12 numbers, or a call site", hint)

    def _begin(self, lines: Lines, line: str) -> None:
        if line.split() != [*_VERSION.split(), "0.4"]:
            raise lines.fault(line, "must be version 0.4 of the format", "use Linux 3.13 or later")
        self.check_closed(lines)
        self.snapshot, self.entry, self.point = self.snapshot + 1, 0, 0

    def _class(self, lines: Lines, match: re.Match[str]) -> None:
        if not self.snapshot:
            hint = "save the whole file: cat /proc/lock_stat > FILE"
            raise lines.fault(match[0], f"must come after {_VERSION!r}", hint)
        name, mode = _mode(match["class"])
        if self.pending != name:  # either of the two lines of a class may have the contentions
            self.pending = ""
        if lines.whole(match["contentions"], "contentions"):
            self.pending = name
        self.names[name], self.role, self.entry = None, "", self.entry + 1
        if _wanted(name, self.lock):
            self.classes.take(lines, match, snapshot=self.snapshot, entry=self.entry, lock=name, mode=mode)

    def _point(self, lines: Lines, match: re.Match[str]) -> None:
        if not self.role:
            raise lines.fault(match[0], "a call site must come after a line of dashes", "save the file again")
        self.point, self.pending = self.point + 1, ""
        if _wanted(match["lock"], self.lock):
            self.points.take(lines, match, snapshot=self.snapshot, entry=self.point, role=self.role)

    def _mark(self, lines: Lines, line: str) -> bool:
        """Process a separator, a kernel warning or the column titles; return False for any other line."""
        text = line.strip()
        if set(text) == {"-"}:
            if self.entry or len(text) < 100:  # the horizontal rules of the header are as wide as the table
                self.role = "holder" if self.role == "waiter" else "waiter"
        elif set(text) == {"."}:
            self.role = ""
        elif text.startswith("*WARNING*"):
            self.warnings[f"kernel warning: {text.strip('* ')}"] = None
        elif text.startswith("class name"):
            if tuple(text.split()[2:]) != _TITLES:
                raise lines.fault(line, f"the columns must be {', '.join(_TITLES)}", "save the file again")
        else:
            return False
        return True

    def check_closed(self, lines: Lines) -> None:
        """Refuse a copy that ends within a lock class."""
        if self.pending:
            raise lines.end_fault(self.pending, "the call sites of a contended class must follow it")
        if self.role:
            raise lines.end_fault(f"{self.role}s", "a list of call sites must end with a line of dots")


def read_log(lines: Lines, lock: str = "") -> Contents:
    """Read ``/proc/lock_stat``.

    A class that was taken for read has a line with ``-R`` and, if it was also taken for write, one with ``-W``; without
    readers its only line has no suffix and counts as write. The file may contain several copies in sequence.

    - `lock`: part of the name of the classes to import; ``"all"`` imports every class. Default: mmu_lock
      (``&(kvm)->mmu_lock``, ``&kvm->mmu_lock``).
    """
    reader = LockStatReader(lock)
    for line in lines:
        if line and not line.isspace():
            reader.take(lines, line)
    if not reader.snapshot:
        raise ForeignText(f"/proc/lock_stat, which begins with {_VERSION!r}")
    reader.check_closed(lines)
    if not reader.names:
        hint = "enable it before the measurement: echo 1 > /proc/sys/kernel/lock_stat"
        raise InputError(lines.where, "no lock class", "must have at least one lock class", hint)
    if not len(reader.classes):
        raise _no_class(lines, lock, reader.names)
    key = ("snapshot", "entry")
    classes = reader.classes.table("classes", "lock_stat: waits and holds by lock class", key)
    sites = reader.points.table("sites", "lock_stat: call sites that waited for a lock or held it", key)
    return Contents((classes, sites), tuple(reader.warnings))


def _mode(name: str) -> tuple[str, str]:
    if name.endswith("-R"):
        return name[:-2], "read"
    return name.removesuffix("-W"), "write"


def _wanted(name: str, lock: str) -> bool:
    return lock == "all" or lock in name if lock else _MMU_LOCK.fullmatch(name) is not None


def _no_class(lines: Lines, lock: str, names: dict[str, None]) -> InputError:
    if not lock:
        hint, cli_hint = (
            f"was a guest running while lock_stat was on? {name} imports another class, {every} all classes"
            for name, every in (('lock="NAME"', 'lock="all"'), ("--lock NAME", "--lock all"))
        )
        return InputError(lines.where, f"lock classes: {len(names)}", "must include mmu_lock", hint, cli_hint)
    known = nearest(lock, list(names)[:40])
    return InputError("lock", lock, f"no lock class in {lines.where} has a name that contains it", known, flag="--lock")
