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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simlib._lib.errors import InputError, SimlibError, printable
from simlib._lib.files import FULL, PART, check_writable, replace
from simlib._lib.reading import MIB, read_json
from simlib._lib.version import __version__
from simlib.analysis.sweep.batch import refused_schema, result_schema
from simlib.analysis.sweep.grid import MOST_POINTS, Grid

RESULTS, REFUSED = "results", "refused"
"""Folders: data sets of results and of refused points."""

DESCRIPTION = "sweep.json"

_DESCRIPTION_BYTES = 64 * MIB
"""Longest description: an axis of a million values."""

BETWEEN_S, SHARE = 2.0, 0.02
"""Rows are written once so many seconds have passed, or that share of the sweep so far: what a kill costs at most."""

ROWS = 50_000
"""Rows that are kept before they are written at once."""


class Store:
    """A sweep's folder, held by one process at a time: use `opened`.

    - `done`, shape (points,): whether each point has a row in a part.
    - `damaged`: what was no intact part when the folder was opened; its name begins with a dot now.
    - `rows`: rows of each of the data sets.
    """

    def __init__(self, folder: Path, grid: Grid) -> None:
        self.folder, self.grid = folder, grid
        self.done = np.zeros(grid.points, dtype=bool)
        self.damaged: list[Path] = []
        self.rows = {RESULTS: 0, REFUSED: 0}
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

        Raises `SimlibError` if the disk is full, or the folder cannot be written.
        """
        for name, tables in self._waiting.items():
            if not tables:
                continue
            table = pa.concat_tables(tables)
            with faults(self.folder):
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

    def look(self) -> None:
        """Find what is done; hide what is no intact part, and remove what is half written."""
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
    """The parts of a data set, sorted by name, with some or all of their columns.

    None stands for one whose bytes are not those that were written, or that has points that the sweep has not.
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
def opened(folder: Path, grid: Grid, resume: bool) -> Iterator[Store]:
    """Hold a sweep's folder, made if there is none.

    Raises `InputError` if it holds a sweep and is not to be resumed, another grid's sweep, or something else. Raises
    `SimlibError` if another process holds it, or it cannot be written.
    """
    with ExitStack() as stack:
        with faults(folder):
            check_writable(folder, folder=True)
            folder.mkdir(parents=True, exist_ok=True)
            _check(folder, grid, resume)
            stack.enter_context(_alone(folder))
            _check(folder, grid, resume)  # again: another process may have come and gone
            about = json.dumps(description(grid), indent=1) + "\n"
            replace(folder / DESCRIPTION, about.encode(), durable=True)
            store = Store(folder, grid)
            store.look()
        yield store


def _check(folder: Path, grid: Grid, resume: bool) -> None:
    """See that a folder is empty, or this sweep's."""
    if not os.path.lexists(folder / DESCRIPTION):
        strange = [one.name for one in folder.iterdir() if one.name not in ("lock", f".{DESCRIPTION}{PART}")]
        if strange:
            raise InputError("out", str(folder), f"holds {printable(min(strange))}, which is no sweep's",
                             "give another folder", "give another --out", "--out")  # fmt: skip
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
    schemas = ((RESULTS, result_schema(grid)), (REFUSED, refused_schema(grid)))
    columns = {  # but the architecture, which is the name of a part's folder
        name: {column.name: str(column.type) for column in schema if column.name != "architecture"}
        for name, schema in schemas
    }
    return {
        "simlib": __version__, "grid": grid.digest, "points": grid.points, "design": grid.design.kind, "axes": axes,
        "variants": list(grid.scenario.variants), "architectures": [case.policy.architecture for _, case in grid.cases],
        "policies": list(grid.policies), "metrics": list(grid.kept), "level": grid.replications.level,
        "seed": grid.seed, "columns": columns,
    }  # fmt: skip


_KEYS = {
    "simlib": str, "grid": str, "points": int, "design": str, "axes": list, "variants": list, "architectures": list,
    "policies": list, "metrics": list, "level": float, "seed": int, "columns": dict,
}  # fmt: skip


def read_description(folder: Path) -> dict[str, Any]:
    """What was written of a sweep.

    Raises `InputError` if the folder holds none.
    """
    found = read_json(folder / DESCRIPTION, "the description of a sweep (JSON)", _DESCRIPTION_BYTES)
    about: dict[str, Any] = found if isinstance(found, dict) else {}
    whole = all(isinstance(about.get(key), kind) for key, kind in _KEYS.items()) and all(
        isinstance(axis, dict) and axis.keys() >= {"column", "field", "unit", "values"} for axis in about["axes"]
    )
    if not whole or not 0 < about["points"] <= MOST_POINTS or about["points"] % max(1, len(about["architectures"])):
        raise InputError("sweep", str(folder), f"has no {DESCRIPTION} of a sweep", "give the folder of a sweep")
    return about


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder; the system gives it back, however this process ends."""
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest of simlib runs

    plainly = os.O_NOFOLLOW | os.O_NONBLOCK  # what is a link is not followed, nor is a pipe waited for
    with open(folder / "lock", "ab", opener=lambda path, flags: os.open(path, flags | plainly, 0o666)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SimlibError(
                f"another process is at work in {folder}", "wait for it, or give another folder",
                "wait for it, or give another --out",
            ) from None  # fmt: skip
        yield


@contextmanager
def faults(folder: Path) -> Iterator[None]:
    """What the system says of a folder, as one sentence."""
    try:
        yield
    except OSError as error:
        cure = (
            "free some space" if error.errno in FULL else "see to it that it is what it was and yours to read and write"
        )
        raise SimlibError(
            f"{error.filename or folder}: cannot be read or written ({error.strerror or error}); "
            "what is finished is kept",
            f"{cure}, and run again with resume=True", f"{cure}, and run again with --resume",
        ) from None  # fmt: skip
