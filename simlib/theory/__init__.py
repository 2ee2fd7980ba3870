# SPDX-License-Identifier: BSD-3-Clause
"""Exact and closed-form answers about locks, in microseconds a point; times in seconds.

`docs/theory.md` lists the formulas, their sources, and when each is exact.

Examples
--------
>>> from simlib.theory import machine_repairman
>>> machine_repairman(2, think=1.0, service=1.0).throughput
0.8
"""

from simlib.theory.batching import BatchCosts, Batching, batch_costs, best_batch, square_root_batch
from simlib.theory.deterministic import DeterministicLock, deterministic_lock
from simlib.theory.machine_repairman import (
    ClosedLock,
    Collapse,
    birth_death,
    closed_lock,
    machine_repairman,
    ticket_lock,
    ticket_lock_collapse,
)
from simlib.theory.mean_value import (
    MeanValues,
    ThroughputBounds,
    asymptotic_bounds,
    balanced_job_bounds,
    mean_value_analysis,
)
from simlib.theory.reader_writer import ReaderWriterBounds, cache_line_limit, reader_writer_bounds
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
    "Collapse",
    "DeterministicLock",
    "EagerSplit",
    "MeanValues",
    "ReaderWriterBounds",
    "ScalabilityFit",
    "ThroughputBounds",
    "amdahl",
    "asymptotic_bounds",
    "balanced_job_bounds",
    "batch_costs",
    "best_batch",
    "birth_death",
    "cache_line_limit",
    "closed_lock",
    "deterministic_lock",
    "fit_amdahl",
    "fit_universal_scalability",
    "from_time_per_vcpu_work",
    "machine_repairman",
    "mean_value_analysis",
    "reader_writer_bounds",
    "square_root_batch",
    "ticket_lock",
    "ticket_lock_collapse",
    "universal_scalability",
]
