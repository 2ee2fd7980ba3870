# SPDX-License-Identifier: BSD-3-Clause
"""Blocks of a section: prose, notes, tables, charts. All text is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from simlib.figures.style import MODEBAR

_MARK = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(((?:https?://|#)[^)\s]+)\)")
_TAGS = {1: r"<code>\1</code>", 2: r"<strong>\2</strong>", 4: r'<a href="\4">\3</a>'}
"""Replacements, keyed by the last group that `_MARK` matched."""


def prose_html(text: str) -> Markup:
    """Convert paragraphs and lists of plain text to HTML.

    A blank line ends a paragraph; lines that begin with a hyphen and a space form a list. Both may contain the marks of
    `marked`.

    >>> print(prose_html("The `mmu_lock` of <x86>:"))
    <p>The <code>mmu_lock</code> of &lt;x86&gt;:</p>
    >>> print(prose_html("- one\\n- two"))
    <ul><li>one</li><li>two</li></ul>
    """
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        for items, lines in groupby(map(str.strip, block.splitlines()), lambda line: line.startswith("- ")):
            if items:
                rows = Markup("").join(Markup("<li>{}</li>").format(marked(line[2:])) for line in lines)
                parts.append(Markup("<ul>{}</ul>").format(rows))
            else:
                parts.append(Markup("<p>{}</p>").format(marked(" ".join(lines))))
    return Markup("\n").join(parts)


def marked(text: str) -> Markup:
    """Convert text to HTML: `` `code` ``, ``**bold**`` and ``[text](https://…)`` become tags, the rest is escaped.

    >>> print(marked("**<x86>** and [more](https://example.org/?a&b)"))
    <strong>&lt;x86&gt;</strong> and <a href="https://example.org/?a&amp;b">more</a>
    """
    tagged = _MARK.sub(lambda match: match.expand(_TAGS[match.lastindex or 1]), str(escape(text)))
    return Markup(tagged)  # noqa: S704  # the marked text is escaped


def number_text(value: Any, digits: int = 4) -> str:
    """Format a cell of a table: a number with `digits` significant digits and thousands separators.

    - `value`: a number, a truth value, a string, or a missing value (None, NaN).
    - `digits`: significant digits of a number with a fraction; a whole number is always shown in full.

    >>> [number_text(v) for v in (201442478, 0.000123456, 1234.56, float("nan"), True, "spin")]
    ['201,442,478', '0.0001235', '1,235', '–', 'yes', 'spin']
    """
    if pd.isna(value):
        return "–"
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if pd.api.types.is_integer(value):
        return f"{value:,}".replace("-", "−")
    if pd.api.types.is_float(value):
        number = float(value)
        text = f"{number:,.0f}" if 10 ** (digits - 1) <= abs(number) < 1e15 else f"{number:,.{digits}g}"
        return text.replace("-", "−")
    return str(value)


@dataclass(frozen=True)
class Prose:
    """Paragraphs and lists, written as in `prose_html`."""

    text: str
    kind: ClassVar[str] = "prose"


@dataclass(frozen=True)
class Note:
    """A highlighted box: text as in `prose_html`, with a heading."""

    text: str
    title: str = "Note"
    level: Literal["note", "warning"] = "note"
    kind: ClassVar[str] = "note"


@dataclass(frozen=True)
class Table:
    """A pandas frame with a caption. Its index is not shown.

    - `digits`: significant digits of numbers with a fraction.
    - `folded`: true to show only the caption until a reader opens the table.
    """

    frame: pd.DataFrame
    caption: str
    digits: int = 4
    folded: bool = False
    kind: ClassVar[str] = "table"

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Heading of each column, and True if it holds numbers, which are aligned to the right."""
        numeric = [pd.api.types.is_numeric_dtype(dtype) for dtype in self.frame.dtypes]
        return list(zip(map(str, self.frame.columns), numeric, strict=True))

    @property
    def rows(self) -> list[list[str]]:
        """Every cell as a string."""
        return [[number_text(value, self.digits) for value in row] for row in self.frame.itertuples(index=False)]


@dataclass(frozen=True)
class Chart:
    """A Plotly figure with a caption.

    - `caption`: describes the result in words, also for readers who cannot see the figure.
    """

    figure: go.Figure
    caption: str
    kind: ClassVar[str] = "chart"

    def html(self, name: str) -> Markup:
        """Return the figure as a ``div`` with this id and the script that fills it, without plotly.js itself."""
        height = f"{int(self.figure.layout.height or self.figure.layout.template.layout.height or 450)}px"
        config = dict(MODEBAR)  # a copy, as Plotly removes keys
        text = self.figure.to_html(config, full_html=False, include_plotlyjs=False, div_id=name, default_height=height)
        return Markup(text)  # noqa: S704  # plotly escapes <, > and / within the figure's JSON


@dataclass(frozen=True)
class Listing:
    """Verbatim text, such as a file; only the caption is shown until a reader opens it."""

    text: str
    caption: str
    kind: ClassVar[str] = "listing"


@dataclass(frozen=True)
class Card:
    """A linked page: its URL, title, question, answer, picture, and running time in seconds."""

    link: str
    title: str
    question: str
    answer: str
    picture: str
    seconds: float


@dataclass(frozen=True)
class Cards:
    """Links to other pages, each with its question, answer and picture."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


Block = Prose | Note | Table | Chart | Listing | Cards
"""Any block of a section; a plain string is taken as `Prose`."""
