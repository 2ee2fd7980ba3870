# SPDX-License-Identifier: BSD-3-Clause
"""Calibrated costs: reading fit files, finding the one that belongs to a machine, and filling a scenario's costs."""

from simlib.fits.choice import AnyFit, choose_fit
from simlib.fits.estimate import BOUNDS, CostEstimate, complete, cost_key, missing_costs, used_costs
from simlib.fits.file import find_fit, fit_path, load_fit, save_fit
from simlib.fits.fit import Fit
from simlib.fits.tables import unit_of

__all__ = [
    "BOUNDS",
    "AnyFit",
    "CostEstimate",
    "Fit",
    "choose_fit",
    "complete",
    "cost_key",
    "find_fit",
    "fit_path",
    "load_fit",
    "missing_costs",
    "save_fit",
    "unit_of",
    "used_costs",
]
