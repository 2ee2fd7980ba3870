# SPDX-License-Identifier: BSD-3-Clause
"""One table of measurements or several, and which of their rows are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib.measurements import MeasurementTable, as_table, parse_condition

OneTable = MeasurementTable | pd.DataFrame | str | Path
"""A table of measurements, a DataFrame by the same rules, a CSV file, or the name of a table in data/."""

Tables = OneTable | Sequence[OneTable] | Mapping[str, OneTable]
"""One table, several, or several by names of one's own."""

Conditions = str | Mapping[str, str]
"""A condition on the rows of every table, or one for each table by its name; that of ``""`` is for all others."""


def read_tables(tables: Tables) -> tuple[MeasurementTable, ...]:
    """The tables, each with a name that no other one has.

    >>> frame = pd.DataFrame({"vcpus": [1, 2], "dirty_memory_time_ms": [900, 1200]})
    >>> [table.name for table in read_tables(["arm64-dirty-memory-time", frame, frame])]
    ['arm64-dirty-memory-time', 'DataFrame', 'DataFrame 2']
    >>> [table.name for table in read_tables({"mine": frame})]
    ['mine']
    """
    if isinstance(tables, Mapping):
        return tuple(replace(as_table(table), name=name) for name, table in tables.items())
    given = [tables] if isinstance(tables, MeasurementTable | pd.DataFrame | str | Path) else list(tables)
    if not given:
        raise InputError("tables", "", "must name at least one table of measurements")
    found: dict[str, MeasurementTable] = {}
    for one in given:
        table = as_table(one)
        name, number = table.name, 2
        while name in found:
            name, number = f"{table.name} {number}", number + 1
        found[name] = replace(table, name=name)
    return tuple(found.values())


def select_rows(tables: Sequence[MeasurementTable], select: Conditions) -> tuple[MeasurementTable, ...]:
    """The tables with those rows that a condition selects."""
    texts = conditions_of("select", select, tables)
    return tuple(table.select(text) for table, text in zip(tables, texts, strict=True))


def conditions_of(what: str, given: Conditions, tables: Sequence[MeasurementTable]) -> list[str]:
    """The condition of each table; `what` they are is ``train`` or ``select``.

    Raises `InputError` if a condition is for a table that is not there, or names a column that a table lacks: nothing
    is left out in silence, so that table needs a condition of its own.
    """
    names = [table.name for table in tables]
    if isinstance(given, Mapping):
        for name in given:
            if name and name not in names:
                raise InputError(f"{what} of {name}", name, "is none of the tables", nearest(name, names))
        texts = [given.get(name, given.get("", "")) for name in names]
    else:
        texts = [given] * len(names)
    for table, text in zip(tables, texts, strict=True):
        lacking = [c for c in parse_condition(text).columns() if c not in table.frame.columns]
        if lacking and len(tables) > 1:
            raise InputError(
                f"{what} of {table.name}", text, f"the table has no column {', '.join(lacking)}",
                f'give it a condition of its own: {what}={{"{table.name}": "…", "": "{text}"}}',
                f'give it a condition of its own: --{what} "{table.name}:…"', f"--{what}",
            )  # fmt: skip
    return texts


def split_conditions(what: str, given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Conditions by table out of ``CONDITION`` and ``TABLE:CONDITION``, as the command line has them."""
    found: dict[str, str] = {}
    for text in given:
        before, colon, after = text.partition(":")
        name = before.strip() if colon and not set(before) & set("'\"<>=!()[]") else ""
        if name and name not in names:
            raise InputError(f"--{what}", text, f"{name!r} is none of the tables", nearest(name, names))
        if name in found:
            raise InputError(
                f"--{what}", text, f"a second condition for {name or 'all tables'}", "join them by `and` or `or`"
            )
        found[name] = after.strip() if name else text
    return found


def one_or_all(conditions: Mapping[str, str]) -> Conditions:
    """A single condition as such, if none is for one table alone.

    >>> one_or_all({"": "vcpus <= 8"}), one_or_all({}), one_or_all({"mine": "vcpus <= 8"})
    ('vcpus <= 8', '', {'mine': 'vcpus <= 8'})
    """
    return conditions if any(conditions) else conditions.get("", "")
