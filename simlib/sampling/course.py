# SPDX-License-Identifier: BSD-3-Clause
"""The course of a migration on the guest's own clock, which counts its accesses.

A page is still untouched after n accesses of the guest with probability exp(-n × p), where p is the share of the
accesses that go to it; how long they took does not matter. So what each part of the memory is like when a chunk is
cleared follows from how many accesses there were since it was cleared before, and these from how fast the guest is
while the migration thread clears and sends. Only that has to be simulated, in windows (`simlib.sampling.window`); what
they find is a `Pace`.

Pages of one popularity are a class; there is one if all are alike. Of each chunk and class the course keeps the
probability that a page is clean, of those that the guest writes: write-protected, or missing from a block that was
split.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simlib.engine.result import PS
from simlib.model.pagetable import WORD_PAGES, PageTable
from simlib.model.scenario import Scenario
from simlib.workloads.migration import page_time

Floats = NDArray[np.float64]


STEPS, ENDS = 4, (1, 2, 4)
"""Steps into which the time is divided in which a chunk is sent, and the steps at which its parts end."""

FEW_CHUNKS = 32
"""With fewer, so much changes while one is sent that the steps are divided again."""

PARTS = len(ENDS)
"""Parts of that time: as write-protected pages get fewer, faults wait less for each other."""


class Touches(NamedTuple):
    """Classes of pages, by how often the guest touches them.

    `share`: of the accesses that go to the class; `pages`: of the memory that belongs to it; `rate`: of the accesses
    that go to one of its pages.
    """

    share: Floats
    pages: Floats
    rate: Floats


def touches_of(scenario: Scenario) -> Touches:
    """The classes of a guest that touches pages at random; under Zipf's law each has twice the pages of the one before.

    Examples
    --------
    >>> hot = touches_of(Scenario.parse({"guest": {"vcpus": 4, "memory": "1G"},
    ...                                  "workload": {"kind": "migration", "access": "zipf", "shared": True}}))
    >>> len(hot.share), round(float(hot.share.sum()), 12), round(float(hot.pages.sum()), 12)
    (19, 1.0, 1.0)
    """
    guest, workload = scenario.guest, scenario.workload
    regions = 1 if workload.shared else guest.vcpus
    pages = guest.pages_per_vcpu * guest.vcpus // regions
    exponent = workload.zipf_exponent if workload.access == "zipf" else 0.0
    if not exponent:
        return Touches(np.ones(1), np.ones(1), np.full(1, 1 / (pages * regions)))
    edges = np.unique([0, *(1 << np.arange(pages.bit_length() - 1)), pages]).astype(np.float64)
    rest = 1.0 - exponent
    below = np.log1p(edges) if abs(rest) < 1e-9 else np.expm1(rest * np.log1p(edges)) / rest
    share, size = np.diff(below) / below[-1], np.diff(edges)
    return Touches(share, size / pages, share / size / regions)


class Pace(NamedTuple):
    """How fast the guest and CLEAR are in one pass.

    Times in seconds. `interval`: from one access of a vCPU to its next, if none faults. `faulting`: shares of the
    accesses that fault, ascending, at which `delay` is known: what a fault makes a vCPU lose, waiting included.
    `clear`: duration of a CLEAR over what it takes alone (`Terrain.alone`). `working`: accesses of the guest during a
    CLEAR and for `drain` after it, over those of the same time undisturbed.
    """

    interval: float
    faulting: tuple[float, ...]
    delay: tuple[float, ...]
    clear: float = 1.0
    working: float = 1.0
    drain: float = 0.0

    def between(self, faulting: float) -> float:
        """Time from one access of a vCPU to its next while so large a share of them faults, s.

        Examples
        --------
        >>> Pace(1.0, (0.5,), (2.0,)).between(0.25)
        1.5
        """
        return self.interval + faulting * float(np.interp(faulting, self.faulting, self.delay))


class Cycles(NamedTuple):
    """The chunks of one pass, each cleared and then sent; arrays of shape (chunks,).

    `begin`: when its CLEAR begins, s since the guest was undisturbed. `clear`, `send`: durations, s, and `drain`: the
    part of `send` that `Pace.working` covers too. `accesses`: of the guest so far, when CLEAR begins, after `drain`,
    and after each step of the rest of `send`, shape (chunks, 2 + steps). `faulting`: shares of the accesses that meet a
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


class Terrain:
    """The memory of a migration, as far as it is known without simulating each page.

    Attributes
    ----------
    scenario : Scenario
    touches : Touches
    chunks : ndarray, shape (chunks,)
        Pages of each.
    clean : ndarray, shape (chunks, classes)
        Probability that a page of those that the guest writes is clean, at `since`.
    since, whole_since : ndarray, shape (chunks,)
        The guest's accesses so far when that was so; and when the chunk's blocks were write-protected without being
        split, infinite if they were not.
    accesses, time : float
        The guest's accesses so far, and the time since it was undisturbed, s.
    passes : int
        Passes that were made.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Everything is mapped and dirty."""
        guest = scenario.guest
        self.scenario, self.touches = scenario, touches_of(scenario)
        pages, given = guest.pages_per_vcpu * guest.vcpus, scenario.workload.clear_chunk
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

    def copy(self) -> Terrain:
        """The same, to go another way from here."""
        other = copy.copy(self)
        other.clean, other.since = self.clean.copy(), self.since.copy()
        other.whole_since = self.whole_since.copy()
        return other

    def clean_now(self) -> Floats:
        """`clean`, at this moment."""
        faded: Floats = self.clean * np.exp(-np.outer(self.accesses - self.since, self.touches.rate))
        return faded

    def dirty(self) -> Floats:
        """Share of each chunk's pages that GET would find now; before the first pass all."""
        if not self.passes:
            return np.ones(len(self.chunks))
        found: Floats = self.written * (1 - self.clean_now() @ self.touches.pages)
        return found

    def alone(self, dirty: Floats) -> Floats:
        """What the CLEAR of each chunk takes in which so much was found, if nobody else wants the lock, s."""
        costs, guest = self.scenario.costs, self.scenario.guest

        def cost(*names: str) -> float:
            return sum(getattr(costs, name) or 0 for name in names) * PS

        words = (1 - (1 - dirty) ** WORD_PAGES) / WORD_PAGES
        page = dirty * cost("clear_page") + words * cost("clear_word")
        if not self.passes and guest.mapped_as_blocks:
            if self.leaves_blocks:
                page = dirty * cost("clear_unsplit") + words * cost("clear_page", "clear_word")
            else:
                page += cost("split_block", "split_alloc") / self.block_pages
        around = cost("clear_ioctl", "flush") + guest.vcpus * cost("flush_per_vcpu")
        found: Floats = (around + self.chunks * page) * (dirty > 0)
        return found

    def walk(self, dirty: Floats, pace: Pace) -> Cycles:
        """Make one pass over what GET found; the terrain is then as it is at its end."""
        chunks = len(self.chunks)
        clear = pace.clear * self.alone(dirty)
        send = np.rint(dirty * self.chunks) * page_time(self.scenario) * PS
        cycles = Cycles(np.empty(chunks), clear, np.minimum(pace.drain, send), send, np.empty((chunks, 2 + STEPS)),
                        np.empty((chunks, 1 + PARTS, 3)), np.empty((chunks, PARTS)))  # fmt: skip
        at_get = self.clean_now() if self.passes else np.zeros_like(self.clean)
        _walk(
            self.passes == 0, self.chunks / self.chunks.sum(), *self.touches, self.written, self.splitting, at_get,
            self.clean, self.since, self.whole_since, self.accesses, self.time, self.scenario.guest.vcpus,
            pace.interval, np.array(pace.faulting), np.array(pace.delay), pace.working, cycles,
        )  # fmt: skip
        self.accesses = float(cycles.accesses[-1, -1])
        self.time = float(cycles.begin[-1] + clear[-1] + send[-1])
        self.passes += 1
        return cycles


# fmt: off
@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]  # Numba has no types of its own
def _walk(
    first: bool, weight: Floats, share: Floats, pages: Floats, rate: Floats, written: float, splitting: float,
    at_get: Floats, clean: Floats, since: Floats, whole_since: Floats, accesses: float, time: float, vcpus: int,
    interval: float, faulting: Floats, delay: Floats, working: float, cycles: Cycles,
) -> None:
    """`Terrain.walk`. What it needs of all chunks are sums, which fade by one factor for each class."""
    begin, clear, drain, send, count, shares, faults = cycles
    get, classes = accesses, len(rate)
    protected, missing, whole = np.zeros(classes), np.zeros(classes), 0.0
    finer = 1 if len(weight) >= FEW_CHUNKS else 16
    for j in range(len(weight)):
        protected += weight[j] * at_get[j]
        if whole_since[j] < np.inf:
            missing += weight[j] * np.exp(-rate * (accesses - whole_since[j]))
            whole += weight[j] * np.exp(-splitting * (accesses - whole_since[j]))
    for j in range(len(weight)):
        begin[j], count[j, 0] = time, accesses
        _shares(protected, missing, whole, share, written, shares[j, 0])
        during = working * vcpus / interval * (clear[j] + drain[j])
        if clear[j] > 0:
            # Its pages are protected one after another: as if all at once, halfway.
            half = 0.5 * during * clear[j] / (clear[j] + drain[j])
            whole = _fade(protected, missing, whole, rate, splitting, half)
            now = accesses + half
            added = np.ones(classes) if first else 1 - at_get[j]
            clean[j] = added + at_get[j] * np.exp(-rate * (now - get))
            protected += weight[j] * added
            since[j] = now
            if first and splitting > 0:
                missing += weight[j]
                whole += weight[j]
                whole_since[j] = now
            whole = _fade(protected, missing, whole, rate, splitting, during - half)
        else:
            whole = _fade(protected, missing, whole, rate, splitting, during)
        accesses += during
        count[j, 1:] = accesses
        step = (send[j] - drain[j]) / (STEPS * finer)
        accesses, whole = _send(
            protected, missing, whole, share, rate, written, splitting, accesses, step, finer, vcpus, interval,
            faulting, delay, shares[j], faults[j], count[j],
        )
        time += clear[j] + send[j]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _send(
    protected: Floats, missing: Floats, whole: float, share: Floats, rate: Floats, written: float, splitting: float,
    accesses: float, step: float, finer: int, vcpus: int, interval: float, faulting: Floats, delay: Floats,
    shares: Floats, faults: Floats, count: Floats,
) -> tuple[float, float]:
    """A chunk is sent, step by step; returns the guest's accesses so far, and the share of blocks that are whole."""
    made, now = np.zeros(PARTS), np.empty(3)
    shares[1:] = 0.0
    faults[:] = 0.0
    if step <= 0:
        return accesses, whole
    for number in range(STEPS * finer):
        part = 0 if number < ENDS[0] * finer else 1 if number < ENDS[1] * finer else 2
        moved = _speed(protected, missing, whole, share, written, vcpus, interval, faulting, delay) * step
        faded, faded_blocks = np.exp(-0.5 * moved * rate), np.exp(-0.5 * moved * splitting)
        protected *= faded
        missing *= faded
        whole *= faded_blocks
        _shares(protected, missing, whole, share, written, now)
        shares[1 + part] += now * moved
        made[part] += moved
        protected *= faded
        missing *= faded
        whole *= faded_blocks
        accesses += moved
        count[2 + number // finer] = accesses
    for part in range(PARTS):
        faults[part] = shares[1 + part].sum()
        shares[1 + part] /= made[part]
    return accesses, whole


# fmt: on
@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fade(protected: Floats, missing: Floats, whole: float, rate: Floats, splitting: float, accesses: float) -> float:
    """So many accesses pass; returns the share of the memory whose blocks are still whole."""
    faded = np.exp(-rate * accesses)
    protected *= faded
    missing *= faded
    left: float = whole * np.exp(-splitting * accesses)
    return left


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _shares(protected: Floats, missing: Floats, whole: float, share: Floats, written: float, out: Floats) -> None:
    """Shares of the accesses that meet a write-protected page, a block that is not split, and a missing page."""
    gone = (share * missing).sum()
    out[0] = max(0.0, written * ((share * protected).sum() - gone))
    out[1] = written * whole
    out[2] = max(0.0, gone - whole)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _speed(
    protected: Floats, missing: Floats, whole: float, share: Floats, written: float, vcpus: int, interval: float,
    faulting: Floats, delay: Floats,
) -> float:  # fmt: skip
    """Accesses of the guest a second."""
    shares = np.empty(3)
    _shares(protected, missing, whole, share, written, shares)
    fault = shares.sum()
    speed: float = vcpus / (interval + fault * np.interp(fault, faulting, delay))
    return speed
