# SPDX-License-Identifier: BSD-3-Clause
"""Hold times of faults, measured by a thread that waits for mmu_lock: selftest mmu_lock_contention_test -q.

In every round the vCPUs write all their pages once, while the main thread repeatedly runs a CLEAR of no page, which
takes mmu_lock and drops it at once. The number of these ioctls shows how long the lock was held.
"""

from __future__ import annotations

import numpy as np

from simlib._lib.errors import InputError
from simlib.model.job import Job
from simlib.model.program import Thread, raised
from simlib.model.scenario import Scenario
from simlib.model.steps import FLAGS
from simlib.simulator.engine.result import FAULTS, EngineResult
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds

_POPULATED, _GO, _ALL_DONE = range(3)


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every iteration i, ``begun i``, ``dirtied i``, ``cleared
    i``. Raises `InputError` if a probe takes no time, or there are more iterations than flags.

    >>> job = build(Scenario.parse({"guest": {"memory_per_vcpu": "4M"}, "workload": {"kind": "lock_probe"},
    ...                             "costs": {"clear_ioctl": "500ns"}}))
    >>> [str(stamp) for stamp in job.stamps[3:6]]
    ['begun 1', 'dirtied 1', 'cleared 1']
    """
    workload = scenario.workload
    if scenario.costs.clear_ioctl == 0:
        raise InputError("costs.clear_ioctl", 0, "must be more than 0 for lock_probe")
    if workload.iterations > FLAGS:
        raise InputError("workload.iterations", workload.iterations, f"must be at most {FLAGS} for lock_probe")
    kernel = DirtyLog(scenario)
    return kernel.job(_vcpu(kernel), _main(kernel), barriers=3)


def _vcpu(kernel: DirtyLog) -> Thread:
    program, vcpus = kernel.program, kernel.scenario.guest.vcpus
    with program.thread() as vcpu:
        kernel.touch_region(logging=False)
        program.barrier(_POPULATED, vcpus + 1)
        for iteration in range(kernel.scenario.workload.iterations):
            program.barrier(_GO, vcpus + 1)
            kernel.touch_region(logging=True)
            program.barrier(_ALL_DONE, vcpus)
            program.signal(iteration)
    return vcpu


def _main(kernel: DirtyLog) -> Thread:
    program, vcpus = kernel.program, kernel.scenario.guest.vcpus
    lock = kernel.lock("write")
    with program.thread() as main:
        kernel.stamp("start")
        program.barrier(_POPULATED, vcpus + 1)
        kernel.stamp("populated")
        kernel.enable_log()
        kernel.stamp("enabled")
        for iteration in range(kernel.scenario.workload.iterations):
            kernel.stamp("begun", iteration + 1)
            program.barrier(_GO, vcpus + 1)
            program.note("KVM_CLEAR_DIRTY_LOG of nothing")
            with program.loop(until=raised(iteration)):
                program.run(kernel.costs.clear_ioctl)
                with program.holding(lock):
                    pass
            kernel.stamp("dirtied", iteration + 1)
            kernel.get_log(anew=True)
            kernel.clear_log()
            kernel.stamp("cleared", iteration + 1)
    return main


METRICS = (
    Metric("dirty_memory_time", "s", "From releasing the vCPUs until the end of the probe during which the last of "
           "them finishes accessing its memory.", "proportional", rounds=True),
    Metric("lock_probes", "count", "Empty CLEARs that ran during `dirty_memory_time`.", "proportional", rounds=True),
    *LOCKS,
)  # fmt: skip
"""Metrics of the probe."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    return {
        "dirty_memory_time": phase_seconds(job, raw, "dirtied"),
        "lock_probes": _probes(scenario, job, raw),
        **lock_metrics(scenario, raw),
    }


def _probes(scenario: Scenario, job: Job, raw: EngineResult) -> list[float]:
    """Return the acquisitions of mmu_lock in each round, except by faults."""
    policy, probes = scenario.policy.resolved(), []
    modes = (policy.translation_fault, policy.write_protect_fault, policy.split_fault, policy.translation_fault)
    slow, fast = policy.fault_lock_sections, scenario.policy.fault_lock_sections or 1
    takes = np.where(np.isin(modes, ("lockless", "none")), 0, (slow, fast, slow, slow))
    for index, stamp in enumerate(job.stamps):
        if stamp.phase == "dirtied":
            taken = (raw.stamp_locks[index, 0, :, 0] - raw.stamp_locks[index - 1, 0, :, 0]).sum()
            faults = raw.stamp_sums[index, FAULTS] - raw.stamp_sums[index - 1, FAULTS]
            probes.append(float(taken - takes @ faults))
    return probes


KIND = WorkloadKind("lock_probe", build, METRICS, ("dirty_memory_time", "lock_probes"), measure)
