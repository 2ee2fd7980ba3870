# SPDX-License-Identifier: BSD-3-Clause
"""Fit: calibrated costs with covariance, observations and diagnostics."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib.figures.results import Result, rendered, text_of
from simlib.measurements.fits import tables
from simlib.measurements.fits.estimate import CostEstimate
from simlib.model.scenario import Scenario

WIDTH = 80
"""Width of the summary, in characters."""


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """Calibrated costs: the result of `simlib.calibrate`, and the content of a fit file.

    - `scenario`: the calibrated scenario.
    - `estimate`: best values, covariance, degrees of freedom and discrepancy.
    - `parameters`: name, value, low, high (picoseconds or dimensionless), at_bound, determined; unit, if read from a
      file.
    - `observations`: measurements with the model's value: variant, vcpus, metric, value, train, model, error; table, if
      the fit uses several.
    - `meta`: other fields of the file: dataset, date, train (the condition on the rows that the calibration used),
      seed, pages_per_vcpu, level, valid, …
    - `noise`: table, metric, rows, freedom, deviation, ratio, source: deviation of each metric of each table from the
      model (`simlib.analysis.calibrate.noise.Noise`).
    - `sensitivity`: variant, vcpus, name, first, total and their confidences: Sobol indices of each variant's time in
      the middle of the training vCPUs, over the costs' intervals. Empty without profile intervals.
    - `starts`: only after a calibration: start, origin (the guess from the asymptotes, or a point of the physical
      range), first and last sum of squares (of the coarse runs), steps, initial value of each cost, agrees (with the
      best start, within the interval of the given level).
    - `advice`: only after a calibration: for each flag of `valid` that is false, the problem and a remedy.

    >>> from simlib.measurements.fits import load_fit
    >>> from simlib.measurements import data_dir
    >>> fit = load_fit(data_dir() / "fits" / "ampere-altra.json")
    >>> fit.cost_table.loc[0, ["cost", "unit", "bound"]].tolist(), fit.estimate.dof
    (['fault_hold', 'ns', ''], 8)
    """

    scenario: Scenario
    estimate: CostEstimate
    parameters: pd.DataFrame
    observations: pd.DataFrame
    meta: dict[str, Any]
    noise: pd.DataFrame = field(default_factory=pd.DataFrame)
    sensitivity: pd.DataFrame = field(default_factory=pd.DataFrame)
    starts: pd.DataFrame = field(default_factory=pd.DataFrame)
    advice: Mapping[str, str] = field(default_factory=dict)

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {
        "cost_intervals": lambda fit: fit.costs(),
        "residuals": lambda fit: fit.residuals,
        "correlation": lambda fit: fit.correlation,
        "dirty_memory_time": lambda fit: fit.curves(),
        "contentions": lambda fit: fit.curves(),
        "sensitivity": lambda fit: fit.sensitivity[fit.sensitivity["variant"] == fit.sensitivity["variant"].iloc[0]],
    }

    @property
    def level(self) -> float:
        """Confidence level of the intervals."""
        return float(self.meta["level"])

    @property
    def valid(self) -> dict[str, bool]:
        """Checks by name (``converged``, ``starts_agree``, ``all_determined``, …): True if passed."""
        return {name: good for name, good in self.meta["valid"].items() if isinstance(good, bool)}

    @property
    def train(self) -> pd.DataFrame:
        """Observations that the calibration used."""
        return self.observations[self.observations["train"].astype(bool)]

    def case(self, variant: str, vcpus: int) -> Scenario:
        """Return the scenario of one observation."""
        return (self.scenario.variants[variant] if variant else self.scenario).with_vcpus(vcpus)

    def with_meta(self, **changes: Any) -> Fit:
        """Return the fit with changed metadata."""
        return dataclasses.replace(self, meta=self.meta | changes)

    def costs(self) -> pd.DataFrame:
        """Return the costs with intervals, times in nanoseconds: name, value, low, high, unit, fit, bound."""
        rows, table = self.parameters, self.cost_table
        units = [tables.unit_of(name) for name in rows["name"]]
        scale = np.where(np.array(units) == "ps", 1000.0, 1.0)
        ends = [tables.physical(*row) for row in rows[["name", "value", "low", "high"]].to_numpy().tolist()]
        low, high = np.array(ends, dtype=float).T / scale
        values = {"name": rows["name"].to_numpy(), "value": rows["value"].to_numpy(dtype=float) / scale}
        named = [{"ps": "ns"}.get(unit, unit) for unit in units]
        costs = pd.DataFrame(values | {"low": low, "high": high})
        return costs.assign(unit=named, fit=str(self.meta["dataset"]), bound=table["bound"].to_numpy())

    def curves(self) -> pd.DataFrame:
        """Return the measurements and the model's values: variant, vcpus, metric, kind, value, low, high, held_out."""
        known = self.observations[["variant", "vcpus", "metric"]]
        known = known.assign(held_out=~self.observations["train"].astype(bool))
        measured = known.assign(kind="measured", value=self.observations["value"])
        kinds = np.where(known["held_out"], "predicted", "fitted")
        model = known.assign(kind=kinds, value=self.observations["model"])
        return pd.concat([measured, model], ignore_index=True).assign(low=np.nan, high=np.nan)

    @property
    def cost_table(self) -> pd.DataFrame:
        """Costs in readable units: see `simlib.measurements.fits.tables.cost_table`."""
        return tables.cost_table(self.parameters)

    @property
    def residuals(self) -> pd.DataFrame:
        """Deviation of the model from each measurement: see `simlib.measurements.fits.tables.residual_table`."""
        return tables.residual_table(self.observations, self.estimate, self.noise)

    @property
    def correlation(self) -> pd.DataFrame | None:
        """Correlation matrix of the costs' logarithms; None if the covariance matrix has only variances."""
        return self.estimate.correlation()[0]

    @property
    def chi_squared(self) -> float:
        """Sum of the squared residuals of the fitted rows; NaN without fitted rows."""
        rows = self.residuals
        return float((rows.loc[rows["role"] == tables.FITTED, "residual"] ** 2).sum(min_count=1))

    @property
    def heading(self) -> str:
        """Data set, training condition and date of the fit."""
        return f"Fit to {self.meta['dataset']} ({self.meta['train'] or 'all rows'}), {self.meta['date']}"

    @property
    def quality(self) -> tuple[str, ...]:
        """χ², degrees of freedom and discrepancy, in sentences."""
        rows, costs, dof = len(self.train), len(self.parameters), self.estimate.dof
        deviation = f"discrepancy {100 * self.estimate.discrepancy:.2f} %: relative standard deviation of a"
        if not rows:
            return (
                f"χ²: none, since no row below was fitted; degrees of freedom of the intervals: {dof}",
                f"{deviation} held-out row from the model, estimated from these rows; their χ² below "
                "therefore equals the number of these rows for any model",
            )
        count = f"{rows} rows minus {costs} costs"
        if rows - costs != dof:
            count = f"{rows} rows were fitted, and not all of the {costs} costs were fitted to them"
        squares = self.chi_squared
        return (
            f"χ² {squares:.4g} with {dof} degrees of freedom ({count}), χ²/dof {squares / dof:.3g}",
            f"{deviation} row from the model, estimated from the same rows; χ²/dof is therefore near 1 for any fit "
            "and, unlike held-out rows, does not test the model",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the checks in `valid` that passed, then of those that failed."""
        names = {value: [name.replace("_", " ") for name, good in self.valid.items() if good is value]
                 for value in (True, False)}  # fmt: skip
        prefixes = {True: "checks passed: ", False: "checks failed: "}
        return tuple(prefix + ", ".join(names[value]) for value, prefix in prefixes.items() if names[value])

    @property
    def doubt(self) -> str:
        """Warning about the checks in `valid` that failed; empty if all passed.

        >>> from simlib.measurements.fits import load_fit
        >>> load_fit("data/fits/x86-published.json").doubt
        'your fit does not constrain fault_jitter (0.05 to 1.5): do not trust this answer until that is resolved'
        """
        failed = (name for name, good in self.valid.items() if not good and name != "all_determined")
        faults = [f"did not pass {name!r}" for name in failed]
        rows = self.costs()[~self.parameters["determined"].astype(bool)].query("low < high")
        faults += [f"does not constrain {name} ({low:.5g} to {high:.5g}{' ns' * (unit == 'ns')})"
                 for name, low, high, unit in rows[["name", "low", "high", "unit"]].to_numpy().tolist()]  # fmt: skip
        return f"your fit {' and '.join(faults)}: do not trust this answer until that is resolved" if faults else ""

    @property
    def warnings(self) -> list[str]:
        """Warnings about the checks that failed, each with the problem and a remedy."""
        return [f"warning: check {name.replace('_', ' ')!r} failed: {text}" for name, text in self.advice.items()]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on missing correlations and intervals, costs from priors and unused columns, and the warnings."""
        exact = self.parameters.loc[self.parameters["low"] == self.parameters["high"], "name"]
        held = self.meta.get("held_at_medians", ())
        priors = (f"costs from priors (the intervals reflect their uncertainty): {', '.join(held)}",) if held else ()
        points = f"costs shown as points, since their intervals are unknown: {', '.join(exact)}"
        unknown = (points,) if len(exact) else ()
        columns = ", ".join(self.meta.get("not_used", ()))
        unused = (f"columns not used: {columns}; to use one, add it to metrics in [calibration]",) if columns else ()
        clock_note = "times are read from an emulator's serial clock (docs/lab.md), not measured on hardware"
        emulated = (clock_note,) if self.scenario.host.clock != "wall" else ()
        return (*self.estimate.correlation()[1], *unknown, *priors, *unused, *self.warnings, *emulated)

    def by_metric(self) -> pd.DataFrame:
        """Return one row per metric and role: rows, median and (signed) worst error in percent, χ² of those rows."""
        return tables.metric_table(self.residuals)

    def formatted_costs(self) -> pd.DataFrame:
        """Return the costs as text: one unit per row, four digits."""
        costs = self.cost_table
        digits = {name: [f"{value:.4g}" for value in costs[name]] for name in ("value", "low", "high")}
        signs = {"below": "−", "above": "+"}
        ends = {name: [tables.distance_text(share, sign) for share in costs[name]] for name, sign in signs.items()}
        return costs.assign(**digits, **ends, determined=costs["determined"].map({True: "yes", False: "no"}))

    def summary(self) -> str:
        """Return costs with intervals, χ², residuals, correlations, flags and notes as text."""
        costs, correlation = self.formatted_costs(), self.correlation
        listed = costs if (costs["bound"] != "").any() else costs.drop(columns="bound")
        parts = [
            _lines(self.heading, *self.quality, *self.flags),
            f"Costs, {100 * self.level:g} % intervals\n{text_of(listed)}",
            f"Residuals, errors and deviations in percent\n{text_of(self.by_metric())}",
        ]
        if correlation is not None:
            parts.append(f"Correlations\n{text_of(tables.number_columns(correlation))}")
        return "\n\n".join(parts + [_lines(*self.notes)] * bool(self.notes))

    def figures(self) -> tuple[str, ...]:
        """Return the names of the figures that can be drawn; the first is the default of `plot`."""
        metrics = {str(metric).partition("[")[0] for metric in self.observations["metric"]}
        available = {"dirty_memory_time": "dirty_memory_time" in metrics, "contentions": "contentions" in metrics,
                     "correlation": self.correlation is not None, "sensitivity": len(self.sensitivity) > 0}  # fmt: skip
        return tuple(name for name in self.FIGURES if available.get(name, True))

    def _repr_html_(self) -> str:
        template = ("simlib.measurements.fits", "fit.html.j2")
        return rendered(*template, fit=self, number=lambda v: "" if np.isnan(v) else f"{v:.3g}")


def _lines(*texts: str) -> str:
    return "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in texts)
