# SPDX-License-Identifier: BSD-3-Clause
"""Tables of measurements for a calibration, and the conditions on their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.measurements import MeasurementTable, as_table, parse_condition

TableSource = MeasurementTable | pd.DataFrame | str | Path
"""Table of measurements, DataFrame with the same columns, CSV file, or name of a table in data/."""

Tables = TableSource | Sequence[TableSource] | Mapping[str, TableSource]
"""One table, a sequence of tables, or a mapping from names to tables."""

Conditions = str | Mapping[str, str]
"""Condition on the rows of all tables, or a mapping from names of tables (``""``: all others) to conditions."""


def read_tables(tables: Tables) -> tuple[MeasurementTable, ...]:
    """Read the tables and give them distinct names.

    >>> frame = pd.DataFrame({"vcpus": [1, 2], "dirty_memory_time_ms": [900, 1200]})
    >>> [table.name for table in read_tables(["arm64-dirty-memory-time", frame, frame])]
    ['arm64-dirty-memory-time', 'DataFrame', 'DataFrame 2']
    >>> [table.name for table in read_tables({"mine": frame})]
    ['mine']
    """
    if isinstance(tables, Mapping):
        return tuple(replace(as_table(table), name=name) for name, table in tables.items())
    sources = [tables] if isinstance(tables, MeasurementTable | pd.DataFrame | str | Path) else list(tables)
    if not sources:
        raise InputError("tables", "", "must name at least one table of measurements")
    named: dict[str, MeasurementTable] = {}
    for table in map(as_table, sources):
        name, number = table.name, 2
        while name in named:
            name, number = f"{table.name} {number}", number + 1
        named[name] = replace(table, name=name)
    return tuple(named.values())


def select_rows(tables: Sequence[MeasurementTable], select: Conditions) -> tuple[MeasurementTable, ...]:
    """Return the tables, restricted to the rows that the conditions select."""
    texts = conditions_of("select", select, tables)
    return tuple(table.select(text) for table, text in zip(tables, texts, strict=True))


def conditions_of(option: str, given: Conditions, tables: Sequence[MeasurementTable]) -> list[str]:
    """Return the condition of each table; `option` is ``train`` or ``select``.

    Raises `InputError` if a condition is for an unknown table, or names a column that a table lacks: rows are never
    skipped silently, so such a table needs a separate condition.
    """
    names = [table.name for table in tables]
    if isinstance(given, Mapping):
        for name in given:
            if name and name not in names:
                raise InputError(f"{option} of {name}", name, "is not one of the tables", nearest(name, names))
        texts = [given.get(name, given.get("", "")) for name in names]
    else:
        texts = [given] * len(names)
    for table, text in zip(tables, texts, strict=True):
        lacking = [c for c in parse_condition(text).columns() if c not in table.frame.columns]
        if lacking and len(tables) > 1:
            raise InputError(
                f"{option} of {table.name}", text, f"the table has no column {', '.join(lacking)}",
                f'give this table a separate condition: {option}={{"{table.name}": "…", "": "{text}"}}',
                f'give this table a separate condition: --{option} "{table.name}:…"', f"--{option}",
            )  # fmt: skip
    return texts


def split_conditions(option: str, given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Parse ``CONDITION`` and ``TABLE:CONDITION`` of the command line into conditions by table."""
    conditions: dict[str, str] = {}
    for text in given:
        prefix, colon, condition = text.partition(":")
        name = prefix.strip() if colon and not set(prefix) & set("'\"<>=!()[]") else ""
        if name and name not in names:
            raise InputError(f"--{option}", text, f"{name!r} is not one of the tables", nearest(name, names))
        if name in conditions:
            raise InputError(
                f"--{option}", text, f"is a second condition for {name or 'all tables'}", "join both with `and` or `or`"
            )
        conditions[name] = condition.strip() if name else text
    return conditions


def single_condition(conditions: Mapping[str, str]) -> Conditions:
    """Return the condition for all tables as a string, or the conditions if one of them names a table.

    >>> single_condition({"": "vcpus <= 8"}), single_condition({}), single_condition({"mine": "vcpus <= 8"})
    ('vcpus <= 8', '', {'mine': 'vcpus <= 8'})
    """
    return conditions if any(conditions) else conditions.get("", "")
