# SPDX-License-Identifier: BSD-3-Clause
"""Which pages a guest writes, and how often: its working set, from what can be measured of it.

What decides a migration is how many *distinct* pages are written in the time of a pass: the working-set size s(T) of
P. J. Denning and S. C. Schwartz (1972, "Properties of the working-set model"). A rate of dirtying is one point of it:
pages over a time. Between two points, and beyond them, many guests are possible. They are drawn here: a guest is a
mixture of pages that are written at random, some often and some seldom, and any mixture that has the measured points
may be it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy  # its parts are imported when they are first used

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, format_seconds, parse_duration, parse_size, say_size
from simlib.simulator.engine.random import zipf_classes
from simlib.vmm.memory import Floats, WorkingSet
from simlib.vmm.rules import PAGE

DEFAULT_S = 1.0
"""Time of a rate that is given without one, s: calc-dirty-rate's own."""

RATES = 16
"""Rates of writing, per page, in a mixture that is fitted to several points."""

_LOOSE = 0.3
"""Weight of what was supposed, over that of a point that is off by its error."""

_WHOLE = 1e-3
"""How exactly the pages of all rates are the memory, as a share of it."""

_RATE = re.compile(r"([0-9][0-9_.,]*(?:e[0-9]+)?)\s*([kM]|[KMGT]i?B)?(?: pages)?/s", re.IGNORECASE)


@dataclass(frozen=True)
class DirtyRate:
    """Distinct pages that were written within a time.

    - `pages`: of 4 KiB, or as QEMU counts them.
    - `seconds`: the time.
    - `error`: standard error of `pages`, as a share of it.
    """

    pages: float
    seconds: float
    error: float = 0.02

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.pages / self.seconds:,.0f} distinct pages/s over {format_seconds(self.seconds)}"


@dataclass(frozen=True)
class DirtyingGuess:
    """A guest whose habit is told by hand.

    >>> from simlib.vmm.memory import distinct_pages
    >>> round(distinct_pages(DirtyingGuess(1000, 1000).pages(1e6), 1.0))  # 1000 writes to 1000 pages, at random
    632

    - `writes`: a second, of all vCPUs, each to one page.
    - `working_set`: pages that they go to.
    - `zipf`: exponent of their popularity; 0: all alike.
    - `sweep`: whether they are written one after the other. With CLEAR by chunks where it is decides; the course, which
      knows only means, may then be off by a tenth.
    """

    writes: float
    working_set: float
    zipf: float = 0.0
    sweep: bool = False

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.writes:,.0f} writes/s over {say_size(self.working_set * PAGE)}"

    def pages(self, memory: float) -> WorkingSet:
        """The classes; the rest of the memory is not written."""
        if self.working_set > memory:
            raise InputError("--dirty", f"over {say_size(self.working_set * PAGE)}", "is more than the memory",
                             "give the working set, or more --memory")  # fmt: skip
        share, size = np.ones(1), np.array([self.working_set])
        if self.zipf:
            share, size = zipf_classes(self.zipf, int(self.working_set))
        return classes(size, self.writes * share / size, memory, self.sweep)


def classes(count: Floats, rate: Floats, memory: float, sweep: bool = False) -> WorkingSet:
    """Pages by class, and a last class of those that are not written."""
    still = max(0.0, memory - float(count.sum()))
    kinds = len(count) + 1
    return WorkingSet(
        np.append(count, still), np.append(rate, 0.0), np.full(kinds, float(sweep)), np.zeros(kinds), np.ones(kinds),
        np.zeros(kinds),
    )  # fmt: skip


def draw(measured: Sequence[DirtyRate], memory: float, random: np.random.Generator) -> WorkingSet:
    """One of the guests that may have been measured.

    With one point: the size of the working set lies anywhere between what was seen and the memory, on a logarithmic
    scale. With several: a mixture of rates that comes as near to the points as they are exact, and is otherwise drawn.

    Raises `InputError` if more was dirtied than there is.

    - `measured`: at least one.
    - `memory`: pages.
    """
    for one in measured:
        if one.pages > memory:
            raise InputError("--dirty", one.said, f"is more than the memory of {say_size(memory * PAGE)}",
                             "measure over a shorter time, or give --memory as it is")  # fmt: skip
    ordered = sorted(measured, key=lambda one: one.seconds)
    for before, after in pairwise(ordered):
        low, high = before.pages * (1 - 3 * before.error), after.pages * (1 + 3 * after.error)
        if before.seconds == after.seconds or low > high:
            raise InputError("--dirty", f"{before.said}; {after.said}", "contradict each other: more time, more pages",
                             "measure again while the guest does its usual work")  # fmt: skip
    points = [
        DirtyRate(min(memory, one.pages * np.exp(one.error * random.standard_normal())), one.seconds, one.error)
        for one in ordered
    ]
    if len(points) == 1:
        seen, seconds = points[0].pages, points[0].seconds
        size = seen * (memory / seen) ** random.random()
        size = min(memory, max(size, 1.0001 * seen))
        rate = scipy.optimize.brentq(lambda r: size * -np.expm1(-r * seconds) - seen, 1e-12, 50 / seconds)
        return classes(np.array([size]), np.array([rate]), memory)
    return _mixture(points, memory, random)


def _mixture(points: Sequence[DirtyRate], memory: float, random: np.random.Generator) -> WorkingSet:
    """Rates from often to seldom, with pages of each that give the points.

    What the points leave open is drawn: a mixture in which seldom written pages are as many as often written ones, or
    up to as many more as they are written less, is changed as little as will do (ridge regression).
    """
    times, seen = np.array([one.seconds for one in points]), np.array([one.pages for one in points])
    low, high = np.log(0.01 / times[-1]), np.log(20.0 / times[0])
    rates = np.exp(np.linspace(low, high, RATES) + (high - low) / RATES * (random.random() - 0.5))
    supposed = (rates * times[-1]) ** -random.random() * np.exp(random.standard_normal(RATES))
    matrix = -np.expm1(-np.outer(times, rates))
    supposed *= seen[-1] / (matrix[-1] @ supposed)
    exact = 1.0 / (seen * np.array([max(one.error, 0.005) for one in points]))
    still = max(memory - supposed.sum(), 0.01 * memory)  # pages that are not written: all together are the memory
    supposed = np.append(supposed, still)
    seen_of = np.column_stack([matrix, np.zeros(len(times))]) * exact[:, None]
    rows = np.vstack([seen_of, np.full((1, RATES + 1), 1 / (_WHOLE * memory))]) * supposed
    rows = np.vstack([rows, _LOOSE * np.eye(RATES + 1)])
    goal = np.concatenate([seen * exact, [1 / _WHOLE], np.full(RATES + 1, _LOOSE)])
    found = (supposed * scipy.optimize.nnls(rows, goal)[0])[:-1]
    found *= min(1.0, memory / max(found.sum(), 1e-300))
    kept = found > 1e-9 * memory
    return classes(found[kept], rates[kept], memory)


def parse_dirty(text: str) -> DirtyRate | DirtyingGuess:
    """What ``--dirty`` says.

    Raises `InputError` if it cannot be read.

    - `text`: ``250000/s`` (over a second), ``250000/s in 10s``, ``900MiB/s in 1s``: distinct pages, measured; or
      ``200000/s over 40G``, ``200000/s over 40G, zipf 0.8``: writes to a working set, by hand.

    >>> parse_dirty("250000/s in 10s")
    Measured(pages=2500000.0, seconds=10.0, error=0.02)
    >>> parse_dirty("200_000/s over 4G, zipf")
    Known(writes=200000.0, working_set=1048576.0, zipf=0.99, sweep=False)
    """
    cure = "write 250000/s in 10s (distinct pages, measured), or 200000/s over 40G (writes to a working set)"
    match = _RATE.match(text.strip())
    if match is None:
        raise InputError("--dirty", text, "is no rate of pages", cure)
    try:
        number = float(match[1].replace("_", "").replace(",", ""))
    except ValueError:
        raise InputError("--dirty", text, "is no rate of pages", cure) from None
    unit = match[2] or ""
    rate = (
        number * {"": 1.0, "k": 1e3, "m": 1e6}[unit.lower()]
        if len(unit) < 2
        else parse_size(f"{number:g}{unit}", "--dirty") / PAGE
    )
    rest = text.strip()[match.end() :].strip()
    if not rest or rest.startswith("in "):
        seconds = parse_duration(rest.removeprefix("in ").strip(), "--dirty") / PS_PER_S if rest else DEFAULT_S
        if seconds <= 0 or rate <= 0:
            raise InputError("--dirty", text, "must be above 0, and over some time", cure)
        return DirtyRate(rate * seconds, seconds)
    match = re.fullmatch(r"over ([^,]+)(?:,\s*(zipf|sweep)\s*([0-9.]*))?", rest)
    if match is None or rate <= 0:
        raise InputError("--dirty", text, "is no rate of pages", cure)
    size = parse_size(match[1].strip(), "--dirty") / PAGE
    return DirtyingGuess(rate, size, float(match[3] or 0.99) if match[2] == "zipf" else 0.0, match[2] == "sweep")
