# SPDX-License-Identifier: BSD-3-Clause
"""Memory during a migration, by cell and class: the share that has yet to be sent, and the share that is clean.

The memory is divided into cells, in the order in which it is sent, and its pages into classes (`WorkingSet`). Shares
are means: with many pages, the randomness of single writes averages out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.jit import cached_njit
from simlib.vmm import qemu_rules

Floats = NDArray[np.float64]
Records = Any
"""A NumPy record, or an array of records, whose fields mypy does not know. Compiled functions take it as one argument,
and a tuple as one argument a field, which takes twice the time to compile."""

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

    def distinct_pages(self, seconds: float) -> float:
        """Expected number of distinct pages that the guest writes in an active time.

        >>> pages = WorkingSet(*(np.array([float(x)]) for x in (1000, 1, 0, 0, 1, 0)))
        >>> round(pages.distinct_pages(1.0))
        632
        """
        return float((self.number * written_share(self.rate * seconds, self.sweep)).sum())


def written_share(writes: Floats, sweep: NDArray[Any]) -> Floats:
    """Share of some pages that is written at least once.

    - `writes`: mean number of writes to each page; `sweep`: as in `WorkingSet`; arrays of one shape.
    """
    return np.where(sweep > 0, np.minimum(1.0, writes), -np.expm1(-writes))


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


_MEMORY = np.dtype([(name, np.float64) for name in ("held", "bitmap", "clean", "taken", "since", "fresh")])
"""Pages of a class in a cell: their number; the share that has yet to be sent; the share that has not been written
since the log was cleared; the share that GET has returned and CLEAR has not cleared yet; the guest's time up to which
`clean` holds; 1 until CLEAR has cleared the cell after the last GET."""

_CLASS = np.dtype([(name, np.float64) for name in ("number", "rate", "sweep", "zero")])
"""Fields of `WorkingSet` that compiled functions read."""


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
def distinct_pages(classes: Records, seconds: float) -> float:
    """Expected number of distinct pages that the guest writes in an active time; compiled."""
    count = 0.0
    for kind in range(len(classes)):
        touches = classes[kind].rate * seconds
        share = min(1.0, touches) if classes[kind].sweep > 0 else -np.expm1(-touches)
        count += classes[kind].number * share
    return count


@cached_njit(nogil=True)
def active_time(seconds: float, rhythm: Records) -> float:
    """Time for which the undisturbed guest is active in the first `seconds` of a migration, s.

    - `rhythm`: fields ``burst_s``, ``pause_s`` and ``phase_s`` as in `WorkingSet`.
    """
    if rhythm.pause_s <= 0:
        return seconds
    cycle = rhythm.burst_s + rhythm.pause_s
    active = 0.0
    for time, sign in ((rhythm.phase_s + seconds, 1.0), (rhythm.phase_s, -1.0)):
        bursts = np.floor(time / cycle)
        active += sign * (bursts * rhythm.burst_s + min(time - bursts * cycle, rhythm.burst_s))
    return active


def classes_of(pages: WorkingSet) -> Records:
    """Return the classes of a working set as an array of records, shape (classes,), for compiled functions."""
    table = np.zeros(len(pages.number), _CLASS).view(np.recarray)
    for name in _CLASS.names or ():
        table[name] = getattr(pages, name)
    return table


def new_memory(pages: WorkingSet, by_get: bool) -> Records:
    """State at the beginning of a migration, shape (cells, classes): no page has been sent, and the log has just been
    enabled."""
    ends = np.arange(CELLS + 1)[:, None] / CELLS
    part = np.minimum(ends[1:], pages.last) - np.maximum(ends[:-1], pages.first)
    memory = np.zeros(part.shape, _MEMORY).view(np.recarray)
    memory.held = pages.number * np.maximum(part, 0.0) / (pages.last - pages.first)
    memory.bitmap, memory.clean, memory.taken, memory.fresh = 1.0, float(by_get), 1.0 - by_get, 1.0
    return memory


def memory_in_pass(pages: WorkingSet, chunk_pages: float, state: PassState) -> tuple[Records, int]:
    """State of the memory during a pass, and the cell that is sent next.

    - `chunk_pages`: as in `LinkModel`.

    >>> pages = WorkingSet(*(np.array([float(x)]) for x in (1000, 0.1, 0, 0, 1, 0)))
    >>> memory, cell = memory_in_pass(pages, 0.0, PassState(0.25, np.ones(1), np.zeros(1), 10.0))
    >>> round(float(pages_left(memory))), cell
    (750, 32)
    """
    memory = new_memory(pages, chunk_pages == 0)
    sent = np.concatenate(([0.0], memory.held.sum(axis=1).cumsum()))
    cells, place = np.arange(CELLS), float(np.interp(state.position * sent[-1], sent, np.arange(CELLS + 1)))
    ahead, cell = np.clip(cells + 1 - place, 0.0, 1.0)[:, None], min(int(place), CELLS - 1)
    memory.bitmap = ahead * state.ahead + (1 - ahead) * state.behind
    memory.since = -state.seconds
    if chunk_pages == 0:
        return memory, cell
    chunk = chunk_cells(pages, chunk_pages)
    first = cells // chunk * chunk
    passed = first < place  # CLEAR has cleared the chunk, when the pass reached its first page
    waits = (passed & (cells >= place))[:, None]
    memory.taken = np.where(waits, 0.0, memory.bitmap)
    memory.clean = 1 - memory.taken
    memory.since[passed] *= (1 - first[passed] / place)[:, None]
    memory.fresh = ~passed[:, None]
    return memory, cell


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
    written = written_share(pages.rate * seconds, pages.sweep)
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
def pages_left(memory: Records) -> float:
    """Pages that have yet to be sent, according to the dirty bitmap."""
    left = 0.0
    for cell in range(memory.shape[0]):
        left += waiting_pages(memory, cell)
    return left


@cached_njit(nogil=True)
def waiting_pages(memory: Records, cell: int) -> float:
    """Pages of a cell that have yet to be sent."""
    waits = 0.0
    for kind in range(memory.shape[1]):
        waits += memory[cell, kind].bitmap * memory[cell, kind].held
    return waits


@cached_njit(nogil=True)
def _age(classes: Records, memory: Records, cell: int, guest: float) -> None:
    """Update the clean shares of a cell to the guest's time `guest`."""
    for kind in range(len(classes)):
        part, rate = memory[cell, kind], classes[kind].rate
        passed = guest - part.since
        if passed <= 0 or rate == 0:
            continue
        if classes[kind].sweep == 0:
            part.clean *= np.exp(-rate * passed)
        else:  # each page is written once per sweep, at a constant rate
            part.clean = max(0.0, part.clean - rate * passed)
        part.since = guest


@cached_njit(nogil=True)
def synchronise(classes: Records, memory: Records, guest: float, by_get: bool) -> float:
    """Get the log, and clear it if GET does so; return the number of pages that are new in the bitmap."""
    new = 0.0
    for cell in range(CELLS):
        _age(classes, memory, cell, guest)
    for kind in range(len(classes)):
        waits, everywhere = 0.0, 0.0
        for cell in range(CELLS):
            part = memory[cell, kind]
            waits += (part.bitmap - part.taken) * part.held
            everywhere += (1 - part.taken) * part.held
        # A sweep does not return soon to the pages that wait to be sent, which it has just written.
        apart = 1 / max(1 - waits / everywhere, 1e-9) if classes[kind].sweep > 0 and everywhere > 0 else 1.0
        for cell in range(CELLS):
            part = memory[cell, kind]
            logged = 1 - part.clean - part.taken  # written since the last CLEAR, and not known yet
            old = part.bitmap - part.taken
            share = logged * apart * (1 - old / (1 - part.taken)) if part.taken < 1 else 0.0
            share = min(max(share, 0.0), 1 - part.bitmap)
            new += share * part.held
            part.bitmap += share
            part.fresh = 1.0
            if by_get:
                part.clean = 1.0
            else:
                part.taken = 1 - part.clean
    return new


@cached_njit(nogil=True)
def _clear(classes: Records, memory: Records, at: int, chunk_cells: int, guest: float) -> None:
    """CLEAR the chunk that contains a cell, before the first page of the chunk is sent."""
    if memory[at, 0].fresh == 0 or waiting_pages(memory, at) == 0:
        return
    first = at // chunk_cells * chunk_cells
    for cell in range(first, min(CELLS, first + chunk_cells)):
        _age(classes, memory, cell, guest)
        for kind in range(len(classes)):
            part = memory[cell, kind]
            part.clean += part.taken
            part.taken = part.fresh = 0.0


@cached_njit(nogil=True)
def send_cell(
    classes: Records, memory: Records, at: int, link: Records, guest: float, room: tuple[float, float]
) -> tuple[float, float, float, bool]:
    """Send the waiting pages of a cell; return bytes, time in s, pages, and whether all of them were sent.

    - `at`: the cell. `link`: fields as those of `LinkModel`, and ``chunk_cells``: cells that one CLEAR covers.
    - `room`: number of bytes, and time in s, that are left.
    """
    if link.chunk_pages > 0:
        _clear(classes, memory, at, link.chunk_cells, guest)
    normal, zeros = 0.0, 0.0
    for kind in range(len(classes)):
        waits = memory[at, kind].bitmap * memory[at, kind].held
        if classes[kind].zero > 0:
            zeros += waits
        else:
            normal += waits
    own_bytes = normal * qemu_rules.WHOLE_PAGE + zeros * qemu_rules.ZERO_PAGE
    own_s = normal * link.page_s + zeros * link.zero_s
    part = min(1.0, room[0] / own_bytes if own_bytes > 0 else 1.0, room[1] / own_s if own_s > 0 else 1.0)
    for kind in range(len(classes)):
        memory[at, kind].bitmap *= 1 - part
    return part * own_bytes, part * own_s, part * (normal + zeros), part >= 1


def missing_shares(pages: WorkingSet, memory: Records, guest: float) -> Floats:
    """Share of each class that the destination does not have at the guest's time `guest`, shape (classes,)."""
    passed = pages.rate * np.maximum(guest - memory.since, 0.0)
    clean = np.where(pages.sweep > 0, np.maximum(0.0, memory.clean - passed), memory.clean * np.exp(-passed))
    arrived = (1 - memory.bitmap) * np.minimum(1.0, clean + memory.taken)
    return np.asarray(((1 - arrived) * memory.held).sum(axis=0) / np.maximum(pages.number, 1.0))
