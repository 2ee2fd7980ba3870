# SPDX-License-Identifier: BSD-3-Clause
"""The text of a measurement file: a header and rows of cells, complete and readable.

Here a file is only cut into cells. What the cells mean is the matter of its
descriptor (`simlib.measurements.descriptor`).
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter

import pandas as pd

from simlib._lib.errors import InputError

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A number as a cell has it."""


def cut_cells(where: str, text: str) -> pd.DataFrame:
    """Cut the text of a CSV file (commas, a header first, a newline at its end) into cells without blanks around them.

    Returns: Cells as text; the index is the line of the file on which a row ends, the header's being 1. Raises
    `InputError` if the text is cut short, or not a table; `where` is the file, as messages name it.
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
            rule = f"must have {len(header)} cells, as the header has"
            cure = "is the file cut short?" if len(row) < len(header) else "quote a cell that holds a comma"
            raise InputError(f"{where}, row {number}", f"{len(row)} cells", rule, cure)
    if len(lines) == 1:
        raise InputError(where, "a header only", "must have at least one row", "is the file cut short?")
    if not text.endswith(("\n", "\r")):
        number, row = lines[-1]
        rule = "the last line must end with a newline, else it may be cut short"
        cure = "complete the line, or add the newline if it is complete"
        raise InputError(f"{where}, row {number}", ",".join(row), rule, cure)
    numbers, rows = zip(*lines[1:], strict=True)
    return pd.DataFrame(list(rows), index=list(numbers), columns=header, dtype=object)


def _header(where: str, header: list[str]) -> list[str]:
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise InputError(f"{where}, header", header[0], "columns must be separated by commas", "save the file as CSV")
    for name, times in Counter(header).items():
        if not name:
            raise InputError(f"{where}, header", ",".join(header), "every column must have a name", "name it")
        if times > 1:
            raise InputError(f"{where}, header", name, "a column must occur once", "rename or remove one")
    return header
