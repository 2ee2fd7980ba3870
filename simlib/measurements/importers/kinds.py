# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of logs that can be imported, and recognition of a log by its first lines."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from simlib._lib.errors import InputError, nearest, printable
from simlib._lib.parallel import Progress
from simlib.measurements.importers import (
    contention_test,
    dirty_log,
    kvm_stat,
    kvm_stats,
    lock_stat,
    perf_kvm,
    perf_lock,
    perf_trace,
    trace,
)
from simlib.measurements.importers.lines import ForeignText, Lines
from simlib.measurements.importers.tables import Imported


class LogKind(NamedTuple):
    """Kind of log: description, module with the reader and a test of the first lines, and options of the reader."""

    description: str
    module: ModuleType
    options: tuple[str, ...] = ()


KINDS = {
    "lock-stat": LogKind("/proc/lock_stat", lock_stat, ("lock",)),
    "trace-cmd": LogKind("trace-cmd report, or /sys/kernel/tracing/trace", trace),
    "perf-lock": LogKind("perf lock contention, with or without -x", perf_lock),
    "perf-kvm": LogKind("perf kvm stat report", perf_kvm),
    "perf-trace": LogKind("perf trace: lines, summary or both", perf_trace),
    "dirty-log-perf-test": LogKind("the log of the selftest dirty_log_perf_test", dirty_log),
    "contention-test": LogKind("the JSON lines of mmu_lock_contention_test", contention_test, ("histograms",)),
    "kvm-stat": LogKind("kvm_stat -1, -l, or -c -l", kvm_stat),
    "kvm-stats": LogKind("KVM statistics: JSON lines, or NAME: VALUE", kvm_stats, ("histograms",)),
}
"""Kinds of logs by name, in the order in which `sniff` tries them."""

_OTHERS = (
    (r"\s*Name\s+acquired\b.*", "the output of perf lock report", "import the output of perf lock contention instead"),
    (r"(?:\w[\w-]*,)+\w[\w-]*", "a CSV table", "it needs no import: simlib data check FILE"),
    (r"(?i)\s*<(?:!doctype|html).*", "a web page", "save the log itself"),
    (r"==== Test Assertion Failure ====.*", "the message of a failed selftest", "run the test again"),
)


def sniff(head: list[str]) -> str:
    """Recognise the kind of a file by its first lines: a key of `KINDS`, or an empty string if it is unknown."""
    return next((name for name, kind in KINDS.items() if kind.module.looks_like(head)), "")


def import_log(kind: str, path: str | Path, *, progress: Progress | None = None, **options: Any) -> Imported:
    """Import a log from a file, or from standard input (``"-"``).

    Raises `InputError` if the kind or an option is unknown, or for the first fault of the log.

    - `kind`: a key of `KINDS`.
    - `progress`: called from time to time with a description and the completed share of the work.
    - `**options`: options of the kind: ``lock`` (lock-stat), ``histograms`` (kvm-stats, contention-test).

    >>> import_log("lock-stats", "lock_stat.txt")
    Traceback (most recent call last):
    simlib.InputError: kind = lock-stats: is not a kind of log; did you mean 'lock-stat'? known: contention-test,
    dirty-log-perf-test, kvm-stat, kvm-stats, lock-stat, perf-kvm, perf-lock, perf-trace, trace-cmd
    """
    _check(kind, options)
    where = str(path)
    if where == "-":
        return _import(kind, Lines(sys.stdin.buffer, "standard input", None, progress), options)
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size or None
            return _import(kind, Lines(stream, where, size, progress), options)
    except FileNotFoundError:
        raise InputError(where, "missing", "the log must exist", "check the path") from None
    except OSError as error:
        raise InputError(where, error.strerror or "unreadable", "must be a readable file", "check the path") from None


def import_text(kind: str, text: str, **options: Any) -> Imported:
    """Import a log that is in memory; see `import_log`.

    >>> import_text("kvm-stats", "mmu_lock_clear_write_acquired: 96\\n").main.frame[["site", "acquired"]]
        site  acquired
    0  clear        96
    """
    _check(kind, options)
    return _import(kind, Lines.of(text), options)


def _check(kind: str, options: dict[str, Any]) -> None:
    if kind not in KINDS:
        raise InputError("kind", kind, "is not a kind of log", nearest(kind, KINDS))
    for option, value in options.items():
        if option not in KINDS[kind].options:
            owners = " and ".join(name for name, other in KINDS.items() if option in other.options) or "no kind of log"
            raise InputError(option, value, f"does not apply to {kind}", f"it applies to {owners}")


def _import(kind: str, lines: Lines, options: dict[str, Any]) -> Imported:
    """Read the lines; if they are of another kind, name it in the error."""
    try:
        contents = KINDS[kind].module.read_log(lines, **options)
    except ForeignText as foreign:
        raise _foreign(lines, foreign.expected) from None
    source = printable(Path(lines.where).name)
    tables = {table.name: table for table in contents.tables if len(table)}
    return Imported(kind, source, lines.sha256, tables, contents.warnings, contents.setup)


def _foreign(lines: Lines, expected: str) -> InputError:
    kind = sniff(lines.head)
    if kind:
        hint = f"import it with: simlib data import {kind} {lines.where if lines.where.count(' ') == 0 else 'PATH'}"
        return InputError(lines.where, KINDS[kind].description, f"must be {expected}", hint)
    for line in lines.head[:5]:
        for pattern, description, hint in _OTHERS:
            if re.fullmatch(pattern, line):
                return InputError(lines.where, description, f"must be {expected}", hint)
    first = next((line.strip() for line in lines.head if line.strip()), "")
    start = first if len(first) <= 48 else first[:40] + " …"
    description = f"a file that begins with {start!r}"
    return InputError(lines.where, description, f"must be {expected}", "give another file or KIND")
