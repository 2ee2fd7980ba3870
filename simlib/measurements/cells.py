# SPDX-License-Identifier: BSD-3-Clause
"""The text of a measurement file: a header and rows of cells, complete and readable.

Here a file is only cut into cells. What the cells mean is the matter of its
descriptor (`simlib.measurements.descriptor`).
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from simlib.errors import InputError
from simlib.reading import read_text


@dataclass(frozen=True)
class Cells:
    """Header and rows of a CSV file, as text."""

    where: str
    """The file, as messages name it."""
    header: list[str]
    rows: list[list[str]]
    """Cells of each row, as many as the header has."""
    numbers: list[int]
    """Line of the file on which each row ends; the header is line 1."""

    def column(self, name: str) -> list[str]:
        """Cells of one column, from the first row to the last."""
        at = self.header.index(name)
        return [row[at] for row in self.rows]


def read_cells(path: Path) -> Cells:
    """Cut a CSV file (UTF-8, commas, a header first, a newline at its end) into cells without blanks around them.

    Raises `InputError` if the file is missing, empty, not UTF-8, cut short, or not a table.
    """
    return cut_cells(str(path), read_text(path, "a measurement file (CSV)"))


def cut_cells(where: str, text: str) -> Cells:
    """Cut the text of a CSV file into cells; see `read_cells`.

    Examples
    --------
    >>> cut_cells("a.csv", "vcpus,clear_time_s\\n1,0.5\\n").rows
    [['1', '0.5']]
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[int, list[str]]] = []
    try:
        lines.extend((reader.line_num, [cell.strip() for cell in line]) for line in reader if line)
    except csv.Error as error:
        at = f"{where}, row {reader.line_num}"
        raise InputError(at, str(error), "must be CSV", "close the quotes; is the file complete?") from error
    header = _header(where, lines[0][1])
    for number, row in lines[1:]:
        if len(row) != len(header):
            few = len(row) < len(header)
            raise InputError(
                f"{where}, row {number}",
                f"{len(row)} cells",
                f"must have {len(header)} cells, as the header has",
                "is the file cut short?" if few else "quote a cell that holds a comma",
            )
    if len(lines) == 1:
        raise InputError(where, "a header only", "must have at least one row", "is the file cut short?")
    if not text.endswith(("\n", "\r")):
        raise InputError(
            f"{where}, row {lines[-1][0]}",
            ",".join(lines[-1][1]),
            "the last line must end with a newline, else it may be cut short",
            "complete the line, or add the newline if it is complete",
        )
    return Cells(where, header, [row for _, row in lines[1:]], [number for number, _ in lines[1:]])


def _header(where: str, header: list[str]) -> list[str]:
    """Check the names of the columns."""
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise InputError(f"{where}, header", header[0], "columns must be separated by commas", "save the file as CSV")
    for name, times in Counter(header).items():
        if not name:
            raise InputError(f"{where}, header", ",".join(header), "every column must have a name", "name it")
        if times > 1:
            raise InputError(f"{where}, header", name, "a column must occur once", "rename or remove one")
    return header
