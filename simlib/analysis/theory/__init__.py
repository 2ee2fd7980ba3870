# SPDX-License-Identifier: BSD-3-Clause
"""Exact and closed-form results about locks, computed in microseconds per point; times are in seconds.

docs/theory.md lists the formulas, their sources, and the conditions under which each is exact.
"""

from simlib.analysis.theory.batching import Batching, batch_costs, best_batch, square_root_batch
from simlib.analysis.theory.machine_repairman import birth_death, closed_lock, machine_repairman

__all__ = [
    "Batching",
    "batch_costs",
    "best_batch",
    "birth_death",
    "closed_lock",
    "machine_repairman",
    "square_root_batch",
]
