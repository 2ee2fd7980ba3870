# SPDX-License-Identifier: BSD-3-Clause
"""simlib: a calibrated model of KVM's mmu_lock.

Names are imported when they are first used, so that ``import simlib`` and the command's ``--help`` take no time.
"""

from __future__ import annotations

from simlib import later
from simlib.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from simlib import calibration as calibration
    from simlib import decision as decision
    from simlib import figures, measurements
    from simlib import fits as fits
    from simlib import host as host
    from simlib import lab as lab
    from simlib import migration as migration
    from simlib import sweep as sweep
    from simlib.calibration import Calibrated, calibrate
    from simlib.comparison import Comparison, compare
    from simlib.decision import BatchChoice, Choice, choose, choose_batch, standard_scenario
    from simlib.engine.timeline import perfetto_trace
    from simlib.errors import CalibrationError, DeadlockError, HorizonError, InputError, SimlibError
    from simlib.fits import CostEstimate, Fit, load_fit, save_fit
    from simlib.migration import Migration, migrate
    from simlib.model.scenario import Scenario, load_scenario
    from simlib.prediction import PredictionResult, predict
    from simlib.sampling import SampleResult
    from simlib.simulation import SimulationResult, programs, sample, simulate
    from simlib.studies.lab.hardware import OnHardware, on_hardware

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
    "Migration",
    "OnHardware",
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
    "migrate",
    "on_hardware",
    "perfetto_trace",
    "predict",
    "programs",
    "sample",
    "save_fit",
    "simulate",
    "standard_scenario",
]

_HOMES = {
    "calibration": ("Calibrated", "calibrate"),
    "comparison": ("Comparison", "compare"),
    "decision": ("BatchChoice", "Choice", "choose", "choose_batch", "standard_scenario"),
    "engine.timeline": ("perfetto_trace",),
    "errors": ("CalibrationError", "DeadlockError", "HorizonError", "InputError", "SimlibError"),
    "figures": (),
    "fits": ("CostEstimate", "Fit", "load_fit", "save_fit"),
    "host": (),
    "lab": (),
    "measurements": (),
    "migration": ("Migration", "migrate"),
    "model.scenario": ("Scenario", "load_scenario"),
    "prediction": ("PredictionResult", "predict"),
    "sampling": ("SampleResult",),
    "simulation": ("SimulationResult", "programs", "sample", "simulate"),
    "studies.lab.hardware": ("OnHardware", "on_hardware"),
    "sweep": (),
}
"""Modules, and the public names that they hold; a test holds them against what type checkers are told above."""

__getattr__ = later.names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
