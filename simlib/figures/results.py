# SPDX-License-Identifier: BSD-3-Clause
"""What every result can do: a short repr, a summary, HTML for a notebook, a figure."""

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
"""Most lines of a repr."""


class Result:
    """A result: what it says, and what can be drawn of it.

    - `FIGURES`: functions of `simlib.figures`, and what gives the table of each: the result to a DataFrame.
    """

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {}

    def summary(self) -> str:
        """The result in plain text."""
        raise NotImplementedError

    def figures(self) -> tuple[str, ...]:
        """Names of the figures that can be drawn of it; the first one is what `plot` draws unless told otherwise."""
        return tuple(self.FIGURES)

    def table_for(self, figure: str) -> pd.DataFrame:
        """The table that a figure of it draws.

        Raises `InputError` if there is no such figure of it.
        """
        if figure not in self.figures():
            raise InputError("figure", figure, f"cannot be drawn of a {type(self).__name__}",
                             nearest(figure, self.figures()))  # fmt: skip
        return self.FIGURES[figure](self)

    def plot(self, figure: str = "", **options: Any) -> go.Figure:
        """Draw it.

        - `figure`: one of `figures`; by default the first.
        - `**options`: of the function of that name in `simlib.figures`.
        """
        from simlib import figures as drawing  # noqa: PLC0415  # Plotly is slow to import

        name = figure or next(iter(self.figures()), "")
        self.table_for(name)
        return getattr(drawing, name)(self, **options)

    def __repr__(self) -> str:
        lines = self.summary().splitlines()
        return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "… .summary() says all"])

    def _repr_html_(self) -> str:
        return Markup("<pre>{}</pre>").format(self.summary())


def rendered(package: str, template: str, *, filters: Mapping[str, Any] | None = None, **values: Any) -> str:
    """A Jinja2 template of a package with its values, of which all text is escaped, and functions that it may name.

    >>> print(rendered("simlib.figures", "result.html.j2", kind="Simulated", what=": <b>", notes=(), tables=()).strip())
    <p><b>Simulated</b>: &lt;b&gt;</p>
    """
    return _template(package, template, tuple((filters or {}).items())).render(**values)


@lru_cache(maxsize=16)
def _template(package: str, name: str, filters: tuple[tuple[str, Any], ...]) -> jinja2.Template:
    """A template, compiled once."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def result_html(kind: str, what: str, notes: Sequence[str], *tables: pd.DataFrame) -> str:
    """A result for a notebook: measured, fitted, predicted or simulated, then what to know of it, then its tables.

    >>> shown = result_html("Predicted", ", 90 % intervals.", ["costs: <x>"], pd.DataFrame({"variant": ["<i>"]}))
    >>> "costs: &lt;x&gt;" in shown, "&lt;i&gt;" in shown, "<i>" in shown
    (True, True, False)
    """
    frames = [html_of(table) for table in tables]
    return rendered("simlib.figures", "result.html.j2", kind=kind, what=what, notes=notes, tables=frames)


def html_of(frame: pd.DataFrame) -> Markup:
    """A table as HTML; texts in it, and names of columns, are escaped.

    >>> "&lt;b&gt;" in html_of(pd.DataFrame({"<b>": ["<i>"]})), "<i>" in html_of(pd.DataFrame({"<b>": ["<i>"]}))
    (True, False)
    """
    return Markup(frame.to_html(index=False, border=0, na_rep=""))  # noqa: S704  # pandas escapes what it holds


def text_of(frame: pd.DataFrame) -> str:
    """A table as text, numbers with four digits.

    >>> print(text_of(pd.DataFrame({"metric": ["zap_time"], "value": [1.23456789]})))
      metric  value
    zap_time  1.235
    """
    return str(frame.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
