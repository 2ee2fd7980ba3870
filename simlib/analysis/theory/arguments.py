# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the arguments of `simlib.analysis.theory`, each of which raises `InputError`."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simlib._lib.errors import InputError


def check_count(what: str, value: object) -> int:
    """Return `value` as an `int` if it is a whole number of at least 1.

    >>> check_count("n", 0)
    Traceback (most recent call last):
    simlib.InputError: n = 0: must be an integer of at least 1; give a whole number
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise InputError(what, value, "must be an integer of at least 1", "give a whole number")
    return int(value)


def check_time(what: str, value: object, hint: str = "give seconds", limit: float = math.inf) -> float:
    """Return `value` as a `float` if it is a finite duration (or other cost) from 0 to `limit`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= limit or math.isinf(value):
        raise InputError(
            what, value, "must be finite and at least 0" + f", at most {limit:g}" * (limit < math.inf), hint
        )
    return float(value)


def check_cycle(names: str, *times: float) -> None:
    """Refuse a cycle that takes no time, because its throughput would be infinite."""
    if not any(times):
        raise InputError(names, times, "must not all be 0", "give at least one positive time")


def check_vector(what: str, values: ArrayLike, *, positive: bool) -> NDArray[np.float64]:
    """Return `values` as a vector of finite floats, each above 0 (`positive`) or at least 0.

    >>> check_vector("throughput", [1, 0], positive=True)
    Traceback (most recent call last):
    simlib.InputError: throughput[1] = 0.0: must be finite and above 0; remove or correct the element
    """
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(what, values, "must be a vector of numbers", "give a list or an array") from None
    if vector.ndim != 1 or vector.size == 0:
        raise InputError(what, values, "must be a vector with at least one element", "give a list or an array")
    valid = np.isfinite(vector) & ((vector > 0) if positive else (vector >= 0))
    if not valid.all():
        index = int(np.argmin(valid))
        rule = "must be finite and " + ("above 0" if positive else "at least 0")
        raise InputError(f"{what}[{index}]", float(vector[index]), rule, "remove or correct the element")
    return vector
