# SPDX-License-Identifier: BSD-3-Clause
"""Checks of a figure's table: `reads` checks the table, column by column, before anything is drawn.

A table that is not a DataFrame, lacks a column or has no rows, or a value that breaks its column's rule, raises an
`InputError` that names the column and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib._lib.errors import InputError, nearest

Options = ParamSpec("Options")
Draw = Callable[Concatenate[pd.DataFrame, Options], go.Figure]


@runtime_checkable
class Drawable(Protocol):
    """A result with a table for each of its figures, such as `simlib.figures.results.Result`."""

    def table_for(self, figure: str) -> pd.DataFrame:
        """Return the table that the figure of this name draws."""


Drawn = Callable[Concatenate[pd.DataFrame | Drawable, Options], go.Figure]


class ColumnRule(NamedTuple):
    """Rule of a column: the type to which it is converted, and a check of its values."""

    dtype: type
    check: Callable[[pd.Series, str], None] = lambda _values, _where: None


def number(least: float = -np.inf, *, gaps: bool = False) -> ColumnRule:
    """Rule: numbers of at least `least`, finite unless gaps are allowed."""

    def check(values: pd.Series, where: str) -> None:
        try:
            numbers = values.to_numpy(dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(where, str(error), "must contain numbers") from error
        if not gaps and not np.isfinite(numbers).all():
            bad = numbers[~np.isfinite(numbers)][0]
            raise InputError(where, float(bad), "must be a finite number", "drop the row or fill in the number")
        if (numbers < least).any():
            raise InputError(where, float(numbers[numbers < least][0]), f"must be at least {least:g}")

    return ColumnRule(float, check)


def word(words: Collection[str]) -> ColumnRule:
    """Rule: one of several keywords."""

    def check(values: pd.Series, where: str) -> None:
        for value in values.unique():
            if value not in words:
                raise InputError(where, str(value), "is not known", nearest(str(value), words))

    return ColumnRule(str, check)


def _truths(values: pd.Series, where: str) -> None:
    for value in values:
        if not isinstance(value, bool | np.bool_):  # the string "False" would be true
            raise InputError(where, str(value), "must be True or False")


TEXT = ColumnRule(str)
TRUTH = ColumnRule(bool, _truths)
COUNT = number(0)._replace(dtype=int)


def reads(
    what: str, columns: Mapping[str, ColumnRule] | ColumnRule, **optional: Any
) -> Callable[[Draw[Options]], Drawn[Options]]:
    """Decorate a figure function so that it receives only these columns of a table, checked and converted.

    The decorated figure also takes a `Drawable` in place of the table.

    - `what`: name of the table in an error message.
    - `columns`: rules of the columns; a single rule applies to all columns of a matrix, which keeps its index.
    - `**optional`: default values of columns that may be missing.

    >>> @reads("counts", {"vcpus": number(1), "count": number(0)}, count=7)
    ... def counted(rows):
    ...     return go.Figure(go.Bar(x=rows["vcpus"], y=rows["count"]))
    >>> counted(pd.DataFrame({"vcpus": [2]})).data[0].y
    array([7.])
    >>> counted(pd.DataFrame({"vcpus": [0]}))
    Traceback (most recent call last):
    ...
    simlib.InputError: counts.vcpus = 0.0: must be at least 1
    """

    def decorated(draw: Draw[Options]) -> Drawn[Options]:
        @wraps(draw)
        def drawn(table: pd.DataFrame | Drawable, /, *args: Options.args, **options: Options.kwargs) -> go.Figure:
            frame = table.table_for(draw.__name__) if isinstance(table, Drawable) else table
            return draw(checked(frame, columns, what, **optional), *args, **options)

        return drawn

    return decorated


def checked(
    table: pd.DataFrame, columns: Mapping[str, ColumnRule] | ColumnRule, what: str, **optional: Any
) -> pd.DataFrame:
    """Return the columns of a table, checked and converted by their rules; only a matrix keeps its index; see `reads`.

    Raises `InputError` if `table` is not a DataFrame, lacks a column, has no rows, or has a value that breaks a rule.
    """
    if not isinstance(table, pd.DataFrame):
        raise InputError(what, type(table).__name__, "must be a pandas DataFrame")
    rules = dict.fromkeys(table.columns, columns) if isinstance(columns, ColumnRule) else columns
    for column in rules:
        if column not in table.columns and column not in optional:
            known = nearest(column, map(str, table.columns)) if len(table.columns) else "the table has no columns"
            raise InputError(f"{what}.{column}", "missing", "the column is required", known)
    if table.empty:
        raise InputError(what, "no rows", "the figure needs at least one row", "check the filter that made the table")
    rows = table.assign(**{name: table.get(name, default) for name, default in optional.items()})[list(rules)]
    for column, rule in rules.items():
        rule.check(rows[column], f"{what}.{column}")
    rows = rows if isinstance(columns, ColumnRule) else rows.reset_index(drop=True)
    return rows.astype({column: rule.dtype for column, rule in rules.items()})


def in_order(values: Iterable[object]) -> list[str]:
    """Distinct values as strings, in order of first appearance."""
    return list(dict.fromkeys(str(value) for value in values))
