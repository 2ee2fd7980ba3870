# SPDX-License-Identifier: BSD-3-Clause
"""Calibrated costs: fit files, the shipped fit of a host, and the costs of a scenario."""

from simlib.measurements.fits.choice import AnyFit, choose_fit
from simlib.measurements.fits.estimate import BOUNDS, CostEstimate, conventions, cost_key
from simlib.measurements.fits.file import find_fit, fit_path, load_fit, save_fit
from simlib.measurements.fits.fit import Fit
from simlib.measurements.fits.priors import load_priors
from simlib.measurements.fits.spread import Spread, decisive, variations
from simlib.measurements.fits.uncertain import UncertainCosts, complete, describe_costs, readable_costs

__all__ = [
    "BOUNDS",
    "AnyFit",
    "CostEstimate",
    "Fit",
    "Spread",
    "UncertainCosts",
    "choose_fit",
    "complete",
    "conventions",
    "cost_key",
    "decisive",
    "describe_costs",
    "find_fit",
    "fit_path",
    "load_fit",
    "load_priors",
    "readable_costs",
    "save_fit",
    "variations",
]
