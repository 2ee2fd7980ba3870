# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes, as programs: the selftest mmu_lock_contention_test of ``kernel-patches/``.

Each vCPU populates its own region. From then on, beginning at a random page of it, it touches
page after page, round and round, until the rounds are over, and looks at its stopwatch after every access; what
enabling the log made it wait for is not counted.
The main thread enables dirty logging; in every round it sleeps for a while, then does
GET and CLEAR. At the end every vCPU makes one more access.
"""

from __future__ import annotations

from simlib.model.scenario import Scenario
from simlib.model.steps import Job, Step
from simlib.workloads.kernel import Kernel

_POPULATED = 0
_STOP, _MEASURE = 0, 1


def build(scenario: Scenario) -> Job:
    """The programs of one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every round i, ``rested i`` and ``cleared i``.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"},
    ...                             "workload": {"kind": "clear_under_load"}}))
    >>> len(job.entry), job.stamps[2:5]
    (3, ('enabled', 'rested 1', 'cleared 1'))
    """
    kernel = Kernel(scenario)
    vcpu = _vcpu(kernel)
    main = _main(kernel)
    return kernel.job(vcpu, main, barriers=1)


def _vcpu(kernel: Kernel) -> int:
    program, guest = kernel.program, kernel.scenario.guest
    entry = program.here()
    kernel.touch_region(logging=False)
    program.add(Step.BARRIER, _POPULATED, guest.vcpus + 1)
    start = program.add(Step.JUMP)
    faults, ends = kernel.faults(logging=True)
    program.patch(start, a=program.add(Step.SEEK, 1))
    program.add(Step.LAP, 0)
    page = program.add(Step.RUN, kernel.costs.guest_access or 0)
    program.add(Step.ACCESS, *faults)
    after = program.add(Step.LAP, 2, _MEASURE)
    leave = program.here()
    program.add(Step.UNLESS, leave + 2, _STOP)
    out = program.add(Step.JUMP)
    program.add(Step.NEXT, page, 1)
    program.add(Step.MORE, page)
    program.add(Step.JUMP, page)
    program.patch(out, a=program.add(Step.END))
    for end in ends:
        program.patch(end, a=after)
    return entry


def _main(kernel: Kernel) -> int:
    program, workload = kernel.program, kernel.scenario.workload
    entry = program.here()
    kernel.stamp("start")
    program.add(Step.BARRIER, _POPULATED, kernel.scenario.guest.vcpus + 1)
    kernel.stamp("populated")
    kernel.enable_log()
    kernel.stamp("enabled")
    for number in range(1, workload.iterations + 1):
        program.add(Step.SLEEP, workload.pause)
        program.add(Step.WAKE)
        program.add(Step.SIGNAL, _MEASURE)
        kernel.stamp(f"rested {number}")
        kernel.get_log(anew=True)
        kernel.clear_log()
        kernel.stamp(f"cleared {number}")
    program.add(Step.SIGNAL, _STOP)
    program.add(Step.END)
    return entry
