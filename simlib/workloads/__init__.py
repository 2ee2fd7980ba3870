# SPDX-License-Identifier: BSD-3-Clause
"""Scenario to programs: one module a workload, each with a function ``build``."""

from __future__ import annotations

from collections.abc import Callable

from simlib.model.job import Job
from simlib.model.scenario import Scenario
from simlib.workloads import clear_under_load, dirty_log_perf_test, migration, zap

_WORKLOADS: dict[str, Callable[[Scenario], Job]] = {
    "clear_under_load": clear_under_load.build,
    "dirty_log_perf_test": dirty_log_perf_test.build,
    "migration": migration.build,
    "zap": zap.build,
}


def build(scenario: Scenario) -> Job:
    """The programs, threads and locks of a scenario's workload.

    Examples
    --------
    >>> build(Scenario()).lock_names
    ('mmu_lock', 'interconnect')
    """
    return _WORKLOADS[scenario.workload.kind](scenario)
