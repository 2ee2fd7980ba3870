# SPDX-License-Identifier: BSD-3-Clause
"""Data package: its folder, its tables, and loading one of them.

``data/datapackage.json`` lists the tables for any Frictionless tool. The descriptor next to a CSV file describes the
columns of the table and its source. An installed package has only the tables that simlib itself needs; a checkout
has all tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.checkout import checkout
from simlib._lib.errors import InputError, nearest
from simlib._lib.files import write_text
from simlib._lib.reading import read_json, read_text
from simlib.measurements.table import MeasurementTable, from_frame, read

_LISTING = "datapackage.json"
_STANDARD = ("name", "title", "type", "format", "mediatype", "encoding")


def data_dir() -> Path:
    """Return the folder of the data package.

    It is the folder that the environment variable ``SIMLIB_DATA`` names; by default ``data`` in the source tree or, if
    that does not exist, the copy in the installed package. Raises `InputError` if it has no ``datapackage.json``.

    >>> (data_dir() / "datapackage.json").exists()
    True
    """
    override = os.environ.get("SIMLIB_DATA")
    if override:
        if os.path.exists(Path(override) / _LISTING):
            return Path(override)
        rule = f"must be a folder with a {_LISTING}"
        raise InputError("SIMLIB_DATA", override, rule, "correct the variable, or unset it")
    package = Path(__file__).resolve().parents[1]
    candidates = (package.parent / "data", package / "_data")
    for candidate in candidates:
        if (candidate / _LISTING).is_file():
            return candidate
    rule, hint = f"one of these folders must contain a {_LISTING}", "install simlib again, or set SIMLIB_DATA"
    raise InputError("data package", " and ".join(map(str, candidates)), rule, hint)


def list_tables() -> pd.DataFrame:
    """List the tables of the data package whose files are present, in the order of ``datapackage.json``.

    Returns: name, title, rows, source (author and subject), hardware, kind. Raises `InputError` if the package or one
    of its descriptors cannot be read.

    >>> tables = list_tables().set_index("name")
    >>> int(tables.loc["arm64-dirty-memory-time", "rows"])
    21
    """
    columns = ["name", "title", "rows", "source", "hardware", "kind"]
    rows = []
    for name, path in _present(_paths()).items():
        descriptor = {"title": name, "hardware": "not stated", "kind": "measured"} | _json(path.with_suffix(".json"))
        source = {"author": "not stated", "subject": "not stated"} | descriptor.get("source", {})
        count = len(read_text(path, "a measurement file (CSV)").splitlines()) - 1
        origin = f"{source['author']}: {source['subject']}"
        rows.append((name, descriptor["title"], count, origin, descriptor["hardware"], descriptor["kind"]))
    return pd.DataFrame(rows, columns=columns)


def load(name: str) -> MeasurementTable:
    """Load one table of the data package by its name in `list_tables`, checked against its descriptor.

    Tables are cached: the next call returns a copy, unless the files have changed.

    Raises `InputError` if there is no such table, its file is not part of the installed package, or the file is
    invalid.

    >>> load("arm64-teardown-64gb").seconds("teardown_time")
    array([12.,  1.])
    """
    paths = _paths()
    if name not in paths:
        raise InputError("table", name, "is not in the data package", nearest(name, _present(paths)))
    path = paths[name]
    if checkout() is None and not os.path.exists(path):
        raise InputError("table", name, "is in simlib's repository, not in the installed package", "use a checkout")
    table: MeasurementTable = _cached(read, path, _stamp(path), _stamp(path.with_suffix(".json")))
    return replace(table, frame=table.frame.copy(), descriptor=deepcopy(table.descriptor))


def assemble(folder: Path) -> dict[str, Any]:
    """Build ``datapackage.json`` from the descriptors of a data package.

    Returns: The other keys of the existing file, and as its resources the standard part of every ``*/*.json`` in
    `folder` that describes a CSV file next to it.
    """
    resources = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stem):
        if not path.with_suffix(".csv").exists():
            continue
        descriptor = _json(path)
        entry = {key: descriptor[key] for key in _STANDARD if key in descriptor}
        entry["path"] = path.with_suffix(".csv").relative_to(folder).as_posix()
        entry["schema"] = descriptor["schema"]
        resources.append(entry)
    return {**_json(folder / _LISTING), "resources": resources}


def update_listing(folder: Path) -> None:
    """Rewrite ``datapackage.json`` atomically after tables were added."""
    write_text(folder / _LISTING, json.dumps(assemble(folder), indent=2, ensure_ascii=False) + "\n")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Identifier that changes with the content of a file; None if the file is unreadable."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


@lru_cache(maxsize=256)
def _cached(reader: Callable[[Path], Any], path: Path, *_: tuple[int, int, int] | None) -> Any:
    """Read a file again only if the file or its descriptor has changed."""
    return reader(path)


def _paths() -> dict[str, Path]:
    folder = data_dir()
    listing = _cached(_json, folder / _LISTING, _stamp(folder / _LISTING))
    try:
        return {str(entry["name"]): folder / str(entry["path"]) for entry in listing["resources"]}
    except (KeyError, TypeError) as error:
        rule = "must list resources with name and path"
        raise InputError(str(folder / _LISTING), repr(error), rule, "restore the file") from error


def _present(paths: dict[str, Path]) -> dict[str, Path]:
    """Tables whose CSV file exists; in a checkout, all tables, so that a missing file is an error."""
    return paths if checkout() else {name: path for name, path in paths.items() if os.path.exists(path)}


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path, "a descriptor (JSON)")
    if not isinstance(content, dict):
        raise InputError(str(path), type(content).__name__, "must be a JSON object", "restore the file")
    return content


def as_table(source: MeasurementTable | pd.DataFrame | str | Path) -> MeasurementTable:
    """Convert a table, a DataFrame, a CSV file, or the name of a table of the data package to a measurement table.

    Raises `InputError` if `source` is none of these, or breaks a rule.

    >>> as_table("x86-get-dirty-log-lockless")
    <MeasurementTable x86-get-dirty-log-lockless: 2 rows; ...>
    """
    if isinstance(source, MeasurementTable):
        return source
    if isinstance(source, pd.DataFrame):
        return from_frame(source)
    if isinstance(source, str | Path):
        return read(source) if str(source).endswith(".csv") or os.path.exists(source) else load(str(source))
    raise InputError("measurements", type(source).__name__, "must be a table, its name, a DataFrame, or a CSV file")
