# SPDX-License-Identifier: BSD-3-Clause
"""The pre-copy model: passes, throttling and switchover of a migration, without simulating each page.

Time advances in QEMU's windows of 100 ms. In each window QEMU sends pages, synchronises the dirty bitmap if little is
left, throttles the guest if it dirtied too much, and switches over if the dirty memory can be sent within the downtime
limit. `simlib.vmm.qemu_rules` and `simlib.simulator.engine.throttle` implement the rules, and `simlib.vmm.memory`
models the memory. Cloud Hypervisor sends all pages that a GET returned, and then checks whether the pages of the next
GET can be sent within the downtime limit.

Source: QEMU 10.0, migration/migration.c migration_thread, migration_iteration_run, migration_rate_limit;
migration/ram.c ram_save_iterate, migration_bitmap_sync.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simlib._lib.jit import cached_njit
from simlib.model.quantities import PS_PER_S
from simlib.model.throttle import Throttle
from simlib.simulator.engine.throttle import dirty_rate_mib, fill_time_us, next_sleep_us, next_throttle, sleep_time
from simlib.vmm import qemu_rules
from simlib.vmm.memory import (
    BitmapState,
    Floats,
    LinkModel,
    PassState,
    WorkingSet,
    active_time,
    chunk_cells,
    distinct_pages,
    memory_in_pass,
    missing_shares,
    new_memory,
    pages_left,
    send_cell,
    synchronise,
)
from simlib.vmm.qemu_rules import MAX_WAIT_S
from simlib.vmm.settings import QEMU, Settings, Vmm

MOST_PASSES = 4096
"""Largest number of synchronisations that are recorded."""

_STUCK_SYNCS, _STUCK_CYCLES, _STUCK_S = 50, 2.0, 30.0
_LONG_SYNCS, _LONG_CYCLES, _LONG_S = 12, 4.0, 120.0
"""Least number of synchronisations, of the guest's cycles of bursts, and of seconds, in each of two periods. A
migration is judged endless if no fewer pages were left in the second. If passes are long, fewer of them suffice."""

TIME, NEW, LEFT, LOST, SENT, KEPT = range(6)
"""Columns of `PrecopyTrajectory.passes`."""


class PrecopyStart(NamedTuple):
    """State from which a migration is simulated; by default its beginning.

    - `state`: the pass that is under way; None: no page has been sent.
    - `synchronisations`: their number so far, as QEMU counts them.
    - `throttle`: present throttle, percent.
    - `sent_bytes`: bytes sent since the last synchronisation.
    """

    state: PassState | None = None
    synchronisations: int = 1
    throttle: int = 0
    sent_bytes: float = 0.0


BEGINNING = PrecopyStart()
"""Beginning of a migration."""


class PrecopyTrajectory(NamedTuple):
    """Outcome of a simulated pre-copy phase. Times and bytes count from its start.

    - `completed`: True if the migration switched over before the limit.
    - `total_s`, `downtime_s`: times.
    - `synchronisations`: their number, as QEMU counts them, with those before the start.
    - `throttle`: last throttle, percent.
    - `sleep_s`: longest sleep of a throttled vCPU, s.
    - `sent_bytes`: bytes sent.
    - `guest_s`: time for which the undisturbed guest would be active for the work that it did, s. `demand_s`: time for
      which the undisturbed guest would have been active until the switchover, s.
    - `slow_s`: time during which the guest did less than half of its work, s.
    - `left_pages`: dirty pages at the switchover.
    - `missing`, shape (classes,): share of each class that the destination does not have at the end.
    - `passes`, shape (synchronisations, 6): state after each synchronisation: time, s; pages found newly dirty; pages
      left; share of time that the guest loses, percent; bytes sent; guest's time, s.
    """

    completed: bool
    total_s: float
    downtime_s: float
    synchronisations: int
    throttle: int
    sleep_s: float
    sent_bytes: float
    guest_s: float
    demand_s: float
    slow_s: float
    left_pages: float
    missing: Floats
    passes: Floats


class _Means(NamedTuple):
    """Settings and rules that the model uses, as numbers."""

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


_NOW, _GUEST, _SENT, _LEFT, _RUNS, _LONGEST, _MAY_SWITCH, _WINDOW, _WINDOW_SENT, _CHECK, _CHECK_SENT, _CHECK_NEW, \
    _NEXT_CHECK, _PERIOD, _LEAST, _LEAST_BEFORE, _COMPARED, _SLOW = range(18)  # fmt: skip
"""Indices of the state, times in s: now, guest's time, bytes sent, pages left, highest rate at which the guest's time
can advance (above 1: it can catch up), longest sleep of a vCPU, bytes that may be left at the switchover; beginning of
the window, and bytes sent by then; time of the last check, bytes sent by then, and pages dirtied since; next periodic
synchronisation, and next update of the dirty limit; minimum of the pages left in this period of `_is_stuck` and in the
one before, and the beginning of this one; time at less than half speed."""

_THROTTLE, _HIGH, _SYNCS, _SEEN, _SLEEP_US, _FASTEST, _UNCHANGED, _FIRST, _CHUNK_CELLS = range(9)
"""Indices of the integer state: throttle, checks above the threshold, synchronisations, their number at the last
periodic check, sleep at a full ring, highest rate of a vCPU, synchronisations in this period of `_is_stuck`, those
before the start, and cells that one CLEAR covers."""


def precopy_trajectory(
    pages: WorkingSet, link: LinkModel, settings: Settings, limit_s: float, vmm: Vmm = QEMU,
    start: PrecopyStart = BEGINNING,
) -> PrecopyTrajectory:  # fmt: skip
    """Simulate the pre-copy phase of a migration.

    - `limit_s`: time after which the simulation stops, s.
    - `vmm`: VMM whose rules are followed.
    - `start`: state of a migration that is already running.

    >>> columns = (2**18, 0.1, 0, 0, 1, 0)  # 1 GiB, of which 10 % is written per second
    >>> pages = WorkingSet(*(np.array([float(value)]) for value in columns))
    >>> result = precopy_trajectory(pages, LinkModel(page_s=4e-6), Settings(max_bandwidth=0), 60.0)
    >>> result.completed, round(result.total_s, 2), result.synchronisations
    (True, 1.11, 4)
    """
    named = {name: getattr(settings, name) for name in _Means._fields if hasattr(settings, name)}
    named |= {name: float(named[name]) for name in ("max_bandwidth", "avail_switchover_bandwidth")}
    named |= {name: named[name] / 1000 for name in ("downtime_limit", "x_vcpu_dirty_limit_period")}
    named["dirty_limit"] = settings.dirty_limit and link.ring_entries > 0
    rule = vmm.throttle
    if vmm.whole_passes:
        named |= {"auto_converge": True, "dirty_limit": False, "throttle_trigger_threshold": rule.trigger,
                  "cpu_throttle_initial": rule.initial, "cpu_throttle_increment": rule.increment,
                  "max_cpu_throttle": rule.most}  # fmt: skip
    sync_every_s = rule.sync_every / PS_PER_S if rule.sync_every else np.inf
    means = _Means(**named, rule=rule, whole_passes=vmm.whole_passes, sync_every_s=sync_every_s)
    state = start.state
    memory = new_memory(pages, link.chunk_pages == 0) if state is None else memory_in_pass(
        pages, link.chunk_pages, state
    )  # fmt: skip
    checked = (0.0 if state is None else float(state.seconds), float(start.sent_bytes))
    counts = (int(start.synchronisations), int(start.throttle), chunk_cells(pages, link.chunk_pages))
    passes = np.zeros((MOST_PASSES, 6))
    outcome = _precopy(pages, link, means, float(limit_s), passes, memory, checked, counts)
    missing = missing_shares(pages, memory, outcome[7])
    return PrecopyTrajectory._make((*outcome, missing, passes[: min(outcome[3] - counts[0] + 1, MOST_PASSES)]))


@cached_njit(nogil=True)
def _precopy(
    pages: WorkingSet, link: LinkModel, means: _Means, limit_s: float, passes: Floats, memory: BitmapState,
    checked: tuple[float, float], counts: tuple[int, int, int],
) -> tuple[bool, float, float, int, int, float, float, float, float, float, float]:  # fmt: skip
    """Compiled part of `precopy_trajectory`.

    - `checked`: time since the last synchronisation before the start, s, and bytes sent since then.
    - `counts`: number of synchronisations, and throttle, at the start; cells that one CLEAR covers.
    """
    by_get = link.chunk_pages == 0
    s, n = np.zeros(18), np.zeros(9, np.int64)
    s[_SENT], s[_WINDOW_SENT] = link.state_bytes, link.state_bytes
    s[_CHECK], s[_CHECK_SENT] = -checked[0], -checked[1]
    s[_LEFT], s[_RUNS], s[_NEXT_CHECK] = pages_left(memory), 1 / pages.cpu, means.sync_every_s
    s[_PERIOD], s[_LEAST], s[_LEAST_BEFORE] = np.inf, np.inf, np.inf
    n[_SYNCS], n[_FIRST], n[_THROTTLE], n[_CHUNK_CELLS] = counts[0], counts[0], counts[1], counts[2]
    if n[_THROTTLE] > 0:
        _throttle_vcpus(pages, link, means, s, n)
    passes[0, LEFT], passes[0, LOST] = s[_LEFT], 100 * (1 - min(1.0, s[_RUNS]))
    down, completed = 0.0, False
    while s[_NOW] < limit_s and not completed:
        fits = not means.whole_passes and (s[_LEFT] < 0.5 or s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH])
        if _is_due(means, s, n):
            new = _synchronise(pages, memory, link, s, n, by_get)
            if (s[_NOW] - s[_CHECK]) * PS_PER_S > means.rule.check_period:
                _check_throttle(pages, link, means, s, n)
            _record(passes, s, n, new)
            if _is_stuck(pages, means, s, n):
                _pass_time(pages, s, limit_s - s[_NOW])
                break
            fits = s[_LEFT] < 0.5 or s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH]
            if means.whole_passes:
                fits = s[_LEFT] * link.page_s <= means.downtime_limit
        if fits:
            _record(passes, s, n, _synchronise(pages, memory, link, s, n, by_get))
            s[_SENT] += s[_LEFT] * qemu_rules.WHOLE_PAGE
            down, completed = link.switch_s + s[_LEFT] * link.page_s, True
        else:
            if s[_NOW] >= s[_PERIOD]:
                _limit(pages, link, means, s, n)
            _iterate(pages, memory, link, means, s, n)
    return (
        completed, s[_NOW] + down, down, n[_SYNCS], n[_THROTTLE], s[_LONGEST], s[_SENT], s[_GUEST],
        active_time(pages, s[_NOW]), s[_SLOW], s[_LEFT],
    )  # fmt: skip


@cached_njit(nogil=True)
def _pass_time(pages: WorkingSet, s: Floats, seconds: float) -> None:
    """Advance the time: the guest does the work that is due, or as much as its throttle permits."""
    before, due = s[_GUEST], active_time(pages, s[_NOW])
    s[_NOW] += seconds
    new = active_time(pages, s[_NOW])
    s[_GUEST] = min(new, before + seconds * s[_RUNS])
    if s[_GUEST] - before < (new - due) / 2 or (new == due and before < due and s[_RUNS] < 0.5):
        s[_SLOW] += seconds


@cached_njit(nogil=True)
def _is_due(means: _Means, s: Floats, n: Floats) -> bool:
    """True if the bitmap is synchronised now: little is left, or a periodic check finds no recent synchronisation."""
    if means.whole_passes:
        return bool(s[_LEFT] < 0.5)
    due = s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH]
    if means.auto_converge and s[_NOW] >= s[_NEXT_CHECK]:
        due = due or (n[_SYNCS] > 1 and n[_SYNCS] == n[_SEEN])
        n[_SEEN] = n[_SYNCS] + int(due)
        s[_NEXT_CHECK] += means.sync_every_s
    return bool(due)


@cached_njit(nogil=True)
def _synchronise(pages: WorkingSet, memory: BitmapState, link: LinkModel, s: Floats, n: Floats, by_get: bool) -> float:
    """Synchronise the bitmap; return the number of pages that are new in it."""
    new = synchronise(pages, memory, s[_GUEST], by_get)
    s[_LEFT] = pages_left(memory)
    s[_CHECK_NEW] += new
    n[_SYNCS] += 1
    _pass_time(pages, s, link.sync_s)
    return float(new)


@cached_njit(nogil=True)
def _check_throttle(pages: WorkingSet, link: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Throttle the guest if it dirtied too much in as many checks as the rule requires."""
    dirtied, sent = s[_CHECK_NEW] * qemu_rules.PAGE, s[_SENT] - s[_CHECK_SENT]
    if qemu_rules.is_high(dirtied, sent, means.throttle_trigger_threshold):
        n[_HIGH] += 1
        if n[_HIGH] >= means.rule.times:
            n[_HIGH] = 0
            if means.auto_converge:
                n[_THROTTLE] = next_throttle(
                    n[_THROTTLE], dirtied, sent * means.throttle_trigger_threshold / 100, means.cpu_throttle_initial,
                    means.cpu_throttle_increment, means.cpu_throttle_tailslow, means.max_cpu_throttle,
                )  # fmt: skip
                _throttle_vcpus(pages, link, means, s, n)
            elif means.dirty_limit:
                s[_PERIOD] = min(s[_PERIOD], s[_NOW] + means.x_vcpu_dirty_limit_period)
    s[_CHECK], s[_CHECK_NEW], s[_CHECK_SENT] = s[_NOW], 0.0, s[_SENT]


@cached_njit(nogil=True)
def _throttle_vcpus(pages: WorkingSet, link: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Apply the present throttle to the guest's rate and to the longest sleep."""
    asleep = sleep_time(means.rule.slice, means.rule.window, n[_THROTTLE])
    awake = means.rule.slice if means.rule.slice > 0 else means.rule.window - asleep
    s[_LONGEST] = max(s[_LONGEST], asleep / PS_PER_S + link.late_s)
    s[_RUNS] = (1 - n[_THROTTLE] / 100) * max(0.0, 1 - link.late_s * PS_PER_S / awake) / pages.cpu


@cached_njit(nogil=True)
def _limit(pages: WorkingSet, link: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Update the dirty limit: measure the vCPUs' rates, and set the sleep for a full ring."""
    period, ring = means.x_vcpu_dirty_limit_period, link.ring_entries
    s[_PERIOD] = s[_NOW] + period
    work = _fill_time(pages, ring * link.vcpus, period)
    fills = max(work, ring * link.fault_s)
    now = dirty_rate_mib(int(ring * period * min(s[_RUNS] / work, 1 / work, 1 / fills)), int(period * PS_PER_S))
    n[_FASTEST] = max(n[_FASTEST], now)
    n[_SLEEP_US] = next_sleep_us(n[_SLEEP_US], means.vcpu_dirty_limit, now, fill_time_us(int(ring), n[_FASTEST]))
    naps = n[_SLEEP_US] * 1e-6
    # The rings are emptied at each update, so that each vCPU fills its own once before it sleeps.
    s[_RUNS] = max(work / (pages.cpu * fills + naps), min(1.0, work / period))
    if s[_RUNS] < 1:
        s[_LONGEST] = max(s[_LONGEST], naps)


@cached_njit(nogil=True)
def _fill_time(pages: WorkingSet, entries: float, period: float) -> float:
    """Time in which the undisturbed guest fills the rings, s; if it takes longer than `period`, at its mean rate.

    All pages in the rings are reset when one is full, so that the guest fills them with distinct pages from then on.
    """
    distinct = distinct_pages(pages, period)
    if distinct <= entries:
        return float(entries * period / max(distinct, 1e-9))
    low, high = 0.0, period
    for _ in range(40):
        middle = (low + high) / 2
        if distinct_pages(pages, middle) < entries:
            low = middle
        else:
            high = middle
    return high


@cached_njit(nogil=True)
def _iterate(pages: WorkingSet, memory: BitmapState, link: LinkModel, means: _Means, s: Floats, n: Floats) -> None:
    """Send until the bandwidth limit, the last page, or QEMU's MAX_WAIT; at the limit, wait for the window's end."""
    begun, room = s[_NOW], np.inf
    if means.max_bandwidth > 0:
        room = qemu_rules.bytes_in_window(means.max_bandwidth * link.limit_share) - (s[_SENT] - s[_WINDOW_SENT])
    while room > 1e-3 and s[_LEFT] >= 0.5 and s[_NOW] - begun < MAX_WAIT_S:
        left = (room, MAX_WAIT_S - (s[_NOW] - begun) + 1e-9)
        sent, took, gone = send_cell(pages, memory, link, n[_CHUNK_CELLS], s[_GUEST], left)
        s[_SENT] += sent
        s[_LEFT] = max(0.0, s[_LEFT] - gone)
        room -= sent
        _pass_time(pages, s, took)
    if room <= 1e-3 and s[_NOW] < s[_WINDOW] + qemu_rules.WINDOW_S:
        _pass_time(pages, s, s[_WINDOW] + qemu_rules.WINDOW_S - s[_NOW])
    if s[_NOW] >= s[_WINDOW] + qemu_rules.WINDOW_S:
        speed = (s[_SENT] - s[_WINDOW_SENT]) / (s[_NOW] - s[_WINDOW])
        if means.avail_switchover_bandwidth > 0:
            speed = means.avail_switchover_bandwidth
        s[_MAY_SWITCH] = speed * means.downtime_limit
        s[_WINDOW], s[_WINDOW_SENT] = s[_NOW], s[_SENT]


@cached_njit(nogil=True)
def _record(passes: Floats, s: Floats, n: Floats, new: float) -> None:
    if n[_SYNCS] - n[_FIRST] < len(passes):
        row = passes[n[_SYNCS] - n[_FIRST]]
        row[TIME], row[NEW], row[LEFT], row[SENT], row[KEPT] = s[_NOW], new, s[_LEFT], s[_SENT], s[_GUEST]
        row[LOST] = 100 * (1 - min(1.0, s[_RUNS]))


@cached_njit(nogil=True)
def _is_stuck(pages: WorkingSet, means: _Means, s: Floats, n: Floats) -> bool:
    """True if the migration never ends: no fewer pages are left than before, and the throttle cannot increase."""
    s[_LEAST] = min(s[_LEAST], s[_LEFT])
    n[_UNCHANGED] += 1
    period, cycle = s[_NOW] - s[_COMPARED], pages.burst_s + pages.pause_s
    many = n[_UNCHANGED] >= _STUCK_SYNCS and period >= max(_STUCK_S, _STUCK_CYCLES * cycle)
    if not many and (n[_UNCHANGED] < _LONG_SYNCS or period < max(_LONG_S, _LONG_CYCLES * cycle)):
        return False
    spent = n[_THROTTLE] == means.max_cpu_throttle or not means.auto_converge
    stuck = spent and s[_LEAST] > 0.98 * s[_LEAST_BEFORE]
    s[_LEAST_BEFORE], s[_LEAST], s[_COMPARED], n[_UNCHANGED] = s[_LEAST], np.inf, s[_NOW], 0
    return bool(stuck)
