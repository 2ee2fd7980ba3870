# SPDX-License-Identifier: BSD-3-Clause
"""Base class of all results: a short repr, a summary, HTML for a notebook, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

import jinja2
import pandas as pd
from markupsafe import Markup

from simlib._lib.errors import InputError, nearest

if TYPE_CHECKING:
    import plotly.graph_objects as go

LINES = 8
"""Largest number of lines of a repr."""


class Answer(str):
    """Closing answer of a notebook, with numbers from the tables above it; Jupyter displays it after a bold heading.

    >>> Answer("It does.")._repr_markdown_()
    '**Answer.** It does.'
    """

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"**Answer.** {self}"


class Result:
    """Base class of results with a summary and figures.

    - `FIGURES`: names of functions of `simlib.figures`, and for each a function from the result to its table.
    """

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {}

    def summary(self) -> str:
        """Return the result as plain text."""
        raise NotImplementedError

    def figures(self) -> tuple[str, ...]:
        """Return the names of the result's figures; `plot` draws the first one by default."""
        return tuple(self.FIGURES)

    def table_for(self, figure: str) -> pd.DataFrame:
        """Return the table that a figure of the result draws. Raises `InputError` if the result lacks the figure."""
        if figure not in self.figures():
            raise InputError("figure", figure, f"is not a figure of a {type(self).__name__}",
                             nearest(figure, self.figures()))  # fmt: skip
        return self.FIGURES[figure](self)

    def plot(self, figure: str = "", **options: Any) -> go.Figure:
        """Draw a figure.

        - `figure`: one of `figures`; by default the first.
        - `**options`: options of the function of that name in `simlib.figures`.
        """
        from simlib import figures as drawing  # noqa: PLC0415  # Plotly is slow to import

        name = figure or next(iter(self.figures()), "")
        self.table_for(name)
        return getattr(drawing, name)(self, **options)

    def __repr__(self) -> str:
        lines = self.summary().splitlines()
        return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "… .summary() has all lines"])

    def _repr_html_(self) -> str:
        return Markup("<pre>{}</pre>").format(self.summary())


def rendered(package: str, template: str, *, filters: Mapping[str, Any] | None = None, **values: Any) -> str:
    """Render a Jinja2 template of a package with escaped values and additional filters.

    >>> print(rendered("simlib.figures", "result.html.j2", kind="Simulated", what=": <b>", notes=(), tables=()).strip())
    <p><b>Simulated</b>: &lt;b&gt;</p>
    """
    return _template(package, template, tuple((filters or {}).items())).render(**values)


@lru_cache(maxsize=16)
def _template(package: str, name: str, filters: tuple[tuple[str, Any], ...]) -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def result_html(kind: str, what: str, notes: Sequence[str], *tables: pd.DataFrame) -> str:
    """HTML of a result for a notebook: the kind of its numbers (such as ``Predicted``), then notes, then tables.

    >>> html = result_html("Predicted", ", 90 % intervals.", ["costs: <x>"], pd.DataFrame({"variant": ["<i>"]}))
    >>> "costs: &lt;x&gt;" in html, "&lt;i&gt;" in html, "<i>" in html
    (True, True, False)
    """
    frames = [html_of(table) for table in tables]
    return rendered("simlib.figures", "result.html.j2", kind=kind, what=what, notes=notes, tables=frames)


def html_of(frame: pd.DataFrame) -> Markup:
    """Format a table as HTML; its cells and column names are escaped.

    >>> "&lt;b&gt;" in html_of(pd.DataFrame({"<b>": ["<i>"]})), "<i>" in html_of(pd.DataFrame({"<b>": ["<i>"]}))
    (True, False)
    """
    return Markup(frame.to_html(index=False, border=0, na_rep=""))  # noqa: S704  # pandas escapes the cells


def text_of(frame: pd.DataFrame) -> str:
    """Format a table as text, with four significant digits.

    >>> print(text_of(pd.DataFrame({"metric": ["zap_time"], "value": [1.23456789]})))
      metric  value
    zap_time  1.235
    """
    return str(frame.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
