# SPDX-License-Identifier: BSD-3-Clause
"""Conditions that combine with ``&``, ``|`` and ``~``, and compile to rows of steps with jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simlib._lib.errors import InputError
from simlib.model.steps import Quantity, Step


@dataclass(eq=False)
class Label:
    """A jump target; `row` is the index of its row, or None until it is placed."""

    row: int | None = None


def index(label: Label) -> int:
    """Number of the step at a label. Raises `InputError` if the label was never placed."""
    if label.row is None:
        raise InputError("program", "a label", "was never placed", "call leave() only inside the loop")
    return label.row


class ConditionRows(Protocol):
    """Program to which a condition appends its rows (`simlib.model.program.Program`)."""

    def add(self, step: Step, *arguments: int | Label) -> None:
        """Append a row."""

    def place(self, label: Label) -> None:
        """Place the label at the next row."""


@dataclass(frozen=True)
class Condition:
    """A condition that a thread can test. Conditions combine with ``&``, ``|`` and ``~``.

    >>> str(AtLeast(Quantity.PAGES, 512) | ~AtLeast(Quantity.BITMAP, 1))
    'pages >= 512 or not bitmap >= 1'
    """

    def __and__(self, other: Condition) -> Condition:
        return And(self, other)

    def __or__(self, other: Condition) -> Condition:
        return Or(self, other)

    def __invert__(self) -> Condition:
        return Not(self)

    def write(self, program: ConditionRows, no: Label) -> None:
        """Append rows that go to `no` unless the condition holds."""
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(Condition):
    """A quantity is at least a threshold."""

    quantity: Quantity
    threshold: int
    argument: int = 0

    def write(self, program: ConditionRows, no: Label) -> None:
        """Append one row."""
        program.add(Step.TEST, no, self.quantity, self.argument, self.threshold)

    def __str__(self) -> str:
        return f"{self.quantity.name.lower()} >= {self.threshold}"


@dataclass(frozen=True)
class And(Condition):
    """Conjunction; the right side is tested only if the left side holds."""

    left: Condition
    right: Condition

    def write(self, program: ConditionRows, no: Label) -> None:
        """Append the rows of both sides."""
        self.left.write(program, no)
        self.right.write(program, no)

    def __str__(self) -> str:
        return " and ".join(f"({c})" if isinstance(c, Or) else str(c) for c in (self.left, self.right))


@dataclass(frozen=True)
class Or(Condition):
    """Disjunction; the right side is tested only if the left side does not hold."""

    left: Condition
    right: Condition

    def write(self, program: ConditionRows, no: Label) -> None:
        """Append the rows of both sides, with a jump over the right side's rows."""
        second, yes = Label(), Label()
        self.left.write(program, second)
        program.add(Step.JUMP, yes)
        program.place(second)
        self.right.write(program, no)
        program.place(yes)

    def __str__(self) -> str:
        return f"{self.left} or {self.right}"


@dataclass(frozen=True)
class Not(Condition):
    """Negation."""

    condition: Condition

    def __invert__(self) -> Condition:
        return self.condition

    def write(self, program: ConditionRows, no: Label) -> None:
        """Append the rows of the condition, and a jump to `no` if it holds."""
        yes = Label()
        self.condition.write(program, yes)
        program.add(Step.JUMP, no)
        program.place(yes)

    def __str__(self) -> str:
        inner = self.condition
        return f"not ({inner})" if isinstance(inner, (And, Or)) else f"not {inner}"
