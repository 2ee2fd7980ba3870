# SPDX-License-Identifier: BSD-3-Clause
"""What a worker does: simulate some points of a grid and give their rows."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib._lib.errors import SimlibError
from simlib._lib.version import __version__
from simlib.analysis.simulate import run_scenario
from simlib.analysis.sweep.axis import Axis
from simlib.analysis.sweep.grid import Grid, Replications
from simlib.analysis.sweep.point import GridPoint, Points, content_key, first_seed, text_of
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled
from simlib.simulator.workloads import build, kind_of
from simlib.simulator.workloads.metrics import split_name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """The rows of some points.

    - `begin`, `end`: positions in the sweep's order that were done; `end` may come before what was asked for.
    - `seconds`: time that the worker took.
    """

    begin: int
    end: int
    results: pa.Table
    refused: pa.Table
    seconds: float


def run_batch(grid: Grid, begin: int, end: int, enough: float) -> Batch:
    """Simulate the points at some positions of the sweep's order, until they are done or so many seconds are over.

    Returns: At least one point. After `enough` seconds no further one is begun.
    """
    _warm_up()
    begun = time.perf_counter()
    _check(grid)
    points = Points(grid)
    found: list[tuple[Any, ...]] = []
    refused: list[tuple[Any, ...]] = []
    done = begin
    for number in points.numbers(begin, end).tolist():
        if done > begin and time.perf_counter() - begun > enough:
            break
        point = points[number]
        fault: SimlibError | None = point.refusal
        if point.scenario is not None:
            try:
                found.append((*_labels(grid, point), *_row(grid, point.scenario)))
            except SimlibError as error:
                fault = error
        if fault is not None:
            refused.append((*_labels(grid, point), getattr(fault, "what", ""), str(fault), __version__))
        done += 1
    results, rest = _table(found, result_schema(grid)), _table(refused, refused_schema(grid))
    return Batch(begin, done, results, rest, time.perf_counter() - begun)


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """Load or compile the engine, which is no part of any point's time.

    What has been imported by then stays: Python is not to look through all of it for garbage again and again.
    """
    compiled.run(build(Scenario.parse({"guest": {"memory_per_vcpu": "2M"}})))
    gc.freeze()


_checked: set[str] = set()
"""Digests of grids that are the same here."""


def _check(grid: Grid) -> None:
    """Refuse a grid of which this worker would compute something else; looked at once."""
    if grid.digest in _checked:
        return
    if replace(grid).digest != grid.digest:  # a copy knows no digest yet: it is found anew, by what is here
        raise SimlibError(
            "a worker has another version of simlib, other fits or other priors than whoever started the sweep",
            "install the same simlib, with the same data, on all of the cluster",
        )
    _checked.add(grid.digest)


def _labels(grid: Grid, point: GridPoint) -> tuple[Any, ...]:
    variant = (point.variant,) if grid.scenario.variants else ()
    values = (axis.cell(value) for axis, value in zip(grid.axes, point.values, strict=True))
    return (point.number, *variant, point.architecture, point.policy, *values)


def _row(grid: Grid, scenario: Scenario) -> tuple[Any, ...]:
    text = text_of(scenario)
    seed = first_seed(scenario, grid.seed)
    values = replicate(grid, scenario, seed)
    mean, half = values.mean(axis=0), half_width(values, grid.replications.level)
    low = np.where((values < 0).any(axis=0), mean - half, np.maximum(mean - half, 0.0))
    numbers = np.array([mean, low, mean + half]).T.ravel().tolist()
    return (text, content_key(text, grid), seed, __version__, len(values), *numbers)


def replicate(grid: Grid, scenario: Scenario, seed: int) -> Floats:
    """Simulate a scenario until the metrics that decide are known precisely enough.

    Returns: ndarray, shape (replications, metrics). NaN where the workload has no such metric.
    """
    rule, kept = grid.replications, grid.kept
    decide = [kept.index(name) for name in rule.of or kind_of(scenario).default if name in kept]
    rows: list[list[float]] = []
    while len(rows) < rule.most:
        rows.append(_metrics(grid, scenario, seed + len(rows), kept))
        if len(rows) >= max(rule.least, 2) and rule.precision and precise(rows, decide, rule):
            break
    return np.array(rows)


def precise(rows: Sequence[Sequence[float]], columns: Sequence[int], rule: Replications) -> bool:
    """Whether the intervals of some columns are narrow enough; one that is unknown does not matter.

    >>> rule = Replications(precision=0.1)
    >>> precise([[1.0, float("nan")], [1.0, float("nan")]], [0, 1], rule), precise([[1.0], [2.0]], [0], rule)
    (True, False)
    """
    count = len(rows)
    reach = _quantile(rule.level, count) / math.sqrt(count * (count - 1))
    for column in columns:  # so few numbers that arrays would take longer
        values = [row[column] for row in rows]
        mean = math.fsum(values) / count
        if reach * math.sqrt(math.fsum((value - mean) ** 2 for value in values)) > rule.precision * abs(mean):
            return False
    return True


def half_width(values: Floats, level: float) -> Floats:
    """Half the width of the t interval of each column's mean; NaN of a single row.

    >>> half_width(np.array([[1.0], [2.0]]), 0.9).round(3).tolist()
    [3.157]
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], np.nan)
    apart = values - values.sum(axis=0) / count  # of so few numbers, a fifth of the time that .std() takes
    return np.asarray(_quantile(level, count) * np.sqrt((apart * apart).sum(axis=0) / (count * (count - 1))))


@lru_cache(maxsize=256)
def _quantile(level: float, count: int) -> float:
    return float(stdtrit(count - 1, 0.5 + level / 2))


def _metrics(grid: Grid, scenario: Scenario, seed: int, kept: Sequence[str]) -> list[float]:
    run = run_scenario(scenario, seed=seed, pages_per_vcpu=grid.pages_per_vcpu)
    known = run.metrics
    # Of one iteration: NaN where the workload has none, or a part of the memory does not tell it.
    rounds = {name for name in kept if split_name(name)[1] is not None and split_name(name)[0] in known}
    return [known[name] if name in known else run.value(name) if name in rounds else float("nan") for name in kept]


def _labelled(grid: Grid) -> list[tuple[str, pa.DataType]]:
    variant = [("variant", pa.string())] if grid.scenario.variants else []
    axes = [(axis.column, _type(axis)) for axis in grid.axes]
    return [("point", pa.int64()), *variant, ("architecture", pa.string()), ("policy", pa.string()), *axes]


def _type(axis: Axis) -> pa.DataType:
    values = [axis.cell(value) for value in axis.values or (axis.at(0.0),)]
    for kind, found in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if all(isinstance(value, kind) for value in values):
            return found
    return pa.string()


def result_schema(grid: Grid) -> pa.Schema:
    """The columns of the results; ``architecture`` is the name of a part's folder."""
    numbers = [(f"{name}{end}", pa.float64()) for name in grid.kept for end in ("", "_low", "_high")]
    return pa.schema([*_labelled(grid), ("scenario", pa.string()), ("key", pa.string()), ("seed", pa.int64()),
                      ("version", pa.string()), ("replications", pa.int64()), *numbers])  # fmt: skip


def refused_schema(grid: Grid) -> pa.Schema:
    """The columns of what was refused."""
    return pa.schema([*_labelled(grid), ("field", pa.string()), ("rule", pa.string()), ("version", pa.string())])


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema)
