# SPDX-License-Identifier: BSD-3-Clause
"""What QEMU decides while it migrates, as arithmetic: one function a decision.

Source: QEMU 10.0, the file and function that each names. Whole numbers are divided as C does.
"""

from __future__ import annotations

from simlib.machine_code import kept

WINDOW_S = 0.1
"""QEMU measures and limits its bandwidth over so long, s: migration/migration-stats.h BUFFER_DELAY."""

LOOK_S = 0.051
"""Without a limit it stops sending after so long to look at the rest, s: migration/ram.c ram_save_iterate, MAX_WAIT."""

PERIOD_S = 1.0
"""A synchronisation judges the guest if the last that did was longer ago, s: migration/ram.c migration_bitmap_sync."""

SLICE_S = 0.01
"""A throttled vCPU runs for so long, and then sleeps: migration/cpu-throttle.c CPU_THROTTLE_TIMESLICE_NS."""

PAGE = 4096
"""Bytes of a page as QEMU counts them (TARGET_PAGE_SIZE) on x86, arm64, riscv and LoongArch."""

_HEADER = 8
"""Bytes before each page: migration/ram.c save_page_header."""

WHOLE_PAGE = _HEADER + PAGE
"""Bytes of a page that is sent whole."""

ZERO_PAGE = _HEADER + 1
"""Bytes of a page of zeros: migration/ram.c save_zero_page."""

_FLUSH_PAGES = 32
"""Pages after which the stream knows that they were sent: half of migration/qemu-file.c MAX_IOV_SIZE."""

_TOLERANCE, _LINEAR = 25, 50
"""system/dirtylimit.c DIRTYLIMIT_TOLERANCE_RANGE, MiB/s, and DIRTYLIMIT_LINEAR_ADJUSTMENT_PCT, percent."""


@kept(nogil=True)
def is_high(dirtied: float, sent: float, threshold: int) -> bool:
    """Whether the guest dirtied more than a share of what was sent, in the time that is judged.

    Source: migration/ram.c migration_trigger_throttle.

    - `dirtied`, `sent`: bytes.
    - `threshold`: throttle-trigger-threshold, percent.

    >>> is_high(51.0, 100.0, 50), is_high(50.0, 100.0, 50)
    (True, False)
    """
    return bool(dirtied > sent * threshold / 100)


@kept(nogil=True)
def next_throttle(
    now: int, dirtied: float, allowed: float, initial: int, increment: int, tailslow: bool, most: int
) -> int:
    """The throttle that follows, percent; the guest was high twice.

    Source: migration/ram.c mig_throttle_guest_down, migration/cpu-throttle.c cpu_throttle_set.

    - `now`: percent; 0: none yet.
    - `dirtied`, `allowed`: bytes that the guest dirtied, and might have.
    - `initial`, `increment`, `tailslow`, `most`: cpu-throttle-initial, cpu-throttle-increment, cpu-throttle-tailslow,
      max-cpu-throttle.

    >>> next_throttle(0, 90.0, 50.0, 20, 10, False, 99), next_throttle(20, 90.0, 50.0, 20, 10, False, 99)
    (20, 30)
    >>> next_throttle(50, 55.0, 50.0, 20, 10, True, 99)  # half the CPU dirties 10 % too much: 45.5 % would do
    55
    """
    if now == 0:
        return min(99, max(1, initial))
    more = increment
    if tailslow:
        left = 100 - now
        ideal = int(left * (allowed / dirtied))
        more = min(left - ideal, increment)
    return min(99, max(1, min(now + more, most)))


@kept(nogil=True)
def sleep_s(throttle: int) -> float:
    """How long a vCPU sleeps after each slice, s.

    Source: migration/cpu-throttle.c cpu_throttle_thread.

    >>> sleep_s(50), round(sleep_s(99), 6)
    (0.01, 0.99)
    """
    return float(SLICE_S * throttle / (100 - throttle))


@kept(nogil=True)
def bytes_in_window(limit: float) -> float:
    """Bytes that are sent in a window before the limit is found to be exceeded: whole flushes.

    Source: migration/migration-stats.c migration_rate_exceeded.

    - `limit`: max-bandwidth, bytes/s.

    >>> bytes_in_window(50e6)  # 39 flushes of 32 pages
    5121792.0
    """
    flush = _FLUSH_PAGES * WHOLE_PAGE
    return float(flush * (int(limit * WINDOW_S / flush) + 1))


@kept(nogil=True)
def next_sleep_us(sleep_us: int, quota: int, current: int, full_us: int) -> int:
    """What a vCPU sleeps whenever its dirty ring is full, µs, after a look at its rate.

    Source: system/dirtylimit.c dirtylimit_adjust_throttle, dirtylimit_set_throttle.

    - `sleep_us`: until now.
    - `quota`, `current`: vcpu-dirty-limit, and its rate, MiB/s.
    - `full_us`: to fill the ring at the highest rate that was seen, µs.

    >>> next_sleep_us(0, 10, 30, 131_072)  # within 25 MiB/s, nothing is done
    0
    >>> next_sleep_us(0, 10, 100, 131_072), next_sleep_us(0, 100, 140, 131_072)
    (1179648, 13107)
    """
    low, high = min(quota, current), max(quota, current)
    if high - low <= _TOLERANCE:
        return sleep_us
    if current == 0:
        return 0
    if (high - low) * 100 // high > _LINEAR:
        share = (high - low) * 100 // high
        step = int(full_us * share / (100 - share))
    else:
        step = full_us // 10
    sleep_us += step if quota < current else -step
    return max(0, min(sleep_us, full_us * 99))
