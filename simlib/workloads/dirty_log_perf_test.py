# SPDX-License-Identifier: BSD-3-Clause
"""KVM's selftest dirty_log_perf_test, as programs.

Source: tools/testing/selftests/kvm/dirty_log_perf_test.c `run_test` and
`vcpu_worker`, lib/perf_test_util.c `guest_code`. Each vCPU populates its own
region; dirty logging is enabled; then, in every iteration, all vCPUs touch
their pages in order and wait for each other, and the main thread does GET and
CLEAR while they are parked.
"""

from __future__ import annotations

from simlib.model.job import Job
from simlib.model.program import Thread
from simlib.model.scenario import Scenario
from simlib.workloads.dirty_log import DirtyLog

_POPULATED, _GO, _DIRTIED = range(3)


def build(scenario: Scenario) -> Job:
    """The selftest's programs for one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every iteration i, ``dirtied i`` and
    ``cleared i``.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}}))
    >>> len(job.entry), job.pages, str(job.stamps[3])
    (3, 2048, 'dirtied 1')
    """
    kernel = DirtyLog(scenario)
    vcpu = _vcpu(kernel)
    main = _main(kernel)
    return kernel.job(vcpu, main, barriers=3)


def _vcpu(kernel: DirtyLog) -> Thread:
    program, parties = kernel.program, kernel.scenario.guest.vcpus + 1
    with program.thread() as vcpu:
        kernel.touch_region(logging=False)
        program.barrier(_POPULATED, parties)
        with program.repeat(kernel.scenario.workload.iterations):
            program.barrier(_GO, parties)
            kernel.touch_region(logging=True)
            program.barrier(_DIRTIED, parties)
    return vcpu


def _main(kernel: DirtyLog) -> Thread:
    program, parties = kernel.program, kernel.scenario.guest.vcpus + 1
    with program.thread() as main:
        kernel.stamp("start")
        program.barrier(_POPULATED, parties)
        kernel.stamp("populated")
        kernel.enable_log()
        kernel.stamp("enabled")
        for iteration in range(1, kernel.scenario.workload.iterations + 1):
            program.barrier(_GO, parties)
            program.barrier(_DIRTIED, parties)
            kernel.stamp("dirtied", iteration)
            kernel.get_log(anew=True)
            kernel.clear_log()
            kernel.stamp("cleared", iteration)
    return main
