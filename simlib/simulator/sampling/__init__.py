# SPDX-License-Identifier: BSD-3-Clause
"""Migrations of any size, estimated from simulated windows, with the error of the estimate.

A migration of hundreds of gigabytes is hours of simulation, and nearly all of it is alike. `fluid_model` computes the
share of the memory that is write-protected at each moment, given the speed of the guest; `window` simulates a short
time page by page and measures the guest's speed, the duration of CLEAR and the waits of each vCPU; `estimator`
alternates between both from pass to pass; `sample` replicates this and derives the error from the spread of the
replications. docs/sampling.md compares the estimates with whole simulations.
"""

from simlib.simulator.sampling.sample import (
    DEFAULT_REPLICATIONS,
    WHOLE_PAGES,
    WINDOW_METRICS,
    SampleResult,
    sample_migration,
    sample_several,
    unsupported_reason,
)

__all__ = [
    "DEFAULT_REPLICATIONS",
    "WHOLE_PAGES",
    "WINDOW_METRICS",
    "SampleResult",
    "sample_migration",
    "sample_several",
    "unsupported_reason",
]
