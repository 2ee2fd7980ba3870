# SPDX-License-Identifier: BSD-3-Clause
"""What several walks say together: each metric with its interval, which stays within what arithmetic allows."""

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
from simlib.simulator.workloads.migration import METRICS, not_converged, page_time

MODEL_ERROR = 0.01
"""Standard deviation, relative, of what means are off by beyond the spread of the walks (docs/sampling.md)."""

LEVEL = 0.90
"""Probability that an interval is meant to cover."""

_METRICS = {metric.name: metric for metric in METRICS}

BY_CONSTRUCTION = ("enable_time", "enable_cpu_time")
"""Metrics of which no window is needed."""


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error by the walks, and its interval."""

    value: float
    error: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """The same where nothing can be outside of a range; the value stays.

        >>> Estimate(1.0, 0.1, 0.8, 1.2).within(0.0, 1.0)
        Estimate(value=1.0, error=0.1, low=0.8, high=1.0)
        """
        low, high = max(self.low, least), min(self.high, most)
        return Estimate(self.value, self.error, min(low, self.value), max(high, self.value))


def table_of(scenario: Scenario, runs: Sequence[SampledRun]) -> pd.DataFrame:
    """Means over the walks; of the stalls what all of them saw together.

    What the walks need not estimate has no error: what enabling takes; the number of passes, and whether it converges,
    where they agree; that the first pass sends all of the memory; and all of it, if nothing is sent at all.

    Returns: metric, value, standard_error, low, high, unit.
    """
    found = {name: _estimate(name, runs) for name in runs[0].metrics}
    if all(walk.windows for walk in runs):
        found["precopy_duration"] = _precopy(scenario, runs)
        for name, (least, most) in _limits(scenario, found).items():
            found[name] = found[name].within(least, most)
    rows = [(name, one.value, one.error, one.low, one.high, _METRICS[name].unit) for name, one in found.items()]
    return pd.DataFrame(rows, columns=["metric", "value", "standard_error", "low", "high", "unit"])


def flags_of_runs(scenario: Scenario, runs: Sequence[SampledRun]) -> tuple[str, ...]:
    """Validity flags of sampled runs, in the words of `workloads.migration.warnings` for a whole migration."""
    late = [walk for walk in runs if not walk.metrics["converged"]]
    flags = [f"walks do not agree: it converged in {len(runs) - len(late)} of {len(runs)}"]
    flags = flags if 0 < len(late) < len(runs) else []
    if 2 * len(late) >= len(runs):
        passes = round(_middle([walk.metrics["passes"] for walk in late]))
        left = float(np.mean([walk.metrics["dirty_left"] for walk in late])) / scenario.guest.page_size
        last = float(np.mean([walk.last for walk in late]))
        flags.insert(0, not_converged(scenario, passes, left, last))
    return tuple(flags)


def _estimate(name: str, runs: Sequence[SampledRun]) -> Estimate:
    values = np.array([walk.metrics[name] for walk in runs])
    if _METRICS[name].whole:  # no mean: a migration makes two passes or three
        error = float(values.std(ddof=1)) / np.sqrt(len(values))
        return Estimate(_middle(values), error, float(values.min()), float(values.max()))
    value, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    if name in BY_CONSTRUCTION or not any(walk.windows for walk in runs):
        return Estimate(value, 0.0, value, value)
    if name == "longest_stall":
        value, error = _longest(runs), float(values.std(ddof=1))
    if name == "stall_p999":
        value = min(lap_quantile(np.sum([walk.laps for walk in runs], axis=0), 0.999), _longest(runs))
    half = _half(len(runs), error, value)
    return Estimate(value, error, max(0.0, value - half), value + half)


def _middle(values: Sequence[float] | NDArray[np.float64]) -> float:
    """What as many walks are below as above; of two such the lower."""
    return float(np.quantile(values, 0.5, method="lower"))


def _half(walks: int, error: float, unknown: float) -> float:
    """Half of an interval, if so much of the value is not known exactly."""
    reach = float(stdtrit(walks - 1, 0.5 + LEVEL / 2))
    return reach * float(np.hypot(error, MODEL_ERROR * unknown))


def _precopy(scenario: Scenario, runs: Sequence[SampledRun]) -> Estimate:
    """Pre-copy, which is not below what the wire needs: all of the memory once, and what later passes send."""
    send = page_time(scenario) * PS
    once = scenario.guest.pages * send
    durations = np.array([walk.metrics["precopy_duration"] for walk in runs])
    later = np.array([sum(walk.sent[1:]) * send for walk in runs])
    error, spread = (float(times.std(ddof=1)) / np.sqrt(len(runs)) for times in (durations, later))
    value, again = float(durations.mean()), float(later.mean())
    half = _half(len(runs), error, value - once)
    wire = once + max(0.0, again - _half(len(runs), spread, again))
    return Estimate(value, error, value - half, value + half).within(wire, np.inf)


def _limits(scenario: Scenario, found: dict[str, Estimate]) -> dict[str, tuple[float, float]]:
    """Between which values some metrics lie, whatever happens."""
    guest, workload, link = scenario.guest, scenario.workload, page_time(scenario)
    converged, few = found["converged"], workload.downtime // link
    least = 0.0 if converged.high else few + 1.0
    most = float(few) if converged.low else guest.pages * workload.write_percent / 100
    precopy, shares = found["precopy_duration"].high, [name for name in found if _METRICS[name].unit == "share"]
    return {
        "dirty_left": (least * guest.page_size, most * guest.page_size),
        "downtime": (least * link * PS, most * link * PS),
        "fault_cpu_time": (0.0, guest.vcpus * precopy),
        "stall_p999": (0.0, found["longest_stall"].high),
        **{f"seconds_above_{level}": (0.0, precopy) for level in LEVELS},
        **dict.fromkeys(shares, (0.0, 1.0)),
    }


def _longest(runs: Sequence[SampledRun]) -> float:
    """The longest stall that all walks together let expect."""
    if len({len(walk.stalls) for walk in runs}) > 1:  # one has more windows than another
        return max(walk.metrics["longest_stall"] for walk in runs)
    pooled = []
    for same in zip(*(walk.stalls for walk in runs), strict=True):
        longest = np.concatenate([stalls.longest for stalls in same])
        times = float(np.mean([stalls.times for stalls in same])) / len(runs)
        pooled.append(Stalls(longest, times, max(stalls.most for stalls in same)).expected())
    return max(pooled, default=0.0)
