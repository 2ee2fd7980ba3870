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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib.lab.experiment import check_name, matrix_values, subtable
from simlib.lab.migration.guest import MAX_VCPUS, WriteWorkload
from simlib.lab.migration.linux import parse_linux
from simlib.lab.migration.progress import MigratedGuest
from simlib.lab.migration.values import byte_count, number_within
from simlib.vmm.qemu_rules import PAGE

MAX_MIGRATIONS = 1000
"""Maximum number of migrations in a file; each takes up to a minute."""

PATTERNS = ("sweep", "random")
ACCELERATORS = ("tcg", "kvm")

_SETTING = re.compile(r"[a-z][a-z-]*[a-z]", re.ASCII)
_SIZES = ("memory", "working_set", "hot_set")
_BOOLEAN_PARAMETERS = ("cpu-throttle-tailslow",)
"""Migration parameters whose values are booleans."""


@dataclass(frozen=True)
class MigrationCell:
    """One migration of a matrix.

    - `memory`: of the guest, bytes.
    - `guest`: guest and its writes or workload.
    - `settings`: parameters and capabilities by QEMU's names.
    - `postcopy_after_s`: time after the start at which to switch to postcopy, s; 0: never.
    - `limit_s`: time after the start at which to give up, s.
    - `repeat`: number of the repeat, from 1.
    """

    experiment: str
    accelerator: str
    memory: int
    guest: MigratedGuest
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
        return {
            "experiment": self.experiment, "accelerator": self.accelerator, "repeat": self.repeat,
            "vcpus": self.guest.vcpus, "memory_bytes": self.memory, **self.guest.keys,
            "settings": settings_text(self.settings), "postcopy_after_s": self.postcopy_after_s,
            "limit_s": self.limit_s,
        }  # fmt: skip

    @property
    def label(self) -> str:
        """Description for progress messages."""
        after = f", postcopy after {self.postcopy_after_s:g} s" if self.postcopy_after_s else ""
        return f"{self.experiment}: {self.guest.label}; {settings_text(self.settings)}{after} ({self.repeat})"

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
    if len({type(cell.guest) for cell in cells}) > 1:
        rule = "must have guests of one kind, because their tables differ"
        raise InputError(str(path), ", ".join(_GUESTS), rule, "write two files")
    for cell, key in zip(cells, keys, strict=True):
        if keys.count(key) > 1:
            raise InputError(str(path), cell.label, "is listed twice", "give each experiment its own name")
    return cells


def _parse(table: Mapping[str, Any], where: str) -> Iterator[MigrationCell]:
    """Yield the migrations of one table."""
    known = [*_DEFAULTS, *_GUESTS, "settings"]
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {key}", table[key], "is not known", nearest(key, known))
    given = {key: table.get(key, value) for key, value in _DEFAULTS.items()}
    check_name(f"{where}: name", str(given.pop("name")))
    where = f"{where}: {table['name']}"
    if len(kinds := [kind for kind in _GUESTS if kind in table]) > 1:
        raise InputError(where, ", ".join(kinds), "are two guests", "write one of the tables")
    kind = kinds[0] if kinds else "guest"
    axes = {("", key): matrix_values(value, f"{where}: {key}") for key, value in given.items()}
    for part in (kind, "settings"):
        own = subtable(table, part, where)
        axes |= {(part, key): matrix_values(value, f"{where}.{part}.{key}") for key, value in own.items()}
    for values in itertools.product(*axes.values()):
        chosen: dict[str, dict[str, Any]] = {"": {}, kind: {}, "settings": {}}
        for (part, key), value in zip(axes, values, strict=True):
            chosen[part][key] = value
        guest = _GUESTS[kind](chosen[kind], where)
        yield from _migrations(table["name"], guest, chosen, where)


def _migrations(
    name: str, guest: MigratedGuest, chosen: Mapping[str, Mapping[str, Any]], where: str
) -> Iterator[MigrationCell]:
    """Yield the repeats of one point of the matrix."""
    general = chosen[""]
    if general["accelerator"] not in ACCELERATORS:
        hint = f"one of {', '.join(ACCELERATORS)}"
        raise InputError(f"{where}: accelerator", general["accelerator"], "is not known", hint)
    memory = byte_count(general["memory"], f"{where}: memory")
    guest.check_memory(memory, f"{where}: memory")
    settings = tuple(sorted(_setting(key, value, where) for key, value in chosen["settings"].items()))
    after = number_within(general["postcopy_after_s"], f"{where}: postcopy_after_s", 0, 3600)
    limit = number_within(general["limit_s"], f"{where}: limit_s", 1, 3600)
    for repeat in range(1, int(number_within(general["repeats"], f"{where}: repeats", 1, 100)) + 1):
        yield MigrationCell(name, general["accelerator"], memory, guest, settings, after, limit, repeat)


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
            values[key] = byte_count(value, name)
        else:
            maximum = {"vcpus": MAX_VCPUS, "hot_percent": 100, "rate": 10**8}[key]
            values[key] = number_within(value, name, 0 if key == "hot_percent" else 1, maximum)
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


_GUESTS: dict[str, Callable[[Mapping[str, Any], str], MigratedGuest]] = {
    "guest": _workload,
    "linux": lambda given, where: parse_linux(given, f"{where}: linux"),
}
"""Functions that check the table of a guest, by the table's name."""
