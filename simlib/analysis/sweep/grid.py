# SPDX-License-Identifier: BSD-3-Clause
"""What a sweep is to compute: a grid file, read and checked; its points are counted, none of them is built."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simlib._lib.errors import InputError, nearest
from simlib._lib.reading import read_toml
from simlib._lib.version import __version__
from simlib.analysis.sweep.axis import Axis, check_distinct, read_axis
from simlib.measurements.fits import fit_path
from simlib.measurements.fits.priors import priors_path
from simlib.model import rules
from simlib.model.architectures import architecture
from simlib.model.costs import Calibration
from simlib.model.policies import BASELINE, policy
from simlib.model.scenario import Scenario, parsed
from simlib.simulator.workloads import KINDS
from simlib.simulator.workloads.metrics import split_name

MOST_POINTS = 10**8
"""Most points of a grid: what is finished is remembered as one byte each."""

DESIGNS = ("full", "latin_hypercube", "sobol")
"""Every combination, or so many points that fill the space evenly."""

MOST_SAMPLED = 2**20
"""Most points of a Latin hypercube or a Sobol sequence."""

MOST_COORDINATES = 2**23
"""Most points × axes of one: every worker keeps them, 8 bytes each."""


@dataclass(frozen=True)
class Design(rules.Checked):
    """How points are chosen.

    - `kind`: one of `DESIGNS`.
    - `points`: of ``latin_hypercube`` and ``sobol``; of the latter a power of 2 keeps the balance of the sequence.
    - `seed`: of their randomisation.
    """

    kind: str = rules.rule(rules.choice(*DESIGNS), "full")
    points: int = rules.rule(rules.whole(0, MOST_SAMPLED), 0)
    seed: int = rules.rule(rules.whole(0, 2**31), 1)

    def __post_init__(self) -> None:
        """Check that a number of points stands where there is one."""
        super().__post_init__()
        if self.kind == "full" and self.points:
            raise InputError("design.points", self.points, "a full design has all combinations",
                             'leave it out, or write kind = "sobol"')  # fmt: skip
        if self.kind != "full" and not self.points:
            raise InputError(
                "design.points", self.points, f"{self.kind} needs a number of points", "write points = 1024"
            )
        if self.kind == "sobol" and self.points & (self.points - 1):
            raise InputError("design.points", self.points, "a Sobol sequence is balanced at powers of 2 alone",
                             f"write {1 << self.points.bit_length()}")  # fmt: skip


@lru_cache(maxsize=2)
def unit_cube(kind: str, points: int, dimensions: int, seed: int) -> NDArray[np.float64]:
    """Points of a Latin hypercube or a scrambled Sobol sequence.

    Returns: ndarray, shape (points, dimensions). Within [0, 1); 8 bytes a coordinate, and up to three times as much
    while they are drawn. A grid has at most `MOST_COORDINATES`: 64 MiB, and 192 MiB.

    >>> sorted((unit_cube("latin_hypercube", 4, 1, 1)[:, 0] * 4).astype(int).tolist())
    [0, 1, 2, 3]
    """
    from scipy.stats import qmc  # noqa: PLC0415  # a third of a worker's imports; a full design needs none

    sampler = (qmc.LatinHypercube if kind == "latin_hypercube" else qmc.Sobol)(d=dimensions, rng=seed)
    return np.asarray(sampler.random(points), dtype=np.float64)


@dataclass(frozen=True)
class Replications(rules.Checked):
    """How often each point is simulated.

    - `least`, `most`: the first so many at once; then one more after another until the precision is reached, or up to
      the cap.
    - `precision`: half the interval's width over the mean that every metric of `of` is to reach; 0: always `most`.
    - `level`: probability of the intervals.
    - `of`: metrics that decide; empty: those that a prediction of the workload gives.
    """

    least: int = rules.rule(rules.whole(1, 10**6), 3)
    most: int = rules.rule(rules.whole(1, 10**6), 10)
    precision: float = rules.rule(rules.number(0, 1), 0.05)
    level: float = rules.rule(rules.number(0.5, 0.999), 0.9)
    of: tuple[str, ...] = rules.rule(rules.names, (), list)

    def __post_init__(self) -> None:
        """Check that the cap is no less than what is always done."""
        super().__post_init__()
        if self.most < self.least:
            raise InputError("replications.most", self.most, f"must be at least {self.least}, which are always made")


@dataclass(frozen=True)
class Grid:
    """A sweep's points, described.

    - `scenario`: what every point begins from; its variants, if there are any, are swept alike.
    - `axes`: the last one changes first from point to point.
    - `costs`: those of the scenario, else the shipped fit's of its machine. ``median``: what neither has is taken from
      the priors. ``exact``: a point that spends such a cost is refused.
    - `pages_per_vcpu`: simulate at most so many pages a vCPU and scale; None: all of them.
    - `metrics`: those that are kept; empty: all that the workload has.
    - `seed`: root of all random streams.
    """

    scenario: Scenario
    axes: tuple[Axis, ...] = ()
    architectures: tuple[str, ...] = ()
    policies: tuple[str, ...] = (BASELINE,)
    design: Design = field(default_factory=Design)
    replications: Replications = field(default_factory=Replications)
    costs: str = "median"
    pages_per_vcpu: int | None = None
    metrics: tuple[str, ...] = ()
    seed: int = 1

    @property
    def places(self) -> int:
        """Places of the axes that are visited."""
        return self.design.points or math.prod(len(axis.values) for axis in self.axes)

    @property
    def points(self) -> int:
        """Points in all: cases × places × policies."""
        return len(self.cases) * self.places * len(self.policies)

    @cached_property
    def cases(self) -> tuple[tuple[str, Scenario], ...]:
        """What the axes are applied to: variants by name, or the scenario on each architecture."""
        if self.scenario.variants:
            return tuple(self.scenario.variants.items())
        changed = [self.scenario.changed({"policy": {"architecture": name}}) for name in self.architectures]
        return tuple(("", case) for case in changed) or (("", self.scenario),)

    @cached_property
    def digest(self) -> str:
        """A name for what will be computed: grids that say the same, with the same calibrated costs, have the same."""
        text = json.dumps(
            [__version__, self._calibrated(), self.scenario.to_toml(), [repr(axis) for axis in self.axes],
             self.architectures, self.policies, repr(self.design), repr(self.replications), self.costs,
             self.pages_per_vcpu, self.metrics, self.seed],
        )  # fmt: skip
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _calibrated(self) -> list[str]:
        """Digests of the files that points take costs from: the fits of their machines, and the priors."""
        machines = {case.host.name for _, case in self.cases} | self._swept("host", "name")
        paths = [path for path in map(fit_path, sorted(machines)) if path is not None]
        if self.costs == "median":
            paths.append(priors_path())
        return [hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in paths]

    def _swept(self, section: str, key: str) -> set[Any]:
        """The values that an axis gives a field."""
        return {value for axis in self.axes if (axis.section, axis.key) == (section, key) for value in axis.values}

    @cached_property
    def how(self) -> str:
        """What decides about a point's numbers beside its scenario."""
        return repr((__version__, self.seed, self.metrics, self.replications, self.pages_per_vcpu))

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The metrics that are kept, in the order of their columns."""
        kinds = self._swept("workload", "kind") | {
            str(policy(name).changes.get("workload", {}).get("kind", "")) for name in self.policies if name != BASELINE
        }
        kinds |= {case.workload.kind for _, case in self.cases}
        known = dict.fromkeys(metric.name for name in sorted(kinds - {""}) for metric in KINDS[name].metrics)
        for name in (*self.metrics, *self.replications.of):
            if split_name(name)[0] not in known:
                raise InputError("metric", name, "the workload has none of this name", nearest(name, known))
        return self.metrics or tuple(known)


_KEYS = {f.name for f in fields(Grid)}


def read_grid(tables: Mapping[str, Any]) -> Grid:
    """A grid from the tables of its file.

    Raises `InputError` on an unknown key, a value that breaks its rule, more points than `MOST_POINTS`, or a sampled
    design of more than `MOST_COORDINATES`.

    >>> grid = read_grid({"policies": ["baseline", "every-64"], "architectures": ["arm64", "riscv"],
    ...                   "axes": {"guest": {"vcpus": [1, 2, 4]}}})
    >>> grid.points
    12
    >>> read_grid({"axes": {"guest": {"vcpu": [1]}}})
    Traceback (most recent call last):
    ...
    simlib.InputError: axes.guest.vcpu = …: unknown key; did you mean 'vcpus'? known: ...
    """
    for key in tables:
        if key not in _KEYS:
            raise InputError(key, "…", "unknown key", nearest(key, _KEYS))
    design = Design(**parsed(Design, _table(tables.get("design", {}), "design"), "design"))
    axes_given = _table(tables.get("axes", {}), "axes")
    axes = tuple(
        read_axis(section, key, given, design.kind != "full")
        for section, rows in axes_given.items()
        for key, given in _table(rows, f"axes.{section}").items()
    )
    replications = _table(tables.get("replications", {}), "replications")
    scenario = Scenario.parse(_table(tables.get("scenario", {}), "scenario"), "scenario.")
    scenario = replace(scenario, calibration=Calibration())
    grid = Grid(
        scenario=scenario,
        axes=axes,
        architectures=tuple(architecture(name).name for name in _names(tables, "architectures")),
        policies=_names(tables, "policies") or (BASELINE,),
        design=design,
        replications=Replications(**parsed(Replications, replications, "replications")),
        costs=rules.choice("exact", "median")(tables.get("costs", "median"), "costs"),
        pages_per_vcpu=(
            rules.whole(64, 2**40)(tables["pages_per_vcpu"], "pages_per_vcpu") if "pages_per_vcpu" in tables else None
        ),
        metrics=_names(tables, "metrics"),
        seed=rules.whole(0, 2**31)(tables.get("seed", 1), "seed"),
    )
    if scenario.variants and grid.architectures:
        raise InputError("architectures", ", ".join(grid.architectures), "the scenario's variants have their own",
                         "leave one of them out")  # fmt: skip
    if design.kind != "full" and not axes:
        raise InputError("axes", "", f"a {design.kind} needs at least one", "write one, such as [axes.guest]")
    if design.points * len(axes) > MOST_COORDINATES:
        raise InputError("design.points", f"{design.points:,}",
                         f"a {design.kind} has at most {MOST_COORDINATES:,} coordinates, points × axes, and not "
                         f"{design.points * len(axes):,}", "take fewer points or fewer axes")  # fmt: skip
    for name in grid.policies:
        if name != BASELINE:
            policy(name)
    if grid.points > MOST_POINTS:
        raise InputError("points", f"{grid.points:,}", f"a sweep has at most {MOST_POINTS:,}",
                         'take fewer values, or a design of kind = "sobol"')  # fmt: skip
    grid.kept  # noqa: B018  # refuses metrics that are unknown
    return grid


def load_grid(path: str | Path) -> Grid:
    """Read a grid file (docs/sweeps.md lists its keys).

    Raises `InputError` if the file cannot be read, is not UTF-8 or TOML, or breaks a rule.
    """
    return read_grid(read_toml(path, "a grid file (TOML)"))


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(where, given, f"must be a table: write [{where}]")
    return given


def _names(tables: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = rules.names(tables.get(key, []), key)
    check_distinct(found, found, key)
    return found
