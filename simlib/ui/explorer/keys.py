# SPDX-License-Identifier: BSD-3-Clause
"""What a page has a control for, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Key(NamedTuple):
    """One value that a page has a control for: a key of a scenario file, or a parameter of the address.

    - `table`: of the scenario file; empty: the parameter stands alone.
    """

    table: str
    name: str
    label: str
    words: tuple[Any, ...] = ()
    """What it may be, or pairs of a label and that; empty: a text as the file has it."""
    help: str = ""
    steps: tuple[Any, ...] = ()
    """Values that its slider has, as a file has them; empty: it has no slider."""

    @property
    def path(self) -> str:
        """Its name in an address."""
        return f"{self.table}.{self.name}" if self.table else self.name


def nearest(value: float, steps: Iterable[float]) -> int:
    """The number of the step that is nearest to a value, by their ratio.

    >>> nearest(60, [1, 2, 4, 8, 16, 32, 64, 128])
    6
    """
    away = [abs(math.log((1 + step) / (1 + value))) for step in steps]
    return away.index(min(away))
