# SPDX-License-Identifier: BSD-3-Clause
"""Measurement table: numbers with their units and source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_text
from simlib.figures.results import html_of, rendered
from simlib.measurements.cells import cut_cells
from simlib.measurements.condition import parse_condition
from simlib.measurements.descriptor import check_cells, implied_descriptor, missing_values, read_descriptor
from simlib.measurements.units import PER_SECOND, SUFFIXES, is_time, stem_of, suffix_of


@dataclass(frozen=True, eq=False, repr=False)
class MeasurementTable:
    """A checked table of measurements, created by `read` or `simlib.measurements.load`.

    - `frame`: the rows. Integers are ``int64``, other numbers and integers with a missing value ``float64`` (missing:
      NaN), strings are as written (missing: empty).
    - `descriptor`: Frictionless descriptor, with source, hardware, command, notes and caveats.
    - `path`: the file that was read.

    >>> from simlib.measurements import load
    >>> table = load("arm64-dirty-memory-time")
    >>> table
    <MeasurementTable arm64-dirty-memory-time: 21 rows; series, vcpus, dirty_memory_time_ms, contentions>
    >>> small = table.select("vcpus <= 4 and series == 'spinlock-old-test'")
    >>> small.column("dirty_memory_time_ms")
    array([ 926., 1189., 2503.])
    >>> small.seconds("dirty_memory_time")
    array([0.926, 1.189, 2.503])
    """

    name: str
    frame: pd.DataFrame
    descriptor: dict[str, Any]
    path: Path

    @property
    def title(self) -> str:
        """One-line title of the table."""
        return str(self.descriptor.get("title", self.name))

    @property
    def source(self) -> dict[str, str]:
        """Source of the numbers: subject, author, date, Message-ID or commit."""
        source = self.descriptor.get("source", {})
        return dict(source) if isinstance(source, dict) else {"subject": str(source)}

    @property
    def hardware(self) -> str:
        """Hardware as its source states it, or ``"not stated"``."""
        return str(self.descriptor.get("hardware", "not stated"))

    @property
    def caveats(self) -> list[str]:
        """Caveats to consider before using the numbers."""
        return [str(caveat) for caveat in self.descriptor.get("caveats", [])]

    @property
    def key(self) -> list[str]:
        """Columns that together identify a row."""
        return list(self.descriptor["schema"].get("primaryKey", []))

    @property
    def units(self) -> dict[str, str]:
        """Unit of each column; ``"none"`` for strings."""
        fields = {field["name"]: field for field in self.descriptor["schema"]["fields"]}
        implied = {name: SUFFIXES.get(suffix_of(name) or "", "none") for name in fields}
        return {name: str(field.get("unit", implied[name])) for name, field in fields.items()}

    def column(self, name: str) -> NDArray[Any]:
        """Return a copy of the values of one column, in the unit at the end of its name."""
        if name not in self.frame.columns:
            hint = nearest(name, map(str, self.frame.columns))
            raise InputError(f"column of {self.name}", name, "does not exist", hint)
        return np.array(self.frame[name])

    def seconds(self, stem: str) -> NDArray[np.float64]:
        """Times of one column, converted to seconds.

        `stem` is the column's name without its unit (``"dirty_memory_time"``), or with it. Raises `InputError` if no
        column, or more than one, contains that time.
        """
        times = [str(column) for column in self.frame.columns if is_time(str(column))]
        matches = [column for column in times if stem in (column, stem_of(column))]
        if not matches:
            raise InputError(f"time of {self.name}", stem, "does not exist", nearest(stem, map(stem_of, times)))
        if len(matches) > 1:
            rule = f"several columns contain this time: {', '.join(matches)}"
            raise InputError(f"time of {self.name}", stem, rule, "name one of them")
        per_second = PER_SECOND[str(suffix_of(matches[0]))]
        return np.array(self.frame[matches[0]], dtype=np.float64) / per_second

    def rows(self, condition: str) -> pd.DataFrame:
        """Return the rows that meet a condition such as ``"vcpus <= 8"`` (see `parse_condition`), numbered from 0."""
        return self.frame[parse_condition(condition).mask(self.frame)].reset_index(drop=True)

    def select(self, condition: str) -> MeasurementTable:
        """Return a table of the rows that meet a condition; see `rows`."""
        return replace(self, frame=self.rows(condition))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"<MeasurementTable {self.name}: {len(self)} rows; {', '.join(map(str, self.frame.columns))}>"

    def _repr_html_(self) -> str:
        source = ", ".join(str(self.source[key]) for key in ("subject", "author", "date") if key in self.source)
        return rendered("simlib.measurements", "table.html.j2", table=self, source=source, rows=html_of(self.frame))


def read(path: str | Path) -> MeasurementTable:
    """Read a measurement file: a tidy CSV file (UTF-8) whose column names end with the unit.

    The descriptor ``<stem>.json`` next to the file is used; without a descriptor, types and units follow from the
    column names. Raises `InputError` for the first fault of the file, with its place, its value, the rule and a hint.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "mine.csv").write_text("vcpus,dirty_memory_time_ms\\n1,900\\n2,1200\\n")
    >>> read(folder / "mine.csv").seconds("dirty_memory_time")
    array([0.9, 1.2])
    """
    path = Path(path)
    return _table(read_text(path, "a measurement file (CSV)"), read_descriptor(path), path)


def from_frame(frame: pd.DataFrame) -> MeasurementTable:
    """Make a checked table from a DataFrame whose column names end with the unit, as in a measurement file.

    Raises `InputError` for the first fault.

    >>> from_frame(pd.DataFrame({"vcpus": [1, 2], "dirty_memory_time_ms": [900, 1200]})).seconds("dirty_memory_time")
    array([0.9, 1.2])
    """
    return _table(frame.to_csv(index=False), None, Path("DataFrame"))


def check(path: str | Path) -> list[str]:
    """Check a measurement file; see `read`.

    Returns: Lines of a report: rows, key, and range and unit of every column of numbers.

    >>> from simlib.measurements import data_dir
    >>> for line in check(data_dir() / "published" / "x86-get-dirty-log-lockless.csv"):
    ...     print(line)
    x86-get-dirty-log-lockless: 2 rows, 3 columns, types and units from its descriptor
    key: variant
    runs: 10 to 10, unit count
    get_dirty_log_time_ns: 4807343 to 9009483, unit ns
    """
    table = read(path)
    described = table.path.with_suffix(".json").exists()
    origin = "from its descriptor" if described else "from the names of its columns"
    rows, columns = (f"{n} {s}{'s' * (n != 1)}" for n, s in zip(table.frame.shape, ("row", "column"), strict=True))
    report = [f"{table.name}: {rows}, {columns}, types and units {origin}", f"key: {', '.join(table.key) or 'none'}"]
    for name, unit in table.units.items():
        values = table.column(name)
        if values.dtype.kind not in "if":
            continue
        present = values[~np.isnan(values)]
        span = f"{present.min():.15g} to {present.max():.15g}" if len(present) else "no values"
        missing = len(values) - len(present)
        report.append(f"{name}: {span}, unit {unit}" + (f", {missing} empty" if missing else ""))
    return report


def _table(text: str, given: dict[str, Any] | None, path: Path) -> MeasurementTable:
    """Check the text of a file against the given descriptor, or the one implied by its column names."""
    where = str(path)
    cells = cut_cells(where, text)
    descriptor = implied_descriptor(where, cells) if given is None else given
    check_cells(where, cells, descriptor)
    missing = missing_values(descriptor)
    types = {field["name"]: field.get("type") for field in descriptor["schema"]["fields"]}
    frame = pd.DataFrame({name: _values(column, types[name], missing) for name, column in cells.items()})
    return MeasurementTable(str(descriptor.get("name", path.stem)), frame, descriptor, path)


def _values(cells: pd.Series[str], kind: str | None, missing: frozenset[str]) -> Any:
    if kind not in ("integer", "number"):
        return ["" if cell in missing else cell for cell in cells]
    if kind == "integer" and missing.isdisjoint(cells):
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    return np.array([np.nan if cell in missing else float(cell) for cell in cells], dtype=np.float64)
