# SPDX-License-Identifier: BSD-3-Clause
"""Parsing and printing of sizes, durations and bandwidths.

Simulated time is an integer number of picoseconds, so that both engines compute identical times. Sizes are
integers in bytes, with binary multiples as in KVM's selftests (``2G`` is 2 GiB).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from simlib._lib.errors import InputError

PS_PER_S = 10**12
"""Picoseconds in one second."""

LARGEST = 2**62
"""Exclusive upper limit of times, sizes and bandwidths: 53 days, 4 EiB, 4.6 Ebit/s."""

_FASTEST = 10**15
"""Largest bandwidth, bit/s: faster than any memory."""

_DURATION_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": PS_PER_S}
_SIZE_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BITS_PER_S = {
    f"{prefix}{unit}/s": factor * bits
    for prefix, factor in (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
    for unit, bits in (("bit", 1), ("B", 8))
}
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*(?:/s)?)\s*")


def _split(text: str, what: str, rule: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(what, text, rule)
    return float(match[1]), match[2]


def parse_duration(text: str | int, what: str = "duration") -> int:
    """Parse a duration such as ``"1.2us"``.

    Returns: Picoseconds, rounded to the nearest. Raises `InputError` if the unit is missing or unknown, or the duration
    is negative or not finite.

    - `text`: a number with one of the units ps, ns, us, ms, s. The bare number 0 needs no unit.
    - `what`: the name that an error message gives to the value.

    >>> parse_duration("1.2us"), parse_duration("47 ns"), parse_duration(0)
    (1200000, 47000, 0)
    >>> parse_duration("12")
    Traceback (most recent call last):
    ...
    simlib.InputError: duration = 12: a duration needs a unit; write ps, ns, us, ms or s
    """
    rule = "a duration needs a unit; write ps, ns, us, ms or s"
    if text == 0 and not isinstance(text, bool):
        return 0
    if not isinstance(text, str):
        raise InputError(what, text, rule)
    value, unit = _split(text, what, rule)
    if unit not in _DURATION_PS:
        raise InputError(what, text, rule if not unit else f"unknown unit {unit!r}; write ps, ns, us, ms or s")
    if value < 0:
        raise InputError(what, text, "must not be negative")
    if not value * _DURATION_PS[unit] < LARGEST:
        raise InputError(what, text, "must be from 0 to 53 days", "simulated time ends after 75 minutes")
    return round(value * _DURATION_PS[unit])


def format_duration(ps: float) -> str:
    """Format a duration in the largest unit in which the number is at least 1; whole picoseconds are exact.

    >>> format_duration(1_200_000), format_duration(47_000), format_duration(0)
    ('1.2us', '47ns', '0ps')
    """
    unit = next((u for u in ("s", "ms", "us", "ns") if abs(ps) >= _DURATION_PS[u]), "ps")
    if ps != int(ps):
        return f"{ps / _DURATION_PS[unit]:.6g}{unit}"
    exact = Decimal(int(ps)) / Decimal(_DURATION_PS[unit])  # a power of ten, so that it reads back equal
    return f"{exact.normalize():f}{unit}"


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Format a duration for display, with this many significant digits; an empty string if it is not finite.

    >>> format_seconds(0.0123456), format_seconds(-3.2e-6), format_seconds(5e-10), format_seconds(0.0)
    ('12.3ms', '-3.2us', '0.5ns', '0s')
    """
    if not math.isfinite(seconds):
        return ""
    ps = float(f"{seconds * 1e12:.{digits}g}") if round(seconds * 1e12) else 0.0
    return "0s" if not ps else format_duration(ps) if abs(ps) >= 1000 else f"{ps / 1000:g}ns"


def parse_size(text: str | int, what: str = "size") -> int:
    """Parse a size such as ``"2G"``, to bytes (binary multiples: K, M, G, T; ``GiB`` and ``GB`` mean the same).

    Raises `InputError` if the unit is unknown or the size is not a whole, positive number of bytes.

    >>> parse_size("4K"), parse_size("2G"), parse_size("1.5GiB"), parse_size(4096)
    (4096, 2147483648, 1610612736, 4096)
    """
    rule = "a size is a number, optionally with the suffix K, M, G or T"
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise InputError(what, text, rule)
    if isinstance(text, int) and not 0 < text < LARGEST:
        raise InputError(what, text, "must be a whole, positive number of bytes below 2**62")
    value, unit = (float(text), "") if isinstance(text, int) else _split(text, what, rule)
    short = unit.removesuffix("iB").removesuffix("B") or ""
    if short.upper() not in _SIZE_BYTES:
        raise InputError(what, str(text), f"unknown unit {unit!r}; {rule}")
    size = value * _SIZE_BYTES[short.upper()]
    if not 0 < size < LARGEST or size != int(size):
        raise InputError(what, str(text), "must be a whole, positive number of bytes below 2**62")
    return int(size)


def parse_bandwidth(text: str | int, what: str = "bandwidth") -> int:
    """Parse a bandwidth such as ``"25Gbit/s"`` or ``"3.1GB/s"``, to bits per second (decimal multiples: k, M, G, T).

    Raises `InputError` if the unit is missing or unknown, or the bandwidth is below 1 bit/s.

    >>> parse_bandwidth("25Gbit/s"), parse_bandwidth("1.5 MB/s")
    (25000000000, 12000000)
    >>> parse_bandwidth("0Gbit/s", "workload.link")
    Traceback (most recent call last):
    ...
    simlib.InputError: workload.link = 0Gbit/s: must be at least 1 bit/s; nothing could ever be sent
    """
    rule = "a bandwidth is a number with the unit bit/s or B/s, optionally with the prefix k, M, G or T"
    if not isinstance(text, str):
        raise InputError(what, text, rule)
    value, unit = _split(text, what, rule)
    if unit not in _BITS_PER_S:
        raise InputError(what, text, f"unknown unit {unit!r}; {rule}")
    bits = value * _BITS_PER_S[unit]
    if not bits >= 1:
        raise InputError(what, text, "must be at least 1 bit/s", "nothing could ever be sent")
    if bits > _FASTEST:
        raise InputError(what, text, "must be from 1 bit/s to 1000 Tbit/s", "no memory is faster")
    return round(bits)


def format_bandwidth(bits: int) -> str:
    """Format a bandwidth as `parse_bandwidth` reads it.

    >>> format_bandwidth(25_000_000_000), format_bandwidth(1_500_001)
    ('25Gbit/s', '1500001bit/s')
    """
    unit = next(u for u in ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s", "bit/s") if bits % _BITS_PER_S[u] == 0)
    return f"{bits // _BITS_PER_S[unit]}{unit}"


def format_size(size: int) -> str:
    """Format a size as `parse_size` reads it.

    >>> format_size(2 * 2**30), format_size(4096), format_size(1000)
    ('2G', '4K', '1000')
    """
    for unit in ("T", "G", "M", "K"):
        if size >= _SIZE_BYTES[unit] and size % _SIZE_BYTES[unit] == 0:
            return f"{size // _SIZE_BYTES[unit]}{unit}"
    return str(size)


def size_text(size: float) -> str:
    """Format a size for use in a sentence.

    >>> size_text(262176 * 2**20), size_text(600 * 2**20)
    ('256 GiB', '600 MiB')
    """
    return f"{size / 2**30:.4g} GiB" if size >= 2**30 else f"{size / 2**20:.4g} MiB"


def seconds_text(seconds: float, digits: int = 3) -> str:
    """Format a duration for use in a sentence.

    >>> seconds_text(3.4712e-6), seconds_text(67.08), seconds_text(0.0)
    ('3.47 µs', '67.1 s', '0 s')
    """
    return re.sub(r"(?<=[0-9])(?=[a-z])", " ", format_seconds(seconds, digits)).replace("us", "µs")
