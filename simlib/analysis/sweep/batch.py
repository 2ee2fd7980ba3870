# SPDX-License-Identifier: BSD-3-Clause
"""Task of a worker: simulate some points of a grid and return their rows."""

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
from simlib.analysis.sweep.point import GridPoint, Points, content_key, first_seed, scenario_text
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled
from simlib.simulator.workloads import build, kind_of
from simlib.simulator.workloads.metrics import split_name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Rows of some points.

    - `begin`, `end`: range of finished positions in the sweep's order; `end` may be lower than requested.
    - `seconds`: time that the worker needed.
    """

    begin: int
    end: int
    results: pa.Table
    refused: pa.Table
    seconds: float


def run_batch(grid: Grid, begin: int, end: int, time_limit: float) -> Batch:
    """Simulate the points at some positions of the sweep's order, until all are finished or the time limit is reached.

    Returns: Rows of at least one point. No new point is started after `time_limit` seconds.
    """
    _warm_up()
    start = time.perf_counter()
    _check(grid)
    points = Points(grid)
    rows: list[tuple[Any, ...]] = []
    refused: list[tuple[Any, ...]] = []
    done = begin
    for number in points.numbers(begin, end).tolist():
        if done > begin and time.perf_counter() - start > time_limit:
            break
        point = points[number]
        fault: SimlibError | None = point.refusal
        if point.scenario is not None:
            try:
                rows.append((*_labels(grid, point), *_row(grid, point.scenario)))
            except SimlibError as error:
                fault = error
        if fault is not None:
            refused.append((*_labels(grid, point), getattr(fault, "what", ""), str(fault), __version__))
        done += 1
    results, refusals = _table(rows, result_schema(grid)), _table(refused, refused_schema(grid))
    return Batch(begin, done, results, refusals, time.perf_counter() - start)


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """Load or compile the engine, so that no point's time includes this.

    Objects that exist by then are exempt from garbage collection, so that they are not scanned repeatedly.
    """
    compiled.run(build(Scenario.parse({"guest": {"memory_per_vcpu": "2M"}})))
    gc.freeze()


_checked: set[str] = set()
"""Digests of grids for which this worker computes the same results as the driver."""


def _check(grid: Grid) -> None:
    """Refuse a grid for which this worker would compute other results; each grid is checked once."""
    if grid.digest in _checked:
        return
    if replace(grid).digest != grid.digest:  # a copy computes its digest again, from the local files
        raise SimlibError(
            "a worker differs from the driver of the sweep in its version of simlib, its fits or its priors",
            "install the same simlib, with the same data, on all machines of the cluster",
        )
    _checked.add(grid.digest)


def _labels(grid: Grid, point: GridPoint) -> tuple[Any, ...]:
    variant = (point.variant,) if grid.scenario.variants else ()
    values = (axis.cell(value) for axis, value in zip(grid.axes, point.values, strict=True))
    return (point.number, *variant, point.architecture, point.policy, *values)


def _row(grid: Grid, scenario: Scenario) -> tuple[Any, ...]:
    text = scenario_text(scenario)
    seed = first_seed(scenario, grid.seed)
    values = replicate(grid, scenario, seed)
    mean, half = values.mean(axis=0), half_width(values, grid.replications.level)
    low = np.where((values < 0).any(axis=0), mean - half, np.maximum(mean - half, 0.0))
    numbers = np.array([mean, low, mean + half]).T.ravel().tolist()
    return (text, content_key(text, grid), seed, __version__, len(values), *numbers)


def replicate(grid: Grid, scenario: Scenario, seed: int) -> Floats:
    """Simulate a scenario until the metrics of the precision rule are precise enough, at most `most` times.

    Returns: ndarray, shape (replications, metrics). NaN if the workload has no such metric.
    """
    rule, names = grid.replications, grid.kept_metrics
    deciding = [names.index(name) for name in rule.of or kind_of(scenario).default_metrics if name in names]
    rows: list[list[float]] = []
    while len(rows) < rule.most:
        rows.append(_metrics(grid, scenario, seed + len(rows), names))
        if len(rows) >= max(rule.least, 2) and rule.precision and is_precise(rows, deciding, rule):
            break
    return np.array(rows)


def is_precise(rows: Sequence[Sequence[float]], columns: Sequence[int], rule: Replications) -> bool:
    """True if the intervals of the given columns are narrow enough; NaN is ignored.

    >>> rule = Replications(precision=0.1)
    >>> is_precise([[1.0, float("nan")], [1.0, float("nan")]], [0, 1], rule), is_precise([[1.0], [2.0]], [0], rule)
    (True, False)
    """
    count = len(rows)
    factor = _quantile(rule.level, count) / math.sqrt(count * (count - 1))
    for column in columns:  # arrays would take longer for so few numbers
        values = [row[column] for row in rows]
        mean = math.fsum(values) / count
        if factor * math.sqrt(math.fsum((value - mean) ** 2 for value in values)) > rule.precision * abs(mean):
            return False
    return True


def half_width(values: Floats, level: float) -> Floats:
    """Half the width of the t interval of each column's mean; NaN for a single row.

    >>> half_width(np.array([[1.0], [2.0]]), 0.9).round(3).tolist()
    [3.157]
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], np.nan)
    centred = values - values.sum(axis=0) / count  # takes a fifth of the time of .std() for so few numbers
    return np.asarray(_quantile(level, count) * np.sqrt((centred * centred).sum(axis=0) / (count * (count - 1))))


@lru_cache(maxsize=256)
def _quantile(level: float, count: int) -> float:
    return float(stdtrit(count - 1, 0.5 + level / 2))


def _metrics(grid: Grid, scenario: Scenario, seed: int, names: Sequence[str]) -> list[float]:
    run = run_scenario(scenario, seed=seed, pages_per_vcpu=grid.pages_per_vcpu)
    values = run.metrics
    # A metric of one iteration is NaN if the workload has none, or part of the memory is not enough for it.
    by_iteration = {name for name in names if split_name(name)[1] is not None and split_name(name)[0] in values}
    return [
        values[name] if name in values else run.value(name) if name in by_iteration else float("nan") for name in names
    ]


def _label_columns(grid: Grid) -> list[tuple[str, pa.DataType]]:
    variant = [("variant", pa.string())] if grid.scenario.variants else []
    axes = [(axis.column, _type(axis)) for axis in grid.axes]
    return [("point", pa.int64()), *variant, ("architecture", pa.string()), ("policy", pa.string()), *axes]


def _type(axis: Axis) -> pa.DataType:
    values = [axis.cell(value) for value in axis.values or (axis.at(0.0),)]
    for kind, column_type in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if all(isinstance(value, kind) for value in values):
            return column_type
    return pa.string()


def result_schema(grid: Grid) -> pa.Schema:
    """Columns of the results; ``architecture`` is stored in the name of a part's folder."""
    numbers = [(f"{name}{end}", pa.float64()) for name in grid.kept_metrics for end in ("", "_low", "_high")]
    return pa.schema([*_label_columns(grid), ("scenario", pa.string()), ("key", pa.string()), ("seed", pa.int64()),
                      ("version", pa.string()), ("replications", pa.int64()), *numbers])  # fmt: skip


def refused_schema(grid: Grid) -> pa.Schema:
    """Columns of the refused points."""
    return pa.schema([*_label_columns(grid), ("field", pa.string()), ("rule", pa.string()), ("version", pa.string())])


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema)
