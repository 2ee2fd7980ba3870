# SPDX-License-Identifier: BSD-3-Clause
"""Parsing of a guest and of targets from strings that are keyed by the names of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simlib.vmm.dirtying import DirtyingGuess, DirtyRate, parse_dirty
from simlib.vmm.guest import RunningGuest
from simlib.vmm.inputs import GUEST, TARGETS
from simlib.vmm.settings import Settings, read_named
from simlib.vmm.targets import Targets


def read_targets(texts: Mapping[str, str]) -> Targets:
    """Read the targets from strings, keyed by the names in `TARGETS`; an empty string sets no bound.

    Raises `InputError` if a string cannot be read, or a bound is impossible.

    >>> read_targets({"downtime-limit": "300ms", "min-guest-speed": "80%"}).description
    'downtime <= 300ms, guest speed >= 80%'
    """
    return Targets(**{item.field: item.read(texts[item.name], item.option) for item in TARGETS if texts.get(item.name)})


def read_settings(texts: Iterable[str], current: Settings | None = None) -> Settings:
    """Read QEMU's settings from strings such as ``downtime-limit=500``.

    Raises `InputError` if a string is not a setting.

    - `current`: settings that the strings do not change; by default QEMU's, with an unlimited bandwidth.

    >>> read_settings(["auto-converge=on"]).auto_converge
    True
    """
    others = {"max-bandwidth": 0} if current is None else current.changes_from(Settings())
    return Settings.of({**others, **read_named(texts)}).check()


def read_options(texts: Mapping[str, str | Sequence[str]], known: RunningGuest | None = None) -> RunningGuest:
    """Return a guest with values from strings, keyed by the names in `GUEST`; an empty string changes nothing.

    Dirty rates are added to those that are known for other times.

    Raises `InputError` if a string cannot be read, or values contradict each other.

    - `known`: the guest as QEMU reported it.

    >>> read_options({"vcpus": "8", "memory": "32G", "link": "10Gbit/s", "dirty": ["1000/s over 1G"]}).description
    '8 vCPUs, 32 GiB, 10Gbit/s; 1,000 writes/s over 1 GiB'
    """
    guest = known or RunningGuest()
    values: dict[str, Any] = {}
    for item in GUEST:
        given = texts.get(item.name) or ""
        if not given:
            continue
        if item.name == "dirty":
            rates = tuple(parse_dirty(text) for text in given)
            values["dirty"] = (*_other_times(guest.dirty, rates), *rates)
        elif item.name == "current":
            values["settings"] = read_settings(given, guest.settings)
        elif isinstance(given, str):
            values[item.field] = item.read(given, item.option)
    if "resident" in values:
        values["zeros"] = None
    if "link" in values:
        values["reached"] = False
    return replace(guest, **values)


def _other_times(
    known: Sequence[DirtyRate | DirtyingGuess], given: Sequence[DirtyRate | DirtyingGuess]
) -> list[DirtyRate]:
    """Known rates of other times than those given, without rates whose time is assumed; none if a model is given."""
    if any(isinstance(rate, DirtyingGuess) for rate in given):
        return []
    times = {rate.seconds for rate in given if isinstance(rate, DirtyRate)}
    measured = [rate for rate in known if isinstance(rate, DirtyRate) and rate.between_s is None]
    return [rate for rate in measured if rate.seconds not in times]
