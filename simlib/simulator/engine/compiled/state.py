# SPDX-License-Identifier: BSD-3-Clause
"""What a run is made of, for the compiled engine: records of one thread, one lock, one step, and tuples of arrays.

A record's fields read like attributes (``thread.page``) and lie beside each other in memory; a
named tuple of arrays costs nothing in compiled code. So a function needs few arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.model.job import Job
from simlib.model.steps import COUNTERS, EXTENTS, FLAGS, Clock
from simlib.model.throttle import Throttle
from simlib.simulator.engine import limits
from simlib.simulator.engine.random import first_tick, seek_tables, tables, thread_keys
from simlib.simulator.engine.result import ACTIVITIES, BINS, FIRST_SHIFT, LAP_BINS, LOCK_COLUMNS

CACHE_LINE = 64
"""Bytes."""

Records = NDArray[Any]
"""An array of records."""


def record(*fields: str, **arrays: int) -> np.dtype[Any]:
    """A record of whole numbers, and of short arrays of them."""
    return np.dtype([(name, np.int64) for name in fields] + [(name, np.int64, (n,)) for name, n in arrays.items()])


STEP = record("kind", "a", "b", "c", "d", "e", "ahead", "shared")
"""A step; `ahead`: who may take it ahead of the calendar (`simlib.simulator.engine.compiled.lookahead`); `shared`:
whether others see what it does, or change what it asks for. With eight numbers it is found without a multiplication."""

ROUND = record(
    "known", "time", "events", "run", "hold", "stride", "extent", "advance_at", "lap", "lap_at",
    "counter", "period", "free", "extra", "other", "other_period", "page_ps",
)  # fmt: skip
"""What lies between two hits of one ACCESS (`simlib.simulator.engine.compiled.lookahead`), if `known`: time, events,
what is spent; pages, and of which extent, which must not end; when ADVANCE and LAP come, and what that reads; counters,
of which the first may run out if it is `free`, which costs `extra` events. -1: there is none. Of a SCAN that clears an
extent word after word: the extent, and `page_ps`, the least time that a page takes; else 0."""


def aligned(count: int, fields: np.dtype[Any]) -> Records:
    """So many records of zeros, the first at the beginning of a cache line."""
    room = np.zeros(count * fields.itemsize + CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + count * fields.itemsize].view(fields)


_OFTEN = record(
    "pc", "stream", "bits", "tried", "acquired", "holds", "mode", "runs_ahead", "asleep",
    "served", "outer", "kick", spent=len(ACTIVITIES),
)  # fmt: skip
_IN_FAULTS = record(
    "page", "alone", "interrupted", "kicked", "lap_from", "lap_max", "logged", "pushed", "reset",
    faults=5, end=EXTENTS, counters=COUNTERS, begin=EXTENTS,
)  # fmt: skip
_SELDOM = record(
    "region_lock", "bitmap", "batch", "parked", "alarm", "ended", "owns_bitmap", "barriers",
    "hits_from", "hits_to", "hits_since", "seen", "kick_stalls", "left", "rests", "tick_at",
    "harvested", "run_first", "run_mask", "pause", "came", "went", "judged", "high", "looked", "nap_us",
)  # fmt: skip

THREAD = np.dtype(_OFTEN.descr + _IN_FAULTS.descr + _SELDOM.descr)
"""A thread's registers. `stream`: the state of its random stream, at the draw whose `bits` come next; `acquired`,
`served`: when it got the lock, and the server, that it took last; `holds`: locks that it has, and updates without one;
`outer`: when it got the one around the other; `parked`: the barrier at which it waits, or -1; `interrupted`: 1 if it is
on its way back from an interrupt, 2 from a sleep; `kicked`: whether its stopwatch runs since one, as `kick_stalls` said
of `kick`; `runs_ahead`, `alone`, `owns_bitmap`, and `barriers` to which it can come, as bits: what
`simlib.simulator.engine.compiled.lookahead` found out. An access of the pages `hits_from` to `hits_to` is a hit unless
an entry was withdrawn since; what is used often lies together, in few cache lines of its own. Where turns have a
length, `left` is what time the thread has to spend before it does something, while others have their turns, `rests`
says that it sleeps until its alarm, and `tick_at` when a timer interrupts it next. `logged`: pages in its log buffer;
`pushed`, `harvested`, `reset`: entries of its dirty ring that ever were; `run_first`, `run_mask`: the run that it took
out of a ring last. `pause`: for how long it sleeps before its next access, or does so now; `came`, `went`: pages that
came into its bitmap and were sent since it judged the guest, at `judged`, and `high` how often that dirtied too much;
`looked`: `pushed` at the last LIMIT, and `nap_us` for how long it sleeps when its ring is full."""

LOCK_STATISTICS, BITS = len(LOCK_COLUMNS), 65
"""Statistics that a lock keeps for each mode, and of how many bits a time may have."""

LOCK = record(
    "kind", "holders", "head", "length", "line_free", "line_owner", "count", "busy_since", "busy",
    "changed", "last", "freed", "comes_at",
    stats=2 * LOCK_STATISTICS, waits=2 * BITS, holds=2 * BITS,
)  # fmt: skip
"""A lock; `holders` is the number of readers, or -1 for a writer; `head` and `length` are those of its ring of waiting
threads; `count` is the discipline's own: updates of a lockless one, hand-overs within a socket of a cohort lock; `last`
is who let go last, and `freed` when that was done; `comes_at`: when the head of the queue comes to the word, until when
others may pass the queue. Then come, for reading and for writing, its `LOCK_COLUMNS` and the counts of waits and holds
by their number of bits."""

LINE = record("free", "owner")
"""A cache line: until when an operation on it takes, and the thread whose it was."""

WORLD = record(
    "now", "woken", "events", "live", "status", "shift", "traced", "ledgered", "running", "clock_base", "clock_since",
    "local_ps", "pages", "block_shift", "lock_pages", "write_percent", "vcpus", "clock",
    "recorded", "as_blocks", "aside", "stop_at", "prepared", "changers", "withdrawn",
    "sweep_at", "sweep_page", "sweep_end", "fluid", "turn_ps", "stream", "bits", "turn_of", "turn_end", "vain",
    "tick_ps", "tick_work_ps", "tick_table", "queue_ps", "look_ps",
    "dirty_bits", "dirty_set_ps", "buffer_entries", "ring_entries", "ring_full", "overflow_at", "throttle", "fastest",
    "pause_entry", *Throttle._fields, flags=FLAGS,
)  # fmt: skip
"""What there is one of. `woken`: time of the wake-up whose thread lives; `shift`: log2 of the width of a time bin.
From `local_ps` to `aside` nothing changes during a run; `aside`: where the machine code is of what happens seldom;
`stop_at`: events at which to look up from it; `changers`: how many there are; `withdrawn`: how often an entry of the
page table was, so that a hit may have become a fault; `sweep_at`: the SCAN whose pages to clear, up to `sweep_end`,
were counted (`Run.sweep`), or -1, and `sweep_page`, where it comes next; `fluid`: whether a serial clock's turns
have no length; `stream`, `bits`: of the turns, as of a thread; `turn_of`: whose turn it is, until `turn_end`, which
without turns is for ever; `vain`: how many threads one after another looked for a lock that they have not;
`overflow_at`: when a page found no room in a dirty ring, or -1; `throttle`: of the vCPUs, percent, and `fastest` the
highest rate of one, MiB/s; `pause_entry`: what a page of a log buffer takes before a vCPU sleeps; then
`Job.throttle`."""

RUNNING, FINISHED, DEADLOCK, PAST_HORIZON, RUNAWAY = range(5)
"""Values of a world's `status`."""


class Cpus(NamedTuple):
    """Where threads run, and what that costs: `transfer_ps` by the `row` of a line's last owner and the `place` of the
    next one; `socket` of each thread; `queue_length_penalty_ps` by the number of waiting threads."""

    place: NDArray[np.int64]
    row: NDArray[np.int64]
    transfer_ps: NDArray[np.int64]
    socket: NDArray[np.int64]
    queue_length_penalty_ps: NDArray[np.int64]


class Counters(NamedTuple):
    """What a run leaves behind: the arrays of `simlib.simulator.engine.result.EngineResult`."""

    queue: NDArray[np.int64]
    progress: NDArray[np.int64]
    stamp_ps: NDArray[np.int64]
    stamp_locks: NDArray[np.int64]
    stamp_sums: NDArray[np.int64]
    stamp_own: NDArray[np.int64]
    stamp_waits: NDArray[np.int64]
    laps: NDArray[np.int64]
    trace: NDArray[np.int64] | None
    ledger: NDArray[np.int64] | None


class Run(NamedTuple):
    """A run under way."""

    steps: Records
    quantiles: NDArray[np.int32]
    places: NDArray[np.int64]
    worlds: Records
    threads: Records
    cpus: Cpus
    locks: Records
    lines: Records
    waiting: NDArray[np.int64]
    tree: NDArray[np.int64]
    pages: NDArray[np.uint8]
    blocks: NDArray[np.uint8]
    arrived: NDArray[np.int64]
    books: Counters
    words: NDArray[np.uint64]
    rounds: Records
    changers: NDArray[np.int64]
    gathers: NDArray[np.int64]
    inside: NDArray[np.int64]
    reach: NDArray[np.int64]
    sweep: NDArray[np.int64]
    logs: NDArray[np.int64]
    rings: NDArray[np.int64]


def books_of(job: Job, trace: int, ledger: int) -> Counters:
    """Empty books."""
    threads, locks, stamps = len(job.entry), len(job.locks), len(job.stamps)

    def zeros(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    return Counters(
        queue=zeros(locks, BINS),
        progress=zeros(threads, BINS),
        stamp_ps=zeros(stamps),
        stamp_locks=zeros(stamps, locks, 2, 2),
        stamp_sums=zeros(stamps, len(ACTIVITIES) + 6),
        stamp_own=zeros(stamps, len(ACTIVITIES) + 1),
        stamp_waits=zeros(stamps),
        laps=zeros(LAP_BINS),
        trace=zeros(trace, 5) if trace or ledger else None,
        ledger=zeros(ledger, 5) if trace or ledger else None,
    )


def run_of(job: Job, seed: int, trace: int, ledger: int, tree: NDArray[np.int64]) -> Run:
    """A run that is about to begin."""
    quantiles = tables(job.cvs)
    limits.check_times(job, quantiles)
    locks = aligned(len(job.locks), LOCK)
    locks["kind"], locks["line_owner"] = job.locks, -1
    memory, count = limits.first_memory(job), len(job.steps)
    keys = thread_keys(seed, len(job.entry) + 1)
    return Run(
        steps=_steps_of(job),
        quantiles=quantiles.astype(np.int32),  # less than 2**27 each; they stay in the nearest cache
        places=seek_tables(job.places, limits.vcpu_pages(job)),
        worlds=_world_of(job, keys[-1], trace, ledger),
        threads=_threads_of(job, keys),
        cpus=_cpus_of(job),
        locks=locks,
        lines=_lines_of(job),
        waiting=np.zeros((len(locks), len(job.entry)), dtype=np.int64),
        tree=tree,
        pages=memory.pages,
        blocks=memory.blocks,
        arrived=np.zeros(job.barriers, dtype=np.int64),
        books=books_of(job, trace, ledger),
        words=memory.pages.view(np.uint64),
        rounds=np.zeros(count + 1, dtype=ROUND),
        changers=np.zeros(len(job.entry), dtype=np.int64),
        gathers=np.zeros(job.barriers, dtype=np.int64),
        inside=np.zeros(count, dtype=np.int64),
        reach=np.zeros(count, dtype=np.int64),
        sweep=np.zeros(len(memory.blocks) + 1, dtype=np.int64),
        logs=np.zeros((len(job.entry), job.buffer_entries), dtype=np.int64),
        rings=np.zeros((len(job.entry), job.ring_entries), dtype=np.int64),
    )


def _cpus_of(job: Job) -> Cpus:
    cluster, within = (job.socket, job.near_ps) if job.cluster is None else (job.cluster, job.cluster_ps)
    clusters = int(cluster.max()) + 1
    each = job.socket * clusters + cluster
    used = np.bincount(each) > 0
    places, place = np.flatnonzero(used), (np.cumsum(used) - 1)[each]
    same_socket = places[:, None] // clusters == places // clusters
    same_cluster = places[:, None] % clusters == places % clusters
    transfer = np.where(same_cluster, within, np.where(same_socket, job.near_ps, job.far_ps))
    return Cpus(
        place, place * len(places), transfer.astype(np.int64).reshape(-1),
        np.array(job.socket, dtype=np.int64), job.queue_length_penalty(),
    )  # fmt: skip


def _lines_of(job: Job) -> Records:
    lines = aligned(job.lines, LINE)
    lines["owner"] = -1
    return lines


def _steps_of(job: Job) -> Records:
    table = np.zeros((len(job.steps), len(STEP.names or ())), dtype=np.int64)
    table[:, : job.steps.shape[1]] = job.steps
    return table.view(STEP).reshape(-1)


def _world_of(job: Job, turn_key: np.uint64, trace: int, ledger: int) -> Records:
    count = len(job.entry)
    world = np.zeros(1, dtype=WORLD)
    for name in ("local_ps", "pages", "lock_pages", "write_percent", "vcpus", "clock"):
        world[name] = getattr(job, name)
    world["block_shift"] = job.block_pages.bit_length() - 1
    world["live"], world["shift"] = count, FIRST_SHIFT
    world["sweep_at"] = world["overflow_at"] = -1
    world["fluid"] = job.clock != Clock.WALL and not job.turn_ps
    world["running"] = count if world["fluid"] else 1
    for name in ("turn_ps", "tick_ps", "tick_work_ps", "tick_table", "queue_ps", "look_ps",
                 "dirty_bits", "dirty_set_ps", "buffer_entries", "ring_entries", "ring_full"):  # fmt: skip
        world[name] = getattr(job, name)
    for name, value in job.throttle._asdict().items() if job.throttle is not None else ():
        world[name] = value
    world["turn_of"] = count - 1
    world["stream"] = turn_key.view(np.int64)
    world["turn_end"] = 0 if job.turn_ps else limits.HORIZON_PS
    world["recorded"] = trace > 0 or ledger > 0
    world["as_blocks"] = job.mapped_as_blocks
    return world


def _threads_of(job: Job, keys: NDArray[np.uint64]) -> Records:
    """`keys`: of each thread, and of the turns."""
    threads = aligned(len(job.entry), THREAD)
    threads["pc"], threads["batch"] = job.entry, job.first_batch
    threads["stream"] = keys[:-1].view(np.int64)
    threads["ended"], threads["parked"] = -1, -1
    threads["tick_at"] = first_tick(int(keys[-1]), job.tick_ps)
    threads["begin"][:, 0], threads["end"][:, 0] = job.region.T
    threads["page"] = job.region[:, 0]
    if job.logged is not None:
        threads["logged"] = job.logged
    return threads
