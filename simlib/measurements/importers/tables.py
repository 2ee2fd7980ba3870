# SPDX-License-Identifier: BSD-3-Clause
"""What an import gives: tables whose columns are described, and the files written from them."""

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
from simlib._lib.files import end_move, write_together
from simlib._lib.version import __version__
from simlib.measurements.importers.lines import LARGEST, Lines
from simlib.measurements.units import suffix_of, unit_of

VERSION = 1
"""Version of the importers, written into each descriptor: another number, other columns."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
_COLUMN = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_TYPES = {"text": "string", "whole": "integer", "number": "number"}


@dataclass(frozen=True)
class Column:
    """One column of an imported table."""

    name: str
    """Its name, with its unit at the end."""
    kind: str
    """``"text"``, ``"whole"`` or ``"number"``."""
    description: str
    optional: bool = False
    """Whether a cell may be empty."""
    unit: str = "count"
    """Unit of a number whose name carries none."""

    def field(self) -> dict[str, Any]:
        """Field of a Frictionless table schema."""
        unit = "none"
        if self.kind != "text":
            unit = unit_of("import", self.name, None if suffix_of(self.name) else self.unit)
        described: dict[str, Any] = {
            "name": self.name, "type": _TYPES[self.kind], "unit": unit, "description": self.description,
        }  # fmt: skip
        if not self.optional:
            described["constraints"] = {"required": True}
        return described


@dataclass(frozen=True, eq=False)
class ImportedTable:
    """One imported table."""

    name: str
    """What its rows are (``"waits"``)."""
    title: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns that together identify a row."""
    frame: pd.DataFrame
    csv: str = ""
    """The rows as CSV, if they were written so as they came."""

    def __len__(self) -> int:
        return len(self.frame)


class TableRows:
    """Rows of a table while they are found: columns of packed numbers, not a tuple a row.

    - `as_csv`: whether to write them as CSV when they come, too, so that the end, which a signal may ask for, is short.

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
        """Add a row, a value a column; a missing value is None, or NaN for a number that is not whole."""
        for cells, value in zip(self._cells, values, strict=True):
            cells.append(value)
        if self.as_csv:
            self._writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in values])

    def take(self, lines: Lines, found: re.Match[str], **known: Any) -> None:
        """Add a row: a line's named groups hold cells, by the names of their columns, and `known` has the others."""
        self.add(
            *(
                known[column.name] if column.name in known else _cell(lines, column, found[column.name])
                for column in self.columns
            )
        )

    def table(self, name: str, title: str, key: Iterable[str]) -> ImportedTable:
        """The rows as a table."""
        frame = pd.DataFrame({c.name: _series(c, cells) for c, cells in zip(self.columns, self._cells, strict=True)})
        return ImportedTable(name, title, self.columns, tuple(key), frame, self._text.getvalue())


def _cell(lines: Lines, column: Column, text: str | None) -> Any:
    """What a piece of a line is in a column; None, if the line does not have it, is a missing value."""
    if column.kind == "text":
        return sys.intern(text or "")
    if text is None:
        return None if column.kind == "whole" else math.nan
    return lines.whole(text, column.name) if column.kind == "whole" else lines.decimal(text, column.name)


def _store(column: Column) -> Any:
    """Where the cells of a column are collected."""
    if column.kind == "text" or (column.kind == "whole" and column.optional):
        return []
    return array("q" if column.kind == "whole" else "d")


def _series(column: Column, cells: Any) -> Any:
    """Cells of a column as pandas keeps them."""
    if column.kind == "text":
        return pd.Series(cells, dtype=object)
    if column.kind == "whole":
        return pd.array(cells, dtype="Int64") if column.optional else np.array(cells, dtype=np.int64)
    return np.array(cells, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader found in a log."""

    tables: tuple[ImportedTable, ...]
    """The main one first; a table without rows is left out of an import."""
    warnings: tuple[str, ...] = ()
    """What was lost, dropped or odd, in a sentence each."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """What the log says of how it was made."""


@dataclass(frozen=True, eq=False)
class Imported:
    """An imported log. Made by `simlib.measurements.importers.import_log`."""

    kind: str
    source: str
    """Name of its file, without folders."""
    sha256: str
    """Checksum of the file; empty if there was none."""
    tables: dict[str, ImportedTable]
    """By name, the main one first; none is empty."""
    warnings: tuple[str, ...]
    """What was lost, dropped or odd."""
    setup: Mapping[str, Any]
    """What the log says of how it was made."""
    hardware: str = "not stated"
    command: str = "not stated"

    @property
    def main(self) -> ImportedTable:
        """The table that the import is about."""
        return next(iter(self.tables.values()))

    def with_columns(self, values: Mapping[str, str]) -> Imported:
        """The same with constant columns in front of every table, for what the log does not say.

        Raises `InputError` if a name is no column's, is taken, or a number lacks its unit.

        >>> from simlib.measurements import import_text
        >>> import_text("kvm-stats", "remote_tlb_flush: 96\\n").with_columns({"vcpus": "8"}).main.frame
           vcpus  run  when scope              name  value
        0      8    1   end    vm  remote_tlb_flush     96
        """
        added = [_constant(name, value) for name, value in values.items()]
        columns, constants = tuple(column for column, _ in added), {column.name: value for column, value in added}
        tables = {}
        for name, table in self.tables.items():
            for taken in constants.keys() & set(table.frame.columns):
                rule = f"the table {name!r} has this column"
                raise InputError("column", taken, rule, "choose another name", flag="--set")
            frame = table.frame.assign(**constants)[[*constants, *table.frame.columns]]
            key = (*constants, *table.key)
            tables[name] = replace(table, frame=frame, columns=columns + table.columns, key=key, csv="")
        return replace(self, tables=tables)


def _constant(name: str, value: str) -> tuple[Column, Any]:
    """Column and value of one ``NAME=VALUE``."""
    what, flag, cure, option = f"column {name}", f"--set {name}", 'write {"vcpus": "8"}', "write --set vcpus=8"
    if not _COLUMN.fullmatch(name):
        rule = "the name of a column must be small letters, digits and _"
        raise InputError("column", name, rule, cure, option, "--set")
    if not value or value != value.strip() or not value.isprintable():
        raise InputError(what, repr(value), "must be a number or a word", cure, option, flag)
    try:
        number = float(value)
    except ValueError:
        return Column(name, "text", "given at the import"), value
    if not 0 <= number <= LARGEST:
        raise InputError(what, value, "must be from 0 to 2^53", "correct it", flag=flag)
    whole = re.fullmatch(r"\d+", value, re.ASCII) is not None
    column = Column(name, "whole" if whole else "number", "given at the import")
    column.field()  # says so if the unit is missing or wrong
    return column, int(value) if whole else number


def write_imported(imported: Imported, folder: str | Path, name: str = "") -> list[Path]:
    """Write an import as measurement files: a CSV and its descriptor for each table, beside and renamed.

    Returns: The CSV files, the main one first. Raises `InputError` if the name is unfit, the folder cannot be written,
    or a file of that name is there that is no import.

    - `name`: name of the main table's files; the others are ``<name>-<table>``. Default: the log's own.

    >>> import tempfile
    >>> from simlib.measurements import check, import_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, = write_imported(import_text("kvm-stats", "remote_tlb_flush: 96\\n"), folder, "mine")
    ...     print(path.name, check(path)[0])
    mine.csv mine: 1 rows, 5 columns, types and units from its descriptor
    """
    folder, name = Path(folder), name or default_name(imported.source)
    if not _NAME.fullmatch(name):
        raise InputError("name", name, "must be small letters, digits, - and _", "choose another name", flag="--name")
    stems = {table: name if table == imported.main.name else f"{name}-{table}" for table in imported.tables}
    end_move(folder)
    texts = dict[str, str]()
    for table, stem in stems.items():
        rows = imported.tables[table]
        _refuse_foreign(folder / f"{stem}.csv")
        text = rows.csv or rows.frame.to_csv(index=False, lineterminator="\n")
        texts |= measured_files(stem, rows.title, _about(imported, rows), rows.columns, rows.key, text)
    return [path for path in write_together(folder, texts) if path.suffix == ".csv"]


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that no import has written: the log itself, a published table."""
    described = path.with_suffix(".json")
    for file in (path, described):
        if not file.exists():
            continue
        try:
            ours = "import" in json.loads(described.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError):
            ours = False
        if not ours:
            rule, cure = "a file is there already that was not imported", "choose another name or folder"
            raise InputError("output", str(file), rule, cure, "choose another --name or --out")


def default_name(source: str) -> str:
    """Name for files from the name of a log.

    >>> default_name("Trace 1.txt"), default_name("standard input")
    ('trace-1', 'standard-input')
    """
    stem = Path(source).stem.lower()
    return re.sub(r"[^a-z0-9_-]+", "-", stem, flags=re.ASCII).strip("-_") or "imported"


def _about(imported: Imported, table: ImportedTable) -> dict[str, Any]:
    return {
        "source": {"subject": imported.source} | ({"sha256": imported.sha256} if imported.sha256 else {}),
        "hardware": imported.hardware,
        "command": imported.command,
        "import": {
            "kind": imported.kind, "table": table.name, "rows": len(table), "version": VERSION, "simlib": __version__,
        },
        "setup": dict(imported.setup),
        "notes": [],
        "caveats": list(imported.warnings),
    }  # fmt: skip


def measured_files(
    stem: str, title: str, about: Mapping[str, Any], columns: Iterable[Column], key: Iterable[str], text: str
) -> dict[str, str]:
    """The files of a measured table: its CSV `text`, and its Frictionless table resource, with `about` in it."""
    form = {"type": "table", "format": "csv", "mediatype": "text/csv", "encoding": "utf-8", "kind": "measured"}
    schema = {"fields": [column.field() for column in columns], "primaryKey": list(key)}
    described = {"name": stem, "title": title, "path": f"{stem}.csv", **form, **about, "schema": schema}
    return {f"{stem}.csv": text, f"{stem}.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n"}


def predicted_files(
    stem: str,
    title: str,
    about: Mapping[str, Any],
    columns: Iterable[Column],
    key: Iterable[str],
    predicted: pd.DataFrame,
    used: Iterable[Path],
) -> dict[str, str]:
    """The same of what is predicted today; `used`: the files that it is predicted from, whose digests are kept."""
    described = {
        "kind": "simulated",
        "hardware": "none: simulated",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "simlib": __version__,
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in used},
        **about,
    }
    text = predicted.to_csv(index=False, float_format="%.5g", lineterminator="\n")
    return measured_files(stem, title, described, columns, key, text)
