# SPDX-License-Identifier: BSD-3-Clause
"""Programs with structure: the layer in which every thread is written.

A `Program` is written as blocks (``with p.loop(...)``, ``p.when(...)``, ``p.holding(...)``)
and comes out as the flat table of `simlib.model.steps`. What a walk may reach is an extent:
extents lie within each other, and no step leaves its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import InputError
from simlib.model.conditions import AtLeast, Condition, Label, index
from simlib.model.steps import ALL, COUNTERS, EXTENTS, Adapt, Map, Mode, Quantity, Scan, Step, Whose


class Extent(NamedTuple):
    """Pages that a walk may reach: the thread's region (level 0), or a part of the extent around it."""

    level: int

    def done(self) -> Condition:
        """All of its pages are done."""
        return AtLeast(Quantity.DONE, 1, self.level)

    def pages(self, least: int) -> Condition:
        """At least so many of its pages are done."""
        return AtLeast(Quantity.PAGES, least, self.level)

    def beyond_batch(self) -> Condition:
        """At least as many of its pages are done as the thread's adaptive batch has."""
        return AtLeast(Quantity.BEYOND, 0, self.level)

    def collected(self) -> Condition:
        """Some page of what is left of it stands in the bitmap: GET gave it, and it was not sent since."""
        return AtLeast(Quantity.COLLECTED, 1, self.level)

    def dirty(self) -> Condition:
        """Some page of what is left of it stands in KVM's dirty log."""
        return AtLeast(Quantity.DIRTY, 1, self.level)


REGION = Extent(0)
"""All that the thread walks."""


def held(least_ps: int) -> Condition:
    """The lock that was taken last has been held for so long."""
    return AtLeast(Quantity.HELD, least_ps)


def in_bitmap(least: int) -> Condition:
    """At least so many pages stand in the thread's bitmap."""
    return AtLeast(Quantity.BITMAP, least)


def clock_shows(least_ps: int) -> Condition:
    """The clock shows that time, or a later one."""
    return AtLeast(Quantity.CLOCK, least_ps)


def since_check(least_ps: int) -> Condition:
    """The thread judged the guest so long ago."""
    return AtLeast(Quantity.SINCE_CHECK, least_ps)


def raised(flag: int) -> Condition:
    """The flag was raised."""
    return AtLeast(Quantity.FLAG, 1, flag)


def mapped_by_block() -> Condition:
    """The current page is mapped by a block, not by a table."""
    return AtLeast(Quantity.BLOCK, 1)


def in_guest(least: int) -> Condition:
    """At least so many vCPUs are in the guest."""
    return AtLeast(Quantity.VCPUS_IN_GUEST, least)


def in_buffer(least: int) -> Condition:
    """At least so many pages stand in the thread's log buffer."""
    return AtLeast(Quantity.LOGGED, least)


def in_ring(least: int) -> Condition:
    """At least so many entries of the thread's dirty ring were not reset."""
    return AtLeast(Quantity.RING, least)


class Lock(NamedTuple):
    """Which lock, in which mode, and whose it is."""

    number: int
    mode: Mode
    whose: Whose = Whose.ALL

    def waiters(self, least: int) -> Condition:
        """At least so many threads wait for it."""
        return AtLeast(Quantity.WAITERS, least, self._asked)

    def vcpus(self, least: int) -> Condition:
        """At least so many vCPUs wait for it."""
        return AtLeast(Quantity.VCPUS, least, self._asked)

    @property
    def _asked(self) -> int:
        return -1 if self.whose is Whose.REGION else self.number


class Thread(NamedTuple):
    """A thread's program: its first step, and what it does in a word."""

    first: int
    name: str = ""


class Loop(NamedTuple):
    """A loop, or a block, under construction."""

    program: Program
    end: Label

    def leave(self) -> None:
        """Leave it."""
        self.program.add(Step.JUMP, self.end)

    def leave_if(self, condition: Condition) -> None:
        """Leave it if the condition holds."""
        (~condition).write(self.program, self.end)


@dataclass
class Program:
    """Programs under construction, one behind the other.

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
    _apart: list[tuple[int, Label, Callable[[], None], Label]] = field(default_factory=list)

    def add(self, step: Step, *arguments: int | Label) -> None:
        """Append one row, which only this module does."""
        row: list[int] = [step, 0, 0, 0, 0, 0]
        for column, argument in enumerate(arguments, 1):
            if isinstance(argument, Label):
                self._open.append((len(self._rows), column, argument))
            else:
                row[column] = argument
        self._rows.append(row)

    def place(self, label: Label) -> None:
        """The label is the next row."""
        label.row = len(self._rows)

    def _here(self) -> Label:
        return Label(len(self._rows))

    def steps(self) -> NDArray[np.int64]:
        """The finished table, shape (n_steps, 6)."""
        table = np.array(self._rows, dtype=np.int64)
        for row, column, label in self._open:
            table[row, column] = index(label)
        return table

    def notes(self) -> tuple[tuple[int, str], ...]:
        """Steps, and what begins there."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Say in the listing what begins here."""
        self._notes.append((len(self._rows), text))

    @contextmanager
    def thread(self, name: str = "") -> Iterator[Thread]:
        """All that one thread does, to its end; blocks that were put apart follow behind it."""
        thread = Thread(len(self._rows), name)
        self._counters = 0
        yield thread
        self.add(Step.END)
        while self._apart:
            self._depth, target, act, then = self._apart.pop(0)
            self.place(target)
            act()
            self.add(Step.JUMP, then)
        self._depth = 0

    @contextmanager
    def loop(self, until: Condition | None = None) -> Iterator[Loop]:
        """Do the block, and again unless the condition holds; without one until it is left."""
        top, loop = self._here(), Loop(self, Label())
        yield loop
        if until is None:
            self.add(Step.JUMP, top)
        else:
            until.write(self, top)
        self.place(loop.end)

    @contextmanager
    def block(self) -> Iterator[Loop]:
        """Do the block once, or as far as it is not left."""
        block = Loop(self, Label())
        yield block
        self.place(block.end)

    @contextmanager
    def repeat(self, times: int) -> Iterator[None]:
        """Do the block so many times."""
        top, counter = self._here(), self._counter()
        yield
        self.add(Step.REPEAT, top, times, counter)

    @contextmanager
    def every(self, times: int) -> Iterator[None]:
        """Do the block each time that the thread has come here so often."""
        past = Label()
        self.add(Step.REPEAT, past, times, self._counter())
        yield
        self.place(past)

    @contextmanager
    def when(self, condition: Condition, otherwise: Callable[[], None] | None = None) -> Iterator[None]:
        """Do the block if the condition holds; `otherwise` writes what is done if not."""
        no, over = Label(), Label()
        condition.write(self, no)
        yield
        if otherwise is not None:
            self.add(Step.JUMP, over)
        self.place(no)
        if otherwise is not None:
            otherwise()
        self.place(over)

    @contextmanager
    def holding(self, lock: Lock) -> Iterator[None]:
        """Hold a lock; a lockless update that lost its race is done again."""
        take = self._here()
        self.add(Step.TAKE, *lock)
        yield
        self.add(Step.DROP, *lock, take)

    @contextmanager
    def letting_go(self, lock: Lock) -> Iterator[None]:
        """Within a hold: let go for the block, and take the lock again."""
        self.add(Step.DROP, *lock, 0)
        yield
        self.add(Step.TAKE, *lock)

    @contextmanager
    def extent(self, pages: int, aligned: bool = False) -> Iterator[Extent]:
        """Pages from the current one on, at most to the end of the extent around; `aligned`: to the next multiple."""
        self._depth += 1
        if self._depth >= EXTENTS:
            raise InputError("program", self._depth, f"must not have more than {EXTENTS - 1} extents in each other")
        self.add(Step.OPEN, self._depth, pages, aligned)
        yield Extent(self._depth)
        self._depth -= 1

    def _counter(self) -> int:
        if self._counters == COUNTERS:
            raise InputError("program", COUNTERS + 1, f"must not count more than {COUNTERS} things in one thread")
        self._counters += 1
        return self._counters - 1

    def run(self, mean_ps: int | None, distribution: int = 0) -> None:
        """Spend time outside any lock; None, what is not known, takes none."""
        self.add(Step.RUN, mean_ps or 0, distribution)

    def hold(self, mean_ps: int | None, distribution: int = 0) -> None:
        """Spend time with a lock held."""
        self.add(Step.HOLD, mean_ps or 0, distribution)

    def advance(self, pages: int, within: Extent = REGION) -> None:
        """Go on by so many pages, at most to the extent's end."""
        self.add(Step.ADVANCE, pages, within.level)

    def skip(self, extent: Extent) -> None:
        """Go to the extent's end."""
        self.add(Step.ADVANCE, ALL, extent.level)

    def back(self, extent: Extent) -> None:
        """Back to the extent's first page."""
        self.add(Step.BACK, extent.level)

    def seek(self, multiple: int = 1, distribution: int = 0) -> None:
        """Go to a page of the region at random."""
        self.add(Step.SEEK, multiple, distribution)

    def access(self, *faults: Callable[[], None], leave: Callable[[], None] | None = None, again: bool = False) -> None:
        """Touch the current page; what is done on each kind of fault, in the order of `Step.ACCESS`, is put apart.

        `leave`: what makes room where the log buffer or dirty ring is full; `again`: after a fault it is touched again.
        """
        here, after = self._here(), Label()
        targets = [self._put_apart(fault, here if again else after) for fault in faults]
        self.add(Step.ACCESS, *targets, here if leave is None else self._put_apart(leave, here))
        self.place(after)

    def _put_apart(self, act: Callable[[], None], then: Label) -> Label:
        target = Label()
        self._apart.append((self._depth, target, act, then))
        return target

    def map(self, action: Map, logging: bool = False) -> None:
        """Change the page table entry of the current page."""
        self.add(Step.MAP, action, logging)

    def scan(self, action: Scan, page_ps: int | None = 0, word_ps: int | None = 0, unsplit_ps: int | None = 0) -> None:
        """Walk the 64 pages of the current bitmap word."""
        self.add(Step.SCAN, action, page_ps or 0, word_ps or 0, unsplit_ps or 0)

    def adapt(self, action: Adapt, least: int, most: int) -> None:
        """Halve or double the thread's adaptive batch."""
        self.add(Step.ADAPT, action, least, most)

    def barrier(self, number: int, parties: int) -> None:
        """Wait until so many threads have come."""
        self.add(Step.BARRIER, number, parties)

    def stamp(self, number: int) -> None:
        """Write down the time and all counters."""
        self.add(Step.STAMP, number)

    def start_stopwatch(self) -> None:
        """The thread's stopwatch starts, unless a kick has started it."""
        self.add(Step.LAP, 0)

    def read_stopwatch(self, of_kicks: bool = False) -> None:
        """Write down the time since the stopwatch was last looked at; it goes on from zero.

        `of_kicks`: only if a kick has started it.
        """
        self.add(Step.LAP, 2 if of_kicks else 1)

    def signal(self, flag: int) -> None:
        """Raise a flag, for good."""
        self.add(Step.SIGNAL, flag)

    def touch(self, line: int) -> None:
        """Change a cache line that threads share."""
        self.add(Step.TOUCH, line)

    def sleep(self, time_ps: int) -> None:
        """Sleep until the clock shows so much more."""
        self.add(Step.SLEEP, time_ps)
        self.add(Step.WAKE)

    def judge(self, begins: bool = False) -> None:
        """Throttle the vCPUs if they dirtied too much; `begins`: only begin to count."""
        self.add(Step.THROTTLE_CHECK, begins)

    def throttle(self, entry_ps: int = 0) -> None:
        """Let the vCPUs run, and then have them sleep, once; `entry_ps`: for each page of their log buffers."""
        for pauses in (False, True):
            self.add(Step.THROTTLE, pauses, entry_ps)
            self.add(Step.WAKE)

    def limit(self) -> None:
        """Look at the vCPUs' rates, and say for how long each sleeps when its dirty ring is full."""
        self.add(Step.DIRTY_LIMIT_UPDATE)

    def nap(self) -> None:
        """Sleep for as long as that."""
        self.add(Step.DIRTY_LIMIT_SLEEP)
        self.add(Step.WAKE)

    def kick(self, time_ps: int, stalls: bool = False, table: int = 0, entry_ps: int = 0) -> None:
        """Make every vCPU in the guest leave and enter it again; `stalls`: by its stopwatch, too."""
        self.add(Step.KICK, time_ps, stalls, table, entry_ps)

    def drain(self, entry_ps: int) -> None:
        """Empty the thread's log buffer into the dirty log, or its ring."""
        self.add(Step.DRAIN, entry_ps)

    def log(self, leave: Callable[[], None]) -> None:
        """Put the current page into the thread's log buffer; `leave`: what is done first where that is full."""
        self.add(Step.LOG, self._put_apart(leave, self._here()))

    def harvest(self, entry_ps: int) -> None:
        """Set the dirty bits of what is new in the dirty rings."""
        self.add(Step.HARVEST, entry_ps)

    @contextmanager
    def each_run(self, entry_ps: int) -> Iterator[None]:
        """Do the block for each run of harvested entries, which then are out of the rings."""
        top, end = self._here(), Label()
        self.add(Step.RESET, end, entry_ps)
        yield
        self.add(Step.JUMP, top)
        self.place(end)
