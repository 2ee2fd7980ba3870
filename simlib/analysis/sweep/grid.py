# SPDX-License-Identifier: BSD-3-Clause
"""Grid of a sweep, read from a file and checked; its points are counted but not built."""

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

MAX_POINTS = 10**8
"""Largest number of points of a grid: the driver keeps one byte per point."""

DESIGNS = ("full", "latin_hypercube", "sobol")
"""Designs: all combinations, or a number of points that fill the space evenly."""

MAX_COORDINATES = 2**23
"""Largest number of points × axes of a sampled design: every worker keeps them, 8 bytes each."""


@dataclass(frozen=True)
class Design(rules.Checked):
    """Choice of points.

    - `kind`: one of `DESIGNS`.
    - `points`: number of points of ``latin_hypercube`` and ``sobol``, for ``sobol`` a power of 2, which keeps the
      sequence balanced.
    - `seed`: random seed of the design.
    """

    kind: str = rules.rule(rules.choice(*DESIGNS), "full")
    points: int = rules.rule(rules.whole(0, 2**20), 0)
    seed: int = rules.rule(rules.whole(0, 2**31), 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "full" and self.points:
            raise InputError("design.points", self.points, "a full design has all combinations",
                             'remove it, or write kind = "sobol"')  # fmt: skip
        if self.kind != "full" and not self.points:
            raise InputError(
                "design.points", self.points, f"{self.kind} needs a number of points", "write points = 1024"
            )
        if self.kind == "sobol" and self.points & (self.points - 1):
            raise InputError("design.points", self.points, "a Sobol sequence needs a power of 2 to be balanced",
                             f"write {1 << self.points.bit_length()}")  # fmt: skip


@lru_cache(maxsize=2)
def unit_cube(kind: str, points: int, dimensions: int, seed: int) -> NDArray[np.float64]:
    """Return the points of a Latin hypercube or a scrambled Sobol sequence.

    Returns: ndarray, shape (points, dimensions), within [0, 1). It takes 8 bytes per coordinate, and up to three times
    as much while it is computed: 64 MiB and 192 MiB for `MAX_COORDINATES`.

    >>> sorted((unit_cube("latin_hypercube", 4, 1, 1)[:, 0] * 4).astype(int).tolist())
    [0, 1, 2, 3]
    """
    from scipy.stats import qmc  # noqa: PLC0415  # a third of a worker's import time; a full design does not need it

    sampler = (qmc.LatinHypercube if kind == "latin_hypercube" else qmc.Sobol)(d=dimensions, rng=seed)
    return np.asarray(sampler.random(points), dtype=np.float64)


@dataclass(frozen=True)
class Replications(rules.Checked):
    """Number of replications of each point.

    - `least`, `most`: initial and maximum number; more follow one at a time until the precision or `most` is reached.
    - `precision`: maximum half-width of the interval, relative to the mean, for every metric in `of`; 0: always `most`
      replications.
    - `level`: confidence level of the intervals.
    - `of`: metrics that must reach the precision; empty: the default metrics of the workload.
    """

    least: int = rules.rule(rules.whole(1, 10**6), 3)
    most: int = rules.rule(rules.whole(1, 10**6), 10)
    precision: float = rules.rule(rules.number(0, 1), 0.05)
    level: float = rules.rule(rules.number(0.5, 0.999), 0.9)
    of: tuple[str, ...] = rules.rule(rules.names, (), list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < self.least:
            raise InputError("replications.most", self.most, f"must be at least {self.least}, the value of least")


@dataclass(frozen=True)
class Grid:
    """Description of a sweep's points.

    - `scenario`: base of every point; all of its variants are swept.
    - `axes`: fields and values; the last axis varies fastest.
    - `unknown_costs`: treatment of a cost that neither the scenario nor the shipped fit of its host has. ``median``:
      the median of its prior. ``exact``: a point that spends such a cost is refused.
    - `pages_per_vcpu`: maximum number of simulated pages per vCPU; results are scaled. None: all pages.
    - `metrics`: metrics to keep; empty: all of the workload.
    - `seed`: random seed.
    """

    scenario: Scenario
    axes: tuple[Axis, ...] = ()
    architectures: tuple[str, ...] = ()
    policies: tuple[str, ...] = (BASELINE,)
    design: Design = field(default_factory=Design)
    replications: Replications = field(default_factory=Replications)
    unknown_costs: str = "median"
    pages_per_vcpu: int | None = None
    metrics: tuple[str, ...] = ()
    seed: int = 1

    @property
    def places(self) -> int:
        """Number of places: combinations of the axes' values, or points of a sampled design."""
        return self.design.points or math.prod(len(axis.values) for axis in self.axes)

    @property
    def points(self) -> int:
        """Number of points: cases × places × policies."""
        return len(self.cases) * self.places * len(self.policies)

    @cached_property
    def cases(self) -> tuple[tuple[str, Scenario], ...]:
        """Scenarios to which the axes are applied: variants by name, or the scenario on each architecture."""
        if self.scenario.variants:
            return tuple(self.scenario.variants.items())
        changed = [self.scenario.changed({"policy": {"architecture": name}}) for name in self.architectures]
        return tuple(("", case) for case in changed) or (("", self.scenario),)

    @cached_property
    def digest(self) -> str:
        """Identity of the sweep's results: equal for equal grids with the same simlib, fits and priors."""
        text = json.dumps(
            [__version__, self._cost_digests(), self.scenario.to_toml(), [repr(axis) for axis in self.axes],
             self.architectures, self.policies, repr(self.design), repr(self.replications), self.unknown_costs,
             self.pages_per_vcpu, self.metrics, self.seed],
        )  # fmt: skip
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _cost_digests(self) -> list[str]:
        """Digests of the files that determine costs: the fits of the hosts, and the priors."""
        hosts = {case.host.name for _, case in self.cases} | self._axis_values("host", "name")
        paths = [path for path in map(fit_path, sorted(hosts)) if path is not None]
        if self.unknown_costs == "median":
            paths.append(priors_path())
        return [hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in paths]

    def _axis_values(self, section: str, key: str) -> set[Any]:
        return {value for axis in self.axes if (axis.section, axis.key) == (section, key) for value in axis.values}

    @cached_property
    def settings(self) -> str:
        """Settings that determine the results of a point in addition to its scenario."""
        return repr((__version__, self.seed, self.metrics, self.replications, self.pages_per_vcpu))

    @cached_property
    def kept_metrics(self) -> tuple[str, ...]:
        """Names of the metrics to keep, in the order of their columns."""
        kinds = self._axis_values("workload", "kind") | {
            str(policy(name).changes.get("workload", {}).get("kind", "")) for name in self.policies if name != BASELINE
        }
        kinds |= {case.workload.kind for _, case in self.cases}
        known = dict.fromkeys(metric.name for name in sorted(kinds - {""}) for metric in KINDS[name].metrics)
        for name in (*self.metrics, *self.replications.of):
            if split_name(name)[0] not in known:
                raise InputError("metric", name, "the workload has no metric of this name", nearest(name, known))
        return self.metrics or tuple(known)


def read_grid(tables: Mapping[str, Any]) -> Grid:
    """Read a grid from the tables of its file.

    Raises `InputError` on an unknown key, an invalid value, more points than `MAX_POINTS`, or a sampled
    design with more than `MAX_COORDINATES`.

    >>> grid = read_grid({"policies": ["baseline", "every-64"], "architectures": ["arm64", "riscv"],
    ...                   "axes": {"guest": {"vcpus": [1, 2, 4]}}})
    >>> grid.points
    12
    >>> read_grid({"axes": {"guest": {"vcpu": [1]}}})
    Traceback (most recent call last):
    ...
    simlib.InputError: axes.guest.vcpu = …: unknown key; did you mean 'vcpus'? known: ...
    """
    keys = {f.name for f in fields(Grid)}
    for key in tables:
        if key not in keys:
            raise InputError(key, "…", "unknown key", nearest(key, keys))
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
        unknown_costs=rules.choice("exact", "median")(tables.get("unknown_costs", "median"), "unknown_costs"),
        pages_per_vcpu=(
            rules.whole(64, 2**40)(tables["pages_per_vcpu"], "pages_per_vcpu") if "pages_per_vcpu" in tables else None
        ),
        metrics=_names(tables, "metrics"),
        seed=rules.whole(0, 2**31)(tables.get("seed", 1), "seed"),
    )
    if scenario.variants and grid.architectures:
        raise InputError("architectures", ", ".join(grid.architectures), "the scenario's variants set the architecture",
                         "remove the architectures or the variants")  # fmt: skip
    if design.kind != "full" and not axes:
        raise InputError("axes", "", f"a {design.kind} design needs at least one axis", "add one, such as [axes.guest]")
    if design.points * len(axes) > MAX_COORDINATES:
        raise InputError("design.points", f"{design.points:,}",
                         f"a {design.kind} design has at most {MAX_COORDINATES:,} coordinates (points × axes), not "
                         f"{design.points * len(axes):,}", "use fewer points or fewer axes")  # fmt: skip
    for name in grid.policies:
        if name != BASELINE:
            policy(name)
    if grid.points > MAX_POINTS:
        raise InputError("points", f"{grid.points:,}", f"a sweep has at most {MAX_POINTS:,}",
                         'use fewer values, or a design with kind = "sobol"')  # fmt: skip
    grid.kept_metrics  # noqa: B018  # refuses unknown metrics
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
    names = rules.names(tables.get(key, []), key)
    check_distinct(names, names, key)
    return names
