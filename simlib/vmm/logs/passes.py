# SPDX-License-Identifier: BSD-3-Clause
"""Dirty rates from the passes of a migration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simlib.vmm.dirtying import DirtyRate

_SAME_TIME = 1.5
"""Passes whose times differ by less than this factor are pooled."""


def pool(passes: Sequence[tuple[float, float]], interval: float) -> tuple[DirtyRate, ...]:
    """Return one dirty rate for the passes of each length.

    - `passes`: length, s, and number of distinct pages that were dirtied, of each pass.
    - `interval`: time between two samples, s: the error of a pass's length.

    >>> [(rate.seconds, rate.pages) for rate in pool([(10.0, 500.0), (11.0, 520.0), (2.0, 150.0)], 0.1)]
    [(2.0, 150.0), (10.5, 510.0)]
    """
    groups: dict[int, list[tuple[float, float]]] = {}
    for seconds, pages in passes:
        groups.setdefault(round(np.log(seconds) / np.log(_SAME_TIME)), []).append((seconds, pages))
    rates = []
    for _, rows in sorted(groups.items()):
        seconds, pages = (float(np.mean(column)) for column in zip(*rows, strict=True))
        spread = float(np.std([row[1] for row in rows], ddof=1) / pages) if len(rows) > 1 else 0.0
        error = max(0.02, float(np.hypot(spread, interval / seconds) / np.sqrt(len(rows))))
        rates.append(DirtyRate(pages, seconds, error))
    return tuple(rates)
