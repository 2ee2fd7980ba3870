# SPDX-License-Identifier: BSD-3-Clause
"""Figures: one function per figure, from a tidy table to a Plotly figure.

They only scale and sort values. Points are measurements and lines are the model, unless the subtitle states otherwise.
Names are imported at their first use, because importing Plotly is slow.
"""

from typing import TYPE_CHECKING

from simlib._lib import lazy_imports

if TYPE_CHECKING:
    from simlib.figures.curves import contentions, dirty_memory_time, over_vcpus, speed_up
    from simlib.figures.decision import batch_costs, pareto
    from simlib.figures.fit import correlation, cost_intervals, residuals, sensitivity
    from simlib.figures.lock import histogram, lock_over_time, progress, time_per_page
    from simlib.figures.migration import degradation_over_time, migration_passes
    from simlib.figures.ownership import lock_ownership
    from simlib.figures.trial import differences

__all__ = [
    "batch_costs",
    "contentions",
    "correlation",
    "cost_intervals",
    "degradation_over_time",
    "differences",
    "dirty_memory_time",
    "histogram",
    "lock_over_time",
    "lock_ownership",
    "migration_passes",
    "over_vcpus",
    "pareto",
    "progress",
    "residuals",
    "sensitivity",
    "speed_up",
    "time_per_page",
]

_HOMES = {
    "curves": ("contentions", "dirty_memory_time", "over_vcpus", "speed_up"),
    "decision": ("batch_costs", "pareto"),
    "fit": ("correlation", "cost_intervals", "residuals", "sensitivity"),
    "lock": ("histogram", "lock_over_time", "progress", "time_per_page"),
    "migration": ("degradation_over_time", "migration_passes"),
    "ownership": ("lock_ownership",),
    "trial": ("differences",),
}
"""Modules, and the public names that each defines."""

__getattr__ = lazy_imports.lazy_names(__name__, _HOMES)
