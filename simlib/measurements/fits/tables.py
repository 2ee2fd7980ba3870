# SPDX-License-Identifier: BSD-3-Clause
"""Tables of a fit: costs in readable units, values at a physical bound, residuals, curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.measurements.fits.estimate import BOUNDS, CostEstimate

AT_BOUND = 1e-3
"""Relative distance from a bound within which a value counts as being at the bound."""

UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"))
"""Units in which costs are displayed, with their length in picoseconds; the nanosecond is the smallest."""

FITTED, HELD_OUT, SHOWN = "fitted", "held out", "shown only"
"""Role of a row: the calibration used it; it was held out; or its value is 0, which has no logarithm."""


def number_columns(correlation: pd.DataFrame) -> pd.DataFrame:
    """Correlation matrix as text; row numbers serve as column names, to keep it narrow."""
    numbers = [str(i) for i in range(1, len(correlation) + 1)]
    cells = [["" if np.isnan(r) else f"{r:.2f}" for r in row] for row in correlation.to_numpy()]
    names = [f"{name} ({i})" for i, name in zip(numbers, correlation.columns, strict=True)]
    return pd.DataFrame(cells, columns=numbers).assign(**{"": names})[["", *numbers]]


def distance_text(percent: float, sign: str) -> str:
    """Distance of an interval's end from the value, in percent or, from 1000 %, as a factor.

    >>> distance_text(4.26, "+"), distance_text(77.4, "−"), distance_text(2.9e5, "+")
    ('+4.3 %', '−77 %', '×2.9e+03')
    """
    if percent >= 1000:
        return f"×{1 + percent / 100:.2g}"
    return f"{sign}{percent:.0f} %" if percent >= 9.95 else f"{sign}{percent:.2g} %"


def cost_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """Costs with intervals in a unit that suits the value, and the physical bounds that value or interval reaches."""
    rows = []
    for name, value, low, high, determined in parameters[["name", "value", "low", "high", "determined"]].to_numpy():
        cost = str(name).partition("[")[0]
        factor, unit = _unit(cost, float(value))
        lower, upper = physical(cost, value, low, high)
        rows.append(
            {"cost": name, "value": value / factor, "low": lower / factor, "high": upper / factor, "unit": unit,
             "below": 100 * (1 - lower / value), "above": 100 * (upper / value - 1),
             "bound": _at_bound(cost, value, low, high), "determined": bool(determined)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def physical(cost: str, value: float, low: float, high: float) -> tuple[float, float]:
    """Clip the ends of an interval to the physical bounds; only profile intervals are within them already."""
    least, most = BOUNDS[cost.partition("[")[0]]
    return max(low, min(value, least)), min(high, max(value, most))


def _unit(cost: str, value: float) -> tuple[float, str]:
    if cost == "fault_jitter":
        return 1.0, ""
    return next((unit for unit in UNITS if value >= unit[0]), UNITS[-1])


def _at_bound(cost: str, value: float, low: float, high: float) -> str:
    """List the value and the ends of its interval that are at or beyond a physical bound, each with the bound."""
    least, most = BOUNDS[cost]
    descriptions = []
    for end, at in (("value", value), ("low end", low), ("high end", high)):
        bound = least if at <= least * (1 + AT_BOUND) else most if at >= most * (1 - AT_BOUND) else None
        if bound is not None:
            factor, unit = _unit(cost, bound)
            descriptions.append(f"{end}: {bound / factor:g} {unit}".strip())
    return ", ".join(descriptions)


def residual_table(
    observations: pd.DataFrame, estimate: CostEstimate, noise: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Deviation of the model from each measurement.

    Returns: variant, vcpus, metric, measured, model, role (`FITTED`, `HELD_OUT` or `SHOWN`), error_percent (of the
    measured value), deviation_percent (standard deviation assumed for rows of the metric), residual (logarithm of
    model over measured, divided by that deviation).
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
    metrics = [str(metric).partition("[")[0] for metric in observations["metric"]]
    tables = observations["table"].tolist() if "table" in observations else [""] * len(metrics)
    ratios: dict[tuple[Any, Any], float] = {}
    if noise is not None and len(noise):
        ratios = dict(zip(zip(noise["table"], noise["metric"], strict=True), noise["ratio"], strict=True))
    pairs = zip(tables, metrics, strict=True)
    return np.array([ratios.get(pair, estimate.spread.get(pair[1], 1.0)) for pair in pairs], dtype=np.float64)


def metric_table(residuals: pd.DataFrame) -> pd.DataFrame:
    """One row per metric and role of `residual_table`: rows, median and worst error, deviation (percent), χ²."""
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
