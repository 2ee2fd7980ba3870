# SPDX-License-Identifier: BSD-3-Clause
"""A guest's writes: measured dirty rates, or a working-set model that the user gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simlib._lib.errors import InputError
from simlib.model.quantities import PS_PER_S, format_seconds, parse_bandwidth, parse_duration, parse_size, size_text
from simlib.simulator.engine.random import zipf_classes
from simlib.vmm.memory import Floats, WorkingSet
from simlib.vmm.qemu_rules import PAGE

DEFAULT_S = 1.0
"""Measurement time of a rate that is given without a time, s."""

ASSUMED_S = (1.0, 60.0)
"""Shortest and longest period of a rate whose period is not known, s: those of QEMU's measurements. A prior."""

_RATE = re.compile(r"([0-9][0-9_.,]*(?:e[0-9]+)?)\s*([kM]|[KMGT]i?B|[kMGT]?bit)?(?: pages)?/s", re.IGNORECASE)


@dataclass(frozen=True)
class DirtyRate:
    """Number of distinct pages that a guest wrote within a period.

    - `pages`: number of 4 KiB pages, as QEMU counts them.
    - `seconds`: length of the period.
    - `error`: relative standard error of `pages`.
    - `rounding`: the count was rounded down; the guest wrote `pages` to `pages` + `rounding` pages.
    - `between_s`: shortest and longest length of the period, if it is not known and `seconds` is an assumption.
    - `samples_per_gib`: number of pages in a GiB that QEMU sampled; 0: it counted all pages.
    """

    pages: float
    seconds: float
    error: float = 0.02
    rounding: float = 0.0
    between_s: tuple[float, float] | None = None
    samples_per_gib: float = 0.0

    @property
    def relative_error(self) -> float:
        """Relative standard error of `pages`, including that of the sample, and without its rounding."""
        if not self.samples_per_gib:
            return self.error
        changed = self.samples_per_gib * (self.pages + self.rounding / 2) * PAGE / 2**30
        return float(np.hypot(self.error, max(changed, 0.5) ** -0.5))

    @property
    def description(self) -> str:
        """The rate as a string."""
        return f"{self.pages / self.seconds:,.0f} distinct pages/s over {format_seconds(self.seconds)}"


@dataclass(frozen=True)
class DirtyingGuess:
    """A working-set model that the user gives instead of measurements.

    >>> round(DirtyingGuess(1000, 1000).pages(1e6).distinct_pages(1.0))  # 1000 writes to 1000 pages, at random
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
    most = (longer.pages + longer.rounding) * (1 + 3 * longer.relative_error)
    known = not (longer.between_s or shorter.between_s)
    return not known or shorter.pages * (1 - 3 * shorter.relative_error) <= most


def parse_dirty(text: str) -> DirtyRate | DirtyingGuess:
    """Parse the value of ``--dirty``: a dirty rate or a working-set model.

    Raises `InputError` if the string is neither.

    - `text`: ``250000/s`` (over an unknown time), ``250000/s in 10s``, ``900MiB/s in 1s``, ``200Mbit/s in 1s``:
      distinct pages, measured; or ``200000/s over 40G``, ``200000/s over 40G, zipf 0.8``: writes to a working set.

    >>> parse_dirty("250000/s in 10s")
    DirtyRate(pages=2500000.0, seconds=10.0, error=0.02, rounding=0.0, between_s=None, samples_per_gib=0.0)
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
    if factor:
        rate = number * factor
    elif unit.lower().endswith("bit"):
        rate = parse_bandwidth(f"{number:.15g}{unit}/s", "--dirty") / 8 / PAGE
    else:
        rate = parse_size(f"{number:.15g}{unit}", "--dirty") / PAGE
    condition = text.strip()[match.end() :].strip()
    if not condition or condition.startswith("in "):
        time = condition.removeprefix("in ").strip()
        seconds = parse_duration(time, "--dirty") / PS_PER_S if condition else DEFAULT_S
        if seconds <= 0 or rate <= 0:
            raise InputError("--dirty", text, "must have a rate and a time above 0", hint)
        return DirtyRate(rate * seconds, seconds, between_s=None if condition else ASSUMED_S)
    match = re.fullmatch(r"over ([^,]+)(?:,\s*(zipf|sweep)\s*([0-9.]*))?", condition)
    if match is None or rate <= 0:
        raise InputError("--dirty", text, "must be a dirty rate or a working-set model", hint)
    size = parse_size(match[1].strip(), "--dirty") / PAGE
    return DirtyingGuess(rate, size, float(match[3] or 0.99) if match[2] == "zipf" else 0.0, match[2] == "sweep")
