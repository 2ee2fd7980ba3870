# SPDX-License-Identifier: BSD-3-Clause
"""What every figure asks of the table that it is given: `reads` checks it, column by column, before anything is drawn.

A table that is no DataFrame, lacks a column or has no row, and a value that breaks its column's rule, are an
`InputError` that names the column and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.errors import InputError, nearest

Options = ParamSpec("Options")
Draw = Callable[Concatenate[pd.DataFrame, Options], go.Figure]


@runtime_checkable
class Drawable(Protocol):
    """A result that knows the table of each figure that can be drawn of it, such as `simlib.results.Result`."""

    def table_for(self, figure: str) -> pd.DataFrame:
        """The table that the figure of this name draws."""


Drawn = Callable[Concatenate[pd.DataFrame | Drawable, Options], go.Figure]


class Rule(NamedTuple):
    """What a column of a table must hold, and as what a figure reads it."""

    dtype: type
    check: Callable[[pd.DataFrame, str, str], None] = lambda _frame, _column, _what: None


TEXT = Rule(str)
TRUTH = Rule(bool, lambda frame, column, what: require_truths(frame, [column], what))


def number(least: float = -np.inf, *, gaps: bool = False) -> Rule:
    """Numbers of at least so much, finite unless there may be gaps: as `require_numbers` checks them."""
    return Rule(float, lambda frame, column, what: require_numbers(frame, [column], what, gaps=gaps, least=least))


def word(words: Collection[str]) -> Rule:
    """One of some words: as `require_words` checks them."""
    return Rule(str, lambda frame, column, what: require_words(frame, column, words, what))


def reads(what: str, columns: Mapping[str, Rule], **optional: Any) -> Callable[[Draw[Options]], Drawn[Options]]:
    """Let a figure read a table: its columns, checked and as the types of their rules, and nothing else.

    In place of the table the figure takes a `Drawable`, which knows the table that the figure of this name draws.

    - `what`: the name of the table in an error message.
    - `columns`: what the figure reads.
    - `**optional`: those of the columns that may be missing, and what they hold then.

    >>> @reads("counts", {"vcpus": number(1), "count": number(0)}, count=7)
    ... def counted(rows):
    ...     return go.Figure(go.Bar(x=rows["vcpus"], y=rows["count"]))
    >>> counted(pd.DataFrame({"vcpus": [2]})).data[0].y
    array([7.])
    >>> counted(pd.DataFrame({"vcpus": [0]}))
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: counts.vcpus = 0.0: must be at least 1
    """

    def decorated(draw: Draw[Options]) -> Drawn[Options]:
        @wraps(draw)
        def drawn(table: pd.DataFrame, /, *args: Options.args, **options: Options.kwargs) -> go.Figure:
            return draw(checked(table, columns, what, **optional), *args, **options)

        return draws(drawn)

    return decorated


def checked(table: pd.DataFrame, columns: Mapping[str, Rule], what: str, **optional: Any) -> pd.DataFrame:
    """The columns of a table, each as its rule has it, with an index of their own."""
    rows = require(table, [name for name in columns if name not in optional], what, **optional).reset_index(drop=True)
    for name, rule in columns.items():
        rule.check(rows, name, what)
    return rows.astype({name: rule.dtype for name, rule in columns.items()})


def draws(draw: Draw[Options]) -> Drawn[Options]:
    """Let a figure take a result, which knows the table that the figure of this name draws, in place of the table."""

    @wraps(draw)
    def drawn(table: pd.DataFrame | Drawable, /, *args: Options.args, **options: Options.kwargs) -> go.Figure:
        found = table.table_for(draw.__name__) if isinstance(table, Drawable) else table
        return draw(found, *args, **options)

    return drawn


def require(frame: pd.DataFrame, columns: Iterable[str], what: str, **optional: Any) -> pd.DataFrame:
    """The named columns of a table, and the optional ones with what they hold if the table has none.

    Raises `InputError` if `frame` is not a table, lacks a column, or has no rows.

    >>> require(pd.DataFrame({"vcpu": [1]}), ["vcpus"], "curves")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: curves.vcpus = missing: a column is needed; did you mean 'vcpu'? known: vcpu
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(what, type(frame).__name__, "must be a pandas DataFrame")
    columns = list(columns)
    for column in columns:
        if column not in frame.columns:
            known = nearest(column, map(str, frame.columns)) if len(frame.columns) else "the table has no columns"
            raise InputError(f"{what}.{column}", "missing", "a column is needed", known)
    if frame.empty:
        raise InputError(what, "no rows", "the figure needs at least one row", "check the filter that made the table")
    return frame[columns].assign(**{name: frame.get(name, usual) for name, usual in optional.items()})


def require_numbers(
    frame: pd.DataFrame, columns: Iterable[str], what: str, *, gaps: bool = False, least: float = -np.inf
) -> None:
    """Check that columns hold numbers that are at least `least`, and finite unless there may be gaps.

    Raises `InputError` with the first offending number.

    >>> require_numbers(pd.DataFrame({"count": [3, -1]}), ["count"], "histogram", least=0)
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: histogram.count = -1.0: must be at least 0
    """
    for column in columns:
        try:
            values = frame[column].to_numpy(dtype=float)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}.{column}", str(error), "must hold numbers") from error
        if not gaps and not np.isfinite(values).all():
            bad = values[~np.isfinite(values)][0]
            raise InputError(f"{what}.{column}", float(bad), "must be a finite number", "drop the row or fill it")
        if (values < least).any():
            raise InputError(f"{what}.{column}", float(values[values < least][0]), f"must be at least {least:g}")


def require_words(frame: pd.DataFrame, column: str, words: Collection[str], what: str) -> None:
    """Check that every value of a column is one of `words`.

    Raises `InputError` with the first value that is not known, and the nearest one that is.

    >>> require_words(pd.DataFrame({"kind": ["fited"]}), "kind", ["fitted", "usl"], "curves")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: curves.kind = fited: is not known; did you mean 'fitted'? known: fitted, usl
    """
    for value in frame[column].unique():
        if value not in words:
            raise InputError(f"{what}.{column}", str(value), "is not known", nearest(str(value), words))


def require_truths(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Check that columns hold True or False: "False" as text would be true.

    Raises `InputError` with the first value that is neither.

    >>> require_truths(pd.DataFrame({"best": ["False"]}), ["best"], "costs")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: costs.best = False: must be True or False
    """
    for column in columns:
        for value in frame[column]:
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"{what}.{column}", str(value), "must be True or False")


def in_order(values: Iterable[object]) -> list[str]:
    """Distinct values as text, in order of first appearance.

    >>> in_order(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(str(value) for value in values))
