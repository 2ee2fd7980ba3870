# SPDX-License-Identifier: BSD-3-Clause
"""Split the text of a measurement file into a header and rows of cells.

The descriptor (`simlib.measurements.descriptor`) defines the meaning of the cells.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter

import pandas as pd

from simlib._lib.errors import InputError

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A number in a cell."""


def cut_cells(where: str, text: str) -> pd.DataFrame:
    """Split the text of a CSV file (commas, a header line, a final newline) into cells without surrounding blanks.

    Returns: Cells as strings; the index is the line of the file on which a row ends, and the header is line 1. Raises
    `InputError` if the text is truncated or is not a table; `where` is the file's name in messages.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[int, list[str]]] = []
    try:
        lines.extend((reader.line_num, [cell.strip() for cell in line]) for line in reader if line)
    except csv.Error as error:
        place = f"{where}, row {reader.line_num}"
        raise InputError(place, str(error), "must be CSV", "close the quotes; is the file complete?") from error
    header = _header(where, lines[0][1])
    for line_number, row in lines[1:]:
        if len(row) != len(header):
            rule = f"must have as many cells as the header, {len(header)}"
            hint = "is the file truncated?" if len(row) < len(header) else "quote a cell that contains a comma"
            raise InputError(f"{where}, row {line_number}", f"{len(row)} cell{'s' * (len(row) != 1)}", rule, hint)
    if len(lines) == 1:
        raise InputError(where, "a header only", "must have at least one row", "is the file truncated?")
    if not text.endswith(("\n", "\r")):
        line_number, row = lines[-1]
        rule = "the last line must end with a newline; without one, the file may be truncated"
        hint = "complete the line, or only add the newline if it is complete"
        raise InputError(f"{where}, row {line_number}", ",".join(row), rule, hint)
    numbers, rows = zip(*lines[1:], strict=True)
    return pd.DataFrame(list(rows), index=list(numbers), columns=header, dtype=object)


def _header(where: str, header: list[str]) -> list[str]:
    if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
        raise InputError(f"{where}, header", header[0], "columns must be separated by commas", "save the file as CSV")
    for name, count in Counter(header).items():
        if not name:
            raise InputError(f"{where}, header", ",".join(header), "every column must have a name", "name the column")
        if count > 1:
            raise InputError(f"{where}, header", name, "a column name must be unique", "rename or remove a column")
    return header
