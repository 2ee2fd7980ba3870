# SPDX-License-Identifier: BSD-3-Clause
"""Decisions of QEMU during a migration as arithmetic, one function per decision.

Source: QEMU 10.0; each function names its file and function there. Integers are divided as in C.
"""

from __future__ import annotations

from simlib._lib.jit import cached_njit

WINDOW_S = 0.1
"""Window over which QEMU measures and limits its bandwidth, s: migration/migration-stats.h BUFFER_DELAY."""

MAX_WAIT_S = 0.051
"""Time after which QEMU, without a bandwidth limit, stops sending to check how much remains, s: migration/ram.c
ram_save_iterate, MAX_WAIT."""

PAGE = 4096
"""Bytes of a page as QEMU counts them (TARGET_PAGE_SIZE) on x86, arm64, riscv and LoongArch."""

_HEADER = 8
"""Bytes of the header before each page: migration/ram.c save_page_header."""

WHOLE_PAGE = _HEADER + PAGE
"""Bytes that are sent for a page with its contents."""

ZERO_PAGE = _HEADER + 1
"""Bytes that are sent for a page of zeros: migration/ram.c save_zero_page."""

_FLUSH_PAGES = 32
"""Pages after which QEMU flushes the stream and counts its bytes: half of migration/qemu-file.c MAX_IOV_SIZE."""


@cached_njit(nogil=True)
def is_high(dirtied: float, sent: float, threshold: int) -> bool:
    """True if the guest dirtied more than `threshold` percent of the bytes that were sent since the last check.

    Source: migration/ram.c migration_trigger_throttle.

    - `dirtied`, `sent`: bytes.
    - `threshold`: throttle-trigger-threshold, percent.

    >>> is_high(51.0, 100.0, 50), is_high(50.0, 100.0, 50)
    (True, False)
    """
    return bool(dirtied > sent * threshold / 100)


@cached_njit(nogil=True)
def bytes_in_window(limit: float) -> float:
    """Bytes that are sent in a window before QEMU finds that the limit is exceeded: whole flushes.

    Source: migration/migration-stats.c migration_rate_exceeded.

    - `limit`: max-bandwidth, bytes/s.

    >>> bytes_in_window(50e6)  # 39 flushes of 32 pages
    5121792.0
    """
    flush = _FLUSH_PAGES * WHOLE_PAGE
    return float(flush * (int(limit * WINDOW_S / flush) + 1))
