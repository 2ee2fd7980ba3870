# SPDX-License-Identifier: BSD-3-Clause
"""Grammar of the conditions that users write: comparisons joined by ``and``, ``or``, ``not`` and parentheses.

    condition   = conjunction { "or" conjunction }
    conjunction = term { "and" term }
    term        = "not" term | "(" condition ")" | comparison

Strategies (`simlib.model.strategy`) and conditions on rows (`simlib.measurements.condition`) each define their
comparisons in a subclass of `Reader`. A condition is never executed as code.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import NoReturn

from simlib._lib.errors import InputError
from simlib.model.conditions import And, Condition, Not, Or

DEEPEST = 50
"""Deepest nesting of parentheses and ``not``."""

MOST = 200
"""Largest number of comparisons."""

_WORD = re.compile(r"""'[^']*'|"[^"]*"|[=!<>]=|[^\s'",<>=!()\[\]]+|\S""")
_CLOSES = {"(": ")", "[": "]"}


def leaves(condition: Condition) -> list[Condition]:
    """Return the comparisons of a condition.

    >>> from simlib.model.strategy import strategy
    >>> [str(leaf) for leaf in leaves(strategy("pages >= 64 and not waiters >= 1"))]
    ['pages >= 64', 'waiters >= 1']
    """
    if isinstance(condition, (And, Or)):
        return leaves(condition.left) + leaves(condition.right)
    return leaves(condition.condition) if isinstance(condition, Not) else [condition]


class Reader(ABC):
    """Recursive descent parser over the words of a string.

    - `what`: name of the string in an error.
    - `hint`: hint of errors that have no more specific one.
    """

    def __init__(self, text: str, what: str, hint: str) -> None:
        self.text, self.what, self.hint = text, what, hint
        self._words = [(match[0], match.start() + 1) for match in _WORD.finditer(text)]
        self._next = self._depth = self._comparisons = 0

    @abstractmethod
    def comparison(self) -> Condition:
        """Read one comparison."""

    def read(self) -> Condition:
        """Read the whole string. Raises `InputError`, which names the wrong word and the rule that it breaks."""
        condition = self._condition()
        if self.ahead:
            self.fail(f"{self.ahead!r} cannot follow here (character {self._place()})")
        return condition

    @property
    def ahead(self) -> str:
        """The next word; empty at the end."""
        return self._words[self._next][0] if self._next < len(self._words) else ""

    def take(self) -> str:
        """Consume the next word and return it."""
        word = self.ahead
        self._next += 1
        return word

    def accept(self, *words: str) -> str:
        """Consume and return the next word if it is one of `words`; if not, return an empty string."""
        return self.take() if self.ahead in words else ""

    def close(self, sign: str) -> None:
        """Consume the closing parenthesis or bracket."""
        if self.accept(_CLOSES[sign]):
            return
        if self.ahead:
            self.refuse(f"{_CLOSES[sign]!r}")
        self.fail(f"{sign!r} is not closed")

    def refuse(self, expected: str, hint: str = "") -> NoReturn:
        """Raise an error that names the expected and the found word."""
        place = f" (character {self._place()})" if self.ahead else ""
        self.fail(f"expected {expected}, found {self.ahead or 'the end'!r}{place}", hint)

    def fail(self, rule: str, hint: str = "") -> NoReturn:
        """Raise an error with the rule that the string breaks."""
        raise InputError(self.what, self.text, rule, hint or self.hint)

    def _place(self) -> int:
        return self._words[self._next][1]

    def _condition(self) -> Condition:
        condition = self._conjunction()
        while self.accept("or"):
            condition = Or(condition, self._conjunction())
        return condition

    def _conjunction(self) -> Condition:
        condition = self._term()
        while self.accept("and"):
            condition = And(condition, self._term())
        return condition

    def _term(self) -> Condition:
        opened = self.accept("not", "(")
        if not opened:
            self._comparisons += 1
            if self._comparisons > MOST:
                self.fail(f"may have at most {MOST} comparisons")
            return self.comparison()
        self._depth += 1
        if self._depth > DEEPEST:
            self.fail(f"is nested deeper than {DEEPEST} levels", "write fewer parentheses")
        if opened == "not":
            condition: Condition = Not(self._term())
        else:
            condition = self._condition()
            self.close(opened)
        self._depth -= 1
        return condition
