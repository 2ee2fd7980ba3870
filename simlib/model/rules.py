# SPDX-License-Identifier: BSD-3-Clause
"""Rules of a scenario's fields: parsers that check a value from a file, and name the rule that it breaks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import field
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib.model import quantities

Parser = Callable[[Any, str], Any]
"""Function that parses a value from a file; its second argument names the value in an error."""


def whole(low: int, high: int) -> Parser:
    """A whole number within bounds."""

    def parse(value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InputError(what, value, f"must be a whole number from {low} to {high}")
        return value

    return parse


def power_of_two(low: int, high: int) -> Parser:
    """A power of two within bounds."""

    def parse(value: Any, what: str) -> int:
        if whole(low, high)(value, what) & (value - 1):
            raise InputError(what, value, f"must be a power of two from {low} to {high}")
        return int(value)

    return parse


def number(low: float, high: float) -> Parser:
    """A number within bounds."""

    def parse(value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InputError(what, value, f"must be a number from {low:g} to {high:g}")
        return float(value)

    return parse


def share(value: Any, what: str) -> float:
    """A number above 0, and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InputError(what, value, "must be a number above 0, and at most 1")
    return float(value)


def steps_up(low: int, high: int) -> Parser:
    """A list of pairs of a whole number within bounds, which increases from pair to pair, and a number above 0."""

    def parse(value: Any, what: str) -> tuple[tuple[int, float], ...]:
        pairs = [tuple(pair) if isinstance(pair, (list, tuple)) else (pair,) for pair in _list(value, what)]
        for index, pair in enumerate(pairs):
            if len(pair) != 2:
                raise InputError(f"{what}[{index}]", pair, "must be a pair of numbers")
            whole(low if not index else int(pairs[index - 1][0]) + 1, high)(pair[0], f"{what}[{index}]")
            number(1e-3, 1e3)(pair[1], f"{what}[{index}]")
        return tuple((int(count), float(factor)) for count, factor in pairs)

    return parse


def values(value: Any, what: str) -> tuple[float, ...]:
    """A list of at most 2048 numbers above 0, the size of a table of draws in `simlib.simulator.engine.random`."""
    if len(items := _list(value, what)) > 2048:
        raise InputError(what, f"{len(items)} numbers", "must have at most 2048 numbers")
    return tuple(number(1e-6, 1e6)(item, f"{what}[{index}]") for index, item in enumerate(items))


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InputError(what, value, "must be a list")
    return list(value)


def choice(*words: str) -> Parser:
    """One of several keywords."""

    def parse(value: Any, what: str) -> str:
        if value not in words:
            raise InputError(what, value, "unknown value", nearest(str(value), words))
        return str(value)

    return parse


def flag(value: Any, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InputError(what, value, "must be true or false")
    return value


def text(value: Any, what: str) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise InputError(what, value, "must be a non-empty string")
    return value


def names(value: Any, what: str) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise InputError(what, value, "must be a list of strings")
    return tuple(value)


def rule(parser: Parser, default: Any, to_file: Callable[[Any], Any] | None = None, **more: Any) -> Any:
    """A field with its rule; `to_file` converts its value to the value in a file."""
    return field(default=default, metadata={"parse": parser, "show": to_file, "check": parser} | more)


def duration(default: str | None = None, **more: Any) -> Any:
    """A field in picoseconds; in a file, a string such as ``"1us"``."""
    default_ps = None if default is None else quantities.parse_duration(default)
    return rule(quantities.parse_duration, default_ps, quantities.format_duration, check=_integer(0), **more)


def size(default: int | None = None) -> Any:
    """A field in bytes; in a file, a string such as ``"2G"``."""
    return rule(quantities.parse_size, default, quantities.format_size, check=_integer(1))


def bandwidth(default: str) -> Any:
    """A field in bits per second; in a file, a string such as ``"25Gbit/s"``."""
    parse = quantities.parse_bandwidth
    return rule(parse, parse(default), quantities.format_bandwidth, check=_integer(1))


def _integer(low: int) -> Parser:
    """A parsed value in picoseconds, bytes or bits per second."""

    def check(value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < quantities.LARGEST:
            raise InputError(what, value, f"must be a whole number from {low} to 2**62 - 1")
        return value

    return check


@functools.cache
def fields_of(section: type) -> tuple[dataclasses.Field[Any], ...]:
    """Fields of a section's dataclass; cached, since a sweep creates millions of scenarios."""
    return dataclasses.fields(section)


@functools.cache
def _checks_of(section: type) -> tuple[tuple[str, str, Parser, bool], ...]:
    """For each field of a section: its name, its name in an error, its check, and whether None is allowed."""
    where = section.__name__.lower()
    return tuple((f.name, f"{where}.{f.name}", f.metadata["check"], f.default is None) for f in fields_of(section))


class Checked:
    """Base of a section whose fields are checked on creation, from a file or by a program."""

    def __post_init__(self) -> None:
        section: type = type(self)
        for name, what, check, optional in _checks_of(section):
            value = getattr(self, name)
            if value is not None or not optional:
                check(value, what)
