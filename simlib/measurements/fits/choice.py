# SPDX-License-Identifier: BSD-3-Clause
"""Which calibrated costs a scenario gets: those that are given, else the shipped ones of its machine."""

from __future__ import annotations

from pathlib import Path

from simlib.measurements.fits.estimate import CostEstimate
from simlib.measurements.fits.file import load_fit, shipped_fit
from simlib.measurements.fits.fit import Fit
from simlib.model.scenario import Scenario

AnyFit = Fit | CostEstimate | str | Path
"""Ways to give calibrated costs: a fit, its file, or its costs alone."""


def choose_fit(scenario: Scenario, fit: AnyFit | None = None) -> tuple[CostEstimate | None, tuple[str, ...]]:
    """The costs to use, by default those of the shipped fit of the scenario's machine, and what to know of them.

    The notes say where the costs come from, if nobody said so, what a given fit does not determine, and that it was
    calibrated on another architecture.
    The scenario has no variants. Without a fit, the costs are None.

    >>> estimate, notes = choose_fit(Scenario.parse({"host": {"name": "ampere-altra"}}))
    >>> notes[0]
    'costs: the shipped fit for ampere-altra (arm64-dirty-memory-time, ...)'
    """
    if isinstance(fit, CostEstimate):
        return fit, ()
    if isinstance(fit, str | Path):
        fit = load_fit(fit)
    notes = [f"warning: {fit.doubt}"] if fit is not None and fit.doubt else []
    if fit is None:
        fit = shipped_fit(scenario.host.name)
        if fit is None:
            return None, ()
        dataset, date = fit.meta["dataset"], fit.meta["date"]
        notes.append(f"costs: the shipped fit for {scenario.host.name} ({dataset}, {date})")
    fitted = {case.policy.architecture for case in fit.scenario.variants.values() or (fit.scenario,)}
    asked = scenario.policy.architecture
    if asked not in fitted:
        notes.append(
            f"warning: the costs were calibrated on {', '.join(sorted(fitted))}; that they hold for {asked} is assumed"
        )
    return fit.estimate, tuple(notes)
