# SPDX-License-Identifier: BSD-3-Clause
"""The grammar of all conditions that users write: comparisons joined by ``and``, ``or``, ``not`` and parentheses.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | comparison

What a comparison is says each `Reader`: of strategies (`simlib.model.strategy`) and of rows
(`simlib.measurements.condition`). Nothing of a text is ever executed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import NoReturn

from simlib._lib.errors import InputError
from simlib.model.conditions import And, Condition, Not, Or

DEEPEST = 50
"""Most parentheses and ``not`` within each other."""

MOST = 200
"""Most comparisons."""

_WORD = re.compile(r"""'[^']*'|"[^"]*"|[=!<>]=|[^\s'",<>=!()\[\]]+|\S""")
_CLOSES = {"(": ")", "[": "]"}


def leaves(condition: Condition) -> list[Condition]:
    """The comparisons of a condition, one by one.

    >>> from simlib.model.strategy import strategy
    >>> [str(leaf) for leaf in leaves(strategy("pages >= 64 and not waiters >= 1"))]
    ['pages >= 64', 'waiters >= 1']
    """
    if isinstance(condition, (And, Or)):
        return leaves(condition.left) + leaves(condition.right)
    return leaves(condition.condition) if isinstance(condition, Not) else [condition]


class Reader(ABC):
    """A recursive descent over the words of a text.

    - `what`: names the text in an error.
    - `cure`: what to do about an error that says nothing better.
    """

    def __init__(self, text: str, what: str, cure: str) -> None:
        self.text, self.what, self.cure = text, what, cure
        self._words = [(found[0], found.start() + 1) for found in _WORD.finditer(text)]
        self._next = self._depth = self._comparisons = 0

    @abstractmethod
    def comparison(self) -> Condition:
        """Read one comparison."""

    def read(self) -> Condition:
        """Read the whole text.

        Raises `InputError` that names the word, and the rule that it breaks.
        """
        found = self._condition()
        if self.ahead:
            self.fail(f"{self.ahead!r} cannot follow here (character {self._place()})")
        return found

    @property
    def ahead(self) -> str:
        """The next word; empty at the end."""
        return self._words[self._next][0] if self._next < len(self._words) else ""

    def take(self) -> str:
        """The next word, which is behind then."""
        word = self.ahead
        self._next += 1
        return word

    def accept(self, *words: str) -> str:
        """The next word, if it is one of these; it is behind then. Else empty."""
        return self.take() if self.ahead in words else ""

    def close(self, sign: str) -> None:
        """Go behind what closes the parenthesis or bracket that was taken last but for what stands in it."""
        if self.accept(_CLOSES[sign]):
            return
        if self.ahead:
            self.refuse(f"{_CLOSES[sign]!r}")
        self.fail(f"{sign!r} is not closed")

    def refuse(self, wanted: str, cure: str = "") -> NoReturn:
        """Say that the next word stands where something else must."""
        place = f" (character {self._place()})" if self.ahead else ""
        self.fail(f"{self.ahead or 'the end'!r} stands where {wanted} must{place}", cure)

    def fail(self, rule: str, cure: str = "") -> NoReturn:
        """Say which rule the text breaks."""
        raise InputError(self.what, self.text, rule, cure or self.cure)

    def _place(self) -> int:
        return self._words[self._next][1]

    def _condition(self) -> Condition:
        found = self._all()
        while self.accept("or"):
            found = Or(found, self._all())
        return found

    def _all(self) -> Condition:
        found = self._one()
        while self.accept("and"):
            found = And(found, self._one())
        return found

    def _one(self) -> Condition:
        opened = self.accept("not", "(")
        if not opened:
            self._comparisons += 1
            if self._comparisons > MOST:
                self.fail(f"may have at most {MOST} comparisons")
            return self.comparison()
        self._depth += 1
        if self._depth > DEEPEST:
            self.fail(f"is nested deeper than {DEEPEST}", "write it with fewer parentheses")
        if opened == "not":
            found: Condition = Not(self._one())
        else:
            found = self._condition()
            self.close(opened)
        self._depth -= 1
        return found
