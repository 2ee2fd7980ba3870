# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a sweep: Parquet files that are whole or not there, whatever ends whoever writes them.

A part's name holds the digest of its bytes, so that damage is seen. Nothing is ever changed: a part is written beside
its place, brought to the disk, and renamed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simlib.errors import InputError, SimlibError
from simlib.files import PART, replace
from simlib.sweep.grid import Grid
from simlib.version import __version__

RESULTS, REFUSED, DAMAGED = "results", "refused", "damaged"
"""Folders: data sets of results and of refused points; parts that were found damaged, and are computed anew."""

DESCRIPTION = "sweep.json"

BETWEEN_S, SHARE = 2.0, 0.02
"""Rows are written once so many seconds have passed, or that share of the sweep so far: what a kill costs at most."""

ROWS = 50_000
"""Rows that are kept before they are written at once."""


class Store:
    """A sweep's folder, held by one process at a time: use `opened`.

    Parameters
    ----------
    folder : Path
    grid : Grid

    Attributes
    ----------
    done : ndarray of bool, shape (points,)
        Whether each point has a row in a part.
    damaged : list of Path
        Parts that were set aside when the folder was opened.
    """

    def __init__(self, folder: Path, grid: Grid) -> None:
        self.folder, self.grid = folder, grid
        self.done = np.zeros(grid.points, dtype=bool)
        self.damaged: list[Path] = []
        self._waiting: dict[str, list[pa.Table]] = {RESULTS: [], REFUSED: []}
        self._begun = self._written = time.monotonic()

    def add(self, results: pa.Table, refused: pa.Table) -> None:
        """Keep rows, and write those that have been kept for long enough."""
        for name, table in ((RESULTS, results), (REFUSED, refused)):
            if table.num_rows:
                self._waiting[name].append(table)
        now = time.monotonic()
        rows = sum(table.num_rows for tables in self._waiting.values() for table in tables)
        if rows >= ROWS or now - self._written > max(BETWEEN_S, SHARE * (now - self._begun)):
            self.write()

    def write(self) -> None:
        """Write all rows that are kept.

        Raises
        ------
        SimlibError
            If the disk is full, or the folder cannot be written.
        """
        for name, tables in self._waiting.items():
            if not tables:
                continue
            table = pa.concat_tables(tables)
            for architecture in pc.unique(table["architecture"]).to_pylist():
                self._write_part(name, architecture, table.filter(pc.equal(table["architecture"], architecture)))
            tables.clear()
        self._written = time.monotonic()

    def _write_part(self, name: str, architecture: str, table: pa.Table) -> None:
        rows = table.drop_columns(["architecture"]).sort_by("point")
        stream = io.BytesIO()
        pq.write_table(rows, stream, compression="zstd")
        folder = self.folder / name / f"architecture={architecture}"
        first = rows["point"][0].as_py()
        replace(folder / f"part-{first:09d}-{_digest(stream.getbuffer())}.parquet", stream.getbuffer(), durable=True)
        self.done[rows["point"].to_numpy()] = True

    def look(self) -> None:
        """Find what is done; set aside what is damaged, and remove what was half written."""
        for name in (RESULTS, REFUSED):
            for path in sorted((self.folder / name).glob("architecture=*/*")):
                if path.suffix == PART:
                    path.unlink()
                    continue
                points = _points_of(path)
                if points is None or self.done[points].any():
                    self._set_aside(path)
                else:
                    self.done[points] = True

    def rows(self, name: str) -> int:
        """Rows of one of the data sets, as its files' ends say."""
        return sum(pq.read_metadata(path).num_rows for path in (self.folder / name).glob("architecture=*/*.parquet"))

    def _set_aside(self, path: Path) -> None:
        self.damaged.append(path)
        aside = self.folder / DAMAGED
        aside.mkdir(exist_ok=True)
        os.replace(path, aside / path.name)


def _points_of(path: Path) -> NDArray[np.int64] | None:
    """The points of a part; None if it is damaged."""
    content = path.read_bytes()
    if not path.stem.endswith(_digest(content)):
        return None
    return np.asarray(pq.read_table(io.BytesIO(content), columns=["point"])["point"].to_numpy())


def intact(path: Path) -> bool:
    """Whether a part is what was written."""
    return path.stem.endswith(_digest(path.read_bytes()))


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def opened(folder: Path, grid: Grid, resume: bool) -> Iterator[Store]:
    """Hold a sweep's folder, made if there is none.

    Raises
    ------
    InputError
        If it holds a sweep and is not to be resumed, another grid's sweep, or something else.
    SimlibError
        If another process holds it, or it cannot be written.
    """
    with _faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            store = Store(folder, grid)
            _check(folder, grid, resume)
            store.look()
            yield store


def _check(folder: Path, grid: Grid, resume: bool) -> None:
    """Begin a sweep in a folder, or see that it is this one's."""
    path = folder / DESCRIPTION
    if not path.exists():
        strange = [one.name for one in folder.iterdir() if one.name not in ("lock", f".{DESCRIPTION}{PART}")]
        if strange:
            raise InputError("out", str(folder), f"holds {sorted(strange)[0]}, which is no sweep's",
                             "give another folder", "give another --out", "--out")  # fmt: skip
        replace(path, (json.dumps(description(grid), indent=1) + "\n").encode(), durable=True)
        return
    found = read_description(folder)
    if found["grid"] != grid.digest:
        what = (
            f"simlib {found['simlib']}"
            if found["simlib"] != __version__
            else "another grid, or of other fits or priors"
        )
        raise InputError("out", str(folder), f"holds a sweep of {what}", "give another folder", "give another --out",
                         "--out")  # fmt: skip
    if not resume:
        raise InputError("out", str(folder), "holds this sweep already", "give resume=True, or another folder",
                         "give --resume to go on with it, or another --out", "--out")  # fmt: skip


def description(grid: Grid) -> dict[str, Any]:
    """What is written of a sweep beside its data sets."""
    axes = [
        {"column": axis.column, "field": f"{axis.section}.{axis.key}", "unit": axis.unit, "values": list(axis.values)}
        for axis in grid.axes
    ]
    return {
        "simlib": __version__, "grid": grid.digest, "points": grid.points, "design": grid.design.kind, "axes": axes,
        "variants": list(grid.scenario.variants), "architectures": [case.policy.architecture for _, case in grid.cases],
        "policies": list(grid.policies), "metrics": list(grid.kept), "level": grid.replications.level,
        "seed": grid.seed,
    }  # fmt: skip


_KEYS = (
    "simlib",
    "grid",
    "points",
    "design",
    "axes",
    "variants",
    "architectures",
    "policies",
    "metrics",
    "level",
    "seed",
)


def read_description(folder: Path) -> dict[str, Any]:
    """What was written of a sweep.

    Raises
    ------
    InputError
        If the folder holds none.
    """
    path = folder / DESCRIPTION
    try:
        found = json.loads(path.read_bytes())
        return {key: found[key] for key in _KEYS}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            "sweep", str(folder), f"has no {DESCRIPTION} of a sweep", "give the folder of a sweep"
        ) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder; the system gives it back, however this process ends."""
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest of simlib runs

    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SimlibError(
                f"another process is at work in {folder}", "wait for it, or give another folder",
                "wait for it, or give another --out",
            ) from None  # fmt: skip
        yield


@contextmanager
def _faults(folder: Path) -> Iterator[None]:
    """What the system says of a folder, as one sentence."""
    try:
        yield
    except OSError as error:
        raise SimlibError(
            f"{folder}: cannot be written ({error.strerror or error}); what is finished is kept",
            "free some space, or give a folder that you may write to, and run again with resume=True",
            "free some space, or give a folder that you may write to, and run again with --resume",
        ) from None
