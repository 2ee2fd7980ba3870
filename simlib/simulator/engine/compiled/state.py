# SPDX-License-Identifier: BSD-3-Clause
"""State of a run in the compiled engine: records of a thread, a lock and a step, and tuples of arrays.

A record's fields are accessed like attributes (``thread.page``) and are adjacent in memory; a named tuple of arrays
costs nothing in compiled code. Functions therefore need few arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simlib.model.job import Job
from simlib.model.steps import COUNTERS, EXTENTS, FLAGS, Clock
from simlib.model.throttle import Throttle
from simlib.simulator.engine import limits
from simlib.simulator.engine.compiled.calendar import initial_calendar
from simlib.simulator.engine.random import first_tick, seek_tables, tables, thread_keys
from simlib.simulator.engine.result import ACTIVITIES, FIRST_SHIFT, LOCK_COLUMNS, Counters, empty_counters

CACHE_LINE = 64
"""Size in bytes."""

Records = NDArray[Any]
"""An array of records."""


def record(*fields: str, **arrays: int) -> np.dtype[Any]:
    """A record of integers and of short arrays of integers."""
    return np.dtype([(name, np.int64) for name in fields] + [(name, np.int64, (n,)) for name, n in arrays.items()])


STEP = record("kind", "a", "b", "c", "d", "e", "ahead", "shared")
"""A step. `ahead`: the condition under which a thread may take it ahead of the calendar
(`simlib.simulator.engine.compiled.lookahead`). `shared`: whether other threads see its effect or change what it tests.
A step has eight numbers, so that its address is computed without a multiplication.
"""

ROUND = record(
    "known", "time", "events", "run", "hold", "stride", "extent", "advance_at", "lap", "lap_at",
    "counter", "period", "free", "extra", "other", "other_period", "page_ps",
)  # fmt: skip
"""The steps between two hits of one ACCESS (`simlib.simulator.engine.compiled.lookahead`), if `known`: duration, number
of events, time spent by activity; `stride` in pages and the `extent` that must not end; time offsets of ADVANCE and
LAP, and what LAP reads; counters, of which the first may run out if it is `free`, which adds `extra` events. -1: none.
For a SCAN that clears an extent word by word: `extent`, and `page_ps`, the minimum time per page; otherwise 0.
"""


def aligned(count: int, fields: np.dtype[Any]) -> Records:
    """`count` records of zeros, the first one aligned to a cache line."""
    buffer = np.zeros(count * fields.itemsize + CACHE_LINE, dtype=np.uint8)
    first = -buffer.ctypes.data % CACHE_LINE
    return buffer[first : first + count * fields.itemsize].view(fields)


_OFTEN = record(
    "pc", "stream", "bits", "tried", "acquired", "holds", "mode", "runs_ahead", "asleep",
    "served", "outer", "kick", spent=len(ACTIVITIES),
)  # fmt: skip
_IN_FAULTS = record(
    "page", "memory_private", "interrupted", "kicked", "lap_from", "lap_max", "logged", "pushed", "reset",
    faults=5, end=EXTENTS, counters=COUNTERS, begin=EXTENTS,
)  # fmt: skip
_SELDOM = record(
    "region_lock", "bitmap", "batch", "parked", "alarm", "ended", "owns_bitmap", "barriers",
    "hits_from", "hits_to", "hits_since", "version_read", "kick_stalls", "unspent", "sleeping", "tick_at",
    "harvested", "run_first", "run_mask", "pause", "newly_dirty", "pages_sent", "checked_at", "high_checks",
    "pushed_at_update", "limit_sleep_us", "due", "idle",
)  # fmt: skip

THREAD = np.dtype(_OFTEN.descr + _IN_FAULTS.descr + _SELDOM.descr)
"""A thread's registers. `stream`: state of its random stream at the draw whose `bits` come next; `acquired`, `served`:
times at which it last acquired a lock, and the server; `holds`: locks held and lockless updates under way; `outer`:
`acquired` of the enclosing lock; `parked`: the barrier at which it waits, or -1; `interrupted`: 1 while it returns from
an interrupt, 2 from a sleep; `kicked`: its stopwatch has been running since a kick (`kick_stalls`: KICK requests it).
`runs_ahead`, `memory_private`, `owns_bitmap` and `barriers` (reachable ones, as bits) are results of
`simlib.simulator.engine.compiled.static_analysis`. Accesses to the pages from `hits_from` to `hits_to` (exclusive) are
hits as long as the world's `withdrawn` is `hits_since`. Fields in frequent use are adjacent, in few cache lines. If
turns have a length, `unspent` is the time that the thread must still spend in its turns before its next step,
`sleeping` means that it sleeps until its alarm, and `tick_at` is the time of its next timer interrupt. `logged`: pages
in its log buffer; `pushed`, `harvested`, `reset`: total entries of its dirty ring; `run_first`, `run_mask`: the run
that it last took out of a ring. `pause`: duration of a throttle's sleep, pending or under way. `newly_dirty`,
`pages_sent`: pages that entered its bitmap and pages sent since its last throttle check, at `checked_at`;
`high_checks`: checks at which too many pages were dirtied. `pushed_at_update`: `pushed` at the last DIRTY_LIMIT_UPDATE;
`limit_sleep_us`: duration of its sleep when its ring is full. `due`: end of its last PACE unless it is late, or -1;
`idle`: 1 while it leaves the guest to idle, 2 while it idles. `version_read`: version of a lockless lock before its
update. The record's size is a multiple of a cache line.
"""

LOCK_STATISTICS, BITS = len(LOCK_COLUMNS), 65
"""Number of statistics of a lock for each mode, and number of possible bit lengths of a time."""

LOCK = record(
    "kind", "holders", "head", "length", "line_free", "line_owner", "count", "busy_since", "busy",
    "changed", "last", "freed", "comes_at",
    stats=2 * LOCK_STATISTICS, waits=2 * BITS, holds=2 * BITS,
)  # fmt: skip
"""A lock. `holders`: number of readers, or -1 for a writer; `head`, `length`: of its ring of waiting threads; `count`:
used by the discipline (updates of a lockless lock; hand-offs within a socket of a cohort lock); `last`: the thread that
dropped it last; `freed`: time at which that drop was done; `comes_at`: time at which the head of the queue reaches the
lock word; until then others may bypass the queue. Then, for each mode, its `LOCK_COLUMNS` and the histograms of waits
and holds by bit length.
"""

LINE = record("free", "owner")
"""A cache line: end of the operation under way on it, and the thread that owns it."""

WORLD = record(
    "now", "woken", "events", "live_threads", "status", "shift", "traced", "ledgered", "running", "clock_base",
    "clock_since", "local_ps", "pages", "block_shift", "lock_pages", "write_percent", "vcpus", "clock",
    "recorded", "as_blocks", "slow_path", "stop_at", "prepared", "changers", "withdrawn",
    "sweep_at", "sweep_page", "sweep_end", "fluid", "turn_ps", "stream", "bits", "turn_of", "turn_end", "failed_polls",
    "tick_ps", "tick_work_ps", "tick_table", "enqueue_ps", "poll_ps",
    "dirty_bits", "dirty_set_ps", "buffer_entries", "ring_entries", "ring_full", "overflow_at", "throttle", "fastest",
    "pause_entry", *Throttle._fields, flags=FLAGS,
)  # fmt: skip
"""The global state. `woken`: time of the wake-up whose thread is running; `shift`: log2 of the width of a time bin. The
fields from `local_ps` to `slow_path` are constant during a run; `slow_path`: address of the machine code of rare steps;
`stop_at`: number of events at which the loop returns; `changers`: number of changers; `withdrawn`: count of withdrawals
of page table entries, each of which can turn hits into faults; `sweep_at`: the SCAN whose pages to clear, up to
`sweep_end`, are counted in `Run.sweep`, or -1; `sweep_page`: its next page; `fluid`: a serial clock whose turns have no
length; `stream`, `bits`: random stream of the turns, as of a thread; `turn_of`: the thread whose turn it is, until
`turn_end` (without turns: it never ends); `failed_polls`: number of consecutive failed polls of a lock;
`overflow_at`: time at which a dirty ring had no room for a page, or -1; `throttle` of the vCPUs, percent; `fastest`:
highest dirty rate of a vCPU, MiB/s; `pause_entry`: time per page of a log buffer before a sleep. Then `Job.throttle`.
"""

RUNNING, FINISHED, DEADLOCK, PAST_HORIZON, RUNAWAY = range(5)
"""Values of a world's `status`."""


class Cpus(NamedTuple):
    """Placement of the threads and its costs.

    `transfer_ps` by the `row` of a line's last owner plus the `place` of its next owner; `socket` of each thread;
    `queue_length_penalty_ps` by the number of waiting threads.
    """

    place: NDArray[np.int64]
    row: NDArray[np.int64]
    transfer_ps: NDArray[np.int64]
    socket: NDArray[np.int64]
    queue_length_penalty_ps: NDArray[np.int64]


class Run(NamedTuple):
    """State of a run."""

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
    counters: Counters
    words: NDArray[np.uint64]
    rounds: Records
    changers: NDArray[np.int64]
    full_barriers: NDArray[np.int64]
    inside_region: NDArray[np.int64]
    effects: NDArray[np.int64]
    sweep: NDArray[np.int64]
    logs: NDArray[np.int64]
    rings: NDArray[np.int64]


def initial_run(job: Job, seed: int, trace: int, ledger: int) -> Run:
    """State of a run before its first event."""
    quantiles = tables(job.cvs)
    limits.check_times(job, quantiles)
    locks = aligned(len(job.locks), LOCK)
    locks["kind"], locks["line_owner"] = job.locks, -1
    memory, count = limits.initial_memory(job), len(job.steps)
    keys, counters = thread_keys(seed, len(job.entry) + 1), empty_counters(job)
    if trace or ledger:
        counters = counters._replace(trace=np.zeros((trace, 5), np.int64), ledger=np.zeros((ledger, 5), np.int64))
    lines = aligned(job.lines, LINE)
    lines["owner"] = -1
    steps = np.zeros((count, len(STEP.names or ())), dtype=np.int64)
    steps[:, : job.steps.shape[1]] = job.steps
    return Run(
        steps=steps.view(STEP).reshape(-1),
        quantiles=quantiles.astype(np.int32),  # each is below 2**27; they stay in the L1 cache
        places=seek_tables(job.places, limits.vcpu_pages(job)),
        worlds=_world_of(job, keys[-1], trace, ledger),
        threads=_threads_of(job, keys),
        cpus=_cpus_of(job),
        locks=locks,
        lines=lines,
        waiting=np.zeros((len(locks), len(job.entry)), dtype=np.int64),
        tree=initial_calendar(len(job.entry), job.turn_ps > 0),
        pages=memory.pages,
        blocks=memory.blocks,
        arrived=np.zeros(job.barriers, dtype=np.int64),
        counters=counters,
        words=memory.pages.view(np.uint64),
        rounds=np.zeros(count + 1, dtype=ROUND),
        changers=np.zeros(len(job.entry), dtype=np.int64),
        full_barriers=np.zeros(job.barriers, dtype=np.int64),
        inside_region=np.zeros(count, dtype=np.int64),
        effects=np.zeros(count, dtype=np.int64),
        sweep=np.zeros(len(memory.blocks) + 1, dtype=np.int64),
        logs=np.zeros((len(job.entry), job.buffer_entries), dtype=np.int64),
        rings=np.zeros((len(job.entry), job.ring_entries), dtype=np.int64),
    )


def _cpus_of(job: Job) -> Cpus:
    cluster, within = (job.socket, job.near_ps) if job.cluster is None else (job.cluster, job.cluster_ps)
    clusters = int(cluster.max()) + 1
    cluster_id = job.socket * clusters + cluster
    is_used = np.bincount(cluster_id) > 0
    places, place = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[cluster_id]
    same_socket = places[:, None] // clusters == places // clusters
    same_cluster = places[:, None] % clusters == places % clusters
    transfer = np.where(same_cluster, within, np.where(same_socket, job.near_ps, job.far_ps))
    return Cpus(
        place, place * len(places), transfer.astype(np.int64).reshape(-1),
        np.array(job.socket, dtype=np.int64), job.queue_length_penalty(),
    )  # fmt: skip


def _world_of(job: Job, turn_key: np.uint64, trace: int, ledger: int) -> Records:
    count = len(job.entry)
    world = np.zeros(1, dtype=WORLD)
    for name in ("local_ps", "pages", "lock_pages", "write_percent", "vcpus", "clock", "turn_ps", "tick_ps",
                 "tick_work_ps", "tick_table", "enqueue_ps", "poll_ps", "dirty_bits", "dirty_set_ps", "buffer_entries",
                 "ring_entries", "ring_full"):  # fmt: skip
        world[name] = getattr(job, name)
    world["block_shift"] = job.block_pages.bit_length() - 1
    world["live_threads"], world["shift"] = count, FIRST_SHIFT
    world["sweep_at"] = world["overflow_at"] = -1
    world["fluid"] = job.clock != Clock.WALL and not job.turn_ps
    world["running"] = count if world["fluid"] else 1
    for name, value in job.throttle._asdict().items() if job.throttle is not None else ():
        world[name] = value
    world["turn_of"] = count - 1
    world["stream"] = turn_key.view(np.int64)
    world["turn_end"] = 0 if job.turn_ps else limits.HORIZON_PS
    world["recorded"] = trace > 0 or ledger > 0
    world["as_blocks"] = job.mapped_as_blocks
    return world


def _threads_of(job: Job, keys: NDArray[np.uint64]) -> Records:
    """Threads before their first step; `keys`: keys of their random streams, then the key of the turns' stream."""
    threads = aligned(len(job.entry), THREAD)
    threads["pc"], threads["batch"] = job.entry, job.first_batch
    threads["stream"] = keys[:-1].view(np.int64)
    threads["ended"], threads["parked"], threads["due"] = -1, -1, -1
    threads["tick_at"] = first_tick(int(keys[-1]), job.tick_ps)
    threads["begin"][:, 0], threads["end"][:, 0] = job.region.T
    threads["page"] = job.region[:, 0]
    if job.logged is not None:
        threads["logged"] = job.logged
    return threads
