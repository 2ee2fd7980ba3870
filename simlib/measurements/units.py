# SPDX-License-Identifier: BSD-3-Clause
"""Units of measurement columns, stated at the end of each column's name.

``dirty_memory_time_ms`` is in milliseconds, ``memory_gib`` in GiB. Counts (``vcpus``, ``contentions``) have no unit and
no suffix.
"""

from __future__ import annotations

from simlib._lib.errors import InputError

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12}
"""Units per second, by the suffix of a time column."""

SUFFIXES = {suffix: suffix for suffix in PER_SECOND} | {"cycles": "cycles", "percent": "%", "ratio": "1", "bytes": "B"}
SUFFIXES |= {unit.lower(): unit for unit in ("KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB", "bits", "pages")}
SUFFIXES |= {"mhz": "MHz", "ghz": "GHz", "per_s": "1/s", "kops_per_s": "Kops/s"}
SUFFIXES |= {"mib_per_s": "MiB/s", "gib_per_s": "GiB/s"}
"""Symbol of the unit in a descriptor, by the suffix of a column."""

COUNT_UNITS = ("count", "1", "not stated")
"""Units of numbers whose column has no suffix."""

KEY_COUNTS = frozenset({
    "vcpus", "cores", "sockets", "threads", "nodes", "iteration", "iterations", "run", "runs", "repetition", "seed",
    "configuration", "slot", "pass",
})  # fmt: skip
"""Counts that identify a row, recognised without a descriptor."""

OUTCOME_COUNTS = frozenset({
    "contentions", "acquisitions", "acquired", "contended", "bounces", "faults", "flushes", "splits", "yields", "exits",
    "samples",
})  # fmt: skip
"""Counts that are outcomes, recognised without a descriptor."""

_DURATION_WORDS = frozenset({"time", "latency", "duration", "downtime"})


def suffix_of(column: str) -> str | None:
    """Unit suffix of a column's name: the longest key of `SUFFIXES` that matches, or None."""
    matches = [suffix for suffix in SUFFIXES if column.endswith(f"_{suffix}")]
    return max(matches, key=len) if matches else None


def is_time(column: str) -> bool:
    """True if the column holds a time that can be converted to seconds."""
    return suffix_of(column) in PER_SECOND


def names_duration(column: str) -> bool:
    """True if the column's name denotes a time, with or without a unit, such as ``dirty_memory_time_min``."""
    return not _DURATION_WORDS.isdisjoint(column.split("_"))


def stem_of(column: str) -> str:
    """Name of the column without its unit suffix."""
    suffix = suffix_of(column)
    return column.removesuffix(f"_{suffix}") if suffix else column


def unit_of(where: str, column: str, declared: str | None = None) -> str:
    """Unit of a column of numbers, from its name and the unit that the descriptor declares.

    Returns: Symbol of the unit; ``"count"`` for a number without a unit. Raises `InputError` if the name has no known
    unit and is not that of a count, or if the descriptor and the name state different units.

    >>> unit_of("a.csv", "clear_time_s"), unit_of("a.csv", "vcpus")
    ('s', 'count')
    >>> unit_of("a.csv", "clear_time_s", "ms")
    Traceback (most recent call last):
    simlib.InputError: a.csv, column clear_time_s = ms: the descriptor's unit must equal
    that of the name, 's'; rename the column or correct its unit
    """
    suffix = suffix_of(column)
    if suffix is not None:
        if declared not in (None, SUFFIXES[suffix]):
            rule = f"the descriptor's unit must equal that of the name, {SUFFIXES[suffix]!r}"
            raise InputError(f"{where}, column {column}", declared, rule, "rename the column or correct its unit")
        return SUFFIXES[suffix]
    is_duration = names_duration(column)
    if declared in COUNT_UNITS and not is_duration:
        return str(declared)
    if declared is None and column in KEY_COUNTS | OUTCOME_COUNTS:
        return "count"
    hint = f"use one of the suffixes {', '.join('_' + suffix for suffix in (PER_SECOND if is_duration else SUFFIXES))}"
    hint += "" if is_duration else ", or declare a count with unit 'count' in a descriptor next to the file"
    raise InputError(f"{where}, column", column, "the name of a column of numbers must end with a known unit", hint)
