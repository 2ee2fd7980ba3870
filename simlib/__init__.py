# SPDX-License-Identifier: BSD-3-Clause
"""simlib: a calibrated model of KVM's mmu_lock."""

from __future__ import annotations

from simlib import measurements
from simlib.calibration import Calibrated, Fit, calibrate, load_fit, save_fit
from simlib.decision import BatchChoice, choose_batch, standard_scenario
from simlib.engine.timeline import perfetto_trace
from simlib.errors import CalibrationError, DeadlockError, HorizonError, InputError, SimlibError
from simlib.model.scenario import Scenario, load_scenario
from simlib.prediction import CostEstimate, PredictionResult, predict
from simlib.simulation import SimulationResult, simulate
from simlib.version import __version__

__all__ = [
    "BatchChoice",
    "Calibrated",
    "CalibrationError",
    "CostEstimate",
    "DeadlockError",
    "Fit",
    "HorizonError",
    "InputError",
    "PredictionResult",
    "Scenario",
    "SimlibError",
    "SimulationResult",
    "__version__",
    "calibrate",
    "choose_batch",
    "load_fit",
    "load_scenario",
    "measurements",
    "perfetto_trace",
    "predict",
    "save_fit",
    "simulate",
    "standard_scenario",
]
