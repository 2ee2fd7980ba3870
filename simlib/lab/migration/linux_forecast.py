# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of a Linux guest's migrations from its measurement, as `simlib migrate` makes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simlib.measurements.importers.tables import Column
from simlib.vmm.guest import RunningGuest
from simlib.vmm.plans import Plan, PlanOutcome, simulate_plan
from simlib.vmm.read_guest import parse_guest
from simlib.vmm.targets import Targets

LEVEL, DRAWS, SEED = 0.9, 200, 1
"""Probability of the intervals, number of sampled guests, and random seed."""

LINK = 10 * 10**9
"""Bandwidth between two QEMU processes of one host, bit/s: above all values of max-bandwidth."""

_QUANTITIES: dict[str, tuple[str, float]] = {
    "total_ms": ("total_s", 1e3), "downtime_ms": ("downtime_s", 1e3), "synchronisations": ("passes", 1),
    "throttle_percent": ("throttle", 1), "transferred_bytes": ("sent_bytes", 1), "slow_percent": ("slow_s", 100),
}  # fmt: skip
"""Field of `PlanOutcome` and factor by the column of the lab's table; `slow_s` is divided by the total time."""

COLUMNS = (
    Column("completed_share_ratio", "number", "share of the sampled guests whose migration completes within limit_s"),
    *(
        Column(f"{end}{name}", "number", f"{name} of the migrations that complete within limit_s{words}", optional=True)
        for name in _QUANTITIES
        for end, words in (("", ", median"), ("low_", ", low end"), ("high_", ", high end"))
    ),
)
"""Columns of a prediction."""


def measured_guest(measurement: Mapping[str, Any]) -> RunningGuest:
    """Return the guest that a measurement (`simlib.lab.migration.measurement.measure_guest`) describes."""
    guest = parse_guest("\n".join(json.dumps({"return": reply["return"]}) for reply in measurement["replies"]))
    cpu = np.mean([reading["vcpu_cpu_percent"] for reading in measurement["readings"]]) / 100
    return replace(guest, link=LINK, cpu=min(1.0, float(cpu)), resident=measurement["resident_bytes"],
                   emulated=measurement["keys"]["accelerator"] == "tcg")  # fmt: skip


def predict_linux(measurement: Mapping[str, Any], draws: int = DRAWS) -> dict[str, float]:
    """Predict the migration of a measured guest: values of `COLUMNS`."""
    guest, limit_s = measured_guest(measurement), float(measurement["keys"]["limit_s"])
    plan = Plan("current", "", guest.settings)
    outcomes = simulate_plan(plan, guest, Targets(), guest.samples(draws, SEED))
    completed = [outcome for outcome in outcomes if outcome.completed and outcome.total_s <= limit_s]
    row: dict[str, float] = {"completed_share_ratio": len(completed) / len(outcomes)}
    for name, (field, factor) in _QUANTITIES.items():
        values = [factor * getattr(outcome, field) / _divisor(outcome, field) for outcome in completed] or [np.nan]
        for end, share in (("", 0.5), ("low_", (1 - LEVEL) / 2), ("high_", (1 + LEVEL) / 2)):
            row[f"{end}{name}"] = float(np.quantile(values, share))
    return row


def _divisor(outcome: PlanOutcome, field: str) -> float:
    return outcome.total_s if field == "slow_s" else 1.0
