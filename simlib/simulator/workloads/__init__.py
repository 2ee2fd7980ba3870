# SPDX-License-Identifier: BSD-3-Clause
"""From scenarios to programs: one module per workload, with its `metrics.WorkloadKind` (programs, metrics, limits)."""

from __future__ import annotations

import functools

from simlib.model.costs import Costs
from simlib.model.host import Host
from simlib.model.job import Job
from simlib.model.policy import Policy
from simlib.model.scenario import Guest, Scenario
from simlib.model.workload import Workload
from simlib.simulator.workloads import (
    clear_under_load,
    dirty_log_perf_test,
    eager_split,
    get_dirty_log,
    lock_probe,
    migration,
    teardown,
    zap,
)
from simlib.simulator.workloads.metrics import Metric, WorkloadKind

_MODULES = (
    clear_under_load, dirty_log_perf_test, eager_split, get_dirty_log, lock_probe, migration, teardown, zap,
)  # fmt: skip
KINDS: dict[str, WorkloadKind] = {module.KIND.name: module.KIND for module in _MODULES}
"""The workloads, by ``workload.kind``."""


def kind_of(scenario: Scenario) -> WorkloadKind:
    """Workload of a scenario: its programs and metrics."""
    return KINDS[scenario.workload.kind]


def build(scenario: Scenario) -> Job:
    """Build the programs, threads and locks of a scenario's workload; the last few jobs are cached.

    >>> build(Scenario()).lock_names
    ('mmu_lock', 'interconnect')
    """
    return _built(scenario.host, scenario.guest, scenario.policy, scenario.workload, scenario.costs)


@functools.lru_cache(maxsize=32)
def _built(host: Host, guest: Guest, policy: Policy, workload: Workload, costs: Costs) -> Job:
    """Build a job from the parts of a scenario that it depends on, so that replications share it."""
    return KINDS[workload.kind].build(Scenario(host, guest, policy, workload, costs))


def find_metric(scenario: Scenario, name: str) -> Metric:
    """Metric of a scenario's workload by its name: ``dirty_memory_time``, ``dirty_memory_time[2]``.

    Raises `InputError` if the workload has no metric of this name, or no such iteration.

    >>> find_metric(Scenario(), "dirty_memory_time[2]").unit
    's'
    """
    return kind_of(scenario).find(name, scenario.workload.iterations)[0]
