# SPDX-License-Identifier: BSD-3-Clause
"""Strategies: conditions, written as strings in a scenario file, on which a hold of mmu_lock ends.

    pages >= 512 or (held >= 50us and waiters >= 1)

The condition is tested after every word of 64 pages, or after every block in a walk over blocks. `simlib.model.grammar`
defines its grammar, with these comparisons:

    comparison = "never" | quantity sign amount
    quantity   = "pages" | "blocks" | "held" | "waiters" | "vcpus"
    sign       = ">=" | ">" | "<=" | "<"
    amount     = number | duration | "adaptive(" least "," most ")"
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from simlib._lib.errors import InputError, nearest
from simlib.model.conditions import And, Condition, Not, Or
from simlib.model.grammar import Reader, leaves
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import Extent, Lock, held
from simlib.model.quantities import format_duration, parse_duration

QUANTITIES: dict[str, Callable[[int, Extent, Lock, int], Condition]] = {
    "pages": lambda least, hold, lock, block: hold.pages(least),  # done since the hold began
    "blocks": lambda least, hold, lock, block: hold.pages(least * block),  # of 2 MiB with 4 KiB pages
    "held": lambda least, hold, lock, block: held(least),  # time since the lock was acquired, such as 50us
    "waiters": lambda least, hold, lock, block: lock.waiters(least),  # threads that wait for the lock
    "vcpus": lambda least, hold, lock, block: lock.vcpus(least),  # vCPUs among them
}
"""Quantities of a strategy: functions that return, for a hold and a lock, the condition "at least this amount"."""

_SIGNS = (">=", ">", "<=", "<")
_MOST = 2**40


@dataclass(frozen=True)
class NeverDrop(Condition):
    """The hold ends only when the work is done."""

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True)
class Threshold(Condition):
    """A quantity is at least an amount (pages, blocks, ps, threads); not yet bound to a lock or extent."""

    quantity: str
    least: int

    def __str__(self) -> str:
        return f"{self.quantity} >= {format_duration(self.least) if self.quantity == 'held' else self.least}"


@dataclass(frozen=True)
class Adaptive(Condition):
    """The adaptive batch of pages is done.

    At the end of each hold, the batch doubles if no thread waits for the lock, and halves if one does, within bounds.
    It starts at the lower bound. Each clearing thread has its own batch.
    """

    least: int
    most: int

    def __str__(self) -> str:
        return f"pages >= adaptive({self.least}, {self.most})"


@functools.lru_cache(maxsize=256)
def strategy(text: str, what: str = "clear_drop_when") -> Condition:
    """Parse a strategy.

    Raises `InputError`, which names the wrong word and the rule that it breaks.

    - `what`: name of the string in an error.

    >>> str(strategy("pages>=512 or (held >= 50us and waiters>0)"))
    'pages >= 512 or held >= 50us and waiters >= 1'
    >>> strategy("page >= 512")
    Traceback (most recent call last):
    ...
    simlib.InputError: clear_drop_when = page >= 512: unknown word 'page'; did you mean 'pages'? known: ...
    """
    reader = _StrategyParser(text, what, "join conditions with `and` or `or`, and close every parenthesis")
    condition = reader.read()
    comparisons = leaves(condition)
    if len(comparisons) > 1 and any(isinstance(comparison, NeverDrop) for comparison in comparisons):
        reader.fail("'never' cannot be combined with a condition", 'write "never", or a condition')
    if len({comparison for comparison in comparisons if isinstance(comparison, Adaptive)}) > 1:
        reader.fail("adaptive(…) must have the same bounds everywhere", "a thread has one adaptive batch")
    canonical = str(condition)
    return condition if canonical == text else strategy(canonical, what)  # so that equal conditions compare equal


def as_strategy(value: object, what: str) -> Condition:
    """Return a strategy itself, or parse a string.

    >>> str(as_strategy("(pages>=64)", "policy.clear_drop_when"))
    'pages >= 64'
    """
    if isinstance(value, Condition):
        return value
    if not isinstance(value, str):
        raise InputError(what, value, "must be a condition in quotation marks", 'such as "pages >= 512"')
    return strategy(value, what)


def bind(condition: Condition, hold: Extent, lock: Lock, block_pages: int) -> Condition:
    """Bind a condition to a hold of a lock.

    >>> from simlib.model.steps import Mode
    >>> bind(strategy("blocks >= 10"), Extent(1), Lock(0, Mode.WRITE), 512).threshold
    5120
    """
    if isinstance(condition, (And, Or)):
        sides = (bind(side, hold, lock, block_pages) for side in (condition.left, condition.right))
        return type(condition)(*sides)
    if isinstance(condition, Not):
        return Not(bind(condition.condition, hold, lock, block_pages))
    if isinstance(condition, Adaptive):
        return hold.beyond_batch()
    if isinstance(condition, Threshold):
        return QUANTITIES[condition.quantity](condition.least, hold, lock, block_pages)
    raise TypeError(condition)


def every(pages: int) -> str:
    """Return the strategy that drops the lock after every `pages` pages; 0: never.

    >>> every(512), every(0)
    ('pages >= 512', 'never')
    """
    return f"pages >= {pages}" if pages else "never"


def adaptive(condition: Condition) -> Adaptive | None:
    """Return the adaptive batch of a strategy, or None."""
    return next((leaf for leaf in leaves(condition) if isinstance(leaf, Adaptive)), None)


class _StrategyParser(Reader):
    def comparison(self) -> Condition:
        if self.accept("never"):
            return NeverDrop()
        quantity = self.ahead
        if quantity not in QUANTITIES:
            rule = f"unknown word {quantity!r}" if quantity else "ends where a quantity is expected"
            self.fail(rule, nearest(quantity, [*QUANTITIES, "never", "not"]))
        self.take()
        sign = self.accept(*_SIGNS) or self.refuse(">=, >, <= or <", f'such as "{quantity} >= …"')
        if quantity == "pages" and sign == ">=" and self.accept("adaptive"):
            return self.adaptive()
        least = self.amount(quantity) + (sign in (">", "<="))
        if not 1 <= least <= _MOST:
            value, unit = (format_duration(least), " ps") if quantity == "held" else (least, "")
            self.fail(f"{quantity} must be from 1 to 2**40{unit} (got {value})", f'such as "{quantity} >= …"')
        threshold = Threshold(quantity, least)
        return Not(threshold) if sign in ("<", "<=") else threshold

    def amount(self, quantity: str) -> int:
        if quantity == "held":
            if not self.ahead[:1].isdigit():
                self.refuse("a duration", "such as held >= 50us")
            return parse_duration(self.take(), f"{self.what}: held")
        number = self.whole()
        if quantity == "pages" and number % WORD_PAGES:
            self.fail(f"pages must be a multiple of 64 (got {number})", "KVM clears whole words of the bitmap")
        return number

    def whole(self) -> int:
        if not self.ahead.isdecimal() or len(self.ahead) > 15:
            self.refuse("a whole number", "such as pages >= 512")
        return int(self.take())

    def adaptive(self) -> Condition:
        hint = "such as pages >= adaptive(64, 4096)"
        bounds = []
        for sign in ("(", ",", ")"):
            if not self.accept(sign):
                self.fail(f"{sign!r} is missing", hint)
            if sign != ")":
                bounds.append(self.whole())
        least, most = bounds
        if least < WORD_PAGES or most < least or any(n & (n - 1) for n in bounds) or most > _MOST:
            self.fail(f"adaptive({least}, {most}): bounds must be powers of two, at least 64, in ascending order", hint)
        return Adaptive(least, most)
