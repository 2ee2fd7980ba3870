# SPDX-License-Identifier: BSD-3-Clause
"""Descriptor of a measurement file: its columns, and the source of its numbers.

A descriptor is a Frictionless table resource in JSON, ``<stem>.json`` next to ``<stem>.csv``. A file without a
descriptor gets the one that its column names imply.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_json
from simlib.measurements import units
from simlib.measurements.cells import NUMBER
from simlib.measurements.units import SUFFIXES, is_time, names_duration, suffix_of, unit_of

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_CONSTRAINT = re.compile(r'constraint "(\w+)" is "(.*)"', re.DOTALL)  # as Frictionless writes it
_LARGEST = 2**53  # above it a float64 skips integers
_KEY_UNITS = ("%", "B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")  # sizes and shares
_NUMERIC = ("number", "integer")

ITERATION = "iteration"
"""Key column that may have empty cells; the times of a row with an empty cell are sums over all iterations."""


def read_descriptor(path: Path) -> dict[str, Any] | None:
    """Read the descriptor of a CSV file, ``<stem>.json`` in the same folder; None if the descriptor does not exist.

    Raises `InputError` if it is not a JSON object, contains no schema, or describes another file.
    """
    descriptor_path = path.with_suffix(".json")
    if descriptor_path == path or not os.path.exists(descriptor_path):
        return None
    where = str(descriptor_path)
    descriptor = read_json(descriptor_path, "a descriptor (JSON)")
    schema = descriptor.get("schema") if isinstance(descriptor, dict) else None
    schema = schema if isinstance(schema, dict) else {}
    fields = schema.get("fields")
    if not fields or not isinstance(fields, list) or not all(map(_is_field, fields)):
        rule = "a descriptor must be a Frictionless table resource"
        hint = 'give it {"schema": {"fields": [{"name": ..., "type": ..., "unit": ...}, ...]}}'
        raise InputError(where, "no schema with fields", rule, hint)
    described = descriptor.setdefault("path", path.name)
    if described != path.name:
        raise InputError(f"{where}, path", described, f"must be the CSV file next to it, {path.name!r}", "correct it")
    keys = schema.get("primaryKey", [])
    schema["primaryKey"] = keys = keys if isinstance(keys, list) else [keys]
    names = [field["name"] for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}, field", name, "must occur once", "rename or remove one")
    for key in keys:
        if key not in names:
            raise InputError(f"{where}, primaryKey", str(key), "must be a field", nearest(str(key), names))
    missing = schema.setdefault("missingValues", [""])
    if not isinstance(missing, list) or not all(isinstance(value, str) for value in missing):
        raise InputError(f"{where}, missingValues", str(missing), "must be a list of strings", "correct the list")
    for name in ("caveats", "notes"):
        if not isinstance(descriptor.setdefault(name, []), list):
            raise InputError(f"{where}, {name}", str(descriptor[name]), "must be a list of strings", "correct the list")
    return dict(descriptor)


def _is_field(field: Any) -> bool:
    if not isinstance(field, dict) or not isinstance(field.get("name"), str):
        return False
    text = all(isinstance(field.get(key, ""), str) for key in ("type", "unit"))
    return text and isinstance(field.get("constraints", {}), dict)


def implied_descriptor(where: str, cells: pd.DataFrame) -> dict[str, Any]:
    """Derive a descriptor from the names of the columns; source and hardware are ``"not stated"``.

    Times and key columns must not be empty, apart from `ITERATION`. The key of a row consists of every column that is
    not an outcome: a time, a rate, a change or a count of events.

    Raises `InputError` if the name of a column of numbers has no known unit.

    >>> cells = pd.DataFrame({"lock": ["spin"], "vcpus": ["1"], "clear_time_s": ["0.5"]}, index=[2])
    >>> implied_descriptor("a.csv", cells)["schema"]["primaryKey"]
    ['lock', 'vcpus']
    """
    fields: list[dict[str, Any]] = []
    keys: list[str] = []
    for name in map(str, cells):
        column = cells[name]
        numeric = _holds_numbers(name, column)
        field: dict[str, Any] = {"name": name, "type": "string", "unit": "none"}
        if numeric:
            whole = name in units.KEY_COUNTS or all(_INTEGER.fullmatch(c) for c in column if c)
            whole = whole and suffix_of(name) is None
            field["type"] = "integer" if whole else "number"
            field["unit"] = unit_of(where, name)
        is_key = field["type"] == "string" or name in units.KEY_COUNTS or field["unit"] in _KEY_UNITS
        is_key = is_key and not name.endswith("change_percent")
        if is_key:
            keys.append(name)
        if (is_key and name != ITERATION) or is_time(name):
            field["constraints"] = {"required": True}
        if name == "vcpus":
            field["constraints"]["minimum"] = 1
        fields.append(field)
    path = Path(where)
    unknown = {"source": {"subject": "not stated"}, "hardware": "not stated", "command": "not stated"}
    note = "The file has no descriptor; types and units are those that the column names imply."
    schema = {"notes": [note], "caveats": [], "schema": {"fields": fields, "primaryKey": keys}}
    return {"name": path.stem, "title": path.stem, "path": path.name, "kind": "measured", **unknown, **schema}


def _holds_numbers(name: str, column: Iterable[str]) -> bool:
    """True if a column without a descriptor is meant to hold numbers."""
    numbers = [bool(NUMBER.fullmatch(cell) or _NOT_FINITE.fullmatch(cell)) for cell in column if cell]
    if suffix_of(name) or name == "vcpus":
        return True
    known = name in units.KEY_COUNTS | units.OUTCOME_COUNTS or names_duration(name)
    return any(numbers) and (known or all(numbers))


def check_cells(where: str, cells: pd.DataFrame, descriptor: dict[str, Any]) -> None:
    """Check every cell against the descriptor.

    This module checks columns, numbers and units, because Frictionless accepts ``NaN`` as a number and has no units.
    Frictionless checks types, constraints and the primary key.

    Raises `InputError` for the first fault, with its row and column.
    """
    fields = {field["name"]: field for field in descriptor["schema"]["fields"]}
    header = [str(name) for name in cells]
    for name in header:
        if name not in fields and names_duration(name):
            unit_of(where, name)  # a wrong suffix has its own message
    for name in fields:
        if name not in header:
            rule = f"the column {name!r} is missing"
            raise InputError(f"{where}, header", ",".join(header), rule, f"add it ({nearest(name, header)})")
    for name in header:
        if name not in fields:
            rule = "the descriptor does not describe the column"
            raise InputError(f"{where}, header", name, rule, nearest(name, fields))
        _check_column(where, cells[name], fields[name], missing_values(descriptor))
    _check_schema(where, cells, descriptor, [fields[name] for name in header])


def missing_values(descriptor: dict[str, Any]) -> frozenset[str]:
    """Strings that denote a missing value: the empty string, and those that the schema lists."""
    return frozenset(["", *descriptor["schema"].get("missingValues", [])])


def _check_column(where: str, column: pd.Series[str], field: dict[str, Any], missing: frozenset[str]) -> None:
    name = field["name"]
    if field.get("type") not in _NUMERIC:
        if is_time(name):
            rule = "a time must have the type 'number'"
            raise InputError(f"{where}, column {name}", field.get("type"), rule, "correct the descriptor")
        return
    unit = unit_of(where, name, field.get("unit"))
    least = 0.0 if unit in ("count", *SUFFIXES.values()) and unit not in ("%", "1") else -math.inf
    for number, cell in column[~column.isin(missing)].items():
        fault = _number_fault(cell, name, field["type"] == "integer", least)
        if fault:
            raise InputError(f"{where}, row {number}, column {name}", *fault)


def _number_fault(cell: str, name: str, whole: bool, least: float) -> tuple[str, str, str] | None:
    """Fault of a number as (cell, rule, hint), or None if the number is valid."""
    if _NOT_FINITE.fullmatch(cell) or (NUMBER.fullmatch(cell) and not math.isfinite(float(cell))):
        return cell, "must be a finite number", "remove the row or measure it again"
    if not NUMBER.fullmatch(cell):
        return repr(cell), "must be a number", "write only its digits"
    if float(cell) < least:
        quantity = "a time" if is_time(name) else "a count or size"
        return cell, f"{quantity} must not be negative", "correct the number"
    if whole and not _INTEGER.fullmatch(cell):
        return cell, "must be a whole number", "write it without a decimal point"
    return (cell, "must be at most 2^53", "check the number") if whole and abs(float(cell)) > _LARGEST else None


def _check_schema(where: str, cells: pd.DataFrame, descriptor: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    """Check types, constraints and the primary key with Frictionless."""
    from frictionless import FrictionlessException, Schema  # noqa: PLC0415  # slow to import
    from frictionless.resources import TableResource  # noqa: PLC0415  # the same

    missing = sorted(missing_values(descriptor))
    primary = descriptor["schema"].get("primaryKey", [])
    try:
        schema = Schema.from_descriptor({"fields": fields, "primaryKey": primary, "missingValues": missing})
        report = TableResource(data=[list(cells), *cells.to_numpy().tolist()], schema=schema).validate(limit_errors=1)
    except (FrictionlessException, re.error, TypeError) as error:  # the latter two: a bad constraint
        descriptor_path, rule = str(Path(where).with_suffix(".json")), f"must be a Frictionless table schema ({error})"
        raise InputError(descriptor_path, "schema", rule, "correct the descriptor") from error
    if report.valid:
        return
    faults = [*report.errors, *(error for task in report.tasks for error in task.errors)]
    raise _fault(where, cells, faults[0], list(primary))


def _fault(where: str, cells: pd.DataFrame, fault: Any, primary: list[str]) -> InputError:
    row_number = getattr(fault, "row_number", None)
    where += f", row {cells.index[row_number - 2]}" if row_number is not None else ""
    if fault.type == "primary-key" and row_number is not None:
        row = cells.iloc[row_number - 2]
        key = ", ".join(f"{name}={row[name]}" for name in primary)
        if not any(row[name] for name in primary):
            return InputError(where, key, f"the key {'+'.join(primary)} must not be empty", "fill in the cell")
        rule = f"an earlier row has the same {'+'.join(primary)}"
        return InputError(where, key, rule, "remove one of the rows, or distinguish repeated runs by a column 'run'")
    name = getattr(fault, "field_name", None)
    if name:
        where += f", column {name}"
    cell = getattr(fault, "cell", "") or ""
    if fault.type == "constraint-error" and not cell:
        return InputError(where, "an empty cell", "a value is required", "fill in the cell")
    rule = _CONSTRAINT.sub(r"must meet its constraint \1: \2", str(fault.note))
    return InputError(where, cell or fault.type, rule, "correct the file or its descriptor")
