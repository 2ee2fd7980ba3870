# SPDX-License-Identifier: BSD-3-Clause
"""A measured host to costs: what follows from its measurements, with intervals.

Costs come from one vCPU alone: slopes over memory and over ioctls while it is parked or only reads, and the probe of
the lock. Nothing that is held out is among it: CLEAR while vCPUs write, and faults of more than one vCPU. A kernel with
simlib's patches tells more: its statistics how long a fault holds the lock, and its switches what letting go of it
costs (calibrated to), and CLEAR in batches while vCPUs write (held out).

What a cost is uncertain by comes from the repeats, resampled as a whole, with Student's t for their number.
"""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.analysis.predict import LEVEL, Progress
from simlib.lab.host.held_out import held_out
from simlib.lab.host.measured import Cells, Floats, HostData, host_scenario
from simlib.lab.host.probe import Probe
from simlib.measurements.fits import CostEstimate, Fit, conventions
from simlib.measurements.fits.estimate import BOUNDS

RESAMPLES = 500
"""Times that the repeats are resampled."""

WORD = 64
"""Pages of a word of the dirty bitmap: the shortest hold that CLEAR can be given."""


def calibrate_host(data: HostData, seed: int = 1, *, progress: Progress = lambda text, share: None) -> Fit:
    """The costs of a host with their intervals.

    Returns: As a fit file holds it: ``save_fit`` saves it. Raises `CalibrationError` if too few cells were quiet to
    determine what every prediction needs.

    - `seed`: of the resampling, of the simulated probe and of the replications.
    - `progress`: told what is being done, and the share of it that is done.
    """
    random = np.random.default_rng(seed)
    repeats = np.arange(len(data.repeats))
    best = values_of(data, repeats)
    probe = Probe(data, best, seed)
    found = best | probe.costs
    draws = []
    for _ in range(RESAMPLES):
        values = values_of(data, random.choice(repeats, len(repeats)))
        draws.append(values | probe.near(values, random))
    known = {name for name in BOUNDS if all(np.isfinite(draw.get(name, np.nan)) for draw in draws)}
    names = tuple(name for name in found if name in known)
    low, high = np.array([BOUNDS[name] for name in names]).T
    centre = np.clip([found[name] for name in names], low, high)
    logs = np.log(np.clip([[draw[name] for name in names] for draw in draws], low, high))
    dof = max(len(repeats) - 1, 1)
    covariance = np.atleast_2d(np.cov(logs, rowvar=False)) * len(repeats) / dof
    half = stats.t.ppf(0.5 + LEVEL / 2, dof) * np.sqrt(np.diag(covariance))
    estimate = CostEstimate(names, np.log(centre), covariance, dof, 0.0, {}, **conventions(host_scenario(data)))
    at_bound = (centre <= low) | (centre >= high)
    parameters = pd.DataFrame(
        {"name": names, "value": centre, "low": centre * np.exp(-half), "high": centre * np.exp(half),
         "at_bound": at_bound, "determined": ~at_bound}
    )  # fmt: skip
    held = held_out(data, estimate, seed, progress)
    seen = held.assign(variant="", train=False, error=held["model"] / held["value"] - 1)
    clear, stall = (
        _deviation(seen[seen["metric"] == metric]["error"]) for metric in ("clear_dirty_log_time", "longest_stall")
    )
    spread = {"longest_stall": stall / clear} if clear else {}
    meta = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dataset": f"{data.name}: {data.facts['cpu']}, {len(data.facts['cpus'])} CPUs, Linux {data.facts['kernel']}",
        "train": "one vCPU, parked or reading, and the probe of the lock; no observation below",
        "seed": seed,
        "pages_per_vcpu": None,
        "level": LEVEL,
        "valid": {"all_determined": not at_bound.any(), "repeats": len(repeats)},
    }
    return Fit(host_scenario(data), replace(estimate, discrepancy=clear, spread=spread), parameters, seen, meta)


def _deviation(errors: pd.Series) -> float:
    """Root mean square of the logarithms of model over measured."""
    return float(np.sqrt(np.mean(np.log1p(errors) ** 2))) if len(errors) else 0.0


def values_of(data: HostData, repeats: NDArray[np.int64]) -> dict[str, float]:
    """Costs and what the probe saw, of some repeats by their places: picoseconds, counts."""

    def level(study: str, name: str, late: bool) -> Cells:
        return data.level(study, name, late, repeats)

    first, later = (level("parked", "write", late) for late in (False, True))
    clear, enabled = level("parked", "clear", True), level("enable", "enable", False)
    populated = level("parked", "populate", False)
    values = {"guest_access": slope(first.pages, first.time), "fault": slope(later.pages, later.time)}
    values["populate_block"] = slope(populated.pages, populated.time) - values["fault"]
    values["clear_page"] = slope(clear.pages, clear.time)
    values["enable_page"] = slope(enabled.pages, enabled.time)
    chunks, reads = level("chunks", "clear", True), level("reads", "clear", False)
    whole = clear.pages == (chunks.pages[0] if len(chunks.pages) else 0)
    calls, times = np.append(chunks.calls, clear.calls[whole]), np.append(chunks.time, clear.time[whole])
    values["ioctl"] = slope(calls, times)
    values["interrupt"] = slope(reads.calls, reads.time) - values["ioctl"]
    probes, idle = (level("probe", name, True) for name in ("probe", "probe_idle"))
    if len(probes.pages) and len(idle.pages):
        values["probe_ioctl"] = values["clear_ioctl"] = float(idle.time[0] / idle.calls[0])
        values["probes"], values["probe_time"] = float(probes.calls[0]), float(probes.time[0])
        values["probe_pages"] = float(probes.pages[0])
        values["flush"] = values["ioctl"] - values["probe_ioctl"]
    words = level("reacquire", "clear", True)
    many, one = (words.time[words.batch == batch] for batch in (WORD, 0))
    if len(many) == len(one):
        values["reacquire"] = slope(words.pages[words.batch == WORD] / WORD, many - one)
    holds, kicks = data.counted_holds[repeats], np.concatenate([data.kicks[repeat] for repeat in repeats])
    if np.isfinite(holds).any():
        values["counted_hold"] = float(np.nanmedian(holds))
    if len(kicks):
        values["kick"] = float(kicks.mean()) - values["guest_access"]
    return values


def slope(x: Floats, y: Floats) -> float:
    """Slope of a line through times whose relative deviations are alike; NaN without two different `x`.

    >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([12.0, 14.0, 18.0])), 9)
    2.0
    """
    if len(set(x.tolist())) < 2:
        return float("nan")
    weights = 1 / y**2
    x_mean, y_mean = np.average(x, weights=weights), np.average(y, weights=weights)
    return float(np.sum(weights * (x - x_mean) * (y - y_mean)) / np.sum(weights * (x - x_mean) ** 2))
