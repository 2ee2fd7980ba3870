# SPDX-License-Identifier: BSD-3-Clause
"""Tables that fit a terminal: text is wrapped, and columns that still find no room are left out and named."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

WIDTH = 120
"""Columns of text where stdout is no terminal."""

NARROWEST, LONGEST_WORD = 14, 30
"""A column of text is not wrapped to less than this, its heading, or its longest word; longer words are cut."""

GAP = "  "


def terminal_width() -> int:
    """Columns of the terminal; `WIDTH` where there is none."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int
) -> tuple[str, list[str]]:
    """A table of at most so many columns of text, and the names of what found no room.

    - `numeric`: which columns hold numbers: they stand to the right and are never wrapped.

    >>> text, left_out = fitted(["vcpus", "note"], [["8", "one two three four five"]], [True, False], 24)
    >>> print(text)
    vcpus  note
        8  one two three
           four five
    >>> left_out
    []
    """
    shown = len(header)
    widths = _widths(header, rows, numeric, shown, width)
    while shown > 1 and sum(widths) + len(GAP) * (shown - 1) > width:
        shown -= 1
        widths = _widths(header, rows, numeric, shown, width)
    lines = [line for row in [header, *rows] for line in _lines(row[:shown], widths, numeric)]
    return "\n".join(lines) + "\n", list(header[shown:])


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], shown: int, width: int
) -> list[int]:
    """Widths of the first columns: what each needs, the widest text narrowed until they fit, if it can be."""
    needed = [max(len(row[i]) for row in [header, *rows]) for i in range(shown)]
    words = [max((len(word) for row in rows for word in row[i].split()), default=0) for i in range(shown)]
    least = [
        needed[i] if numeric[i] else min(needed[i], max(len(header[i]), NARROWEST, min(words[i], LONGEST_WORD)))
        for i in range(shown)
    ]
    room = width - len(GAP) * (shown - 1)
    while sum(needed) > room:
        widest = max(range(shown), key=lambda i: needed[i] - least[i])
        if needed[widest] <= least[widest]:
            break
        others = sorted((needed[i] for i in range(shown) if i != widest and needed[i] > least[i]), reverse=True)
        step = max(1, min(sum(needed) - room, needed[widest] - max([least[widest], *others[:1]])))
        needed[widest] -= step
    return needed


def _lines(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    """One row, as many lines as its longest cell takes."""
    cells = [[text] if numeric[i] else textwrap.wrap(text, widths[i]) or [""] for i, text in enumerate(row)]
    lines = []
    for number in range(max(map(len, cells))):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        sides = [
            part.rjust(w) if numeric[i] else part.ljust(w)
            for i, (part, w) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append(GAP.join(sides).rstrip())
    return lines
