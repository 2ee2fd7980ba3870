# SPDX-License-Identifier: BSD-3-Clause
"""What every figure asks of the table that it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from simlib.errors import InputError, nearest
from simlib.results import Result

Options = ParamSpec("Options")


def draws(
    figure: Callable[Concatenate[pd.DataFrame, Options], go.Figure],
) -> Callable[Concatenate[pd.DataFrame | Result, Options], go.Figure]:
    """Let a figure take a result, which knows the table that the figure of this name draws, in place of the table."""

    @wraps(figure)
    def drawn(table: pd.DataFrame | Result, /, *args: Options.args, **options: Options.kwargs) -> go.Figure:
        found = table.table_for(figure.__name__) if isinstance(table, Result) else table
        return figure(found, *args, **options)

    return drawn


def require(frame: pd.DataFrame, columns: Iterable[str], what: str, **optional: str | float) -> pd.DataFrame:
    """The named columns of `frame`, or an error that names the first one that is missing.

    Raises `InputError` if `frame` is not a table, lacks a column, or has no rows.

    Parameters
    ----------
    frame : DataFrame
        The table that a figure was given.
    columns : iterable of str
        Columns that the figure reads.
    what : str
        The name of the table in an error message.
    optional
        Further columns, and what they hold if the table has none.

    Examples
    --------
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
    """Check that columns hold finite numbers that are at least `least`.

    Raises `InputError` with the first offending number.

    Parameters
    ----------
    frame : DataFrame
        A table that has the columns.
    columns : iterable of str
        Columns to check.
    what : str
        The name of the table in an error message.
    gaps : bool
        Whether a column may hold NaN or infinity, as the ends of an interval may.
    least : float
        Smallest number allowed.

    Examples
    --------
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

    Examples
    --------
    >>> require_words(pd.DataFrame({"kind": ["fited"]}), "kind", ["fitted", "usl"], "curves")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: curves.kind = fited: is not known; did you mean 'fitted'? known: fitted, usl
    """
    for word in frame[column].unique():
        if word not in words:
            raise InputError(f"{what}.{column}", str(word), "is not known", nearest(str(word), words))


def require_truths(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Check that columns hold True or False: "False" as text would be true.

    Raises `InputError` with the first value that is neither.

    Examples
    --------
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

    Examples
    --------
    >>> in_order(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(str(value) for value in values))
