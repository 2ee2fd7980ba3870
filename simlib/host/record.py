# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a watch, written as CSV when they come: the end of a watch, which a signal may ask for, has no more to do."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from simlib.measurements.importers.tables import Column, Rows, Table

TIMES = (
    Column("sample", "whole", "number of the sample, from 1", unit="1"),
    Column("time_s", "number", "when, since the watch began"),
)
INTERVAL = (*TIMES, Column("interval_s", "number", "time since the sample before, of which the differences are"))


class Record(Rows):
    """Rows that are kept as columns and as CSV.

    >>> record = Record([Column("name", "text", "whose"), Column("delay_ns", "whole", "time waited", optional=True)])
    >>> record.add("CPU 0/KVM", 12)
    >>> record.add("a, b", None)
    >>> print(record.table("threads", "Threads", ["name"]).csv)
    name,delay_ns
    CPU 0/KVM,12
    "a, b",
    <BLANKLINE>
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        super().__init__(columns)
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow([column.name for column in self.columns])

    def add(self, *values: Any) -> None:
        """Add a row; a missing value is None, or NaN for a number that is not whole."""
        super().add(*values)
        self._writer.writerow(["" if _missing(value) else value for value in values])

    def table(self, name: str, title: str, key: Iterable[str]) -> Table:
        """The rows as a table."""
        return replace(super().table(name, title, key), csv=self._text.getvalue())


def _missing(value: Any) -> bool:
    """Whether a cell stays empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))
