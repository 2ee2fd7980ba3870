# SPDX-License-Identifier: BSD-3-Clause
"""Which calibrated costs a scenario gets: those that are given, else the shipped ones of its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from simlib.fits.estimate import CostEstimate
from simlib.fits.file import Fit, find_fit, load_fit
from simlib.model.scenario import Scenario


class Calibration(Protocol):
    """What was calibrated, and on what: a `Fit`, or what `simlib.calibrate` returns."""

    @property
    def estimate(self) -> CostEstimate:
        """The costs."""

    @property
    def scenario(self) -> Scenario:
        """What was calibrated."""


AnyFit = Calibration | CostEstimate | str | Path
"""Ways to give calibrated costs: a fit file, what it holds, a calibration, or its costs alone."""


def choose_fit(scenario: Scenario, fit: AnyFit | None = None) -> tuple[CostEstimate | None, tuple[str, ...]]:
    """The costs to use, and what to know of them.

    Parameters
    ----------
    scenario : Scenario
        Without variants.
    fit : Fit, Calibrated, CostEstimate, str or Path, optional
        By default the shipped fit of the scenario's machine, if there is one.

    Returns
    -------
    estimate : CostEstimate or None
    notes : tuple of str
        Where the costs come from, if nobody said so; and that they were calibrated on another architecture.

    Examples
    --------
    >>> estimate, notes = choose_fit(Scenario.parse({"machine": {"name": "ampere-altra"}}))
    >>> notes[0]
    'costs: the shipped fit for ampere-altra (arm64-dirty-memory-time, ...)'
    """
    if isinstance(fit, CostEstimate):
        return fit, ()
    if isinstance(fit, str | Path):
        fit = load_fit(fit)
    notes = []
    if fit is None:
        fit = find_fit(scenario)
        if fit is None:
            return None, ()
        if isinstance(fit, Fit):
            dataset, date = fit.meta["dataset"], fit.meta["date"]
            notes.append(f"costs: the shipped fit for {scenario.machine.name} ({dataset}, {date})")
    fitted = {case.policy.architecture for case in fit.scenario.variants.values() or (fit.scenario,)}
    asked = scenario.policy.architecture
    if asked not in fitted:
        notes.append(
            f"warning: the costs were calibrated on {', '.join(sorted(fitted))}; that they hold for {asked} is assumed"
        )
    return fit.estimate, tuple(notes)
