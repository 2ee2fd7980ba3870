# SPDX-License-Identifier: BSD-3-Clause
"""Experiments with real migrations: guests and QEMU's settings, in a TOML file.

As in `simlib.lab.experiment`, a list is a dimension. Keys of ``[experiment.settings]`` are QEMU's names: numbers are
passed to ``migrate-set-parameters`` and booleans to ``migrate-set-capabilities``, except ``cpu-throttle-tailslow``,
which is a parameter.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib.lab.experiment import check_name, matrix_values, subtable
from simlib.lab.migration.guest import BASE, MAX_VCPUS, WriteWorkload
from simlib.vmm.qemu_rules import PAGE

MAX_MIGRATIONS = 1000
"""Maximum number of migrations in a file; each takes up to a minute."""

PATTERNS = ("sweep", "random")
ACCELERATORS = ("tcg", "kvm")

_SETTING = re.compile(r"[a-z][a-z-]*[a-z]", re.ASCII)
_SIZE = re.compile(r"([1-9]\d*)([KMG]?)", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZES = ("memory", "working_set", "hot_set")
_BOOLEAN_PARAMETERS = ("cpu-throttle-tailslow",)
"""Migration parameters whose values are booleans."""


@dataclass(frozen=True)
class MigrationCell:
    """One migration of a matrix.

    - `memory`: of the guest, bytes.
    - `workload`: writes of the guest.
    - `settings`: parameters and capabilities by QEMU's names.
    - `postcopy_after_s`: time after the start at which to switch to postcopy, s; 0: never.
    - `limit_s`: time after the start at which to give up, s.
    - `repeat`: number of the repeat, from 1.
    """

    experiment: str
    accelerator: str
    memory: int
    workload: WriteWorkload
    settings: tuple[tuple[str, int | bool], ...]
    postcopy_after_s: float
    limit_s: float
    repeat: int = 1

    @property
    def capabilities(self) -> dict[str, bool]:
        """Arguments of migrate-set-capabilities."""
        switches = {name: value for name, value in self.settings if isinstance(value, bool)}
        return {name: value for name, value in switches.items() if name not in _BOOLEAN_PARAMETERS}

    @property
    def parameters(self) -> dict[str, int]:
        """Arguments of migrate-set-parameters."""
        return {name: value for name, value in self.settings if name not in self.capabilities}

    @property
    def keys(self) -> dict[str, Any]:
        """Columns that identify the migration in a table; sizes in bytes."""
        workload = self.workload
        return {
            "experiment": self.experiment, "accelerator": self.accelerator, "repeat": self.repeat,
            "vcpus": workload.vcpus, "memory_bytes": self.memory, "working_set_bytes": workload.working_set,
            "pattern": workload.pattern, "writes_per_s": workload.rate, "hot_set_bytes": workload.hot_set,
            "hot_percent": workload.hot_percent, "settings": settings_text(self.settings),
            "postcopy_after_s": self.postcopy_after_s, "limit_s": self.limit_s,
        }  # fmt: skip

    @property
    def label(self) -> str:
        """Description for progress messages."""
        workload = self.workload
        after = f", postcopy after {self.postcopy_after_s:g} s" if self.postcopy_after_s else ""
        return (
            f"{self.experiment}: {workload.rate} writes/s over {workload.working_set >> 20}M, {workload.pattern}; "
            f"{settings_text(self.settings)}{after} ({self.repeat})"
        )

    def key(self, qemu: str) -> str:
        """Hash of everything that determines the migration, except this machine."""
        return hashlib.sha256(json.dumps([self.keys, qemu], sort_keys=True).encode()).hexdigest()[:16]


def settings_text(settings: tuple[tuple[str, int | bool], ...]) -> str:
    """Format settings for a cell of a table.

    >>> settings_text((("auto-converge", True), ("max-bandwidth", 200)))
    'auto-converge=on max-bandwidth=200'
    """
    words = {True: "on", False: "off"}
    return " ".join(f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in settings)


_DEFAULTS = {"name": "", "accelerator": "tcg", "memory": "512M", "repeats": 1, "limit_s": 60, "postcopy_after_s": 0}
"""Keys of ``[[experiment]]`` itself, with their defaults."""


def has_migrations(path: str | Path) -> bool:
    """Return True if an experiment file has a table with ``[experiment.settings]``, as those with migrations do."""
    tables = read_toml(path, "an experiment (TOML)").get("experiment", [])
    return isinstance(tables, list) and any(isinstance(table, dict) and "settings" in table for table in tables)


def load_migrations(path: str | Path) -> list[MigrationCell]:
    """Read a file with ``[[experiment]]`` tables.

    Raises `InputError` for a file that cannot be read, an unknown key or an invalid value.
    """
    content = read_toml(path, "an experiment with migrations (TOML)")
    tables = content.get("experiment")
    if not isinstance(tables, list) or set(content) != {"experiment"} or not all(isinstance(t, dict) for t in tables):
        raise InputError(str(path), ", ".join(content), "must be tables", "write [[experiment]] above each table")
    cells = [cell for table in tables for cell in _parse(table, str(path))]
    if len(cells) > MAX_MIGRATIONS:
        raise InputError(str(path), f"{len(cells)} migrations", f"must be at most {MAX_MIGRATIONS}", "list fewer")
    keys = [json.dumps(cell.keys) for cell in cells]
    for cell, key in zip(cells, keys, strict=True):
        if keys.count(key) > 1:
            raise InputError(str(path), cell.label, "is listed twice", "give each experiment its own name")
    return cells


def _parse(table: Mapping[str, Any], where: str) -> Iterator[MigrationCell]:
    """Yield the migrations of one table."""
    known = [*_DEFAULTS, "guest", "settings"]
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {key}", table[key], "is not known", nearest(key, known))
    given = {key: table.get(key, value) for key, value in _DEFAULTS.items()}
    check_name(f"{where}: name", str(given.pop("name")))
    where = f"{where}: {table['name']}"
    axes = {("", key): matrix_values(value, f"{where}: {key}") for key, value in given.items()}
    for part in ("guest", "settings"):
        own = subtable(table, part, where)
        axes |= {(part, key): matrix_values(value, f"{where}.{part}.{key}") for key, value in own.items()}
    for values in itertools.product(*axes.values()):
        chosen: dict[str, dict[str, Any]] = {"": {}, "guest": {}, "settings": {}}
        for (part, key), value in zip(axes, values, strict=True):
            chosen[part][key] = value
        yield from _migrations(table["name"], chosen, where)


def _migrations(name: str, chosen: Mapping[str, Mapping[str, Any]], where: str) -> Iterator[MigrationCell]:
    """Yield the repeats of one point of the matrix."""
    general = chosen[""]
    if general["accelerator"] not in ACCELERATORS:
        hint = f"one of {', '.join(ACCELERATORS)}"
        raise InputError(f"{where}: accelerator", general["accelerator"], "is not known", hint)
    memory, workload = _bytes(general["memory"], f"{where}: memory"), _workload(chosen["guest"], where)
    if workload.working_set + BASE > memory:
        rule, hint = "must exceed the working set by at least 1 MiB", "give the guest more memory"
        raise InputError(f"{where}: memory", general["memory"], rule, hint)
    settings = tuple(sorted(_setting(key, value, where) for key, value in chosen["settings"].items()))
    after = _number(general["postcopy_after_s"], f"{where}: postcopy_after_s", 0, 3600)
    limit = _number(general["limit_s"], f"{where}: limit_s", 1, 3600)
    for repeat in range(1, int(_number(general["repeats"], f"{where}: repeats", 1, 100)) + 1):
        yield MigrationCell(name, general["accelerator"], memory, workload, settings, after, limit, repeat)


def _workload(given: Mapping[str, Any], where: str) -> WriteWorkload:
    known = {field.name for field in fields(WriteWorkload)}
    values = dict(given)
    for key, value in given.items():
        name = f"{where}: guest.{key}"
        if key not in known:
            raise InputError(name, value, "is not known", nearest(key, known))
        if key == "pattern":
            if value not in PATTERNS:
                raise InputError(name, value, "is not known", f"one of {', '.join(PATTERNS)}")
        elif key in _SIZES:
            values[key] = _bytes(value, name)
        else:
            maximum = {"vcpus": MAX_VCPUS, "hot_percent": 100, "rate": 10**8}[key]
            values[key] = _number(value, name, 0 if key == "hot_percent" else 1, maximum)
    workload = WriteWorkload(**values)
    if bool(workload.hot_set) != bool(workload.hot_percent) or workload.hot_set >= workload.working_set:
        rule, hint = "must be smaller than the working set and have a share of the writes", "also set hot_percent"
        raise InputError(f"{where}: guest.hot_set", given.get("hot_set", 0), rule, hint)
    for key in ("working_set", "hot_set"):
        if getattr(workload, key) % (PAGE * workload.vcpus):
            rule = "must be a whole number of pages per vCPU"
            raise InputError(f"{where}: guest.{key}", getattr(workload, key), rule, "round it to pages")
    return workload


def _setting(key: str, value: Any, where: str) -> tuple[str, int | bool]:
    if not _SETTING.fullmatch(key) or not isinstance(value, int):
        rule = "must be a QEMU parameter with a number, or a capability with a boolean"
        raise InputError(f"{where}: settings.{key}", value, rule, "write max-bandwidth = 50_000_000")
    return key, value


def _bytes(value: Any, what: str) -> int:
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise InputError(what, value, "is not a size", "write 64M or 1G")
    return int(match[1]) * _UNITS[match[2]]


def _number(value: Any, what: str, minimum: int, maximum: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InputError(what, value, f"must be from {minimum} to {maximum}", "docs/lab.md lists the keys")
    return value
