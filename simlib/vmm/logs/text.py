# SPDX-License-Identifier: BSD-3-Clause
"""The text of a log: lines without terminal control sequences, and numbers with units."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_LONG = re.compile(
    r"Migration info for |migration \w+[ ,(]+transferred |Migration running for |Precopy: iter=|"
    r"Migration completed after "
)
"""Records that are longer than a terminal is wide."""

_OWN_LINE = re.compile(r"\W*(?:\d{4}-\d\d-\d\d|[A-Z][a-z]{2} +\d|[A-Za-z][\w -]{0,40}: |\(qemu\)|$)|\{")
"""Beginning of a line that does not continue a wrapped record."""

_NARROW, _WIDE = 60, 320
"""Widths of terminals at which records are wrapped, columns."""

_MOST_PIECES = 12
"""Largest number of lines of a wrapped record."""

BYTES = {
    "b": 1, "byte": 1, "bytes": 1, "kbytes": 2**10, "kb": 2**10, "mb": 2**20, "gb": 2**30,
    **{f"{prefix}ib": 2 ** (10 * (power + 1)) for power, prefix in enumerate("kmgtpe")},
}  # fmt: skip
"""Bytes of a unit. QEMU, libvirt and Proxmox VE write KB or kbytes for 1024 bytes."""

SECONDS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}

NUMBER = r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|nan|inf)"
"""Regular expression of a number, which old versions of QEMU print as -nan."""

_TIME = re.compile(
    r"(?:(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)"
    r"|(?:^|(?<=\[))(?P<epoch>1\d{9}(?:\.\d{1,9})?)(?=\]|\s|$))"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def number(text: str) -> float:
    """Parse a number; NaN if it is not finite.

    >>> number("12.5"), number("-nan"), number("18446744073709547520")
    (12.5, nan, 1.8446744073709548e+19)
    """
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def size(text: str, unit: str) -> float:
    """Parse a number of bytes with its unit; NaN if the unit is unknown.

    >>> size("1.5", "GiB"), size("4", "kbytes")
    (1610612736.0, 4096.0)
    """
    return float(number(text) * BYTES.get(unit.lower().removesuffix("/s"), math.nan))


def digits_error(text: str, unit: str = "B") -> float:
    """Largest rounding error of a printed size, bytes: one unit of its last digit.

    >>> digits_error("16.005", "MiB")
    1048.576
    """
    decimals = len(text.partition(".")[2])
    return float(BYTES.get(unit.lower(), 1) / 10**decimals) if decimals or unit.lower() not in ("b", "bytes") else 0.0


@dataclass(frozen=True)
class LogText:
    r"""Text of a log, with one record a line.

    - `text`: the text after `clean`.

    >>> log = LogText.clean("\x1b[1mTotal:\t5\x1b[0m\r\nDone\r\n")
    >>> log.text
    'Total: 5\nDone\n'
    """

    text: str

    @classmethod
    def clean(cls, raw: str) -> LogText:
        """Return the text without control sequences, with tabs as spaces and wrapped records as one line."""
        text = raw
        if "\x1b" in text:
            text = _CONTROL.sub("", text)
        text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_SPACES)
        return cls(_unwrap(text))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def line_number(self, position: int) -> int:
        """Index of the line at a position."""
        return bisect_right(self._starts, position) - 1

    def line_at(self, position: int) -> str:
        """Line at a position."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        return self.text[start : end if end >= 0 else len(self.text)]

    def time_at(self, position: int) -> float | None:
        """Time stamp in the line at a position, s since 1970; None if it has none.

        >>> LogText("2026-01-02 10:00:01 migration active").time_at(0)
        1767348001.0
        """
        return time_in(self.line_at(position))


_SPACES = {ord("\t"): " ", 0xA0: " ", 0x200B: None, 0xFEFF: None, 0x0B: " ", 0x0C: " ",
           **dict.fromkeys((*range(9), *range(0x0E, 0x20), 0x7F))}  # fmt: skip
"""Characters that are replaced, or removed."""


def time_in(line: str) -> float | None:
    """Return the time stamp in a line, s since 1970; None if it has none. A date without a year is in 1972."""
    match = _TIME.search(line)
    if match is None:
        return None
    try:
        if match["epoch"]:
            return float(match["epoch"])
        if match["iso"]:
            zone = (match["zone"] or "Z").replace("Z", "+00:00")
            stamp = datetime.fromisoformat(match["iso"].replace(" ", "T") + zone)
            return stamp.timestamp() + float("0" + (match["part"] or ".0").replace(",", "."))
        hours, minutes, seconds = map(int, match["clock"].split(":"))
        month = _MONTHS.index(match["month"]) + 1
        return datetime(1972, month, int(match["day"]), hours, minutes, seconds, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _unwrap(text: str) -> str:
    """Join the lines of records that a terminal wrapped.

    It is certain only if the record's first line is as long as the longest line of the text.
    """
    if not _LONG.search(text):
        return text
    lines = text.split("\n")
    width = max(map(len, lines))
    if not _NARROW <= width <= _WIDE:
        return text
    joined: list[str] = []
    row = 0
    while row < len(lines):
        line, row = lines[row], row + 1
        whole = len(line) < width or row == len(lines) or not _LONG.search(line + lines[row])
        pieces = _MOST_PIECES if whole or _LONG.search(lines[row]) else 0
        while pieces < _MOST_PIECES and row < len(lines) and not _LONG.search(lines[row]):
            if _OWN_LINE.match(lines[row]):
                break
            line, row, pieces = line + lines[row], row + 1, pieces + 1
            if len(lines[row - 1]) < width:
                break
        joined.append(line)
    return "\n".join(joined)
