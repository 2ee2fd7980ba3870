# SPDX-License-Identifier: BSD-3-Clause
"""What a fit says of itself: costs in units that people read, χ², residuals, correlations, ends that are bounds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simlib.errors import InputError
from simlib.fits.estimate import BOUNDS, CostEstimate
from simlib.results import rendered, text_of

AT_BOUND = 1e-3
"""How near to a bound, relative, is at it."""

UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "µs"), (1e3, "ns"))
"""Picoseconds of each unit that a cost is shown in; there is none below a nanosecond."""

WIDTH = 118
"""Columns of the text."""

ROLES = ("fitted", "held out", "shown only")
"""What became of a row: the calibration saw it, it was kept back, or its value is 0 and has no logarithm."""


FIT_FIGURES: Mapping[str, Callable[[Any], pd.DataFrame]] = {
    "cost_intervals": lambda fit: fit.costs(),
    "residuals": lambda fit: fit.report().residuals,
    "correlation": lambda fit: correlation_or_error(fit.report()),
    "dirty_memory_time": lambda fit: fit.curves(),
    "contentions": lambda fit: fit.curves(),
}
"""Figures of a fit, and what gives the table of each."""


@dataclass(frozen=True)
class FitReport:
    """What a fit says of itself.

    Attributes
    ----------
    heading : str
        What was fitted to what.
    costs : DataFrame
        cost, value, low, high, unit, below, above (how far the ends lie from the value, percent), bound (which of the
        three are at a physical bound; empty: none), determined.
    residuals : DataFrame
        `residual_table`.
    dof : int
        Degrees of freedom of the intervals.
    discrepancy : float
        Deviation of model over measured, relative, to which `residuals` are taken.
    level : float
        Probability of the intervals.
    correlation : DataFrame or None
        Of the logarithms of the costs; None where the covariance does not have any.
    valid : mapping of str to bool
        Named flags.
    notes : tuple of str
        What else to know, and what is missing.
    """

    heading: str
    costs: pd.DataFrame
    residuals: pd.DataFrame
    dof: int
    discrepancy: float
    level: float
    correlation: pd.DataFrame | None
    valid: Mapping[str, bool]
    notes: tuple[str, ...] = ()

    @property
    def fitted(self) -> pd.DataFrame:
        """The residuals of the rows that the calibration saw."""
        return self.residuals[self.residuals["role"] == "fitted"]

    @property
    def chi_squared(self) -> float:
        """Sum of the squared residuals of the fitted rows; NaN if there is none."""
        rows = self.fitted["residual"]
        return float((rows**2).sum()) if len(rows) else float("nan")

    @property
    def reduced_chi_squared(self) -> float:
        """The same over the degrees of freedom."""
        return self.chi_squared / self.dof

    @property
    def quality(self) -> tuple[str, ...]:
        """χ², degrees of freedom and discrepancy, in sentences."""
        rows, costs = len(self.fitted), len(self.costs)
        if not rows:
            return (
                f"χ²: none, since no row below was fitted; {self.dof} degrees of freedom are those of the intervals",
                f"discrepancy {self.discrepancy:.2%}: the deviation of a held-out row, found from these rows, so that "
                "their χ² below is their number whatever the model",
            )
        count = f"{rows} rows less {costs} costs"
        if rows - costs != self.dof:
            count = f"{rows} rows were fitted; not all of the {costs} costs were fitted to them"
        return (
            f"χ² {self.chi_squared:.4g} with {self.dof} degrees of freedom ({count}), χ²/dof "
            f"{self.reduced_chi_squared:.3g}",
            f"discrepancy {self.discrepancy:.2%}: the deviation of a row, found from the same rows, so that χ²/dof is "
            "near 1 whatever was fitted: it is no test of the model, as rows that were held out are",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """The named flags, in words: those that hold, then those that do not."""
        words = {said: [name.replace("_", " ") for name, good in self.valid.items() if good is said]
                 for said in (True, False)}  # fmt: skip
        lines = {True: "checks that hold: ", False: "checks that do not hold: "}
        return tuple(lines[said] + ", ".join(names) for said, names in words.items() if names)

    def by_metric(self) -> pd.DataFrame:
        """One row a metric and role: rows, median and worst error (percent, worst with its sign), χ² of those rows."""
        rows = []
        for (metric, role), part in self.residuals.groupby(["metric", "role"], sort=False):
            errors = part["error_percent"].dropna()
            worst = max(errors.tolist(), key=abs, default=np.nan)
            rows.append(
                {"metric": metric, "role": role, "rows": len(part), "median error, %": errors.abs().median(),
                 "worst error, %": worst, "deviation, %": part["deviation_percent"].median(),
                 "χ²": (part["residual"] ** 2).sum(min_count=1)}
            )  # fmt: skip
        return pd.DataFrame(rows)

    def shown_costs(self) -> pd.DataFrame:
        """The costs as text: one unit a row, four digits."""
        digits = {name: [f"{value:.4g}" for value in self.costs[name]] for name in ("value", "low", "high")}
        reach = {
            name: [_reach(share, sign) for share in self.costs[name]] for name, sign in (("below", "−"), ("above", "+"))
        }
        sure = self.costs["determined"].map({True: "yes", False: "no"})
        return self.costs.assign(**digits, **reach, determined=sure)

    def text(self) -> str:
        """All of it as plain text."""
        bounds = self.costs if (self.costs["bound"] != "").any() else self.costs.drop(columns="bound")
        parts = [
            _lines(self.heading, *self.quality, *self.flags),
            f"Costs, {self.level:.0%} intervals\n{text_of(self.shown_costs()[bounds.columns])}",
            f"Residuals\n{text_of(self.by_metric())}",
        ]
        if self.correlation is not None:
            parts.append(f"Correlations\n{text_of(numbered(self.correlation))}")
        return "\n\n".join(parts + [_lines(*self.notes)] * bool(self.notes))

    def html(self) -> str:
        """All of it as HTML, every text escaped."""
        return rendered("simlib.fits", "report.html.j2", report=self, number=lambda v: "" if pd.isna(v) else f"{v:.3g}")


def fit_report(
    heading: str,
    estimate: CostEstimate,
    parameters: pd.DataFrame,
    observations: pd.DataFrame,
    *,
    level: float,
    valid: Mapping[str, bool],
    noise: pd.DataFrame | None = None,
    notes: tuple[str, ...] = (),
) -> FitReport:
    """Put together what a fit says of itself.

    Parameters
    ----------
    parameters : DataFrame
        name, value, low, high (picoseconds, or dimensionless), determined.
    observations : DataFrame
        variant, vcpus, metric, value, train, model; table, if there were several.
    noise : DataFrame, optional
        table, metric, ratio; without it `CostEstimate.spread` says how much a metric deviates.
    """
    correlation, missing = correlations(estimate)
    costs = cost_table(parameters)
    exact = costs.loc[costs["low"] == costs["high"], "cost"]
    unknown = (f"no interval is known, so that it stands as a point: {', '.join(exact)}",) if len(exact) else ()
    return FitReport(
        heading, costs, residual_table(observations, estimate, noise), estimate.dof, estimate.discrepancy, level,
        correlation, valid, (*missing, *unknown, *notes),
    )  # fmt: skip


def _lines(*texts: str) -> str:
    """Texts as lines of at most `WIDTH` columns."""
    return "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in texts)


def numbered(correlation: pd.DataFrame) -> pd.DataFrame:
    """A matrix whose columns are named by the numbers of its rows, so that it is not too wide to read."""
    numbers = [str(i) for i in range(1, len(correlation) + 1)]
    cells = [["" if np.isnan(r) else f"{r:.2f}" for r in row] for row in correlation.to_numpy()]
    names = [f"{name} ({i})" for i, name in zip(numbers, correlation.columns, strict=True)]
    return pd.DataFrame(cells, columns=numbers).assign(**{"": names})[["", *numbers]]


def _reach(percent: float, sign: str) -> str:
    """How far an end lies from its value: percent, or a factor where that is large.

    Examples
    --------
    >>> _reach(4.26, "+"), _reach(77.4, "−"), _reach(2.9e5, "+")
    ('+4.3 %', '−77 %', '×2.9e+03')
    """
    if percent >= 1000:
        return f"×{1 + percent / 100:.2g}"
    return f"{sign}{percent:.0f} %" if percent >= 9.95 else f"{sign}{percent:.2g} %"


def cost_table(parameters: pd.DataFrame) -> pd.DataFrame:
    """Costs with their intervals in the unit in which the value is short, and which of the three are at a bound.

    Examples
    --------
    >>> rows = pd.DataFrame({"name": ["fault_hold"], "value": [2.5e6], "low": [2e4], "high": [3e6]})
    >>> cost_table(rows.assign(determined=False))[["value", "low", "high", "unit", "bound"]].to_numpy().tolist()
    [[2.5, 0.02, 3.0, 'µs', 'low end: 20 ns']]
    """
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
    """The ends of an interval, those beyond a bound at it: an interval without profile knows no bounds.

    Examples
    --------
    >>> physical("fault_hold", 4e5, 12.0, 5e5)
    (20000, 500000.0)
    """
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

    Returns: variant, vcpus, metric, measured, model, role (one of `ROLES`), error_percent (of the measured value),
    deviation_percent (what a row of its metric is taken to deviate by), residual (logarithm of model over measured,
    over that deviation).

    Examples
    --------
    >>> rows = pd.DataFrame({"variant": "", "vcpus": [1, 2], "metric": "contentions", "value": [0.0, 100.0],
    ...                      "train": [False, True], "model": [0.0, 90.0]})
    >>> known = CostEstimate(("fault_hold",), np.log([6e5]), np.eye(1), 1, 0.05, {"contentions": 2.0})
    >>> residual_table(rows, known)[["role", "error_percent", "residual"]].round(2).to_numpy().tolist()
    [['shown only', nan, nan], ['fitted', -10.0, -1.05]]
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
    role = np.where(train, ROLES[0], np.where(measured > 0, ROLES[1], ROLES[2]))
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


def correlations(estimate: CostEstimate) -> tuple[pd.DataFrame | None, tuple[str, ...]]:
    """Correlation of the costs' logarithms from their covariance, or what is missing.

    Examples
    --------
    >>> one = CostEstimate(("fault_exit", "fault_hold"), np.zeros(2), np.array([[4.0, 1.0], [1.0, 1.0]]), 3, 0.1, {})
    >>> correlations(one)[0].to_numpy().tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    deviations = np.sqrt(np.diag(estimate.covariance))
    if len(estimate.names) > 1 and not (estimate.covariance - np.diag(np.diag(estimate.covariance))).any():
        return None, ("correlations: missing, since the covariance has variances only",)
    fixed = [name for name, deviation in zip(estimate.names, deviations, strict=True) if not deviation > 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        matrix = np.where(deviations > 0, estimate.covariance / np.outer(deviations, deviations), np.nan)
    matrix[~(deviations > 0)] = np.nan
    frame = pd.DataFrame(np.clip(matrix, -1, 1), index=estimate.names, columns=estimate.names)
    missing = (f"correlations with {', '.join(fixed)}: missing, since their variance is 0",) if fixed else ()
    return frame, missing


def correlation_or_error(report: FitReport) -> pd.DataFrame:
    """The correlation matrix.

    Raises `InputError` if the covariance has none.
    """
    if report.correlation is None:
        raise InputError("correlation", "missing", "the covariance of this fit has variances only")
    return report.correlation


def drawable_figures(figures: Iterable[str], report: FitReport) -> tuple[str, ...]:
    """Those of a fit's figures for which it has what they draw."""
    metrics = {str(metric).partition("[")[0] for metric in report.residuals["metric"]}
    has = {"dirty_memory_time": "dirty_memory_time" in metrics, "contentions": "contentions" in metrics,
           "correlation": report.correlation is not None}  # fmt: skip
    return tuple(name for name in figures if has.get(name, True))
