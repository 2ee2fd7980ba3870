# SPDX-License-Identifier: BSD-3-Clause
"""Controls of a page as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Key(NamedTuple):
    """A value with a control: a key of a scenario file, or a parameter of the URL.

    - `table`: table of the scenario file; empty for a parameter of the URL.
    """

    table: str
    name: str
    label: str
    words: tuple[Any, ...] = ()
    """Allowed values, or pairs of label and value; empty: any text, as in the file."""
    help: str = ""
    steps: tuple[Any, ...] = ()
    """Values of its slider, as in the file; empty: it has no slider."""

    @property
    def path(self) -> str:
        """Its name in a URL."""
        return f"{self.table}.{self.name}" if self.table else self.name


def nearest(value: float, steps: Iterable[float]) -> int:
    """Index of the step that is nearest to a value, by their ratio.

    >>> nearest(60, [1, 2, 4, 8, 16, 32, 64, 128])
    6
    """
    distances = [abs(math.log((1 + step) / (1 + value))) for step in steps]
    return distances.index(min(distances))
