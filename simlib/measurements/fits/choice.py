# SPDX-License-Identifier: BSD-3-Clause
"""Choice of the calibrated costs of a scenario: the given fit, or by default the shipped fit for its host."""

from __future__ import annotations

from pathlib import Path

from simlib.measurements.fits.estimate import CostEstimate
from simlib.measurements.fits.file import load_fit, shipped_fit
from simlib.measurements.fits.fit import Fit
from simlib.model.scenario import Scenario

AnyFit = Fit | CostEstimate | str | Path
"""Calibrated costs: a fit, the path of its file, or only its estimate."""


def choose_fit(scenario: Scenario, fit: AnyFit | None = None) -> tuple[CostEstimate | None, tuple[str, ...]]:
    """Choose the calibrated costs of a scenario without variants: the given fit, or the shipped fit for its host.

    Returns: The costs, or None if there is no fit; and notes: the origin of costs that were not given, checks that a
    given fit did not pass, and a warning if it was calibrated on another architecture.

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
    calibrated = {case.policy.architecture for case in fit.scenario.variants.values() or (fit.scenario,)}
    architecture = scenario.policy.architecture
    if architecture not in calibrated:
        names = ", ".join(sorted(calibrated))
        notes.append(f"warning: the costs were calibrated on {names}; it is assumed that they apply to {architecture}")
    return fit.estimate, tuple(notes)
