# SPDX-License-Identifier: BSD-3-Clause
"""The probe of the lock: which hold, and which transfer of a cache line, give as many probes in as long a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats
from scipy.optimize import approx_fprime, least_squares

from simlib._lib.errors import CalibrationError
from simlib.analysis.predict import LEVEL
from simlib.analysis.simulate import run_scenario
from simlib.lab.host.design import PAGE
from simlib.lab.host.measured import CURE, Floats, HostData, host_scenario
from simlib.measurements.fits.estimate import BOUNDS
from simlib.simulator.engine.result import PS

JITTER = 0.3
"""Coefficient of variation that the simulated faults are given, so that probes and faults do not fall into step."""

TRANSFER = (60e3, 3.0)
"""A cache line's transfer where the probe says little: picoseconds, and the factor within which it lies with `LEVEL`.
Within a CCX of an EPYC 7R13 it takes 23 ns, within its socket 107 ns (data/published/core-to-core-latency)."""

RESOLVED = 0.01
"""Relative deviation to which the model has to give the probes and the time that were seen."""

COUNTED = 0.02
"""The same of a hold that the kernel's statistics timed, in which half of their two reads of the clock are: some 10 ns
of one that is at least as many times as long as a fault's (kernel-patches/README.md)."""

_DEVIATIONS = np.array([RESOLVED, RESOLVED, np.log(TRANSFER[1]) / stats.norm.ppf(0.5 + LEVEL / 2), COUNTED])
"""Of what `_wanted` gives."""

_STEP = 0.1
"""Step of the logarithms for a derivative."""

_PAGES = 16384


class Probe:
    """`fault_hold` and `line_transfer` by least squares on the simulated probe; `fault_unlocked` is what remains.

    The probe says little of the transfer, which has a prior. Where the kernel's statistics timed the hold, that is one
    more thing to agree with.

    Raises `CalibrationError` if no run of the probe, or of parked vCPUs, was quiet.

    `values`: as of `simlib.lab.host.fit.values_of`. `seed`: of the simulated probe.
    """

    def __init__(self, data: HostData, values: Mapping[str, float], seed: int) -> None:
        needed = ("probes", "fault", "guest_access", "probe_ioctl")
        if not all(np.isfinite(values.get(name, np.nan)) for name in needed):
            raise CalibrationError(f"no quiet run of the probe of the lock, or of parked vCPUs: {CURE}")
        self.data, self.values, self.seed = data, values, seed
        self.wanted = _wanted(values)
        self.known = np.isfinite(self.wanted)
        blocked = (values["probe_time"] - values["probes"] * values["probe_ioctl"]) / values["probe_pages"]
        most = values["fault"] - values["guest_access"]
        start = np.log([np.clip(blocked, 0.05 * most, 0.9 * most), TRANSFER[0]])
        self.found = least_squares(
            self._off, start, jac=lambda x: approx_fprime(x, self._off, _STEP), bounds=_bounds(values), method="dogbox",
            xtol=1e-3, ftol=None, gtol=None,
        )  # fmt: skip

    @property
    def costs(self) -> dict[str, float]:
        """The three costs, ps."""
        return _costs(self.found.x, self.values)

    def near(self, values: Mapping[str, float], random: np.random.Generator) -> dict[str, float]:
        """The same for values that differ little, to first order, with a transfer drawn from its prior."""
        moved = (_wanted(values) - self.wanted) / _DEVIATIONS
        moved[2] = random.standard_normal()
        moved = moved[self.known]
        seen = np.isfinite(moved)
        step = np.linalg.lstsq(self.found.jac[seen], moved[seen], rcond=None)[0]
        return _costs(np.clip(self.found.x + step, *_bounds(values)), values)

    def _off(self, x: Floats) -> Floats:
        """By how much the model is off, in deviations."""
        model = np.append(self._simulated(x), x[::-1])
        return np.asarray(((model - self.wanted) / _DEVIATIONS)[self.known])

    def _simulated(self, x: Floats) -> Floats:
        """Logarithms of the probes and of the time (ps) for each page."""
        probing = {"workload": {"kind": "lock_probe", "iterations": 2}}
        case = host_scenario(self.data, 1, _PAGES * PAGE).changed(probing)
        known = {"guest_access": self.values["guest_access"], "clear_ioctl": self.values["probe_ioctl"]}
        whole = {name: round(max(value, 1000.0)) for name, value in (_costs(x, self.values) | known).items()}
        run = run_scenario(case.with_costs(**whole, fault_jitter=JITTER), seed=self.seed)
        seen = run.value("lock_probes[2]"), run.value("dirty_memory_time[2]") / PS
        return np.log(np.array(seen) / _PAGES)


def _wanted(values: Mapping[str, float]) -> Floats:
    """Logarithms: probes and time for each page that were seen, the transfer of the prior, the hold that was timed."""
    pages = values["probe_pages"]
    seen = values["probes"] / pages, values["probe_time"] / pages
    return np.log([*seen, TRANSFER[0], values.get("counted_hold", np.nan)])


def _costs(x: Floats, values: Mapping[str, float]) -> dict[str, float]:
    hold, transfer = np.exp(x).tolist()
    outside = values["fault"] - values["guest_access"] - hold
    return {"fault_hold": hold, "line_transfer": transfer, "fault_unlocked": outside}


def _bounds(values: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Least and largest logarithms: a hold is shorter than its fault."""
    most = 0.98 * (values["fault"] - values["guest_access"])
    lines = BOUNDS["line_transfer"]
    return np.log([BOUNDS["fault_hold"][0], lines[0]]), np.log([most, lines[1]])
