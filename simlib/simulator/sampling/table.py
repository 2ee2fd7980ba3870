# SPDX-License-Identifier: BSD-3-Clause
"""Summary of the replications: each metric with its interval, clipped to the possible values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS, lap_quantile
from simlib.simulator.sampling.estimator import SampledRun, Stalls
from simlib.simulator.workloads.degradation import LEVELS
from simlib.simulator.workloads.migration import METRICS, not_converged_warning, page_time

MODEL_ERROR = 0.01
"""Relative standard deviation of the model's error, in addition to the replications' spread (docs/sampling.md)."""

LEVEL = 0.90
"""Nominal coverage of an interval."""

_METRICS = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error from the replications, and its interval."""

    value: float
    error: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """Clip the interval to a range of possible values; the value does not change.

        >>> Estimate(1.0, 0.1, 0.8, 1.2).within(0.0, 1.0)
        Estimate(value=1.0, error=0.1, low=0.8, high=1.0)
        """
        low, high = max(self.low, least), min(self.high, most)
        return Estimate(self.value, self.error, min(low, self.value), max(high, self.value))


def metric_table(scenario: Scenario, runs: Sequence[SampledRun]) -> pd.DataFrame:
    """Return means over the replications, and estimates of stalls from the stalls of all replications.

    Exact values have no error: the time of enabling, the time of the first pass (which sends all memory), the number of
    passes and the convergence if they are equal in all replications, and every metric if nothing is sent.

    Returns: metric, value, standard_error, low, high, unit.
    """
    estimates = {name: _estimate(name, runs) for name in runs[0].metrics}
    if all(run.windows for run in runs):
        estimates["precopy_duration"] = _precopy(scenario, runs)
        for name, (least, most) in _limits(scenario, estimates).items():
            estimates[name] = estimates[name].within(least, most)
    rows = [
        (name, estimate.value, estimate.error, estimate.low, estimate.high, _METRICS[name].unit)
        for name, estimate in estimates.items()
    ]
    return pd.DataFrame(rows, columns=["metric", "value", "standard_error", "low", "high", "unit"])


def validity_flags(scenario: Scenario, runs: Sequence[SampledRun]) -> tuple[str, ...]:
    """Return the validity flags of sampled runs, in the words of `workloads.migration.warnings`."""
    late = [run for run in runs if not run.metrics["converged"]]
    flags = [f"replications disagree: the migration converged in {len(runs) - len(late)} of {len(runs)} replications"]
    flags = flags if 0 < len(late) < len(runs) else []
    if 2 * len(late) >= len(runs):
        passes = round(_middle([run.metrics["passes"] for run in late]))
        left = float(np.mean([run.metrics["dirty_left"] for run in late])) / scenario.guest.page_size
        last = float(np.mean([run.last for run in late]))
        flags.insert(0, not_converged_warning(scenario, passes, left, last))
    return tuple(flags)


def _estimate(name: str, runs: Sequence[SampledRun]) -> Estimate:
    values = np.array([run.metrics[name] for run in runs])
    if _METRICS[name].integer:  # no mean: a migration makes two passes or three
        error = float(values.std(ddof=1)) / np.sqrt(len(values))
        return Estimate(_middle(values), error, float(values.min()), float(values.max()))
    value, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    if name in ("enable_time", "enable_cpu_time") or not any(run.windows for run in runs):
        return Estimate(value, 0.0, value, value)
    if name == "longest_stall":
        value, error = _longest(runs), float(values.std(ddof=1))
    if name == "stall_p999":
        value = min(lap_quantile(np.sum([run.laps for run in runs], axis=0), 0.999), _longest(runs))
    half = _half(len(runs), error, value)
    return Estimate(value, error, max(0.0, value - half), value + half)


def _middle(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Lower median."""
    return float(np.quantile(values, 0.5, method="lower"))


def _half(replications: int, error: float, unknown: float) -> float:
    """Half-width of an interval, if the part `unknown` of the value is not known exactly."""
    return float(stdtrit(replications - 1, 0.5 + LEVEL / 2)) * float(np.hypot(error, MODEL_ERROR * unknown))


def _precopy(scenario: Scenario, runs: Sequence[SampledRun]) -> Estimate:
    """Pre-copy duration, at least the time that the link needs: all memory once, and the pages of later passes."""
    send = page_time(scenario) * PS
    once = scenario.guest.pages * send
    durations = np.array([run.metrics["precopy_duration"] for run in runs])
    later = np.array([sum(run.sent[1:]) * send for run in runs])
    error, spread = (float(times.std(ddof=1)) / np.sqrt(len(runs)) for times in (durations, later))
    value, later_mean = float(durations.mean()), float(later.mean())
    half = _half(len(runs), error, value - once)
    link_time = once + max(0.0, later_mean - _half(len(runs), spread, later_mean))
    return Estimate(value, error, value - half, value + half).within(link_time, np.inf)


def _limits(scenario: Scenario, estimates: dict[str, Estimate]) -> dict[str, tuple[float, float]]:
    """Return the ranges of possible values of some metrics."""
    guest, workload, link = scenario.guest, scenario.workload, page_time(scenario)
    converged, downtime_pages = estimates["converged"], workload.downtime // link
    least = 0.0 if converged.high else downtime_pages + 1.0
    most = float(downtime_pages) if converged.low else guest.pages * workload.write_percent / 100
    longest_precopy = estimates["precopy_duration"].high
    shares = [name for name in estimates if _METRICS[name].unit == "share"]
    return {
        "dirty_left": (least * guest.page_size, most * guest.page_size),
        "downtime": (least * link * PS, most * link * PS),
        "fault_cpu_time": (0.0, guest.vcpus * longest_precopy),
        "stall_p999": (0.0, estimates["longest_stall"].high),
        **{f"seconds_above_{level}": (0.0, longest_precopy) for level in LEVELS},
        **dict.fromkeys(shares, (0.0, 1.0)),
    }


def _longest(runs: Sequence[SampledRun]) -> float:
    """Expected longest stall, from all replications."""
    if len({len(run.stalls) for run in runs}) > 1:  # with different numbers of windows
        return max(run.metrics["longest_stall"] for run in runs)
    pooled = []
    for windows in zip(*(run.stalls for run in runs), strict=True):
        longest = np.concatenate([stalls.longest for stalls in windows])
        weight = float(np.mean([stalls.weight for stalls in windows])) / len(runs)
        pooled.append(Stalls(longest, weight, max(stalls.bound for stalls in windows)).expected())
    return max(pooled, default=0.0)
