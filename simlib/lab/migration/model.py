# SPDX-License-Identifier: BSD-3-Clause
"""Predict the lab's real migrations from the pre-copy model, with intervals, and compare predictions with results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from simlib.lab.migration.guest import BASE
from simlib.vmm import qemu_rules
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import precopy_trajectory
from simlib.vmm.qemu_rules import PAGE
from simlib.vmm.settings import Settings, read_named

FULL_SPEED_S = 1e-6
"""Time to send a page on this machine without a limit, s: a copy at 4 GB/s. Assumed; only downtimes of a few ms depend
on it."""

FAULT_S = 0.4e-3
"""Time in s from a fault during postcopy to the arrival of its page, with both sides on one host. Assumed; it hardly
affects any result here."""

LEVEL, DRAWS, _RESIDUAL_DRAWS = 0.9, 60, 50
"""Probability of the intervals, number of write rates sampled for them, and residuals sampled for each rate."""

QUANTITIES = ("total_ms", "transferred_bytes", "downtime_ms", "longest_gap_ms", "guest_ratio", "synchronisations")


class EmulatedHost(NamedTuple):
    """Parameters of this machine and this guest beyond QEMU's rules, times in s.

    - `write_s`: time that the guest's loop adds between two writes of a vCPU.
    - `rate_spread`: standard deviation of the logarithm of its write rate.
    - `switch_s`: downtime beyond sending the remaining pages; the guest has almost no devices.
    - `state_bytes`: bytes sent in addition to the pages.
    - `place_s`: time to place a page during postcopy (UFFDIO_COPY).
    - `oversleep_s`: time by which a throttled vCPU oversleeps, by number of vCPUs.
    - `residuals`: logarithms of the ratios of measured to expected values, by quantity, in the fit.
    """

    write_s: float
    rate_spread: float
    switch_s: float
    state_bytes: float
    place_s: float
    oversleep_s: Mapping[int, float]
    residuals: Mapping[str, NDArray[np.float64]]


def fit_host(runs: pd.DataFrame) -> EmulatedHost:
    """Fit the parameters of the host to migrations, with the columns of ``data/collected/migrate-runs.csv``."""
    added_s = runs["vcpus"] / runs["measured_writes_per_s"] - runs["vcpus"] / runs["writes_per_s"]
    rates = np.log(runs["measured_writes_per_s"] * (1 / runs["writes_per_s"] + added_s.median() / runs["vcpus"]))
    done = runs[(runs["outcome"] == "completed") & (runs["postcopy_after_s"] == 0)]
    pages = runs["normal_pages"] * qemu_rules.WHOLE_PAGE + runs["zero_pages"] * qemu_rules.ZERO_PAGE
    switch = done["blackout_ms"] / 1e3 - done["downtime_bytes"] / qemu_rules.WHOLE_PAGE * FULL_SPEED_S
    host = EmulatedHost(
        float(added_s.median()), float(rates.std()), max(0.0, float(switch.median())),
        float((runs["transferred_bytes"] - pages)[done.index].median()), FULL_SPEED_S,
        dict.fromkeys(map(int, runs["vcpus"].unique()), 0.0), {},
    )  # fmt: skip

    def error(rows: pd.DataFrame, quantity: str, changed: EmulatedHost) -> float:
        ratios = [expected(row, changed)[quantity] / row[quantity] for row in _records(rows)]
        return float(np.mean(np.log(ratios) ** 2))

    def best(rows: pd.DataFrame, quantity: str, upper: float, change: Callable[[float], EmulatedHost]) -> float:
        solution = minimize_scalar(lambda value: error(rows, quantity, change(value)), bounds=(0.0, upper),
                                   method="bounded", options={"xatol": 1e-3 * upper})  # fmt: skip
        return float(solution.x)

    throttled, oversleep, sizes = done[done["throttle_percent"] > 0], {}, tuple(host.oversleep_s)
    for vcpus in sizes:
        rows = throttled[throttled["vcpus"] == vcpus]
        oversleep[vcpus] = best(rows, "guest_ratio", 2e-3, lambda s: host._replace(oversleep_s=dict.fromkeys(sizes, s)))
    host = host._replace(oversleep_s=oversleep)
    after = runs[(runs["postcopy_bytes"] > 0) & runs["settings"].str.contains("max-postcopy-bandwidth=0")]
    place_s = best(after, "total_ms", 5e-5, lambda value: host._replace(place_s=value))
    host = host._replace(place_s=place_s)
    predictions = pd.DataFrame([expected(row, host) for row in _records(runs)], index=runs.index)
    comparison = compare_with_expected(runs, predictions)
    completed = comparison[(comparison["completed"] == 1) & (comparison["completed_expected"] == 1)]
    ratios = {name: (completed[name] / completed[f"{name}_expected"]).to_numpy() for name in QUANTITIES}
    return host._replace(residuals={name: np.log(ratio) for name, ratio in ratios.items()})


def working_set_of(row: Mapping[str, Any], host: EmulatedHost) -> WorkingSet:
    """Return the working set of ``guest.S`` in three classes: hot pages, cold pages, and zero pages."""
    memory, vcpus = row["memory_bytes"] / PAGE, row["vcpus"]
    hot, cold = row["hot_set_bytes"] / PAGE, (row["working_set_bytes"] - row["hot_set_bytes"]) / PAGE
    share = row["hot_percent"] / 100
    rate = 1 / (1 / row["writes_per_s"] + host.write_s / vcpus)
    writes = np.array([rate * share, rate * (1 - share), 0.0])
    count = np.array([hot, cold, memory - hot - cold])
    first = np.array([BASE, BASE, 0.0]) / row["memory_bytes"]
    last = np.array([BASE + row["working_set_bytes"], BASE + row["working_set_bytes"], row["memory_bytes"]])
    if vcpus == 1 and hot:
        last[0] = BASE + row["hot_set_bytes"]
    present = count > 0
    sweep = np.array([float(row["pattern"] == "sweep")] * 3)
    zero, rates = np.array([0.0, 0.0, 1.0]), writes / np.maximum(count, 1)
    return WorkingSet(
        count[present], rates[present], sweep[present], first[present], (last / row["memory_bytes"])[present],
        zero[present],
    )  # fmt: skip


def expected(row: Mapping[str, Any], host: EmulatedHost) -> dict[str, float]:
    """Predict a migration (a row of ``data/collected/migrate-runs.csv``) with the models, without intervals."""
    settings = Settings.of(read_named(row["settings"].split())).check()
    link = LinkModel(FULL_SPEED_S, switch_s=host.switch_s, state_bytes=host.state_bytes, vcpus=row["vcpus"],
                late_s=host.oversleep_s.get(row["vcpus"], max(host.oversleep_s.values())))  # fmt: skip
    working_set = working_set_of(row, host)
    postcopy_after_s = row["postcopy_after_s"]
    precopy = precopy_trajectory(working_set, link, settings, row["limit_s"])
    if not postcopy_after_s or (precopy.completed and precopy.total_s < postcopy_after_s):
        return {
            "completed": float(precopy.completed),
            "synchronisations": precopy.synchronisations,
            "throttle_percent": precopy.throttle,
            "total_ms": precopy.total_s * 1e3,
            "downtime_ms": precopy.downtime_s * 1e3,
            "longest_gap_ms": max(precopy.sleep_s, precopy.downtime_s) * 1e3,
            "transferred_bytes": precopy.sent_bytes,
            "guest_ratio": precopy.guest_s / precopy.total_s,
        }
    before = precopy_trajectory(working_set, link, settings, postcopy_after_s)
    bandwidth = float(settings.max_postcopy_bandwidth)
    place_link = link._replace(page_s=host.place_s)
    after = postcopy(working_set, before.missing, float(row["vcpus"]), place_link, bandwidth, FAULT_S)
    # With a bandwidth limit the sender sleeps for the rest of each window, and sends only requested pages meanwhile.
    gap = qemu_rules.WINDOW_S if bandwidth else FAULT_S + link.page_s
    return {
        "completed": 1.0,
        "synchronisations": before.synchronisations + 1,
        "throttle_percent": before.throttle,
        "total_ms": (before.total_s + link.switch_s + after.total_s) * 1e3,
        "downtime_ms": link.switch_s * 1e3,
        "longest_gap_ms": max(gap, link.switch_s) * 1e3,
        "transferred_bytes": before.sent_bytes + after.sent_bytes,
        "guest_ratio": (before.guest_s + after.total_s - after.lost_s) / (before.total_s + after.total_s),
    }


def predict_migrations(runs: pd.DataFrame, host: EmulatedHost, seed: int = 1) -> pd.DataFrame:
    """Predict migrations with 90 % intervals: columns ``…``, ``…_low``, ``…_high``.

    The write rate is sampled around its nominal value, so that a migration near the limit may not converge. The
    residuals are sampled from those of the fit (a bootstrap), which have heavier tails than a normal distribution.
    """
    tail = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    rows = []
    for number, row in enumerate(_records(runs)):
        random = np.random.default_rng([seed, number])
        rates = row["writes_per_s"] * np.exp(host.rate_spread * random.standard_normal(DRAWS))
        sampled = pd.DataFrame([expected({**row, "writes_per_s": float(rate)}, host) for rate in rates])
        prediction: dict[str, float] = dict(expected(row, host))
        prediction["completed_share"] = float(sampled["completed"].mean())
        done = sampled[sampled["completed"] == prediction["completed"]]
        for name, residuals in host.residuals.items():
            factors = np.exp(random.choice(residuals, (len(done), _RESIDUAL_DRAWS)))
            low, high = np.quantile(done[[name]].to_numpy() * factors, tail) if len(done) else (np.nan, np.nan)
            prediction |= {f"{name}_low": float(low), f"{name}_high": float(high)}
        rows.append(prediction)
    return pd.DataFrame(rows, index=runs.index)


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def compare_with_expected(runs: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Join migrations with their predictions, whose columns get the suffix ``_expected``."""
    measured = runs.assign(completed=(runs["outcome"] == "completed").astype(float))
    return measured.join(predictions.add_suffix("_expected"))


def score(comparison: pd.DataFrame) -> pd.DataFrame:
    """Score predictions of `compare_with_expected` by quantity; times and sizes only if both complete."""
    done = comparison[(comparison["completed"] == 1) & (comparison["completed_expected"] == 1)]
    right = float((comparison["completed"] == comparison["completed_expected"]).mean())
    rows = [("converges or not, share right", right, np.nan)]
    for name in ("synchronisations", "throttle_percent"):
        difference = (comparison[name] - comparison[f"{name}_expected"]).abs()
        rows.append((f"{name}, median off by", float(difference.median()), np.nan))
    for name in ("total_ms", "transferred_bytes", "downtime_ms", "longest_gap_ms", "guest_ratio"):
        ratio = done[f"{name}_expected"] / done[name]
        inside = (done[name] >= done[f"{name}_low_expected"]) & (done[name] <= done[f"{name}_high_expected"])
        rows.append((f"{name}, median error", float((ratio - 1).abs().median()), float(inside.mean())))
        rows.append((f"{name}, within a factor of 1.5", float(ratio.between(1 / 1.5, 1.5).mean()), np.nan))
    return pd.DataFrame(rows, columns=["what", "value", "inside"])
