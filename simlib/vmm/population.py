# SPDX-License-Identifier: BSD-3-Clause
"""Guests that are consistent with measured dirty rates: a prior population, and importance sampling.

A migration depends on the number of *distinct* pages that are written during a pass: the working-set size s(T) of P. J.
Denning and S. C. Schwartz (1972, "Properties of the working-set model"). A dirty rate is one point of s(T), and many
guests pass through a few points. This module draws many guests from a prior population, scales each to one of the
measurements, computes the probability of the others, and chooses guests in proportion to it (sampling importance
resampling; D. B. Rubin, 1988, "Using the SIR algorithm to simulate posterior distributions").

The population: one to three kinds of pages, whose sizes and write rates are log-uniform; some kinds are written in
order, as memset or a garbage collector do, and some are contiguous in memory; some guests write all their memory in
order, as a page cache does; some write in bursts; and each guest's writes vary from one measurement to the next. These
are priors. Their ranges were chosen in view of 24 migrations of Linux guests (``data/experiments/linux-train.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are first used
from numpy.typing import NDArray

from simlib._lib.errors import InputError
from simlib.model.quantities import size_text
from simlib.vmm.dirtying import DirtyRate, classes
from simlib.vmm.memory import Floats, WorkingSet, written_share
from simlib.vmm.qemu_rules import PAGE

CANDIDATES = 2**15
"""Number of guests in a batch."""

_BATCHES = 8
"""Maximum number of batches."""

_KINDS = 3
"""Maximum number of kinds of pages that a guest writes."""

_RATE = (1e-3, 30.0)
"""Writes per second to each page of a kind."""

_DECADES = 3.0
"""Range of the sizes of a guest's kinds of pages, in decades."""

_SWEEP, _BURSTS, _CONTIGUOUS = 0.25, 0.15, 0.5
"""Share of the kinds that are written in order, of the guests that write in bursts, and of the kinds that are
contiguous."""

_STREAMS, _STREAM_SHARE = 0.1, (0.3, 1.0)
"""Share of the guests that write their memory in order, and the share of the memory that they write."""

_CYCLE_S = (0.5, 60.0)
"""Time from one burst to the next, s."""

_ACTIVE = (0.05, 0.9)
"""Share of the time for which a guest with bursts writes."""

_WOBBLE = (0.005, 0.2)
"""Standard deviation of the logarithm of a guest's activity, from one measurement to the next."""

_FEWEST = 64.0
"""Pages that a guest writes in a measurement that is rounded to 0, at least: its timer and its kernel."""

_FIRST = np.arange(_KINDS) == 0

_EXACT_COUNT = 30
"""Largest number of changed pages for which the binomial distribution is summed."""

_GIB_PAGES = 2**30 / PAGE


class _Candidates(NamedTuple):
    """Guests of the prior population: arrays of shape (guests, kinds), or (guests,) from `burst_s`.

    Fields as those of `WorkingSet`; `size`: number of pages of a kind, 0 for a kind that a guest does not have.
    """

    size: Floats
    rate: Floats
    sweep: NDArray[np.bool_]
    burst_s: Floats
    pause_s: Floats
    wobble: Floats

    def active_s(self, seconds: Floats, random: np.random.Generator) -> Floats:
        """Time for which the guests write in periods of these lengths, which begin at random, s."""
        cycle = self.burst_s + self.pause_s
        begin = cycle * random.random(len(cycle))
        active = np.zeros(len(cycle))
        for time, sign in ((begin + seconds, 1.0), (begin, -1.0)):
            bursts = np.floor(time / cycle)
            active += sign * (bursts * self.burst_s + np.minimum(time - bursts * cycle, self.burst_s))
        return active * np.exp(self.wobble * random.standard_normal(len(cycle)))

    def distinct_pages(self, active_s: Floats) -> Floats:
        """Number of distinct pages that each guest writes in an active time."""
        return np.asarray((self.size * written_share(self.rate * active_s[:, None], self.sweep)).sum(axis=1))


def sample_guests(
    measured: Sequence[DirtyRate], memory: float, count: int, random: np.random.Generator, most: float = 0.0
) -> list[WorkingSet]:
    """Sample guests that are consistent with the measured rates.

    If measurements contradict each other, because the guest is not steady, guests whose writes vary much are chosen,
    and the measurements count less.

    Raises `InputError` if more pages were dirtied than the memory has.

    - `measured`: at least one rate.
    - `memory`: number of pages. `most`: number of pages that may be written; 0: all.

    >>> rates = [DirtyRate(20_000.0, 1.0), DirtyRate(100_000.0, 10.0)]
    >>> guests = sample_guests(rates, 2**18, 200, np.random.default_rng(1))
    >>> steady = [guest for guest in guests if not guest.pause_s]
    >>> bool(0.8 < np.median([guest.distinct_pages(10.0) for guest in steady]) / 1e5 < 1.2)
    True
    """
    most = most or memory
    for point in measured:
        shown, least = point.description, point.pages * max(0.0, 1 - 3 * point.relative_error)
        if point.pages > memory:
            raise InputError("--dirty", shown, f"has more pages than fit into {size_text(memory * PAGE)}",
                             "measure over a shorter time, or correct --memory")  # fmt: skip
        if least > most:
            hint = "correct --resident: the rss of virsh dommemstat counts neither huge pages nor swap"
            raise InputError("--dirty", shown, f"has more pages than {size_text(most * PAGE)} of resident memory", hint)
    batches, weights = list[_Candidates](), list[Floats]()
    while len(batches) < _BATCHES and (not weights or _effective(np.concatenate(weights)) < 2 * count):
        candidates, weight = _weighted(measured, memory, most, random)
        batches.append(candidates)
        weights.append(weight)
    joined = _Candidates(*(np.concatenate(rows) for rows in zip(*batches, strict=True)))
    chosen = _resample(np.concatenate(weights), count, random)
    return [_working_set(joined, at, memory, random) for at in chosen]


def _weighted(
    measured: Sequence[DirtyRate], memory: float, most: float, random: np.random.Generator
) -> tuple[_Candidates, Floats]:
    """Draw a batch of guests that pass through the most exact measurement, and the logarithms of their weights."""
    candidates = _prior(random)
    anchor = min(range(len(measured)), key=lambda at: _spread(measured[at]))
    weights = np.zeros(CANDIDATES)
    periods = [_periods(point, random) for point in measured]
    active = [candidates.active_s(seconds, random) for seconds in periods]
    target = _counted(measured[anchor], periods[anchor], memory, random)
    reached = candidates.distinct_pages(active[anchor])
    scale = np.where(reached > 1e-9, target / np.maximum(reached, 1e-9), np.nan)
    candidates = candidates._replace(size=candidates.size * np.nan_to_num(scale)[:, None])
    possible = np.isfinite(scale) & (candidates.size.sum(axis=1) <= most)
    streams = np.flatnonzero((random.random(CANDIDATES) < _STREAMS) & (active[anchor] > 0))
    size = most * random.uniform(*_STREAM_SHARE, len(streams))
    candidates.size[streams], candidates.sweep[streams] = size[:, None] * _FIRST, True
    candidates.rate[streams] = (target[streams] / size / active[anchor][streams])[:, None]
    possible[streams] = target[streams] <= size
    for at, point in enumerate(measured):
        if at != anchor:
            weights += _likelihood(point, periods[at], candidates.distinct_pages(active[at]), memory)
    return candidates, np.where(possible, weights, -np.inf)


def _prior(random: np.random.Generator) -> _Candidates:
    """Draw guests of the population, with sizes relative to each other."""
    shape = (CANDIDATES, _KINDS)
    kinds = random.integers(1, _KINDS + 1, CANDIDATES)
    size = 10 ** (_DECADES * random.random(shape)) * (np.arange(_KINDS) < kinds[:, None])
    bursts = random.random(CANDIDATES) < _BURSTS
    cycle, active = log_uniform(random, _CYCLE_S, CANDIDATES), random.uniform(*_ACTIVE, CANDIDATES)
    return _Candidates(
        size, log_uniform(random, _RATE, shape), random.random(shape) < _SWEEP, np.where(bursts, cycle * active, 1.0),
        np.where(bursts, cycle * (1 - active), 0.0), log_uniform(random, _WOBBLE, CANDIDATES),
    )  # fmt: skip


def _periods(point: DirtyRate, random: np.random.Generator) -> Floats:
    """Length of the period of a measurement for each guest, s; sampled if it is not known."""
    if point.between_s is None:
        return np.full(CANDIDATES, point.seconds)
    return log_uniform(random, point.between_s, CANDIDATES)


def _spread(point: DirtyRate) -> float:
    """Relative error of a measurement, including its rounding; infinite if it is rounded to 0."""
    if point.pages <= 0:
        return np.inf
    return point.relative_error + point.rounding / point.pages + (point.between_s is not None)


def _counted(point: DirtyRate, seconds: Floats, memory: float, random: np.random.Generator) -> Floats:
    """Number of pages that each guest wrote in a measurement, within its rounding and error."""
    low, high = point.pages, point.pages + point.rounding
    if low <= 0:
        return log_uniform(random, (min(_FEWEST, high), high), CANDIDATES)
    pages = random.uniform(low, high, CANDIDATES) * np.exp(point.relative_error * random.standard_normal(CANDIDATES))
    return np.minimum(memory, pages * seconds / point.seconds)


def _likelihood(point: DirtyRate, seconds: Floats, pages: Floats, memory: float) -> Floats:
    """Logarithm of the probability of a measurement, if the guests write these numbers of pages in it."""
    low = point.pages * seconds / point.seconds
    high = low + np.maximum(point.rounding, 1e-3 * point.pages) * seconds / point.seconds
    if point.samples_per_gib:  # QEMU compares the checksums of some pages, and rounds down
        samples = max(1.0, np.round(point.samples_per_gib * memory / _GIB_PAGES))
        first, beyond = np.ceil(samples * low / memory - 1e-9), np.ceil(samples * high / memory - 1e-9)
        share = np.clip(pages / memory, 1e-12, 1 - 1e-12)
        probability = _binomial(np.minimum(beyond - 1, samples), samples, share)
        probability -= np.where(first > 0, _binomial(np.maximum(first - 1, 0), samples, share), 0.0)
    else:
        error = np.maximum(point.error * pages, 0.5)
        probability = scipy.special.ndtr((high - pages) / error) - scipy.special.ndtr((low - pages) / error)
    return np.log(np.maximum(probability, 1e-300))


def _binomial(most: Floats, samples: float, share: Floats) -> Floats:
    """Probability that at most `most` of `samples` pages changed, if each changed with a probability of `share`.

    For many pages, the variance-stabilising transformation of F. J. Anscombe (1948, "The transformation of Poisson,
    binomial and negative-binomial data") replaces the sum, which takes long.

    >>> exact, near = scipy.special.bdtr(500, 16384, 0.033), _binomial(np.array([500.0]), 16384, np.array([0.033]))
    >>> bool(abs(exact - near[0]) < 0.001)
    True
    """
    if most.max() <= _EXACT_COUNT:
        return np.asarray(scipy.special.bdtr(most, int(samples), share))
    changed = np.arcsin(np.sqrt(np.minimum(1.0, (most + 0.75) / (samples + 0.5))))
    return np.asarray(scipy.special.ndtr(2 * np.sqrt(samples + 0.5) * (changed - np.arcsin(np.sqrt(share)))))


def _effective(weights: Floats) -> float:
    """Effective number of guests (Kish), from the logarithms of their weights."""
    if not np.isfinite(weights.max()):
        return 0.0
    relative = np.exp(weights - weights.max())
    return float(relative.sum() ** 2 / (relative**2).sum())


def _resample(weights: Floats, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Choose guests by their weights; the weights are flattened until enough guests have one."""
    if not np.isfinite(weights.max()):
        weights = np.zeros(len(weights))
    power = 1.0
    while _effective(power * weights) < count and power > 1e-3:
        power *= 0.8
    share = np.exp(power * (weights - weights.max()))
    ends = np.cumsum(share / share.sum())
    chosen = np.searchsorted(ends, (np.arange(count) + random.random()) / count).clip(0, len(ends) - 1)
    return np.asarray(random.permutation(chosen))


def _working_set(guests: _Candidates, at: int, memory: float, random: np.random.Generator) -> WorkingSet:
    """Return a guest at a random moment of its bursts, with its pages at random places."""
    kept = guests.size[at] > 0
    size, burst_s, pause_s = guests.size[at][kept], float(guests.burst_s[at]), float(guests.pause_s[at])
    size = size * min(1.0, memory / size.sum())  # larger only if no guest fits the measurements
    rate = guests.rate[at][kept] * np.exp(guests.wobble[at] * random.standard_normal())
    pages = classes(size, rate, memory)
    width = np.append(np.where(random.random(len(size)) < _CONTIGUOUS, np.minimum(1.0, size / memory), 1.0), 1.0)
    first = (1 - width) * random.random(len(width))
    return pages._replace(
        sweep=np.append(guests.sweep[at][kept].astype(float), 0.0), first=first, last=first + width,
        burst_s=burst_s if pause_s else 0.0, pause_s=pause_s, phase_s=(burst_s + pause_s) * random.random(),
    )  # fmt: skip


def log_uniform(random: np.random.Generator, ends: tuple[float, float], shape: int | tuple[int, ...] = ()) -> Floats:
    """Sample from a log-uniform distribution between two ends."""
    return np.asarray(np.exp(random.uniform(np.log(ends[0]), np.log(ends[1]), shape)))
