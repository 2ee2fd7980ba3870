# SPDX-License-Identifier: BSD-3-Clause
"""Tables of an import with their column descriptions, and the files written from them."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
import math
import re
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.errors import InputError
from simlib._lib.files import finish_move, write_together
from simlib._lib.version import __version__
from simlib.measurements.importers.lines import LARGEST, Lines
from simlib.measurements.units import suffix_of, unit_of

VERSION = 1
"""Version of the importers, written into each descriptor; it changes with the columns."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
_COLUMN = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_TYPES = {"text": "string", "whole": "integer", "number": "number"}


@dataclass(frozen=True)
class Column:
    """One column of an imported table."""

    name: str
    """Name of the column, which ends with the unit unless `unit` states it."""
    kind: str
    """``"text"``, ``"whole"`` or ``"number"``."""
    description: str
    optional: bool = False
    """True if a cell may be empty."""
    unit: str = "count"
    """Unit of a number, if the name of its column has no unit."""

    def field(self) -> dict[str, Any]:
        """Return the field of a Frictionless table schema."""
        unit = "none"
        if self.kind != "text":
            unit = unit_of("import", self.name, None if suffix_of(self.name) else self.unit)
        entry = {"name": self.name, "type": _TYPES[self.kind], "unit": unit, "description": self.description}
        return entry | ({} if self.optional else {"constraints": {"required": True}})


@dataclass(frozen=True, eq=False)
class DescribedTable:
    """Table whose columns are described."""

    name: str
    """Name of the table, such as ``"waits"``."""
    title: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns that together identify a row."""
    frame: pd.DataFrame
    csv: str = ""
    """Rows as CSV, if `TableRows` wrote them as they were added; otherwise empty."""

    def __len__(self) -> int:
        return len(self.frame)


class TableRows:
    """Rows of a table under construction, stored as packed columns.

    - `as_csv`: also write each row as CSV when it is added, so that finishing after a signal takes little time.

    >>> rows = TableRows([Column("lock", "text", "the lock"), Column("wait_ns", "whole", "time waited")])
    >>> rows.add("mmu_lock", 1200)
    >>> rows.table("waits", "Waits", ["lock"]).frame
           lock  wait_ns
    0  mmu_lock     1200
    """

    def __init__(self, columns: Iterable[Column], as_csv: bool = False) -> None:
        self.columns, self.as_csv, self._text = tuple(columns), as_csv, io.StringIO()
        self._cells = [_store(column) for column in self.columns]
        self._writer = csv.writer(self._text, lineterminator="\n")
        if as_csv:
            self._writer.writerow([column.name for column in self.columns])

    def __len__(self) -> int:
        return len(self._cells[0])

    def add(self, *values: Any) -> None:
        """Add a row with a value per column; a missing value is None, or NaN for a column of kind ``"number"``."""
        for cells, value in zip(self._cells, values, strict=True):
            cells.append(value)
        if self.as_csv:
            self._writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in values])

    def take(self, lines: Lines, match: re.Match[str], **known: Any) -> None:
        """Add a row from a matched line: its named groups hold cells by column name, and `known` has the others."""
        self.add(*(known[c.name] if c.name in known else _cell(lines, c, match[c.name]) for c in self.columns))

    def table(self, name: str, title: str, key: Iterable[str]) -> DescribedTable:
        """Return the rows as a table."""
        frame = pd.DataFrame({c.name: _series(c, cells) for c, cells in zip(self.columns, self._cells, strict=True)})
        return DescribedTable(name, title, self.columns, tuple(key), frame, self._text.getvalue())


def _cell(lines: Lines, column: Column, text: str | None) -> Any:
    if column.kind == "text":
        return sys.intern(text or "")
    if text is None:
        return None if column.kind == "whole" else math.nan
    return lines.whole(text, column.name) if column.kind == "whole" else lines.decimal(text, column.name)


def _store(column: Column) -> Any:
    listed = column.kind == "text" or (column.kind == "whole" and column.optional)
    return [] if listed else array("q" if column.kind == "whole" else "d")


def _series(column: Column, cells: Any) -> Any:
    if column.kind == "text":
        return pd.Series(cells, dtype=object)
    if column.kind == "whole":
        return pd.array(cells, dtype="Int64") if column.optional else np.array(cells, dtype=np.int64)
    return np.array(cells, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Contents:
    """Content of a log."""

    tables: tuple[DescribedTable, ...]
    """Tables, the main one first; an import leaves out tables without rows."""
    warnings: tuple[str, ...] = ()
    """Warnings about lost, dropped or unusual data."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """Conditions of the measurement that the log states."""


@dataclass(frozen=True, eq=False)
class Imported:
    """An imported log, the result of `simlib.measurements.importers.import_log`."""

    kind: str
    source: str
    """Name of the file, without folders."""
    sha256: str
    """SHA-256 of the file; empty if there was no file."""
    tables: dict[str, DescribedTable]
    """Tables by name, the main one first; none is empty."""
    warnings: tuple[str, ...]
    """Warnings about lost, dropped or unusual data."""
    setup: Mapping[str, Any]
    """Conditions of the measurement that the log states."""
    hardware: str = "not stated"
    command: str = "not stated"

    @property
    def main(self) -> DescribedTable:
        """The main table."""
        return next(iter(self.tables.values()))

    def with_columns(self, values: Mapping[str, str]) -> Imported:
        """Return the import with constant columns prepended to each table, for facts that the log does not state.

        Raises `InputError` if a name is not valid for a column or is in use, or if the unit of a number is missing.

        >>> from simlib.measurements import import_text
        >>> import_text("kvm-stats", "remote_tlb_flush: 96\\n").with_columns({"vcpus": "8"}).main.frame
           vcpus  run  when scope              name  value
        0      8    1   end    vm  remote_tlb_flush     96
        """
        added = [_constant(name, value) for name, value in values.items()]
        columns, constants = tuple(column for column, _ in added), {column.name: value for column, value in added}
        tables = {}
        for name, table in self.tables.items():
            for duplicate in constants.keys() & set(table.frame.columns):
                rule = f"the table {name!r} already has this column"
                raise InputError("column", duplicate, rule, "choose another name", flag="--set")
            frame = table.frame.assign(**constants)[[*constants, *table.frame.columns]]
            key = (*constants, *table.key)
            tables[name] = replace(table, frame=frame, columns=columns + table.columns, key=key, csv="")
        return replace(self, tables=tables)


def _constant(name: str, value: str) -> tuple[Column, Any]:
    where, flag, hint, cli_hint = f"column {name}", f"--set {name}", 'write {"vcpus": "8"}', "write --set vcpus=8"
    if not _COLUMN.fullmatch(name):
        rule = "a column name must begin with a lowercase letter and contain only lowercase letters, digits and _"
        raise InputError("column", name, rule, hint, cli_hint, "--set")
    if not value or value != value.strip() or not value.isprintable():
        rule = "must be a number, or a string without leading or trailing blanks"
        raise InputError(where, repr(value), rule, hint, cli_hint, flag)
    try:
        number = float(value)
    except ValueError:
        return Column(name, "text", "given at the import"), value
    if not 0 <= number <= LARGEST:
        raise InputError(where, value, "must be from 0 to 2^53", "correct it", flag=flag)
    is_whole = re.fullmatch(r"\d+", value, re.ASCII) is not None
    column = Column(name, "whole" if is_whole else "number", "given at the import")
    column.field()  # raises an error if the unit is missing or wrong
    return column, int(value) if is_whole else number


def write_imported(imported: Imported, folder: str | Path, name: str = "") -> list[Path]:
    """Write an import atomically as measurement files: a CSV and its descriptor for each table.

    Returns: The CSV files, the main one first. Raises `InputError` if the name is not valid, the folder cannot be
    written, or a file of that name exists that is not an import.

    - `name`: name of the main table's files; the others are ``<name>-<table>``. Default: the name of the log.

    >>> import tempfile
    >>> from simlib.measurements import check, import_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, = write_imported(import_text("kvm-stats", "remote_tlb_flush: 96\\n"), folder, "mine")
    ...     print(path.name, check(path)[0])
    mine.csv mine: 1 row, 5 columns, types and units from its descriptor
    """
    folder, name = Path(folder), name or default_name(imported.source)
    if not _NAME.fullmatch(name):
        rule = "must begin with a lowercase letter or a digit and contain only lowercase letters, digits and -._"
        raise InputError("name", name, rule, "choose another", flag="--name")
    stems = {table: name if table == imported.main.name else f"{name}-{table}" for table in imported.tables}
    finish_move(folder)
    texts = dict[str, str]()
    for table, stem in stems.items():
        rows = imported.tables[table]
        _refuse_foreign(folder / f"{stem}.csv")
        text = rows.csv or rows.frame.to_csv(index=False, lineterminator="\n")
        texts |= measured_files(stem, rows.title, _about(imported, rows), rows.columns, rows.key, text)
    return [path for path in write_together(folder, texts) if path.suffix == ".csv"]


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that was not written by an import, such as the log itself or a published table."""
    descriptor = path.with_suffix(".json")
    for file in (path, descriptor):
        if not file.exists():
            continue
        try:
            imported = "import" in json.loads(descriptor.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError):
            imported = False
        if not imported:
            rule, hint = "the file exists and was not written by an import", "choose another name or folder"
            raise InputError("output", str(file), rule, hint, "choose another --name or --out")


def default_name(source: str) -> str:
    """Derive a file name from the name of a log.

    >>> default_name("Trace 1.txt"), default_name("standard input")
    ('trace-1', 'standard-input')
    """
    stem = Path(source).stem.lower()
    return re.sub(r"[^a-z0-9_-]+", "-", stem, flags=re.ASCII).strip("-_") or "imported"


def _about(imported: Imported, table: DescribedTable) -> dict[str, Any]:
    source = {"subject": imported.source} | ({"sha256": imported.sha256} if imported.sha256 else {})
    about = {"kind": imported.kind, "table": table.name, "rows": len(table), "version": VERSION, "simlib": __version__}
    origin = {"source": source, "hardware": imported.hardware, "command": imported.command, "import": about}
    return origin | {"setup": dict(imported.setup), "notes": [], "caveats": list(imported.warnings)}


def measured_files(
    stem: str, title: str, about: Mapping[str, Any], columns: Iterable[Column], key: Iterable[str], text: str
) -> dict[str, str]:
    """Files of a measured table: its CSV `text`, and its Frictionless table resource, which contains `about`."""
    form = {"type": "table", "format": "csv", "mediatype": "text/csv", "encoding": "utf-8", "kind": "measured"}
    schema = {"fields": [column.field() for column in columns], "primaryKey": list(key)}
    resource = {"name": stem, "title": title, "path": f"{stem}.csv", **form, **about, "schema": schema}
    return {f"{stem}.csv": text, f"{stem}.json": json.dumps(resource, indent=2, ensure_ascii=False) + "\n"}


def predicted_files(table: DescribedTable, about: Mapping[str, Any], used: Iterable[Path]) -> dict[str, str]:
    """Files of a predicted table, with today's date and the SHA-256 of each file `used` for the prediction."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    provenance = {"kind": "simulated", "hardware": "none: simulated", "date": today, "simlib": __version__}
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in used}
    text = table.frame.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    facts = {**provenance, "sha256": digests, **about}
    return measured_files(table.name, table.title, facts, table.columns, table.key, text)
