# SPDX-License-Identifier: BSD-3-Clause
"""Migrations of any size, of which some windows are simulated: what is kept, and how far off it may be.

A migration of hundreds of gigabytes is hours of simulation, and nearly all of it is alike. `course` knows how much of
the memory is write-protected at each moment, given how fast the guest is; `window` simulates a short time page by page
and finds how fast it is, how long CLEAR takes and how long it makes each vCPU wait; `travel` does both in turns, from
pass to pass; `sample` does that several times, and says how far the walks differ. docs/sampling.md compares it with
whole simulations.
"""

from simlib.simulator.sampling.sample import (
    SAMPLED_RUNS,
    WHOLE_PAGES,
    WINDOW_METRICS,
    SampleResult,
    sample_migration,
    sample_several,
    why_not,
)

__all__ = [
    "SAMPLED_RUNS",
    "WHOLE_PAGES",
    "WINDOW_METRICS",
    "SampleResult",
    "sample_migration",
    "sample_several",
    "why_not",
]
