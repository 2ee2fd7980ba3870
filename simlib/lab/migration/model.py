# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations of the lab beside the course: what it expects of each, and how far off it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from simlib.lab.migration.guest import BASE
from simlib.vmm import rules
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.postcopy import postcopy
from simlib.vmm.precopy import precopy_trajectory
from simlib.vmm.rules import PAGE
from simlib.vmm.settings import Settings, read_named

FULL_SPEED_S = 1e-6
"""Time to send a page here where nothing limits it, s: a copy of 4 GB/s. Supposed: only downtimes of few ms know it."""

FAULT_S = 0.4e-3
"""From a fault after postcopy to its page, s, both sides on one host. Supposed, too: hardly anything here knows it."""

LEVEL, DRAWS, _AGAIN = 0.9, 60, 50
"""Probability of the intervals; migrations drawn for them, and how often what is left over is drawn for each."""

QUANTITIES = ("total_ms", "transferred_bytes", "downtime_ms", "longest_gap_ms", "guest_ratio", "synchronisations")
"""What has an interval."""


class EmulatedHost(NamedTuple):
    """What this machine and this guest add to QEMU's rules, times in s.

    - `write_s`: by how much the guest's loop makes the time between two writes of a vCPU longer.
    - `rate_spread`: standard deviation of the logarithm of its rate of writing.
    - `switch_s`: for which it stands beside what is sent; it has hardly a device.
    - `state_bytes`: what is sent beside its pages.
    - `place_s`: to put a page into its place after postcopy (UFFDIO_COPY).
    - `late_s`: by how much a throttled vCPU sleeps too long, by vCPUs.
    - `left_over`: logarithms of what the course leaves over, by quantity: of the migrations that it was fitted to.
    """

    write_s: float
    rate_spread: float
    switch_s: float
    state_bytes: float
    place_s: float
    late_s: Mapping[int, float]
    left_over: Mapping[str, NDArray[np.float64]]


def fitted(built: pd.DataFrame) -> EmulatedHost:
    """What the migrations that the course was built on say of the host.

    - `built`: as ``data/collected/migrate-runs.csv`` has them.
    """
    longer = built["vcpus"] / built["measured_writes_per_s"] - built["vcpus"] / built["writes_per_s"]
    rates = np.log(built["measured_writes_per_s"] * (1 / built["writes_per_s"] + longer.median() / built["vcpus"]))
    done = built[(built["outcome"] == "completed") & (built["postcopy_after_s"] == 0)]
    pages = built["normal_pages"] * rules.WHOLE_PAGE + built["zero_pages"] * rules.ZERO_PAGE
    switch = done["blackout_ms"] / 1e3 - done["downtime_bytes"] / rules.WHOLE_PAGE * FULL_SPEED_S
    host = EmulatedHost(
        float(longer.median()), float(rates.std()), max(0.0, float(switch.median())),
        float((built["transferred_bytes"] - pages)[done.index].median()), FULL_SPEED_S,
        dict.fromkeys(map(int, built["vcpus"].unique()), 0.0), {},
    )  # fmt: skip

    def off(rows: pd.DataFrame, quantity: str, changed: EmulatedHost) -> float:
        ratios = [expected(row, changed)[quantity] / row[quantity] for row in _records(rows)]
        return float(np.mean(np.log(ratios) ** 2))

    def best(rows: pd.DataFrame, quantity: str, most: float, change: Callable[[float], EmulatedHost]) -> float:
        found = minimize_scalar(lambda value: off(rows, quantity, change(value)), bounds=(0.0, most), method="bounded",
                                options={"xatol": 1e-3 * most})  # fmt: skip
        return float(found.x)

    throttled, late = done[done["throttle_percent"] > 0], {}
    for vcpus in host.late_s:
        own = throttled[throttled["vcpus"] == vcpus]
        late[vcpus] = best(own, "guest_ratio", 2e-3, partial(_sleeping, host, vcpus))
    host = host._replace(late_s=late)
    after = built[(built["postcopy_bytes"] > 0) & built["settings"].str.contains("max-postcopy-bandwidth=0")]
    place_s = best(after, "total_ms", 5e-5, lambda value: host._replace(place_s=value))
    host = host._replace(place_s=place_s)
    both = beside(built, pd.DataFrame([expected(row, host) for row in _records(built)], index=built.index))
    same = both[(both["completed"] == 1) & (both["completed_expected"] == 1)]
    left_over = {name: np.log((same[name] / same[f"{name}_expected"]).to_numpy()) for name in QUANTITIES}
    return host._replace(left_over=left_over)


def _sleeping(host: EmulatedHost, vcpus: int, late_s: float) -> EmulatedHost:
    return host._replace(late_s={vcpus: late_s})


def pages_of(row: Mapping[str, Any], host: EmulatedHost) -> WorkingSet:
    """The guest of ``simlib/lab/migration/guest.S`` by classes: what is hot, the rest of its working set, zeros."""
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
    kept = count > 0
    sweep = np.array([float(row["pattern"] == "sweep")] * 3)
    zero, rates = np.array([0.0, 0.0, 1.0]), writes / np.maximum(count, 1)
    columns = (count, rates, sweep, first, last / row["memory_bytes"], zero)
    return WorkingSet(*(column[kept] for column in columns))


def expected(row: Mapping[str, Any], host: EmulatedHost) -> dict[str, float]:
    """What the course expects of a migration.

    - `row`: its keys, as ``data/collected/migrate-runs.csv`` has them.
    """
    settings = Settings.of(read_named(row["settings"].split()))
    line = LinkModel(FULL_SPEED_S, switch_s=host.switch_s, state_bytes=host.state_bytes, vcpus=row["vcpus"],
                late_s=host.late_s.get(row["vcpus"], max(host.late_s.values())))  # fmt: skip
    pages = pages_of(row, host)
    after = row["postcopy_after_s"]
    found = precopy_trajectory(pages, line, settings, row["limit_s"])
    if not after or (found.completed and found.total_s < after):
        return {
            "completed": float(found.completed),
            "synchronisations": found.synchronisations,
            "throttle_percent": found.throttle,
            "total_ms": found.total_s * 1e3,
            "downtime_ms": found.downtime_s * 1e3,
            "longest_gap_ms": max(found.sleep_s, found.downtime_s) * 1e3,
            "transferred_bytes": found.sent_bytes,
            "guest_ratio": found.guest_s / found.total_s,
        }
    cut = precopy_trajectory(pages, line, settings, after)
    most = float(settings.max_postcopy_bandwidth)
    placed = line._replace(page_s=host.place_s)
    then = postcopy(pages, cut.missing, float(row["vcpus"]), placed, most, FAULT_S)
    # With a limit, the sender sleeps out its windows, and only what is asked for is sent meanwhile.
    gap = rules.WINDOW_S if most else FAULT_S + line.page_s
    return {
        "completed": 1.0,
        "synchronisations": cut.synchronisations + 1,
        "throttle_percent": cut.throttle,
        "total_ms": (cut.total_s + line.switch_s + then.total_s) * 1e3,
        "downtime_ms": line.switch_s * 1e3,
        "longest_gap_ms": max(gap, line.switch_s) * 1e3,
        "transferred_bytes": cut.sent_bytes + then.sent_bytes,
        "guest_ratio": (cut.guest_s + then.total_s - then.lost_s) / (cut.total_s + then.total_s),
    }


def predicted(runs: pd.DataFrame, host: EmulatedHost, seed: int = 1) -> pd.DataFrame:
    """What is expected of each migration, with 90 % intervals: columns ``…``, ``…_low``, ``…_high``.

    The rate is drawn about what it should be, so that one who just converges may not; what the course leaves over is
    drawn from what it left over before (a bootstrap), which has longer tails than a normal distribution.
    """
    tail = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    rows = []
    for number, row in enumerate(_records(runs)):
        random = np.random.default_rng([seed, number])
        rates = row["writes_per_s"] * np.exp(host.rate_spread * random.standard_normal(DRAWS))
        drawn = pd.DataFrame([expected({**row, "writes_per_s": float(rate)}, host) for rate in rates])
        found: dict[str, float] = dict(expected(row, host))
        found["completed_share"] = float(drawn["completed"].mean())
        done = drawn[drawn["completed"] == found["completed"]]
        for name, before in host.left_over.items():
            each = np.exp(random.choice(before, (len(done), _AGAIN)))
            low, high = np.quantile(done[[name]].to_numpy() * each, tail) if len(done) else (np.nan, np.nan)
            found |= {f"{name}_low": float(low), f"{name}_high": float(high)}
        rows.append(found)
    return pd.DataFrame(rows, index=runs.index)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def beside(runs: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Each migration's numbers beside those that were expected: suffix ``_expected``."""
    real = runs.assign(completed=(runs["outcome"] == "completed").astype(float))
    return real.join(predictions.add_suffix("_expected"))


def score(both: pd.DataFrame) -> pd.DataFrame:
    """How good the predictions are: one row a quantity, of the migrations that ended as predicted.

    - `both`: what `beside` gives.
    """
    done = both[(both["completed"] == 1) & (both["completed_expected"] == 1)]
    rows = [("converges or not, share right", float((both["completed"] == both["completed_expected"]).mean()), np.nan)]
    for name in ("synchronisations", "throttle_percent"):
        off = (both[name] - both[f"{name}_expected"]).abs()
        rows.append((f"{name}, median off by", float(off.median()), np.nan))
    for name in ("total_ms", "transferred_bytes", "downtime_ms", "longest_gap_ms", "guest_ratio"):
        ratio = done[f"{name}_expected"] / done[name]
        inside = (done[name] >= done[f"{name}_low_expected"]) & (done[name] <= done[f"{name}_high_expected"])
        rows.append((f"{name}, median error", float((ratio - 1).abs().median()), float(inside.mean())))
        rows.append((f"{name}, within a factor of 1.5", float(ratio.between(1 / 1.5, 1.5).mean()), np.nan))
    return pd.DataFrame(rows, columns=["what", "value", "inside"])
