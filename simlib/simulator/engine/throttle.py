# SPDX-License-Identifier: BSD-3-Clause
"""Decisions of a VMM that throttles its guest: one function per decision. Integers are divided as in C."""

from __future__ import annotations

from simlib._lib.jit import cached_njit
from simlib.model.quantities import PS_PER_S

_TOLERANCE, _LINEAR = 25, 50
"""QEMU's DIRTYLIMIT_TOLERANCE_RANGE, MiB/s, and DIRTYLIMIT_LINEAR_ADJUSTMENT_PCT, percent (system/dirtylimit.c)."""


@cached_njit(nogil=True)
def sleep_time(slice_ps: int, window: int, percent: int) -> int:
    """Duration of one sleep of a vCPU, ps.

    Source: migration/cpu-throttle.c cpu_throttle_thread; vmm/src/vcpu_throttling.rs thread_fn_inner.

    >>> sleep_time(10_000, 0, 75), sleep_time(0, 10_000, 75)
    (30000, 7500)
    """
    if slice_ps > 0:
        return slice_ps * percent // (100 - percent)
    return window * percent // 100


@cached_njit(nogil=True)
def next_throttle(
    now: int, dirtied: float, allowed: float, initial: int, increment: int, tailslow: bool, most: int
) -> int:
    """Next throttle, percent, after enough checks with too many dirtied pages to trigger throttling.

    Source: migration/ram.c mig_throttle_guest_down, migration/cpu-throttle.c cpu_throttle_set.

    - `now`: current throttle, percent; 0: none yet.
    - `dirtied`, `allowed`: amount that the guest dirtied, and the amount allowed.
    - `initial`, `increment`, `most`: as in `simlib.model.throttle.Throttle`.
    - `tailslow`: QEMU's cpu-throttle-tailslow: add less than `increment` if less suffices.

    >>> next_throttle(0, 90.0, 50.0, 20, 10, False, 99), next_throttle(20, 90.0, 50.0, 20, 10, False, 99)
    (20, 30)
    >>> next_throttle(50, 55.0, 50.0, 20, 10, True, 99)  # half the CPU dirties 10 % too much: 45.5 % would suffice
    55
    """
    if now == 0:
        return min(99, max(1, initial))
    more = increment
    if tailslow:
        cpu_left = 100 - now
        ideal = int(cpu_left * (allowed / dirtied))
        more = min(cpu_left - ideal, increment)
    return min(99, max(1, min(now + more, most)))


@cached_njit(nogil=True)
def next_sleep_us(sleep_us: int, quota: int, current: int, full_us: int) -> int:
    """Time in µs that a vCPU sleeps from now on when its dirty ring is full, computed from its measured dirty rate.

    Source: system/dirtylimit.c dirtylimit_adjust_throttle, dirtylimit_set_throttle.

    - `sleep_us`: current duration.
    - `quota`, `current`: vcpu-dirty-limit, and the vCPU's dirty rate, MiB/s.
    - `full_us`: time to fill the ring at the highest rate seen, µs.

    >>> next_sleep_us(0, 10, 30, 131_072)  # within 25 MiB/s, the sleep does not change
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


@cached_njit(nogil=True)
def dirty_rate_mib(pages: int, period_ps: int) -> int:
    """Dirty rate of a vCPU in whole MiB/s, as QEMU computes it from 4 KiB pages.

    Source: migration/dirtyrate.c do_calculate_dirtyrate.

    - `pages`: pages dirtied in the period.

    >>> dirty_rate_mib(511, 10**12), dirty_rate_mib(512, 10**12), dirty_rate_mib(512, 10**11)
    (1, 2, 20)
    """
    return (pages >> 8) * PS_PER_S // period_ps


@cached_njit(nogil=True)
def fill_time_us(entries: int, fastest: int) -> int:
    """Time to fill a dirty ring at a dirty rate, µs.

    Source: system/dirtylimit.c dirtylimit_dirty_ring_full_time.

    - `entries`: entries of the ring, one per 4 KiB page.
    - `fastest`: dirty rate, MiB/s.

    >>> fill_time_us(4096, 400)
    40000
    """
    return (entries >> 8) * 1_000_000 // max(1, fastest)
