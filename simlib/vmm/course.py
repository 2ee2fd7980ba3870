# SPDX-License-Identifier: BSD-3-Clause
"""The course of a migration: which pages are dirty when, and what the VMM makes of it, without simulating each page.

The memory is divided into cells, in the order in which it is sent, and its pages into classes (`Pages`). Of each cell
and class the course knows which share has yet to be sent, and which is clean: not written since the log last cleared
it. Time goes on in QEMU's windows of 100 ms. In each it sends, looks at the bitmap if little is left, throttles the
guest if it dirtied too much, and switches over if what is left fits into the downtime: the rules are those of
`simlib.vmm.rules`.

That is a mean: what is random in which page is written when is left out, as there are many pages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.machine_code import kept
from simlib.vmm import rules
from simlib.vmm.settings import Settings

Floats = NDArray[np.float64]

CELLS = 128
"""Cells of the memory."""

MOST_PASSES = 4096
"""Synchronisations that are kept."""

PATIENCE_S, ALIKE = 300.0, 100
"""After so long, a migration whose last so many synchronisations left as much is not going to end, s."""

TIME, NEW, LEFT, LOST, SENT, KEPT = range(6)
"""Columns of `Course.passes`."""


class Pages(NamedTuple):
    """The pages of a guest by class; arrays of shape (classes,).

    - `count`: pages.
    - `rate`: writes to each a second, while the guest runs undisturbed.
    - `sweep`: 1: they are written one after the other, so that each is written once in 1/`rate`; 0: at random.
    - `first`, `last`: between which shares of the memory they lie.
    - `zero`: 1: pages of zeros, as they never were written.
    """

    count: Floats
    rate: Floats
    sweep: Floats
    first: Floats
    last: Floats
    zero: Floats


class Line(NamedTuple):
    """How the memory gets to the other side.

    - `page_bytes`: of a page as QEMU counts it.
    - `page_s`: to send a page at full speed, s.
    - `zero_s`: to look at a page of zeros, s.
    - `switch_s`: time for which the guest stands beside what is sent then, s.
    - `state_bytes`: what is sent beside memory.
    - `sync_s`: to get the bitmap, s.
    - `chunk_pages`: pages that one CLEAR covers; 0: GET clears, or rings are reset.
    - `vcpus`: of the guest.
    - `ring_entries`: of each vCPU's dirty ring; 0: there are none.
    - `late_s`: for which a throttled vCPU sleeps longer than it was told, s.
    """

    page_bytes: float = 4096.0
    page_s: float = 1e-6
    zero_s: float = 1e-7
    switch_s: float = 0.005
    state_bytes: float = 113_000.0
    sync_s: float = 0.0
    chunk_pages: float = 0.0
    vcpus: float = 1.0
    ring_entries: float = 0.0
    late_s: float = 1e-4


class Course(NamedTuple):
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
    - `passes`, shape (synchronisations, 6): time, s; pages found newly dirty; pages left; share of the time that the guest
      loses, percent; bytes sent; guest's time, s: after each synchronisation.
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


def course(pages: Pages, line: Line, settings: Settings, limit_s: float) -> Course:
    """Migrate a guest.

    - `limit_s`: when it is given up, s.

    >>> one = Pages(*(np.array([float(x)]) for x in (2**18, 0.1, 0, 0, 1, 0)))  # 1 GiB, 10 % of its pages a second
    >>> found = course(one, Line(page_s=4e-6), Settings(max_bandwidth=0), 60.0)
    >>> found.completed, round(found.total_s, 2), found.synchronisations
    (True, 1.11, 4)
    """
    passes = np.zeros((MOST_PASSES, 6))
    numbers = np.array(
        [
            float(getattr(settings, name)) for name in (
                "max_bandwidth", "downtime_limit", "avail_switchover_bandwidth", "auto_converge",
                "throttle_trigger_threshold", "cpu_throttle_initial", "cpu_throttle_increment",
                "cpu_throttle_tailslow", "max_cpu_throttle", "dirty_limit", "vcpu_dirty_limit",
                "x_vcpu_dirty_limit_period",
            )
        ]
    )  # fmt: skip
    missing = np.zeros(len(pages.count))
    found = _course(pages, line, numbers, limit_s, passes, missing)
    return Course(*found, missing, passes[: min(found[3], MOST_PASSES)])


@kept(nogil=True)
def _spread(pages: Pages) -> Floats:
    """Pages of each class in each cell, shape (cells, classes)."""
    found = np.zeros((CELLS, len(pages.count)))
    for kind in range(len(pages.count)):
        width = pages.last[kind] - pages.first[kind]
        for cell in range(CELLS):
            low, high = cell / CELLS, (cell + 1) / CELLS
            part = min(high, pages.last[kind]) - max(low, pages.first[kind])
            if part > 0:
                found[cell, kind] = pages.count[kind] * part / width
    return found


@kept(nogil=True)
def distinct_pages(pages: Pages, seconds: float) -> float:
    """Distinct pages that the guest writes within a time."""
    found = 0.0
    for kind in range(len(pages.count)):
        touches = pages.rate[kind] * seconds
        found += pages.count[kind] * (min(1.0, touches) if pages.sweep[kind] > 0 else -np.expm1(-touches))
    return found


@kept(nogil=True)
def _age(pages: Pages, clean: Floats, since: Floats, cell: int, guest: float) -> None:
    """Let pages of a cell be written until the guest's time `guest`."""
    for kind in range(len(pages.count)):
        passed = guest - since[cell, kind]
        if passed <= 0 or pages.rate[kind] == 0:
            continue
        if pages.sweep[kind] == 0:
            clean[cell, kind] *= np.exp(-pages.rate[kind] * passed)
        else:  # each is written once a sweep: as many every moment
            clean[cell, kind] = max(0.0, clean[cell, kind] - pages.rate[kind] * passed)
        since[cell, kind] = guest


@kept(nogil=True)
def _course(
    pages: Pages, line: Line, numbers: Floats, limit_s: float, passes: Floats, missing: Floats
) -> tuple[bool, float, float, int, int, float, float, float, float]:
    """`course`, by numbers."""
    bandwidth_limit, downtime_ms, switchover, auto = numbers[0], numbers[1], numbers[2], numbers[3] > 0
    threshold, initial, increment = int(numbers[4]), int(numbers[5]), int(numbers[6])
    tailslow, most = numbers[7] > 0, int(numbers[8])
    limited, quota_mib, period = numbers[9] > 0 and line.ring_entries > 0, int(numbers[10]), numbers[11] / 1000
    kinds = len(pages.count)
    held = _spread(pages)
    bitmap, clean, taken = np.ones((CELLS, kinds)), np.zeros((CELLS, kinds)), np.ones((CELLS, kinds))
    since = np.zeros((CELLS, kinds))
    page_on_wire = line.page_bytes + rules.HEADER
    by_get = line.chunk_pages == 0
    if by_get:
        clean[:] = 1.0
        taken[:] = 0.0
    memory = held.sum()
    chunk_cells = 1 if by_get else max(1, int(round(line.chunk_pages / (memory / CELLS))))
    fresh = np.ones((CELLS + chunk_cells - 1) // chunk_cells, np.bool_)  # whether CLEAR may have something to do there
    left = memory
    time, guest, sent = 0.0, 0.0, line.state_bytes
    throttle, high, syncs = 0, 0, 1
    runs = 1.0  # share of the time in which the guest runs
    sleep_us, fastest, next_period, longest = 0, 0, np.inf, 0.0
    may_switch = 0.0  # bytes: threshold_size
    judged, judged_sent, judged_new = 0.0, 0.0, 0.0
    window, window_sent = 0.0, sent
    next_look, seen = rules.SYNC_EVERY_S, 0
    at, least, most_left, alike = 0, np.inf, 0.0, 0
    quota = rules.pages_in_window(bandwidth_limit, page_on_wire) if bandwidth_limit > 0 else np.inf
    passes[0, TIME], passes[0, LEFT] = time, left
    while time < limit_s:
        # migration_iteration_run
        sync = left * line.page_bytes < may_switch
        if auto and time >= next_look:
            sync = sync or (syncs > 1 and syncs == seen)
            seen = syncs + int(sync)
            next_look += rules.SYNC_EVERY_S
        if sync:
            new = _synchronise(pages, held, bitmap, clean, taken, since, guest, by_get)
            fresh[:] = True
            left = (bitmap * held).sum()
            judged_new += new
            syncs += 1
            time += line.sync_s
            guest += line.sync_s * runs
            if time > judged + rules.PERIOD_S:
                dirtied, allowed = judged_new * line.page_bytes, (sent - judged_sent) * threshold / 100
                if rules.is_high(dirtied, sent - judged_sent, threshold):
                    high += 1
                    if high >= 2:
                        high = 0
                        if auto:
                            throttle = rules.next_throttle(
                                throttle, dirtied, allowed, initial, increment, tailslow, most
                            )
                            longest = rules.sleep_s(throttle) + line.late_s
                            runs = (1 - throttle / 100) * (1 - line.late_s / rules.SLICE_S)
                        elif limited:
                            next_period = min(next_period, time + period)
                judged, judged_new, judged_sent = time, 0.0, sent
            if syncs <= len(passes):
                row = passes[syncs - 1]
                row[TIME], row[NEW], row[LEFT], row[SENT], row[KEPT] = time, new, left, sent, guest
                row[LOST] = 100 * (1 - runs)
            least, most_left, alike = min(least, left), max(most_left, left), alike + 1
            if alike == ALIKE:
                if time > PATIENCE_S and most_left < 1.02 * least and (throttle == most or not auto):
                    time = limit_s
                    break
                least, most_left, alike = np.inf, 0.0, 0
        if left < 0.5 or left * line.page_bytes < may_switch:
            left += _synchronise(pages, held, bitmap, clean, taken, since, guest, by_get)
            syncs += 1
            sent += left * page_on_wire
            down = line.switch_s + left * line.page_s
            return True, time + down, down, syncs, throttle, longest, sent, guest, left
        if time >= next_period:
            next_period = time + period
            pushed = distinct_pages(pages, period * runs) / line.vcpus
            now = int(pushed * line.page_bytes / 2**20 / period)
            fastest = max(fastest, now, 1)
            full_us = int(line.ring_entries * line.page_bytes / 2**20 * 1e6 / fastest)
            sleep_us = rules.next_sleep_us(sleep_us, quota_mib, now, full_us)
            fills_s = line.ring_entries * line.vcpus / max(distinct_pages(pages, period) / period, 1e-9)
            # The rings are emptied at each look, so that each vCPU fills its own once before it sleeps.
            runs = max(fills_s / (fills_s + sleep_us * 1e-6), min(1.0, fills_s / period))
            if runs < 1:
                longest = max(longest, sleep_us * 1e-6)
        # ram_save_iterate
        begun, room = time, quota - (sent - window_sent) / page_on_wire
        while room > 0 and left >= 0.5 and time - begun < rules.LOOK_S:
            if not by_get and fresh[at // chunk_cells]:
                waits = 0.0
                for kind in range(kinds):
                    waits += bitmap[at, kind] * held[at, kind]
                if waits > 0:
                    for cell in range(
                        at // chunk_cells * chunk_cells, min(CELLS, (at // chunk_cells + 1) * chunk_cells)
                    ):
                        _age(pages, clean, since, cell, guest)
                        clean[cell] += taken[cell]
                        taken[cell] = 0.0
                    fresh[at // chunk_cells] = False
            normal, zeros = 0.0, 0.0
            for kind in range(kinds):
                if pages.zero[kind] > 0:
                    zeros += bitmap[at, kind] * held[at, kind]
                else:
                    normal += bitmap[at, kind] * held[at, kind]
            bytes_here = normal * page_on_wire + zeros * rules.ZERO_PAGE
            takes = normal * line.page_s + zeros * line.zero_s
            part = 1.0
            if bytes_here > room * page_on_wire:
                part = room * page_on_wire / bytes_here
            if takes > 0:
                part = min(part, max(rules.LOOK_S - (time - begun), 0.0) / takes + 1e-9)
            part = min(part, 1.0)
            time += part * takes
            guest += part * takes * runs
            sent += part * bytes_here
            room -= part * bytes_here / page_on_wire
            left -= part * (normal + zeros)
            if part < 1.0:
                bitmap[at] *= 1 - part
            else:
                bitmap[at] = 0.0
                at = (at + 1) % CELLS
        left = max(left, 0.0)
        # migration_rate_limit
        if room <= 1e-9 and time < window + rules.WINDOW_S:
            guest += (window + rules.WINDOW_S - time) * runs
            time = window + rules.WINDOW_S
        if time >= window + rules.WINDOW_S:
            speed = (sent - window_sent) / (time - window)
            may_switch = (switchover if switchover > 0 else speed) * downtime_ms / 1000
            window, window_sent = time, sent
    for cell in range(CELLS):
        _age(pages, clean, since, cell, guest)
    for kind in range(kinds):
        for cell in range(CELLS):
            gone = 1 - (1 - bitmap[cell, kind]) * (clean[cell, kind] + (0.0 if by_get else taken[cell, kind]))
            missing[kind] += min(1.0, max(0.0, gone)) * held[cell, kind]
        missing[kind] /= max(1.0, pages.count[kind])
    return False, time, 0.0, syncs, throttle, longest, sent, guest, left


@kept(nogil=True)
def _synchronise(
    pages: Pages, held: Floats, bitmap: Floats, clean: Floats, taken: Floats, since: Floats, guest: float, by_get: bool
) -> float:
    """Get the log; pages that are new in the bitmap."""
    new = 0.0
    for cell in range(CELLS):
        _age(pages, clean, since, cell, guest)
    for kind in range(len(pages.count)):
        waits, all_pages = 0.0, 0.0
        for cell in range(CELLS):
            waits += (bitmap[cell, kind] - taken[cell, kind]) * held[cell, kind]
            all_pages += (1 - taken[cell, kind]) * held[cell, kind]
        # A sweep does not come back soon to where it was when the pages that wait were written.
        apart = 1 / max(1 - waits / all_pages, 1e-9) if pages.sweep[kind] > 0 and all_pages > 0 else 1.0
        for cell in range(CELLS):
            logged = 1 - clean[cell, kind] - taken[cell, kind]  # written since its last CLEAR, and not known yet
            old = bitmap[cell, kind] - taken[cell, kind]
            share = logged * apart * (1 - old / (1 - taken[cell, kind])) if taken[cell, kind] < 1 else 0.0
            share = min(max(share, 0.0), 1 - bitmap[cell, kind])
            new += share * held[cell, kind]
            bitmap[cell, kind] += share
            if by_get:
                clean[cell, kind] = 1.0
            else:
                taken[cell, kind] = 1 - clean[cell, kind]
    return new
