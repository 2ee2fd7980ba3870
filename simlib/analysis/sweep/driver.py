# SPDX-License-Identifier: BSD-3-Clause
"""The course of a sweep: hands out batches, takes in rows, and knows nothing of a point but its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simlib._lib.errors import printable
from simlib._lib.parallel import MOST_WORKERS, Executor, Progress, completed
from simlib.analysis.sweep.batch import Batch, run_batch
from simlib.analysis.sweep.grid import Grid, load_grid
from simlib.analysis.sweep.point import Points
from simlib.analysis.sweep.pool import Pool
from simlib.analysis.sweep.store import REFUSED, Store, opened
from simlib.model import rules

if TYPE_CHECKING:
    from distributed import Client

BATCH_S = 1.0
"""Work that a batch is meant to be, s."""

LEAST_BATCH_S = 0.1
"""The same for the last ones, which are small so that all workers are done at the same time."""

MOST_BATCH = 4096
"""Most points of a batch."""

BLOCK = 2**16
"""Positions that are looked at together for what is left."""


@dataclass(frozen=True)
class Sweep:
    """A sweep that is finished.

    - `folder`: ``results/`` and ``refused/`` in it are Parquet data sets.
    - `points`, `refused`, `kept`: points in all; those that a rule refused; those that were finished before.
    """

    folder: Path
    points: int
    refused: int
    kept: int

    def load(self) -> Any:
        """The results with labelled dimensions: `simlib.analysis.sweep.load`."""
        from simlib.analysis.sweep.dataset import load  # noqa: PLC0415  # xarray, which a sweep itself does without

        return load(self.folder)


def run(
    grid: Grid | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    cluster: str | Client | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
) -> Sweep:
    """Simulate all points of a grid.

    The results are the same to the bit whatever the number of workers and whatever ended meanwhile.

    Raises `InputError` if the grid or the number of workers is wrong, or the folder holds something else. Raises
    `SimlibError` if another process is at work in the folder, the disk is full, or workers are lost again and again.

    - `grid`: a grid, or its file.
    - `out`: folder for the results; it must not hold another sweep.
    - `resume`: go on with the sweep that the folder holds, if any.
    - `cluster`: a Dask scheduler's address, or a client; by default worker processes on this machine.
    - `workers`: those processes, at most `simlib._lib.parallel.MOST_WORKERS`; 0: as many as there are CPUs.
    - `progress`: called with (what, share done).
    - `announce`: told in words what was found in the folder.

    >>> import tempfile
    >>> from simlib.analysis.sweep.grid import read_grid
    >>> grid = read_grid({"axes": {"guest": {"vcpus": [1, 2, 3]}}, "scenario": {"guest": {"memory": "4M"}},
    ...                   "costs": "median", "replications": {"most": 3}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run(grid, folder, workers=1)
    >>> found.points, found.refused
    (3, 1)
    """
    rules.whole(0, MOST_WORKERS)(workers, "workers")
    grid = grid if isinstance(grid, Grid) else load_grid(grid)
    tell = announce or (lambda _: None)
    with opened(Path(out), grid, resume) as store, ExitStack() as stack:
        kept = int(store.done.sum())
        for path in store.damaged:
            tell(f"{printable(str(path))} is damaged or no part of this sweep: set aside, its points are computed anew")
        if kept:
            tell(f"{kept:,} of {grid.points:,} points are finished")
        if kept < grid.points:
            _drive(stack.enter_context(_executor(cluster, workers)), store, progress)
        return Sweep(store.folder, grid.points, store.rows[REFUSED], kept)


def _executor(cluster: str | Client | None, workers: int) -> Any:
    if cluster is None:
        return Pool(workers)
    from simlib.analysis.sweep.cluster import Cluster  # noqa: PLC0415  # Dask, which local processes do without

    return Cluster(cluster)


class _Todo:
    """Positions that are left, in stretches of batches whose size follows from what points took so far."""

    def __init__(self, store: Store, workers: int) -> None:
        self.left = self._waiting = store.grid.points - int(store.done.sum())
        self._stretches = _stretches(store)
        self._first: list[tuple[int, int]] = []
        self._grid, self._workers, self._each = store.grid, workers, 0.0

    def draw(self) -> tuple[Any, ...] | None:
        """The next batch as a task; None if all have been given out."""
        if not self._waiting:
            return None
        share = self._waiting / (2 * self._workers)
        begin, end = self._first.pop() if self._first else next(self._stretches)
        size = 1
        if self._each:
            most, least = (min(MOST_BATCH, max(1, round(work / self._each))) for work in (BATCH_S, LEAST_BATCH_S))
            size = max(least, min(most, round(share)))
        if end - begin > size:
            self._first.append((begin + size, end))
            end = begin + size
        self._waiting -= end - begin
        return run_batch, self._grid, begin, end, 2 * BATCH_S

    def took(self, batch: Batch, end: int) -> None:
        """A batch has ended; what it had no time for is given out again."""
        done = batch.end - batch.begin
        self.left -= done
        each = batch.seconds / done
        self._each = each if not self._each else 0.7 * self._each + 0.3 * each
        if batch.end < end:
            self._first.append((batch.end, end))
            self._waiting += end - batch.end


def _stretches(store: Store) -> Iterator[tuple[int, int]]:
    """Begin and end of the positions that are left, in their order.

    A block is looked at when it is come to, and not all at once: what a sweep writes meanwhile lies before it.
    """
    points = Points(store.grid)
    for begin in range(0, store.grid.points, BLOCK):
        left = ~store.done[points.numbers(begin, min(begin + BLOCK, store.grid.points))]
        edges = np.flatnonzero(np.diff(left, prepend=False, append=False)).tolist()
        yield from ((begin + one, begin + other) for one, other in zip(edges[::2], edges[1::2], strict=True))


def _drive(executor: Executor, store: Store, progress: Progress | None) -> None:
    """Do all that is left."""
    todo = _Todo(store, executor.workers)
    points = todo.left

    def look() -> None:
        if progress is not None:
            progress("sweeping", 1 - todo.left / points)

    try:
        for (_, _, _, end, _), batch in completed(executor, todo.draw, look):
            store.add(batch.results, batch.refused)
            todo.took(batch, end)
    finally:
        store.write()
