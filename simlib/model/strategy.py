# SPDX-License-Identifier: BSD-3-Clause
"""A strategy is text: when a hold of mmu_lock ends, as a condition that a scenario file says.

    pages >= 512 or (held >= 50us and waiters >= 1)

The condition is asked after every word of 64 pages (every block, where a walk goes by blocks). It
is read by the grammar below and nothing of it is ever executed.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | "never" | quantity sign amount
    quantity   = "pages" | "blocks" | "held" | "waiters" | "vcpus"
    sign       = ">=" | ">" | "<=" | "<"
    amount     = number | duration | "adaptive(" least "," most ")"
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from simlib.errors import InputError, nearest
from simlib.model.pagetable import WORD_PAGES
from simlib.model.program import AtLeast, Both, Condition, Either, Extent, Lock, Not, held
from simlib.model.quantities import format_duration, parse_duration

QUANTITIES = {
    "pages": "pages done since the hold began",
    "blocks": "the same in blocks (2 MiB with 4 KiB pages)",
    "held": "how long the lock has been held, such as 50us",
    "waiters": "threads that wait for the lock",
    "vcpus": "vCPUs among them",
}
"""What a strategy may ask for."""

_TOKEN = re.compile(r"\s*(>=|<=|>|<|\(|\)|,|[A-Za-z_]+|[0-9][0-9A-Za-zµ._]*|.)")
_SIGNS = (">=", ">", "<=", "<")
_MOST = 2**40


@dataclass(frozen=True)
class Never(Condition):
    """Nothing ends the hold but the end of what there is to do."""

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True)
class Asked(Condition):
    """A quantity is at least an amount (pages, blocks, ps, threads); not yet for any lock or extent."""

    quantity: str
    least: int

    def __str__(self) -> str:
        return f"{self.quantity} >= {format_duration(self.least) if self.quantity == 'held' else self.least}"


@dataclass(frozen=True)
class Adaptive(Condition):
    """As many pages are done as the adaptive batch has.

    Whenever a hold ends, the batch doubles if nobody waits, and halves if somebody does, within bounds; it begins at
    the lower one. Each thread that clears has its own.
    """

    least: int
    most: int

    def __str__(self) -> str:
        return f"pages >= adaptive({self.least}, {self.most})"


@functools.lru_cache(maxsize=256)
def strategy(text: str, what: str = "lets_go") -> Condition:
    """Read a strategy.

    Raises `InputError` that names the word, and the rule that it breaks.

    Parameters
    ----------
    what : str
        Names the text in an error.

    Examples
    --------
    >>> str(strategy("pages>=512 or (held >= 50us and waiters>0)"))
    'pages >= 512 or held >= 50us and waiters >= 1'
    >>> strategy("page >= 512")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: lets_go = page >= 512: unknown word 'page'; did you mean 'pages'? known: ...
    """
    reader = _Reader(text, what)
    condition = reader.condition()
    if reader.ahead:
        reader.fail(f"{reader.ahead!r} cannot follow here", "join conditions by and, or")
    parts = list(leaves(condition))
    if len(parts) > 1 and any(isinstance(part, Never) for part in parts):
        reader.fail("'never' stands alone", 'write "never", or a condition')
    if len({part for part in parts if isinstance(part, Adaptive)}) > 1:
        reader.fail("adaptive(…) may have one pair of bounds", "a thread has one adaptive batch")
    return condition


def parse_strategy(value: object, what: str) -> str:
    """A strategy as a scenario holds it: read, and written in one way.

    Examples
    --------
    >>> parse_strategy("(pages>=64)", "policy.lets_go")
    'pages >= 64'
    """
    if not isinstance(value, str):
        raise InputError(what, value, "must be a condition in quotation marks", 'such as "pages >= 512"')
    return str(strategy(value, what))


def leaves(condition: Condition) -> list[Condition]:
    """What a condition asks for, one by one.

    Examples
    --------
    >>> [str(leaf) for leaf in leaves(strategy("pages >= 64 and not waiters >= 1"))]
    ['pages >= 64', 'waiters >= 1']
    """
    if isinstance(condition, (Both, Either)):
        return leaves(condition.left) + leaves(condition.right)
    return leaves(condition.condition) if isinstance(condition, Not) else [condition]


def bind(condition: Condition, hold: Extent, lock: Lock, block_pages: int) -> Condition:
    """The condition, asked of one hold of one lock.

    Examples
    --------
    >>> from simlib.model.steps import Mode
    >>> bind(strategy("blocks >= 10"), Extent(1), Lock(0, Mode.WRITE), 512).threshold
    5120
    """
    if isinstance(condition, (Both, Either)):
        sides = (bind(side, hold, lock, block_pages) for side in (condition.left, condition.right))
        return type(condition)(*sides)
    if isinstance(condition, Not):
        return Not(bind(condition.condition, hold, lock, block_pages))
    if isinstance(condition, Adaptive):
        return hold.beyond_batch()
    if isinstance(condition, Asked):
        return _ask(condition, hold, lock, block_pages)
    raise TypeError(condition)


def _ask(asked: Asked, hold: Extent, lock: Lock, block_pages: int) -> AtLeast:
    asks = {
        "pages": hold.pages,
        "blocks": lambda n: hold.pages(n * block_pages),
        "held": held,
        "waiters": lock.waiters,
        "vcpus": lock.vcpus,
    }
    condition = asks[asked.quantity](asked.least)
    assert isinstance(condition, AtLeast)  # noqa: S101  # each of them is
    return condition


def every(pages: int) -> str:
    """The strategy that lets go after so many pages; 0: never.

    Examples
    --------
    >>> every(512), every(0)
    ('pages >= 512', 'never')
    """
    return f"pages >= {pages}" if pages else "never"


def adaptive(condition: Condition) -> Adaptive | None:
    """The adaptive batch that a strategy asks for, if it does."""
    return next((leaf for leaf in leaves(condition) if isinstance(leaf, Adaptive)), None)


class _Reader:
    """A recursive descent over the words of a text."""

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what = text, what
        self.words = _TOKEN.findall(text.strip())
        self.depth = 0

    @property
    def ahead(self) -> str:
        return self.words[0] if self.words else ""

    def fail(self, rule: str, cure: str) -> None:
        raise InputError(self.what, self.text, rule, cure)

    def accept(self, word: str) -> bool:
        if self.ahead != word:
            return False
        self.words.pop(0)
        return True

    def condition(self) -> Condition:
        found = self.all()
        while self.accept("or"):
            found = Either(found, self.all())
        return found

    def all(self) -> Condition:
        found = self.one()
        while self.accept("and"):
            found = Both(found, self.one())
        return found

    def one(self) -> Condition:
        self.depth += 1
        if self.depth > 50:
            self.fail("is nested too deeply", "write it with fewer parentheses")
        if self.accept("not"):
            found: Condition = Not(self.one())
        elif self.accept("("):
            found = self.condition()
            if not self.accept(")"):
                self.fail("a ')' is missing", "close every parenthesis")
        elif self.accept("never"):
            found = Never()
        else:
            found = self.comparison()
        self.depth -= 1
        return found

    def comparison(self) -> Condition:
        quantity = self.ahead
        if quantity not in QUANTITIES:
            rule = f"unknown word {quantity!r}" if quantity else "ends where a quantity must stand"
            self.fail(rule, nearest(quantity, [*QUANTITIES, "never", "not"]))
        self.words.pop(0)
        sign = self.ahead
        if sign not in _SIGNS:
            self.fail(f"{sign or 'the end'!r} stands where >=, >, <= or < must", f'such as "{quantity} >= …"')
        self.words.pop(0)
        if quantity == "pages" and sign == ">=" and self.accept("adaptive"):
            return self.adaptive()
        least = self.amount(quantity) + (sign in (">", "<="))
        if not 1 <= least <= _MOST:
            shown = format_duration(least) if quantity == "held" else least
            self.fail(f"{quantity} must be at least 1 and at most 2**40 (got {shown})", f'such as "{quantity} >= …"')
        asked = Asked(quantity, least)
        return Not(asked) if sign in ("<", "<=") else asked

    def amount(self, quantity: str) -> int:
        word = self.ahead
        if quantity == "held":
            if not word[:1].isdigit():
                self.fail(f"{word or 'the end'!r} stands where a duration must", "such as held >= 50us")
            self.words.pop(0)
            found = parse_duration(word, f"{self.what}: held")
        else:
            found = self.whole()
        if quantity == "pages" and found % WORD_PAGES:
            self.fail(f"pages must be a multiple of 64 (got {found})", "a word of the bitmap is the least at a time")
        return found

    def whole(self) -> int:
        word = self.ahead
        if not word.isdecimal() or len(word) > 15:
            self.fail(f"{word or 'the end'!r} stands where a whole number must", "such as pages >= 512")
        self.words.pop(0)
        return int(word)

    def adaptive(self) -> Condition:
        cure = "such as pages >= adaptive(64, 4096)"
        bounds = []
        for sign in ("(", ",", ")"):
            if not self.accept(sign):
                self.fail(f"{sign!r} is missing", cure)
            if sign != ")":
                bounds.append(self.whole())
        least, most = bounds
        if least < WORD_PAGES or most < least or any(n & (n - 1) for n in bounds) or most > _MOST:
            self.fail(f"adaptive({least}, {most}) must go up from 64 or more by powers of two", cure)
        return Adaptive(least, most)
