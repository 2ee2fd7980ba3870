# SPDX-License-Identifier: BSD-3-Clause
"""The input of an engine: checked programs, threads, locks and page tables, and their listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import InputError
from simlib.model.locks import Discipline
from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import format_duration
from simlib.model.steps import ALL, MOST_ENTRIES, MOST_TURN_PS, Argument, Clock, Quantity, Stamp, Step
from simlib.model.throttle import Throttle

_NO_LIMIT = 2**63 - 1


Places = float | Sequence[float] | NDArray[np.float64]
"""Distribution of the pages to which SEEK goes: an exponent, or quantiles (`Job.places`)."""


def step_mask(*kinds: Step) -> NDArray[np.bool_]:
    """Boolean array, indexed by the kind of a step, that is True for these kinds.

    >>> step_mask(Step.HOLD)[np.array([0, 1])].tolist()
    [False, True]
    """
    table = np.zeros(len(Step), dtype=np.bool_)
    table[list(kinds)] = True
    return table


class _Ranges(NamedTuple):
    """Ranges of arguments: `least`, and `below` as an index into `_LIMITS`, both of shape (kinds, arguments)."""

    arguments: Sequence[tuple[Argument, ...]]
    least: NDArray[np.int64]
    below: NDArray[np.int64]


def _below(argument: Argument) -> int | str | None:
    return len(argument.words) if argument.words is not None else argument.below


def _ranges(arguments: Sequence[tuple[Argument, ...]], width: int) -> _Ranges:
    least = np.full((len(arguments), width), -_NO_LIMIT)
    below = np.zeros((len(arguments), width), dtype=np.int64)
    for kind, kind_arguments in enumerate(arguments):
        for column, argument in enumerate(kind_arguments):
            least[kind, column] = argument.least
            below[kind, column] = _LIMITS.index(_below(argument))
    return _Ranges(arguments, least, below)


class Image(NamedTuple):
    """State of the guest's memory.

    `pages`: `simlib.model.steps.Page` with the bits of the logs, uint8 of shape (pages,); `blocks`:
    `simlib.model.steps.Block`, uint8 of shape (blocks,).
    """

    pages: NDArray[np.uint8]
    blocks: NDArray[np.uint8]


_TIMES = (Quantity.HELD, Quantity.CLOCK, Quantity.SINCE_CHECK)
_WALKS = step_mask(Step.ACCESS, Step.MAP, Step.SCAN)
_SLEEPS = step_mask(Step.SLEEP, Step.THROTTLE, Step.DIRTY_LIMIT_SLEEP)
_SLOWS, _LOCKS = step_mask(Step.THROTTLE_CHECK, Step.THROTTLE, Step.DIRTY_LIMIT_UPDATE), step_mask(Step.TAKE, Step.DROP)
_STEP_ARGUMENTS = [step.arguments for step in Step]
_QUANTITY_ARGUMENTS = [(quantity.argument,) if quantity.argument is not None else () for quantity in Quantity]
_LIMITS = list(dict.fromkeys([None, *(_below(a) for group in (*_STEP_ARGUMENTS, *_QUANTITY_ARGUMENTS) for a in group)]))
"""The limits of all arguments, as `_below` returns them; the first is None."""
_STEPS, _QUANTITIES = _ranges(_STEP_ARGUMENTS, 5), _ranges(_QUANTITY_ARGUMENTS, 1)


@dataclass(frozen=True)
class Job:
    """All data that an engine needs: programs, threads, locks, page tables.

    - `steps`, shape (n_steps, 6): all programs, one after the other: number of the kind, then its arguments.
    - `entry`, shape (n_threads,): first step of each thread.
    - `region`, shape (n_threads, 2): first page and end (exclusive) of the pages that each thread walks.
    - `locks`, shape (n_locks,): `Discipline` of each lock.
    - `local_ps`, `near_ps`, `far_ps`: time of one atomic operation on a cache line that this CPU, another CPU of the
      socket, or a CPU of another socket owned last.
    - `socket`, shape (n_threads,): socket on which each thread runs.
    - `cluster`, shape (n_threads,): cluster of CPUs in which each thread runs, numbered across all sockets; None: there
      are no clusters.
    - `cluster_ps`: time of an atomic operation on a cache line that a CPU of the same cluster owned last.
    - `queue_length_penalty_ps`: additional time of a queued lock's hand-off for each doubling of the waiting threads:
      k threads behind the next holder add log2(1 + k) times this (`queue_length_penalty`).
    - `lines`: number of cache lines that `Step.TOUCH` may change.
    - `cvs`: coefficient of variation of each distribution that steps name, or its equally likely values, of which only
      the ratios matter; distribution 0 is constant.
    - `places`: distributions of places for SEEK; the first must be 0, which is uniform. A number is the exponent of
      Zipf's law, with ranks scattered over the region; an array has the quantiles of the place within the region (4097
      numbers from 0 to 1).
    - `pages`: number of guest pages.
    - `block_pages`: pages that one block maps; a power of two.
    - `mapped_as_blocks`: stage 2 has block mappings where possible.
    - `populated`: all memory is mapped, writable, when the run begins.
    - `image`: state of the memory when the run begins, instead of `mapped_as_blocks` and `populated`.
    - `lock_pages`: pages of one region, where there is a lock for each (`LockScope.REGION`).
    - `write_percent`: share of the pages that the guest writes; it only reads the other pages.
    - `vcpus`: number of vCPUs, which are the first threads.
    - `first_batch`: pages of each thread's adaptive batch when the run begins.
    - `stamps`: phase that each stamp ends, in order.
    - `lock_names`: names of the locks.
    - `thread_names`: names of the threads.
    - `barriers`: number of barriers.
    - `clock`: a `Clock`, which STAMP, LAP, SLEEP and the quantity CLOCK read.
    - `turn_ps`: mean length of a turn on the one processor of a serial clock; 0: so short that all advance together.
    - `tick_ps`, `tick_work_ps`: interval of a timer that interrupts every thread where turns have a length, and mean
      time of the interrupt; 0: none. The time of the first interrupt is random.
    - `tick_table`: index in `cvs` of the distribution of `tick_work_ps`.
    - `enqueue_ps`, `poll_ps`: time that a thread spends to queue for a lock, and on each unsuccessful poll of it, where
      turns have a length and a waiting thread ends its turn.
    - `dirty_bits`: hardware sets the dirty bit of a clean page's entry when the guest writes it; such a write does not
      fault, and takes `dirty_set_ps`.
    - `buffer_entries`: size of a vCPU's log buffer, into which hardware writes a page as it sets its dirty bit; 0:
      there are no log buffers, and SCAN's sync finds the written pages. Without `dirty_bits`, LOG writes into it.
    - `logged`, shape (n_threads,): pages in each log buffer when the run begins, all of them page 0; None: none.
    - `ring_entries`: size of a vCPU's dirty ring, which gets pages instead of the dirty log; 0: there are no rings.
      When at least `ring_full` entries have not been reset, the vCPU leaves the guest.
    - `throttle`: rule of THROTTLE_CHECK, THROTTLE and DIRTY_LIMIT_UPDATE; None: there are no such steps.
    - `notes`: notes of the listing: number of the step, and note.
    - `costs`: names of the costs (`simlib.model.costs.Costs`) that any step spends.
    """

    steps: NDArray[np.int64]
    entry: NDArray[np.int64]
    region: NDArray[np.int64]
    locks: NDArray[np.int64]
    local_ps: int
    near_ps: int
    far_ps: int
    socket: NDArray[np.int64]
    cvs: tuple[float | tuple[float, ...], ...] = (0.0,)
    places: tuple[Places, ...] = (0.0,)
    pages: int = 64
    block_pages: int = 512
    mapped_as_blocks: bool = False
    populated: bool = False
    image: Image | None = None
    lock_pages: int = 64
    write_percent: int = 100
    vcpus: int = 0
    first_batch: int = 64
    stamps: tuple[Stamp, ...] = ()
    lock_names: tuple[str, ...] = ("mmu_lock",)
    thread_names: tuple[str, ...] = ()
    barriers: int = 1
    clock: int = 0
    turn_ps: int = 0
    tick_ps: int = 0
    tick_work_ps: int = 0
    tick_table: int = 0
    enqueue_ps: int = 0
    poll_ps: int = 0
    cluster: NDArray[np.int64] | None = None
    cluster_ps: int = 0
    queue_length_penalty_ps: int = 0
    lines: int = 0
    dirty_bits: bool = False
    dirty_set_ps: int = 0
    buffer_entries: int = 0
    logged: NDArray[np.int64] | None = None
    ring_entries: int = 0
    ring_full: int = 0
    throttle: Throttle | None = None
    notes: tuple[tuple[int, str], ...] = ()
    costs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that no step can index outside a table; the engines do not check this.

        Raises `InputError`, which names the first step that is out of range, its argument and the rule.
        """
        n, threads = len(self.steps), len(self.entry)
        if not n or not threads or self.steps.shape != (n, 6) or self.region.shape != (threads, 2):
            raise InputError("job", f"{n} steps, {threads} threads", "must have threads, and steps of six numbers")
        kinds = self.steps[:, 0]
        if kinds.min() < 0 or kinds.max() >= len(Step):
            index = int(np.argmax((kinds < 0) | (kinds >= len(Step))))
            raise InputError(f"job.steps[{index}]", self.steps[index].tolist(), f"kind must be 0 to {len(Step) - 1}")
        if kinds[-1] not in (Step.END, Step.JUMP):
            raise InputError("job", "last step", "must be END or JUMP", "end every program with END")
        self._check_memory()
        of_each = f"for each thread, {threads} in total"
        for name, places in (("socket", self.socket), ("cluster", self.cluster)):
            if places is not None and len(places) != threads:
                raise InputError(f"job.{name}", len(places), f"must name a {name} {of_each}")
        logged, most = self.logged, self.buffer_entries
        if logged is not None and not (logged.shape == (threads,) and ((logged >= 0) & (logged <= most)).all()):
            raise InputError("job.logged", logged.tolist(), f"must be from 0 to {most} {of_each}")
        if self.clock not in tuple(Clock):
            raise InputError("job.clock", self.clock, "must be a Clock")
        if not 0 <= self.turn_ps < MOST_TURN_PS or (self.turn_ps and self.clock == Clock.WALL):
            raise InputError("job.turn_ps", self.turn_ps, f"must be below {MOST_TURN_PS}, and 0 with Clock.WALL")
        if not 0 <= self.tick_table < len(self.cvs):
            raise InputError("job.tick_table", self.tick_table, "must be an index into cvs")
        busy = threads * (2 * self.turn_ps + self.tick_work_ps)
        if self.tick_ps and not 0 < busy < self.tick_ps * (self.turn_ps > 0):
            rule = f"must be longer than {threads} * (2 * turn_ps + tick_work_ps), which must not be 0"
            raise InputError("job.tick_ps", self.tick_ps, rule)
        times = (self.local_ps, self.near_ps, self.far_ps, self.cluster_ps, self.queue_length_penalty_ps)
        if min(times) < 0 or not ((self.entry >= 0) & (self.entry < n)).all():
            raise InputError("job", "entry or line times", "must not be negative or out of range")
        self._check_sleeps()
        self._check_steps()

    def _check_sleeps(self) -> None:
        kinds = self.steps[:, 0]
        if (kinds[1:][_SLEEPS[kinds[:-1]]] != Step.WAKE).any() or _SLEEPS[kinds[-1]]:
            raise InputError("job", "SLEEP", "must be followed by WAKE")
        if _SLOWS[kinds].any() and (self.throttle is None or self.clock != Clock.WALL):
            raise InputError("job.throttle", self.throttle, "throttling steps require a rule, and Clock.WALL")
        if self.throttle is not None and not self.throttle.slice and (kinds == Step.DIRTY_LIMIT_UPDATE).any():
            raise InputError("job.throttle.slice", 0, "must be more than 0: the interval of DIRTY_LIMIT_UPDATE")

    def _check_memory(self) -> None:
        kinds = self.steps[:, 0]
        first, last = self.region[:, 0], self.region[:, 1]
        if _WALKS[kinds].any():
            inside = (first >= 0) & (first < last) & (last <= self.pages)
            if not inside.all():
                raise InputError("job.region", self.region.tolist(), f"must not be empty or exceed {self.pages} pages")
        if (kinds == Step.SCAN).any() and (self.region % WORD_PAGES).any():
            raise InputError("job.region", self.region.tolist(), "must be multiples of 64 pages for SCAN")
        if self.pages % WORD_PAGES or self.block_pages < WORD_PAGES or self.block_pages & (self.block_pages - 1):
            rule = "must be multiples of 64, and block_pages a power of 2"
            raise InputError("job.pages", (self.pages, self.block_pages), rule)
        blocks = -(-self.pages // self.block_pages)
        if self.image is not None and (len(self.image.pages), len(self.image.blocks)) != (self.pages, blocks):
            given, rule = map(len, self.image), f"must be pages: {self.pages}, blocks: {blocks}"
            raise InputError("job.image", "pages: {}, blocks: {}".format(*given), rule)
        if self.lock_pages < WORD_PAGES:
            raise InputError("job.lock_pages", self.lock_pages, "must be at least 64")
        if self.dirty_set_ps < 0:
            raise InputError("job.dirty_set_ps", self.dirty_set_ps, "must be at least 0")
        if not 0 <= self.buffer_entries <= MOST_ENTRIES:
            raise InputError("job.buffer_entries", self.buffer_entries, f"must be from 0 to {MOST_ENTRIES}")
        least = self.ring_full + self.buffer_entries
        if self.ring_entries and not 0 < self.ring_full <= least < self.ring_entries <= MOST_ENTRIES:
            rule = f"must be at least 1, and leave room for a log buffer in a ring of {self.ring_entries} entries"
            raise InputError("job.ring_full", self.ring_full, rule)

    def _check_steps(self) -> None:
        kinds = self.steps[:, 0]
        limits = [_NO_LIMIT if below is None else self._count(below) for below in _LIMITS]
        self._check_arguments(np.arange(len(kinds)), kinds, _STEPS, self.steps[:, 1:], limits)
        tests = np.flatnonzero(kinds == Step.TEST)
        self._check_arguments(tests, self.steps[tests, 2], _QUANTITIES, self.steps[tests, 3:4], limits)
        self._check_locks()

    def _check_arguments(
        self, rows: NDArray[np.int64], kinds: NDArray[np.int64], ranges: _Ranges, values: NDArray[np.int64],
        limits: list[int],
    ) -> None:  # fmt: skip
        """Raise `InputError` for the first argument that is out of range; `kinds` selects the rows of `ranges`."""
        bad = (values < ranges.least[kinds]) | (values >= np.array(limits)[ranges.below[kinds]])
        if not bad.any():
            return
        position, column = (int(i[0]) for i in np.nonzero(bad))
        step, argument = Step(self.steps[rows[position], 0]), ranges.arguments[int(kinds[position])][column]
        what = f"job.steps[{rows[position]}] ({step.name}).{argument.name}"
        raise InputError(what, int(values[position, column]), f"must be {argument.range()}")

    def _check_locks(self) -> None:
        """Check that the lock of every thread and region exists; engines compute its number."""
        uses = np.flatnonzero(_LOCKS[self.steps[:, 0]])
        span = np.array([1, len(self.entry), -(-self.pages // self.lock_pages)])  # in the order of LockScope
        last = self.steps[uses, 1] + span[self.steps[uses, 3]]
        if (last > len(self.locks)).any():
            index = int(uses[np.argmax(last > len(self.locks))])
            what = f"job.steps[{index}] ({Step(self.steps[index, 0]).name}).lock"
            raise InputError(what, int(self.steps[index, 1]), f"needs more locks than the job has ({len(self.locks)})")

    def _count(self, below: int | str) -> int:
        """Value of a limit: a number, or the count of the job that it names."""
        limit = getattr(self, below) if isinstance(below, str) else below
        return limit if isinstance(limit, int) else len(limit)

    @property
    def has_buffers(self) -> bool:
        """True if vCPUs have a log buffer or a dirty ring, which may be full at an access."""
        return self.buffer_entries > 0 or self.ring_entries > 0

    def queue_length_penalty(self) -> NDArray[np.int64]:
        """Additional time of a hand-off, ps, by the number of waiters behind the next holder: shape (threads,).

        >>> from simlib.model.program import Program
        >>> p = Program()
        >>> with p.thread():
        ...     p.run(1)
        >>> four = np.zeros(4, int)
        >>> pairs, one = np.zeros((4, 2), int), np.zeros(1, int)
        >>> job = Job(p.steps(), four, pairs, one, 0, 0, 0, four, queue_length_penalty_ps=100)
        >>> job.queue_length_penalty()
        array([  0, 100, 158, 200])
        """
        doublings = np.log2(1.0 + np.arange(len(self.entry)))
        return np.asarray(np.rint(self.queue_length_penalty_ps * doublings), dtype=np.int64)

    def listing(self) -> str:
        """Return the programs as a listing: one step per line, with the names of locks, stamps and targets.

        >>> from simlib.model.program import Program
        >>> p = Program()
        >>> with p.thread() as loop:
        ...     with p.repeat(3):
        ...         p.run(1_200_000)
        >>> job = Job(p.steps(), np.array([loop.first]), np.zeros((1, 2), int), np.array([Discipline.QUEUED_SPIN]),
        ...           0, 0, 0, np.zeros(1, int), thread_names=("main",))
        >>> print(job.listing())
        main:
          0  L0  run       1.2us
          1      repeat    L0, times 3, counter 0
          2      end
        """
        names = self._labels()
        headings = self._headings()
        notes = dict(self.notes)
        width = max([2, *(len(name) for name in names.values())])
        digits = max(3, len(str(len(self.steps) - 1)))
        lines: list[str] = []
        for index, row in enumerate(self.steps.tolist()):
            if index in headings:
                lines += ["", f"{headings[index]}:"] if lines else [f"{headings[index]}:"]
            if index in notes:
                lines.append(f"{'':{digits + width + 4}}# {notes[index]}")
            step = Step(row[0])
            text = ", ".join(self._text(step, argument, value, names) for argument, value in self._listed(step, row))
            lines.append(f"{index:{digits}}  {names.get(index, ''):{width}}  {step.name.lower():9} {text}".rstrip())
        return "\n".join(lines)

    def _labels(self) -> dict[int, str]:
        targets = set()
        for row in self.steps.tolist():
            step = Step(row[0])
            pairs = zip(self._arguments(step), row[1:], strict=False)
            if step is Step.DROP and self.locks[row[1]] != Discipline.LOCKLESS:
                continue
            targets |= {value for argument, value in pairs if argument.below == "steps"}
        return {target: f"L{number}" for number, target in enumerate(sorted(targets))}

    def _headings(self) -> dict[int, str]:
        names = self.thread_names or tuple(f"thread {i}" for i in range(len(self.entry)))
        threads: dict[int, list[str]] = {}
        for entry, name in zip(self.entry.tolist(), names, strict=True):
            threads.setdefault(entry, []).append(name)
        return {
            entry: ", ".join(group) if len(group) < 3 else f"{group[0]} to {group[-1]}"
            for entry, group in threads.items()
        }

    def _arguments(self, step: Step) -> tuple[Argument, ...]:
        """Arguments of a step that have an effect in this job."""
        return step.arguments if self.has_buffers or step is not Step.ACCESS else step.arguments[:-1]

    def _listed(self, step: Step, row: list[int]) -> list[tuple[Argument, int]]:
        """Arguments and values that the listing shows: those that differ from the defaults."""
        pairs = list(zip(self._arguments(step), row[1:], strict=False))
        if step is Step.TEST:
            argument = Quantity(row[2]).argument
            name = "threshold_ps" if Quantity(row[2]) in _TIMES else "threshold"
            threshold = (pairs[3][0]._replace(name=name), row[4])
            pairs = [pairs[1], *([(argument, row[3])] if argument is not None else []), threshold, pairs[0]]
        if step is Step.DROP and self.locks[row[1]] != Discipline.LOCKLESS:
            pairs = pairs[:3]
        usual = {"distribution": 0, "aligned": 0, "scope": 0, "word_ps": 0, "unsplit_ps": 0, "entry_ps": 0}
        return [(argument, value) for argument, value in pairs if usual.get(argument.name) != value]

    def _text(self, step: Step, argument: Argument, value: int, names: dict[int, str]) -> str:
        label = argument.name.replace("_", " ")
        if argument.below == "steps":
            target = names.get(value, str(value))
            return {Step.TEST: f"else {target}", Step.ACCESS: f"{label} {target}"}.get(step, target)
        if argument.below == "locks":
            return "the region's lock" if value < 0 else self.lock_names[value]
        if argument.below == "stamps":
            return str(self.stamps[value])
        if argument.name.endswith("_ps"):
            return {Step.SCAN: f"{argument.name[:-3]} ", Step.TEST: ">= "}.get(step, "") + format_duration(value)
        if argument.words is not None:
            return argument.formatted(value)
        plain = "all pages" if argument.name == "pages" and value == ALL else f"{label} {value}"
        return f">= {value}" if argument.name == "threshold" else plain
