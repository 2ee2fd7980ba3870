# SPDX-License-Identifier: BSD-3-Clause
"""Structured programs, in which every thread is written.

A `Program` is written as blocks (``with p.loop(...)``, ``p.when(...)``, ``p.holding(...)``) and compiled to the flat
table of `simlib.model.steps`. A walk is confined to an extent: extents are nested, and no step leaves its extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import InputError
from simlib.model.conditions import AtLeast, Condition, Label, index
from simlib.model.steps import ALL, COUNTERS, EXTENTS, Adapt, LockScope, Map, Mode, Quantity, Scan, Step


class Extent(NamedTuple):
    """Pages that a walk may reach: the thread's region (level 0), or a part of the extent around it."""

    level: int

    def done(self) -> Condition:
        """Condition: all of its pages are done."""
        return AtLeast(Quantity.DONE, 1, self.level)

    def pages(self, least: int) -> Condition:
        """Condition: at least `least` of its pages are done."""
        return AtLeast(Quantity.PAGES, least, self.level)

    def beyond_batch(self) -> Condition:
        """Condition: at least an adaptive batch of its pages is done."""
        return AtLeast(Quantity.BEYOND, 0, self.level)

    def collected(self) -> Condition:
        """Condition: one of its remaining pages is in the bitmap: GET collected the page, and it has not been
        sent since."""
        return AtLeast(Quantity.COLLECTED, 1, self.level)

    def dirty(self) -> Condition:
        """Condition: one of its remaining pages is in KVM's dirty log."""
        return AtLeast(Quantity.DIRTY, 1, self.level)


REGION = Extent(0)
"""The thread's region."""


held = partial(AtLeast, Quantity.HELD)
"""Condition: the lock that was taken last has been held for at least this time, ps."""

in_bitmap = partial(AtLeast, Quantity.BITMAP)
"""Condition: at least this many pages are in the thread's bitmap."""

clock_shows = partial(AtLeast, Quantity.CLOCK)
"""Condition: the clock shows at least this time, ps."""

since_check = partial(AtLeast, Quantity.SINCE_CHECK)
"""Condition: at least this time has passed since the thread's last throttle check, ps."""

in_guest = partial(AtLeast, Quantity.VCPUS_IN_GUEST)
"""Condition: at least this many vCPUs are in the guest."""

in_buffer = partial(AtLeast, Quantity.LOGGED)
"""Condition: at least this many pages are in the thread's log buffer."""

in_ring = partial(AtLeast, Quantity.RING)
"""Condition: at least this many entries of the thread's dirty ring have not been reset."""


def raised(flag: int) -> Condition:
    """Condition: the flag is raised."""
    return AtLeast(Quantity.FLAG, 1, flag)


def mapped_by_block() -> Condition:
    """Condition: a block mapping covers the current page."""
    return AtLeast(Quantity.BLOCK, 1)


class Lock(NamedTuple):
    """A lock, its mode, and its scope."""

    number: int
    mode: Mode
    scope: LockScope = LockScope.ALL

    def waiters(self, least: int) -> Condition:
        """Condition: at least `least` threads wait for it."""
        return AtLeast(Quantity.WAITERS, least, self._argument)

    def vcpus(self, least: int) -> Condition:
        """Condition: at least `least` vCPUs wait for it."""
        return AtLeast(Quantity.VCPUS, least, self._argument)

    @property
    def _argument(self) -> int:
        return -1 if self.scope is LockScope.REGION else self.number


class Thread(NamedTuple):
    """A thread's program: its first step and its name."""

    first: int
    name: str = ""


class Loop(NamedTuple):
    """A loop, or a block, under construction."""

    program: Program
    end: Label

    def leave(self) -> None:
        """Leave the loop or block."""
        self.program.add(Step.JUMP, self.end)

    def leave_if(self, condition: Condition) -> None:
        """Leave the loop or block if the condition holds."""
        (~condition).write(self.program, self.end)


@dataclass
class Program:
    """Programs under construction, one after the other.

    Two rounds over a region of pages, with the lock held for 128 pages at a time:

    >>> p = Program()
    >>> with p.thread():
    ...     with p.repeat(2):
    ...         with p.loop(until=REGION.done()):
    ...             with p.extent(128) as hold, p.holding(Lock(0, Mode.WRITE)):
    ...                 with p.loop(until=hold.done()):
    ...                     p.scan(Scan.CLEAR, 30_000)
    ...                     p.advance(64, hold)
    ...         p.back(REGION)
    >>> [Step(row[0]).name for row in p.steps().tolist()]
    ['OPEN', 'TAKE', 'SCAN', 'ADVANCE', 'TEST', 'DROP', 'TEST', 'BACK', 'REPEAT', 'END']
    """

    _rows: list[list[int]] = field(default_factory=list)
    _open: list[tuple[int, int, Label]] = field(default_factory=list)
    _notes: list[tuple[int, str]] = field(default_factory=list)
    _depth: int = 0
    _counters: int = 0
    _deferred: list[tuple[int, Label, Callable[[], None], Label]] = field(default_factory=list)

    def add(self, step: Step, *arguments: int | Label) -> None:
        """Append a row. Only this module does so."""
        row: list[int] = [step, 0, 0, 0, 0, 0]
        for column, argument in enumerate(arguments, 1):
            if isinstance(argument, Label):
                self._open.append((len(self._rows), column, argument))
            else:
                row[column] = argument
        self._rows.append(row)

    def place(self, label: Label) -> None:
        """Place the label at the next row."""
        label.row = len(self._rows)

    def _next_row(self) -> Label:
        return Label(len(self._rows))

    def steps(self) -> NDArray[np.int64]:
        """Return the finished table, shape (n_steps, 6)."""
        table = np.array(self._rows, dtype=np.int64)
        for row, column, label in self._open:
            table[row, column] = index(label)
        return table

    def notes(self) -> tuple[tuple[int, str], ...]:
        """Return the notes of the listing, each as the number of a step and a text."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Add a note to the listing at the next step."""
        self._notes.append((len(self._rows), text))

    @contextmanager
    def thread(self, name: str = "") -> Iterator[Thread]:
        """Write the program of one thread; its deferred blocks follow it."""
        thread = Thread(len(self._rows), name)
        self._counters = 0
        yield thread
        self.add(Step.END)
        while self._deferred:
            self._depth, target, write_block, then = self._deferred.pop(0)
            self.place(target)
            write_block()
            self.add(Step.JUMP, then)
        self._depth = 0

    @contextmanager
    def loop(self, until: Condition | None = None) -> Iterator[Loop]:
        """Repeat the block until the condition holds at its end; without a condition, until `Loop.leave`."""
        top, loop = self._next_row(), Loop(self, Label())
        yield loop
        if until is None:
            self.add(Step.JUMP, top)
        else:
            until.write(self, top)
        self.place(loop.end)

    @contextmanager
    def block(self) -> Iterator[Loop]:
        """Run the block once; `Loop.leave` leaves it early."""
        block = Loop(self, Label())
        yield block
        self.place(block.end)

    @contextmanager
    def repeat(self, times: int) -> Iterator[None]:
        """Run the block this many times."""
        top, counter = self._next_row(), self._counter()
        yield
        self.add(Step.REPEAT, top, times, counter)

    @contextmanager
    def every(self, times: int) -> Iterator[None]:
        """Run the block every `times`-th time that the thread reaches it."""
        past = Label()
        self.add(Step.REPEAT, past, times, self._counter())
        yield
        self.place(past)

    @contextmanager
    def when(self, condition: Condition, otherwise: Callable[[], None] | None = None) -> Iterator[None]:
        """Run the block if the condition holds; `otherwise` writes the alternative."""
        no, end = Label(), Label()
        condition.write(self, no)
        yield
        if otherwise is not None:
            self.add(Step.JUMP, end)
        self.place(no)
        if otherwise is not None:
            otherwise()
        self.place(end)

    @contextmanager
    def holding(self, lock: Lock) -> Iterator[None]:
        """Hold a lock during the block; a lockless update that lost a race is retried."""
        take = self._next_row()
        self.add(Step.TAKE, *lock)
        yield
        self.add(Step.DROP, *lock, take)

    @contextmanager
    def dropping(self, lock: Lock) -> Iterator[None]:
        """Drop a lock that the thread holds, run the block, and take the lock again."""
        self.add(Step.DROP, *lock, 0)
        yield
        self.add(Step.TAKE, *lock)

    @contextmanager
    def extent(self, pages: int, aligned: bool = False) -> Iterator[Extent]:
        """Open an extent of `pages` pages at the current page; `aligned`: it ends at the next multiple of `pages`."""
        self._depth += 1
        if self._depth >= EXTENTS:
            raise InputError("program", self._depth, f"must not have more than {EXTENTS - 1} nested extents")
        self.add(Step.OPEN, self._depth, pages, aligned)
        yield Extent(self._depth)
        self._depth -= 1

    def _counter(self) -> int:
        if self._counters == COUNTERS:
            raise InputError("program", COUNTERS + 1, f"must not have more than {COUNTERS} counters in one thread")
        self._counters += 1
        return self._counters - 1

    def run(self, mean_ps: int | None, distribution: int = 0) -> None:
        """Spend time outside any lock; None (unknown) counts as 0."""
        self.add(Step.RUN, mean_ps or 0, distribution)

    def hold(self, mean_ps: int | None, distribution: int = 0) -> None:
        """Spend time with a lock held."""
        self.add(Step.HOLD, mean_ps or 0, distribution)

    def advance(self, pages: int, within: Extent = REGION) -> None:
        """Advance by this many pages, at most to the extent's end."""
        self.add(Step.ADVANCE, pages, within.level)

    def skip(self, extent: Extent) -> None:
        """Go to the extent's end."""
        self.add(Step.ADVANCE, ALL, extent.level)

    def back(self, extent: Extent) -> None:
        """Go back to the extent's first page."""
        self.add(Step.BACK, extent.level)

    def seek(self, multiple: int = 1, distribution: int = 0) -> None:
        """Go to a random page of the region."""
        self.add(Step.SEEK, multiple, distribution)

    def access(
        self, *faults: Callable[[], None], on_full: Callable[[], None] | None = None, retry: bool = False
    ) -> None:
        """Access the current page.

        - `faults`: write the block for each kind of fault, in the order of `Step.ACCESS`; these blocks are deferred.
        - `on_full`: writes the block that makes room in a full log buffer or dirty ring.
        - `retry`: repeat the access after a fault.
        """
        access, after = self._next_row(), Label()
        targets = [self._defer(fault, access if retry else after) for fault in faults]
        self.add(Step.ACCESS, *targets, access if on_full is None else self._defer(on_full, access))
        self.place(after)

    def _defer(self, write_block: Callable[[], None], then: Label) -> Label:
        """Write a block after the thread's program, followed by a jump to `then`; return its label."""
        target = Label()
        self._deferred.append((self._depth, target, write_block, then))
        return target

    def map(self, action: Map, logging: bool = False) -> None:
        """Change the page table entry of the current page."""
        self.add(Step.MAP, action, logging)

    def scan(self, action: Scan, page_ps: int | None = 0, word_ps: int | None = 0, unsplit_ps: int | None = 0) -> None:
        """Process the 64 pages of the current bitmap word."""
        self.add(Step.SCAN, action, page_ps or 0, word_ps or 0, unsplit_ps or 0)

    def adapt(self, action: Adapt, least: int, most: int) -> None:
        """Halve or double the thread's adaptive batch."""
        self.add(Step.ADAPT, action, least, most)

    def barrier(self, number: int, parties: int) -> None:
        """Wait until this many threads have arrived."""
        self.add(Step.BARRIER, number, parties)

    def stamp(self, number: int) -> None:
        """Record the time and all counters."""
        self.add(Step.STAMP, number)

    def start_stopwatch(self) -> None:
        """Start the thread's stopwatch, unless a kick has started it."""
        self.add(Step.LAP, 0)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """Record the stopwatch's time and restart it; `of_kicks`: do so only if a kick has started it."""
        self.add(Step.LAP, 2 if of_kicks else 1)

    def signal(self, flag: int) -> None:
        """Raise a flag, which then stays raised."""
        self.add(Step.SIGNAL, flag)

    def touch(self, line: int) -> None:
        """Modify a shared cache line."""
        self.add(Step.TOUCH, line)

    def sleep(self, time_ps: int) -> None:
        """Sleep until the clock has advanced by this time."""
        self.add(Step.SLEEP, time_ps)
        self.add(Step.WAKE)

    def pace(self, interval_ps: int, entry_ps: int = 0) -> None:
        """Idle until the time that is due, which each time is `interval_ps` later; a thread that is late does not idle.

        - `entry_ps`: time for each page of the thread's log buffer, which it empties before it idles.
        """
        self.add(Step.PACE, interval_ps, entry_ps)

    def throttle_check(self, begins: bool = False) -> None:
        """Throttle the vCPUs if they dirtied too many pages; `begins`: only restart the counts."""
        self.add(Step.THROTTLE_CHECK, begins)

    def throttle(self, entry_ps: int = 0) -> None:
        """Let the vCPUs run, then make them sleep once; `entry_ps`: time for each page of their log buffers."""
        for pauses in (False, True):
            self.add(Step.THROTTLE, pauses, entry_ps)
            self.add(Step.WAKE)

    def dirty_limit_update(self) -> None:
        """Measure the vCPUs' dirty rates, and set the time for which each sleeps when its dirty ring is full."""
        self.add(Step.DIRTY_LIMIT_UPDATE)

    def dirty_limit_sleep(self) -> None:
        """Sleep for the time that the last dirty limit update set."""
        self.add(Step.DIRTY_LIMIT_SLEEP)
        self.add(Step.WAKE)

    def kick(self, time_ps: int, stalls: bool = False, table: int = 0, entry_ps: int = 0) -> None:
        """Make every vCPU in the guest exit and re-enter it; `stalls`: time the exit with the vCPU's stopwatch."""
        self.add(Step.KICK, time_ps, stalls, table, entry_ps)

    def drain(self, entry_ps: int) -> None:
        """Empty the thread's log buffer into its dirty ring or, without a ring, into the dirty log."""
        self.add(Step.DRAIN, entry_ps)

    def log(self, on_full: Callable[[], None]) -> None:
        """Put the current page into the thread's log buffer; `on_full` writes the block that makes room in it."""
        self.add(Step.LOG, self._defer(on_full, self._next_row()))

    def harvest(self, entry_ps: int) -> None:
        """Set the dirty bits of the pages in the new entries of all dirty rings."""
        self.add(Step.HARVEST, entry_ps)

    @contextmanager
    def for_each_run(self, entry_ps: int) -> Iterator[None]:
        """Remove harvested entries from the rings, run by run, and execute the block after each run."""
        top, end = self._next_row(), Label()
        self.add(Step.RESET, end, entry_ps)
        yield
        self.add(Step.JUMP, top)
        self.place(end)
