# SPDX-License-Identifier: BSD-3-Clause
"""Probe of the lock: fit the hold of a fault and the transfer of a cache line to the number and time of probes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats
from scipy.optimize import approx_fprime, least_squares

from simlib._lib.errors import CalibrationError
from simlib.analysis.prediction_options import LEVEL
from simlib.analysis.simulate import run_scenario
from simlib.lab.host.measured import HINT, Floats, HostData, host_scenario
from simlib.measurements.fits.estimate import BOUNDS
from simlib.simulator.engine.result import PS
from simlib.vmm.qemu_rules import PAGE

TRANSFER = (60e3, 3.0)
"""Prior of a cache line's transfer, which the probe constrains poorly: median, ps, and the factor of its interval of
`LEVEL`. In an EPYC 7R13 it takes 23 ns within a CCX, 107 ns within a socket (data/published/core-to-core-latency)."""

PROBE_TOLERANCE = 0.01
"""Standard deviation of the logarithm of the ratio of model to measurement, for number and time of probes."""

COUNTED_TOLERANCE = 0.02
"""Standard deviation for a hold that the kernel's statistics timed, which includes half of the two clock reads, about
10 ns (kernel-patches/README.md): 2 % of a hold of 0.5 µs."""

_TRANSFER_DEVIATION = np.log(TRANSFER[1]) / stats.norm.ppf(0.5 + LEVEL / 2)
_DEVIATIONS = np.array([PROBE_TOLERANCE, PROBE_TOLERANCE, _TRANSFER_DEVIATION, COUNTED_TOLERANCE])
"""Standard deviations of the values of `_targets_of`."""

_PAGES = 16384


class Probe:
    """Least-squares fit of `fault_hold` and `line_transfer` to the probe; `fault_unlocked` is the rest of a fault.

    The transfer has a prior, because the probe constrains it poorly. If the kernel's statistics timed the hold, that
    time is another target.

    Raises `CalibrationError` if no run of the probe, or of parked vCPUs, was quiet. `values`: from
    `simlib.lab.host.fit.values_of`. `seed`: of the simulated probe.
    """

    def __init__(self, data: HostData, values: Mapping[str, float], seed: int) -> None:
        needed = ("probes", "fault", "guest_access", "probe_ioctl")
        if not all(np.isfinite(values.get(name, np.nan)) for name in needed):
            raise CalibrationError(f"the probe of the lock, or the parked vCPU, has no quiet run: {HINT}")
        self.data, self.values, self.seed = data, values, seed
        self.targets = _targets_of(values)
        self.known = np.isfinite(self.targets)
        blocked = (values["probe_time"] - values["probes"] * values["probe_ioctl"]) / values["probe_pages"]
        fault = values["fault"] - values["guest_access"]
        start = np.log([np.clip(blocked, 0.05 * fault, 0.9 * fault), TRANSFER[0]])
        self.solution = least_squares(
            self._residuals, start, jac=lambda x: approx_fprime(x, self._residuals, 0.1), bounds=_bounds(values),
            method="dogbox", xtol=1e-3, ftol=None, gtol=None,
        )  # fmt: skip

    @property
    def costs(self) -> dict[str, float]:
        """Costs `fault_hold`, `line_transfer` and `fault_unlocked`, ps."""
        return _costs(self.solution.x, self.values)

    def resampled_costs(self, values: Mapping[str, float], random: np.random.Generator) -> dict[str, float]:
        """Costs in ps for slightly different values, to first order, with a transfer time sampled from its prior."""
        shift = (_targets_of(values) - self.targets) / _DEVIATIONS
        shift[2] = random.standard_normal()
        shift = shift[self.known]
        finite = np.isfinite(shift)
        step = np.linalg.lstsq(self.solution.jac[finite], shift[finite], rcond=None)[0]
        return _costs(np.clip(self.solution.x + step, *_bounds(values)), values)

    def _residuals(self, x: Floats) -> Floats:
        """Differences between model and targets, in standard deviations."""
        return np.asarray(((np.append(self._simulated(x), x[::-1]) - self.targets) / _DEVIATIONS)[self.known])

    def _simulated(self, x: Floats) -> Floats:
        """Logarithms of the simulated number of probes and time (ps) per page."""
        workload = {"workload": {"kind": "lock_probe", "iterations": 2}}
        case = host_scenario(self.data, 1, _PAGES * PAGE).changed(workload)
        known = {"guest_access": self.values["guest_access"], "clear_ioctl": self.values["probe_ioctl"]}
        costs = {name: round(max(value, 1000.0)) for name, value in (_costs(x, self.values) | known).items()}
        # The jitter of the faults prevents probes and faults from synchronising.
        run = run_scenario(case.with_costs(**costs, fault_jitter=0.3), seed=self.seed)
        simulated = run.value("lock_probes[2]"), run.value("dirty_memory_time[2]") / PS
        return np.log(np.array(simulated) / _PAGES)


def _targets_of(values: Mapping[str, float]) -> Floats:
    """Logarithms of the measured number and time of probes per page, the transfer's prior, and the timed hold."""
    pages = values["probe_pages"]
    measured = values["probes"] / pages, values["probe_time"] / pages
    return np.log([*measured, TRANSFER[0], values.get("counted_hold", np.nan)])


def _costs(x: Floats, values: Mapping[str, float]) -> dict[str, float]:
    hold, transfer = np.exp(x).tolist()
    unlocked = values["fault"] - values["guest_access"] - hold
    return {"fault_hold": hold, "line_transfer": transfer, "fault_unlocked": unlocked}


def _bounds(values: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Bounds of the logarithms: a hold is shorter than its fault."""
    longest_hold = 0.98 * (values["fault"] - values["guest_access"])
    lines = BOUNDS["line_transfer"]
    return np.log([BOUNDS["fault_hold"][0], lines[0]]), np.log([longest_hold, lines[1]])
