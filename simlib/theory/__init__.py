# SPDX-License-Identifier: BSD-3-Clause
"""Exact and closed-form answers about locks, in microseconds a point; times in seconds.

`docs/theory.md` lists the formulas, their sources, and when each is exact.
"""

from simlib.theory.batching import BatchCosts, Batching, batch_costs, best_batch, square_root_batch
from simlib.theory.machine_repairman import ClosedLock, birth_death, closed_lock, machine_repairman, ticket_lock
from simlib.theory.scalability import (
    ScalabilityFit,
    amdahl,
    fit_amdahl,
    fit_universal_scalability,
    from_time_per_vcpu_work,
    universal_scalability,
)
from simlib.theory.split_walk import EagerSplit

__all__ = [
    "BatchCosts",
    "Batching",
    "ClosedLock",
    "EagerSplit",
    "ScalabilityFit",
    "amdahl",
    "batch_costs",
    "best_batch",
    "birth_death",
    "closed_lock",
    "fit_amdahl",
    "fit_universal_scalability",
    "from_time_per_vcpu_work",
    "machine_repairman",
    "square_root_batch",
    "ticket_lock",
    "universal_scalability",
]
