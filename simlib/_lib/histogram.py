# SPDX-License-Identifier: BSD-3-Clause
"""Quantiles of a histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def quantile(low: ArrayLike, high: ArrayLike, count: ArrayLike, share: float) -> float:
    """Quantile of the counted values, which are assumed to be uniformly distributed within each bucket.

    Returns: NaN if nothing was counted.

    - `low`, `high`, `count`, shape (buckets,): lowest value of each bucket, first value above it, number of values in
      it; from the lowest bucket to the highest.
    - `share`: level of the quantile, from 0 to 1.

    >>> quantile([0, 10, 20], [10, 20, 40], [0, 50, 50], 0.75)
    30.0
    """
    counts = np.asarray(count, dtype=float)
    if not counts.any():
        return float("nan")
    cumulative = np.cumsum(counts)
    rank = share * cumulative[-1]
    bucket = int(np.searchsorted(cumulative, rank))
    first, end = float(np.asarray(low)[bucket]), float(np.asarray(high)[bucket])
    return first + (end - first) * float((rank - (cumulative[bucket] - counts[bucket])) / counts[bucket])
