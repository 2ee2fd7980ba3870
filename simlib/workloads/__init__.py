# SPDX-License-Identifier: BSD-3-Clause
"""Scenario to programs: one module a workload, each with a function ``build`` and what it measures."""

from __future__ import annotations

import functools

from simlib.model.costs import Costs
from simlib.model.job import Job
from simlib.model.machine import Machine
from simlib.model.policy import Policy
from simlib.model.scenario import Guest, Scenario
from simlib.model.workload import Workload
from simlib.workloads import (
    clear_under_load,
    dirty_log_perf_test,
    eager_split,
    get_dirty_log,
    lock_probe,
    migration,
    scaled,
    teardown,
    zap,
)
from simlib.workloads.degradation import degradation
from simlib.workloads.horizon import check_walks
from simlib.workloads.metrics import Kind, Metric

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("clear_under_load", clear_under_load.build, clear_under_load.METRICS, clear_under_load.DEFAULT,
             clear_under_load.measure, check_walks),
        Kind("dirty_log_perf_test", dirty_log_perf_test.build, dirty_log_perf_test.METRICS, dirty_log_perf_test.DEFAULT,
             dirty_log_perf_test.measure, check_walks, dirty_log_perf_test.sample,
             dirtying="dirtied"),
        Kind("eager_split", eager_split.build, eager_split.METRICS, eager_split.DEFAULT, eager_split.measure,
             check_walks),
        Kind("get_dirty_log", get_dirty_log.build, get_dirty_log.METRICS, get_dirty_log.DEFAULT, get_dirty_log.measure,
             get_dirty_log.check_horizon, curve=get_dirty_log.curve),
        Kind("lock_probe", lock_probe.build, lock_probe.METRICS, lock_probe.DEFAULT, lock_probe.measure, check_walks),
        Kind("migration", migration.build, migration.METRICS, migration.DEFAULT, migration.measure,
             migration.check_horizon, scaled.sample, migration.warnings, degradation),
        Kind("teardown", teardown.build, teardown.METRICS, teardown.DEFAULT, teardown.measure, teardown.check_horizon),
        Kind("zap", zap.build, zap.METRICS, zap.DEFAULT, zap.measure, zap.check_horizon,
             curve=zap.curve),
    )
}  # fmt: skip
"""The workloads, by ``workload.kind``."""


def kind_of(scenario: Scenario) -> Kind:
    """The workload of a scenario: its programs, its metrics."""
    return KINDS[scenario.workload.kind]


def build(scenario: Scenario) -> Job:
    """The programs, threads and locks of a scenario's workload; those of the last few scenarios are kept.

    Examples
    --------
    >>> build(Scenario()).lock_names
    ('mmu_lock', 'interconnect')
    """
    return _built(scenario.machine, scenario.guest, scenario.policy, scenario.workload, scenario.costs)


@functools.lru_cache(maxsize=32)
def _built(machine: Machine, guest: Guest, policy: Policy, workload: Workload, costs: Costs) -> Job:
    """The job of a scenario by all that it depends on, so that replications build it once."""
    return KINDS[workload.kind].build(Scenario(machine, guest, policy, workload, costs))


def find_metric(scenario: Scenario, name: str) -> Metric:
    """A metric of a scenario's workload, by its name: ``dirty_memory_time``, ``dirty_memory_time[2]``.

    Raises `InputError` if the workload has none of this name, or not this iteration.

    Examples
    --------
    >>> find_metric(Scenario(), "dirty_memory_time[2]").unit
    's'
    >>> find_metric(Scenario(), "zap_time")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: metric = zap_time: dirty_log_perf_test has none of this name; did you mean ...
    """
    return kind_of(scenario).find(name, scenario.workload.iterations)[0]
