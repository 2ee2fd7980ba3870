# SPDX-License-Identifier: BSD-3-Clause
"""Driver of a sweep: distributes batches and collects rows; it handles points only by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simlib._lib.errors import printable
from simlib._lib.parallel import MAX_WORKERS, Executor, Progress, completed
from simlib.analysis.sweep.batch import Batch, run_batch
from simlib.analysis.sweep.grid import Grid, load_grid
from simlib.analysis.sweep.point import Points
from simlib.analysis.sweep.pool import Pool
from simlib.analysis.sweep.store import REFUSED, Store, open_store
from simlib.model import rules

if TYPE_CHECKING:
    from distributed import Client

BATCH_S, MIN_BATCH_S = 1.0, 0.1
"""Intended duration of a batch, s, and of the last batches, which are short so that no worker finishes late."""

MAX_BATCH = 4096
"""Largest number of points of a batch."""

BLOCK = 2**16
"""Number of positions that are searched at once for unfinished points."""


@dataclass(frozen=True)
class Sweep:
    """Finished sweep.

    - `folder`: folder with the Parquet data sets ``results/`` and ``refused/``.
    - `points`, `refused`, `kept`: numbers of all points, of refused points, and of points that were finished before.
    """

    folder: Path
    points: int
    refused: int
    kept: int

    def load(self) -> Any:
        """Load the results with labelled dimensions: `simlib.analysis.sweep.load`."""
        from simlib.analysis.sweep.dataset import load  # noqa: PLC0415  # needs xarray, which a sweep does not

        return load(self.folder)


def run(
    grid: Grid | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int | str | Client = 0,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
) -> Sweep:
    """Simulate all points of a grid.

    The results are bitwise identical for any number of workers and after any interruption.

    Raises `InputError` if the grid or the number of workers is invalid, or the folder holds something else. Raises
    `SimlibError` if another process uses the folder, the disk is full, or workers are lost repeatedly.

    - `grid`: a grid, or its file.
    - `out`: folder for the results; it must not hold another sweep.
    - `resume`: continue the sweep in the folder, if there is one.
    - `workers`: number of worker processes on this machine, at most `simlib._lib.parallel.MAX_WORKERS` (0: the number
      of CPUs); or the address of a Dask scheduler, or a client of one.
    - `progress`: called with (stage, share done).
    - `announce`: called with sentences about the content of the folder.

    >>> import tempfile
    >>> from simlib.analysis.sweep.grid import read_grid
    >>> grid = read_grid({"axes": {"guest": {"vcpus": [1, 2, 3]}}, "scenario": {"guest": {"memory": "4M"}},
    ...                   "unknown_costs": "median", "replications": {"most": 3}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run(grid, folder, workers=1)
    >>> result.points, result.refused
    (3, 1)
    """
    on_cluster = isinstance(workers, str) or hasattr(workers, "scheduler")
    processes = 0 if on_cluster else rules.whole(0, MAX_WORKERS)(workers, "workers")
    grid = grid if isinstance(grid, Grid) else load_grid(grid)
    report = announce or (lambda _: None)
    with open_store(Path(out), grid, resume) as store, ExitStack() as stack:
        kept = int(store.done.sum())
        for path in store.damaged:
            report(f"{printable(str(path))} is damaged or does not belong to this sweep: its points are computed again")
        if kept:
            report(f"finished points: {kept:,} of {grid.points:,}")
        if kept < grid.points:
            if on_cluster:
                from simlib.analysis.sweep.cluster import Cluster  # noqa: PLC0415  # needs Dask, which a Pool does not
            executor: Any = stack.enter_context(Cluster(workers) if on_cluster else Pool(processes))
            _run_remaining(executor, store, progress)
        return Sweep(store.folder, grid.points, store.rows[REFUSED], kept)


class _Remaining:
    """Unfinished positions, assigned in batches whose size follows from the measured time per point."""

    def __init__(self, store: Store, workers: int) -> None:
        self.points = self._waiting = store.grid.points - int(store.done.sum())
        self._stretches = _stretches(store)
        self._returned: list[tuple[int, int]] = []
        self._grid, self._workers, self._seconds = store.grid, workers, 0.0

    def next_batch(self) -> tuple[Any, ...] | None:
        """Return the next batch as a task; None if all have been assigned."""
        if not self._waiting:
            return None
        share = self._waiting / (2 * self._workers)
        begin, end = self._returned.pop() if self._returned else next(self._stretches)
        size = 1
        if self._seconds:
            largest, smallest = (min(MAX_BATCH, max(1, round(work / self._seconds))) for work in (BATCH_S, MIN_BATCH_S))
            size = max(smallest, min(largest, round(share)))
        if end - begin > size:
            self._returned.append((begin + size, end))
            end = begin + size
        self._waiting -= end - begin
        return run_batch, self._grid, begin, end, 2 * BATCH_S

    def record(self, batch: Batch, end: int) -> None:
        """Record a batch that has ended; its unfinished positions will be assigned again."""
        done = batch.end - batch.begin
        self.points -= done
        seconds = batch.seconds / done
        self._seconds = seconds if not self._seconds else 0.7 * self._seconds + 0.3 * seconds
        if batch.end < end:
            self._returned.append((batch.end, end))
            self._waiting += end - batch.end


def _stretches(store: Store) -> Iterator[tuple[int, int]]:
    """Begin and end of ranges of unfinished positions, in order.

    Blocks are searched one at a time when they are reached; rows that the sweep writes meanwhile lie before them.
    """
    points = Points(store.grid)
    for begin in range(0, store.grid.points, BLOCK):
        unfinished = ~store.done[points.numbers(begin, min(begin + BLOCK, store.grid.points))]
        edges = np.flatnonzero(np.diff(unfinished, prepend=False, append=False)).tolist()
        yield from ((begin + first, begin + last) for first, last in zip(edges[::2], edges[1::2], strict=True))


def _run_remaining(executor: Executor, store: Store, progress: Progress | None) -> None:
    remaining = _Remaining(store, executor.workers)
    points = remaining.points

    def report() -> None:
        if progress is not None:
            progress("sweeping", 1 - remaining.points / points)

    try:
        for (_, _, _, end, _), batch in completed(executor, remaining.next_batch, report):
            store.add(batch.results, batch.refused)
            remaining.record(batch, end)
    finally:
        store.write()
