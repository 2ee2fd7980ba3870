# SPDX-License-Identifier: BSD-3-Clause
"""Conditions on rows, such as ``vcpus <= 8 and series == 'rwlock-old-test'``.

The text is read by the small parser below; nothing that a user writes is executed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.errors import InputError, nearest

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>'[^']*'|"[^"]*")
    | (?P<operator>==|!=|<=|>=|<|>)
    | (?P<comma>,)
    | (?P<word>[^\s'",<>=!]+)
    | (?P<other>.))""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COLUMN = re.compile(r"[^\W\d]\w*")
_GRAMMAR = "write `column op value`, with op one of == != <= >= < > or `in a,b,c`, joined by `and`"


@dataclass(frozen=True)
class Clause:
    """One comparison of a column with one value, or with several (``in``).

    Attributes
    ----------
    column : str
        Name of the column.
    op : str
        ``==``, ``!=``, ``<=``, ``>=``, ``<``, ``>`` or ``in``.
    literals : tuple of str
        The values as written, without quotes; one, unless `op` is ``in``.
    """

    column: str
    op: str
    literals: tuple[str, ...]

    def __str__(self) -> str:
        """Write the clause as `parse_condition` reads it."""
        quoted = (v if _NUMBER.fullmatch(v) else _quote(v) for v in self.literals)
        return f"{self.column} {self.op} {','.join(quoted)}"


@dataclass(frozen=True)
class Condition:
    """A conjunction of clauses. Made by `parse_condition`.

    Attributes
    ----------
    clauses : tuple of Clause
        All of them must hold. None at all holds for every row.
    """

    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        """Write the condition as `parse_condition` reads it."""
        return " and ".join(map(str, self.clauses))

    def mask(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Tell which rows of `frame` meet the condition.

        A missing value meets no condition, not even ``!=``.

        Parameters
        ----------
        frame : pandas.DataFrame
            The rows to test.

        Returns
        -------
        ndarray of bool, shape (len(frame),)
            True where every clause holds.

        Raises
        ------
        InputError
            If a column does not exist, if a number is compared with text, or
            if text is compared by order.

        Examples
        --------
        >>> frame = pd.DataFrame({"vcpus": [1, 8, 64], "lock": ["spin", "rw", "rw"]})
        >>> parse_condition("vcpus >= 8 and lock == rw").mask(frame)
        array([False,  True,  True])
        """
        hold = np.ones(len(frame), dtype=np.bool_)
        for clause in self.clauses:
            hold &= _clause_mask(clause, frame)
        return hold


def parse_condition(text: str) -> Condition:
    """Read a condition on rows.

    Parameters
    ----------
    text : str
        Clauses ``column op value`` joined by ``and``; `op` is ``==``, ``!=``,
        ``<=``, ``>=``, ``<``, ``>``, or ``in`` with values separated by commas.
        A value with blanks or commas stands in quotes. Empty text holds for every row.

    Returns
    -------
    Condition
        The condition, to be applied with `Condition.mask`.

    Raises
    ------
    InputError
        If the text does not follow the grammar.

    Examples
    --------
    >>> print(parse_condition("vcpus in 16,32, 64 and series == 'rwlock-old-test'"))
    vcpus in 16,32,64 and series == 'rwlock-old-test'
    >>> parse_condition("vcpus = 8")
    Traceback (most recent call last):
    simlib.errors.InputError: condition = vcpus = 8: must be a comparison (trouble at '='); write
    `column op value`, with op one of == != <= >= < > or `in a,b,c`, joined by `and`
    """
    tokens = [(str(m.lastgroup), m.group(str(m.lastgroup))) for m in _TOKEN.finditer(text.strip())]
    clauses: list[Clause] = []
    at = 0
    while at < len(tokens):
        if clauses:
            _expect(text, tokens, at, tokens[at] == ("word", "and"))
            at += 1
        clause, at = _parse_clause(text, tokens, at)
        clauses.append(clause)
    return Condition(tuple(clauses))


def _parse_clause(text: str, tokens: list[tuple[str, str]], at: int) -> tuple[Clause, int]:
    """Read one clause from token `at` on; give it and the place after it."""
    column = _take(text, tokens, at)
    _expect(text, tokens, at, column[0] == "word" and bool(_COLUMN.fullmatch(column[1])))
    kind, op = _take(text, tokens, at + 1)
    _expect(text, tokens, at + 1, kind == "operator" or (kind, op) == ("word", "in"))
    values: list[str] = []
    at += 2
    while True:
        kind, value = _take(text, tokens, at)
        _expect(text, tokens, at, kind in ("word", "quoted"))
        values.append(value[1:-1] if kind == "quoted" else value)
        at += 1
        if op != "in" or at == len(tokens) or tokens[at][0] != "comma":
            return Clause(column[1], op, tuple(values)), at
        at += 1


def _take(text: str, tokens: list[tuple[str, str]], at: int) -> tuple[str, str]:
    if at < len(tokens):
        return tokens[at]
    raise InputError("condition", text, "must be a comparison (it ends too early)", _GRAMMAR)


def _expect(text: str, tokens: list[tuple[str, str]], at: int, holds: bool) -> None:
    if not holds:
        raise InputError("condition", text, f"must be a comparison (trouble at {tokens[at][1]!r})", _GRAMMAR)


def _quote(value: str) -> str:
    mark = '"' if "'" in value else "'"
    return f"{mark}{value}{mark}"


def _clause_mask(clause: Clause, frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows of `frame` for which one clause holds."""
    if clause.column not in frame.columns:
        raise InputError(
            f"condition {clause}",
            clause.column,
            "the column does not exist",
            nearest(clause.column, [str(c) for c in frame.columns]),
        )
    series = frame[clause.column]
    compare = _COMPARE["==" if clause.op == "in" else clause.op]
    present = series.notna().to_numpy(dtype=np.bool_)
    numeric = pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series)
    wanted: list[float | str]
    have: NDArray[Any]
    if numeric:
        for value in clause.literals:
            if not _NUMBER.fullmatch(value):
                raise InputError(f"condition {clause}", value, "the column holds numbers", "give one")
        wanted = [float(value) for value in clause.literals]
        have = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        if clause.op not in ("==", "!=", "in"):
            raise InputError(f"condition {clause}", clause.op, "the column holds text", "compare it with ==, != or in")
        wanted = list(clause.literals)
        have = series.astype(object).map(str).to_numpy(dtype=object)
    holds = np.zeros(len(frame), dtype=np.bool_)
    for one in wanted:
        holds |= compare(have, one).astype(np.bool_)
    return holds & present
