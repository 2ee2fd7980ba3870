# SPDX-License-Identifier: BSD-3-Clause
"""The course of a migration on the guest's own clock, which counts its accesses.

A page is still untouched after n accesses of the guest with probability exp(-n × p), where p is the share of the
accesses that go to it; how long they took does not matter. So what each part of the memory is like when a chunk is
cleared follows from how many accesses there were since it was cleared before, and these from how fast the guest is
while the migration thread clears and sends. Only that has to be simulated, in windows
(`simlib.simulator.sampling.window`); what they find is a `Rates`.

Pages of one popularity are a class; there is one if all are alike. Of each chunk and class the course keeps the
probability that a page is clean, of those that the guest writes: write-protected, or missing from a block that was
split.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from simlib._lib.jit import cached_njit
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.scenario import Scenario
from simlib.simulator.engine.compiled import inline
from simlib.simulator.engine.random import zipf_classes
from simlib.simulator.engine.result import PS
from simlib.simulator.workloads.migration import page_time

Floats = NDArray[np.float64]

Function = TypeVar("Function", bound=Callable[..., Any])


def machine_code(function: Function) -> Function:
    """Compiled by Numba when it is first called, and kept; for type checkers what it was, as Numba says nothing."""
    return cast("Function", cached_njit(nogil=True)(function))


def inlined_at_caller(function: Function) -> Function:
    """Compiled as a part of who calls it; for type checkers what it was."""
    return cast("Function", inline.always_inline(function))


GOLDEN = 0.6180339887498949
"""Golden ratio less one: its multiples fill an interval as evenly as can be, however many there are."""

ENDS = (0.125, 0.25, 0.5, 1.0)
"""Where the parts end into which the time is divided in which a chunk is sent: most changes first.

As write-protected pages get fewer, faults wait less for each other.
"""

PARTS = len(ENDS)

FADES = 0.1
"""Part of the faulting accesses that may fade in one stride of the integration."""

NOTHING = 1e-200
"""Of a share: less is none. Processors are slow with numbers that are almost too small for them."""

NEAR = 0.01
"""Share of a part's time that may be left over for the next."""

HALF, REST, STRIDE = range(3)
"""Of `_Memory.fades`."""

STEADY = 2e-3
"""Part of the faulting accesses that may fade while a chunk is sent whose parts are alike: one stride does for all."""


def cost_of(scenario: Scenario, *names: str) -> float:
    """Some costs together, s; what has no value takes none."""
    return sum(getattr(scenario.host_costs, name) or 0 for name in names) * PS


class Touches(NamedTuple):
    """Classes of pages, by how often the guest touches them.

    `share`: of the accesses that go to the class; `pages`: of the memory that belongs to it; `rate`: of the accesses
    that go to one of its pages.
    """

    share: Floats
    pages: Floats
    rate: Floats


def touches_of(scenario: Scenario) -> Touches:
    """The classes of a guest that touches pages at random; by Zipf's law each has twice the pages of the one before."""
    guest, workload = scenario.guest, scenario.workload
    regions = 1 if workload.shared else guest.vcpus
    pages = guest.pages // regions
    exponent = workload.zipf_exponent if workload.access == "zipf" else 0.0
    if not exponent:
        return Touches(np.ones(1), np.ones(1), np.full(1, 1 / (pages * regions)))
    share, size = zipf_classes(exponent, pages)
    return Touches(share, size / pages, share / size / regions)


class Rates(NamedTuple):
    """How fast the guest and CLEAR are in one pass.

    Times in seconds. `vcpus`; `interval`: from one access of a vCPU to its next, if none faults. `faulting`: shares of
    the accesses that fault, ascending, at which are known `delay`: what a fault loses besides waiting in queues, and
    `service`: for how long each fault keeps the others waiting. `flush`: what one that splits a block takes of all
    vCPUs' time besides, flushing their TLBs, and `held`: for how long it keeps the others waiting for that. `clear`:
    duration of a CLEAR over what it takes alone (`MemoryState.alone`). `working`: accesses of the guest during a CLEAR
    and for `drain` after it, over those of the same time undisturbed.
    """

    vcpus: int
    interval: float
    faulting: tuple[float, ...] | Floats
    delay: tuple[float, ...] | Floats
    service: tuple[float, ...] | Floats
    clear: float = 1.0
    working: float = 1.0
    drain: float = 0.0
    flush: float = 0.0
    held: float = 0.0

    def between(self, faulting: float, splitting: float = 0.0) -> float:
        """Time from one access of a vCPU to its next while so large a share of them faults, s.

        `splitting`: the share that splits a block, among these.

        >>> Rates(4, 1.0, (0.5,), (2.0,), (0.0,)).between(0.25)
        1.5
        >>> round(Rates(4, 1.0, (0.5,), (100.0,), (100.0,)).between(0.25))  # four vCPUs, one of them served at a time
        100
        """
        return _between_once(self.arrays(), faulting, splitting)

    def arrays(self) -> Rates:
        """The same for Numba, whose code is then one for any number of shares."""
        faulting, delay, service = (np.array(one) for one in (self.faulting, self.delay, self.service))
        return self._replace(faulting=faulting, delay=delay, service=service)


@inlined_at_caller
def _at(place: float, places: Any, values: Any) -> float:
    """Linear interpolation of few values, the first and the last beyond them (`numpy.interp`, without its arrays)."""
    if place <= places[0]:
        return float(values[0])
    for i in range(1, places.shape[0]):
        if place < places[i]:
            slope = (values[i] - values[i - 1]) / (places[i] - places[i - 1])
            return float(slope * (place - places[i - 1]) + values[i - 1])
    return float(values[places.shape[0] - 1])


@inlined_at_caller
def _between(pace: Rates, faulting: float, splitting: float) -> float:
    """`Rates.between`."""
    delay, service = _at(faulting, pace.faulting, pace.delay), _at(faulting, pace.faulting, pace.service)
    part = splitting / faulting if faulting > 0 else 0.0
    delay, service = delay + part * pace.flush, service + part * pace.held
    waiting = _waiting(pace.vcpus, pace.interval, faulting, delay, service)
    return pace.interval + faulting * delay + waiting


@inlined_at_caller
def _waiting(vcpus: int, interval: float, faulting: float, delay: float, service: float) -> float:
    """Time in queues an access, s: vCPUs that fault now and then, of which one is served at a time.

    P. J. Schweitzer's approximation of mean-value analysis (1979, "Approximate analysis of multiclass closed networks
    of queues"): who arrives finds the queue of the others, each of whom is there as often as he. `service_of` is its
    inverse.
    """
    cycle, others = interval + faulting * delay, (vcpus - 1) * service * faulting
    root = np.sqrt((others - cycle) ** 2 + 4 * others * service * faulting)
    if others > cycle:
        return float(0.5 * (others - cycle + root))
    return float(2 * others * service * faulting / (cycle - others + root))


@machine_code
def _between_once(pace: Rates, faulting: float, splitting: float) -> float:
    """`Rates.between`, called from Python."""
    return float(_between(pace, faulting, splitting))


def service_of(vcpus: int, interval: float, faulting: float, delay: float, queued: float) -> float:
    """For how long each fault keeps the others waiting, s, if it waits for `queued` itself.

    >>> found = service_of(64, 1e-5, 0.2, 2e-6, 5e-6)
    >>> round(Rates(64, 1e-5, (0.2,), (2e-6,), (found,)).between(0.2) * 1e6, 6)  # 10 + 0.2 × (2 + 5) us
    11.4
    """
    if vcpus == 1:
        return 0.0
    others = vcpus - 1
    cycle = interval / faulting + delay
    return float(0.5 * (np.sqrt(queued**2 + 4 * queued * (queued + cycle) / others) - queued))


class Cycles(NamedTuple):
    """The chunks of one pass, each cleared and then sent; arrays of shape (chunks,).

    `begin`: when its CLEAR begins, s since the guest was undisturbed. `clear`, `send`: durations, s, and `drain`: the
    part of `send` that `Rates.working` covers too. `accesses`: of the guest so far, when CLEAR begins, after `drain`,
    and after each part of the rest of `send`, shape (chunks, 2 + parts). `faulting`: shares of the accesses that meet a
    write-protected page, a block that is not split, or a missing page, when CLEAR begins, and in each part of the
    sending after `drain`, shape (chunks, 1 + parts, 3). `faults`: of the guest in each part, shape (chunks, parts).
    """

    begin: Floats
    clear: Floats
    drain: Floats
    send: Floats
    accesses: Floats
    faulting: Floats
    faults: Floats

    def accesses_at(self, times: Floats, profile: Floats) -> Floats:
        """The guest's accesses so far at some times, from the pass's begin on.

        - `profile`: share of those of CLEAR and `drain` that were made at moments which divide these evenly.
        """
        chunk = np.searchsorted(self.begin, times, side="right") - 1
        clearing, sending = (
            np.maximum(1e-300, one[chunk]) for one in (self.clear + self.drain, self.send - self.drain)
        )
        since, so_far = times - self.begin[chunk], self.accesses[chunk]
        made = np.interp(since / clearing, np.linspace(0, 1, len(profile)), profile)
        found: Floats = so_far[:, 0] + (so_far[:, 1] - so_far[:, 0]) * made
        sent, begun = (since - clearing) / sending, 0.0
        for part, end in enumerate(ENDS):
            here = np.clip((sent - begun) / (end - begun), 0, 1)
            found += (so_far[:, 2 + part] - so_far[:, 1 + part]) * here
            begun = end
        return found


class MemoryState:
    """The memory of a migration, as far as it is known without simulating each page.

    - `chunks`, shape (chunks,): pages of each.
    - `clean`, shape (chunks, classes): probability that a page of those that the guest writes is clean, at `since`.
    - `since`, `whole_since`, shape (chunks,): the guest's accesses so far when that was so; and when the chunk's blocks
      were write-protected without being split, infinite if they were not.
    - `accesses`, `time`: the guest's accesses so far, and the time since it was undisturbed, s.
    - `passes`: passes that were made.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Everything is mapped and dirty."""
        guest = scenario.guest
        self.scenario, self.touches = scenario, touches_of(scenario)
        pages, given = guest.pages, scenario.workload.clear_chunk
        size = min(pages, given // guest.page_size) if given else pages
        full, rest = divmod(pages, size)
        self.chunks = np.array([size] * full + [rest] * (rest > 0), dtype=np.float64)
        self.clean = np.zeros((len(self.chunks), len(self.touches.share)))
        self.since = np.zeros(len(self.chunks))
        self.whole_since = np.full(len(self.chunks), np.inf)
        self.accesses = self.time = 0.0
        self.passes = 0
        self.block_pages = PageTable(guest.page_size).pages_per_block()
        self.written = scenario.workload.write_percent / 100
        self.leaves_blocks = guest.mapped_as_blocks and not scenario.policy.resolved().eager_split
        self.splitting = self.block_pages * self.written / pages if self.leaves_blocks else 0.0
        """Share of the accesses that would split one block: writes to any of its pages."""
        self._now: dict[str, Any] = {}
        """What was found out of this moment; copies share it until one walks on."""

    def copy(self) -> MemoryState:
        """The same, to go another way from here."""
        other = copy.copy(self)
        other.clean, other.since, other.whole_since = self.clean.copy(), self.since.copy(), self.whole_since.copy()
        return other

    def clean_now(self) -> Floats:
        """`clean`, at this moment."""
        if "clean" not in self._now:
            self._now["clean"] = self.clean * np.exp(-np.outer(self.accesses - self.since, self.touches.rate))
        found: Floats = self._now["clean"]
        return found

    def dirty(self) -> Floats:
        """Share of each chunk's pages that GET would find now; before the first pass all."""
        if not self.passes:
            return np.ones(len(self.chunks))
        found: Floats = self.written * (1 - self.clean_now() @ self.touches.pages)
        return found

    def alone(self, dirty: Floats) -> Floats:
        """What the CLEAR of each chunk takes in which so much was found, if nobody else wants the lock, s."""
        cost, guest = partial(cost_of, self.scenario), self.scenario.guest
        words = (1 - (1 - dirty) ** WORD_PAGES) / WORD_PAGES
        page = dirty * cost("clear_page") + words * cost("clear_word")
        if not self.passes and guest.mapped_as_blocks:
            if self.leaves_blocks:
                page = dirty * cost("clear_unsplit") + words * cost("clear_page", "clear_word")
            else:
                page += cost("split_block", "split_alloc") / self.block_pages
        around = cost("clear_ioctl", "flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")
        found: Floats = np.maximum(around + self.chunks * page, PS) * (dirty > 0)  # windows tell by how many times
        return found

    def walk(self, dirty: Floats, pace: Rates) -> Cycles:
        """Make one pass over what GET found; the terrain is then as it is at its end."""
        chunks = len(self.chunks)
        clear = pace.clear * self.alone(dirty)
        send = np.rint(dirty * self.chunks) * page_time(self.scenario) * PS
        cycles = Cycles(np.empty(chunks), clear, np.minimum(pace.drain, send), send, np.empty((chunks, 2 + PARTS)),
                        np.empty((chunks, 1 + PARTS, 3)), np.empty((chunks, PARTS)))  # fmt: skip
        at_get = self.clean_now() if self.passes else np.zeros_like(self.clean)
        law = _Law(self.touches, pace.arrays(), self.written, self.splitting)
        known = _Chunks(self.chunks / self.chunks.sum(), at_get, self.clean, self.since, self.whole_since)
        _walk(law, self._memory(known), known, self.passes == 0, self.accesses, self.time, cycles)
        self._now = {}
        self.accesses = float(cycles.accesses[-1, -1])
        self.time = float(cycles.begin[-1] + clear[-1] + send[-1])
        self.passes += 1
        return cycles

    def _memory(self, known: _Chunks) -> _Memory:
        """What all chunks are together when a pass begins."""
        if "untouched" not in self._now:
            there = np.flatnonzero(np.isfinite(self.whole_since))
            weight, ages = known.weight[there], self.accesses - self.whole_since[there]
            missing = weight @ np.exp(-np.outer(ages, self.touches.rate))
            self._now["untouched"] = missing, weight @ np.exp(-self.splitting * ages)
        missing, whole = self._now["untouched"]
        fades = np.empty((3, len(missing) + 1))
        return _Memory(known.weight @ known.at_get, missing.copy(), np.array([whole]), fades, np.zeros(3))


class _Chunks(NamedTuple):
    """What is known of each chunk in a pass; `clean`, `since` and `whole_since` are `MemoryState`'s, and change.

    - `weight`, shape (chunks,): its share of the memory; `at_get`, shape (chunks, classes): `clean` at GET.
    """

    weight: Floats
    at_get: Floats
    clean: Floats
    since: Floats
    whole_since: Floats


class _Law(NamedTuple):
    """What decides how fast pages are touched; `written` and `splitting` are what `MemoryState` has."""

    touches: Touches
    pace: Rates
    written: float
    splitting: float


class _Memory(NamedTuple):
    """Sums over all chunks, which fade by one factor for each class.

    `protected`, `missing`: share of the memory whose pages are clean, and never were touched, of each class; `whole`:
    whose blocks are not split, shape (1,). `fades`, shape (classes + 1,): the factors of a stride, the last of `whole`.
    """

    protected: Floats
    missing: Floats
    whole: Floats
    fades: Floats
    lengths: Floats


@machine_code
def _walk(
    law: _Law, memory: _Memory, known: _Chunks, first: bool, accesses: float, time: float, cycles: Cycles
) -> None:
    """`MemoryState.walk`: each chunk is cleared and sent."""
    weight, at_get, clean, since, whole_since = known
    begin, clear, drain, send, count, shares, faults = cycles
    get, rate = accesses, law.touches.rate
    for j in range(weight.shape[0]):
        begin[j], count[j, 0] = time, accesses
        shares[j, 0, 0], shares[j, 0, 1], shares[j, 0, 2] = _shares(law, memory)
        during = law.pace.working * law.pace.vcpus / law.pace.interval * (clear[j] + drain[j])
        half = 0.0
        if clear[j] > 0:
            # Its pages are protected one after another: as if all at once, halfway.
            half = 0.5 * during * clear[j] / (clear[j] + drain[j])
            _fade(law, memory, HALF, half)
            since[j] = accesses + half
            for kind in range(rate.shape[0]):
                was = at_get[j, kind]
                added = 1.0 - was
                clean[j, kind] = added + (was * math.exp(-rate[kind] * (since[j] - get)) if was > NOTHING else 0.0)
                memory.protected[kind] += weight[j] * added
                if first and law.splitting > 0:
                    memory.missing[kind] += weight[j]
            if first and law.splitting > 0:
                memory.whole[0] += weight[j]
                whole_since[j] = since[j]
        _fade(law, memory, REST, during - half)
        accesses += during
        count[j, 1:] = accesses
        accesses = _send(law, memory, accesses, send[j] - drain[j], shares[j], faults[j], count[j])
        time += clear[j] + send[j]


@inlined_at_caller
def _send(
    law: _Law, memory: _Memory, accesses: float, time: float, shares: Floats, faults: Floats, count: Floats
) -> float:
    """A chunk is sent, part by part; returns the guest's accesses so far."""
    shares[1:], faults[:] = 0.0, 0.0
    if time <= 0:
        return accesses
    clean, unsplit, missing, faulting, between = _stride(law, memory, 0.0)
    if _fading(law, memory) * time / between < STEADY * faulting:
        clean, unsplit, missing, faulting, between = _stride(law, memory, time / between)
        begun = 0.0
        for part in range(PARTS):
            count[2 + part] = accesses + ENDS[part] * time / between
            faults[part] = faulting * (ENDS[part] - begun) * time / between
            shares[1 + part, 0], shares[1 + part, 1], shares[1 + part, 2] = clean, unsplit, missing
            begun = ENDS[part]
        return accesses + time / between
    left, begun = 0.0, 0.0
    for part in range(PARTS):
        length = (ENDS[part] - begun) * time
        begun, made = ENDS[part], 0.0
        left += length
        while left > NEAR * length:
            moved = min(left / between, FADES * faulting / max(_fading(law, memory), 1e-300))
            clean, unsplit, missing, faulting, between = _stride(law, memory, moved)
            left -= moved * between
            shares[1 + part, 0] += clean * moved
            shares[1 + part, 1] += unsplit * moved
            shares[1 + part, 2] += missing * moved
            made += moved
        accesses += made
        count[2 + part] = accesses + left / between
        faults[part] = shares[1 + part, 0] + shares[1 + part, 1] + shares[1 + part, 2]
        for kind in range(3):
            shares[1 + part, kind] /= made
    return accesses + left / between


@inlined_at_caller
def _stride(law: _Law, memory: _Memory, accesses: float) -> tuple[float, float, float, float, float]:
    """So many accesses pass; halfway, `_shares`, their sum, and the time from one of them to the next, s."""
    _fade(law, memory, STRIDE, 0.5 * accesses)
    clean, unsplit, missing = _shares(law, memory)
    faulting = clean + unsplit + missing
    _fade(law, memory, STRIDE, 0.5 * accesses)
    return clean, unsplit, missing, faulting, _between(law.pace, faulting, unsplit) / law.pace.vcpus


@inlined_at_caller
def _fade(law: _Law, memory: _Memory, what: int, accesses: float) -> None:
    """So many accesses pass. Chunks that are alike have the same factors: they are computed once."""
    if accesses == 0:
        return
    classes, fades = memory.protected.shape[0], memory.fades[what]
    if memory.lengths[what] != accesses:
        memory.lengths[what] = accesses
        for kind in range(classes):
            fades[kind] = math.exp(-law.touches.rate[kind] * accesses)
        fades[classes] = math.exp(-law.splitting * accesses)
    for kind in range(classes):
        protected, missing = memory.protected[kind] * fades[kind], memory.missing[kind] * fades[kind]
        memory.protected[kind] = protected if protected > NOTHING else 0.0
        memory.missing[kind] = missing if missing > NOTHING else 0.0
    memory.whole[0] *= fades[classes]


@inlined_at_caller
def _fading(law: _Law, memory: _Memory) -> float:
    """By how much the shares of `_shares` change with an access, at most."""
    found = law.splitting * memory.whole[0]
    for kind in range(law.touches.rate.shape[0]):
        pages = law.written * memory.protected[kind] + (1 - law.written) * memory.missing[kind]
        found += law.touches.share[kind] * law.touches.rate[kind] * pages
    return float(found)


@inlined_at_caller
def _shares(law: _Law, memory: _Memory) -> tuple[float, float, float]:
    """Shares of the accesses that meet a write-protected page, a block that is not split, and a missing page."""
    there, gone = 0.0, 0.0
    for kind in range(law.touches.share.shape[0]):
        there += law.touches.share[kind] * memory.protected[kind]
        gone += law.touches.share[kind] * memory.missing[kind]
    whole = memory.whole[0]
    return max(0.0, law.written * (there - gone)), law.written * whole, max(0.0, gone - whole)
