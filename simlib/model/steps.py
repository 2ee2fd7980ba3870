# SPDX-License-Identifier: BSD-3-Clause
"""The step language: the actions of a kernel thread or a vCPU, as a table that both engines interpret.

A program is a table of integers, one row per step: ``(kind, a, b, c, d, e)``. Steps that access anything shared (a
lock, page state, a barrier) take effect at the simulated time at which the thread reaches them; all other steps only
advance the thread's own clock. `simlib.model.program` writes the rows.

Every kind of step and every quantity that a program may test is declared here, with its number, its meaning, its
arguments and their ranges. The checks of a `simlib.model.job.Job`, its listing, docs/steps.md and the constants of
both engines come from these declarations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

FLAGS = 16
"""Number of flags that `Step.SIGNAL` may raise."""

EXTENTS = 6
"""Number of nested extents that a thread may have open; number 0 is its region."""

ALL = 2**40
"""More pages than any guest has: an extent of this size reaches to the end of the enclosing extent."""

COUNTERS = 8
"""Number of counters that `Step.REPEAT` may use in one program."""


class LockScope(IntEnum):
    """Scope of the lock of `Step.TAKE`."""

    ALL = 0
    """One lock, of the given number, for all threads and pages."""
    THREAD = 1
    """A lock for each thread: the thread's number is added."""
    REGION = 2
    """A lock for each region of memory: the number of the current page's region (`Job.lock_pages`) is added."""


class Map(IntEnum):
    """Action of `Step.MAP` on the current page."""

    PAGE = 0
    """Map the page writable (for a write access) or read-only (for a read access)."""
    SPLIT = 1
    """Replace the block mapping by an empty table, then map the page."""
    BLOCK = 2
    """Map the whole block writable."""
    EAGER = 3
    """Replace the block mapping by a full table; every page keeps the block's permission."""
    ZAP = 4
    """Unmap the block, or all pages of its table, without an effect on the dirty log."""
    NONE = 5
    """Change nothing, and end the fault."""


class Scan(IntEnum):
    """Action of `Step.SCAN` on the 64 pages of a word; every page to which it applies takes `page_ps`."""

    CLEAR = 0
    """Clear the dirty bits of the pages in the bitmap, and write-protect those pages (CLEAR_DIRTY_LOG)."""
    PROTECT = 1
    """Write-protect every mapped page (enabling the log without KVM_DIRTY_LOG_INITIALLY_SET)."""
    SET = 2
    """Set every dirty bit and write-protect no page (enabling the log with KVM_DIRTY_LOG_INITIALLY_SET)."""
    COLLECT = 3
    """Add the dirty bits to the bitmap and write-protect no page (GET_DIRTY_LOG)."""
    SEND = 4
    """Send the pages in the bitmap, and remove them from it."""
    ALL = 5
    """Put every page into the bitmap: all remain to be sent."""
    PROTECT_RUN = 6
    """Write-protect the run of pages that RESET removed from a dirty ring, regardless of the thread's current page."""
    TAKE = 7
    """Move the dirty bits that HARVEST set into the bitmap."""
    SYNC = 8
    """Log each page whose entry in a table has its dirty bit set: needed if hardware has no log buffer."""


class Mode(IntEnum):
    """Lock modes, and the index of their statistics."""

    READ = 0
    WRITE = 1


class Adapt(IntEnum):
    """Action of `Step.ADAPT` on the thread's adaptive batch."""

    HALVE = 0
    DOUBLE = 1


class Clock(IntEnum):
    """Relation of the clock to simulated time.

    If one processor runs all threads in turns so short that they advance together, its clock runs n times as fast as
    simulated time while n threads run, and at the same speed while none runs. A thread that sleeps or waits at a
    barrier does not run. If turns have a length (`Job.turn_ps`), only the thread whose turn it is advances, and the
    clock shows simulated time.
    """

    WALL = 0
    """Simulated time: every thread has a processor of its own."""
    SERIAL = 1
    """One processor; a thread that waits for a lock spins, so it runs."""
    SERIAL_YIELD = 2
    """One processor; a thread that waits for a lock ends its turn, so it does not run."""


MOST_TURN_PS = 1 << 31
"""Exclusive upper limit of a serial clock's turn, ps: 2.1 ms."""

MOST_ENTRIES = 1 << 18
"""Largest number of entries of a vCPU's log buffer, or of its dirty ring."""


class Page(IntEnum):
    """State of one page's entry; the same byte has the bits of KVM's dirty log and of userspace's bitmap.

    The next write to a PROTECTED page is recorded: it faults, or, where hardware sets dirty bits (`Job.dirty_bits`),
    hardware sets the dirty bit of the entry, which was clear. A write to a WRITABLE page is not recorded.
    """

    ABSENT = 0
    PROTECTED = 1
    WRITABLE = 2
    DIRTY = 4
    COLLECTED = 8


STATE = 3
"""Mask of the entry's state in a page's byte; the other bits are `Page.DIRTY` and `Page.COLLECTED`."""


class Block(IntEnum):
    """State of one block (2 MiB with 4 KiB pages): split into a table, absent, or mapped whole."""

    TABLE = 0
    ABSENT = 1
    PROTECTED = 2
    WRITABLE = 3


class Argument(NamedTuple):
    """An argument of a step or a quantity, with its range.

    `below` is a number, or the name of a count of the job: ``steps``, ``locks``, ``barriers``, ``stamps``, ``cvs``,
    ``lines`` or ``places``; None: there is no limit.
    """

    name: str
    least: int = 0
    below: int | str | None = None
    words: type[IntEnum] | None = None

    def formatted(self, value: int) -> str:
        """Format a value for a listing.

        >>> Argument("mode", words=Mode).formatted(1), Argument("pages").formatted(64)
        ('write', '64')
        """
        return self.words(value).name.lower() if self.words is not None else str(value)

    def range(self) -> str:
        """Describe the range.

        >>> Argument("mode", words=Mode).range(), Argument("pages", 1).range(), Argument("flag", 0, 4).range()
        ('read, write', 'at least 1', '0 to 3')
        """
        if self.words is not None:
            return ", ".join(word.name.lower() for word in self.words)
        if self.below is None:
            return f"at least {self.least}"
        if isinstance(self.below, str):
            return "a step" if self.below == "steps" else f"one of the job's {self.below}"
        return f"{self.least} to {self.below - 1}"


_TARGET = Argument("target", 0, "steps")
_LOCK = Argument("lock", 0, "locks")
_MODE = Argument("mode", words=Mode)
_SCOPE = Argument("scope", words=LockScope)
_EXTENT = Argument("extent", 1, EXTENTS)
_ANY_EXTENT = Argument("extent", 0, EXTENTS)
_FLAG = Argument("flag", 0, FLAGS)
_DISTRIBUTION = Argument("distribution", 0, "cvs")


class Quantity(IntEnum):
    """Quantities that `Step.TEST` can compare. `WAITERS` and all later ones are shared: other threads change them.

    >>> Quantity.HELD.meaning
    'time since the thread last acquired a lock, ps'
    """

    meaning: str
    argument: Argument | None

    DONE = 0, "1 if all pages of the extent are done, else 0", _ANY_EXTENT
    PAGES = 1, "pages done since the extent began", _ANY_EXTENT
    BEYOND = 2, "pages done since the extent began, less the thread's adaptive batch (ADAPT)", _ANY_EXTENT
    COLLECTED = 3, "pages with a set bit in the thread's bitmap, from the current page to the extent's end", _ANY_EXTENT
    BITMAP = 4, "pages in the thread's bitmap", None
    HELD = 5, "time since the thread last acquired a lock, ps", None
    SINCE_CHECK = 6, "time since THROTTLE_CHECK last restarted the thread's counts, ps", None
    WAITERS = 7, "threads that wait for the lock; -1: the region lock this thread took last", _LOCK._replace(least=-1)
    VCPUS = 8, "vCPUs that wait for the lock; -1: the region lock this thread took last", _LOCK._replace(least=-1)
    CLOCK = 9, "time of the clock, ps", None
    FLAG = 10, "1 if the flag is raised, else 0", _FLAG
    BLOCK = 11, "1 if a block mapping covers the current page, else 0", None
    DIRTY = 12, "pages in KVM's dirty log, from the current page to the extent's end", _ANY_EXTENT
    VCPUS_IN_GUEST = 13, "vCPUs that neither hold a lock nor wait for one, and are neither interrupted nor idle", None
    LOGGED = 14, "pages in the thread's log buffer", None
    RING = 15, "entries of the thread's dirty ring that have not been reset", None

    def __new__(cls, number: int, meaning: str = "", argument: Argument | None = None) -> Quantity:
        """Create a member with its meaning and arguments."""
        self = int.__new__(cls, number)
        self._value_ = number
        self.meaning, self.argument = meaning, argument
        return self

    @property
    def shared(self) -> bool:
        """True if other threads change it, so that TEST reads it at the simulated time at which the thread arrives."""
        return self >= Quantity.WAITERS


class Step(IntEnum):
    """Kinds of steps: number, meaning, arguments. `TAKE` and later ones are shared, as is TEST of a shared quantity.

    >>> Step.TAKE.name, [argument.name for argument in Step.TAKE.arguments], Step.TAKE.shared
    ('TAKE', ['lock', 'mode', 'scope'], True)
    """

    meaning: str
    arguments: tuple[Argument, ...]

    RUN = 0, "Spend time outside any lock. With `distribution` 0, the time is always the mean.", Argument("mean_ps"), \
        _DISTRIBUTION  # fmt: skip
    HOLD = 1, "Spend time with a lock held.", Argument("mean_ps"), _DISTRIBUTION
    JUMP = 2, "Go to the target.", _TARGET
    REPEAT = 3, "Go to the target until `times` rounds are done.", _TARGET, Argument("times", 1), \
        Argument("counter", 0, COUNTERS)  # fmt: skip
    TEST = 4, "Go to the target unless the quantity is at least the threshold.", _TARGET, \
        Argument("quantity", words=Quantity), Argument("argument", -1), Argument("threshold", 0)  # fmt: skip
    OPEN = 5, "Begin an extent of `pages` pages at the current page. If `aligned` is 1, it ends at the next multiple " \
        "of `pages`.", _EXTENT, Argument("pages", 1), Argument("aligned", 0, 2)  # fmt: skip
    ADVANCE = 6, "Advance by `pages` pages, at most to the extent's end.", Argument("pages", 1), _ANY_EXTENT
    BACK = 7, "Go back to the extent's first page.", _ANY_EXTENT
    SEEK = 8, "Go to a random page whose offset in the region is a multiple of `multiple` pages. `distribution` " \
        "0 is uniform.", Argument("multiple", 1), Argument("distribution", 0, "places")  # fmt: skip
    ADAPT = 9, "Halve or double the thread's adaptive batch, between `least` and `most` pages.", \
        Argument("action", words=Adapt), Argument("least", 1), Argument("most", 1)  # fmt: skip
    TAKE = 10, "Take a lock.", _LOCK, _MODE, _SCOPE
    DROP = 11, "Drop the lock; with `scope` region, the lock taken last. After a lockless update that lost a race, " \
        "go to the target.", _LOCK, _MODE, _SCOPE, _TARGET  # fmt: skip
    ACCESS = 12, "The guest accesses its current page. On a fault, go to the target for its kind. If the log " \
        "buffer or dirty ring is full, go to `leave`.", \
        Argument("page_translation", 0, "steps"), Argument("page_permission", 0, "steps"), \
        Argument("block_permission", 0, "steps"), Argument("block_translation", 0, "steps"), \
        Argument("leave", 0, "steps")  # fmt: skip
    MAP = 13, "Change the page table entry of the current page. If `logging` is 1, a written page is marked in the " \
        "dirty log.", \
        Argument("action", words=Map), Argument("logging", 0, 2)  # fmt: skip
    BARRIER = 14, "Wait until `parties` threads have arrived.", Argument("barrier", 0, "barriers"), \
        Argument("parties", 1)  # fmt: skip
    SCAN = 15, "Process the 64 pages of the current bitmap word. Each page acted on takes `page_ps`, each word with " \
        "such a page `word_ps`, and each page cleared in an unsplit block `unsplit_ps`.", \
        Argument("action", words=Scan), Argument("page_ps"), Argument("word_ps"), Argument("unsplit_ps")  # fmt: skip
    STAMP = 16, "Record the time and all counters.", Argument("stamp", 0, "stamps")
    LAP = 17, "With `reads` 0, start the thread's stopwatch, unless a KICK already did. With 1, record its time " \
        "and restart it. With 2, do so only if a KICK started it.", Argument("reads", 0, 3)  # fmt: skip
    SIGNAL = 18, "Raise a flag, which then stays raised.", _FLAG
    SLEEP = 19, "Begin a sleep until the clock has advanced by `time_ps`. WAKE must follow.", Argument("time_ps")
    WAKE = 20, "Wait until the sleep that the previous step started is over."
    KICK = 21, "Make every vCPU in the guest exit and re-enter once before its next ACCESS, and empty its log " \
        "buffer, as by DRAIN. If `stalls` is 1, the vCPU's stopwatch starts at the exit, and is read immediately " \
        "if no fault follows.", \
        Argument("time_ps"), Argument("stalls", 0, 2), _DISTRIBUTION, Argument("entry_ps")  # fmt: skip
    TOUCH = 22, "Modify a shared cache line. A lock modifies its own line without TOUCH.", Argument("line", 0, "lines")
    DRAIN = 23, "Empty the thread's log buffer into its dirty ring or, without a ring, into the dirty log.", \
        Argument("entry_ps")  # fmt: skip
    HARVEST = 24, "Set the dirty bits of the pages in the new entries of all dirty rings.", Argument("entry_ps")
    RESET = 25, "Remove the next run of harvested entries, whose pages lie within a range of 64 pages, from the " \
        "rings for SCAN's protect_run. Go to the target if there is none.", _TARGET, Argument("entry_ps")  # fmt: skip
    LOG = 26, "Put the current page into the thread's log buffer, as hardware does. If it is full, go to the target.", \
        _TARGET  # fmt: skip
    THROTTLE_CHECK = 27, "Start or raise throttling, by the rule of `Job.throttle`, if too many pages were dirtied " \
        "compared with those sent since the last check. If `begins` is 1, only restart the counts.", \
        Argument("begins", 0, 2)  # fmt: skip
    THROTTLE = 28, "With `pauses` 0, start to sleep for the time that vCPUs run between two sleeps. With 1, make " \
        "each vCPU empty its log buffer, as by DRAIN, and sleep before its next ACCESS; also begin a sleep for " \
        "the same time. WAKE must follow.", Argument("pauses", 0, 2), Argument("entry_ps")  # fmt: skip
    DIRTY_LIMIT_UPDATE = 29, "Measure each vCPU's dirty rate since the last update and set its next sleep."
    DIRTY_LIMIT_SLEEP = 30, "Begin a sleep for the time that DIRTY_LIMIT_UPDATE set. WAKE must follow."
    PACE = 31, "Advance the thread's due time by `interval_ps`; the first PACE sets it to the clock. If it is in the " \
        "future, leave the guest, empty the log buffer, as by DRAIN, and idle until then. A throttle's sleep during " \
        "this time begins at once.", Argument("interval_ps"), Argument("entry_ps")  # fmt: skip
    END = 32, "End the thread."

    def __new__(cls, number: int, meaning: str = "", *arguments: Argument) -> Step:
        """Create a member with its meaning and arguments."""
        self = int.__new__(cls, number)
        self._value_ = number
        self.meaning, self.arguments = meaning, arguments
        return self

    @property
    def shared(self) -> bool:
        """True if the step accesses state that other threads see."""
        return self >= Step.TAKE


class Stamp(NamedTuple):
    """A moment that a program records (`Step.STAMP`): the end of a phase, or of one round of it.

    >>> str(Stamp("sent", 2)), str(Stamp("enabled"))
    ('sent 2', 'enabled')
    """

    phase: str
    round: int = 0
    """Number of the round, from 1; 0: the phase has one round."""

    def __str__(self) -> str:
        return f"{self.phase} {self.round}" if self.round else self.phase
