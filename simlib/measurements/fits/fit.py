# SPDX-License-Identifier: BSD-3-Clause
"""A fit: calibrated costs, how far they are known, and what they rest on."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from simlib.figures.results import Result, rendered, text_of
from simlib.measurements.fits.estimate import CostEstimate
from simlib.measurements.fits.tables import (
    FITTED,
    cost_table,
    costs_in_ns,
    fitted_curves,
    metric_table,
    numbered,
    reach,
    residual_table,
)
from simlib.model.scenario import Scenario

WIDTH = 80
"""Columns of the text."""


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """Calibrated costs, as `simlib.calibrate` finds them and a fit file holds them.

    - `scenario`: what was calibrated.
    - `estimate`: best values, covariance, degrees of freedom and discrepancy.
    - `parameters`: name, value, low, high (picoseconds or dimensionless), at_bound, determined; unit, once it was read.
    - `observations`: the measurements with the model's value: variant, vcpus, metric, value, train, model, error;
      table, where the fit is of several.
    - `meta`: what else the file says: dataset, date, train (the condition on the rows that the calibration saw), seed,
      pages_per_vcpu, level, valid, …
    - `noise`: table, metric, rows, freedom, deviation, ratio, source: how far each metric of each table deviates from
      the model (`simlib.analysis.calibrate.noise.Noise`).
    - `sensitivity`: variant, vcpus, name, first, total and their confidences: Sobol indices of each variant's time in
      the middle of the training vCPUs, over the costs' intervals. Empty without profile intervals.
    - `starts`: of a calibration, not of a file: start, origin (the guess from the asymptotes, or a point over the whole
      physical range), first and last sum of squares (of the coarse runs), steps, where each cost began, agrees (with
      the best: as likely, at the level).
    - `advice`: of a calibration: for each flag of `valid` that does not hold, what is the matter and the cure.

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
        """Probability of the intervals."""
        return float(self.meta["level"])

    @property
    def valid(self) -> dict[str, bool]:
        """Named flags, such as ``converged``, ``starts_agree`` and ``all_determined``."""
        return {name: good for name, good in self.meta["valid"].items() if isinstance(good, bool)}

    @property
    def train(self) -> pd.DataFrame:
        """The observations that the calibration saw."""
        return self.observations[self.observations["train"].astype(bool)]

    def case(self, variant: str, vcpus: int) -> Scenario:
        """The scenario of one observation."""
        return (self.scenario.variants[variant] if variant else self.scenario).with_vcpus(vcpus)

    def with_meta(self, **changes: Any) -> Fit:
        """The same fit, of which the file says something else."""
        return dataclasses.replace(self, meta=self.meta | changes)

    def costs(self) -> pd.DataFrame:
        """The costs with their intervals, times in nanoseconds: name, value, low, high, unit, fit, bound."""
        return costs_in_ns(self.parameters, str(self.meta["dataset"]))

    def curves(self) -> pd.DataFrame:
        """What was measured, and the model beside it: variant, vcpus, metric, kind, value, low, high, held_out."""
        return fitted_curves(self.observations)

    @property
    def cost_table(self) -> pd.DataFrame:
        """The costs as people read them: see `simlib.measurements.fits.tables.cost_table`."""
        return cost_table(self.parameters)

    @property
    def residuals(self) -> pd.DataFrame:
        """How far the model is from each row: see `simlib.measurements.fits.tables.residual_table`."""
        return residual_table(self.observations, self.estimate, self.noise)

    @property
    def correlation(self) -> pd.DataFrame | None:
        """Correlation of the costs' logarithms, names by names; None where the covariance does not have any."""
        return self.estimate.correlation()[0]

    @property
    def chi_squared(self) -> float:
        """Sum of the squared residuals of the fitted rows; NaN if there is none."""
        rows = self.residuals
        return float((rows.loc[rows["role"] == FITTED, "residual"] ** 2).sum(min_count=1))

    @property
    def heading(self) -> str:
        """What was fitted to what, and when."""
        return f"Fit to {self.meta['dataset']} ({self.meta['train'] or 'all rows'}), {self.meta['date']}"

    @property
    def quality(self) -> tuple[str, ...]:
        """χ², degrees of freedom and discrepancy, in sentences."""
        rows, costs, dof = len(self.train), len(self.parameters), self.estimate.dof
        deviation = f"discrepancy {self.estimate.discrepancy:.2%}: the deviation of"
        if not rows:
            return (
                f"χ²: none, since no row below was fitted; {dof} degrees of freedom are those of the intervals",
                f"{deviation} a held-out row, found from these rows, so that their χ² below is their number whatever "
                "the model",
            )
        count = f"{rows} rows less {costs} costs"
        if rows - costs != dof:
            count = f"{rows} rows were fitted; not all of the {costs} costs were fitted to them"
        squares = self.chi_squared
        return (
            f"χ² {squares:.4g} with {dof} degrees of freedom ({count}), χ²/dof {squares / dof:.3g}",
            f"{deviation} a row, found from the same rows, so that χ²/dof is near 1 whatever was fitted: it is no test "
            "of the model, as rows that were held out are",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """The named flags, in words: those that hold, then those that do not."""
        words = {said: [name.replace("_", " ") for name, good in self.valid.items() if good is said]
                 for said in (True, False)}  # fmt: skip
        lines = {True: "checks that hold: ", False: "failed: not "}
        return tuple(lines[said] + ", ".join(names) for said, names in words.items() if names)

    @property
    def doubt(self) -> str:
        """Why not to trust what rests on this fit, of the flags that do not hold; empty if all do.

        >>> from simlib.measurements.fits import load_fit
        >>> load_fit("data/fits/x86-published.json").doubt
        'your fit does not determine fault_jitter (0.05 to 1.5): do not trust this answer before it does'
        """
        said = [f"did not pass {name!r}" for name, good in self.valid.items() if not good and name != "all_determined"]
        rows = self.costs()[~self.parameters["determined"].astype(bool)].query("low < high")
        said += [f"does not determine {name} ({low:.5g} to {high:.5g}{' ns' * (unit == 'ns')})"
                 for name, low, high, unit in rows[["name", "low", "high", "unit"]].to_numpy().tolist()]  # fmt: skip
        return f"your fit {' and '.join(said)}: do not trust this answer before it does" if said else ""

    @property
    def warnings(self) -> list[str]:
        """What is not good about a calibration, and what to do, one sentence each."""
        return [f"warning: not {name.replace('_', ' ')}: {text}" for name, text in self.advice.items()]

    @property
    def notes(self) -> tuple[str, ...]:
        """What else to know, and what is missing."""
        exact = self.parameters.loc[self.parameters["low"] == self.parameters["high"], "name"]
        held = self.meta.get("held_at_medians", ())
        priors = (f"from priors, whose spread is in the intervals: {', '.join(held)}",) if held else ()
        unknown = (f"no interval is known, so that it stands as a point: {', '.join(exact)}",) if len(exact) else ()
        columns = ", ".join(self.meta.get("not_used", ()))
        unused = (f"in the tables, but not used: {columns} ([calibration] metrics names what is)",) if columns else ()
        unit = "times are those of an emulator's serial clock, which counts instructions (docs/lab.md), not of hardware"
        emulated = (unit,) if self.scenario.host.clock != "wall" else ()
        return (*self.estimate.correlation()[1], *unknown, *priors, *unused, *self.warnings, *emulated)

    def by_metric(self) -> pd.DataFrame:
        """One row a metric and role: rows, median and worst error (percent, worst with its sign), χ² of those rows."""
        return metric_table(self.residuals)

    def shown_costs(self) -> pd.DataFrame:
        """The costs as text: one unit a row, four digits."""
        costs = self.cost_table
        digits = {name: [f"{value:.4g}" for value in costs[name]] for name in ("value", "low", "high")}
        ends = {name: [reach(share, sign) for share in costs[name]] for name, sign in (("below", "−"), ("above", "+"))}
        return costs.assign(**digits, **ends, determined=costs["determined"].map({True: "yes", False: "no"}))

    def summary(self) -> str:
        """Costs with intervals, χ², residuals, correlations, flags, and what to know, as text."""
        costs, correlation = self.shown_costs(), self.correlation
        bounds = costs if (costs["bound"] != "").any() else costs.drop(columns="bound")
        parts = [
            _lines(self.heading, *self.quality, *self.flags),
            f"Costs, {self.level:.0%} intervals\n{text_of(bounds)}",
            f"Residuals, errors and deviations in percent\n{text_of(self.by_metric())}",
        ]
        if correlation is not None:
            parts.append(f"Correlations\n{text_of(numbered(correlation))}")
        return "\n\n".join(parts + [_lines(*self.notes)] * bool(self.notes))

    def figures(self) -> tuple[str, ...]:
        """Names of the figures that can be drawn of it; the first one is what `plot` draws unless told otherwise."""
        metrics = {str(metric).partition("[")[0] for metric in self.observations["metric"]}
        has = {"dirty_memory_time": "dirty_memory_time" in metrics, "contentions": "contentions" in metrics,
               "correlation": self.correlation is not None, "sensitivity": len(self.sensitivity) > 0}  # fmt: skip
        return tuple(name for name in self.FIGURES if has.get(name, True))

    def _repr_html_(self) -> str:
        return rendered(
            "simlib.measurements.fits", "fit.html.j2", fit=self, number=lambda v: "" if np.isnan(v) else f"{v:.3g}"
        )


def _lines(*texts: str) -> str:
    """Texts as lines of at most `WIDTH` columns."""
    return "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in texts)
