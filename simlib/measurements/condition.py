# SPDX-License-Identifier: BSD-3-Clause
"""Conditions on rows, such as ``vcpus <= 8 and (series == spin or not clear_time_s > 2)``.

The grammar is that of `simlib.model.grammar` with these comparisons::

    comparison = column op value | column ["not"] "in" values
    values     = value { "," value } | "(" value { "," value } ")" | "[" value { "," value } "]"
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.errors import InputError, nearest
from simlib.measurements.cells import NUMBER
from simlib.model import conditions
from simlib.model.conditions import And, Not, Or
from simlib.model.grammar import Reader, leaves

_COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_COLUMN = re.compile(r"[^\W\d]\w*")
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|[^\s'",<>=!()\[\]]+""")
_GRAMMAR = "write `column op value` (== != <= >= < >) or `column in a,b,c`; join with `and`, `or`, `not`, parentheses"

RESERVED = ("and", "or", "not", "in")
"""Keywords of the grammar, which cannot be names of columns."""


@dataclass(frozen=True)
class Clause(conditions.Condition):
    """Comparison of a column with one value, or with several values (``in``).

    - `column`: name of the column.
    - `op`: ``==``, ``!=``, ``<=``, ``>=``, ``<``, ``>`` or ``in``.
    - `literals`: the values as written, without quotes; one, unless `op` is ``in``.
    """

    column: str
    op: str
    literals: tuple[str, ...]

    def __str__(self) -> str:
        quoted = (v if NUMBER.fullmatch(v) else f'"{v}"' if "'" in v else f"'{v}'" for v in self.literals)
        return f"{self.column} {self.op} {','.join(quoted)}"


@dataclass(frozen=True)
class RowCondition:
    """Condition that selects rows of a table. `parse_condition` reads it from a string, such as its ``str``.

    - `condition`: clauses joined by ``and``, ``or`` and ``not``; None selects every row.
    """

    condition: conditions.Condition | None

    def __str__(self) -> str:
        return "" if self.condition is None else str(self.condition)

    def columns(self) -> tuple[str, ...]:
        """Return the columns that the condition names, each once, in order of first use.

        >>> parse_condition("vcpus > 1 and (series == a or vcpus > 8)").columns()
        ('vcpus', 'series')
        """
        clauses = leaves(self.condition) if self.condition else []
        return tuple(dict.fromkeys(clause.column for clause in clauses if isinstance(clause, Clause)))

    def mask(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Select the rows of `frame` that meet the condition.

        A comparison with a missing value is neither true nor false, even with ``!=``: the row meets neither the
        comparison nor its negation (Kleene's three-valued logic, as in SQL and pandas).

        Returns: ndarray of bool, shape (len(frame),). True where the condition holds. Raises `InputError` if a column
        does not exist, if a number is compared with a string, or if strings are compared by order.

        >>> frame = pd.DataFrame({"vcpus": [1, 8, 64], "lock": ["spin", "rw", "rw"]})
        >>> parse_condition("vcpus >= 8 and lock == rw").mask(frame)
        array([False,  True,  True])
        >>> parse_condition("not (vcpus >= 8 and lock == rw) or vcpus in (64, 128)").mask(frame)
        array([ True, False,  True])
        """
        if self.condition is None:
            return np.ones(len(frame), dtype=np.bool_)
        return np.asarray(_decide(self.condition, frame).fillna(False), dtype=np.bool_)


def parse_condition(text: str) -> RowCondition:
    """Parse a condition on rows.

    Raises `InputError` if the string does not follow the grammar.

    - `text`: comparisons ``column op value`` joined by ``and``, ``or``, ``not`` and parentheses; `op` is ``==``,
      ``!=``, ``<=``, ``>=``, ``<``, ``>``, or ``in`` or ``not in`` with values separated by commas, optionally in
      parentheses or brackets. ``not`` binds closest, then ``and``, then ``or``. A value with blanks, commas or
      parentheses must be quoted. An empty string selects every row.

    >>> print(parse_condition("vcpus in [16,32, 64] and (series == 'rwlock-old-test' or not iteration > 1)"))
    vcpus in 16,32,64 and (series == 'rwlock-old-test' or not iteration > 1)
    >>> parse_condition("vcpus = 8")
    Traceback (most recent call last):
    simlib.InputError: condition = vcpus = 8: expected ==, !=, <=, >=, <, > or in, found '=' (character 7);
    write `column op value` (== != <= >= < >) or `column in a,b,c`; join with `and`, `or`, `not`, parentheses
    """
    return RowCondition(_ConditionParser(text, "condition", _GRAMMAR).read() if text.strip() else None)


class _ConditionParser(Reader):
    def comparison(self) -> conditions.Condition:
        if self.ahead in RESERVED or not _COLUMN.fullmatch(self.ahead):
            self.refuse("a column")
        column = self.take()
        if self.accept("not"):
            self.accept("in") or self.refuse("in")
            return Not(Clause(column, "in", self.values()))
        if self.accept("in"):
            return Clause(column, "in", self.values())
        op = self.accept(*_COMPARE) or self.refuse(f"{', '.join(_COMPARE)} or in")
        return Clause(column, op, (self.value(),))

    def values(self) -> tuple[str, ...]:
        """Read one value or several, bare or in parentheses or brackets."""
        opened = self.accept("(", "[")
        values = [self.value()]
        while self.accept(","):
            values.append(self.value())
        if opened:
            self.close(opened)
        return tuple(values)

    def value(self) -> str:
        if not _VALUE.fullmatch(self.ahead):
            self.refuse("a value")
        word = self.take()
        return word[1:-1] if word[0] in "'\"" else word


def _decide(condition: conditions.Condition, frame: pd.DataFrame) -> Any:
    """Truth value of a condition for each row, as a pandas array with three-valued ``&``, ``|`` and ``~``."""
    if isinstance(condition, And):
        return _decide(condition.left, frame) & _decide(condition.right, frame)
    if isinstance(condition, Or):
        return _decide(condition.left, frame) | _decide(condition.right, frame)
    if isinstance(condition, Not):
        return ~_decide(condition.condition, frame)
    if isinstance(condition, Clause):
        return _compared(condition, frame)
    raise TypeError(condition)


def _compared(clause: Clause, frame: pd.DataFrame) -> Any:
    """Truth value of a comparison for each row: true, false or missing."""
    where = f"condition {clause}"
    if clause.column not in frame.columns:
        columns = [str(column) for column in frame.columns]
        raise InputError(where, clause.column, "the column does not exist", nearest(clause.column, columns))
    series = frame[clause.column]
    literals: list[Any] = list(clause.literals)
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        for value in clause.literals:
            if not NUMBER.fullmatch(value):
                raise InputError(where, value, "the column contains numbers", "compare it with a number")
        literals = [float(value) for value in literals]
        cells = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        if clause.op not in ("==", "!=", "in"):
            raise InputError(where, clause.op, "the column contains strings", "use ==, != or in")
        cells = series.astype(object).map(str).to_numpy(dtype=object)
    operation = _COMPARE["==" if clause.op == "in" else clause.op]
    holds = np.any([operation(cells, value) for value in literals], axis=0)
    return pd.arrays.BooleanArray(holds.astype(np.bool_), series.isna().to_numpy(dtype=np.bool_))
