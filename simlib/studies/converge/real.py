# SPDX-License-Identifier: BSD-3-Clause
"""Real migrations of the lab beside the course: what it expects of each, and how far off it may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simlib.lab.migration.experiment import parse_settings
from simlib.vmm import rules
from simlib.vmm.course import course
from simlib.vmm.memory import Line, Pages
from simlib.vmm.postcopy import postcopy
from simlib.vmm.settings import Settings

PAGE = 4096
_BASE = 2**20

FULL_SPEED_S = 1.0e-6
"""Time to send a page here where nothing limits it, s: 4 GB/s through a unix socket."""

PLACE_S = 9.5e-6
"""Time to put a page into its place after postcopy (UFFDIO_COPY), s."""

SWITCH_S = 0.0045
"""Time for which this guest, which has hardly a device, stands beside what is sent, s."""

FAULT_S = 0.4e-3
"""From a fault to its page, both sides on one host, s."""

WRITE_S = 0.45e-6
"""By how much the guest's loop makes the time between two writes of a vCPU longer, s."""

LATE_S = {1: 1e-4, 2: 4e-4}
"""By how much a throttled vCPU sleeps too long on this host of two CPUs, by vCPUs, s."""

SPREAD = {"total_ms": 0.02, "transferred_bytes": 0.02, "downtime_ms": 0.45, "longest_gap_ms": 0.3,
          "guest_ratio": 0.015, "synchronisations": 0.04}  # fmt: skip
"""Standard deviation of what is left over, of the logarithm: of the migrations on which the course was built."""

RATE_SPREAD, LEVEL, DRAWS = 0.01, 0.9, 60
"""Standard deviation of the rate, of its logarithm; probability of the intervals; migrations drawn for them."""


def pages_of(row: Mapping[str, Any]) -> Pages:
    """The guest of ``simlib/lab/migration/guest.S`` by classes: what is hot, the rest of its working set, zeros."""
    memory, vcpus = row["memory_bytes"] / PAGE, row["vcpus"]
    hot, cold = row["hot_set_bytes"] / PAGE, (row["working_set_bytes"] - row["hot_set_bytes"]) / PAGE
    share = row["hot_percent"] / 100
    rate = 1 / (1 / row["writes_per_s"] + WRITE_S / vcpus)
    writes = np.array([rate * share, rate * (1 - share), 0.0])
    count = np.array([hot, cold, memory - hot - cold])
    first = np.array([_BASE, _BASE, 0.0]) / row["memory_bytes"]
    last = np.array([_BASE + row["working_set_bytes"], _BASE + row["working_set_bytes"], row["memory_bytes"]])
    if vcpus == 1 and hot:
        last[0] = _BASE + row["hot_set_bytes"]
    kept = count > 0
    sweep = np.array([float(row["pattern"] == "sweep")] * 3)
    columns = (
        count,
        writes / np.maximum(count, 1),
        sweep,
        first,
        last / row["memory_bytes"],
        np.array([0.0, 0.0, 1.0]),
    )
    return Pages(*(column[kept] for column in columns))


def expected(row: Mapping[str, Any]) -> dict[str, float]:
    """What the course expects of a migration.

    - `row`: its keys, as ``data/collected/migrate-runs.csv`` has them.
    """
    settings = Settings.of(parse_settings(row["settings"]))
    line = Line(page_s=FULL_SPEED_S, zero_s=2e-7, switch_s=SWITCH_S, vcpus=row["vcpus"], late_s=LATE_S[row["vcpus"]])
    pages = pages_of(row)
    after = row["postcopy_after_s"]
    found = course(pages, line, settings, row["limit_s"])
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
    cut = course(pages, line, settings, after)
    most = float(settings.max_postcopy_bandwidth)
    placed = line._replace(page_s=PLACE_S)
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


def predicted(runs: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """What is expected of each migration, with 90 % intervals: columns ``…``, ``…_low``, ``…_high``.

    The rate is drawn about what it should be, so that one who just converges may not; what the course leaves over is
    drawn from its spread.
    """
    tail = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    rows = []
    for number, row in enumerate(_records(runs)):
        random = np.random.default_rng([seed, number])
        rates = row["writes_per_s"] * np.exp(RATE_SPREAD * random.standard_normal(DRAWS))
        drawn = pd.DataFrame([expected({**row, "writes_per_s": float(rate)}) for rate in rates])
        found: dict[str, float] = dict(expected(row))
        found["completed_share"] = float(drawn["completed"].mean())
        done = drawn[drawn["completed"] == found["completed"]]
        for name, spread in SPREAD.items():
            left_over = np.exp(spread * random.standard_normal(len(done)))
            low, high = np.quantile(done[name] * left_over, tail) if len(done) else (np.nan, np.nan)
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
