# SPDX-License-Identifier: BSD-3-Clause
"""A real host: measuring it, calibrating the model to it, and watching a guest that it runs.

Measuring and watching know nothing of the model; `measured`, `probe`, `fit` and `held_out` do.

``docs/on-a-real-host.md`` goes from a stock kernel to a decision.
"""

from simlib.lab.host.facts import HostFacts, read_facts
from simlib.lab.host.measure import HostMeasurement, MeasurementPlan, measure_host
from simlib.lab.host.watch import Watched, watch_guest

__all__ = ["HostFacts", "HostMeasurement", "MeasurementPlan", "Watched", "measure_host", "read_facts", "watch_guest"]
