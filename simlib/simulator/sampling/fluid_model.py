# SPDX-License-Identifier: BSD-3-Clause
"""Fluid model of a migration on the guest's own clock, which counts its accesses.

After n accesses of the guest, whatever their duration, a page is untouched with probability exp(-n × p), where p is the
share of the accesses that go to it. Therefore, the state of each part of the memory depends only on the number of
accesses since that part was last cleared. This number depends on the speed of the guest while the migration thread
clears and sends. Only this speed, which `Rates` describes, is simulated (`simlib.simulator.sampling.window`).

Pages that are accessed equally often form a class; uniform access has a single class. For each chunk and class, the
model tracks the probability that a page written by the guest is clean: write-protected, or missing from a split block.
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


def compiled_function(function: Function) -> Function:
    """Compile a function with Numba at its first call, and cache it; type checkers see the original type."""
    return cast("Function", cached_njit(nogil=True)(function))


def inlined_function(function: Function) -> Function:
    """Compile a function into its callers; type checkers see the original type."""
    return cast("Function", inline.always_inline(function))


GOLDEN = 0.6180339887498949
"""Golden ratio minus one: its multiples modulo 1 fill the interval from 0 to 1 evenly, whatever their number."""

ENDS = (0.125, 0.25, 0.5, 1.0)
"""Ends of the parts into which the time of sending a chunk is divided: most of the change comes first."""

PARTS = len(ENDS)

FADES = 0.1
"""Largest relative decrease of the faulting accesses in one stride of the integration."""

NOTHING = 1e-200
"""Shares below this are set to zero, because processors are slow with denormal numbers."""

NEAR = 0.01
"""Share of a part's time that may be carried over to the next."""

HALF, REMAINDER, STRIDE = range(3)
"""Indices of `_Memory.fades`."""

STEADY = 2e-3
"""Relative decrease of the faulting accesses up to which a chunk is sent in one stride with equal parts."""


def cost_of(scenario: Scenario, *names: str) -> float:
    """Sum of some costs, s; a cost without a value counts as 0."""
    return sum(getattr(scenario.host_costs, name) or 0 for name in names) * PS


class Touches(NamedTuple):
    """Classes of pages, by how often the guest accesses them.

    `share`: share of the accesses that go to the class; `pages`: share of the memory that belongs to it; `rate`: share
    of the accesses that go to one of its pages.
    """

    share: Floats
    pages: Floats
    rate: Floats


def touches_of(scenario: Scenario) -> Touches:
    """Classes of a guest with random accesses; with Zipf's law, each has twice as many pages as the one before."""
    guest, workload = scenario.guest, scenario.workload
    regions = 1 if workload.shared else guest.vcpus
    pages = guest.pages // regions
    exponent = workload.zipf_exponent if workload.access == "zipf" else 0.0
    if not exponent:
        return Touches(np.ones(1), np.ones(1), np.full(1, 1 / (pages * regions)))
    share, size = zipf_classes(exponent, pages)
    return Touches(share, size / pages, share / size / regions)


class Rates(NamedTuple):
    """Speed of the guest and of CLEAR in one pass.

    Times in seconds. `vcpus`; `interval`: time between two accesses of a vCPU, if none faults. `faulting`: shares of
    the accesses that fault, ascending, at which these are known: `delay`, the time that a fault loses besides waiting
    in queues, and `service`, the time for which each fault keeps the others waiting. `flush`: additional time of all
    vCPUs if a fault splits a block and flushes their TLBs; `held`: the additional time for which it keeps others
    waiting. `clear`: duration of a CLEAR relative to that without contention (`MemoryState.uncontended_clear`).
    `working`: accesses of the guest during a CLEAR and for `drain` after it, relative to an undisturbed guest.
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
        """Time between two accesses of a vCPU while the share `faulting` of them faults, s.

        `splitting`: the share of the accesses that fault and split a block.

        >>> Rates(4, 1.0, (0.5,), (2.0,), (0.0,)).between(0.25)
        1.5
        >>> round(Rates(4, 1.0, (0.5,), (100.0,), (100.0,)).between(0.25))  # four vCPUs, one of them served at a time
        100
        """
        return _between_once(self.arrays(), faulting, splitting)

    def arrays(self) -> Rates:
        """The same rates with arrays, so that Numba compiles one version for any number of shares."""
        faulting, delay, service = (np.array(values) for values in (self.faulting, self.delay, self.service))
        return self._replace(faulting=faulting, delay=delay, service=service)


@inlined_function
def _at(place: float, places: Any, values: Any) -> float:
    """Interpolate linearly between a few values, constant beyond the first and the last (as `numpy.interp`)."""
    if place <= places[0]:
        return float(values[0])
    for i in range(1, places.shape[0]):
        if place < places[i]:
            slope = (values[i] - values[i - 1]) / (places[i] - places[i - 1])
            return float(slope * (place - places[i - 1]) + values[i - 1])
    return float(values[places.shape[0] - 1])


@inlined_function
def _between(rates: Rates, faulting: float, splitting: float) -> float:
    """`Rates.between`."""
    delay, service = _at(faulting, rates.faulting, rates.delay), _at(faulting, rates.faulting, rates.service)
    part = splitting / faulting if faulting > 0 else 0.0
    delay, service = delay + part * rates.flush, service + part * rates.held
    waiting = _waiting(rates.vcpus, rates.interval, faulting, delay, service)
    return rates.interval + faulting * delay + waiting


@inlined_function
def _waiting(vcpus: int, interval: float, faulting: float, delay: float, service: float) -> float:
    """Queueing time per access, s, of vCPUs that fault now and then and are served one at a time.

    P. J. Schweitzer's approximation of mean-value analysis (1979, "Approximate analysis of multiclass closed networks
    of queues"): an arriving vCPU finds the others in the queue as often as itself. `service_of` is the inverse.
    """
    cycle, others = interval + faulting * delay, (vcpus - 1) * service * faulting
    root = np.sqrt((others - cycle) ** 2 + 4 * others * service * faulting)
    if others > cycle:
        return float(0.5 * (others - cycle + root))
    return float(2 * others * service * faulting / (cycle - others + root))


@compiled_function
def _between_once(rates: Rates, faulting: float, splitting: float) -> float:
    """`Rates.between`, called from Python."""
    return float(_between(rates, faulting, splitting))


def service_of(vcpus: int, interval: float, faulting: float, delay: float, queued: float) -> float:
    """Time for which each fault keeps the others waiting, s, if it waits for `queued` itself.

    >>> service = service_of(64, 1e-5, 0.2, 2e-6, 5e-6)
    >>> round(Rates(64, 1e-5, (0.2,), (2e-6,), (service,)).between(0.2) * 1e6, 6)  # 10 + 0.2 × (2 + 5) us
    11.4
    """
    if vcpus == 1:
        return 0.0
    cycle = interval / faulting + delay
    return float(0.5 * (np.sqrt(queued**2 + 4 * queued * (queued + cycle) / (vcpus - 1)) - queued))


class Cycles(NamedTuple):
    """The chunks of one pass, each cleared and then sent; arrays of shape (chunks,).

    `begin`: beginning of the CLEAR, s since the end of the warm-up. `clear`, `send`: durations, s, and `drain`: the
    part of `send` that `Rates.working` includes. `accesses`: the guest's total accesses when CLEAR begins, after
    `drain`, and after each part of the remainder of `send`, shape (chunks, 2 + parts). `faulting`: shares of the
    accesses that meet a write-protected page, an unsplit block, or a missing page, when CLEAR begins, and in each part
    of the sending after `drain`, shape (chunks, 1 + parts, 3). `faults`: the guest's faults in each part, shape
    (chunks, parts).
    """

    begin: Floats
    clear: Floats
    drain: Floats
    send: Floats
    accesses: Floats
    faulting: Floats
    faults: Floats

    def accesses_at(self, times: Floats, profile: Floats) -> Floats:
        """Return the guest's total accesses up to some times, s since the end of the warm-up.

        - `profile`: share of the accesses during CLEAR and `drain` that were made up to evenly spaced moments.
        """
        chunk = np.searchsorted(self.begin, times, side="right") - 1
        clearing = np.maximum(1e-300, (self.clear + self.drain)[chunk])
        sending = np.maximum(1e-300, (self.send - self.drain)[chunk])
        since, known = times - self.begin[chunk], self.accesses[chunk]
        made = np.interp(since / clearing, np.linspace(0, 1, len(profile)), profile)
        accesses: Floats = known[:, 0] + (known[:, 1] - known[:, 0]) * made
        sent, begin = (since - clearing) / sending, 0.0
        for part, end in enumerate(ENDS):
            done = np.clip((sent - begin) / (end - begin), 0, 1)
            accesses += (known[:, 2 + part] - known[:, 1 + part]) * done
            begin = end
        return accesses


class MemoryState:
    """State of a migration's memory that can be computed without simulating each page.

    - `chunks`, shape (chunks,): pages of each.
    - `clean`, shape (chunks, classes): probability that a page which the guest writes is clean, at `since`.
    - `since`, shape (chunks,): the guest's total accesses for which `clean` was computed; `whole_since`: those at which
      the chunk's blocks were write-protected without being split, infinite if they were not.
    - `accesses`, `time`: the guest's accesses so far, and the time since the end of the warm-up, s.
    - `passes`: passes that were made.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Start with all memory mapped and dirty."""
        guest = scenario.guest
        self.scenario, self.touches = scenario, touches_of(scenario)
        pages, clear_chunk = guest.pages, scenario.workload.clear_chunk
        size = min(pages, clear_chunk // guest.page_size) if clear_chunk else pages
        full_chunks, last = divmod(pages, size)
        self.chunks = np.array([size] * full_chunks + [last] * (last > 0), dtype=np.float64)
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
        """Values computed for this moment; copies share them until one makes a pass."""

    def copy(self) -> MemoryState:
        """Return an independent copy."""
        other = copy.copy(self)
        other.clean, other.since, other.whole_since = self.clean.copy(), self.since.copy(), self.whole_since.copy()
        return other

    def clean_now(self) -> Floats:
        """`clean` at this moment."""
        if "clean" not in self._now:
            self._now["clean"] = self.clean * np.exp(-np.outer(self.accesses - self.since, self.touches.rate))
        return np.asarray(self._now["clean"])

    def dirty_shares(self) -> Floats:
        """Share of each chunk's pages that a GET would find dirty now: 1 before the first pass."""
        if not self.passes:
            return np.ones(len(self.chunks))
        return np.asarray(self.written * (1 - self.clean_now() @ self.touches.pages))

    def uncontended_clear(self, dirty: Floats) -> Floats:
        """Duration of the CLEAR of each chunk with this share of dirty pages, if no other thread wants the lock, s."""
        cost, guest = partial(cost_of, self.scenario), self.scenario.guest
        words = (1 - (1 - dirty) ** WORD_PAGES) / WORD_PAGES
        page = dirty * cost("clear_page") + words * cost("clear_word")
        if not self.passes and guest.mapped_as_blocks:
            if self.leaves_blocks:
                page = dirty * cost("clear_unsplit") + words * cost("clear_page", "clear_word")
            else:
                page += cost("split_block", "split_alloc") / self.block_pages
        per_ioctl = cost("clear_ioctl", "flush", "interrupt") + guest.vcpus * cost("flush_per_vcpu")
        return np.asarray(np.maximum(per_ioctl + self.chunks * page, PS) * (dirty > 0))  # windows measure ratios to it

    def make_pass(self, dirty: Floats, rates: Rates) -> Cycles:
        """Make one pass over the pages that GET found, and advance the state to the end of the pass."""
        count = len(self.chunks)
        clear = rates.clear * self.uncontended_clear(dirty)
        send = np.rint(dirty * self.chunks) * page_time(self.scenario) * PS
        cycles = Cycles(np.empty(count), clear, np.minimum(rates.drain, send), send, np.empty((count, 2 + PARTS)),
                        np.empty((count, 1 + PARTS, 3)), np.empty((count, PARTS)))  # fmt: skip
        at_get = self.clean_now() if self.passes else np.zeros_like(self.clean)
        model = _FluidModel(self.touches, rates.arrays(), self.written, self.splitting)
        states = _Chunks(self.chunks / self.chunks.sum(), at_get, self.clean, self.since, self.whole_since)
        _integrate_pass(model, self._memory(states), states, self.passes == 0, self.accesses, self.time, cycles)
        self._now = {}
        self.accesses = float(cycles.accesses[-1, -1])
        self.time = float(cycles.begin[-1] + clear[-1] + send[-1])
        self.passes += 1
        return cycles

    def _memory(self, states: _Chunks) -> _Memory:
        """Sums over all chunks when a pass begins."""
        if "untouched" not in self._now:
            unsplit_chunks = np.flatnonzero(np.isfinite(self.whole_since))
            weight, ages = states.weight[unsplit_chunks], self.accesses - self.whole_since[unsplit_chunks]
            missing = weight @ np.exp(-np.outer(ages, self.touches.rate))
            self._now["untouched"] = missing, weight @ np.exp(-self.splitting * ages)
        missing, whole = self._now["untouched"]
        fades = np.empty((3, len(missing) + 1))
        return _Memory(states.weight @ states.at_get, missing.copy(), np.array([whole]), fades, np.zeros(3))


class _Chunks(NamedTuple):
    """State of each chunk in a pass; `clean`, `since` and `whole_since` are those of `MemoryState`, and change.

    - `weight`, shape (chunks,): its share of the memory; `at_get`, shape (chunks, classes): `clean` at GET.
    """

    weight: Floats
    at_get: Floats
    clean: Floats
    since: Floats
    whole_since: Floats


class _FluidModel(NamedTuple):
    """Parameters of the fluid model; `written` and `splitting` as in `MemoryState`."""

    touches: Touches
    rates: Rates
    written: float
    splitting: float


class _Memory(NamedTuple):
    """Sums over all chunks, which decay by one factor per class.

    `protected`, `missing`: share of the memory whose pages are clean, and were never accessed, of each class; `whole`:
    share whose blocks are unsplit, shape (1,). `fades`, shape (classes + 1,): factors per stride, the last of `whole`.
    """

    protected: Floats
    missing: Floats
    whole: Floats
    fades: Floats
    lengths: Floats


@compiled_function
def _integrate_pass(
    model: _FluidModel, memory: _Memory, states: _Chunks, first: bool, accesses: float, time: float, cycles: Cycles
) -> None:
    """`MemoryState.make_pass`: clear and send each chunk."""
    weight, at_get, clean, since, whole_since = states
    begin, clear, drain, send, totals, shares, faults = cycles
    get, rate = accesses, model.touches.rate
    for chunk in range(weight.shape[0]):
        begin[chunk], totals[chunk, 0] = time, accesses
        shares[chunk, 0, 0], shares[chunk, 0, 1], shares[chunk, 0, 2] = _shares(model, memory)
        during = model.rates.working * model.rates.vcpus / model.rates.interval * (clear[chunk] + drain[chunk])
        half = 0.0
        if clear[chunk] > 0:
            # CLEAR protects its pages one after another; the model protects all of them at once, halfway.
            half = 0.5 * during * clear[chunk] / (clear[chunk] + drain[chunk])
            _fade(model, memory, HALF, half)
            since[chunk] = accesses + half
            for class_ in range(rate.shape[0]):
                was_clean = at_get[chunk, class_]
                kept = was_clean * math.exp(-rate[class_] * (since[chunk] - get)) if was_clean > NOTHING else 0.0
                added = 1.0 - was_clean
                clean[chunk, class_] = added + kept
                memory.protected[class_] += weight[chunk] * added
                if first and model.splitting > 0:
                    memory.missing[class_] += weight[chunk]
            if first and model.splitting > 0:
                memory.whole[0] += weight[chunk]
                whole_since[chunk] = since[chunk]
        _fade(model, memory, REMAINDER, during - half)
        accesses += during
        totals[chunk, 1:] = accesses
        remainder = send[chunk] - drain[chunk]
        accesses = _send(model, memory, accesses, remainder, shares[chunk], faults[chunk], totals[chunk])
        time += clear[chunk] + send[chunk]


@inlined_function
def _send(
    model: _FluidModel, memory: _Memory, accesses: float, time: float, shares: Floats, faults: Floats, totals: Floats
) -> float:
    """Send a chunk, part by part; returns the guest's total accesses."""
    shares[1:], faults[:] = 0.0, 0.0
    if time <= 0:
        return accesses
    clean, unsplit, missing, faulting, between = _stride(model, memory, 0.0)
    if _fading(model, memory) * time / between < STEADY * faulting:
        clean, unsplit, missing, faulting, between = _stride(model, memory, time / between)
        begin = 0.0
        for part in range(PARTS):
            totals[2 + part] = accesses + ENDS[part] * time / between
            faults[part] = faulting * (ENDS[part] - begin) * time / between
            shares[1 + part, 0], shares[1 + part, 1], shares[1 + part, 2] = clean, unsplit, missing
            begin = ENDS[part]
        return accesses + time / between
    remaining, begin = 0.0, 0.0
    for part in range(PARTS):
        length = (ENDS[part] - begin) * time
        begin, made = ENDS[part], 0.0
        remaining += length
        while remaining > NEAR * length:
            moved = min(remaining / between, FADES * faulting / max(_fading(model, memory), 1e-300))
            clean, unsplit, missing, faulting, between = _stride(model, memory, moved)
            remaining -= moved * between
            shares[1 + part, 0] += clean * moved
            shares[1 + part, 1] += unsplit * moved
            shares[1 + part, 2] += missing * moved
            made += moved
        accesses += made
        totals[2 + part] = accesses + remaining / between
        faults[part] = shares[1 + part, 0] + shares[1 + part, 1] + shares[1 + part, 2]
        for class_ in range(3):
            shares[1 + part, class_] /= made
    return accesses + remaining / between


@inlined_function
def _stride(model: _FluidModel, memory: _Memory, accesses: float) -> tuple[float, float, float, float, float]:
    """Let accesses pass; returns `_shares` halfway, their sum, and the time between two accesses of the guest, s."""
    _fade(model, memory, STRIDE, 0.5 * accesses)
    clean, unsplit, missing = _shares(model, memory)
    faulting = clean + unsplit + missing
    _fade(model, memory, STRIDE, 0.5 * accesses)
    return clean, unsplit, missing, faulting, _between(model.rates, faulting, unsplit) / model.rates.vcpus


@inlined_function
def _fade(model: _FluidModel, memory: _Memory, row: int, accesses: float) -> None:
    """Let accesses pass. Chunks of equal length have the same factors, which are computed once."""
    if accesses == 0:
        return
    classes, fades = memory.protected.shape[0], memory.fades[row]
    if memory.lengths[row] != accesses:
        memory.lengths[row] = accesses
        for class_ in range(classes):
            fades[class_] = math.exp(-model.touches.rate[class_] * accesses)
        fades[classes] = math.exp(-model.splitting * accesses)
    for class_ in range(classes):
        protected, missing = memory.protected[class_] * fades[class_], memory.missing[class_] * fades[class_]
        memory.protected[class_] = protected if protected > NOTHING else 0.0
        memory.missing[class_] = missing if missing > NOTHING else 0.0
    memory.whole[0] *= fades[classes]


@inlined_function
def _fading(model: _FluidModel, memory: _Memory) -> float:
    """Largest decrease of the sum of `_shares` per access."""
    decrease = model.splitting * memory.whole[0]
    for class_ in range(model.touches.rate.shape[0]):
        pages = model.written * memory.protected[class_] + (1 - model.written) * memory.missing[class_]
        decrease += model.touches.share[class_] * model.touches.rate[class_] * pages
    return float(decrease)


@inlined_function
def _shares(model: _FluidModel, memory: _Memory) -> tuple[float, float, float]:
    """Shares of the accesses that meet a write-protected page, an unsplit block, and a missing page."""
    clean, missing = 0.0, 0.0
    for class_ in range(model.touches.share.shape[0]):
        clean += model.touches.share[class_] * memory.protected[class_]
        missing += model.touches.share[class_] * memory.missing[class_]
    whole = memory.whole[0]
    return max(0.0, model.written * (clean - missing)), model.written * whole, max(0.0, missing - whole)
