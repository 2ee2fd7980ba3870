# SPDX-License-Identifier: BSD-3-Clause
"""An experiment with real migrations: which guest, with which of QEMU's settings; a TOML file.

As in `simlib.lab.experiment`, a list spans a matrix. Keys of ``[experiment.settings]`` are QEMU's own: those of
``migrate-set-parameters`` with a number, those of ``migrate-set-capabilities`` with a truth
value; ``cpu-throttle-tailslow`` is a parameter.
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
from simlib.lab.experiment import check_name, table_within, values_of
from simlib.lab.migration.guest import BASE, MOST_VCPUS, PAGE, Habit

MOST_MIGRATIONS = 1000
"""Most migrations of a file: each takes up to a minute."""

PATTERNS = ("sweep", "random")
ACCELERATORS = ("tcg", "kvm")

_SETTING = re.compile(r"[a-z][a-z-]*[a-z]", re.ASCII)
_SIZE = re.compile(r"([1-9]\d*)([KMG]?)", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZES = ("memory", "working_set", "hot_set")
_TRUTHS = ("cpu-throttle-tailslow",)
"""Parameters whose value is a truth value."""

_HELP = "docs/lab.md lists the keys"


@dataclass(frozen=True)
class MigrationCell:
    """One migration of a matrix.

    - `memory`: of the guest, bytes.
    - `habit`: what the guest does.
    - `settings`: parameters and capabilities by QEMU's names.
    - `postcopy_after_s`: when to switch to postcopy, s after the start, if it is not over; 0: never.
    - `limit_s`: when to give up, s after the start.
    - `repeat`: from 1.
    """

    experiment: str
    accelerator: str
    memory: int
    habit: Habit
    settings: tuple[tuple[str, int | bool], ...]
    postcopy_after_s: float
    limit_s: float
    repeat: int = 1

    @property
    def parameters(self) -> dict[str, int]:
        """What migrate-set-parameters is given."""
        return {name: value for name, value in self.settings if name in _TRUTHS or not isinstance(value, bool)}

    @property
    def capabilities(self) -> dict[str, bool]:
        """What migrate-set-capabilities is given."""
        return {name: value for name, value in self.settings if name not in _TRUTHS and isinstance(value, bool)}

    @property
    def keys(self) -> dict[str, Any]:
        """What tells it from others in a table; sizes in bytes."""
        habit = self.habit
        return {
            "experiment": self.experiment, "accelerator": self.accelerator, "repeat": self.repeat,
            "vcpus": habit.vcpus, "memory_bytes": self.memory, "working_set_bytes": habit.working_set,
            "pattern": habit.pattern, "writes_per_s": habit.rate, "hot_set_bytes": habit.hot_set,
            "hot_percent": habit.hot_percent, "settings": settings_text(self.settings),
            "postcopy_after_s": self.postcopy_after_s, "limit_s": self.limit_s,
        }  # fmt: skip

    @property
    def label(self) -> str:
        """What it is called while it runs."""
        habit, after = self.habit, f", postcopy after {self.postcopy_after_s:g} s" if self.postcopy_after_s else ""
        return (
            f"{self.experiment}: {habit.rate} writes/s over {habit.working_set >> 20}M, {habit.pattern}; "
            f"{settings_text(self.settings)}{after} ({self.repeat})"
        )

    def key(self, qemu: str) -> str:
        """Hash of all that determines it, beside this machine."""
        return hashlib.sha256(json.dumps([self.keys, qemu], sort_keys=True).encode()).hexdigest()[:16]


def settings_text(settings: tuple[tuple[str, int | bool], ...]) -> str:
    """Settings as one cell of a table has them.

    >>> settings_text((("auto-converge", True), ("max-bandwidth", 200)))
    'auto-converge=on max-bandwidth=200'
    """
    words = {True: "on", False: "off"}
    return " ".join(f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in settings)


_OWN = {"name": "", "accelerator": "tcg", "memory": "512M", "repeats": 1, "limit_s": 60, "postcopy_after_s": 0}
"""Keys above the tables, and what they are unless they are there."""


def has_migrations(path: str | Path) -> bool:
    """Whether an experiment file is one of migrations: its tables have ``[experiment.settings]``."""
    tables = read_toml(path, "an experiment (TOML)").get("experiment", [])
    return isinstance(tables, list) and any(isinstance(table, dict) and "settings" in table for table in tables)


def load_migrations(path: str | Path) -> list[MigrationCell]:
    """Read an experiment file.

    Raises `InputError` for a file that cannot be read, an unknown key or a value that breaks its rule.

    - `path`: ``[[experiment]]`` tables.
    """
    content = read_toml(path, "an experiment with migrations (TOML)")
    tables = content.get("experiment")
    if not isinstance(tables, list) or set(content) != {"experiment"} or not all(isinstance(t, dict) for t in tables):
        raise InputError(str(path), ", ".join(content), "must be tables", "write [[experiment]] above each")
    found = [one for table in tables for one in _parse(table, str(path))]
    if len(found) > MOST_MIGRATIONS:
        raise InputError(str(path), f"{len(found)} migrations", f"must be at most {MOST_MIGRATIONS}", "list fewer")
    keys = [json.dumps(one.keys) for one in found]
    for one, key in zip(found, keys, strict=True):
        if keys.count(key) > 1:
            raise InputError(str(path), one.label, "stands there twice", "give each experiment its own name")
    return found


def _parse(table: Mapping[str, Any], where: str) -> Iterator[MigrationCell]:
    """The migrations of one table."""
    known = [*_OWN, "guest", "settings"]
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {key}", table[key], "is not known", nearest(key, known))
    given = {key: table.get(key, value) for key, value in _OWN.items()}
    check_name(f"{where}: name", str(given.pop("name")))
    where = f"{where}: {table['name']}"
    axes = {("", key): values_of(value, f"{where}: {key}") for key, value in given.items()}
    for part in ("guest", "settings"):
        own = table_within(table, part, where)
        axes |= {(part, key): values_of(value, f"{where}.{part}.{key}") for key, value in own.items()}
    for values in itertools.product(*axes.values()):
        chosen: dict[str, dict[str, Any]] = {"": {}, "guest": {}, "settings": {}}
        for (part, key), value in zip(axes, values, strict=True):
            chosen[part][key] = value
        yield from _migrations(table["name"], chosen, where)


def _migrations(name: str, chosen: Mapping[str, Mapping[str, Any]], where: str) -> Iterator[MigrationCell]:
    """One point of the matrix, as often as it is repeated."""
    own = chosen[""]
    if own["accelerator"] not in ACCELERATORS:
        cure = f"one of {', '.join(ACCELERATORS)}"
        raise InputError(f"{where}: accelerator", own["accelerator"], "is not known", cure)
    memory, habit = _bytes(own["memory"], f"{where}: memory"), _habit(chosen["guest"], where)
    if habit.working_set + BASE > memory:
        raise InputError(
            f"{where}: memory", own["memory"], "must hold the working set behind 1M", "give it more memory"
        )
    settings = tuple(sorted(_setting(key, value, where) for key, value in chosen["settings"].items()))
    after = _number(own["postcopy_after_s"], f"{where}: postcopy_after_s", 0, 3600)
    limit = _number(own["limit_s"], f"{where}: limit_s", 1, 3600)
    for repeat in range(1, int(_number(own["repeats"], f"{where}: repeats", 1, 100)) + 1):
        yield MigrationCell(name, own["accelerator"], memory, habit, settings, after, limit, repeat)


def _habit(given: Mapping[str, Any], where: str) -> Habit:
    known = {field.name for field in fields(Habit)}
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
            most = {"vcpus": MOST_VCPUS, "hot_percent": 100, "rate": 10**8}[key]
            values[key] = _number(value, name, 0 if key == "hot_percent" else 1, most)
    habit = Habit(**values)
    if bool(habit.hot_set) != bool(habit.hot_percent) or habit.hot_set >= habit.working_set:
        rule, cure = "must be a part of the working set, and have a share of the writes", "set hot_percent, too"
        raise InputError(f"{where}: guest.hot_set", given.get("hot_set", 0), rule, cure)
    for key in ("working_set", "hot_set"):
        if getattr(habit, key) % (PAGE * habit.vcpus):
            rule = "must be whole pages for each vCPU"
            raise InputError(f"{where}: guest.{key}", getattr(habit, key), rule, "round it")
    return habit


def _setting(key: str, value: Any, where: str) -> tuple[str, int | bool]:
    if not _SETTING.fullmatch(key) or not isinstance(value, int):
        rule = "must be a parameter of QEMU's with a number, or a capability with a truth value"
        raise InputError(f"{where}: settings.{key}", value, rule, "write max-bandwidth = 50_000_000")
    return key, value


def _bytes(value: Any, what: str) -> int:
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise InputError(what, value, "is no size", "write 64M or 1G")
    return int(match[1]) * _UNITS[match[2]]


def _number(value: Any, what: str, least: int, most: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(what, value, f"must be from {least} to {most}", _HELP)
    return value
