# SPDX-License-Identifier: BSD-3-Clause
"""The rules that every argument of `simlib.theory` obeys, and the one sentence each that says so."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simlib.errors import InputError


def _is_real(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(what: str, value: object, least: int = 1) -> int:
    """`value` as an `int`, if it is a whole number of at least `least`.

    Raises `InputError` if it is a `bool`, not an integer, or too small.

    Examples
    --------
    >>> check_count("n", 8)
    8
    >>> check_count("n", 0)
    Traceback (most recent call last):
    simlib.errors.InputError: n = 0: must be an integer of at least 1; count whole threads
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(what, value, f"must be an integer of at least {least}", "count whole threads")
    return int(value)


def check_time(what: str, value: object, cure: str = "give seconds") -> float:
    """`value` as a `float`, if it is a finite duration (or other cost) of at least 0.

    Raises `InputError` if it is not a real number, not finite, or negative.

    Examples
    --------
    >>> check_time("think", 2)
    2.0
    >>> check_time("think", -1.0)
    Traceback (most recent call last):
    simlib.errors.InputError: think = -1.0: must be finite and at least 0; give seconds
    """
    if not _is_real(value) or not 0 <= float(value) < math.inf:
        raise InputError(what, value, "must be finite and at least 0", cure)
    return float(value)


def check_probability(what: str, value: object) -> float:
    """`value` as a `float`, if it lies in [0, 1].

    Raises `InputError` if it is not a real number or lies outside.

    Examples
    --------
    >>> check_probability("write_share", 0.25)
    0.25
    >>> check_probability("write_share", 25)
    Traceback (most recent call last):
    simlib.errors.InputError: write_share = 25: must be in [0, 1]; give a fraction, not a percentage
    """
    if not _is_real(value) or not 0 <= float(value) <= 1:
        raise InputError(what, value, "must be in [0, 1]", "give a fraction, not a percentage")
    return float(value)


def check_cycle(names: str, *times: float) -> None:
    """Refuse a cycle that takes no time at all: its throughput would be infinite.

    Raises `InputError` if all `times` are 0.

    Examples
    --------
    >>> check_cycle("think, service", 0.0, 1e-6)
    >>> check_cycle("think, service", 0.0, 0.0)
    Traceback (most recent call last):
    simlib.errors.InputError: think, service = (0.0, 0.0): must not all be 0; give at least one positive time
    """
    if not any(times):
        raise InputError(names, times, "must not all be 0", "give at least one positive time")


def check_vector(what: str, values: ArrayLike, *, positive: bool) -> NDArray[np.float64]:
    """`values` as a vector of finite floats, each above 0 (`positive`) or at least 0.

    Raises `InputError` if it is not one-dimensional, is empty, or an element breaks the rule.

    Examples
    --------
    >>> check_vector("demands", [1, 2.5], positive=False)
    array([1. , 2.5])
    >>> check_vector("throughput", [1, 0], positive=True)
    Traceback (most recent call last):
    simlib.errors.InputError: throughput[1] = 0.0: must be finite and above 0; remove or correct the element
    """
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(what, values, "must be a vector of numbers", "give a list or an array") from None
    if vector.ndim != 1 or vector.size == 0:
        raise InputError(what, values, "must be a vector with at least one element", "give a list or an array")
    good = np.isfinite(vector) & ((vector > 0) if positive else (vector >= 0))
    if not good.all():
        worst = int(np.argmin(good))
        rule = "must be finite and " + ("above 0" if positive else "at least 0")
        raise InputError(f"{what}[{worst}]", float(vector[worst]), rule, "remove or correct the element")
    return vector
