# SPDX-License-Identifier: BSD-3-Clause
"""Figures: one function a figure, a tidy table in, a Plotly figure out.

Nothing is computed here beyond scaling. Points are measured, lines are the model;
what was simulated says so.
"""

from simlib.figures.curves import contentions, dirty_memory_time, speed_up
from simlib.figures.fit import correlation, cost_intervals, held_out_errors, sensitivity
from simlib.figures.lab import switch_effects, under_load
from simlib.figures.lock import histogram, lock_over_time, progress, time_per_page

__all__ = [
    "contentions",
    "correlation",
    "cost_intervals",
    "dirty_memory_time",
    "held_out_errors",
    "histogram",
    "lock_over_time",
    "progress",
    "sensitivity",
    "speed_up",
    "switch_effects",
    "time_per_page",
    "under_load",
]
