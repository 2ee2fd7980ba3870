# SPDX-License-Identifier: BSD-3-Clause
"""The data package: where it is, which tables it holds, and how one is loaded.

``data/datapackage.json`` lists the tables for any Frictionless tool. What a
table is and where it comes from stands in the descriptor beside its CSV.
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

from simlib._lib.errors import InputError, nearest
from simlib._lib.files import write_text
from simlib._lib.reading import exists, read_json, read_text
from simlib.measurements.table import MeasurementTable, from_frame, read

_LISTING = "datapackage.json"
_STANDARD = ("name", "title", "type", "format", "mediatype", "encoding")


def data_dir() -> Path:
    """The folder of the data package.

    That which the environment variable ``SIMLIB_DATA`` names if it is set, else ``data`` of the source tree, else the
    copy inside the installed package. Raises `InputError` if it holds no ``datapackage.json``.

    >>> (data_dir() / "datapackage.json").exists()
    True
    """
    given = os.environ.get("SIMLIB_DATA")
    if given:
        if exists(Path(given) / _LISTING):
            return Path(given)
        rule = f"must be a folder with a {_LISTING}"
        raise InputError("SIMLIB_DATA", given, rule, "correct the variable, or unset it")
    package = Path(__file__).resolve().parents[1]
    places = (package.parent / "data", package / "_data")
    for place in places:
        if (place / _LISTING).is_file():
            return place
    tried, rule = " and ".join(map(str, places)), f"one of these folders must hold a {_LISTING}"
    raise InputError("data package", tried, rule, "install simlib again, or set SIMLIB_DATA")


def list_tables() -> pd.DataFrame:
    """List the tables of the data package, in its order.

    Returns: name, title, rows, source (author and subject), hardware, kind. Raises `InputError` if the package or one
    of its descriptors cannot be read.

    >>> tables = list_tables().set_index("name")
    >>> int(tables.loc["arm64-dirty-memory-time", "rows"])
    21
    """
    columns = ["name", "title", "rows", "source", "hardware", "kind"]
    rows = []
    for name, path in _paths().items():
        said = {"title": name, "hardware": "not stated", "kind": "measured"} | _json(path.with_suffix(".json"))
        source = {"author": "not stated", "subject": "not stated"} | said.get("source", {})
        count = len(read_text(path, "a measurement file (CSV)").splitlines()) - 1
        origin = f"{source['author']}: {source['subject']}"
        rows.append((name, said["title"], count, origin, said["hardware"], said["kind"]))
    return pd.DataFrame(rows, columns=columns)


def load(name: str) -> MeasurementTable:
    """Load one table of the data package, named as `list_tables` has it, checked against its descriptor.

    What was read is kept: the next call gives a copy, unless the files have changed meanwhile.

    Raises `InputError` if there is no such table, or its file is bad.

    >>> load("arm64-teardown-64gb").seconds("teardown_time")
    array([12.,  1.])
    """
    paths = _paths()
    if name not in paths:
        raise InputError("table", name, "is not in the data package", nearest(name, paths))
    path = paths[name]
    table: MeasurementTable = _kept(read, path, _stamp(path), _stamp(path.with_suffix(".json")))
    return replace(table, frame=table.frame.copy(), descriptor=deepcopy(table.descriptor))


def assemble(folder: Path) -> dict[str, Any]:
    """Put together ``datapackage.json`` from the descriptors of a data package.

    Its own keys, and the standard part of every ``*/*.json`` in `folder` that describes a CSV beside it.
    """
    resources = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stem):
        if not path.with_suffix(".csv").exists():
            continue
        described = _json(path)
        entry = {key: described[key] for key in _STANDARD if key in described}
        entry["path"] = path.with_suffix(".csv").relative_to(folder).as_posix()
        entry["schema"] = described["schema"]
        resources.append(entry)
    return {**_json(folder / _LISTING), "resources": resources}


def update_listing(folder: Path) -> None:
    """Write ``datapackage.json`` anew after tables were added, beside and renamed."""
    write_text(folder / _LISTING, json.dumps(assemble(folder), indent=2, ensure_ascii=False) + "\n")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells one state of a file from another; None if it cannot be told, so that reading says why."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


@lru_cache(maxsize=256)
def _kept(reader: Callable[[Path], Any], path: Path, *_: tuple[int, int, int] | None) -> Any:
    """What was read, once for each state of its files."""
    return reader(path)


def _paths() -> dict[str, Path]:
    """CSV file of each table of the package."""
    folder = data_dir()
    listing = _kept(_json, folder / _LISTING, _stamp(folder / _LISTING))
    try:
        return {str(entry["name"]): folder / str(entry["path"]) for entry in listing["resources"]}
    except (KeyError, TypeError) as error:
        rule = "must list resources with name and path"
        raise InputError(str(folder / _LISTING), repr(error), rule, "restore the file") from error


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path, "a descriptor (JSON)")
    if not isinstance(content, dict):
        raise InputError(str(path), type(content).__name__, "must be a JSON object", "restore the file")
    return content


def as_table(given: MeasurementTable | pd.DataFrame | str | Path) -> MeasurementTable:
    """Measurements, however they are given: a table, a DataFrame, a CSV file, or the name of a table of the package.

    Raises `InputError` if it is none of these, or breaks a rule.

    >>> as_table("x86-get-dirty-log-lockless")
    <MeasurementTable x86-get-dirty-log-lockless: 2 rows; ...>
    """
    if isinstance(given, MeasurementTable):
        return given
    if isinstance(given, pd.DataFrame):
        return from_frame(given)
    if isinstance(given, str | Path):
        return read(given) if str(given).endswith(".csv") or exists(given) else load(str(given))
    raise InputError("measurements", type(given).__name__, "must be a table, a DataFrame, or the path of a CSV file")
