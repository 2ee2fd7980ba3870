# SPDX-License-Identifier: BSD-3-Clause
"""The guests that a choice is made for: the standard one, with other numbers, or one that has a name.

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
"""The guest that is asked about unless another is named."""


@dataclass(frozen=True)
class NamedGuest:
    """A guest that stands for many.

    - `title`: what it stands for, and where its numbers come from.
    - `changes`: its values, as the tables of a scenario file.
    """

    name: str
    title: str
    changes: Mapping[str, Mapping[str, Any]]

    def in_place_of(self, scenario: Scenario) -> Scenario:
        """The scenario with this guest."""
        return scenario.changed(self.changes)


@lru_cache(maxsize=1)
def guests() -> Mapping[str, NamedGuest]:
    """All named guests, in the order of the file.

    >>> list(guests())[:4]
    ['database', 'web', 'idle', 'write-heavy']
    """
    tables = read_toml(data_dir() / "priors" / "guests.toml", "a list of guests (TOML)")
    return {
        name: NamedGuest(name, row["title"], {key: row[key] for key in ("guest", "workload") if key in row})
        for name, row in tables.items()
    }


def named_guest(name: str) -> NamedGuest:
    """One of them.

    Raises `InputError` if there is none of this name; the message has the nearest one.

    >>> named_guest("databse")
    Traceback (most recent call last):
    ...
    simlib.InputError: guest = databse: unknown guest; did you mean 'database'? known: database, ...
    """
    if name not in guests():
        raise InputError("guest", name, "unknown guest", nearest(name, guests()))
    return guests()[name]


def preset_architectures() -> tuple[str, ...]:
    """The architectures that are compared unless one is named.

    >>> preset_architectures()[0], len(preset_architectures())
    ('x86-tdp', 7)
    """
    return tuple(_standard().variants)


def preset_scenario(name: str, vcpus: int | None = None) -> Scenario:
    """The guest and its migration for which a choice is made where only the architecture is given.

    Raises `InputError` if the architecture is unknown, or the number of vCPUs out of bounds.

    - `name`: a name of `simlib.model.architectures.ARCHITECTURES`.
    - `vcpus`: instead of the file's. The memory is rounded up to whole blocks for each.

    >>> standard = preset_scenario("riscv-spinlock", vcpus=48)
    >>> standard.policy.architecture, standard.guest.memory // 2**20
    ('riscv-spinlock', 262176)
    """
    base = _standard()
    plain = dataclasses.replace(base, variants={}).changed({"policy": {"architecture": architecture(name).name}})
    found = base.variants.get(name, plain)
    return found if vcpus is None else with_guest(found, {"guest": {"vcpus": vcpus}})


def with_guest(scenario: Scenario, changes: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """The scenario with some values of its guest and workload replaced.

    Unless the memory is given, it is rounded up to whole blocks for each vCPU; a chunk is no larger than it.

    >>> with_guest(preset_scenario("arm64"), {"guest": {"vcpus": 100}}).guest.memory // 2**20
    262200
    """
    guest, workload = dict(changes.get("guest", {})), dict(changes.get("workload", {}))
    vcpus = guest.get("vcpus")  # what is no number is refused below, by its rule
    if isinstance(vcpus, int) and "memory" not in guest and scenario.guest.memory is not None:
        whole = PageTable(scenario.guest.page_size).block_bytes() * max(1, vcpus)
        guest["memory"] = -(-scenario.guest.memory // whole) * whole
    chunk = scenario.workload.clear_chunk
    if "memory" in guest and "clear_chunk" not in workload and chunk is not None:
        given = guest["memory"]
        workload["clear_chunk"] = min(chunk, given if isinstance(given, int) else parse_size(given, "guest.memory"))
    return scenario.changed({"guest": guest, "workload": workload})


@lru_cache(maxsize=1)
def _standard() -> Scenario:
    return load_scenario(data_dir() / "priors" / "scenario.toml")
