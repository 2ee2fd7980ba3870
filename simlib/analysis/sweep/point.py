# SPDX-License-Identifier: BSD-3-Clause
"""Points of a grid by their numbers: scenario or refusal, content key and seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from simlib._lib.errors import InputError
from simlib.analysis.sweep.grid import Grid, unit_cube
from simlib.measurements.fits import UncertainCosts, choose_fit
from simlib.model.costs import Costs
from simlib.model.policies import BASELINE, policy
from simlib.model.scenario import SECTIONS, Scenario, section_differences, sections
from simlib.model.workload import Workload

_KEPT = 4096
"""Size of the caches of scenario sections: neighbouring points differ in few sections."""


@dataclass(frozen=True)
class GridPoint:
    """Point of a grid.

    - `values`: values of the axes in the format of a scenario file.
    - `scenario`: the scenario with its costs; None if a rule refuses it.
    - `refusal`: the error of that rule.
    """

    number: int
    variant: str
    policy: str
    architecture: str
    values: tuple[Any, ...]
    scenario: Scenario | None
    refusal: InputError | None = None


class Points:
    """Sequence of the points of a grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._per_case = grid.places * len(grid.policies)
        self._stride = _coprime(self._per_case)

    def numbers(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the points at a range of positions in the sweep's order.

        The cases follow one another. Within a case, the stride is nearly a golden section, so that slow and fast
        points are mixed and the remaining time can be estimated from the finished points.

        >>> from simlib.analysis.sweep.grid import read_grid
        >>> Points(read_grid({"axes": {"guest": {"vcpus": [1, 2, 3, 4, 5]}}})).numbers(0, 5).tolist()
        [0, 3, 1, 4, 2]
        """
        case, place = np.divmod(np.arange(begin, end, dtype=np.int64), self._per_case)
        return np.asarray(case * self._per_case + place * self._stride % self._per_case)

    def __getitem__(self, number: int) -> GridPoint:
        case, offset = divmod(number, self._per_case)
        place, policy_index = divmod(offset, len(self.grid.policies))
        variant, base = self.grid.cases[case]
        name, values = self.grid.policies[policy_index], self._values(place)
        architecture = base.policy.architecture
        try:
            return GridPoint(number, variant, name, architecture, values, self._scenario(base, name, values))
        except InputError as error:
            return GridPoint(number, variant, name, architecture, values, None, error)

    def _values(self, place: int) -> tuple[Any, ...]:
        axes, design = self.grid.axes, self.grid.design
        if design.kind != "full":
            shares = unit_cube(design.kind, design.points, len(axes), design.seed)[place].tolist()
            return tuple(axis.at(share) for axis, share in zip(axes, shares, strict=True))
        indices = np.unravel_index(place, tuple(len(axis.values) for axis in axes))
        return tuple(axis.values[index] for axis, index in zip(axes, indices, strict=True))

    def _scenario(self, base: Scenario, name: str, values: tuple[Any, ...]) -> Scenario:
        parts = {section: getattr(base, section) for section in SECTIONS}
        for section, indices in self._by_section.items():
            changes = tuple((self.grid.axes[i].key, values[i]) for i in indices)
            parts[section] = _changed(section, parts[section], changes)
        if name != BASELINE:
            for section, table in _policy_tables(name, parts["policy"].architecture):
                parts[section] = _changed(section, parts[section], table)
        if self.grid.unknown_costs == "exact":
            scenario = Scenario(**parts, cost_group=base.cost_group)
            return UncertainCosts.of(scenario, choose_fit(scenario)[0]).exact()
        kind = parts["workload"].kind
        parts["costs"] = _costs(parts["host"], parts["policy"], parts["costs"], kind, base.cost_group)
        return Scenario(**parts, cost_group=base.cost_group)

    @cached_property
    def _by_section(self) -> Mapping[str, list[int]]:
        """Indices of the axes of each section."""
        indices: dict[str, list[int]] = {}
        for index, axis in enumerate(self.grid.axes):
            indices.setdefault(axis.section, []).append(index)
        return indices


def _coprime(count: int) -> int:
    """First number, starting with a golden section of `count`, that is coprime to `count`."""
    stride = max(1, round(count * 0.6180339887498949))
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride % count or 1


@lru_cache(maxsize=_KEPT)
def _changed(section: str, base: Any, changes: tuple[tuple[str, Any], ...]) -> Any:
    return sections({section: dict(changes)}, "", SimpleNamespace(**{section: base}))[section]


@lru_cache(maxsize=256)
def _policy_tables(name: str, architecture: str) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
    tables = policy(name).tables(architecture)
    return tuple((section, tuple(table.items())) for section, table in tables.items())


@lru_cache(maxsize=_KEPT)
def _costs(host: Any, policy_: Any, costs: Costs, kind: str, group: str) -> Costs:
    """Costs of a scenario at their medians, which depend only on the arguments."""
    scenario = Scenario(host=host, policy=policy_, workload=Workload(kind=kind), costs=costs, cost_group=group)
    return UncertainCosts.of(scenario, choose_fit(scenario)[0]).central().costs


def scenario_text(scenario: Scenario) -> str:
    """Return a scenario in the format of its file.

    >>> scenario_text(Scenario().with_vcpus(4))
    '[guest]\\nvcpus = 4\\nmemory_per_vcpu = "1G"\\n'
    """
    parts = (_section_text(name, getattr(scenario, name)) for name in SECTIONS)
    group = tomli_w.dumps({"cost_group": scenario.cost_group}) if scenario.cost_group else ""
    return "\n".join(part for part in (group, *parts) if part)


@lru_cache(maxsize=_KEPT)
def _section_text(name: str, section: Any) -> str:
    rows = section_differences(section, SECTIONS[name]())
    return tomli_w.dumps({name: rows}) if rows else ""


def content_key(text: str, grid: Grid) -> str:
    """Key of a point's content, which is the same in every sweep.

    The content consists of the scenario's text (`scenario_text`) and the grid's seed, metrics, replications and
    sampling, but not the axes.

    >>> first, second = Grid(Scenario()), Grid(Scenario(), seed=2)
    >>> len(content_key("", first)), content_key("", first) == content_key("", second)
    (32, False)
    """
    return hashlib.blake2b(f"{grid.settings}\n{text}".encode(), digest_size=16).hexdigest()


def first_seed(scenario: Scenario, seed: int) -> int:
    """Seed of a point's first replication; later replications use the next seeds.

    It depends only on the host, the guest and the workload, so that policies, architectures and costs are compared with
    common random numbers.

    >>> base, ticket = Scenario(), Scenario.parse({"policy": {"lock": "ticket"}})
    >>> first_seed(base, 1) == first_seed(ticket, 1), first_seed(base, 1) == first_seed(base.with_vcpus(2), 1)
    (True, False)
    """
    parts = (_section_text(name, getattr(scenario, name)) for name in ("host", "guest", "workload"))
    return int.from_bytes(hashlib.blake2b("\n".join((str(seed), *parts)).encode(), digest_size=4).digest()) >> 1
