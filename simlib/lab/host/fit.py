# SPDX-License-Identifier: BSD-3-Clause
"""Calibrate costs to a measured host, with intervals.

The costs come from single-vCPU measurements: slopes against memory size or ioctl count while the vCPU is parked or
only reads, and the probe of the lock. CLEAR while vCPUs write, and faults of several vCPUs, are held out. A kernel with
simlib's patches adds three measurements. Two are fitted: its statistics time the hold of a fault, and its parameters
give the cost of dropping and reacquiring mmu_lock. The third, CLEAR in batches while vCPUs write, is held out.

The uncertainty of a cost comes from resampling whole repeats, with a t quantile for the small number of repeats.
"""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from simlib.analysis.prediction_options import LEVEL, Progress
from simlib.lab.host.held_out import predict_held_out
from simlib.lab.host.measured import Cells, Floats, HostData, host_scenario
from simlib.lab.host.probe import Probe
from simlib.lab.process import silent
from simlib.measurements.fits import CostEstimate, Fit, conventions
from simlib.measurements.fits.estimate import BOUNDS

RESAMPLES = 500

WORD = 64
"""Pages of a word of the dirty bitmap: the smallest batch of CLEAR."""


def calibrate_host(data: HostData, seed: int = 1, *, progress: Progress = silent) -> Fit:
    """Estimate the costs of a host with their intervals.

    Returns: A fit, which ``save_fit`` saves. Raises `CalibrationError` if too few cells were quiet to estimate the
    costs that every prediction needs.

    - `seed`: of the resampling, the probe and the replications.
    """
    random = np.random.default_rng(seed)
    repeats = np.arange(len(data.repeats))
    direct_costs = values_of(data, repeats)
    probe = Probe(data, direct_costs, seed)
    best_values = direct_costs | probe.costs
    draws = []
    for _ in range(RESAMPLES):
        values = values_of(data, random.choice(repeats, len(repeats)))
        draws.append(values | probe.resampled_costs(values, random))
    determined = {name for name in BOUNDS if all(np.isfinite(draw.get(name, np.nan)) for draw in draws)}
    names = tuple(name for name in best_values if name in determined)
    low, high = np.array([BOUNDS[name] for name in names]).T
    centre = np.clip([best_values[name] for name in names], low, high)
    logs = np.log(np.clip([[draw[name] for name in names] for draw in draws], low, high))
    dof = max(len(repeats) - 1, 1)
    covariance = np.atleast_2d(np.cov(logs, rowvar=False)) * len(repeats) / dof
    half_width = stats.t.ppf(0.5 + LEVEL / 2, dof) * np.sqrt(np.diag(covariance))
    estimate = CostEstimate(names, np.log(centre), covariance, dof, 0.0, {}, **conventions(host_scenario(data)))
    at_bound = (centre <= low) | (centre >= high)
    parameters = pd.DataFrame(
        {"name": names, "value": centre, "low": centre * np.exp(-half_width), "high": centre * np.exp(half_width),
         "at_bound": at_bound, "determined": ~at_bound}
    )  # fmt: skip
    predictions = predict_held_out(data, estimate, seed, progress)
    observations = predictions.assign(variant="", train=False, error=predictions["model"] / predictions["value"] - 1)
    clear, stall = (_deviation(observations, metric) for metric in ("clear_dirty_log_time", "longest_stall"))
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
    return Fit(host_scenario(data), replace(estimate, discrepancy=clear, spread=spread), parameters, observations, meta)


def _deviation(observations: pd.DataFrame, metric: str) -> float:
    """Root mean square of the logarithms of the ratios of predicted to measured values."""
    errors = observations[observations["metric"] == metric]["error"]
    return float(np.sqrt(np.mean(np.log1p(errors) ** 2))) if len(errors) else 0.0


def values_of(data: HostData, repeats: NDArray[np.int64]) -> dict[str, float]:
    """Estimate costs (ps) and the results of the probe (ps, counts) from the repeats with these indices."""

    def level(study: str, name: str, late: bool) -> Cells:
        return data.phase_medians(study, name, late, repeats)

    first, later = (level("parked", "write", late) for late in (False, True))
    clear, enabled = level("parked", "clear", True), level("enable", "enable", False)
    populated = level("parked", "populate", False)
    values = {"guest_access": slope(first.pages, first.time), "fault": slope(later.pages, later.time)}
    values["populate_block"] = slope(populated.pages, populated.time) - values["fault"]
    values["clear_page"] = slope(clear.pages, clear.time)
    values["enable_page"] = slope(enabled.pages, enabled.time)
    chunks, reads = level("chunks", "clear", True), level("reads", "clear", False)
    full_size = clear.pages == (chunks.pages[0] if len(chunks.pages) else 0)
    calls, times = np.append(chunks.calls, clear.calls[full_size]), np.append(chunks.time, clear.time[full_size])
    values["ioctl"] = slope(calls, times)
    values["interrupt"] = slope(reads.calls, reads.time) - values["ioctl"]
    probes, idle = (level("probe", name, True) for name in ("probe", "probe_idle"))
    if len(probes.pages) and len(idle.pages):
        values["probe_ioctl"] = values["clear_ioctl"] = float(idle.time[0] / idle.calls[0])
        values["probes"], values["probe_time"] = float(probes.calls[0]), float(probes.time[0])
        values["probe_pages"] = float(probes.pages[0])
        values["flush"] = values["ioctl"] - values["probe_ioctl"]
    words = level("reacquire", "clear", True)
    batched, single = (words.time[words.batch == batch] for batch in (WORD, 0))
    if len(batched) == len(single):
        values["reacquire"] = slope(words.pages[words.batch == WORD] / WORD, batched - single)
    holds, kicks = data.counted_holds[repeats], np.concatenate([data.kicks[repeat] for repeat in repeats])
    if np.isfinite(holds).any():
        values["counted_hold"] = float(np.nanmedian(holds))
    if len(kicks):
        values["kick"] = float(kicks.mean()) - values["guest_access"]
    return values


def slope(x: Floats, y: Floats) -> float:
    """Fit a line to times with equal relative deviations and return its slope; NaN if all `x` are equal.

    >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([12.0, 14.0, 18.0])), 9)
    2.0
    """
    if len(set(x.tolist())) < 2:
        return float("nan")
    weights = 1 / y**2
    x_mean, y_mean = np.average(x, weights=weights), np.average(y, weights=weights)
    return float(np.sum(weights * (x - x_mean) * (y - y_mean)) / np.sum(weights * (x - x_mean) ** 2))
