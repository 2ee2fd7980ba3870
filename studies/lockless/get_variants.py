# SPDX-License-Identifier: BSD-3-Clause
"""Ways of GET on today's x86 beside each other: one hold, batches, no lock; over vCPUs, memory and write rate.

Everything here is predicted. Costs are those of the published x86 host (`data/fits/x86-published.json`), not of
the 2013 series' X5690. What a page takes without the lock is not known in time: either as long as with it, or the
lab's ratio of instructions times that (`studies.lockless.get_time.Walk`).
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
from studies.lockless.get_time import GUESTS, Walk, get_scenario, published_costs
from studies.study import around

DEAR, LAB = "no lock, a page as dear", "no lock, the lab's ratio"

WAYS: dict[str, Mapping[str, Any]] = {
    "one hold": {},
    "every 4096 pages": {"get_drop_when": "pages >= 4096"},
    "every 512 pages": {"get_drop_when": "pages >= 512"},
    "every 64 pages": {"get_drop_when": "pages >= 64"},
    DEAR: {"clear_lock": "lockless"},
    LAB: {"clear_lock": "lockless"},
}
"""Ways of GET, as changes of a policy."""

BASE: dict[str, Any] = {"vcpus": 16, "memory": "16G", "interval": "10us"}
"""The guest from which one thing at a time is varied; `interval` is a vCPU's own work between two accesses."""

AXES: dict[str, tuple[Any, ...]] = {
    "vcpus": (1, 4, 16, 64),
    "memory": ("4G", "16G", "64G", "256G"),
    "interval": ("1us", "3us", "10us", "100us"),
}
"""What is varied, and over what."""

PAUSE = "50ms"
"""Userspace's sleep before GET. One GET is simulated, as what a batch waits for is simulated fault by fault."""

DRAWS = 3
"""Draws of the costs, beside the best ones."""

METRICS = {"get_time": "get_dirty_log_time", "guest_throughput": "guest_throughput", "longest_stall": "longest_stall"}
"""What is predicted, seconds, a share, seconds, and the workload's name of it."""

AS_GOOD = (0.02, 1.5)
"""A batch is as good to the guest as no lock if it costs at most so much more of the undisturbed throughput, and its
longest stall is at most so many times as long."""


def _cases(guest: str, point: Mapping[str, Any], walk: Walk, seed: int) -> dict[str, list[Scenario]]:
    """By way, the scenario with the best costs and with each draw of them; draws are common to all ways."""
    estimate, random = published_costs(), np.random.default_rng(seed)
    best = get_scenario(guest, point["memory"], point["interval"], PAUSE, point["vcpus"], rounds=1)
    logs = [estimate.logs, *(estimate.draw(random) for _ in range(DRAWS))]
    ratios = [walk.ratio[0], *random.uniform(walk.ratio[1], walk.ratio[2], DRAWS).tolist()]
    cases = {way: [estimate.apply(best, some).changed({"policy": policy}) for some in logs]
             for way, policy in WAYS.items()}  # fmt: skip
    for way, times in ((DEAR, [1.0] * len(ratios)), (LAB, ratios)):
        cases[way] = [case.with_costs(lockless_page=(case.costs.clear_page or 0) * ratio)
                      for case, ratio in zip(cases[way], times, strict=True)]  # fmt: skip
    return cases


def predictions(walk: Walk, seed: int = 1, progress: Progress | None = None) -> pd.DataFrame:
    """Every way at every point of the guest without EPT, simulated; `progress` is told (what, share done).

    Returns: ``axis``, ``value`` (as text), ``vcpus``, ``memory``, ``interval``, ``way``, ``metric``, ``estimate``,
    ``low``, ``high``. The interval has the scatter of the costs' draws, of what a page takes without the lock, and the
    discrepancy of the fit.
    """
    points = [(axis, BASE | {axis: value}) for axis, values in AXES.items() for value in values]
    cases = {tuple(point.values()): _cases("EPT off", point, walk, seed) for _, point in points}
    flat = [case for ways in cases.values() for each in ways.values() for case in each]
    runs = iter(evaluate(flat, pages_per_vcpu=None, seed=seed, progress=progress))
    measured = {
        (point, way): [next(runs).metrics for _ in each] for point in cases for way, each in cases[point].items()
    }
    discrepancy, rows = published_costs().discrepancy, []
    for (axis, point), way, metric in itertools.product(points, WAYS, METRICS):
        best, *others = (run[METRICS[metric]] for run in measured[tuple(point.values()), way])
        low, high = around(best, np.log(np.maximum(others, 1e-12)) - np.log(max(best, 1e-12)), discrepancy)
        high = min(high, 1.0) if metric == "guest_throughput" else high
        rows.append((axis, str(point[axis]), *point.values(), way, metric, best, low, high))
    columns = ["axis", "value", *BASE, "way", "metric", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def verdicts(predicted: pd.DataFrame) -> pd.DataFrame:
    """Which way with the lock is as good to the guest as none (`AS_GOOD`), and what GET pays for it.

    Returns: ``axis``, ``value``; ``equivalent``: of those that are, the one with the shortest GET, or ``none``;
    ``get_ratio``: its GET over that without the lock, a page as dear; ``whole_stall_ratio``, ``whole_throughput_loss``:
    one hold's longest stall over that without the lock, and how much less of the undisturbed throughput it leaves;
    ``lockless_get_s``, ``lockless_stall_s``.
    """
    get, throughput, stall = (
        predicted[predicted["metric"] == metric].pivot_table("estimate", ["axis", "value"], "way", sort=False)
        for metric in METRICS
    )
    locked = [way for way in WAYS if "clear_lock" not in WAYS[way]]
    good = throughput[locked].ge(throughput[DEAR] - AS_GOOD[0], axis=0)
    good &= stall[locked].le(AS_GOOD[1] * stall[DEAR], axis=0)
    times = get[locked].where(good, np.inf)
    table = pd.DataFrame(
        {"equivalent": times.idxmin(axis=1).where(good.any(axis=1), "none"),
         "get_ratio": (times.min(axis=1) / get[DEAR]).where(good.any(axis=1)),
         "whole_stall_ratio": stall["one hold"] / stall[DEAR],
         "whole_throughput_loss": throughput[DEAR] - throughput["one hold"],
         "lockless_get_s": get[DEAR], "lockless_stall_s": stall[DEAR]}
    )  # fmt: skip
    return table.reset_index()


def guests(walk: Walk) -> pd.DataFrame:
    """The guests of `GUESTS` at `BASE`, with the best costs: who takes the lock decides what it matters to.

    Returns: ``guest``, ``way``, ``get_time_s``, ``wait_share`` (of it), ``guest_throughput``, ``longest_stall_s``,
    ``dirty_pages`` (a GET).
    """
    cases = {(guest, way): each[0] for guest in GUESTS for way, each in _cases(guest, BASE, walk, 1).items()}
    rows = []
    for (guest, way), run in zip(cases, evaluate(list(cases.values()), pages_per_vcpu=None), strict=True):
        m = run.metrics
        rows.append((guest, way, m["get_dirty_log_time"], m["get_wait_time"] / m["get_dirty_log_time"],
                     m["guest_throughput"], m["longest_stall"], m["dirty_pages"]))  # fmt: skip
    columns = ["guest", "way", "get_time_s", "wait_share", "guest_throughput", "longest_stall_s", "dirty_pages"]
    return pd.DataFrame(rows, columns=columns)


def people(frame: pd.DataFrame) -> pd.DataFrame:
    """A table with GETs in ms and stalls in µs.

    >>> people(pd.DataFrame({"get_time_s": [2e-3], "longest_stall_s": [1e-5]})).iloc[0].to_dict()
    {'get_time_ms': 2.0, 'longest_stall_us': 10.0}
    """
    factors = {"get_time_s": 1e3, "lockless_get_s": 1e3, "longest_stall_s": 1e6, "lockless_stall_s": 1e6}
    scaled = frame.assign(**{name: frame[name] * factor for name, factor in factors.items() if name in frame})
    return scaled.rename(columns={name: f"{name[:-1]}{'ms' if f == 1e3 else 'us'}" for name, f in factors.items()})
