# SPDX-License-Identifier: BSD-3-Clause
"""GET without manual protection while the guest writes, as programs: the benchmark of 2013, as far as it is known.

The memory is mapped when the run begins. After a while the log is enabled; then userspace sleeps and does GET, round
after round. Each GET collects the pages written since the last one and write-protects them: with mmu_lock held, in one
hold or in several, or without the lock (`Policy.clear_lock`).

Sources: virt/kvm/kvm_main.c kvm_get_dirty_log_protect (6.12); arch/x86/kvm/x86.c kvm_vm_ioctl_get_dirty_log (3.11).
"""

from __future__ import annotations

import pandas as pd

from simlib.model.job import Job
from simlib.model.program import Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import Scan
from simlib.simulator.engine.result import ACTIVITIES, PS, EngineResult
from simlib.simulator.workloads.cpu_time import cpu_metrics, cpu_times
from simlib.simulator.workloads.degradation import GUEST, UNDISTURBED, degradation, guest_metrics
from simlib.simulator.workloads.dirty_log import DirtyLog
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.horizon import check_within_horizon
from simlib.simulator.workloads.kernel import STOP
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    Stamps are ``start``, ``undisturbed``, ``enabled`` and, for every round i, ``rested i`` and ``got i``.
    """
    kernel = DirtyLog(scenario)
    vcpu = running_vcpu(kernel, logging=True)
    return kernel.job(vcpu, _main(kernel), barriers=1, populated=True, shared=scenario.workload.shared)


def _main(kernel: DirtyLog) -> Thread:
    program, workload = kernel.program, kernel.scenario.workload
    with program.thread() as main:
        kernel.stamp("start")
        program.sleep(workload.warm_up)
        kernel.stamp("undisturbed")
        kernel.enable_log()
        kernel.stamp("enabled")
        for number in range(1, workload.iterations + 1):
            kernel.scan_all(Scan.SEND)  # userspace has sent the pages of the last GET
            program.sleep(workload.pause)
            kernel.stamp("rested", number)
            kernel.get_and_clear_log()
            kernel.stamp("got", number)
        program.signal(STOP)
    return main


METRICS = (
    Metric("get_dirty_log_time", "s", "Time of GET while the guest writes.", rounds=True),
    Metric("get_wait_time", "s", "Part of `get_dirty_log_time`: waiting for mmu_lock and its cache line.", rounds=True),
    Metric("dirty_pages", "count", "Pages that GET found dirty.", rounds=True),
    *cpu_metrics("the end of the warm-up", "the last GET"),
    *GUEST,
    *LOCKS,
)  # fmt: skip
"""Metrics of GET under load. A part of the memory does not represent the whole."""

_WAIT, _BITMAP = [ACTIVITIES.index("wait"), ACTIVITIES.index("line")], len(ACTIVITIES)


def curve(scenario: Scenario, job: Job, raw: EngineResult) -> pd.DataFrame:
    """The guest's throughput until the last GET returns."""
    return degradation(scenario, job, raw, job.stamps[-1])


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    ends = [i for i, stamp in enumerate(job.stamps) if stamp.phase == "got"]
    waits = [float((raw.stamp_thread[i, _WAIT] - raw.stamp_thread[i - 1, _WAIT]).sum()) * PS for i in ends]
    return {
        "get_dirty_log_time": phase_seconds(job, raw, "got"),
        "get_wait_time": waits,
        "dirty_pages": [float(raw.stamp_thread[i, _BITMAP]) for i in ends],
        **cpu_times(scenario, job, raw, (UNDISTURBED, job.stamps[-1]), scenario.workload.access_work),
        **guest_metrics(scenario, raw, curve(scenario, job, raw)),
        **lock_metrics(scenario, raw),
    }


def check_horizon(scenario: Scenario) -> None:
    """Refuse rounds that cannot end within the simulated time. Raises `HorizonError`."""
    workload, guest, costs = scenario.workload, scenario.guest, scenario.host_costs
    round_ps = workload.pause + guest.pages * max(costs.clear_page or 0, costs.lockless_page or 0)
    hint = "use less memory, fewer iterations or a shorter pause"
    check_within_horizon("the rounds could take {}", workload.iterations * round_ps, hint, extra=workload.warm_up)


_DEFAULT = ("get_dirty_log_time", "guest_throughput", "longest_stall")
KIND = WorkloadKind("get_dirty_log", build, METRICS, _DEFAULT, measure, check_horizon, curve=curve)
