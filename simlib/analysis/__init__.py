# SPDX-License-Identifier: BSD-3-Clause
"""Analyses, one module or package each: simulate, predict, compare, calibrate, choose, migrate, sweep, theory."""

from simlib._lib import lazy_imports

_ANALYSES = ("calibrate", "choose", "compare", "migrate", "predict", "simulate", "sweep", "theory")

__getattr__ = lazy_imports.lazy_names(__name__, dict.fromkeys(_ANALYSES, ()))
