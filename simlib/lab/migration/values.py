# SPDX-License-Identifier: BSD-3-Clause
"""Sizes and numbers in experiments with migrations."""

from __future__ import annotations

import re
from typing import Any

from simlib._lib.errors import InputError

_SIZE = re.compile(r"([1-9]\d*)([KMG]?)", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def byte_count(value: Any, what: str) -> int:
    """Parse a size. Raises `InputError` if it is not one; `what`: its key.

    >>> byte_count("64M", "memory")
    67108864
    """
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise InputError(what, value, "is not a size", "write 64M or 1G")
    return int(match[1]) * _UNITS[match[2]]


def number_within(value: Any, what: str, minimum: int, maximum: int) -> Any:
    """Return a number. Raises `InputError` if it is not one, or is not in its range; `what`: its key."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InputError(what, value, f"must be from {minimum} to {maximum}", "docs/lab.md lists the keys")
    return value
