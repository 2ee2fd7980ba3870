# SPDX-License-Identifier: BSD-3-Clause
"""Preset guests for `simlib.choose`: a default guest for each architecture, changes to it, and named guests.

Their values are in ``data/priors/scenario.toml`` and ``data/priors/guests.toml``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib.measurements import data_dir
from simlib.model.architectures import architecture
from simlib.model.pagetable import PageTable
from simlib.model.quantities import parse_size
from simlib.model.scenario import Scenario, load_scenario

DEFAULT_GUEST = "database"
"""Name of the default guest."""


@dataclass(frozen=True)
class NamedGuest:
    """A guest that represents a class of guests.

    - `title`: the class, and the origin of the numbers.
    - `changes`: values of the guest, as the tables of a scenario file.
    """

    name: str
    title: str
    changes: Mapping[str, Mapping[str, Any]]

    def in_place_of(self, scenario: Scenario) -> Scenario:
        """Return the scenario with this guest."""
        return scenario.changed(self.changes)


@lru_cache(maxsize=1)
def guests() -> Mapping[str, NamedGuest]:
    """Return all named guests, in the order of the file.

    >>> list(guests())[:4]
    ['database', 'web', 'idle', 'write-heavy']
    """
    tables = read_toml(data_dir() / "priors" / "guests.toml", "a list of guests (TOML)")
    return {
        name: NamedGuest(name, row["title"], {key: row[key] for key in ("guest", "workload") if key in row})
        for name, row in tables.items()
    }


def named_guest(name: str) -> NamedGuest:
    """Return a guest by its name.

    Raises `InputError` if the name is unknown; the message suggests the nearest known one.

    >>> named_guest("databse")
    Traceback (most recent call last):
    ...
    simlib.InputError: guest = databse: unknown guest; did you mean 'database'? known: database, ...
    """
    if name not in guests():
        raise InputError("guest", name, "unknown guest", nearest(name, guests()))
    return guests()[name]


def preset_architectures() -> tuple[str, ...]:
    """Return the architectures that are compared by default.

    >>> preset_architectures()[0], len(preset_architectures())
    ('x86-tdp', 7)
    """
    return tuple(_presets().variants)


def preset_scenario(name: str, vcpus: int | None = None) -> Scenario:
    """Return the default guest of an architecture, and its migration.

    Raises `InputError` if the architecture is unknown, or the number of vCPUs is out of bounds.

    - `name`: a name of `simlib.model.architectures.ARCHITECTURES`.
    - `vcpus`: replaces the preset's number. The memory is rounded up to whole huge pages for each vCPU.

    >>> preset = preset_scenario("riscv-spinlock", vcpus=48)
    >>> preset.policy.architecture, preset.guest.memory // 2**20
    ('riscv-spinlock', 262176)
    """
    base = _presets()
    plain = dataclasses.replace(base, variants={}).changed({"policy": {"architecture": architecture(name).name}})
    preset = base.variants.get(name, plain)
    return preset if vcpus is None else with_guest(preset, {"guest": {"vcpus": vcpus}})


def with_guest(scenario: Scenario, changes: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """Return the scenario with some values of its guest and workload replaced.

    Unless `changes` contains the memory, it is rounded up to whole huge pages for each vCPU. Unless `changes` contains
    the chunk, it is limited to the memory.

    >>> with_guest(preset_scenario("arm64"), {"guest": {"vcpus": 100}}).guest.memory // 2**20
    262200
    """
    guest, workload = dict(changes.get("guest", {})), dict(changes.get("workload", {}))
    vcpus = guest.get("vcpus")  # `changed` refuses other types
    if isinstance(vcpus, int) and "memory" not in guest and scenario.guest.memory is not None:
        unit = PageTable(scenario.guest.page_size).block_bytes() * max(1, vcpus)
        guest["memory"] = -(-scenario.guest.memory // unit) * unit
    chunk = scenario.workload.clear_chunk
    if "memory" in guest and "clear_chunk" not in workload and chunk is not None:
        memory = guest["memory"]
        workload["clear_chunk"] = min(chunk, memory if isinstance(memory, int) else parse_size(memory, "guest.memory"))
    return scenario.changed({"guest": guest, "workload": workload})


@lru_cache(maxsize=1)
def _presets() -> Scenario:
    return load_scenario(data_dir() / "priors" / "scenario.toml")
