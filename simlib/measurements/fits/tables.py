# SPDX-License-Identifier: BSD-3-Clause
"""Tables of a fit: costs in units that people read, ends that are bounds, residuals, curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.measurements.fits.estimate import BOUNDS, CostEstimate

AT_BOUND = 1e-3
"""How near to a bound, relative, is at it."""

UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"))
"""Picoseconds of each unit that a cost is shown in; there is none below a nanosecond."""

FITTED, HELD_OUT, SHOWN = "fitted", "held out", "shown only"
"""What became of a row: the calibration saw it, it was kept back, or its value is 0 and has no logarithm."""


def numbered(correlation: pd.DataFrame) -> pd.DataFrame:
    """A matrix whose columns are named by the numbers of its rows, so that it is not too wide to read."""
    numbers = [str(i) for i in range(1, len(correlation) + 1)]
    cells = [["" if np.isnan(r) else f"{r:.2f}" for r in row] for row in correlation.to_numpy()]
    names = [f"{name} ({i})" for i, name in zip(numbers, correlation.columns, strict=True)]
    return pd.DataFrame(cells, columns=numbers).assign(**{"": names})[["", *numbers]]


def reach(percent: float, sign: str) -> str:
    """How far an end lies from its value: percent, or a factor where that is large.

    >>> reach(4.26, "+"), reach(77.4, "−"), reach(2.9e5, "+")
    ('+4.3 %', '−77 %', '×2.9e+03')
    """
    if percent >= 1000:
        return f"×{1 + percent / 100:.2g}"
    return f"{sign}{percent:.0f} %" if percent >= 9.95 else f"{sign}{percent:.2g} %"


def cost_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """Costs with their intervals in the unit in which the value is short, and which of the three are at a bound."""
    rows = []
    for name, value, low, high, determined in parameters[["name", "value", "low", "high", "determined"]].to_numpy():
        cost = str(name).partition("[")[0]
        factor, unit = (1.0, "") if cost == "fault_jitter" else _unit(float(value))
        bound = _at_bound(cost, value, low, high)
        least, most = physical(cost, value, low, high)
        rows.append(
            {"cost": name, "value": value / factor, "low": least / factor, "high": most / factor, "unit": unit,
             "below": 100 * (1 - least / value), "above": 100 * (most / value - 1),
             "bound": bound, "determined": bool(determined)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def physical(cost: str, value: float, low: float, high: float) -> tuple[float, float]:
    """The ends of an interval, those beyond a bound at it: an interval without profile knows no bounds."""
    least, most = BOUNDS[cost.partition("[")[0]]
    return max(low, min(value, least)), min(high, max(value, most))


def _unit(picoseconds: float) -> tuple[float, str]:
    return next((unit for unit in UNITS if picoseconds >= unit[0]), UNITS[-1])


def _at_bound(cost: str, value: float, low: float, high: float) -> str:
    """Which of a value and its ends are at a bound, or beyond it, and what that bound is."""
    least, most = BOUNDS[cost]
    words = []
    for what, at in (("value", value), ("low end", low), ("high end", high)):
        bound = least if at <= least * (1 + AT_BOUND) else most if at >= most * (1 - AT_BOUND) else None
        if bound is not None:
            factor, unit = (1.0, "") if cost == "fault_jitter" else _unit(bound)
            words.append(f"{what}: {bound / factor:g} {unit}".strip())
    return ", ".join(words)


def residual_table(
    observations: pd.DataFrame, estimate: CostEstimate, noise: pd.DataFrame | None = None
) -> pd.DataFrame:
    """How far the model is from each row.

    Returns: variant, vcpus, metric, measured, model, role (`FITTED`, `HELD_OUT` or `SHOWN`), error_percent (of the
    measured value), deviation_percent (what a row of its metric is taken to deviate by), residual (logarithm of model
    over measured, over that deviation).
    """
    measured = observations["value"].to_numpy(dtype=float)
    model = observations["model"].to_numpy(dtype=float)
    deviation = estimate.discrepancy * _ratios(observations, estimate, noise)
    known = (measured > 0) & (model > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(known, np.log(model / measured), np.nan)
        residual = np.where(deviation > 0, logs / deviation, np.nan)
        error = np.where(measured > 0, 100 * (model / measured - 1), np.nan)
    train = observations["train"].to_numpy(dtype=bool)
    role = np.where(train, FITTED, np.where(measured > 0, HELD_OUT, SHOWN))
    return pd.DataFrame(
        {"variant": observations["variant"].to_numpy(), "vcpus": observations["vcpus"].to_numpy(),
         "metric": observations["metric"].to_numpy(), "measured": measured, "model": model, "role": role,
         "error_percent": error, "deviation_percent": 100 * deviation, "residual": residual}
    )  # fmt: skip


def _ratios(observations: pd.DataFrame, estimate: CostEstimate, noise: pd.DataFrame | None) -> NDArray[np.float64]:
    """How much larger than the discrepancy each row's deviation was taken to be."""
    metrics = [str(metric).partition("[")[0] for metric in observations["metric"]]
    tables = observations["table"].tolist() if "table" in observations else [""] * len(metrics)
    own: dict[tuple[Any, Any], float] = {}
    if noise is not None and len(noise):
        own = dict(zip(zip(noise["table"], noise["metric"], strict=True), noise["ratio"], strict=True))
    pairs = zip(tables, metrics, strict=True)
    return np.array([own.get(pair, estimate.spread.get(pair[1], 1.0)) for pair in pairs], dtype=np.float64)


def metric_table(residuals: pd.DataFrame) -> pd.DataFrame:
    """One row a metric and role of `residual_table`: rows, median and worst error, deviation (percent), χ²."""
    rows = []
    for (metric, role), part in residuals.groupby(["metric", "role"], sort=False):
        errors = part["error_percent"].dropna()
        rows.append(
            {"metric": metric, "role": role, "rows": len(part), "median error": errors.abs().median(),
             "worst error": max(errors.tolist(), key=abs, default=np.nan),
             "deviation": part["deviation_percent"].median(), "χ²": (part["residual"] ** 2).sum(min_count=1)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def unit_of(name: str) -> str:
    """Unit of a parameter's value in a fit file.

    >>> unit_of("fault_hold"), unit_of("fault_jitter[old test]")
    ('ps', 'dimensionless')
    """
    return "dimensionless" if name.startswith("fault_jitter") else "ps"


def costs_in_ns(parameters: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Calibrated costs as the figures draw them: name, value, low, high, unit (ns or dimensionless), fit, bound."""
    units = [unit_of(name) for name in parameters["name"]]
    per = np.where(np.array(units) == "ps", 1000.0, 1.0)
    ends = [physical(*row) for row in parameters[["name", "value", "low", "high"]].to_numpy().tolist()]
    known = {"value": parameters["value"], "low": [low for low, _ in ends], "high": [high for _, high in ends]}
    values = {column: np.asarray(found, dtype=float) / per for column, found in known.items()}
    named = {"name": parameters["name"].to_numpy()} | values
    bound = cost_table(parameters)["bound"].to_numpy()
    return pd.DataFrame(named).assign(unit=["ns" if unit == "ps" else unit for unit in units], fit=dataset, bound=bound)


def fitted_curves(observations: pd.DataFrame) -> pd.DataFrame:
    """Observations and the model beside them, as the figures of curves draw them."""
    known = observations[["variant", "vcpus", "metric"]].assign(held_out=~observations["train"].astype(bool))
    measured = known.assign(kind="measured", value=observations["value"])
    kinds = np.where(known["held_out"], "predicted", "fitted")
    model = known.assign(kind=kinds, value=observations["model"])
    return pd.concat([measured, model], ignore_index=True).assign(low=np.nan, high=np.nan)
