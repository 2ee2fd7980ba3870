# SPDX-License-Identifier: BSD-3-Clause
"""The course of a migration: what a VMM makes of the pages that a guest writes, without simulating each page.

Time goes on in QEMU's windows of 100 ms. In each it sends, looks at the bitmap if little is left, throttles the guest
if it dirtied too much, and switches over if what is left fits into the downtime. The rules are those of
`simlib.vmm.rules` and `simlib.simulator.engine.throttle`, the pages those of `simlib.vmm.memory`. Cloud Hypervisor
sends all that a GET gave, and then decides whether what the next one gives can be sent while the guest stands.

Source: QEMU 10.0, migration/migration.c migration_thread, migration_iteration_run, migration_rate_limit;
migration/ram.c ram_save_iterate, migration_bitmap_sync.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simlib._lib.jit import cached_njit
from simlib.model.quantities import PS_PER_S
from simlib.model.throttle import Throttle
from simlib.simulator.engine.throttle import full_us, next_sleep_us, next_throttle, rate_mib, sleeps
from simlib.vmm import rules
from simlib.vmm.memory import (
    BitmapState,
    Floats,
    LinkModel,
    WorkingSet,
    distinct_pages,
    missing_shares,
    new_memory,
    pages_left,
    send_cell,
    synchronise,
)
from simlib.vmm.settings import QEMU, Settings, Vmm

MOST_PASSES = 4096
"""Synchronisations that are kept."""

PATIENCE_S, ALIKE = 300.0, 100
"""After so long, a migration whose last so many synchronisations left as much is not going to end, s."""

TIME, NEW, LEFT, LOST, SENT, KEPT = range(6)
"""Columns of `PrecopyTrajectory.passes`."""


class PrecopyTrajectory(NamedTuple):
    """What a migration comes to.

    - `completed`: whether it switched over before the limit.
    - `total_s`, `downtime_s`: times.
    - `synchronisations`: as QEMU counts them.
    - `throttle`: the last one, percent.
    - `sleep_s`: longest time for which a vCPU was made to sleep at once, s.
    - `sent_bytes`: in all.
    - `guest_s`: for how long the guest ran, as if undisturbed.
    - `left_pages`: at the switchover.
    - `missing`, shape (classes,): share of each class that the other side does not have, at the end.
    - `passes`, shape (synchronisations, 6): time, s; pages found newly dirty; pages left; share of the time that the
      guest loses, percent; bytes sent; guest's time, s: after each synchronisation.
    """

    completed: bool
    total_s: float
    downtime_s: float
    synchronisations: int
    throttle: int
    sleep_s: float
    sent_bytes: float
    guest_s: float
    left_pages: float
    missing: Floats
    passes: Floats


class _Means(NamedTuple):
    """What of `Settings` the course needs, by numbers."""

    max_bandwidth: float
    downtime_limit: float
    avail_switchover_bandwidth: float
    auto_converge: bool
    throttle_trigger_threshold: int
    cpu_throttle_initial: int
    cpu_throttle_increment: int
    cpu_throttle_tailslow: bool
    max_cpu_throttle: int
    dirty_limit: bool
    vcpu_dirty_limit: int
    x_vcpu_dirty_limit_period: float
    rule: Throttle
    whole_passes: bool
    sync_every_s: float


_NOW, _GUEST, _SENT, _LEFT, _RUNS, _LONGEST, _MAY_SWITCH, _WINDOW, _WINDOW_SENT, _JUDGED, _JUDGED_SENT, _JUDGED_NEW, \
    _LOOK, _PERIOD, _LEAST, _MOST = range(16)  # fmt: skip
"""What changes, times in s: now, guest's time, bytes sent, pages left, share of the time in which the guest runs, its
longest sleep, bytes that may be left at the switchover; begin of the window, and what had been sent then; the same of
what is judged, and pages found new in it; next periodic synchronisation, and look at the vCPUs' rates; least and most
pages left of late."""

_THROTTLE, _HIGH, _SYNCS, _SEEN, _SLEEP_US, _FASTEST, _ALIKE = range(7)
"""The same, whole: throttle, times that the guest was high, synchronisations, and those at the last periodic look,
sleep at a full ring, highest rate of a vCPU, synchronisations that were compared."""


def precopy_trajectory(
    pages: WorkingSet, line: LinkModel, settings: Settings, limit_s: float, vmm: Vmm = QEMU
) -> PrecopyTrajectory:
    """Migrate a guest.

    - `limit_s`: when it is given up, s.
    - `vmm`: which VMM does it.

    >>> one = WorkingSet(*(np.array([float(x)]) for x in (2**18, 0.1, 0, 0, 1, 0)))  # 1 GiB, 10 % of its pages a second
    >>> found = precopy_trajectory(one, LinkModel(page_s=4e-6), Settings(max_bandwidth=0), 60.0)
    >>> found.completed, round(found.total_s, 2), found.synchronisations
    (True, 1.11, 4)
    """
    named = {name: getattr(settings, name) for name in _Means._fields if hasattr(settings, name)}
    named |= {name: float(named[name]) for name in ("max_bandwidth", "avail_switchover_bandwidth")}
    named |= {name: named[name] / 1000 for name in ("downtime_limit", "x_vcpu_dirty_limit_period")}
    named["dirty_limit"] = settings.dirty_limit and line.ring_entries > 0
    rule = vmm.throttle
    if vmm.whole_passes:
        named |= {"auto_converge": True, "dirty_limit": False, "throttle_trigger_threshold": rule.trigger,
                  "cpu_throttle_initial": rule.initial, "cpu_throttle_increment": rule.increment,
                  "max_cpu_throttle": rule.most}  # fmt: skip
    sync_every_s = rule.sync_every / PS_PER_S if rule.sync_every else np.inf
    means = _Means(**named, rule=rule, whole_passes=vmm.whole_passes, sync_every_s=sync_every_s)
    passes = np.zeros((MOST_PASSES, 6))
    done, total, down, syncs, throttle, longest, sent, guest, left, missing = _course(
        pages, line, means, float(limit_s), passes
    )
    return PrecopyTrajectory(
        done, total, down, syncs, throttle, longest, sent, guest, left, missing, passes[: min(syncs, MOST_PASSES)]
    )


@cached_njit(nogil=True)
def _course(
    pages: WorkingSet, line: LinkModel, means: _Means, limit_s: float, passes: Floats
) -> tuple[bool, float, float, int, int, float, float, float, float, Floats]:
    """`precopy_trajectory`, by numbers."""
    by_get = line.chunk_pages == 0
    memory = new_memory(pages, by_get)
    s, n = np.zeros(16), np.zeros(7, np.int64)
    s[_SENT], s[_LEFT], s[_RUNS], s[_LOOK], s[_PERIOD] = (
        line.state_bytes,
        pages_left(memory),
        1.0,
        means.sync_every_s,
        np.inf,
    )
    s[_WINDOW_SENT], s[_LEAST], n[_SYNCS] = line.state_bytes, np.inf, 1
    passes[0, LEFT] = s[_LEFT]
    down, completed = 0.0, False
    while s[_NOW] < limit_s and not completed:
        fits = not means.whole_passes and (s[_LEFT] < 0.5 or s[_LEFT] * rules.PAGE < s[_MAY_SWITCH])
        if _is_due(line, means, s, n):
            new = _look(pages, memory, line, s, n, by_get)
            if (s[_NOW] - s[_JUDGED]) * PS_PER_S > means.rule.judge_every:
                _judge(line, means, s, n)
            _write_down(passes, s, n, new)
            if _is_stuck(means, s, n):
                _pass_time(s, limit_s - s[_NOW])
                break
            fits = s[_LEFT] < 0.5 or s[_LEFT] * rules.PAGE < s[_MAY_SWITCH]
            if means.whole_passes:
                fits = s[_LEFT] * line.page_s <= means.downtime_limit
        if fits:
            _write_down(passes, s, n, _look(pages, memory, line, s, n, by_get))
            s[_SENT] += s[_LEFT] * rules.WHOLE_PAGE
            down, completed = line.switch_s + s[_LEFT] * line.page_s, True
        else:
            if s[_NOW] >= s[_PERIOD]:
                _limit(pages, line, means, s, n)
            _iterate(pages, memory, line, means, s)
    missing = missing_shares(pages, memory, s[_GUEST])
    return (
        completed, s[_NOW] + down, down, n[_SYNCS], n[_THROTTLE], s[_LONGEST], s[_SENT], s[_GUEST], s[_LEFT], missing
    )  # fmt: skip


@cached_njit(nogil=True)
def _pass_time(s: Floats, seconds: float) -> None:
    s[_NOW] += seconds
    s[_GUEST] += seconds * s[_RUNS]


@cached_njit(nogil=True)
def _is_due(line: LinkModel, means: _Means, s: Floats, n: Floats) -> bool:
    """Whether the bitmap is synchronised now: little is left, or the periodic look finds that it was not for long."""
    if means.whole_passes:
        return bool(s[_LEFT] < 0.5)
    due = s[_LEFT] * rules.PAGE < s[_MAY_SWITCH]
    if means.auto_converge and s[_NOW] >= s[_LOOK]:
        due = due or (n[_SYNCS] > 1 and n[_SYNCS] == n[_SEEN])
        n[_SEEN] = n[_SYNCS] + int(due)
        s[_LOOK] += means.sync_every_s
    return bool(due)


@cached_njit(nogil=True)
def _look(pages: WorkingSet, memory: BitmapState, line: LinkModel, s: Floats, n: Floats, by_get: bool) -> float:
    """Synchronise the bitmap; pages that are new in it."""
    new = synchronise(pages, memory, s[_GUEST], by_get)
    s[_LEFT] = pages_left(memory)
    s[_JUDGED_NEW] += new
    n[_SYNCS] += 1
    _pass_time(s, line.sync_s)
    return float(new)


@cached_njit(nogil=True)
def _judge(line: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Throttle the guest if it dirtied too much, as often as it may, since the last judgement."""
    dirtied, sent = s[_JUDGED_NEW] * rules.PAGE, s[_SENT] - s[_JUDGED_SENT]
    if rules.is_high(dirtied, sent, means.throttle_trigger_threshold):
        n[_HIGH] += 1
        if n[_HIGH] >= means.rule.times:
            n[_HIGH] = 0
            if means.auto_converge:
                n[_THROTTLE] = next_throttle(
                    n[_THROTTLE], dirtied, sent * means.throttle_trigger_threshold / 100, means.cpu_throttle_initial,
                    means.cpu_throttle_increment, means.cpu_throttle_tailslow, means.max_cpu_throttle,
                )  # fmt: skip
                asleep = sleeps(means.rule.slice, means.rule.window, n[_THROTTLE])
                awake = means.rule.slice if means.rule.slice > 0 else means.rule.window - asleep
                s[_LONGEST] = asleep / PS_PER_S + line.late_s
                s[_RUNS] = (1 - n[_THROTTLE] / 100) * max(0.0, 1 - line.late_s * PS_PER_S / awake)
            elif means.dirty_limit:
                s[_PERIOD] = min(s[_PERIOD], s[_NOW] + means.x_vcpu_dirty_limit_period)
    s[_JUDGED], s[_JUDGED_NEW], s[_JUDGED_SENT] = s[_NOW], 0.0, s[_SENT]


@cached_njit(nogil=True)
def _limit(pages: WorkingSet, line: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Look at the vCPUs' rates, and set for how long each sleeps when its ring is full."""
    period, ring = means.x_vcpu_dirty_limit_period, line.ring_entries
    s[_PERIOD] = s[_NOW] + period
    now = rate_mib(int(distinct_pages(pages, period * s[_RUNS]) / line.vcpus), int(period * PS_PER_S))
    n[_FASTEST] = max(n[_FASTEST], now)
    n[_SLEEP_US] = next_sleep_us(n[_SLEEP_US], means.vcpu_dirty_limit, now, full_us(int(ring), n[_FASTEST]))
    naps, fills = n[_SLEEP_US] * 1e-6, ring * line.vcpus * period / max(distinct_pages(pages, period), 1e-9)
    # The rings are emptied at each look, so that each vCPU fills its own once before it sleeps.
    s[_RUNS] = max(fills / (fills + naps), min(1.0, fills / period))
    if s[_RUNS] < 1:
        s[_LONGEST] = max(s[_LONGEST], naps)


@cached_njit(nogil=True)
def _iterate(pages: WorkingSet, memory: BitmapState, line: LinkModel, means: _Means, s: Floats) -> None:
    """Send until the limit of bandwidth, the end, or a while is over; then wait for the window's end, if limited."""
    begun, room = s[_NOW], np.inf
    if means.max_bandwidth > 0:
        room = rules.bytes_in_window(means.max_bandwidth) - (s[_SENT] - s[_WINDOW_SENT])
    while room > 1e-3 and s[_LEFT] >= 0.5 and s[_NOW] - begun < rules.LOOK_S:
        sent, took, gone = send_cell(pages, memory, line, s[_GUEST], room, rules.LOOK_S - (s[_NOW] - begun) + 1e-9)
        s[_SENT] += sent
        s[_LEFT] = max(0.0, s[_LEFT] - gone)
        room -= sent
        _pass_time(s, took)
    if room <= 1e-3 and s[_NOW] < s[_WINDOW] + rules.WINDOW_S:
        _pass_time(s, s[_WINDOW] + rules.WINDOW_S - s[_NOW])
    if s[_NOW] >= s[_WINDOW] + rules.WINDOW_S:
        speed = (s[_SENT] - s[_WINDOW_SENT]) / (s[_NOW] - s[_WINDOW])
        if means.avail_switchover_bandwidth > 0:
            speed = means.avail_switchover_bandwidth
        s[_MAY_SWITCH] = speed * means.downtime_limit
        s[_WINDOW], s[_WINDOW_SENT] = s[_NOW], s[_SENT]


@cached_njit(nogil=True)
def _write_down(passes: Floats, s: Floats, n: Floats, new: float) -> None:
    """Keep what a synchronisation found."""
    if n[_SYNCS] <= len(passes):
        row = passes[n[_SYNCS] - 1]
        row[TIME], row[NEW], row[LEFT], row[SENT], row[KEPT] = s[_NOW], new, s[_LEFT], s[_SENT], s[_GUEST]
        row[LOST] = 100 * (1 - s[_RUNS])


@cached_njit(nogil=True)
def _is_stuck(means: _Means, s: Floats, n: Floats) -> bool:
    """Whether it never will end: for long, each synchronisation has left as much, and no more can be done."""
    s[_LEAST], s[_MOST] = min(s[_LEAST], s[_LEFT]), max(s[_MOST], s[_LEFT])
    n[_ALIKE] += 1
    if n[_ALIKE] < ALIKE:
        return False
    spent = n[_THROTTLE] == means.max_cpu_throttle or not means.auto_converge
    stuck = spent and s[_NOW] > PATIENCE_S and s[_MOST] < 1.02 * s[_LEAST]
    s[_LEAST], s[_MOST], n[_ALIKE] = np.inf, 0.0, 0
    return bool(stuck)
