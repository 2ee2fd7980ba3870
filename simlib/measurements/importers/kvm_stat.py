# SPDX-License-Identifier: BSD-3-Clause
"""Output of the tool ``kvm_stat``: one reading (``-1``), a log (``-l``, ``-L FILE``), or a log in CSV (``-c``).

The formats are those of ``batch()``, ``StdFormat``, ``CSVFormat`` and ``log()`` in ``tools/kvm/kvm_stat/kvm_stat``. Its
statistics are counts of tracepoints, with a child for each exit reason (``kvm_exit(EPT_VIOLATION)``), or those in
debugfs (``-d``). It does not print the counters of simlib's kernel patches, which are not in debugfs.
"""

from __future__ import annotations

import re
import sys

from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Column, Contents, TableRows

_NAMES = (
    Column("name", "text", "name of the tracepoint or statistic"),
    Column("reason", "text", "exit reason of a child event; all if the event is not a child"),
)
LOG = (
    Column("sample", "whole", "number of the line of the log, from 1"),
    Column("time", "text", "local time at which kvm_stat wrote the line, to the second"),
    *_NAMES,
    Column("difference", "whole", "change since the previous line, one interval (-s) earlier", unit="not stated"),
)
ONCE = (
    *_NAMES,
    Column("value", "whole", "events since kvm_stat started, or the value in debugfs", unit="not stated"),
    Column("difference", "whole", "change within one second", unit="not stated"),
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
    """True if the first lines of a file are output of ``kvm_stat``."""
    text = [line for line in head if line.strip()]
    logged = any(_LINE.fullmatch(line) or _CSV_LINE.fullmatch(line) for line in text)
    if logged and text and (_CSV_BANNER.fullmatch(text[0].strip()) or _BANNER.fullmatch(text[0])):
        return True
    # No other format that can be imported has the columns of ``%-42s%10d%10d``.
    return bool(text) and all(len(line) >= 62 and (_ONCE.fullmatch(line) or _GLUED.fullmatch(line)) for line in text)


def read_log(lines: Lines) -> Contents:
    """Read the output of ``kvm_stat -1``, ``kvm_stat -l`` or ``kvm_stat -c -l``."""
    log, once = TableRows(LOG), TableRows(ONCE)
    names: list[tuple[str, str]] = []
    keys, sample, glued = set[tuple[str, str]](), 0, 0
    for line in lines:
        text = line.strip()
        if not text:
            continue
        if match := _CSV_LINE.fullmatch(line) or _LINE.fullmatch(line):
            sample += 1
            _logged(lines, log, names, sample, match)
        elif _STARTED.fullmatch(line):
            raise lines.fault(line, "must be a time and one whole number per name of the banner", "is it complete?")
        elif _CSV_BANNER.fullmatch(text):
            names = _distinct(lines, text.split(",")[1:])
        elif match := _ONCE.fullmatch(text):
            key = _child(match["name"])
            if key in keys:
                raise lines.fault(match["name"], "must occur once", "give the output of one run of kvm_stat -1")
            keys.add(key)
            once.add(*key, lines.whole(match["value"], "value"), lines.signed(match["difference"], "difference"))
        elif _GLUED.fullmatch(text):
            glued += 1
        elif _BANNER.fullmatch(line if line.endswith(" ") else f"{line} "):
            names = _distinct(lines, text.split())
        elif sample or len(once):
            raise lines.fault(line, "is not a line of kvm_stat", "is the line complete?")
        else:
            break
    if not len(log) and not len(once):
        raise ForeignText("the output of kvm_stat -1, -l or -c -l")
    warnings = [f"lines left out, since their two numbers are not separated: {glued}"] if glued else []
    changes = log.table("log", "kvm_stat: changes between consecutive lines of the log", ("sample", "name", "reason"))
    values = once.table("once", "kvm_stat -1: values, and changes within one second", ("name", "reason"))
    return Contents((changes, values), tuple(warnings))


def _logged(lines: Lines, log: TableRows, names: list[tuple[str, str]], sample: int, match: re.Match[str]) -> None:
    """Store a line of a log; its numbers are in the order of the banner."""
    cells = re.split(r"[ ,]+", match["cells"].strip(" ,"))
    if len(cells) != len(names):
        rule = f"must have as many numbers as the banner before it has names, {len(names)}"
        hint = "is the line complete?" if names else "keep the banner, which kvm_stat writes first"
        raise lines.fault(match[0], rule, hint)
    for (name, reason), cell in zip(names, cells, strict=True):
        log.add(sample, match["time"], name, reason, lines.signed(cell, "difference"))


def _distinct(lines: Lines, names: list[str]) -> list[tuple[str, str]]:
    children = [_child(name) for name in names]
    if len(set(children)) < len(children):
        raise lines.fault(" ".join(names), "each name must be unique", "is the line complete?")
    return children


def _child(text: str) -> tuple[str, str]:
    """Split a name into event and reason: ``kvm_exit(HLT)`` is a child of ``kvm_exit``."""
    match = _CHILD.fullmatch(text)
    if match is None:
        return sys.intern(text), "all"
    return sys.intern(match["name"]), sys.intern(match["reason"] or "all")
