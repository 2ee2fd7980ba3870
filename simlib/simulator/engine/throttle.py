# SPDX-License-Identifier: BSD-3-Clause
"""What a VMM that slows its guest down decides, as arithmetic: one function a decision.

Whole numbers are divided as C does.
"""

from __future__ import annotations

from simlib._lib.jit import cached_njit
from simlib.model.quantities import PS_PER_S

_TOLERANCE, _LINEAR = 25, 50
"""system/dirtylimit.c DIRTYLIMIT_TOLERANCE_RANGE, MiB/s, and DIRTYLIMIT_LINEAR_ADJUSTMENT_PCT, percent."""


@cached_njit(nogil=True)
def sleeps(each_slice: int, window: int, percent: int) -> int:
    """For how long a vCPU sleeps at once, ps.

    Source: migration/cpu-throttle.c cpu_throttle_thread; vmm/src/vcpu_throttling.rs thread_fn_inner.

    >>> sleeps(10_000, 0, 75), sleeps(0, 10_000, 75)
    (30000, 7500)
    """
    if each_slice > 0:
        return each_slice * percent // (100 - percent)
    return window * percent // 100


@cached_njit(nogil=True)
def next_throttle(
    now: int, dirtied: float, allowed: float, initial: int, increment: int, tailslow: bool, most: int
) -> int:
    """The throttle that follows, percent; the guest was high as often as it may.

    Source: migration/ram.c mig_throttle_guest_down, migration/cpu-throttle.c cpu_throttle_set.

    - `now`: percent; 0: none yet.
    - `dirtied`, `allowed`: what the guest dirtied, and might have.
    - `initial`, `increment`, `most`: as `simlib.model.throttle.Throttle` has them.
    - `tailslow`: whether less is added where less would do: cpu-throttle-tailslow.

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


@cached_njit(nogil=True)
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


@cached_njit(nogil=True)
def rate_mib(pages: int, period_ps: int) -> int:
    """A vCPU's rate of dirtying, MiB/s, in whole MiB as QEMU counts its pages of 4 KiB.

    Source: migration/dirtyrate.c do_calculate_dirtyrate.

    - `pages`: that it dirtied in a period.

    >>> rate_mib(511, 10**12), rate_mib(512, 10**12), rate_mib(512, 10**11)
    (1, 2, 20)
    """
    return (pages >> 8) * PS_PER_S // period_ps


@cached_njit(nogil=True)
def full_us(entries: int, fastest: int) -> int:
    """For how long a ring is filled at a rate, µs.

    Source: system/dirtylimit.c dirtylimit_dirty_ring_full_time.

    - `entries`: of the ring, of 4 KiB.
    - `fastest`: MiB/s.

    >>> full_us(4096, 400)
    40000
    """
    return (entries >> 8) * 1_000_000 // max(1, fastest)
