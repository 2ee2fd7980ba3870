# SPDX-License-Identifier: BSD-3-Clause
"""Predicted GET on today's x86 in one hold, in batches and without the lock, by vCPU count, memory and write rate.

All results are predictions. Costs are those of the published x86 host (`data/fits/x86-published.json`), not of the 2013
series' X5690. The time per page without the lock is unknown: it is assumed to be the time with the lock, or this time
scaled by the lab's ratio of instructions (`studies.lockless.get_time.Walk`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simlib._lib.parallel import Progress
from simlib.analysis.predict import evaluate
from simlib.model.scenario import Scenario
from studies.lockless.get_time import GUEST_TYPES, Walk, get_scenario, published_costs
from studies.study import interval_from_draws

SAME_COST, LAB_RATIO = "no lock, same cost per page", "no lock, the lab's ratio"

WAYS: dict[str, Mapping[str, Any]] = {
    "one hold": {},
    "every 4096 pages": {"get_drop_when": "pages >= 4096"},
    "every 512 pages": {"get_drop_when": "pages >= 512"},
    "every 64 pages": {"get_drop_when": "pages >= 64"},
    SAME_COST: {"clear_lock": "lockless"},
    LAB_RATIO: {"clear_lock": "lockless"},
}
"""Ways of GET as changes to the policy."""

BASE: dict[str, Any] = {"vcpus": 16, "memory": "16G", "interval": "10us"}
"""Base guest; one property is varied, the others keep these values. `interval`: a vCPU's work between two accesses."""

AXES: dict[str, tuple[Any, ...]] = {
    "vcpus": (1, 4, 16, 64),
    "memory": ("4G", "16G", "64G", "256G"),
    "interval": ("1us", "3us", "10us", "100us"),
}
"""Varied properties and their values."""

PAUSE = "50ms"
"""Pause of userspace before GET. Only one GET is simulated, because every fault during a batch is simulated."""

DRAWS = 3
"""Number of draws of the costs, in addition to the best estimate."""

METRICS = {"get_time": "get_dirty_log_time", "guest_throughput": "guest_throughput", "longest_stall": "longest_stall"}
"""Predicted metrics (s, share, s) with the workload's names for them."""

EQUIVALENCE_LIMITS = (0.02, 1.5)
"""Criteria for a batch to be equivalent to no lock for the guest: maximum additional loss of undisturbed throughput,
and maximum ratio of the longest stalls."""


def _cases(guest: str, point: Mapping[str, Any], walk: Walk, seed: int) -> dict[str, list[Scenario]]:
    """Scenarios by way, with the best estimate and with each draw of the costs; the ways share the draws."""
    estimate, random = published_costs(), np.random.default_rng(seed)
    best = get_scenario(guest, point["memory"], point["interval"], PAUSE, point["vcpus"], rounds=1)
    logs = [estimate.logs, *(estimate.draw(random) for _ in range(DRAWS))]
    ratios = [walk.ratio[0], *random.uniform(walk.ratio[1], walk.ratio[2], DRAWS).tolist()]
    cases = {way: [estimate.apply(best, draw).changed({"policy": policy}) for draw in logs]
             for way, policy in WAYS.items()}  # fmt: skip
    for way, factors in ((SAME_COST, [1.0] * len(ratios)), (LAB_RATIO, ratios)):
        cases[way] = [case.with_costs(lockless_page=(case.costs.clear_page or 0) * ratio)
                      for case, ratio in zip(cases[way], factors, strict=True)]  # fmt: skip
    return cases


def predictions(walk: Walk, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """Simulate all ways at all points of the guest without EPT; `progress` is called with (what, share done).

    Returns: ``axis``, ``value`` (as text), ``vcpus``, ``memory``, ``interval``, ``way``, ``metric``, ``estimate``,
    ``low``, ``high``. The interval covers the draws of the costs and of the time per page without the lock, and the
    fit's discrepancy.
    """
    points = [(axis, BASE | {axis: value}) for axis, values in AXES.items() for value in values]
    cases = {tuple(point.values()): _cases("EPT off", point, walk, seed) for _, point in points}
    flat = [case for ways in cases.values() for draws in ways.values() for case in draws]
    runs = iter(evaluate(flat, pages_per_vcpu=None, seed=seed, progress=progress))
    metrics = {
        (point, way): [next(runs).metrics for _ in draws] for point in cases for way, draws in cases[point].items()
    }
    discrepancy, rows = published_costs().discrepancy, []
    for (axis, point), way, metric in itertools.product(points, WAYS, METRICS):
        best, *others = (run[METRICS[metric]] for run in metrics[tuple(point.values()), way])
        low, high = interval_from_draws(best, np.log(np.maximum(others, 1e-12)) - np.log(max(best, 1e-12)), discrepancy)
        high = min(high, 1.0) if metric == "guest_throughput" else high
        rows.append((axis, str(point[axis]), *point.values(), way, metric, best, low, high))
    columns = ["axis", "value", *BASE, "way", "metric", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def verdicts(predicted: pd.DataFrame) -> pd.DataFrame:
    """For each point, find the way with the shortest GET among the equivalent ones that take the lock.

    Returns: ``axis``, ``value``; ``equivalent``: the equivalent way with the shortest GET, or ``none``; ``get_ratio``:
    its GET over that without the lock at the same cost per page; ``whole_stall_ratio``, ``whole_throughput_loss``: the
    longest stall with one hold over that without the lock, and the additional loss of undisturbed throughput;
    ``lockless_get_s``, ``lockless_stall_s``.
    """
    get, throughput, stall = (
        predicted[predicted["metric"] == metric].pivot_table("estimate", ["axis", "value"], "way", sort=False)
        for metric in METRICS
    )
    locked = [way for way in WAYS if "clear_lock" not in WAYS[way]]
    equivalent = throughput[locked].ge(throughput[SAME_COST] - EQUIVALENCE_LIMITS[0], axis=0)
    equivalent &= stall[locked].le(EQUIVALENCE_LIMITS[1] * stall[SAME_COST], axis=0)
    times, some = get[locked].where(equivalent, np.inf), equivalent.any(axis=1)
    return pd.DataFrame(
        {"equivalent": times.idxmin(axis=1).where(some, "none"),
         "get_ratio": (times.min(axis=1) / get[SAME_COST]).where(some),
         "whole_stall_ratio": stall["one hold"] / stall[SAME_COST],
         "whole_throughput_loss": throughput[SAME_COST] - throughput["one hold"],
         "lockless_get_s": get[SAME_COST], "lockless_stall_s": stall[SAME_COST]}
    ).reset_index()  # fmt: skip


def guests(walk: Walk) -> pd.DataFrame:
    """Simulate `GUEST_TYPES` at `BASE` at the best estimate, to compare guests by which of their faults take the lock.

    Returns: ``guest``, ``way``, ``get_time_s``, ``wait_share`` (of it), ``guest_throughput``, ``longest_stall_s``,
    ``dirty_pages`` (a GET).
    """
    cases = {(guest, way): draws[0] for guest in GUEST_TYPES for way, draws in _cases(guest, BASE, walk, 1).items()}
    metrics = ["get_dirty_log_time", "get_wait_time", "guest_throughput", "longest_stall", "dirty_pages"]
    runs = evaluate(list(cases.values()), pages_per_vcpu=None)
    rows = [(*key, *(run.metrics[name] for name in metrics)) for key, run in zip(cases, runs, strict=True)]
    columns = ["guest", "way", "get_time_s", "wait_share", "guest_throughput", "longest_stall_s", "dirty_pages"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(wait_share=table["wait_share"] / table["get_time_s"])


def in_readable_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert times of GET to ms and stalls to µs.

    >>> in_readable_units(pd.DataFrame({"get_time_s": [2e-3], "longest_stall_s": [1e-5]})).iloc[0].to_dict()
    {'get_time_ms': 2.0, 'longest_stall_us': 10.0}
    """
    factors = {"get_time_s": 1e3, "lockless_get_s": 1e3, "longest_stall_s": 1e6, "lockless_stall_s": 1e6}
    scaled = frame.assign(**{name: frame[name] * factor for name, factor in factors.items() if name in frame})
    return scaled.rename(columns={name: f"{name[:-1]}{'ms' if f == 1e3 else 'us'}" for name, f in factors.items()})
