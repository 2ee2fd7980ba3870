# SPDX-License-Identifier: BSD-3-Clause
"""A real host: measure it, calibrate the model to it, and watch a guest that it runs.

Measuring and watching do not use the model; `measured`, `probe`, `fit` and `held_out` do.

``docs/on-a-real-host.md`` describes the steps from a stock kernel to a decision.
"""

from simlib.lab.host.facts import HostFacts, read_facts
from simlib.lab.host.measure import HostMeasurement, MeasurementPlan, measure_host
from simlib.lab.host.watch import WatchResult, watch_guest

__all__ = [
    "HostFacts", "HostMeasurement", "MeasurementPlan", "WatchResult", "measure_host", "read_facts", "watch_guest",
]  # fmt: skip
