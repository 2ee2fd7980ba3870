# SPDX-License-Identifier: BSD-3-Clause
"""Result of a run: the same arrays from both engines, and tidy frames over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.histogram import quantile
from simlib.model.job import Job
from simlib.model.steps import Mode, Scan

PS = 1e-12
"""Seconds in a picosecond."""

Progress = Callable[[int, int], None]
"""Called with (events, simulated time in ps) several times a second."""

BINS = 512
"""Number of bins of every quantity recorded over time."""

LAP_BITS = 5
"""log2 of the number of lap bins per power of two: the width of a bin is at most 1/32 of its lower end."""

LAP_BINS = (64 - LAP_BITS) << LAP_BITS
"""Number of bins of laps: see `lap_bin`."""

FIRST_SHIFT = 10
"""log2 of the first bin width, ps; the width doubles whenever the run outgrows the bins."""


def bin_width(end_ps: int) -> int:
    """Width of the time bins of a run that ends at `end_ps`, ps.

    >>> bin_width(1000), bin_width(10**12)
    (1024, 2147483648)
    """
    shift = FIRST_SHIFT
    while end_ps >> shift >= BINS:
        shift += 1
    return 1 << shift


ACTIVITIES = ("run", "wait", "hold", "line", "broadcast", "idle")
"""Activities of a thread: outside locks, waiting for a lock, holding a lock, moving cache lines, waiting for the
interconnect (a `Discipline.SERVER`), and being idle (at a barrier or asleep).
"""

FAULTS = slice(len(ACTIVITIES), len(ACTIVITIES) + 4)
"""Columns of `EngineResult.stamp_sums` that count faults, by kind."""

LOGGED = FAULTS.stop
"""Column that counts the writes logged by hardware, without a fault."""

LOCK_COLUMNS = ("acquisitions", "contended", "wait_ps", "wait_max_ps", "hold_ps", "hold_max_ps")
"""Statistics of a lock for each mode."""

EVENTS = ("try", "acquired", "released", "fault", "mapped", "retry", "barrier", "scan", "stamp", "end", "lap", "signal",
          "kick", "touch", "poll", "leave", "drain", "harvest", "reset", "pause", "throttle_check",
          "throttle")  # fmt: skip
"""Kinds of trace event, by number. ``poll``: a thread found the lock free in its turn, without a hand-off."""

LEDGER = ("write", *(scan.name.lower() for scan in Scan), "drain", "harvest", "reset", "pause", "throttle_check",
          "throttle", "dirty_limit_update", "dirty_limit_sleep", "pace")  # fmt: skip
"""Kinds of ledger entry, by number: the guest wrote a page; a scan visited a word (`simlib.model.steps.Scan`); a log
buffer was emptied; new entries of a dirty ring were harvested; a run of entries was taken out of the ring; a throttled
vCPU sleeps; the steps THROTTLE_CHECK, THROTTLE (if it pauses the vCPUs), DIRTY_LIMIT_UPDATE, DIRTY_LIMIT_SLEEP and
PACE.
"""


def lap_bin(lap: int) -> int:
    """Bin of a lap, from its number of bits and the five bits after the first; below 64 ps, one value per bin.

    >>> lap_bin(63), lap_bin(64), lap_bin(65), lap_bin(1_000_000), lap_bin(2**63 - 1)
    (63, 64, 64, 509, 1887)
    """
    shift = max(0, lap.bit_length() - LAP_BITS - 1)
    return (shift << LAP_BITS) + (lap >> shift)


def lap_bin_end(number: int) -> int:
    """Shortest lap that is too long for a bin, ps; at most 33/32 of the shortest lap in the bin.

    >>> [lap_bin(lap_bin_end(number)) - number for number in (0, 63, 64, 509, 1886)]
    [1, 1, 1, 1, 1]
    """
    shift = max(0, (number >> LAP_BITS) - 1)
    return (number - (shift << LAP_BITS) + 1) << shift


def lap_quantile(histogram: NDArray[Any], share: float) -> float:
    """Quantile of the laps, s; 0 if there are no laps.

    - `histogram`, shape (1888,): count of laps by `lap_bin`.

    >>> counts = np.zeros(LAP_BINS, int)
    >>> counts[[10, 509]] = 999, 2
    >>> f"{lap_quantile(counts, 0.9995):.3g}"
    '1.01e-06'
    """
    if not histogram.any():
        return 0.0
    return quantile(_LAP_ENDS[:-1], _LAP_ENDS[1:], histogram, share) * PS


_LAP_ENDS = np.array([0, *(lap_bin_end(number) for number in range(LAP_BINS))], dtype=float)
"""Edges of the lap bins, ps."""


class Counters(NamedTuple):
    """Arrays of `EngineResult` that a run accumulates; the trace and the ledger are None unless requested."""

    queue_ps: NDArray[np.int64]
    progress: NDArray[np.int64]
    stamp_ps: NDArray[np.int64]
    stamp_locks: NDArray[np.int64]
    stamp_sums: NDArray[np.int64]
    stamp_thread: NDArray[np.int64]
    stamp_waits: NDArray[np.int64]
    lap_histogram: NDArray[np.int64]
    throttled_ps: NDArray[np.int64]
    trace: NDArray[np.int64] | None = None
    ledger: NDArray[np.int64] | None = None


def empty_counters(job: Job) -> Counters:
    """Counters before the first event, without records."""
    threads, locks, stamps = len(job.entry), len(job.locks), len(job.stamps)
    of_stamps = (), (locks, 2, 2), (len(ACTIVITIES) + 6,), (len(ACTIVITIES) + 1,), ()
    shapes = (locks, BINS), (threads, BINS), *((stamps, *shape) for shape in of_stamps), (LAP_BINS,), (threads,)
    return Counters(*(np.zeros(shape, dtype=np.int64) for shape in shapes))


@dataclass(frozen=True)
class EngineResult:
    """Result of one run of a job: arrays and integers, so that runs compare with ``==``.

    - `end_ps`: simulated time at which the last thread ended.
    - `events`: number of steps with a shared effect.
    - `lock_stats`, shape (n_locks, 2, 6): lock, mode (read, write), `LOCK_COLUMNS`.
    - `wait_histogram`, `hold_histogram`, shape (n_locks, 2, 65): count of waits and holds by the bit length of their
      picoseconds.
    - `busy_ps`, shape (n_locks,): time during which any thread held the lock.
    - `queue_ps`, shape (n_locks, 512): integral of the queue length over each time bin.
    - `thread_ps`, shape (n_threads, 6): time by `ACTIVITIES`.
    - `thread_end_ps`, shape (n_threads,): time at which each thread ended.
    - `faults`, shape (n_threads, 5): page translation, page permission, block permission, block translation faults; and
      writes to clean pages without a fault, where hardware set the dirty bit.
    - `progress`, shape (n_threads, 512): pages done in each time bin.
    - `bin_ps`: width of a time bin.
    - `stamp_ps`, shape (n_stamps,): time of each stamp.
    - `stamp_locks`, shape (n_stamps, n_locks, 2, 2): acquisitions and contended acquisitions up to each stamp.
    - `stamp_sums`, shape (n_stamps, 12): up to each stamp, summed over all threads: time by `ACTIVITIES`, then
      `faults`; then pages done by vCPUs.
    - `stamp_thread`, shape (n_stamps, 7): for the thread that stamped: picoseconds by activity, pages in its bitmap.
    - `stamp_waits`, shape (n_stamps,): total time, ps, that the vCPUs waiting for a lock at each stamp have waited
      for it so far; time by activity includes a wait only after it has ended.
    - `lap_histogram`, shape (1888,): laps (`Step.LAP`) of all threads by `lap_bin`.
    - `lap_max_ps`, shape (n_threads,): longest lap of each thread; if laps are accesses to memory, its longest stall.
    - `throttled_ps`, shape (n_threads,): part of a vCPU's idle time for which it slept because of a throttle or of its
      dirty limit; a sleep that began while the vCPU was idle counts in full.
    - `throttle`: throttle of the vCPUs at the end, percent; 1 if the dirty limit has started.
    - `trace`, shape (n_events, 5): time, thread, `EVENTS` number, argument, and mode (of lock events); empty unless
      requested.
    - `ledger`, shape (n_entries, 5): time, thread, `LEDGER` number, page (of a scan: the first), and a count: for a
      write, 1 after a fault, 2 if hardware logged it, else 0; for a scan, the pages that matched. The last two are,
      for log buffers and dirty rings, their owner and the number of entries; for the steps that slow vCPUs down, the
      throttle (for DIRTY_LIMIT_UPDATE, DIRTY_LIMIT_SLEEP and PACE the thread, for a sleep the kick before it) and a
      duration (µs for the dirty limit's steps; for PACE, 0 if the thread is late; for THROTTLE_CHECK, whether it only
      begins a period). Empty unless requested.
    """

    end_ps: int
    events: int
    lock_stats: NDArray[np.int64]
    wait_histogram: NDArray[np.int64]
    hold_histogram: NDArray[np.int64]
    busy_ps: NDArray[np.int64]
    queue_ps: NDArray[np.int64]
    thread_ps: NDArray[np.int64]
    thread_end_ps: NDArray[np.int64]
    faults: NDArray[np.int64]
    progress: NDArray[np.int64]
    bin_ps: int
    stamp_ps: NDArray[np.int64]
    stamp_locks: NDArray[np.int64]
    stamp_sums: NDArray[np.int64]
    stamp_thread: NDArray[np.int64]
    stamp_waits: NDArray[np.int64]
    lap_histogram: NDArray[np.int64]
    lap_max_ps: NDArray[np.int64]
    throttled_ps: NDArray[np.int64]
    throttle: int
    trace: NDArray[np.int64]
    ledger: NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        """True if all numbers of the two runs are equal."""
        if not isinstance(other, EngineResult):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]  # results are values to compare, not keys

    def differences(self, other: EngineResult) -> list[str]:
        """Names of the fields in which two runs differ, for a test's message."""
        return [f.name for f in fields(self) if not np.array_equal(getattr(self, f.name), getattr(other, f.name))]

    def locks(self, job: Job) -> pd.DataFrame:
        """One row per lock and mode in use: counts, times in seconds, utilisation, mean queue length."""
        rows = []
        for lock, name in enumerate(job.lock_names):
            for mode in Mode:
                stats = dict(zip(LOCK_COLUMNS, self.lock_stats[lock, mode].tolist(), strict=True))
                if not stats["acquisitions"]:
                    continue
                counts = {name: count for name, count in stats.items() if not name.endswith("_ps")}
                times = {f"{name.removesuffix('ps')}s": time * PS for name, time in stats.items() if name not in counts}
                shares = {"utilisation": self.busy_ps[lock] / max(1, self.end_ps),
                          "mean_queue": self.queue_ps[lock].sum() / max(1, self.end_ps)}  # fmt: skip
                rows.append({"lock": name, "mode": mode.name.lower(), **counts, **times, **shares})
        return pd.DataFrame(rows)

    def threads(self, job: Job) -> pd.DataFrame:
        """One row per thread: seconds by activity, end time, faults by kind."""
        frame = pd.DataFrame(self.thread_ps * PS, columns=[f"{a}_s" for a in ACTIVITIES])
        frame.insert(0, "thread", list(job.thread_names))
        frame["end_s"] = self.thread_end_ps * PS
        kinds = ("translation_faults", "permission_faults", "block_permission_faults", "block_translation_faults",
                 "logged_writes")  # fmt: skip
        return frame.assign(**dict(zip(kinds, self.faults.T, strict=True)))

    def queue_over_time(self, job: Job) -> pd.DataFrame:
        """Mean queue length of each lock in each time bin: lock, time_s, queue."""
        return self._over_time("lock", job.lock_names, "queue", self.queue_ps / self.bin_ps)

    def progress_over_time(self, job: Job) -> pd.DataFrame:
        """Pages that each thread completed in each time bin: thread, time_s, pages."""
        return self._over_time("thread", job.thread_names, "pages", self.progress)

    def _over_time(self, column: str, names: Sequence[str], quantity: str, rows: NDArray[Any]) -> pd.DataFrame:
        used = min(BINS, self.end_ps // self.bin_ps + 1)
        times = (np.arange(used) + 0.5) * self.bin_ps * PS
        parts = [
            pd.DataFrame({column: name, "time_s": times, quantity: row[:used]})
            for name, row in zip(names, rows, strict=False)
        ]
        return pd.concat(parts, ignore_index=True)

    def histogram(self, job: Job, what: str = "wait") -> pd.DataFrame:
        """Histogram of wait or hold times, a factor of two per bin: lock, mode, up_to_s, count."""
        source = {"wait": self.wait_histogram, "hold": self.hold_histogram}[what]
        rows = [
            {"lock": job.lock_names[lock], "mode": Mode(mode).name.lower(), "up_to_s": 2.0 ** int(bits) * PS,
             "count": int(source[lock, mode, bits])}
            for lock, mode, bits in np.argwhere(source > 0)
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["lock", "mode", "up_to_s", "count"])
