# SPDX-License-Identifier: BSD-3-Clause
"""What a section is made of: prose, notes, tables, charts. All text is escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from simlib.errors import InputError
from simlib.figures.style import MODEBAR

_MARK = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(((?:https?://|#)[^)\s]+)\)")
_MISSING = "–"


def prose_html(text: str) -> Markup:
    """Paragraphs and lists of plain text as HTML.

    A blank line ends a paragraph, lines that begin with ``- `` are a list, `` `code` ``, ``**bold**`` and
    ``[words](https://…)`` are marked. Everything else is escaped.

    Examples
    --------
    >>> print(prose_html("The `mmu_lock` of <x86>:"))
    <p>The <code>mmu_lock</code> of &lt;x86&gt;:</p>
    >>> print(prose_html("- one\\n- two"))
    <ul><li>one</li><li>two</li></ul>
    """
    return Markup("\n").join(part for block in re.split(r"\n\s*\n", text.strip()) if block for part in _parts(block))


def number_text(value: object, digits: int = 4) -> str:
    """A cell of a table: a number with so many significant digits and its thousands apart.

    Parameters
    ----------
    value : object
        A number, a truth value, text, or nothing (None, NaN).
    digits : int
        Significant digits of a number with a fraction; a whole number is always shown in full.

    Examples
    --------
    >>> [number_text(v) for v in (201442478, 0.000123456, 1234.56, float("nan"), True, "spin")]
    ['201,442,478', '0.0001235', '1,235', '–', 'yes', 'spin']
    """
    nan = isinstance(value, float | np.floating) and math.isnan(value)
    if nan or value is None or value is pd.NA or value is pd.NaT:
        return _MISSING
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if pd.api.types.is_integer(value):
        return f"{value:,}".replace("-", "−")
    if pd.api.types.is_float(value):
        number = float(value)
        text = f"{number:,.0f}" if 10 ** (digits - 1) <= abs(number) < 1e15 else f"{number:,.{digits}g}"
        return text.replace("e-", "e−").replace("-", "−")
    return str(value)


@dataclass(frozen=True)
class Prose:
    """Paragraphs and lists, written as in `prose_html`.

    Examples
    --------
    >>> print(Prose("Held < wait").html)
    <p>Held &lt; wait</p>
    """

    text: str
    kind: ClassVar[str] = "prose"

    @property
    def html(self) -> Markup:
        """The text as HTML, escaped."""
        return prose_html(self.text)


@dataclass(frozen=True)
class Note:
    """Something that a reader must not overlook, in a box.

    Attributes
    ----------
    text : str
        Written as in `prose_html`.
    title : str
        Its heading, such as "What the data cannot decide".
    level : str
        ``note`` or ``warning``.

    Examples
    --------
    >>> Note("Two costs trade off.", "What the data cannot decide", "warning").level
    'warning'
    """

    text: str
    title: str = "Note"
    level: str = "note"
    kind: ClassVar[str] = "note"

    def __post_init__(self) -> None:
        """Refuse an unknown level."""
        if self.level not in ("note", "warning"):
            raise InputError("note.level", self.level, "must be note or warning")

    @property
    def html(self) -> Markup:
        """The text as HTML, escaped."""
        return prose_html(self.text)


@dataclass(frozen=True)
class Table:
    """A pandas frame with a caption. Its index is not shown.

    Attributes
    ----------
    digits : int
        Significant digits of numbers with a fraction.
    headings : mapping of str to str
        What to write over a column instead of its name.
    folded : bool
        Whether only the caption is seen until a reader opens it.

    Examples
    --------
    >>> table = Table(pd.DataFrame({"vcpus": [1, 64], "time_s": [0.926, 40.994]}), "Measured")
    >>> table.rows
    [['1', '0.926'], ['64', '40.99']]
    """

    frame: pd.DataFrame
    caption: str
    digits: int = 4
    headings: Mapping[str, str] = field(default_factory=dict)
    folded: bool = False
    kind: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        """Refuse what is not a table."""
        if not isinstance(self.frame, pd.DataFrame):
            raise InputError("table.frame", type(self.frame).__name__, "must be a pandas DataFrame")

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Heading of each column, and whether it holds numbers and so is aligned to the right."""
        numeric = [pd.api.types.is_numeric_dtype(dtype) for dtype in self.frame.dtypes]
        names = [self.headings.get(str(name), str(name)) for name in self.frame.columns]
        return list(zip(names, numeric, strict=True))

    @property
    def rows(self) -> list[list[str]]:
        """Every cell as text."""
        columns = [[number_text(v, self.digits) for v in self.frame.iloc[:, i]] for i in range(self.frame.shape[1])]
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def caption_html(self) -> Markup:
        """The caption as HTML, escaped."""
        return _marked(self.caption)


@dataclass(frozen=True)
class Chart:
    """A Plotly figure with a caption that says in words what to see.

    Attributes
    ----------
    caption : str
        For readers who cannot see the figure, too.

    Examples
    --------
    >>> "Plotly.newPlot" in Chart(go.Figure(), "nothing to see").html("figure-1")
    True
    """

    figure: go.Figure
    caption: str
    kind: ClassVar[str] = "chart"

    def __post_init__(self) -> None:
        """Refuse what is not a figure."""
        if not isinstance(self.figure, go.Figure):
            raise InputError("chart.figure", type(self.figure).__name__, "must be a plotly Figure")

    @property
    def height(self) -> int:
        """Height in pixels that the page must keep free."""
        return int(self.figure.layout.height or self.figure.layout.template.layout.height or 450)

    @property
    def caption_html(self) -> Markup:
        """The caption as HTML, escaped."""
        return _marked(self.caption)

    def html(self, name: str) -> Markup:
        """The figure as a ``div`` of that id and the script that fills it; plotly.js itself is not in it."""
        text = self.figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=name,
            default_height=f"{self.height}px",
            config=dict(MODEBAR),
        )
        return Markup(text)  # noqa: S704  # plotly escapes <, > and / within the figure's JSON


@dataclass(frozen=True)
class Listing:
    """Text as it is, such as a file; only its caption is seen until a reader opens it.

    Examples
    --------
    >>> Listing("[guest]\\nvcpus = 2", "The scenario").kind
    'listing'
    """

    text: str
    caption: str
    kind: ClassVar[str] = "listing"

    @property
    def caption_html(self) -> Markup:
        """The caption as HTML, escaped."""
        return _marked(self.caption)


@dataclass(frozen=True)
class Card:
    """A page beside this one: where it is, what it asks and answers, its picture, and the seconds that it took."""

    link: str
    title: str
    question: str
    answer: str
    picture: str
    seconds: float


@dataclass(frozen=True)
class Cards:
    """Links to pages beside this one, each with its question, its answer and its picture."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


Block = Prose | Note | Table | Chart | Listing | Cards
"""Anything that a section may hold; a plain string is taken as `Prose`."""


def _parts(block: str) -> list[Markup]:
    """Paragraphs and lists within lines that no blank line divides."""
    parts: list[Markup] = []
    items: list[Markup] = []
    words: list[str] = []

    def flush() -> None:
        if words:
            parts.append(Markup("<p>{}</p>").format(_marked(" ".join(words))))
        if items:
            parts.append(Markup("<ul>{}</ul>").format(Markup("").join(items)))
        words.clear()
        items.clear()

    for line in map(str.strip, block.splitlines()):
        item = line.startswith("- ")
        if item != bool(items):
            flush()
        if item:
            items.append(Markup("<li>{}</li>").format(_marked(line[2:])))
        else:
            words.append(line)
    flush()
    return parts


def _marked(text: str) -> Markup:
    """Text with its code, bold and links marked and everything else escaped."""
    parts, end = [], 0
    for match in _MARK.finditer(text):
        parts.append(escape(text[end : match.start()]))
        code, bold, words, address = match.groups()
        if code:
            parts.append(Markup("<code>{}</code>").format(code))
        elif bold:
            parts.append(Markup("<strong>{}</strong>").format(bold))
        else:
            parts.append(Markup('<a href="{}">{}</a>').format(address, words))
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
