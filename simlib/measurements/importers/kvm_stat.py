# SPDX-License-Identifier: BSD-3-Clause
"""The tool ``kvm_stat``: once (``-1``), as a log (``-l``, ``-L FILE``), and as a log in CSV (``-c``).

The formats are those of ``batch()``, ``StdFormat``, ``CSVFormat`` and ``log()`` in ``tools/kvm/kvm_stat/kvm_stat``. Its
statistics are tracepoints, with a child for each reason of an exit (``kvm_exit(EPT_VIOLATION)``), or those of debugfs
(``-d``). It does not show the counters of simlib's kernel patches, which debugfs does not have.
"""

from __future__ import annotations

import re
import sys

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, TableRows

_NAMES = (
    Column("name", "text", "name of the tracepoint or statistic"),
    Column("reason", "text", "reason of an exit, of a child; all for what is no child"),
)
LOG = (
    Column("sample", "whole", "number of the line of the log, from 1"),
    Column("time", "text", "when it was written, as kvm_stat writes it: local, to a second"),
    *_NAMES,
    Column(
        "difference", "whole", "since the line before: kvm_stat's delay ago, a second without -s", unit="not stated"
    ),
)
ONCE = (
    *_NAMES,
    Column("value", "whole", "events since kvm_stat began, or what debugfs says", unit="not stated"),
    Column("difference", "whole", "since a second before", unit="not stated"),
)

_NAME = r"[A-Za-z_][\w.-]*(?:\([^()\s]*\))?"
_ONCE = re.compile(rf"(?P<name>{_NAME}) +(?P<value>\d+) +(?P<difference>-?\d+)", re.ASCII)
_GLUED = re.compile(rf"{_NAME} *\d{{20,}}", re.ASCII)
_BANNER = re.compile(rf"(?:{_NAME} )+\s*", re.ASCII)
_CSV_BANNER = re.compile(rf"timestamp(?:,{_NAME})+", re.ASCII)
_TIME = r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
_LINE = re.compile(rf"{_TIME}(?P<cells>(?: +-?\d+)+)\s*", re.ASCII)
_CSV_LINE = re.compile(rf"{_TIME}(?P<cells>(?:,-?\d+)+)\s*", re.ASCII)
_STARTED = re.compile(rf"{_TIME}.*", re.ASCII)
_CHILD = re.compile(r"(?P<name>[^(]+)(?:\((?P<reason>[^)]*)\))?")


def looks_like(head: list[str]) -> bool:
    """Tell whether the first lines of a text are what ``kvm_stat`` prints."""
    text = [line for line in head if line.strip()]
    logged = any(_LINE.fullmatch(line) or _CSV_LINE.fullmatch(line) for line in text)
    if logged and text and (_CSV_BANNER.fullmatch(text[0].strip()) or _BANNER.fullmatch(text[0])):
        return True
    # ``%-42s%10d%10d``: nothing else that is imported has such columns.
    return bool(text) and all(len(one) >= 62 and (_ONCE.fullmatch(one) or _GLUED.fullmatch(one)) for one in text)


def read_kvm_stat(lines: Lines) -> Contents:
    """Read what ``kvm_stat -1``, ``kvm_stat -l`` or ``kvm_stat -c -l`` prints."""
    log, once = TableRows(LOG), TableRows(ONCE)
    names: list[tuple[str, str]] = []
    seen, sample, glued = set[tuple[str, str]](), 0, 0
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if found := _CSV_LINE.fullmatch(line) or _LINE.fullmatch(line):
            sample += 1
            _logged(lines, log, names, sample, found)
        elif _STARTED.fullmatch(line):
            raise lines.fault(line, "must be a time and a whole number for each name of its banner", "is it complete?")
        elif _CSV_BANNER.fullmatch(text):
            names = _distinct(lines, text.split(",")[1:])
        elif found := _ONCE.fullmatch(text):
            key = _child(found["name"])
            if key in seen:
                raise lines.fault(found["name"], "must occur once", "give what one run of kvm_stat -1 printed")
            seen.add(key)
            once.add(*key, lines.whole(found["value"], "value"), lines.signed(found["difference"], "difference"))
        elif _GLUED.fullmatch(text):
            glued += 1
        elif _BANNER.fullmatch(line if line.endswith(" ") else f"{line} "):
            names = _distinct(lines, text.split())
        elif sample or len(once):
            raise lines.fault(line, "is no line of kvm_stat", "is the line complete?")
        else:
            break
    if not len(log) and not len(once):
        raise ForeignText("what kvm_stat -1, -l or -c -l prints")
    warnings = [f"{glued} lines whose two numbers run into each other are left out"] if glued else []
    tables = (
        log.table("log", "kvm_stat: differences between two lines of its log", ("sample", "name", "reason")),
        once.table("once", "kvm_stat -1: values, and differences of a second", ("name", "reason")),
    )
    return Contents(tables, tuple(warnings))


def _logged(lines: Lines, log: TableRows, names: list[tuple[str, str]], sample: int, found: re.Match[str]) -> None:
    """Take a line of a log, in the order of its banner."""
    cells = re.split(r"[ ,]+", found["cells"].strip(" ,"))
    if len(cells) != len(names):
        rule = f"must have {len(names)} numbers, one for each name of the banner before it"
        cure = "is the line complete?" if names else "keep the line with the names: kvm_stat writes it first"
        raise lines.fault(found[0], rule, cure)
    for (name, reason), cell in zip(names, cells, strict=True):
        log.add(sample, found["time"], name, reason, lines.signed(cell, "difference"))


def _distinct(lines: Lines, names: list[str]) -> list[tuple[str, str]]:
    found = [_child(name) for name in names]
    if len(set(found)) < len(found):
        raise lines.fault(" ".join(names), "each name must occur once", "is the line complete?")
    return found


def _child(text: str) -> tuple[str, str]:
    """Name and reason: ``kvm_exit(HLT)`` is a child of ``kvm_exit``."""
    found = _CHILD.fullmatch(text)
    if found is None:
        return sys.intern(text), "all"
    return sys.intern(found["name"]), sys.intern(found["reason"] or "all")
