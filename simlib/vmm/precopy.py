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

from collections.abc import Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.jit import address_of, cached_njit, compiling_in_background
from simlib.model.quantities import PS_PER_S
from simlib.simulator.engine.throttle import dirty_rate_mib, fill_time_us, next_sleep_us, next_throttle, sleep_time
from simlib.vmm import qemu_rules
from simlib.vmm.memory import (
    CELLS,
    Floats,
    LinkModel,
    PassState,
    Records,
    WorkingSet,
    active_time,
    chunk_cells,
    classes_of,
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

Counts = NDArray[np.int64]

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


_RULES = np.dtype(
    [(name, np.float64) for name in (
        *LinkModel._fields, "cpu", "burst_s", "pause_s", "phase_s", "max_bandwidth", "downtime_limit",
        "avail_switchover_bandwidth", "x_vcpu_dirty_limit_period", "sync_every_s",
    )]
    + [(name, np.int64) for name in (
        "auto_converge", "throttle_trigger_threshold", "cpu_throttle_initial", "cpu_throttle_increment",
        "cpu_throttle_tailslow", "max_cpu_throttle", "dirty_limit", "vcpu_dirty_limit", "times", "check_period",
        "slice", "window", "whole_passes", "chunk_cells",
    )]
)  # fmt: skip
"""Constants of a migration, as numbers: link, rhythm of the guest, settings, and rules of the VMM."""

_NOW, _GUEST, _SENT, _LEFT, _RUNS, _LONGEST, _MAY_SWITCH, _WINDOW, _WINDOW_SENT, _CHECK, _CHECK_SENT, _CHECK_NEW, \
    _NEXT_CHECK, _PERIOD, _LEAST, _LEAST_BEFORE, _COMPARED, _SLOW = range(18)  # fmt: skip
"""Indices of the state, times in s: now, guest's time, bytes sent, pages left, highest rate at which the guest's time
can advance (above 1: it can catch up), longest sleep of a vCPU, bytes that may be left at the switchover; beginning of
the window, and bytes sent by then; time of the last check, bytes sent by then, and pages dirtied since; next periodic
synchronisation, and next update of the dirty limit; minimum of the pages left in this period of `_is_stuck` and in the
one before, and the beginning of this one; time at less than half speed."""

_THROTTLE, _HIGH, _SYNCS, _SEEN, _SLEEP_US, _FASTEST, _UNCHANGED, _FIRST, _AT = range(9)
"""Indices of the integer state: throttle, checks above the threshold, synchronisations, their number at the last
periodic check, sleep at a full ring, highest rate of a vCPU, synchronisations in this period of `_is_stuck`, those
before the start, and the cell that is sent next."""


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
    state = start.state
    if state is None:
        memory, at = new_memory(pages, link.chunk_pages == 0), 0
    else:
        memory, at = memory_in_pass(pages, link.chunk_pages, state)
    s, n = np.zeros(18), np.zeros(9, np.int64)
    s[_CHECK], s[_CHECK_SENT] = 0.0 if state is None else -state.seconds, -start.sent_bytes
    n[_SYNCS], n[_FIRST], n[_THROTTLE], n[_AT] = start.synchronisations, start.synchronisations, start.throttle, at
    passes, rules = np.zeros((MOST_PASSES, 6)), _rules(pages, link, settings, vmm)
    ringed = rules if link.ring_entries > 0 else None
    completed, downtime_s = _precopy(classes_of(pages), memory, rules, ringed, s, n, float(limit_s), passes)
    return PrecopyTrajectory(
        bool(completed), float(s[_NOW]) + downtime_s, downtime_s, int(n[_SYNCS]), int(n[_THROTTLE]), float(s[_LONGEST]),
        float(s[_SENT]), float(s[_GUEST]), active_time(s[_NOW], rules), float(s[_SLOW]), float(s[_LEFT]),
        missing_shares(pages, memory, s[_GUEST]), passes[: min(n[_SYNCS] - n[_FIRST] + 1, MOST_PASSES)],
    )  # fmt: skip


def compile_model(ringed: bool = False) -> None:
    """Compile the model with the help of another process, or load its machine code from the cache.

    Numba compiles at the first call, too, but not in parallel, and more slowly if several threads wait for it.

    - `ringed`: for guests with dirty rings.
    """
    with compiling_in_background(_precopy, _example(_precopy, ringed), "simlib.vmm"):
        compile_functions(_COMPILED_HERE)
    address_of(_precopy, _example(_precopy, ringed))


def compile_functions(functions: Sequence[Any]) -> None:
    """Compile functions of this module, or load their machine code from the cache."""
    for function in functions:
        address_of(function, _example(function))


def _example(function: Any, ringed: bool = False) -> tuple[Any, ...]:
    """Arguments of a compiled function, by the names of its parameters."""
    pages, link = WorkingSet(*np.array([[1.0], [1.0], [0.0], [0.0], [1.0], [0.0]])), LinkModel(1.0)
    rules = _rules(pages, link, Settings(), QEMU)
    examples = {
        "classes": classes_of(pages), "memory": new_memory(pages, True), "rules": rules,
        "ringed": rules if ringed else None, "s": np.zeros(18), "n": np.zeros(9, np.int64), "passes": np.zeros((1, 6)),
    }  # fmt: skip
    return tuple(examples.get(name, 0.0) for name in signature(function.py_func).parameters)


def _rules(pages: WorkingSet, link: LinkModel, settings: Settings, vmm: Vmm) -> Records:
    """Return a record with the fields of `_RULES`."""
    rule = vmm.throttle
    named = {**asdict(settings), **rule._asdict(), **pages._asdict(), **link._asdict()}
    for name in ("downtime_limit", "x_vcpu_dirty_limit_period"):
        named[name] /= 1000
    named |= {"dirty_limit": settings.dirty_limit and link.ring_entries > 0, "whole_passes": vmm.whole_passes,
              "sync_every_s": rule.sync_every / PS_PER_S if rule.sync_every else np.inf,
              "chunk_cells": chunk_cells(pages, link.chunk_pages)}  # fmt: skip
    if vmm.whole_passes:
        named |= {"auto_converge": True, "dirty_limit": False, "throttle_trigger_threshold": rule.trigger,
                  "cpu_throttle_initial": rule.initial, "cpu_throttle_increment": rule.increment,
                  "max_cpu_throttle": rule.most}  # fmt: skip
    rules = np.zeros(1, _RULES).view(np.recarray)[0]
    for name in _RULES.names or ():
        rules[name] = named[name]
    return rules


@cached_njit(nogil=True)
def _precopy(
    classes: Records, memory: Records, rules: Records, ringed: Records | None, s: Floats, n: Counts, limit_s: float,
    passes: Floats,
) -> tuple[bool, float]:  # fmt: skip
    """Compiled part of `precopy_trajectory`; return whether the migration completes, and its downtime, s.

    - `ringed`: the rules if the guest has dirty rings; else None, and the dirty limit is not compiled.
    - `s`, `n`: state; the caller sets what a running migration has.
    """
    s[_SENT], s[_WINDOW_SENT] = rules.state_bytes, rules.state_bytes
    s[_LEFT], s[_RUNS], s[_NEXT_CHECK] = pages_left(memory), 1 / rules.cpu, rules.sync_every_s
    s[_PERIOD], s[_LEAST], s[_LEAST_BEFORE] = np.inf, np.inf, np.inf
    if n[_THROTTLE] > 0:
        _throttle_vcpus(rules, s, n)
    passes[0, LEFT], passes[0, LOST] = s[_LEFT], 100 * (1 - min(1.0, s[_RUNS]))
    while s[_NOW] < limit_s:
        fits = not rules.whole_passes and (s[_LEFT] < 0.5 or s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH])
        if _is_due(rules, s, n):
            new = _synchronise(classes, memory, rules, s, n)
            if (s[_NOW] - s[_CHECK]) * PS_PER_S > rules.check_period:
                _check_throttle(rules, s, n)
            _record(passes, s, n, new)
            if _is_stuck(rules, s, n):
                _pass_time(rules, s, limit_s - s[_NOW])
                break
            fits = s[_LEFT] < 0.5 or s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH]
            if rules.whole_passes:
                fits = s[_LEFT] * rules.page_s <= rules.downtime_limit
        if fits:
            _record(passes, s, n, _synchronise(classes, memory, rules, s, n))
            s[_SENT] += s[_LEFT] * qemu_rules.WHOLE_PAGE
            return True, rules.switch_s + s[_LEFT] * rules.page_s
        if ringed is not None and s[_NOW] >= s[_PERIOD]:
            _limit(classes, ringed, s, n)
        _iterate(classes, memory, rules, s, n)
    return False, 0.0


@cached_njit(nogil=True)
def _pass_time(rules: Records, s: Floats, seconds: float) -> None:
    """Advance the time: the guest does the work that is due, or as much as its throttle permits."""
    before, due = s[_GUEST], active_time(s[_NOW], rules)
    s[_NOW] += seconds
    new = active_time(s[_NOW], rules)
    s[_GUEST] = min(new, before + seconds * s[_RUNS])
    if s[_GUEST] - before < (new - due) / 2 or (new == due and before < due and s[_RUNS] < 0.5):
        s[_SLOW] += seconds


@cached_njit(nogil=True)
def _is_due(rules: Records, s: Floats, n: Counts) -> bool:
    """True if the bitmap is synchronised now: little is left, or a periodic check finds no recent synchronisation."""
    if rules.whole_passes:
        return bool(s[_LEFT] < 0.5)
    due = s[_LEFT] * qemu_rules.PAGE < s[_MAY_SWITCH]
    if rules.auto_converge and s[_NOW] >= s[_NEXT_CHECK]:
        due = due or (n[_SYNCS] > 1 and n[_SYNCS] == n[_SEEN])
        n[_SEEN] = n[_SYNCS] + int(due)
        s[_NEXT_CHECK] += rules.sync_every_s
    return bool(due)


@cached_njit(nogil=True)
def _synchronise(classes: Records, memory: Records, rules: Records, s: Floats, n: Counts) -> float:
    """Synchronise the bitmap; return the number of pages that are new in it."""
    new = synchronise(classes, memory, s[_GUEST], rules.chunk_pages == 0)
    s[_LEFT] = pages_left(memory)
    s[_CHECK_NEW] += new
    n[_SYNCS] += 1
    _pass_time(rules, s, rules.sync_s)
    return float(new)


@cached_njit(nogil=True)
def _check_throttle(rules: Records, s: Floats, n: Counts) -> None:
    """Throttle the guest if it dirtied too much in as many checks as the rule requires."""
    dirtied, sent = s[_CHECK_NEW] * qemu_rules.PAGE, s[_SENT] - s[_CHECK_SENT]
    if qemu_rules.is_high(dirtied, sent, rules.throttle_trigger_threshold):
        n[_HIGH] += 1
        if n[_HIGH] >= rules.times:
            n[_HIGH] = 0
            if rules.auto_converge:
                n[_THROTTLE] = next_throttle(
                    n[_THROTTLE], dirtied, sent * rules.throttle_trigger_threshold / 100, rules.cpu_throttle_initial,
                    rules.cpu_throttle_increment, rules.cpu_throttle_tailslow, rules.max_cpu_throttle,
                )  # fmt: skip
                _throttle_vcpus(rules, s, n)
            elif rules.dirty_limit:
                s[_PERIOD] = min(s[_PERIOD], s[_NOW] + rules.x_vcpu_dirty_limit_period)
    s[_CHECK], s[_CHECK_NEW], s[_CHECK_SENT] = s[_NOW], 0.0, s[_SENT]


@cached_njit(nogil=True)
def _throttle_vcpus(rules: Records, s: Floats, n: Counts) -> None:
    """Apply the present throttle to the guest's rate and to the longest sleep."""
    asleep = sleep_time(rules.slice, rules.window, n[_THROTTLE])
    awake = rules.slice if rules.slice > 0 else rules.window - asleep
    s[_LONGEST] = max(s[_LONGEST], asleep / PS_PER_S + rules.late_s)
    s[_RUNS] = (1 - n[_THROTTLE] / 100) * max(0.0, 1 - rules.late_s * PS_PER_S / awake) / rules.cpu


@cached_njit(nogil=True)
def _limit(classes: Records, rules: Records, s: Floats, n: Counts) -> None:
    """Update the dirty limit: measure the vCPUs' rates, and set the sleep for a full ring."""
    period, ring = rules.x_vcpu_dirty_limit_period, rules.ring_entries
    s[_PERIOD] = s[_NOW] + period
    work = _fill_time(classes, ring * rules.vcpus, period)
    fills = max(work, ring * rules.fault_s)
    now = dirty_rate_mib(int(ring * period * min(s[_RUNS] / work, 1 / work, 1 / fills)), int(period * PS_PER_S))
    n[_FASTEST] = max(n[_FASTEST], now)
    n[_SLEEP_US] = next_sleep_us(n[_SLEEP_US], rules.vcpu_dirty_limit, now, fill_time_us(int(ring), n[_FASTEST]))
    naps = n[_SLEEP_US] * 1e-6
    # The rings are emptied at each update, so that each vCPU fills its own once before it sleeps.
    s[_RUNS] = max(work / (rules.cpu * fills + naps), min(1.0, work / period))
    if s[_RUNS] < 1:
        s[_LONGEST] = max(s[_LONGEST], naps)


@cached_njit(nogil=True)
def _fill_time(classes: Records, entries: float, period: float) -> float:
    """Time in which the undisturbed guest fills the rings, s; if it takes longer than `period`, at its mean rate.

    All pages in the rings are reset when one is full, so that the guest fills them with distinct pages from then on.
    """
    distinct = distinct_pages(classes, period)
    if distinct <= entries:
        return float(entries * period / max(distinct, 1e-9))
    low, high = 0.0, period
    for _ in range(40):
        middle = (low + high) / 2
        if distinct_pages(classes, middle) < entries:
            low = middle
        else:
            high = middle
    return high


@cached_njit(nogil=True)
def _iterate(classes: Records, memory: Records, rules: Records, s: Floats, n: Counts) -> None:
    """Send until the bandwidth limit, the last page, or QEMU's MAX_WAIT; at the limit, wait for the window's end."""
    begun, room = s[_NOW], np.inf
    if rules.max_bandwidth > 0:
        room = qemu_rules.bytes_in_window(rules.max_bandwidth * rules.limit_share) - (s[_SENT] - s[_WINDOW_SENT])
    while room > 1e-3 and s[_LEFT] >= 0.5 and s[_NOW] - begun < MAX_WAIT_S:
        left = (room, MAX_WAIT_S - (s[_NOW] - begun) + 1e-9)
        sent, took, gone, over = send_cell(classes, memory, n[_AT], rules, s[_GUEST], left)
        if over:
            n[_AT] = (n[_AT] + 1) % CELLS
        s[_SENT] += sent
        s[_LEFT] = max(0.0, s[_LEFT] - gone)
        room -= sent
        _pass_time(rules, s, took)
    if room <= 1e-3 and s[_NOW] < s[_WINDOW] + qemu_rules.WINDOW_S:
        _pass_time(rules, s, s[_WINDOW] + qemu_rules.WINDOW_S - s[_NOW])
    if s[_NOW] >= s[_WINDOW] + qemu_rules.WINDOW_S:
        speed = (s[_SENT] - s[_WINDOW_SENT]) / (s[_NOW] - s[_WINDOW])
        if rules.avail_switchover_bandwidth > 0:
            speed = rules.avail_switchover_bandwidth
        s[_MAY_SWITCH] = speed * rules.downtime_limit
        s[_WINDOW], s[_WINDOW_SENT] = s[_NOW], s[_SENT]


@cached_njit(nogil=True)
def _record(passes: Floats, s: Floats, n: Counts, new: float) -> None:
    if n[_SYNCS] - n[_FIRST] < len(passes):
        row = passes[n[_SYNCS] - n[_FIRST]]
        row[TIME], row[NEW], row[LEFT], row[SENT], row[KEPT] = s[_NOW], new, s[_LEFT], s[_SENT], s[_GUEST]
        row[LOST] = 100 * (1 - min(1.0, s[_RUNS]))


@cached_njit(nogil=True)
def _is_stuck(rules: Records, s: Floats, n: Counts) -> bool:
    """True if the migration never ends: no fewer pages are left than before, and the throttle cannot increase."""
    s[_LEAST] = min(s[_LEAST], s[_LEFT])
    n[_UNCHANGED] += 1
    period, cycle = s[_NOW] - s[_COMPARED], rules.burst_s + rules.pause_s
    many = n[_UNCHANGED] >= _STUCK_SYNCS and period >= max(_STUCK_S, _STUCK_CYCLES * cycle)
    if not many and (n[_UNCHANGED] < _LONG_SYNCS or period < max(_LONG_S, _LONG_CYCLES * cycle)):
        return False
    spent = n[_THROTTLE] == rules.max_cpu_throttle or not rules.auto_converge
    stuck = spent and s[_LEAST] > 0.98 * s[_LEAST_BEFORE]
    s[_LEAST_BEFORE], s[_LEAST], s[_COMPARED], n[_UNCHANGED] = s[_LEAST], np.inf, s[_NOW], 0
    return bool(stuck)


COMPILED_BESIDE = (_iterate,)
"""Functions that another process compiles, since Numba uses one processor."""

_COMPILED_HERE = (_synchronise, _check_throttle, _is_stuck, _is_due, _record)
