# SPDX-License-Identifier: BSD-3-Clause
"""What a histogram tells of the values that it counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def quantile(low: ArrayLike, high: ArrayLike, count: ArrayLike, share: float) -> float:
    """The value that a share of all values does not exceed, those of a bucket being spread evenly over it.

    Returns: NaN if nothing was counted.

    - `low`, `high`, `count`, shape (buckets,): least value of each bucket, first value above it, values in it; from the
      lowest bucket to the highest.
    - `share`: from 0 to 1.

    >>> quantile([0, 10, 20], [10, 20, 40], [0, 50, 50], 0.75)
    30.0
    """
    counts = np.asarray(count, dtype=float)
    if not counts.any():
        return float("nan")
    seen = np.cumsum(counts)
    wanted = share * seen[-1]
    at = int(np.searchsorted(seen, wanted))
    first, end = float(np.asarray(low)[at]), float(np.asarray(high)[at])
    return first + (end - first) * float((wanted - (seen[at] - counts[at])) / counts[at])
