# SPDX-License-Identifier: BSD-3-Clause
"""Conditions on rows, such as ``vcpus <= 8 and (series == spin or not clear_time_s > 2)``.

::

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | comparison
    comparison = column op value | column ["not"] "in" values
    values     = value { "," value } | "(" value { "," value } ")" | "[" value { "," value } "]"

The text is read by recursive descent; nothing that a user writes is executed.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.errors import InputError, nearest

Mask = NDArray[np.bool_]

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
    | (?P<sign>[,()\[\]])
    | (?P<word>[^\s'",<>=!()\[\]]+)
    | (?P<other>.))""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COLUMN = re.compile(r"[^\W\d]\w*")
_CLOSES = {"(": ")", "[": "]"}
_GRAMMAR = "write `column op value`, op one of == != <= >= < > or `in a,b,c`, joined by `and`, `or`, `not`, parentheses"

RESERVED = ("and", "or", "not", "in")
"""Words that join; no column is called so."""

DEEPEST = 50
"""Most parentheses and ``not`` within each other."""


class Condition(ABC):
    """Which rows of a table are meant. Made by `parse_condition`, and written by ``str`` as that reads it.

    A missing value meets no comparison, not even ``!=``, and what asks for it is neither true nor false: the row meets
    a ``not`` of it as little (Kleene's three values, as SQL has them).
    """

    @abstractmethod
    def decide(self, frame: pd.DataFrame) -> tuple[Mask, Mask]:
        """For which rows the condition is true, and for which it is false."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, each once, in their order.

        Examples
        --------
        >>> parse_condition("vcpus > 1 and (series == a or vcpus > 8)").columns()
        ('vcpus', 'series')
        """

    def mask(self, frame: pd.DataFrame) -> Mask:
        """Tell which rows of `frame` meet the condition.

        Returns: ndarray of bool, shape (len(frame),). True where the condition holds. Raises `InputError` if a column
        does not exist, if a number is compared with text, or if text is compared by order.

        Parameters
        ----------
        frame : pandas.DataFrame
            The rows to test.

        Examples
        --------
        >>> frame = pd.DataFrame({"vcpus": [1, 8, 64], "lock": ["spin", "rw", "rw"]})
        >>> parse_condition("vcpus >= 8 and lock == rw").mask(frame)
        array([False,  True,  True])
        >>> parse_condition("not (vcpus >= 8 and lock == rw) or vcpus in (64, 128)").mask(frame)
        array([ True, False,  True])
        """
        return self.decide(frame)[0]


@dataclass(frozen=True)
class Clause(Condition):
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

    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def decide(self, frame: pd.DataFrame) -> tuple[Mask, Mask]:
        """For which rows the comparison is true, and for which it is false."""
        holds, present = _compared(self, frame)
        return holds & present, ~holds & present


@dataclass(frozen=True)
class And(Condition):
    """All parts hold. None at all holds for every row."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        """Write the condition as `parse_condition` reads it."""
        return " and ".join(f"({part})" if isinstance(part, And | Or) else str(part) for part in self.parts)

    def columns(self) -> tuple[str, ...]:
        """Those of all parts."""
        return _columns(self.parts)

    def decide(self, frame: pd.DataFrame) -> tuple[Mask, Mask]:
        """True where all parts are, false where any is."""
        decided = [part.decide(frame) for part in self.parts]
        none = np.zeros(len(frame), dtype=np.bool_)
        return (
            np.logical_and.reduce([~none, *(holds for holds, _ in decided)]),
            np.logical_or.reduce([none, *(fails for _, fails in decided)]),
        )


@dataclass(frozen=True)
class Or(Condition):
    """Any part holds."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        """Write the condition as `parse_condition` reads it."""
        return " or ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)

    def columns(self) -> tuple[str, ...]:
        """Those of all parts."""
        return _columns(self.parts)

    def decide(self, frame: pd.DataFrame) -> tuple[Mask, Mask]:
        """True where any part is, false where all are."""
        fails, holds = And(tuple(Not(part) for part in self.parts)).decide(frame)
        return holds, fails


@dataclass(frozen=True)
class Not(Condition):
    """The part does not hold."""

    part: Condition

    def __str__(self) -> str:
        """Write the condition as `parse_condition` reads it."""
        return f"not ({self.part})" if isinstance(self.part, And | Or) else f"not {self.part}"

    def columns(self) -> tuple[str, ...]:
        """Those of the part."""
        return self.part.columns()

    def decide(self, frame: pd.DataFrame) -> tuple[Mask, Mask]:
        """The other way round."""
        holds, fails = self.part.decide(frame)
        return fails, holds


def parse_condition(text: str) -> Condition:
    """Read a condition on rows.

    Returns: The condition, to be applied with `Condition.mask`. Raises `InputError` if the text does not follow the
    grammar.

    Parameters
    ----------
    text : str
        Comparisons ``column op value`` joined by ``and``, ``or``, ``not`` and parentheses; `op` is ``==``, ``!=``,
        ``<=``, ``>=``, ``<``, ``>``, or ``in`` or ``not in`` with values separated by commas, in parentheses or
        brackets if one likes. ``not`` binds closest, then ``and``, then ``or``. A value with blanks, commas or
        parentheses stands in quotes. Empty text holds for every row.

    Examples
    --------
    >>> print(parse_condition("vcpus in [16,32, 64] and (series == 'rwlock-old-test' or not iteration > 1)"))
    vcpus in 16,32,64 and (series == 'rwlock-old-test' or not iteration > 1)
    >>> parse_condition("vcpus = 8")
    Traceback (most recent call last):
    simlib.errors.InputError: condition = vcpus = 8: must be a comparison (trouble at '=', character 7); write
    `column op value`, op one of == != <= >= < > or `in a,b,c`, joined by `and`, `or`, `not`, parentheses
    """
    if not text.strip():
        return And(())
    reader = _Reader(text)
    found = reader.condition()
    if not reader.ended:
        reader.fail()
    return found


class _Reader:
    """A text, and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [
            (str(m.lastgroup), m.group(str(m.lastgroup)), m.start(str(m.lastgroup)))
            for m in _TOKEN.finditer(text.rstrip())
        ]
        self.at = 0
        self.depth = 0

    @property
    def ended(self) -> bool:
        return self.at == len(self.tokens)

    def sees(self, *words: str) -> bool:
        """Whether one of these words or signs comes next."""
        return not self.ended and self.tokens[self.at][0] in ("word", "sign") and self.tokens[self.at][1] in words

    def takes(self, *words: str) -> bool:
        """Whether one of these came next; it is behind now."""
        seen = self.sees(*words)
        self.at += seen
        return seen

    def condition(self) -> Condition:
        parts = [self.all()]
        while self.takes("or"):
            parts.append(self.all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def all(self) -> Condition:
        parts = [self.one()]
        while self.takes("and"):
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def one(self) -> Condition:
        if not self.sees("not", "("):
            return self.comparison()
        opened = self.at
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"nested deeper than {DEEPEST}")
        if self.takes("not"):
            found: Condition = Not(self.one())
        else:
            self.at += 1
            found = self.condition()
            self.close(opened)
        self.depth -= 1
        return found

    def comparison(self) -> Condition:
        kind, column = self.next()
        if kind != "word" or column in RESERVED or not _COLUMN.fullmatch(column):
            self.fail(back=1)
        if self.takes("not"):
            if not self.takes("in"):
                self.fail()
            return Not(Clause(column, "in", self.values()))
        kind, op = self.next()
        if (kind, op) == ("word", "in"):
            return Clause(column, op, self.values())
        if kind != "operator":
            self.fail(back=1)
        return Clause(column, op, (self.value(),))

    def values(self) -> tuple[str, ...]:
        """One value or several, bare or enclosed."""
        opened = self.at
        enclosed = self.takes(*_CLOSES)
        found = [self.value()]
        while self.takes(","):
            found.append(self.value())
        if enclosed:
            self.close(opened)
        return tuple(found)

    def value(self) -> str:
        kind, value = self.next()
        if kind not in ("word", "quoted"):
            self.fail(back=1)
        return value[1:-1] if kind == "quoted" else value

    def next(self) -> tuple[str, str]:
        if self.ended:
            self.fail("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1][:2]

    def close(self, opened: int) -> None:
        """Go behind the sign that closes the one at `opened`."""
        _, sign, where = self.tokens[opened]
        if self.ended:
            self.fail(f"{sign!r} at character {where + 1} is not closed")
        if not self.takes(_CLOSES[sign]):
            self.fail()

    def fail(self, trouble: str = "", back: int = 0) -> NoReturn:
        """Refuse the text, because of the next word unless `trouble` says otherwise."""
        if not trouble:
            _, word, where = self.tokens[self.at - back]
            trouble = f"trouble at {word!r}, character {where + 1}"
        raise InputError("condition", self.text, f"must be a comparison ({trouble})", _GRAMMAR)


def _columns(parts: tuple[Condition, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part.columns()))


def _quote(value: str) -> str:
    mark = '"' if "'" in value else "'"
    return f"{mark}{value}{mark}"


def _compared(clause: Clause, frame: pd.DataFrame) -> tuple[Mask, Mask]:
    """Rows of `frame` for which one comparison holds, and rows that have a value."""
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
    return holds, present
