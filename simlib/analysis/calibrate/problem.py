# SPDX-License-Identifier: BSD-3-Clause
"""Calibration problem: measurements paired with scenarios, and the unknown costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib._lib.errors import CalibrationError, InputError
from simlib.analysis.calibrate.tables import Conditions, conditions_of
from simlib.analysis.predict import evaluate
from simlib.measurements import MeasurementTable, parse_condition
from simlib.measurements.fits import BOUNDS, CostEstimate, conventions, cost_key
from simlib.measurements.fits.file import conditions_text
from simlib.measurements.units import is_time, stem_of
from simlib.model.scenario import Scenario
from simlib.simulator.workloads import find_metric, kind_of
from simlib.simulator.workloads.metrics import split_name

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Measurements to explain, and costs to estimate.

    - `observations`: table, variant, vcpus, metric (of one iteration: ``dirty_memory_time[2]``), value (seconds or
      count), train (bool).
    - `names`: the parameters (see `simlib.measurements.fits.cost_key`).
    - `bounds`, shape (n, 2): natural logarithms of the physical bounds.
    - `dataset`: name of the measurements.
    - `condition`: condition on the rows that the calibration may use, as written in a fit file.
    - `not_used`: metrics of the workload that the tables have but the calibration does not explain.
    - `simulated`: cache of simulated values by variant, vCPUs, metric, costs, pages and seed. If a cost of one variant
      changes, the other variants are not simulated again.
    """

    scenario: Scenario
    observations: pd.DataFrame
    names: tuple[str, ...]
    bounds: FloatArray
    dataset: str
    condition: str = ""
    not_used: tuple[str, ...] = ()
    simulated: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def cases(self) -> dict[tuple[str, int], Scenario]:
        """Scenario of each observation, by its variant and its vCPUs."""
        pairs = dict.fromkeys(zip(self.observations["variant"], self.observations["vcpus"], strict=True))
        variants = {"": self.scenario, **self.scenario.variants}
        return {(variant, vcpus): variants[variant].with_vcpus(vcpus) for variant, vcpus in pairs}

    def with_cost(self, name: str, value: float) -> Problem:
        """Return the problem with another value of a cost."""
        variants = {key: variant.with_costs(**{name: value}) for key, variant in self.scenario.variants.items()}
        scenario = replace(self.scenario.with_costs(**{name: value}), variants=variants)
        return replace(self, scenario=scenario, simulated={})

    @cached_property
    def train(self) -> pd.DataFrame:
        """Observations that the calibration may use."""
        return self.observations[self.observations["train"]]

    @cached_property
    def measured(self) -> FloatArray:
        """Logarithms of the values of `train`, shape (training rows,)."""
        return np.asarray(np.log(self.train["value"].to_numpy(dtype=np.float64)))

    def model(self, points: FloatArray, rows: pd.DataFrame, pages_per_vcpu: int, seed: int) -> FloatArray:
        """Return the model's value for each observation, with common random numbers.

        `points`, shape (n,) or (points, n), are logarithms of the costs. Returns: ndarray, shape (len(rows),) or
        (points, len(rows)).
        """
        observed = list(zip(rows["variant"], rows["vcpus"], rows["metric"], strict=True))
        keys: list[list[tuple[object, ...]]] = []
        new: dict[tuple[object, ...], Scenario] = {}
        for point in np.atleast_2d(points):
            estimate = CostEstimate(self.names, point, np.zeros((0, 0)), 1, 0.0, {}, **conventions(self.scenario))
            cases = {(variant, n): estimate.apply(self.cases[variant, n]) for variant, n, _ in observed}
            keys.append([(*entry, cases[entry[:2]].costs, pages_per_vcpu, seed) for entry in observed])
            new |= {(*key[:2], key[3]): cases[key[0], key[1]] for key in keys[-1] if key not in self.simulated}
        runs = dict(zip(new, evaluate(list(new.values()), pages_per_vcpu=pages_per_vcpu, seed=seed), strict=True))
        for key in (key for of_point in keys for key in of_point if key not in self.simulated):
            self.simulated[key] = runs[*key[:2], key[3]].value(str(key[2]))
        values = np.array([[self.simulated[key] for key in of_point] for of_point in keys])
        return np.asarray(values if np.ndim(points) > 1 else values[0], dtype=np.float64)

    def residuals(self, points: FloatArray, pages_per_vcpu: int, seed: int) -> FloatArray:
        """Return log(model / measured) for the training rows, in the shapes that `model` returns."""
        model = np.maximum(self.model(points, self.train, pages_per_vcpu, seed), 1e-9)
        return np.asarray(np.log(model) - self.measured)


def build_problem(
    scenario: Scenario, tables: MeasurementTable | Sequence[MeasurementTable], train: Conditions = ""
) -> Problem:
    """Pair tables of measurements with a scenario and its variants.

    The scenario's `Calibration` names the costs and the metrics. If it has variants, a table's column ``series`` names
    the variant of each row. A table has a column ``vcpus`` and columns of metrics; a column ``iteration`` gives the
    iteration of a row's times. If it is missing or empty, the times are sums over all iterations. `train` is the
    condition on the rows that the calibration may use, or one for each table by its name; empty: all.

    Raises `InputError` if a column is missing, a metric is in no table, series and variants do not match, or the
    workload lacks a metric or an iteration.

    Raises `CalibrationError` if there are too few observations for the parameters.
    """
    tables = [tables] if isinstance(tables, MeasurementTable) else list(tables)
    for cost in (*scenario.calibration.costs, *scenario.calibration.per_group_costs):
        if any(cost in case.costs.given() for case in (scenario, *scenario.variants.values())):
            raise InputError(
                f"costs.{cost}", "given", "[calibration] lists it as a cost to estimate",
                f"remove it from [costs], or {cost!r} from [calibration]",
            )  # fmt: skip
    texts = conditions_of("train", train, tables)
    variants = [_variants(scenario, table) for table in tables]
    _check_metrics(scenario, tables)
    parts = [_rows(scenario, *of_table) for of_table in zip(tables, variants, texts, strict=True)]
    rows = pd.concat(parts, ignore_index=True)
    known = {"", *scenario.variants}
    rows = rows[rows["variant"].isin(known) & np.isfinite(rows["value"])]
    for variant, metric in dict.fromkeys(zip(rows["variant"], rows["metric"], strict=True)):
        find_metric(scenario.variants[variant] if variant else scenario, metric)
    # A count of zero has no logarithm; it is not fitted, only listed with the model's value.
    rows.loc[rows["value"] <= 0, "train"] = False
    rows = rows.reset_index(drop=True)
    names, bounds = parameters_of(scenario, sorted(set(rows["variant"])))
    known_metrics = [metric.name for metric in kind_of(next(iter(scenario.variants.values()), scenario)).metrics]
    explained = {split_name(metric)[0] for metric in scenario.calibration.metrics}
    problem = Problem(
        scenario, rows, names, bounds, ", ".join(table.name for table in tables), conditions_text(train),
        tuple(name for name in known_metrics if name not in explained and any(_has(table, name) for table in tables)),
    )  # fmt: skip
    if len(problem.train) <= len(names):
        raise CalibrationError(
            f"the number of observations ({len(problem.train)}) must exceed the number of costs ({len(names)}: "
            f"{', '.join(names)}); train on more rows or calibrate fewer costs"
        )
    return problem


def _rows(scenario: Scenario, table: MeasurementTable, variants: Sequence[str], train: str) -> pd.DataFrame:
    """Return the observations of one table for the metrics that it contains."""
    frame = table.frame
    known = {"table": table.name, "variant": variants, "vcpus": frame["vcpus"]}
    chosen = parse_condition(train).mask(frame)
    parts = [
        pd.DataFrame(known | _measured(table, metric) | {"train": chosen})
        for metric in scenario.calibration.metrics
        if _has(table, split_name(metric)[0])
    ]
    if not parts:
        raise InputError(
            f"columns of {table.name}", ", ".join(map(str, frame.columns)),
            f"no column is a metric of the calibration ({', '.join(scenario.calibration.metrics)})",
            "remove the table, or list its metrics under [calibration]",
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _has(table: MeasurementTable, metric: str) -> bool:
    columns = [str(column) for column in table.frame.columns]
    return metric in columns or any(is_time(column) and stem_of(column) == metric for column in columns)


def _check_metrics(scenario: Scenario, tables: Sequence[MeasurementTable]) -> None:
    case = next(iter(scenario.variants.values()), scenario)
    for metric in scenario.calibration.metrics:
        name, _ = split_name(metric)
        if not any(_has(table, name) for table in tables):
            unit = find_metric(case, metric).unit
            columns = dict.fromkeys(str(column) for table in tables for column in table.frame.columns)
            raise InputError(
                f"columns of {', '.join(table.name for table in tables)}", ", ".join(columns),
                f"no column has {metric}, which [calibration] lists under metrics",
                f"add a column {name}{'_s (or _ms, _us, _ns)' if unit == 's' else ''}, or remove {metric} from metrics",
            )  # fmt: skip


def _measured(table: MeasurementTable, metric: str) -> dict[str, list[str] | FloatArray]:
    """Return each row's metric (with the iteration, if one is given) and value (NaN if it is missing)."""
    name, iteration = split_name(metric)
    values = table.column(name).astype(float) if name in table.frame.columns else table.seconds(name)
    if "iteration" not in table.frame.columns:
        return {"metric": [metric] * len(values), "value": values}
    iterations = table.column("iteration").astype(float)
    if iteration is not None:
        return {"metric": [metric] * len(values), "value": np.where(iterations == iteration, values, np.nan)}
    names = [name if np.isnan(i) else f"{name}[{i:.0f}]" for i in iterations.tolist()]
    return {"metric": names, "value": values}


def _variants(scenario: Scenario, table: MeasurementTable) -> list[str]:
    frame, known = table.frame, f"known variants: {', '.join(scenario.variants)}"
    columns = f"columns of {table.name}", ", ".join(map(str, frame.columns))
    if "vcpus" not in frame.columns:
        raise InputError(*columns, "vcpus is missing")
    names = [str(s) for s in frame["series"]] if "series" in frame.columns else []
    series = f"series of {table.name}", ", ".join(sorted(set(names)))
    if not scenario.variants:
        if len(set(names)) > 1:
            hint = "give the condition series == 'NAME', or add [variants.NAME] tables to the scenario"
            raise InputError(*series, "the scenario has no variants, so one series must be chosen", hint)
        return [""] * len(frame)
    if "series" not in frame.columns:
        raise InputError(*columns, "the column series, which names the variant of each row, is missing", known)
    if not set(names) & set(scenario.variants):
        raise InputError(*series, "no series is a variant of the scenario", known)
    return names


def parameters_of(scenario: Scenario, variants: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names of a calibration's parameters, and their physical bounds as natural logarithms.

    >>> parameters_of(Scenario.parse({"calibration": {"costs": ["fault_unlocked"]}}), [""])[0]
    ('fault_unlocked',)
    """
    groups = list(dict.fromkeys(scenario.variants[v].cost_group for v in variants if v))
    names = [cost_key(c) for c in scenario.calibration.costs]
    names += [cost_key(c, g) for c in scenario.calibration.per_group_costs for g in groups or [""]]
    return tuple(names), np.log(np.array([BOUNDS[n.partition("[")[0]] for n in names], dtype=float))
