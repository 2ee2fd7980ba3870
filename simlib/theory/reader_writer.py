# SPDX-License-Identifier: BSD-3-Clause
"""Bounds on a fair reader/writer lock in a closed loop: what parallel readers can gain, and what not.

`n` threads think, then take the lock: for write with probability `write_share`, else for read. Readers hold
it together, a writer alone. Every acquisition also occupies the lock word's cache line, one thread at a
time, which is why readers stop scaling however short their hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlib.errors import InputError
from simlib.theory.arguments import check_count, check_cycle, check_probability, check_time
from simlib.theory.machine_repairman import machine_repairman


def cache_line_limit(operations: int, transfer: float) -> float:
    """Greatest rate of acquisitions that one cache line allows, per second.

    Each acquisition and its release perform `operations` atomic operations on the lock word, each after a
    transfer of the line to the core. A line is owned by one core at a time, so that in a time T at most T /
    (operations × transfer) acquisitions pass. A bound for any distribution of times, any number of threads
    and any mode, as long as each operation needs a transfer (a core that keeps the line between two
    operations saves one: count only those that move it).

    Returns: Acquisitions per second. Raises `InputError` if an argument breaks the rules above.

    Parameters
    ----------
    operations : int
        Operations per acquisition and release that move the line, at least 1 (a reader of an rwlock: 2).
    transfer : float
        Time for one transfer, seconds; above 0.

    References
    ----------
    Utilisation law, P. J. Denning, J. P. Buzen, ACM Computing Surveys 10(3), 1978; form as derived here.

    Examples
    --------
    >>> print(f"{cache_line_limit(2, 50e-9):.3g}")
    1e+07
    """
    operations, transfer = check_count("operations", operations), check_time("transfer", transfer)
    if transfer == 0.0:
        raise InputError("transfer", transfer, "must be above 0", "a free transfer sets no limit")
    return 1 / (operations * transfer)


@dataclass(frozen=True)
class ReaderWriterBounds:
    """What the throughput of a reader/writer lock lies between, acquisitions per second.

    Attributes
    ----------
    low : float
        Lower bound: N / (Z + N S), for any distribution.
    high : float
        Upper bound: the smallest of the population, writer, line and batch limits.
    serialised : float
        An **approximation**, not a bound: the throughput of an exponential FIFO lock that admits one thread
        at a time for the same mean time (`machine_repairman`). It lies between `low` and the population
        limit.
    population_limit : float
        N / (Z + S): no cycle is shorter than its own work.
    writer_limit : float
        1 / (p S_w): writers hold alone; infinite without writers.
    line_limit : float
        1 / line: the lock word is at one core at a time; infinite if it costs nothing.
    batch_limit : float
        1 / (p S_w + p (1-p) S_r), only under `independent_fifo`, else infinite.
    exclusive_limit : float
        1 / (p S_w + line): a bound only where no operation on the line overlaps a write hold, and an
        approximation elsewhere; not part of `high`. Infinite if both times are 0.

    Examples
    --------
    >>> reader_writer_bounds(8, 1.0, read_hold=1.0, write_hold=1.0, write_share=0.0).limited_by
    'population'
    """

    low: float
    high: float
    serialised: float
    population_limit: float
    writer_limit: float
    line_limit: float
    batch_limit: float
    exclusive_limit: float

    @property
    def limited_by(self) -> str:
        """Which limit the upper bound comes from: `population`, `writer`, `line` or `batch`."""
        names = ("population", "writer", "line", "batch")
        return next(name for name in names if getattr(self, f"{name}_limit") == self.high)


def reader_writer_bounds(
    n: int,
    think: float,
    *,
    read_hold: float,
    write_hold: float,
    write_share: float,
    line: float = 0.0,
    independent_fifo: bool = False,
) -> ReaderWriterBounds:
    """Bounds on the throughput of `n` threads at one fair reader/writer lock.

    With p = `write_share`, S = p S_w + (1-p) S_r + line the mean work per acquisition, and X the throughput:

    - X ≤ N / (Z + S). Little's law over a cycle, which takes at least its own work.
    - X ≤ 1 / (p S_w). Writers exclude all: X p S_w is the fraction of time that one holds.
    - X ≤ 1 / line. The utilisation law for the cache line.
    - X ≤ 1 / (p S_w + p (1-p) S_r), only with `independent_fifo`. If each acquisition is a write
      independently with probability p and the lock keeps the order of arrival, then a share p (1-p) of
      acquisitions are readers just behind a writer. Each opens a batch that holds the lock for at least
      that reader's hold, and a batch overlaps with no writer and no other batch.
    - X ≥ N / (Z + N S). When not all threads think, someone holds the lock or moves the line, so that
      P(all think) ≥ 1 - X S; the mean number thinking is X Z ≥ N P(all think).

    All hold for any distribution of think, hold and transfer times with these means; the lower one needs a
    lock that never idles while a thread waits for it. The line time is not added to the writers' time in
    the upper bound, as waiters may move the line while a writer holds the lock; `exclusive_limit` is what
    the sum would give.

    Raises `InputError` if an argument breaks the rules, or a whole cycle takes no time.

    Parameters
    ----------
    n : int
        Number of threads, at least 1.
    think : float
        Z, seconds.
    read_hold, write_hold : float
        S_r and S_w, mean time that the lock is held in each mode, seconds.
    write_share : float
        p, share of the acquisitions that are for write, in [0, 1].
    line : float
        Time that one acquisition and its release occupy the lock word's cache line, seconds
        (operations × transfer).
    independent_fifo : bool
        Whether the batch limit applies: any thread may write, at random, and no reader overtakes a waiting
        writer. Leave it off where fixed threads write (a clear thread beside vCPUs).

    References
    ----------
    Operational laws: P. J. Denning, J. P. Buzen, ACM Computing Surveys 10(3), 1978. Bounds for the
    reader/writer lock: form as derived here; `tests/theory` checks them against a simulation.

    Examples
    --------
    >>> bounds = reader_writer_bounds(8, 1.0, read_hold=1.0, write_hold=1.0, write_share=0.25)
    >>> print(f"{bounds.low:.3f} {bounds.high:.3f} {bounds.limited_by}")
    0.889 4.000 population
    >>> reader_writer_bounds(8, 1.0, read_hold=1.0, write_hold=1.0, write_share=1.0).high
    1.0
    """
    n, think = check_count("n", n), check_time("think", think)
    read_hold, write_hold = check_time("read_hold", read_hold), check_time("write_hold", write_hold)
    line, write_share = check_time("line", line), check_probability("write_share", write_share)
    writing = write_share * write_hold
    work = writing + (1 - write_share) * read_hold + line
    check_cycle("think, mean hold and line", think, work)
    population = n / (think + work)
    writer = _rate(writing)
    batch = _rate(writing + write_share * (1 - write_share) * read_hold) if independent_fifo else float("inf")
    return ReaderWriterBounds(
        low=n / (think + n * work),
        high=min(population, writer, _rate(line), batch),
        serialised=machine_repairman(n, think, work).throughput,
        population_limit=population,
        writer_limit=writer,
        line_limit=_rate(line),
        batch_limit=batch,
        exclusive_limit=_rate(writing + line),
    )


def _rate(busy: float) -> float:
    """Acquisitions per second if each takes `busy` seconds of a thing that serves one at a time."""
    return 1 / busy if busy > 0 else float("inf")
