# SPDX-License-Identifier: BSD-3-Clause
"""Functions that Numba compiles when they are first called, and keeps where there is a place for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit


def kept(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's ``njit`` with its cache on disk; without one where the folder is read-only, the disk full, it is damaged.

    Then each process compiles anew, which takes seconds.

    Parameters
    ----------
    **options
        Of ``numba.njit``.

    Examples
    --------
    >>> @kept(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> twice(4)
    8
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            found = njit(cache=True, **options)(function)
        except RuntimeError:  # no folder that could be written: neither the package's nor the user's
            return njit(**options)(function)
        cache = found._cache  # Numba has no public name for it
        cache.save_overload = _or_nothing(cache.save_overload, OSError)
        cache.load_overload = _or_nothing(cache.load_overload, Exception)
        return found

    return compiled


def _or_nothing(call: Callable[..., Any], fault: type[Exception]) -> Callable[..., Any]:
    """A call that gives None where it fails in such a way."""

    def tried(*given: Any) -> Any:
        with suppress(fault):
            return call(*given)
        return None

    return tried
