# SPDX-License-Identifier: BSD-3-Clause
"""simlib: a calibrated model of KVM's mmu_lock.

Names are imported at their first use, so that ``import simlib`` and the command's ``--help`` are fast.
"""

from __future__ import annotations

from simlib._lib import lazy_imports
from simlib._lib.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from simlib import figures, lab, measurements
    from simlib._lib.errors import CalibrationError, DeadlockError, HorizonError, InputError, SimlibError
    from simlib.analysis import sweep
    from simlib.analysis.calibrate import CalibrationOptions, calibrate
    from simlib.analysis.choose import Choice, choose, choose_batch, preset_scenario
    from simlib.analysis.compare import Comparison, compare
    from simlib.analysis.migrate import Migration, migrate
    from simlib.analysis.predict import PredictionResult, predict
    from simlib.analysis.simulate import SimulationResult, programs, sample, simulate
    from simlib.lab.hardware.prediction import OnHardware, on_hardware
    from simlib.measurements.fits import CostEstimate, Fit, load_fit, save_fit
    from simlib.model.scenario import Scenario, load_scenario
    from simlib.simulator.engine.timeline import perfetto_trace
    from simlib.simulator.sampling import SampleResult

__all__ = [
    "CalibrationError",
    "CalibrationOptions",
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
    "lab",
    "load_fit",
    "load_scenario",
    "measurements",
    "migrate",
    "on_hardware",
    "perfetto_trace",
    "predict",
    "preset_scenario",
    "programs",
    "sample",
    "save_fit",
    "simulate",
    "sweep",
]

_HOMES = {
    "_lib.errors": ("CalibrationError", "DeadlockError", "HorizonError", "InputError", "SimlibError"),
    "analysis": ("sweep",),
    "analysis.calibrate": ("CalibrationOptions", "calibrate"),
    "analysis.choose": ("Choice", "choose", "choose_batch", "preset_scenario"),
    "analysis.compare": ("Comparison", "compare"),
    "analysis.migrate": ("Migration", "migrate"),
    "analysis.predict": ("PredictionResult", "predict"),
    "analysis.simulate": ("SimulationResult", "programs", "sample", "simulate"),
    "figures": (),
    "lab": (),
    "lab.hardware.prediction": ("OnHardware", "on_hardware"),
    "measurements": (),
    "measurements.fits": ("CostEstimate", "Fit", "load_fit", "save_fit"),
    "model.scenario": ("Scenario", "load_scenario"),
    "simulator.engine.timeline": ("perfetto_trace",),
    "simulator.sampling": ("SampleResult",),
}
"""Public names by the module that defines them; a test compares them with the imports for type checkers above."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
