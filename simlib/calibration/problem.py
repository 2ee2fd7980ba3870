# SPDX-License-Identifier: BSD-3-Clause
"""A calibration problem: measurements beside the scenarios that they belong to, and the unknown costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.errors import CalibrationError, InputError
from simlib.fits import BOUNDS, CostEstimate, cost_key, used_costs
from simlib.measurements import MeasurementTable, parse_condition
from simlib.model.scenario import Scenario
from simlib.prediction import evaluate
from simlib.workloads import find_metric
from simlib.workloads.metrics import split_name

SPREAD = {"contentions": 2.0}
"""How much larger than a time's deviation a metric's is taken to be: the published counts come from a kernel
with CONFIG_LOCK_STAT, the times need not."""


@dataclass(frozen=True)
class Problem:
    """Measurements to explain and costs to determine.

    Attributes
    ----------
    scenario : Scenario
    observations : DataFrame
        variant, vcpus, metric (of one iteration: ``dirty_memory_time[2]``), value (seconds or count), train (bool).
    names : tuple of str
        The parameters (see `simlib.prediction.cost_key`).
    bounds : ndarray, shape (n, 2)
        Natural logarithms of the physical bounds.
    dataset : str
        Name of the measurements.
    simulated : dict
        Values simulated so far, by variant, vCPUs, metric, costs, pages and seed: a step along one variant's own cost
        changes nothing for the others.
    """

    scenario: Scenario
    observations: pd.DataFrame
    names: tuple[str, ...]
    bounds: NDArray[np.float64]
    dataset: str
    simulated: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def case(self, variant: str, vcpus: int) -> Scenario:
        """The scenario of one observation."""
        base = self.scenario.variants[variant] if variant else self.scenario
        return base.with_vcpus(vcpus)

    @cached_property
    def train(self) -> pd.DataFrame:
        """The observations that the calibration may see."""
        return self.observations[self.observations["train"]]

    def model(
        self, logs: NDArray[np.float64], rows: pd.DataFrame, pages_per_vcpu: int, seed: int
    ) -> NDArray[np.float64]:
        """The model's value of each observation, on common random numbers."""
        estimate = CostEstimate(self.names, logs, np.zeros((0, 0)), 1, 0.0, {})
        points = list(zip(rows["variant"], rows["vcpus"], rows["metric"], strict=True))
        cases = {(variant, vcpus): estimate.apply(self.case(variant, vcpus)) for variant, vcpus, _ in points}
        keys = [(*point, cases[point[:2]].costs, pages_per_vcpu, seed) for point in points]
        new = {key[:2]: cases[key[:2]] for key in keys if key not in self.simulated}
        runs = dict(zip(new, evaluate(list(new.values()), pages_per_vcpu=pages_per_vcpu, seed=seed), strict=True))
        self.simulated.update({key: runs[key[:2]].value(key[2]) for key in keys if key[:2] in runs})
        return np.array([self.simulated[key] for key in keys])

    def residuals(self, logs: NDArray[np.float64], pages_per_vcpu: int, seed: int) -> NDArray[np.float64]:
        """Logarithm of model over measured for the training rows, over each metric's spread."""
        rows = self.train
        model = np.maximum(self.model(logs, rows, pages_per_vcpu, seed), 1e-9)
        spread = rows["metric"].map(lambda m: SPREAD.get(split_name(m)[0], 1.0)).to_numpy(dtype=float)
        return np.asarray(np.log(model / rows["value"].to_numpy()) / spread)


def build_problem(scenario: Scenario, table: MeasurementTable, train: str = "") -> Problem:
    """Pair a table of measurements with a scenario and its variants.

    Parameters
    ----------
    scenario : Scenario
        Its `Calibration` names the costs and the metrics. With variants, the table's column ``series``
        names the variant of each row.
    table : MeasurementTable
        With a column ``vcpus`` and one for each metric (``dirty_memory_time_ms``, ``contentions``). A column
        ``iteration`` says of which iteration a row's times are; where it is empty, or missing, they are sums over all.
    train : str
        Condition on the rows that the calibration may see, such as ``"vcpus <= 8"``; empty: all.

    Raises
    ------
    InputError
        If a column is missing, series and variants do not match, the workload lacks a metric or an iteration, or a
        cost that decides is neither given nor to be determined.
    CalibrationError
        If there are too few observations for the parameters.

    Examples
    --------
    >>> from simlib.measurements import data_dir, load
    >>> from simlib.model.scenario import load_scenario
    >>> scenario = load_scenario(data_dir() / "scenarios" / "arm64-ampere-altra.toml")
    >>> problem = build_problem(scenario, load("arm64-dirty-memory-time"), "vcpus <= 8")
    >>> len(problem.train), len(problem.names)
    (15, 7)
    """
    frame = table.frame
    if "vcpus" not in frame.columns:
        raise InputError(f"columns of {table.name}", ", ".join(map(str, frame.columns)), "vcpus is missing")
    for cost in (*scenario.calibration.costs, *scenario.calibration.own_costs):
        if any(cost in case.costs.given() for case in (scenario, *scenario.variants.values())):
            raise InputError(
                f"costs.{cost}", "given", "the calibration is asked to determine it",
                f"remove it from [costs], or {cost!r} from [calibration]",
            )  # fmt: skip
    variants = _variants(scenario, table)
    chosen = parse_condition(train).mask(frame)
    parts = [
        pd.DataFrame(
            {"variant": variants, "vcpus": frame["vcpus"], "train": chosen} | _measured(scenario, table, metric)
        )
        for metric in scenario.calibration.metrics
    ]
    rows = pd.concat(parts, ignore_index=True)[["variant", "vcpus", "metric", "value", "train"]]
    known = {"", *scenario.variants}
    rows = rows[rows["variant"].isin(known) & np.isfinite(rows["value"])]
    for variant, metric in dict.fromkeys(zip(rows["variant"], rows["metric"], strict=True)):
        find_metric(scenario.variants[variant] if variant else scenario, metric)
    _check_costs(scenario, sorted(set(rows["variant"])))
    # A count of zero has no logarithm; it is shown beside the model's zero, not fitted.
    rows.loc[rows["value"] <= 0, "train"] = False
    rows = rows.reset_index(drop=True)
    names, bounds = parameters_of(scenario, sorted(set(rows["variant"])))
    problem = Problem(scenario, rows, names, bounds, table.name)
    if len(problem.train) <= len(names):
        raise CalibrationError(
            f"{len(names)} costs ({', '.join(names)}) cannot be determined from {len(problem.train)} observations: "
            "there must be more observations than costs; train on more rows or calibrate fewer costs"
        )
    return problem


def _measured(scenario: Scenario, table: MeasurementTable, metric: str) -> dict[str, list[str] | NDArray[np.float64]]:
    """One metric of every row, by its name or that of its iteration, and its value; NaN where a row has none."""
    case = next(iter(scenario.variants.values()), scenario)
    name, asked = split_name(metric)
    values = table.seconds(name) if find_metric(case, metric).unit == "s" else table.column(name).astype(float)
    if "iteration" not in table.frame.columns:
        return {"metric": [metric] * len(values), "value": values}
    iterations = table.column("iteration").astype(float)
    if asked is not None:
        return {"metric": [metric] * len(values), "value": np.where(iterations == asked, values, np.nan)}
    names = [name if np.isnan(i) else f"{name}[{i:.0f}]" for i in iterations.tolist()]
    return {"metric": names, "value": values}


def _check_costs(scenario: Scenario, variants: Sequence[str]) -> None:
    """Refuse a cost that decides and is neither given nor to be determined: a prediction would refuse it too."""
    sought = {*scenario.calibration.costs, *scenario.calibration.own_costs}
    for variant in variants:
        case = scenario.variants[variant] if variant else scenario
        case.policy.resolved()
        missing = [name for name in used_costs(case) if name not in sought and name not in case.costs.given()]
        if missing:
            raise InputError(
                "costs", ", ".join(missing),
                f"no value, and not among the costs to determine{f', for {variant}' if variant else ''}",
                "give it under [costs], or name it in [calibration] costs",
            )  # fmt: skip


def _variants(scenario: Scenario, table: MeasurementTable) -> list[str]:
    frame = table.frame
    if not scenario.variants:
        if "series" in frame.columns and len(set(frame["series"])) > 1:
            raise InputError(
                f"series of {table.name}", ", ".join(sorted(set(frame["series"]))),
                "the scenario has no variants, so one series must be chosen",
                "give the condition series == 'NAME', or add [variants.NAME] tables to the scenario",
            )  # fmt: skip
        return [""] * len(frame)
    if "series" not in frame.columns:
        raise InputError(
            f"columns of {table.name}", ", ".join(map(str, frame.columns)),
            "series is missing, which names the scenario's variant of each row",
            f"known variants: {', '.join(scenario.variants)}",
        )  # fmt: skip
    names = [str(s) for s in frame["series"]]
    if not set(names) & set(scenario.variants):
        raise InputError(
            f"series of {table.name}", ", ".join(sorted(set(names))), "none is a variant of the scenario",
            f"known variants: {', '.join(scenario.variants)}",
        )  # fmt: skip
    return names


def parameters_of(scenario: Scenario, variants: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names of a calibration's parameters, and their physical bounds as natural logarithms.

    Examples
    --------
    >>> parameters_of(Scenario.parse({"calibration": {"costs": ["fault_exit"]}}), [""])[0]
    ('fault_exit',)
    """
    groups = list(dict.fromkeys(scenario.variants[v].group for v in variants if v))
    names = [cost_key(c) for c in scenario.calibration.costs]
    names += [cost_key(c, g) for c in scenario.calibration.own_costs for g in groups or [""]]
    return tuple(names), np.log(np.array([BOUNDS[n.partition("[")[0]] for n in names], dtype=float))
