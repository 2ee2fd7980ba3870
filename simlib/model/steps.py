# SPDX-License-Identifier: BSD-3-Clause
"""The step language: what a kernel thread or a vCPU does, as a table that both engines interpret.

A program is a table of integers, one row a step: ``(kind, a, b, c, d)``. Steps
that touch anything shared (a lock, page state, a barrier) take effect at the
simulated time at which the thread reaches them; the others only move the
thread's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.errors import InputError
from simlib.model.pagetable import WORD_PAGES


class Step(IntEnum):
    """Kinds of step, and what their arguments mean.

    Examples
    --------
    >>> Step.TAKE.name
    'TAKE'
    """

    RUN = 0
    """Spend time outside any lock. a: mean, ps; b: distribution (0 is fixed)."""
    HOLD = 1
    """Spend time with a lock held. a: mean, ps; b: distribution."""
    TAKE = 2
    """Take a lock. a: lock; b: mode; c: a `Whose`."""
    DROP = 3
    """Let go. a, b, c as TAKE (of a lock by region: the one taken last); d: the TAKE to return to when a lockless
    update lost its race."""
    ACCESS = 4
    """The guest touches its current page. Goes to a on a translation fault of a page, b on a
    permission fault of a page, c on a permission fault of a block, d on a translation fault of a
    block; falls through when the access needs no fault."""
    MAP = 5
    """Change the page table entry of the current page. a: a `Map` value."""
    NEXT = 6
    """Go on by b pages, at most to the region's end; to a unless the region is done or, with c > 0, a multiple
    of c pages is done (counted anew after every d pages, with d > 0). b may be 0, to ask only."""
    MORE = 7
    """To a if pages of the region remain; else back to the region's first page and fall through."""
    REPEAT = 8
    """To a until b rounds are done. c: counter register."""
    JUMP = 9
    """Go to a."""
    BARRIER = 10
    """Wait until b threads have come. a: barrier."""
    SCAN = 11
    """Walk the 64 pages of the current bitmap word. a: cost of a page, ps; b: a `Scan` value; c: cost of a word in
    which anything is acted on, ps; d: CLEAR of a block that is not split, for each page of it, ps."""
    STAMP = 12
    """Write down the time and the lock counters. a: which stamp."""
    END = 13
    """The thread is done."""
    LAP = 14
    """The thread's stopwatch. a: 0 starts it; 1 writes down the time since it was last looked at, and goes on; 2 does
    so if a flag was raised. b: flag."""
    SIGNAL = 15
    """Raise a flag, for good. a: flag."""
    UNLESS = 16
    """To a unless a flag was raised. b: flag."""
    SLEEP = 17
    """Fall asleep until the clock shows a more, ps. The step behind must be WAKE."""
    WAKE = 18
    """Sleep on until the clock shows that time; then awake."""
    SEEK = 19
    """Go to a page of the region at random. a: its number within the region is a multiple of a; b: distribution of
    the places (0: each is as likely)."""
    FEW = 20
    """To a if at most b pages stand in the thread's bitmap (`Scan.COLLECT`)."""
    PEEK = 21
    """To a if none of the next b pages of the region stands in the bitmap."""
    BACK = 22
    """Back to the first of the pages that end here; they begin at multiples of a pages."""
    PAST = 23
    """To a if the clock shows b or more, ps."""
    QUIET = 24
    """To a if fewer than c threads wait for lock b, or with b = -1 for the region's that was taken last. d: only
    threads with lower numbers than this count; 0: all do."""
    SPLIT = 25
    """To a if the current page is not mapped by a block: there is nothing to split."""
    KICK = 26
    """Make every thread that is awake leave the guest and enter it again, at its next ACCESS. a: what it loses, ps."""


SHARED = (
    Step.TAKE, Step.DROP, Step.ACCESS, Step.MAP, Step.BARRIER, Step.SCAN, Step.STAMP, Step.END, Step.LAP, Step.SIGNAL,
    Step.UNLESS, Step.SLEEP, Step.WAKE, Step.PAST, Step.QUIET, Step.SPLIT, Step.KICK,
)  # fmt: skip
"""Steps that read or write what other threads see."""


FLAGS = 4
"""Flags that `Step.SIGNAL` may raise."""


class Whose(IntEnum):
    """Which lock `Step.TAKE` means."""

    ALL = 0
    """The one it names."""
    THREAD = 1
    """The thread's own: its number is added."""
    REGION = 2
    """That of the memory around the current page: the number of its region (`Job.lock_pages`) is added."""


class Map(IntEnum):
    """What `Step.MAP` does to the current page."""

    PAGE = 0
    """Map the page writable (write access) or read-only (read access)."""
    SPLIT = 1
    """Replace the block mapping by an empty table, then map the page."""
    BLOCK = 2
    """Map the whole block writable."""
    EAGER = 3
    """Replace the block mapping by a full table; every page keeps the block's permission."""
    ZAP = 4
    """Unmap the block, or all pages of its table; the dirty log knows nothing of it."""


class Scan(IntEnum):
    """What `Step.SCAN` does to the 64 pages of a word; every page that it looks for and finds costs the step's a."""

    CLEAR = 0
    """Clear the dirty bits of the pages that stand in the bitmap, and write-protect those pages (CLEAR_DIRTY_LOG)."""
    PROTECT = 1
    """Write-protect every mapped page (enabling the log without KVM_DIRTY_LOG_INITIALLY_SET)."""
    SET = 2
    """Set every dirty bit, protect nothing (enabling with KVM_DIRTY_LOG_INITIALLY_SET)."""
    COLLECT = 3
    """Add the dirty bits to the bitmap (GET_DIRTY_LOG), protect nothing."""
    SEND = 4
    """Send the pages that stand in the bitmap, and take them out of it."""
    ALL = 5
    """Put every page into the bitmap: all have yet to be sent."""
    CLEAR_PAGE = 6
    """As CLEAR, but of the current page alone."""


class Mode(IntEnum):
    """Lock modes, and the index of their statistics."""

    READ = 0
    WRITE = 1


class Discipline(IntEnum):
    """How a lock behaves.

    Sources: kernel/locking/qspinlock.c `queued_spin_lock_slowpath`; the ticket lock as in
    Boyd-Wickizer et al. 2012, section 2; kernel/locking/qrwlock.c `queued_read_lock_slowpath`
    and `queued_write_lock_slowpath`; lockless: arch/x86/kvm/mmu/mmu.c `fast_page_fault`.
    """

    QUEUED_SPIN = 0
    TICKET = 1
    QUEUED_RW = 2
    LOCKLESS = 3
    SERVER = 4
    """Not a lock: a part of the hardware that serves one CPU at a time, first come first served, such as the
    interconnect's handling of broadcast TLB invalidations. It has no lock word. A thread may hold one lock and
    one server at a time."""


class Clock(IntEnum):
    """What a clock shows.

    With one processor that runs all threads in turns so short that they all advance together, its clock goes as many
    times as fast as threads run, and on by itself when none does. A thread that sleeps or waits at a barrier does not
    run.
    """

    WALL = 0
    """The world's time: every thread has a processor of its own."""
    SERIAL = 1
    """One processor; a thread that waits for a lock spins, so it runs."""
    SERIAL_YIELD = 2
    """One processor; a thread that waits for a lock gives its turns away, so it does not run."""


class Page(IntEnum):
    """State of one page's entry; beside it in the same byte, the bits of KVM's dirty log and of userspace's bitmap."""

    ABSENT = 0
    PROTECTED = 1
    WRITABLE = 2
    DIRTY = 4
    COLLECTED = 8


class Block(IntEnum):
    """State of one block (2 MiB with 4 KiB pages): split into a table, or mapped whole."""

    TABLE = 0
    ABSENT = 1
    PROTECTED = 2
    WRITABLE = 3


class Stamp(NamedTuple):
    """A moment that a program writes down (`Step.STAMP`): the end of a phase, or of one round of it.

    Examples
    --------
    >>> str(Stamp("sent", 2)), str(Stamp("enabled"))
    ('sent 2', 'enabled')
    """

    phase: str
    round: int = 0
    """From 1 on; 0: the phase comes once."""

    def __str__(self) -> str:
        return f"{self.phase} {self.round}" if self.round else self.phase


@dataclass
class Program:
    """A list of steps under construction, with labels for jumps.

    Examples
    --------
    >>> p = Program()
    >>> top = p.add(Step.RUN, 1000)
    >>> _ = p.add(Step.REPEAT, top, 3)
    >>> _ = p.add(Step.END)
    >>> p.rows[1]
    [8, 0, 3, 0, 0]
    """

    rows: list[list[int]] = field(default_factory=list)

    def add(self, kind: Step, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
        """Append one step; returns its index, which a jump may name."""
        self.rows.append([int(kind), int(a), int(b), int(c), int(d)])
        return len(self.rows) - 1

    def patch(self, index: int, **arguments: int) -> None:
        """Fill in arguments of an earlier step, once the jump's target is known."""
        for name, value in arguments.items():
            self.rows[index]["abcd".index(name) + 1] = int(value)

    def here(self) -> int:
        """Index of the next step."""
        return len(self.rows)


@dataclass(frozen=True)
class Job:
    """Everything an engine needs: programs, threads, locks, page tables. Data only.

    Attributes
    ----------
    steps : ndarray of int64, shape (n_steps, 5)
        All programs, one behind the other.
    entry : ndarray of int64, shape (n_threads,)
        First step of each thread.
    region : ndarray of int64, shape (n_threads, 2)
        First page and end (exclusive) of the pages that each thread walks.
    locks : ndarray of int64, shape (n_locks,)
        A `Discipline` each.
    local_ps, near_ps, far_ps : int
        Time of one atomic operation on a cache line that this CPU, another CPU of the socket,
        or a CPU of another socket owned last.
    socket : ndarray of int64, shape (n_threads,)
        Socket on which each thread runs.
    cvs : tuple of float
        Coefficient of variation of each distribution that steps name; number 0 is the fixed one.
    zipf : tuple of float
        Exponent of each distribution of places that SEEK names; number 0 must be 0, which is uniform.
    pages : int
        Guest pages in all.
    block_pages : int
        Pages that one block maps; a power of two.
    mapped_as_blocks : bool
        Whether stage 2 maps blocks where it can.
    populated : bool
        Whether all memory is mapped, writable, when the run begins.
    lock_pages : int
        Pages of one region, where there is a lock for each (`Whose.REGION`).
    write_percent : int
        Share of the pages that the guest writes; it reads the others.
    stamps : tuple of Stamp
        What each stamp is the end of, in order.
    lock_names : tuple of str
        Names of the locks.
    thread_names : tuple of str
        Names of the threads.
    barriers : int
        Number of barriers.
    clock : int
        A `Clock`: which time STAMP, LAP and SLEEP read.
    """

    steps: NDArray[np.int64]
    entry: NDArray[np.int64]
    region: NDArray[np.int64]
    locks: NDArray[np.int64]
    local_ps: int
    near_ps: int
    far_ps: int
    socket: NDArray[np.int64]
    cvs: tuple[float, ...] = (0.0,)
    zipf: tuple[float, ...] = (0.0,)
    pages: int = 64
    block_pages: int = 512
    mapped_as_blocks: bool = False
    populated: bool = False
    lock_pages: int = 64
    write_percent: int = 100
    stamps: tuple[Stamp, ...] = ()
    lock_names: tuple[str, ...] = ("mmu_lock",)
    thread_names: tuple[str, ...] = ()
    barriers: int = 1
    clock: int = 0

    def __post_init__(self) -> None:
        """Check that no step can leave the tables: the engines trust a job.

        Raises
        ------
        InputError
            Naming the first step that is out of range.
        """
        n, threads, locks = len(self.steps), len(self.entry), len(self.locks)
        if not n or not threads or self.steps.shape != (n, 5) or self.region.shape != (threads, 2):
            raise InputError("job", f"{n} steps, {threads} threads", "must have steps of five numbers and threads")
        if self.steps[-1, 0] not in (Step.END, Step.JUMP):
            raise InputError("job", "last step", "must be END or JUMP", "end every program with END")
        shared_pages = np.isin(self.steps[:, 0], (Step.ACCESS, Step.MAP, Step.SCAN)).any()
        first, last = self.region[:, 0], self.region[:, 1]
        if shared_pages and not ((first >= 0) & (first < last) & (last <= self.pages)).all():
            raise InputError("job.region", self.region.tolist(), f"must be non-empty and within {self.pages} pages")
        if len(self.socket) != threads:
            raise InputError("job.socket", len(self.socket), f"must name a socket for each of {threads} threads")
        if (self.steps[:, 0] == Step.SCAN).any() and (self.region % 64).any():
            raise InputError("job.region", self.region.tolist(), "must be multiples of 64 pages for SCAN")
        if self.pages % 64 or self.block_pages < 64 or self.block_pages & (self.block_pages - 1):
            raise InputError(
                "job.pages", (self.pages, self.block_pages), "must be multiples of 64, a block a power of 2"
            )
        if self.lock_pages < WORD_PAGES:
            raise InputError("job.lock_pages", self.lock_pages, "must be at least 64")
        if self.clock not in tuple(Clock):
            raise InputError("job.clock", self.clock, "must be a Clock")
        if min(self.local_ps, self.near_ps, self.far_ps) < 0 or not ((self.entry >= 0) & (self.entry < n)).all():
            raise InputError("job", "entry or line times", "must not be negative or out of range")
        after_sleep = np.flatnonzero(self.steps[:-1, 0] == Step.SLEEP) + 1
        if (self.steps[after_sleep, 0] != Step.WAKE).any() or self.steps[-1, 0] == Step.SLEEP:
            raise InputError("job", "SLEEP", "must be followed by WAKE")
        for index, (kind, a, b, c, d) in enumerate(self.steps.tolist()):
            if not self._in_range(kind, a, b, c, d, n, threads, locks):
                raise InputError(f"job.steps[{index}]", [kind, a, b, c, d], "an argument is out of range")

    def _in_range(  # noqa: C901, PLR0911, PLR0912  # one line a kind of step reads best
        self, kind: int, a: int, b: int, c: int, d: int, n: int, threads: int, locks: int
    ) -> bool:
        if kind in (Step.RUN, Step.HOLD):
            return a >= 0 and 0 <= b < len(self.cvs)
        if kind in (Step.TAKE, Step.DROP):
            spans = (1, threads, -(-self.pages // self.lock_pages))  # in the order of Whose
            return c in tuple(Whose) and 0 <= a <= a + spans[c] <= locks and b in (0, 1) and 0 <= d < n
        if kind == Step.ACCESS:
            return all(0 <= x < n for x in (a, b, c, d))
        if kind == Step.NEXT:
            return 0 <= a < n and b >= 0 and c >= 0 and d >= 0
        if kind in (Step.MORE, Step.JUMP, Step.SPLIT):
            return 0 <= a < n
        if kind in (Step.FEW, Step.PEEK, Step.PAST):
            return 0 <= a < n and b >= 0
        if kind == Step.QUIET:
            return 0 <= a < n and -1 <= b < locks and c >= 1 and d >= 0
        if kind == Step.REPEAT:
            return 0 <= a < n and b >= 1 and 0 <= c < 4
        if kind == Step.BARRIER:
            return 0 <= a < self.barriers and b >= 1
        if kind == Step.STAMP:
            return 0 <= a < len(self.stamps)
        if kind == Step.SCAN:
            return a >= 0 and b in tuple(Scan) and c >= 0 and d >= 0
        if kind in (Step.SLEEP, Step.KICK):
            return a >= 0
        if kind == Step.SEEK:
            return a >= 1 and 0 <= b < len(self.zipf)
        if kind == Step.BACK:
            return a >= 1
        if kind == Step.LAP:
            return a in (0, 1, 2) and 0 <= b < FLAGS
        if kind == Step.SIGNAL:
            return 0 <= a < FLAGS
        if kind == Step.UNLESS:
            return 0 <= a < n and 0 <= b < FLAGS
        return kind in (Step.END, Step.WAKE) or (kind == Step.MAP and a in tuple(Map) and b in (0, 1))
