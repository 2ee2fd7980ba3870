# SPDX-License-Identifier: BSD-3-Clause
"""Guests by their names: what each stands for in words, and its values (``data/priors/guests.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simlib.errors import InputError, nearest
from simlib.measurements import data_dir
from simlib.model.scenario import Scenario
from simlib.reading import read_toml

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
        """The scenario with this guest.

        >>> from simlib.decision.standard import standard_scenario
        >>> guests()["seed-001-mysql-8g"].in_place_of(standard_scenario("x86-tdp")).guest.vcpus
        160
        """
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
    simlib.errors.InputError: guest = databse: unknown guest; did you mean 'database'? known: database, ...
    """
    if name not in guests():
        raise InputError("guest", name, "unknown guest", nearest(name, guests()))
    return guests()[name]
