# SPDX-License-Identifier: BSD-3-Clause
"""The calendar: a winner tree over threads, each of which has at most one pending wake-up.

A key contains a wake-up's time and the thread's number in one integer: the smallest key is the next event; at equal
times, the lower thread number is first. `tree[1]` is the winner; the leaves, one per thread, are the second half.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simlib.simulator.engine.compiled.inline import always_inline
from simlib.simulator.engine.limits import HORIZON_PS, MAX_THREADS

THREAD_BITS = MAX_THREADS.bit_length() - 1
"""Number of low bits of a key that contain the thread's number."""

NEVER = np.iinfo(np.int64).max
"""Key of a thread without a wake-up."""


def initial_calendar(threads: int, turns: bool = False) -> NDArray[np.int64]:
    """Calendar in which every thread wakes at time zero; if turns have a length, it is empty until a turn begins.

    >>> initial_calendar(3)[1:6].tolist()
    [0, 0, 2, 0, 1]
    """
    leaves = 2
    while leaves < threads:
        leaves *= 2
    tree = np.full(2 * leaves, NEVER, dtype=np.int64)
    if not turns:
        tree[leaves : leaves + threads] = np.arange(threads)
    for node in range(leaves - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
    return tree


@always_inline
def least_rival(tree, number):
    """Smallest key of all other threads."""
    node = np.uint64((tree.shape[0] >> 1) + number)
    least = NEVER
    while node > np.uint64(1):
        least = min(least, tree[node ^ np.uint64(1)])
        node >>= np.uint64(1)
    return least


@always_inline
def key_of(time, number):
    """Key of a wake-up; a time past the horizon is clipped so that the key cannot overflow."""
    return (min(time, HORIZON_PS + 1) << THREAD_BITS) | number


@always_inline
def wake(tree, number, key):
    """Set a thread's key and update the winners up to the root."""
    node = np.uint64((tree.shape[0] >> 1) + number)
    tree[node] = key
    while node > np.uint64(3):  # two levels per iteration: a fifth fewer instructions
        key = min(key, tree[node ^ np.uint64(1)])
        node >>= np.uint64(1)
        tree[node] = key
        key = min(key, tree[node ^ np.uint64(1)])
        node >>= np.uint64(1)
        tree[node] = key
    if node > np.uint64(1):
        tree[1] = min(key, tree[node ^ np.uint64(1)])
