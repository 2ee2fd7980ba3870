# SPDX-License-Identifier: BSD-3-Clause
"""simlib: a calibrated model of KVM's mmu_lock.

Names are imported when they are first used, so that ``import simlib`` and the command's ``--help`` take no time.
"""

from __future__ import annotations

from simlib.version import __version__

TYPE_CHECKING = False  # typing and importlib take longer than all the rest here
if TYPE_CHECKING:
    from simlib import calibration as calibration
    from simlib import decision as decision
    from simlib import figures, measurements
    from simlib import fits as fits
    from simlib import host as host
    from simlib import lab as lab
    from simlib import sweep as sweep
    from simlib.calibration import Calibrated, calibrate
    from simlib.comparison import Comparison, compare
    from simlib.decision import BatchChoice, Choice, choose, choose_batch, standard_scenario
    from simlib.engine.timeline import perfetto_trace
    from simlib.errors import CalibrationError, DeadlockError, HorizonError, InputError, SimlibError
    from simlib.fits import CostEstimate, Fit, load_fit, save_fit
    from simlib.model.scenario import Scenario, load_scenario
    from simlib.prediction import PredictionResult, predict
    from simlib.sampling import SampleResult
    from simlib.simulation import SimulationResult, programs, sample, simulate

__all__ = [
    "BatchChoice",
    "Calibrated",
    "CalibrationError",
    "Choice",
    "Comparison",
    "CostEstimate",
    "DeadlockError",
    "Fit",
    "HorizonError",
    "InputError",
    "PredictionResult",
    "SampleResult",
    "Scenario",
    "SimlibError",
    "SimulationResult",
    "__version__",
    "calibrate",
    "choose",
    "choose_batch",
    "compare",
    "figures",
    "load_fit",
    "load_scenario",
    "measurements",
    "perfetto_trace",
    "predict",
    "programs",
    "sample",
    "save_fit",
    "simulate",
    "standard_scenario",
]

_HOMES = {
    "simlib.calibration": ("Calibrated", "calibrate"),
    "simlib.comparison": ("Comparison", "compare"),
    "simlib.decision": ("BatchChoice", "Choice", "choose", "choose_batch", "standard_scenario"),
    "simlib.engine.timeline": ("perfetto_trace",),
    "simlib.errors": ("CalibrationError", "DeadlockError", "HorizonError", "InputError", "SimlibError"),
    "simlib.fits": ("CostEstimate", "Fit", "load_fit", "save_fit"),
    "simlib.model.scenario": ("Scenario", "load_scenario"),
    "simlib.prediction": ("PredictionResult", "predict"),
    "simlib.sampling": ("SampleResult",),
    "simlib.simulation": ("SimulationResult", "programs", "sample", "simulate"),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

_HOME = {name: home for home, names in _HOMES.items() for name in names}
_PARTS = ("calibration", "decision", "figures", "fits", "host", "lab", "measurements", "sweep")


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415  # `__main__` hears signals only after this module

    if name in _PARTS:
        return import_module(f"simlib.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'simlib' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
