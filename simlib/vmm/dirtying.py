# SPDX-License-Identifier: BSD-3-Clause
"""Working sets that are consistent with a guest's measured dirty rates.

A migration depends on the number of *distinct* pages that are written during a pass: the working-set size s(T) of P. J.
Denning and S. C. Schwartz (1972, "Properties of the working-set model"). A dirty rate is one point of s(T): a number of
pages in a period. Between two points, and beyond them, many working sets are possible. This module samples them: a
working set is a mixture of pages that are written at random, some often and some rarely, and every mixture that passes
through the measured points is possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy  # its parts are imported when they are first used

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, format_seconds, parse_duration, parse_size, size_text
from simlib.simulator.engine.random import zipf_classes
from simlib.vmm.memory import Floats, WorkingSet
from simlib.vmm.qemu_rules import PAGE

DEFAULT_S = 1.0
"""Measurement time of a rate that is given without a time, s."""

_ASSUMED_S = (1.0, 600.0)
"""Shortest and longest period of a rate whose period is not known, s: from QEMU's shortest measurement to a long pass
over the memory. A prior."""

_PASS_FACTOR = 3.0
"""Largest ratio between the length of a pass and the mean length, which is assumed for a rate from a migration's log.
A prior."""

RATES = 16
"""Number of write rates in a mixture that is fitted to several points."""

_PRIOR_WEIGHT = 0.3
"""Weight of the prior mixture, relative to the weight of a point that is off by one standard error."""

_MEMORY_ERROR = 1e-3
"""Relative error within which the pages of all rates must add up to the memory."""

_RATE = re.compile(r"([0-9][0-9_.,]*(?:e[0-9]+)?)\s*([kM]|[KMGT]i?B)?(?: pages)?/s", re.IGNORECASE)


@dataclass(frozen=True)
class DirtyRate:
    """Number of distinct pages that a guest wrote within a period.

    - `pages`: number of 4 KiB pages, as QEMU counts them.
    - `seconds`: length of the period.
    - `error`: relative standard error of `pages`.
    - `rounding`: the count was rounded down; the guest wrote `pages` to `pages` + `rounding` pages.
    - `assumed`: True if the length of the period is not known, and `seconds` is an assumption.
    """

    pages: float
    seconds: float
    error: float = 0.02
    rounding: float = 0.0
    assumed: bool = False

    @property
    def description(self) -> str:
        """The rate as a string."""
        return f"{self.pages / self.seconds:,.0f} distinct pages/s over {format_seconds(self.seconds)}"


@dataclass(frozen=True)
class DirtyingGuess:
    """A working-set model that the user gives instead of measurements.

    >>> from simlib.vmm.memory import distinct_pages
    >>> round(distinct_pages(DirtyingGuess(1000, 1000).pages(1e6), 1.0))  # 1000 writes to 1000 pages, at random
    632

    - `writes`: writes per second of all vCPUs, each to one page.
    - `working_set`: number of pages that are written.
    - `zipf`: exponent of their popularity; 0: uniform.
    - `sweep`: True if the pages are written in order. The result then depends on the position of the sweep when CLEAR
      clears a chunk. The pre-copy model computes only means, so its error may be 10 %.
    """

    writes: float
    working_set: float
    zipf: float = 0.0
    sweep: bool = False

    @property
    def description(self) -> str:
        """The working-set model as a string."""
        return f"{self.writes:,.0f} writes/s over {size_text(self.working_set * PAGE)}"

    def pages(self, memory: float) -> WorkingSet:
        """Return the working set by class of pages; all other memory is not written."""
        if self.working_set > memory:
            raise InputError("--dirty", f"over {size_text(self.working_set * PAGE)}", "is more than the guest's memory",
                             "give a smaller working set, or a larger --memory")  # fmt: skip
        share, size = np.ones(1), np.array([self.working_set])
        if self.zipf:
            share, size = zipf_classes(self.zipf, int(self.working_set))
        return classes(size, self.writes * share / size, memory, self.sweep)


def classes(count: Floats, rate: Floats, memory: float, sweep: bool = False) -> WorkingSet:
    """Return a working set of these classes and a last class of pages that are not written."""
    unwritten = max(0.0, memory - float(count.sum()))
    kinds = len(count) + 1
    return WorkingSet(
        np.append(count, unwritten), np.append(rate, 0.0), np.full(kinds, float(sweep)), np.zeros(kinds),
        np.ones(kinds), np.zeros(kinds),
    )  # fmt: skip


def with_zeros(pages: WorkingSet, zeros: float) -> WorkingSet:
    """Return a working set in which `zeros` of the pages that are not written, the last class, are pages of zeros.

    >>> set_ = with_zeros(classes(np.array([10.0]), np.array([1.0]), 100), 60)
    >>> set_.number.tolist(), set_.zero.tolist()
    ([10.0, 30.0, 60.0], [0.0, 0.0, 1.0])
    """
    zeros = min(max(zeros, 0.0), float(pages.number[-1]))
    number, zero = np.append(pages.number, zeros), np.append(pages.zero, 1.0)
    number[-2] -= zeros
    rate, sweep, first, last = (np.append(row, row[-1]) for row in (pages.rate, pages.sweep, pages.first, pages.last))
    return pages._replace(number=number, rate=rate, sweep=sweep, first=first, last=last, zero=zero)


def draw(measured: Sequence[DirtyRate], memory: float, random: np.random.Generator) -> WorkingSet:
    """Sample a working set that is consistent with the measured rates.

    With one point, the size of the working set is log-uniform between the pages that were counted and the memory. With
    several points, the working set is a random mixture of write rates that passes through the points within their
    errors. If points contradict each other, because the guest is not steady, each sample uses a random part of them
    that agrees.

    Raises `InputError` if more pages were dirtied than the memory has.

    - `measured`: at least one point.
    - `memory`: number of pages.
    """
    for point in measured:
        if point.pages > memory:
            raise InputError("--dirty", point.description, f"has more pages than fit into {size_text(memory * PAGE)}",
                             "measure over a shorter time, or correct --memory")  # fmt: skip
    ordered = sorted(measured, key=lambda point: point.seconds)
    if unsteady(ordered):
        ordered = _agreeing([ordered[at] for at in random.permutation(len(ordered))])
    points = [_sampled(point, memory, random) for point in ordered]
    if points[-1].pages <= 0:
        return classes(np.zeros(0), np.zeros(0), memory)
    if len(points) == 1:
        counted, seconds = points[0].pages, points[0].seconds
        size = min(memory, max(counted * (memory / counted) ** random.random(), 1.0001 * counted))
        rate = scipy.optimize.brentq(lambda r: size * -np.expm1(-r * seconds) - counted, 1e-12, 50 / seconds)
        return classes(np.array([size]), np.array([rate]), memory)
    return _mixture(points, memory, random)


def unsteady(measured: Sequence[DirtyRate]) -> str:
    """Describe two measurements that contradict each other by more than their errors; empty if all agree.

    A longer measurement must count at least as many pages. Two of the same length must count the same.

    >>> unsteady([DirtyRate(100.0, 1.0), DirtyRate(50.0, 10.0)])
    '100 distinct pages/s over 1s; 5 distinct pages/s over 10s'
    >>> unsteady([DirtyRate(100.0, 1.0), DirtyRate(90.0, 1.0, rounding=20.0)])
    ''
    """
    for before, after in pairwise(sorted(measured, key=lambda point: point.seconds)):
        if not _agree(before, after) or (before.seconds == after.seconds and not _agree(after, before)):
            return f"{before.description}; {after.description}"
    return ""


def _agree(shorter: DirtyRate, longer: DirtyRate) -> bool:
    """True if the longer measurement counts at least as many pages, within three standard errors."""
    most = (longer.pages + longer.rounding) * (1 + 3 * longer.error)
    return longer.assumed or shorter.assumed or shorter.pages * (1 - 3 * shorter.error) <= most


def _agreeing(measured: Sequence[DirtyRate]) -> list[DirtyRate]:
    """Measurements that agree with those before them in the sequence, ordered by their times; one of each length."""
    kept: list[DirtyRate] = []
    for point in measured:
        others = [other for other in kept if other.seconds != point.seconds]
        pairs = [sorted((point, other), key=lambda rate: rate.seconds) for other in others]
        if len(others) == len(kept) and all(_agree(*pair) for pair in pairs):
            kept.append(point)
    return sorted(kept, key=lambda point: point.seconds)


def _sampled(point: DirtyRate, memory: float, random: np.random.Generator) -> DirtyRate:
    """Sample the number of pages within its rounding and error, and the length of the period if it is assumed."""
    pages, seconds = point.pages, point.seconds
    if point.rounding:
        pages += point.rounding * random.random()
    if point.assumed:
        known = point.seconds > DEFAULT_S  # the mean length of a pass
        ends = (seconds / _PASS_FACTOR, seconds * _PASS_FACTOR) if known else _ASSUMED_S
        seconds = float(np.exp(random.uniform(*np.log(ends))))
        pages *= seconds / point.seconds
    return DirtyRate(min(memory, pages * np.exp(point.error * random.standard_normal())), seconds, point.error)


def _mixture(points: Sequence[DirtyRate], memory: float, random: np.random.Generator) -> WorkingSet:
    """Sample a mixture of write rates, with the number of pages of each, that passes through the points.

    A random prior determines the rest: the number of pages of a rate is proportional to the rate to a
    random power from -1 to 0. The prior is changed as little as the points require (ridge regression).
    """
    times, counted = np.array([point.seconds for point in points]), np.array([point.pages for point in points])
    low, high = np.log(0.01 / times[-1]), np.log(20.0 / times[0])
    rates = np.exp(np.linspace(low, high, RATES) + (high - low) / RATES * (random.random() - 0.5))
    prior = (rates * times[-1]) ** -random.random() * np.exp(random.standard_normal(RATES))
    matrix = -np.expm1(-np.outer(times, rates))
    prior *= counted[-1] / (matrix[-1] @ prior)
    weights = 1.0 / (counted * np.array([max(point.error, 0.005) for point in points]))
    unwritten = max(memory - prior.sum(), 0.01 * memory)  # the pages of all classes add up to the memory
    prior = np.append(prior, unwritten)
    point_rows = np.column_stack([matrix, np.zeros(len(times))]) * weights[:, None]
    rows = np.vstack([point_rows, np.full((1, RATES + 1), 1 / (_MEMORY_ERROR * memory))]) * prior
    rows = np.vstack([rows, _PRIOR_WEIGHT * np.eye(RATES + 1)])
    goal = np.concatenate([counted * weights, [1 / _MEMORY_ERROR], np.full(RATES + 1, _PRIOR_WEIGHT)])
    pages = (prior * scipy.optimize.nnls(rows, goal)[0])[:-1]
    pages *= min(1.0, memory / max(pages.sum(), 1e-300))
    kept = pages > 1e-9 * memory
    return classes(pages[kept], rates[kept], memory)


def parse_dirty(text: str) -> DirtyRate | DirtyingGuess:
    """Parse the value of ``--dirty``: a dirty rate or a working-set model.

    Raises `InputError` if the string is neither.

    - `text`: ``250000/s`` (over a second), ``250000/s in 10s``, ``900MiB/s in 1s``: distinct pages, measured; or
      ``200000/s over 40G``, ``200000/s over 40G, zipf 0.8``: writes to a working set.

    >>> parse_dirty("250000/s in 10s")
    DirtyRate(pages=2500000.0, seconds=10.0, error=0.02, rounding=0.0, assumed=False)
    >>> parse_dirty("200_000/s over 4G, zipf")
    DirtyingGuess(writes=200000.0, working_set=1048576.0, zipf=0.99, sweep=False)
    """
    hint = "for example, 250000/s in 10s (distinct pages, measured) or 200000/s over 40G (writes to a working set)"
    match = _RATE.match(text.strip())
    if match is None:
        raise InputError("--dirty", text, "must be a dirty rate or a working-set model", hint)
    try:
        number = float(match[1].replace("_", "").replace(",", ""))
    except ValueError:
        raise InputError("--dirty", text, "must be a dirty rate or a working-set model", hint) from None
    unit = match[2] or ""
    factor = {"": 1.0, "k": 1e3, "m": 1e6}.get(unit.lower())
    rate = number * factor if factor else parse_size(f"{number:g}{unit}", "--dirty") / PAGE
    condition = text.strip()[match.end() :].strip()
    if not condition or condition.startswith("in "):
        time = condition.removeprefix("in ").strip()
        seconds = parse_duration(time, "--dirty") / PS_PER_S if condition else DEFAULT_S
        if seconds <= 0 or rate <= 0:
            raise InputError("--dirty", text, "must have a rate and a time above 0", hint)
        return DirtyRate(rate * seconds, seconds, assumed=not condition)
    match = re.fullmatch(r"over ([^,]+)(?:,\s*(zipf|sweep)\s*([0-9.]*))?", condition)
    if match is None or rate <= 0:
        raise InputError("--dirty", text, "must be a dirty rate or a working-set model", hint)
    size = parse_size(match[1].strip(), "--dirty") / PAGE
    return DirtyingGuess(rate, size, float(match[3] or 0.99) if match[2] == "zipf" else 0.0, match[2] == "sweep")
