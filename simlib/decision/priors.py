# SPDX-License-Identifier: BSD-3-Clause
"""What is believed of a cost that nobody has calibrated, and the guest that a choice is made for by default.

Both are data: ``data/priors/costs.toml`` with the source of every number, and ``data/priors/scenario.toml``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scipy.special import ndtri

from simlib.measurements import data_dir
from simlib.model.architectures import architecture
from simlib.model.costs import Costs
from simlib.model.pagetable import PageTable
from simlib.model.quantities import parse_duration, parse_size
from simlib.model.scenario import Scenario, load_scenario
from simlib.reading import read_toml

LEVEL = 0.90
"""Probability that a cost lies between median / factor and median × factor."""

_QUANTILE = float(ndtri(0.5 + LEVEL / 2))


@dataclass(frozen=True)
class Prior:
    """A lognormal distribution of one cost.

    - `median`: picoseconds, or dimensionless; 0: the cost is not paid.
    - `factor`: the cost lies between median / factor and median × factor with probability `LEVEL`.
    - `source`: where the number comes from, in words; it begins with ``assumed`` where nothing is published.
    - `tables`: the published tables that it was read from.

    >>> Prior(600e3, 2.0, "assumed").deviation
    0.42140...
    """

    median: float
    factor: float
    source: str
    tables: tuple[str, ...] = ()

    @property
    def deviation(self) -> float:
        """Standard deviation of the natural logarithm."""
        return math.log(self.factor) / _QUANTILE


def priors_path() -> Path:
    """The file of the priors of all costs (``data/priors/costs.toml``)."""
    return data_dir() / "priors" / "costs.toml"


def load_priors(name: str) -> dict[str, Prior]:
    """The prior of every cost, for one architecture.

    Raises `InputError` if the architecture is unknown.

    - `name`: the architecture; what stands in the file for its family (the name up to the first hyphen) goes first.

    >>> load_priors("arm64-2022")["clear_page"].median, load_priors("x86-tdp")["clear_page"].factor
    (30000.0, 1.7)
    """
    family = architecture(name).name.partition("-")[0]
    return dict(_priors(family))


@lru_cache(maxsize=16)
def _priors(family: str) -> Mapping[str, Prior]:
    """What the file says of a family, read once."""
    tables = read_toml(priors_path(), "a list of priors (TOML)")
    priors = {}
    for cost in (f.name for f in dataclasses.fields(Costs)):
        row: Mapping[str, Any] = tables[cost].get(family, tables[cost])
        median = row["median"]
        value = float(median if cost == "fault_jitter" else parse_duration(median, f"{cost}.median"))
        priors[cost] = Prior(value, float(row["factor"]), row["source"], tuple(row.get("tables", ())))
    return priors


def standard_architectures() -> tuple[str, ...]:
    """The architectures that are compared unless one is named.

    >>> standard_architectures()[0], len(standard_architectures())
    ('x86-tdp', 7)
    """
    return tuple(_standard().variants)


def standard_scenario(name: str, vcpus: int | None = None) -> Scenario:
    """The guest and its migration for which a choice is made where only the architecture is given.

    Raises `InputError` if the architecture is unknown, or the number of vCPUs out of bounds.

    - `name`: a name of `simlib.model.architectures.ARCHITECTURES`.
    - `vcpus`: instead of the file's. The memory is rounded up to whole blocks for each.

    >>> standard = standard_scenario("riscv-spinlock", vcpus=48)
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

    >>> with_guest(standard_scenario("arm64"), {"guest": {"vcpus": 100}}).guest.memory // 2**20
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
    """What the file says, read once."""
    return load_scenario(data_dir() / "priors" / "scenario.toml")
