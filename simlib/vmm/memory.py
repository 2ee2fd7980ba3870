# SPDX-License-Identifier: BSD-3-Clause
"""Memory during a migration, by cell and class: the share that has yet to be sent, and the share that is clean.

The memory is divided into cells, in the order in which it is sent, and its pages into classes (`WorkingSet`). Shares
are means: with many pages, the randomness of single writes averages out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.jit import cached_njit
from simlib.vmm import qemu_rules

Floats = NDArray[np.float64]

CELLS = 128
"""Number of cells into which the memory is divided."""


class WorkingSet(NamedTuple):
    """The pages of a guest by class, arrays of shape (classes,), and the times at which it writes to them.

    - `number`: number of pages.
    - `rate`: writes per second to each page, while the guest is active and undisturbed.
    - `sweep`: 1: the pages are written one after another, each once in 1/`rate` seconds; 0: at random.
    - `first`, `last`: shares of the memory between which the pages lie.
    - `zero`: 1: pages of zeros, which have never been written.
    - `cpu`: share of its time for which a vCPU is busy while the guest is active. The rest of the time it waits for
      work; a throttled vCPU uses this rest to catch up.
    - `burst_s`, `pause_s`: the guest is alternately active and inactive for these times, s. `pause_s` = 0: always
      active.
    - `phase_s`: time since the beginning of a burst when the migration begins, s.
    """

    number: Floats
    rate: Floats
    sweep: Floats
    first: Floats
    last: Floats
    zero: Floats
    cpu: float = 1.0
    burst_s: float = 0.0
    pause_s: float = 0.0
    phase_s: float = 0.0


class LinkModel(NamedTuple):
    """Times of the link and of the source host. A time that is not given is 0.

    - `page_s`: time to send a page at full speed, s.
    - `zero_s`: time to scan a page of zeros, s.
    - `switch_s`: downtime apart from the time to send the last pages, s.
    - `state_bytes`: bytes that are sent in addition to memory.
    - `sync_s`: time to synchronise the dirty bitmap, s.
    - `chunk_pages`: pages that one CLEAR covers; 0: GET clears, or rings are reset.
    - `vcpus`: number of vCPUs of the guest.
    - `ring_entries`: size of each vCPU's dirty ring; 0: there are no rings.
    - `late_s`: time by which a throttled vCPU oversleeps, s.
    - `limit_share`: share of max-bandwidth that is reached.
    - `fault_s`: time that a vCPU needs to log a page, s; it limits how fast a dirty ring fills.
    """

    page_s: float
    zero_s: float = 0.0
    switch_s: float = 0.0
    state_bytes: float = 0.0
    sync_s: float = 0.0
    chunk_pages: float = 0.0
    vcpus: float = 1.0
    ring_entries: float = 0.0
    late_s: float = 0.0
    limit_share: float = 1.0
    fault_s: float = 0.0


class BitmapState(NamedTuple):
    """Pages by cell and class, shape (cells, classes) unless another shape is given.

    - `held`: number of pages.
    - `bitmap`: share that has yet to be sent.
    - `clean`: share that has not been written since the log was cleared.
    - `taken`: share that GET has returned and CLEAR has not cleared yet.
    - `since`: the guest's time up to which `clean` holds.
    - `fresh`, shape (cells,): True until CLEAR has cleared the cell after the last GET.
    - `at`, shape (1,): the cell that is sent next.
    """

    held: Floats
    bitmap: Floats
    clean: Floats
    taken: Floats
    since: Floats
    fresh: NDArray[np.bool_]
    at: NDArray[np.int64]


class PassState(NamedTuple):
    """State of a pass that is under way.

    - `position`: share of the memory's pages that the pass has gone through.
    - `ahead`, `behind`, shape (classes,): share of each class that has yet to be sent, in the memory that the pass has
      not reached, and in the memory that it has gone through.
    - `seconds`: time since the dirty bitmap was synchronised, s.
    """

    position: float
    ahead: Floats
    behind: Floats
    seconds: float


@cached_njit(nogil=True)
def distinct_pages(pages: WorkingSet, seconds: float) -> float:
    """Expected number of distinct pages that the guest writes within `seconds`."""
    count = 0.0
    for kind in range(len(pages.number)):
        touches = pages.rate[kind] * seconds
        count += pages.number[kind] * (min(1.0, touches) if pages.sweep[kind] > 0 else -np.expm1(-touches))
    return count


@cached_njit(nogil=True)
def active_time(pages: WorkingSet, seconds: float) -> float:
    """Time for which the undisturbed guest is active in the first `seconds` of a migration, s."""
    if pages.pause_s <= 0:
        return seconds
    cycle = pages.burst_s + pages.pause_s
    active = 0.0
    for time, sign in ((pages.phase_s + seconds, 1.0), (pages.phase_s, -1.0)):
        bursts = np.floor(time / cycle)
        active += sign * (bursts * pages.burst_s + min(time - bursts * cycle, pages.burst_s))
    return active


def new_memory(pages: WorkingSet, by_get: bool) -> BitmapState:
    """State at the beginning of a migration: no page has been sent, and the log has just been enabled."""
    ends = np.arange(CELLS + 1)[:, None] / CELLS
    part = np.minimum(ends[1:], pages.last) - np.maximum(ends[:-1], pages.first)
    held = pages.number * np.maximum(part, 0.0) / (pages.last - pages.first)
    clean = np.full(held.shape, 1.0 if by_get else 0.0)
    return BitmapState(
        held, np.ones(held.shape), clean, 1 - clean, np.zeros(held.shape), np.ones(CELLS, np.bool_),
        np.zeros(1, np.int64),
    )  # fmt: skip


def memory_in_pass(pages: WorkingSet, chunk_pages: float, state: PassState) -> BitmapState:
    """State of the memory during a pass.

    - `chunk_pages`: as in `LinkModel`.

    >>> pages = WorkingSet(*(np.array([float(x)]) for x in (1000, 0.1, 0, 0, 1, 0)))
    >>> memory = memory_in_pass(pages, 0.0, PassState(0.25, np.ones(1), np.zeros(1), 10.0))
    >>> round(float(pages_left(memory))), int(memory.at[0])
    (750, 32)
    """
    memory = new_memory(pages, chunk_pages == 0)
    sent = np.concatenate(([0.0], memory.held.sum(axis=1).cumsum()))
    cells, place = np.arange(CELLS), float(np.interp(state.position * sent[-1], sent, np.arange(CELLS + 1)))
    ahead = np.clip(cells + 1 - place, 0.0, 1.0)[:, None]
    memory.bitmap[:] = ahead * state.ahead + (1 - ahead) * state.behind
    memory.at[0] = min(int(place), CELLS - 1)
    memory.since[:] = -state.seconds
    if chunk_pages == 0:
        return memory
    chunk = chunk_cells(pages, chunk_pages)
    first = cells // chunk * chunk
    passed = first < place  # CLEAR has cleared the chunk, when the pass reached its first page
    waits = (passed & (cells >= place))[:, None]
    memory.taken[:] = np.where(waits, 0.0, memory.bitmap)
    memory.clean[:] = 1 - memory.taken
    memory.since[passed] *= (1 - first[passed] / place)[:, None]
    memory.fresh[:] = ~passed
    return memory


def chunk_cells(pages: WorkingSet, chunk_pages: float) -> int:
    """Number of cells that one CLEAR of `chunk_pages` covers."""
    return max(1, round(chunk_pages * CELLS / float(pages.number.sum())))


def dirty_shares(pages: WorkingSet, seconds: float, count: float) -> Floats:
    """Share of each class that is dirty, shape (classes,), if a total of `count` pages are.

    Each class has a share in proportion to the share of its pages that the guest writes in `seconds`. If all pages that
    are ever written do not suffice, others are dirty, too.

    >>> pages = WorkingSet(*(np.array(x, float) for x in ([100, 900], [9, 0.01], [0, 0], [0, 0], [1, 1], [0, 0])))
    >>> dirty_shares(pages, 1.0, 100.0).round(2).tolist()
    [0.92, 0.01]
    """
    written = np.where(pages.sweep > 0, np.minimum(1.0, pages.rate * seconds), -np.expm1(-pages.rate * seconds))
    shares = np.where(written > 0, 1.0, 0.0)
    held = float((pages.number * shares).sum())
    if count >= held:
        others = max(float(pages.number.sum()) - held, 1e-9)
        return np.where(written > 0, 1.0, min(1.0, (count - held) / others))
    low, high = 0.0, 1 / float(written[written > 0].min())
    for _ in range(60):
        factor = (low + high) / 2
        few = float((pages.number * np.minimum(1.0, factor * written)).sum()) < count
        low, high = (factor, high) if few else (low, factor)
    return np.minimum(1.0, high * written)


@cached_njit(nogil=True)
def pages_left(memory: BitmapState) -> float:
    """Pages that have yet to be sent, according to the dirty bitmap."""
    left = 0.0
    for cell in range(memory.held.shape[0]):
        left += waiting_pages(memory, cell)
    return left


@cached_njit(nogil=True)
def waiting_pages(memory: BitmapState, cell: int) -> float:
    """Pages of a cell that have yet to be sent."""
    waits = 0.0
    for kind in range(memory.held.shape[1]):
        waits += memory.bitmap[cell, kind] * memory.held[cell, kind]
    return waits


@cached_njit(nogil=True)
def _age(pages: WorkingSet, memory: BitmapState, cell: int, guest: float) -> None:
    """Update the clean shares of a cell to the guest's time `guest`."""
    clean, since = memory.clean, memory.since
    for kind in range(len(pages.number)):
        passed = guest - since[cell, kind]
        if passed <= 0 or pages.rate[kind] == 0:
            continue
        if pages.sweep[kind] == 0:
            clean[cell, kind] *= np.exp(-pages.rate[kind] * passed)
        else:  # each page is written once per sweep, at a constant rate
            clean[cell, kind] = max(0.0, clean[cell, kind] - pages.rate[kind] * passed)
        since[cell, kind] = guest


@cached_njit(nogil=True)
def synchronise(pages: WorkingSet, memory: BitmapState, guest: float, by_get: bool) -> float:
    """Get the log, and clear it if GET does so; return the number of pages that are new in the bitmap."""
    held, bitmap, clean, taken = memory.held, memory.bitmap, memory.clean, memory.taken
    new = 0.0
    for cell in range(CELLS):
        _age(pages, memory, cell, guest)
        memory.fresh[cell] = True
    for kind in range(len(pages.number)):
        waits, everywhere = 0.0, 0.0
        for cell in range(CELLS):
            waits += (bitmap[cell, kind] - taken[cell, kind]) * held[cell, kind]
            everywhere += (1 - taken[cell, kind]) * held[cell, kind]
        # A sweep does not return soon to the pages that wait to be sent, which it has just written.
        apart = 1 / max(1 - waits / everywhere, 1e-9) if pages.sweep[kind] > 0 and everywhere > 0 else 1.0
        for cell in range(CELLS):
            logged = 1 - clean[cell, kind] - taken[cell, kind]  # written since the last CLEAR, and not known yet
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


@cached_njit(nogil=True)
def _clear(pages: WorkingSet, memory: BitmapState, chunk_cells: int, guest: float) -> None:
    """CLEAR the chunk that contains the next cell, before the first page of the chunk is sent."""
    at = int(memory.at[0])
    if not memory.fresh[at] or waiting_pages(memory, at) == 0:
        return
    first = at // chunk_cells * chunk_cells
    for cell in range(first, min(CELLS, first + chunk_cells)):
        _age(pages, memory, cell, guest)
        for kind in range(len(pages.number)):
            memory.clean[cell, kind] += memory.taken[cell, kind]
            memory.taken[cell, kind] = 0.0
        memory.fresh[cell] = False


@cached_njit(nogil=True)
def send_cell(
    pages: WorkingSet, memory: BitmapState, link: LinkModel, chunk_cells: int, guest: float,
    room: tuple[float, float],
) -> tuple[float, float, float]:  # fmt: skip
    """Send the waiting pages of the next cell; return bytes, time in s, and pages.

    - `chunk_cells`: cells that one CLEAR covers; `room`: number of bytes, and time in s, that are left.
    """
    if link.chunk_pages > 0:
        _clear(pages, memory, chunk_cells, guest)
    at, normal, zeros = int(memory.at[0]), 0.0, 0.0
    for kind in range(len(pages.number)):
        waits = memory.bitmap[at, kind] * memory.held[at, kind]
        if pages.zero[kind] > 0:
            zeros += waits
        else:
            normal += waits
    own_bytes = normal * qemu_rules.WHOLE_PAGE + zeros * qemu_rules.ZERO_PAGE
    own_s = normal * link.page_s + zeros * link.zero_s
    part = min(1.0, room[0] / own_bytes if own_bytes > 0 else 1.0, room[1] / own_s if own_s > 0 else 1.0)
    for kind in range(len(pages.number)):
        memory.bitmap[at, kind] *= 1 - part
    if part >= 1:
        memory.at[0] = (at + 1) % CELLS
    return part * own_bytes, part * own_s, part * (normal + zeros)


def missing_shares(pages: WorkingSet, memory: BitmapState, guest: float) -> Floats:
    """Share of each class that the destination does not have at the guest's time `guest`, shape (classes,)."""
    passed = pages.rate * np.maximum(guest - memory.since, 0.0)
    clean = np.where(pages.sweep > 0, np.maximum(0.0, memory.clean - passed), memory.clean * np.exp(-passed))
    arrived = (1 - memory.bitmap) * np.minimum(1.0, clean + memory.taken)
    return np.asarray(((1 - arrived) * memory.held).sum(axis=0) / np.maximum(pages.number, 1.0))
