# SPDX-License-Identifier: BSD-3-Clause
"""``perf lock contention``: waits by call site, thread, lock or cgroup.

``print_contention_result()`` in ``tools/perf/builtin-lock.c`` prints them as a table whose times have a unit
(``lock_stat_key_print_time()``), or with ``-x`` as separated values in nanoseconds (``print_lock_stat_csv()``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

from simlib._lib.errors import InputError
from simlib.measurements.importers.lines import LARGEST, ForeignText, Lines, any_line
from simlib.measurements.importers.tables import Column, Contents, TableRows

_KEYS = {
    "contended": Column("contended", "whole", "acquisitions that had to wait"),
    "total wait": Column("total_wait_ns", "whole", "sum of all waits"),
    "max wait": Column("max_wait_ns", "whole", "longest wait"),
    "min wait": Column("min_wait_ns", "whole", "shortest wait"),
    "avg wait": Column("avg_wait_ns", "whole", "average wait"),
}
_WHERE = {
    "type": Column("type", "text", "kind of lock and mode: rwlock:W, spinlock, mutex …"),
    "caller": Column("caller", "text", "call site that waited"),
    "pid": Column("pid", "whole", "thread ID; empty if perf does not know it", optional=True, unit="1"),
    "comm": Column("task", "text", "name of the thread", optional=True),
    "owner": Column("owner", "text", "name of the thread that held the lock", optional=True),
    "address": Column("address", "text", "address of the lock"),
    "symbol": Column("symbol", "text", "name of the lock", optional=True),
    "cgroup": Column("cgroup", "text", "control group", optional=True),
}
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_COLUMN = r"contended|(?:total|max|min|avg) wait"
_HEADER = re.compile(rf"\s*((?:(?:{_COLUMN})\s+)+)(type\s+caller|pid\s+(?:comm|owner)|address\s+symbol|cgroup)\s*")
_CSV = re.compile(rf"# output: (?P<first>{_COLUMN})(?P<separator>.+?) .*")
_CELL = {"contended": r"(\d+)", "wait": r"(\d+(?:\.\d+)?\s+(?:ns|us|ms|s|m|h))"}
_TAIL = {
    "type": r"(\S+)\s+(\S.*)",
    "pid": r"(-?\d+)\s+(.*)",
    "address": r"([0-9a-f]+)\s+(.*?)(?:\s*\(([\w:-]+)\))?",  # the type is printed since Linux 6.4
    "cgroup": r"(.*)",
}
_STACK = re.compile(r"\t\t\t\s*0x[0-9a-f]+  .*")
_BAD = re.compile(r"(?:bad: (?P<bad>\d+), total: (?P<total>\d+)|# debug: total=(?P<all>\d+).*?bad=(?P<of>\d+).*)")
_DEBUG = re.compile("=== output for debug ?===")  # older versions print no space
looks_like = any_line(_HEADER, _CSV)


def read_log(lines: Lines) -> Contents:
    """Read the columns that the output of ``perf lock contention`` contains, with times in nanoseconds.

    perf rounds the times of a table to three or more digits, but not those of ``-x``. Output of the measured command
    before the header is skipped, as are the stacks of ``-v``.
    """
    rows: TableRows | None = None
    names, separator, pattern = list[str](), "", re.compile("")
    stacks = False
    bad = total = 0
    debug = False
    for line in lines:
        text = line.strip()
        if match := _HEADER.fullmatch(line):
            keys = re.findall(_COLUMN, match[1])
            place = match[2].split()
            names = [*keys, *place, *(["type"] if place[0] == "address" else [])]
            fields = [_CELL["contended" if key == "contended" else "wait"] for key in keys]
            pattern = re.compile(r"\s*" + r"\s+".join([*fields, _TAIL[place[0]]]) + r"\s*")
            rows, separator = _under_header(lines, names, rows), ""
        elif match := _CSV.fullmatch(line):
            separator = match["separator"]
            names = [name.strip() for name in line.removeprefix("# output: ").split(separator)]
            stacks = names[-1] == "stacktrace"
            names = names[:-1] if stacks else names
            rows = _under_header(lines, names, rows)
        elif rows is None or not text or _STACK.fullmatch(line):
            continue
        elif bad_match := _BAD.fullmatch(text):
            bad = lines.whole(bad_match["bad"] or bad_match["of"], "bad")
            total = lines.whole(bad_match["total"] or bad_match["all"], "total")
        elif debug or _DEBUG.fullmatch(text):
            debug = True
        else:
            if separator:  # the last cell may contain the separator, unless a stack follows it
                cells = [cell.strip() for cell in line.split(separator, -1 if stacks else len(names) - 1)[: len(names)]]
            else:
                cells = [cell or "" for cell in match.groups()] if (match := pattern.fullmatch(line)) else []
            if len(cells) < len(names):
                hint = "is the line complete? perf --output FILE keeps the output of other programs out"
                raise lines.fault(line, f"must have {', '.join(names)}", hint)
            values = (_value(lines, name, cell, separator != "") for name, cell in zip(names, cells, strict=True))
            rows.add(len(rows) + 1, *values)
    if rows is None:
        raise ForeignText("the output of `perf lock contention`, with its header")
    if not len(rows):
        hint = "record for longer, under load, or without filters"
        raise InputError(lines.where, "a header only", "must have at least one contention", hint)
    grouping = next(name for name in ("caller", "pid", "address", "cgroup") if name in names)
    table = rows.table("contention", f"perf lock contention, by {grouping}", ("entry",))
    return Contents((table,), (f"perf left out {bad} of {total} contentions (bad sequences)",) if bad else ())


def _under_header(lines: Lines, names: list[str], previous: TableRows | None) -> TableRows:
    """Start the rows under a header; refuse unknown titles and a second header."""
    for name in names:
        if name not in _KEYS and name not in _WHERE:
            hint = "select the columns: perf lock contention -F contended,wait_total,wait_max,wait_min,avg_wait"
            raise lines.fault(name, "is not a known column of perf lock contention", hint)
    if previous is not None:
        raise lines.fault("a second header", "must contain the output of one run of perf", "split the file")
    columns = [_KEYS.get(name) or _WHERE[name] for name in names]
    if "address" in names:
        columns = [replace(column, optional=True) if column.name == "type" else column for column in columns]
    return TableRows([Column("entry", "whole", "number of the line in the output, from 1"), *columns])


def _value(lines: Lines, name: str, cell: str, exact: bool) -> int | str | None:
    if name == "contended":
        return lines.whole(cell, name)
    if name == "pid":
        return None if cell == "-1" else lines.whole(cell, name)
    if name not in _KEYS:
        return cell
    if exact:
        return lines.whole(cell, name)
    number, unit = cell.split()
    value = Decimal(number) * _NS[unit]
    if value > LARGEST:
        raise lines.fault(cell, f"{name} must be at most 2^53 ns", "is the number right?")
    return int(value)
