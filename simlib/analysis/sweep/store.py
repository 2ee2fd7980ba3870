# SPDX-License-Identifier: BSD-3-Clause
"""Folder of a sweep: Parquet files that are complete or absent, however the writing process ends.

The name of a part contains the digest of its bytes, so that damage is detected. Parts are never changed: they are
written under a temporary name, synchronised to the disk, and renamed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simlib._lib.errors import InputError, SimlibError, printable
from simlib._lib.files import DISK_FULL_ERRNOS, PART, check_writable, replace
from simlib._lib.reading import MIB, read_json
from simlib._lib.version import __version__
from simlib.analysis.sweep.batch import refused_schema, result_schema
from simlib.analysis.sweep.grid import MAX_POINTS, Grid

RESULTS, REFUSED = "results", "refused"
"""Folders of the data sets of results and of refused points."""

DESCRIPTION = "sweep.json"

FLUSH_INTERVAL_S, FLUSH_SHARE = 2.0, 0.02
"""Minimum interval between writes: this time, s, and this share of the elapsed time; a kill loses unwritten rows."""


class Store:
    """Folder of a sweep, locked by one process at a time: use `open_store`.

    - `done`, shape (points,): True for each point that has a row in a part.
    - `damaged`: damaged or foreign parts, which were renamed with a leading dot when the folder was opened.
    - `rows`: number of rows of each data set.
    """

    def __init__(self, folder: Path, grid: Grid) -> None:
        self.folder, self.grid = folder, grid
        self.done = np.zeros(grid.points, dtype=bool)
        self.damaged: list[Path] = []
        self.rows = {RESULTS: 0, REFUSED: 0}
        self._buffer: dict[str, list[pa.Table]] = {RESULTS: [], REFUSED: []}
        self._begun = self._written = time.monotonic()

    def add(self, results: pa.Table, refused: pa.Table) -> None:
        """Buffer rows, and write the buffer if it is large or old enough."""
        for name, table in ((RESULTS, results), (REFUSED, refused)):
            if table.num_rows:
                self._buffer[name].append(table)
        now = time.monotonic()
        rows = sum(table.num_rows for tables in self._buffer.values() for table in tables)
        if rows >= 50_000 or now - self._written > max(FLUSH_INTERVAL_S, FLUSH_SHARE * (now - self._begun)):
            self.write()

    def write(self) -> None:
        """Write all buffered rows.

        Raises `SimlibError` if the disk is full, or the folder cannot be written.
        """
        for name, tables in self._buffer.items():
            if not tables:
                continue
            table = pa.concat_tables(tables)
            with translate_errors(self.folder):
                for architecture in pc.unique(table["architecture"]).to_pylist():
                    self._write_part(name, architecture, table.filter(pc.equal(table["architecture"], architecture)))
            tables.clear()
        self._written = time.monotonic()

    def _write_part(self, name: str, architecture: str, table: pa.Table) -> None:
        rows = table.drop_columns(["architecture"]).sort_by("point")
        stream = io.BytesIO()
        pq.write_table(rows, stream, compression="zstd")
        folder = self.folder / name / f"architecture={architecture}"
        first, content = rows["point"][0].as_py(), stream.getbuffer()
        replace(folder / f"part-{first:09d}-{_digest(content)}.parquet", content, durable=True)
        self._count(name, rows)

    def scan(self) -> None:
        """Find finished points, rename parts that are not intact, and remove temporary files."""
        for name in (RESULTS, REFUSED):
            for path in (self.folder / name).glob(f"architecture=*/.part-*{PART}"):
                path.unlink()
            for path, part in parts(self.folder, name, self.grid.points, ["point"]):
                if part is None or self.done[part["point"].to_numpy()].any():
                    path.rename(path.with_name(f".{path.name}.damaged"))
                    self.damaged.append(path)
                else:
                    self._count(name, part)

    def _count(self, name: str, part: pa.Table) -> None:
        self.done[part["point"].to_numpy()] = True
        self.rows[name] += part.num_rows


def parts(
    folder: Path, name: str, points: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pa.Table | None]]:
    """Yield the parts of a data set, sorted by name, with some or all of their columns.

    The table is None if the bytes of the part have changed, or it has points that are not in the sweep.
    """
    for path in sorted((folder / name).glob("architecture=*/part-*.parquet")):
        content = path.read_bytes() if path.is_file() else b""
        part = None
        if path.stem.rpartition("-")[2] == _digest(content):
            part = pq.read_table(pa.BufferReader(content), columns=columns)
            part = part if part["point"][-1].as_py() < points else None
        yield path, part


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def open_store(folder: Path, grid: Grid, resume: bool) -> Iterator[Store]:
    """Create or open a sweep's folder, and lock it.

    Raises `InputError` if it holds a sweep and `resume` is false, the sweep of another grid, or something else. Raises
    `SimlibError` if another process holds the lock, or the folder cannot be written.
    """
    with ExitStack() as stack:
        with translate_errors(folder):
            check_writable(folder, folder=True)
            folder.mkdir(parents=True, exist_ok=True)
            _check(folder, grid, resume)
            stack.enter_context(_locked(folder))
            _check(folder, grid, resume)  # again, as another process may have used the folder meanwhile
            text = json.dumps(description(grid), indent=1) + "\n"
            replace(folder / DESCRIPTION, text.encode(), durable=True)
            store = Store(folder, grid)
            store.scan()
        yield store


def _check(folder: Path, grid: Grid, resume: bool) -> None:
    """Check that a folder is empty or holds this sweep."""
    hints = "give another folder", "give another --out"
    if not os.path.lexists(folder / DESCRIPTION):
        foreign = [path.name for path in folder.iterdir() if path.name not in ("lock", f".{DESCRIPTION}{PART}")]
        if not foreign:
            return
        held = f"{printable(min(foreign))}, which does not belong to a sweep"
    elif (meta := read_description(folder))["grid"] != grid.digest:
        origin = "another grid, or with other fits or priors"
        held = f"a sweep of {origin if meta['simlib'] == __version__ else 'simlib ' + meta['simlib']}"
    elif not resume:
        held = "this sweep already"
        hints = "give resume=True, or another folder", "give --resume to continue it, or another --out"
    else:
        return
    raise InputError("out", str(folder), f"holds {held}", *hints, "--out")


def description(grid: Grid) -> dict[str, Any]:
    """Return the description of a sweep, which is stored next to its data sets."""
    axes = [
        {"column": axis.column, "field": f"{axis.section}.{axis.key}", "unit": axis.unit, "values": list(axis.values)}
        for axis in grid.axes
    ]
    schemas = ((RESULTS, result_schema(grid)), (REFUSED, refused_schema(grid)))
    columns = {  # without the architecture, which is the name of a part's folder
        name: {column.name: str(column.type) for column in schema if column.name != "architecture"}
        for name, schema in schemas
    }
    return {
        "simlib": __version__, "grid": grid.digest, "points": grid.points, "design": grid.design.kind, "axes": axes,
        "variants": list(grid.scenario.variants), "architectures": [case.policy.architecture for _, case in grid.cases],
        "policies": list(grid.policies), "metrics": list(grid.kept_metrics), "level": grid.replications.level,
        "seed": grid.seed, "columns": columns,
    }  # fmt: skip


_KEYS = {
    "simlib": str, "grid": str, "points": int, "design": str, "axes": list, "variants": list, "architectures": list,
    "policies": list, "metrics": list, "level": float, "seed": int, "columns": dict,
}  # fmt: skip


def read_description(folder: Path) -> dict[str, Any]:
    """Read the description of a sweep.

    Raises `InputError` if the folder has no valid one.
    """
    largest = 64 * MIB  # with an axis of a million values
    content = read_json(folder / DESCRIPTION, "the description of a sweep (JSON)", largest)
    meta: dict[str, Any] = content if isinstance(content, dict) else {}
    complete = all(isinstance(meta.get(key), kind) for key, kind in _KEYS.items()) and all(
        isinstance(axis, dict) and axis.keys() >= {"column", "field", "unit", "values"} for axis in meta["axes"]
    )
    if not complete or not 0 < meta["points"] <= MAX_POINTS or meta["points"] % max(1, len(meta["architectures"])):
        raise InputError("sweep", str(folder), f"has no valid {DESCRIPTION}", "give the folder of a sweep")
    return meta


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; the system releases the lock, however this process ends."""
    import fcntl  # noqa: PLC0415  # Windows has no fcntl: importing this module must not fail there

    safe_flags = os.O_NOFOLLOW | os.O_NONBLOCK  # neither follow a link nor wait for a pipe
    with open(folder / "lock", "ab", opener=lambda path, flags: os.open(path, flags | safe_flags, 0o666)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SimlibError(
                f"another process uses {folder}", "wait until it ends, or give another folder",
                "wait until it ends, or give another --out",
            ) from None  # fmt: skip
        yield


@contextmanager
def translate_errors(folder: Path) -> Iterator[None]:
    """Convert an error of the file system into a `SimlibError`."""
    try:
        yield
    except OSError as error:
        hint = "free some space" if error.errno in DISK_FULL_ERRNOS else "check its type and permissions"
        raise SimlibError(
            f"{error.filename or folder}: cannot be read or written ({error.strerror or error}); "
            "finished results are kept",
            f"{hint}, and run again with resume=True", f"{hint}, and run again with --resume",
        ) from None  # fmt: skip
