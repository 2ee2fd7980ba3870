# SPDX-License-Identifier: BSD-3-Clause
"""Counter-based random draws that every engine computes identically, bit for bit.

A draw depends only on seed, thread and draw number, not on the engine, the worker or the order of events. Strategies
can therefore be compared with common random numbers. The generator is SplitMix64 (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators"), used as a hash of the counter.

Durations come from a table of 2048 equally likely values in fixed point: the conditional means of a gamma distribution
between its 2048-quantiles, so that the table has the mean of the distribution, up to rounding. No engine evaluates a
logarithm, whose last bit may differ between mathematical libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from simlib._lib.errors import InputError
from simlib.model.job import Places

TABLE_BITS = 11
"""A table has 2**TABLE_BITS values."""

FIXED_POINT_BITS = 16
"""Table values are multiples of 2**-FIXED_POINT_BITS of the mean."""

GAMMA = 0x9E3779B97F4A7C15
"""Increment of SplitMix64 (the odd 64-bit integer nearest to 2**64 / golden ratio)."""

_MASK = 2**64 - 1


def mix(z: int) -> int:
    """SplitMix64's output function of a 64-bit state (variant 13 of Stafford's mixers).

    >>> hex(mix(GAMMA))
    '0xe220a8397b1dcdaf'
    """
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply `mix` to many states at once."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def thread_keys(seed: int, threads: int) -> NDArray[np.uint64]:
    """Key of each thread's random stream.

    Returns: ndarray of uint64, shape (threads,).

    - `seed`: any non-negative integer below 2**63; 0 is a seed like any other.

    >>> keys = thread_keys(0, 3)
    >>> len(set(keys.tolist()))
    3
    """
    if not 0 <= seed < 2**63:
        raise InputError("seed", seed, "must be at least 0 and below 2**63")
    root = np.uint64(mix((seed * GAMMA + 1) & _MASK))
    numbers = np.arange(1, threads + 1, dtype=np.uint64) * np.uint64(GAMMA)
    return mix_all(root ^ mix_all(numbers))


def draw(key: int, number: int) -> int:
    """Return the 64 random bits of one draw of a thread.

    >>> draw(7, 0) != draw(7, 1)
    True
    """
    return mix((key + (number + 1) * GAMMA) & _MASK)


def first_tick(key: int, period: int) -> int:
    """Time of a timer's first tick: a random time within the first period.

    - `key`: key of the stream that draws the turns, which never reaches this draw.

    >>> 0 <= first_tick(7, 4000) < 4000
    True
    """
    return (draw(key, 2**32) >> 32) * period >> 32


@functools.lru_cache(maxsize=64)
def quantile_table(cv: float) -> NDArray[np.int64]:
    """Table of a gamma distribution with mean 1 and coefficient of variation `cv`.

    Returns: ndarray of int64, shape (2048,), in units of 2**-16. Raises `InputError` if `cv` is negative, above 8, or
    not finite.

    - `cv`: standard deviation over mean. 0: every value is the mean. 1: the exponential distribution.

    >>> table = quantile_table(1.0) / 2**16
    >>> round(float(table.mean()), 4), bool(0.99 < table.std() < 1.0)
    (1.0, True)
    """
    if not 0 <= cv <= 8:
        raise InputError("coefficient of variation", cv, "must lie between 0 and 8")
    size = 1 << TABLE_BITS
    unit = 1 << FIXED_POINT_BITS
    if cv < 1e-3:
        return np.full(size, unit, dtype=np.int64)
    shape = 1.0 / cv**2
    edges = special.gammaincinv(shape, np.linspace(0.0, 1.0, size + 1))
    # E[X | bin] of a gamma variable: its density times x is a gamma density of shape + 1.
    partial = np.diff(special.gammainc(shape + 1.0, edges))
    return np.asarray(np.rint(partial * size * unit), dtype=np.int64)


TURN_BITS = 32
"""Number of bits of a draw that determine the length of a turn."""

SEEK_BITS = 12
"""A table of places has 2**SEEK_BITS + 1 edges of equally likely bins."""

WITHIN_BITS = 30
"""Number of bits that determine a place in its bin: the last bin of Zipf's law over 1 TiB has millions of places."""

SCATTER = 2654435761
"""Prime that scatters ranks over a region: neighbours in rank are not neighbours in memory (Knuth's multiplier)."""


def _check_exponent(exponent: float) -> None:
    if not 0 <= exponent <= 4:
        raise InputError("exponent of a Zipf distribution", exponent, "must lie between 0 and 4")


@functools.lru_cache(maxsize=64)
def zipf_table(exponent: float, places: int) -> NDArray[np.int64]:
    """Zipf ranks at evenly spaced probabilities: quantiles of the density (r + 1)**-exponent on [0, places].

    Returns: ndarray of int64, shape (4097,): shares of the places, in units of 2**-32. Raises `InputError` if the
    exponent is negative, above 4, or not finite.

    - `exponent`: 0: all places are equally likely. 0.99: YCSB's default (Cooper et al. 2010, section 5.2).

    >>> float(zipf_table(0.0, 1000)[2048] / 2**32)
    0.5
    >>> bool(zipf_table(0.99, 10**6)[2048] / 2**32 < 0.01)  # half of all accesses go to less than 1 % of the pages
    True
    """
    _check_exponent(exponent)
    shares = np.linspace(0.0, 1.0, (1 << SEEK_BITS) + 1)
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        ranks = np.expm1(shares * np.log1p(places))
    else:
        ranks = np.expm1(np.log1p(shares * np.expm1(power * np.log1p(places))) / power)
    return np.asarray(np.rint(np.clip(ranks / places, 0.0, 1.0) * 2.0**32), dtype=np.int64)


def zipf_classes(exponent: float, places: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Classes of places by popularity with the density of `zipf_table`, of sizes 1, 1, 2, 4 … and the remaining places.

    Returns: share of the accesses that go to each class, and its number of places, shape (classes,). Raises
    `InputError` as `zipf_table` does.

    >>> share, size = zipf_classes(1.0, 7)
    >>> size.tolist(), share.round(2).tolist()
    ([1.0, 1.0, 2.0, 3.0], [0.33, 0.19, 0.25, 0.23])
    """
    _check_exponent(exponent)
    edges = np.unique([0, *(1 << np.arange(places.bit_length())), places]).astype(np.float64)
    power = 1.0 - exponent
    below = np.log1p(edges) if abs(power) < 1e-9 else np.expm1(power * np.log1p(edges)) / power
    return np.diff(below) / below[-1], np.diff(edges)


def quantile_places(quantiles: Sequence[float] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Table of places, in the format of `zipf_table`, from quantiles at evenly spaced probabilities.

    Raises `InputError` unless there are 4097 numbers from 0 to 1 in ascending order.
    """
    edges = np.asarray(quantiles)
    if edges.shape != ((1 << SEEK_BITS) + 1,) or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) >= 0).all():
        raise InputError("quantiles of places", f"{edges.size} numbers", "must be 4097 ascending numbers from 0 to 1")
    return np.asarray(np.rint(edges * 2.0**32), dtype=np.int64)


def seek_tables(places: Sequence[Places], pages: int) -> NDArray[np.int64]:
    """One table of places per row, from exponents of Zipf's law or from quantiles.

    The last column is 1 if ranks are scattered over the region.

    >>> seek_tables((0.0, 0.99), 100).shape
    (2, 4098)
    """
    rows = np.zeros((len(places), (1 << SEEK_BITS) + 2), dtype=np.int64)
    for number, row in enumerate(places):
        if isinstance(row, (int, float)):
            rows[number, :-1], rows[number, -1] = zipf_table(row, pages), number > 0
        else:
            rows[number, :-1] = quantile_places(row)
    return rows


def spread_table(values: tuple[float, ...]) -> NDArray[np.int64]:
    """Table of a distribution with mean 1 whose equally likely values have the ratios of `values`.

    Returns: as `quantile_table`.

    >>> table = spread_table((1.0, 2.0)) / 2**16
    >>> sorted(set(table.round(2).tolist())), round(float(table.mean()), 4)
    ([0.67, 1.33], 1.0)
    """
    size = 1 << TABLE_BITS
    chosen = np.asarray(values)[np.arange(size) * len(values) // size]
    return np.asarray(np.rint(chosen / chosen.mean() * (1 << FIXED_POINT_BITS)), dtype=np.int64)


@functools.lru_cache(maxsize=64)
def tables(cvs: tuple[float | tuple[float, ...], ...]) -> NDArray[np.int64]:
    """One quantile table per row.

    >>> tables((0.0, 1.0)).shape
    (2, 2048)
    """
    return np.stack([spread_table(cv) if isinstance(cv, tuple) else quantile_table(cv) for cv in cvs])
