# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes, as programs: the selftest mmu_lock_contention_test of ``kernel-patches/``.

Each vCPU populates its own region. From then on, beginning at a random page of it, it touches
page after page, round and round, until the rounds are over, and looks at its stopwatch after every access; what
enabling the log made it wait for is not counted.
The main thread enables dirty logging; in every round it sleeps for a while, then does
GET and CLEAR, or has other threads CLEAR a part of the slot each. At the end every vCPU makes one more access.
"""

from __future__ import annotations

from simlib.engine.result import PS, EngineResult
from simlib.errors import InputError
from simlib.model.scenario import Scenario
from simlib.model.steps import Job, Stamp, Step
from simlib.workloads.dirty_log import DirtyLog
from simlib.workloads.metrics import LOCKS, Metric, Values, lock_metrics, phase_seconds

_POPULATED, _GO, _CLEARED = range(3)
_STOP, _MEASURE = 0, 1


def build(scenario: Scenario) -> Job:
    """The programs of one scenario.

    Stamps are ``start``, ``populated``, ``enabled`` and, for every round i, ``rested i`` and ``cleared i``.

    Raises
    ------
    InputError
        If an access of the guest takes no time: then it would go round its pages for ever at one instant.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"},
    ...                             "workload": {"kind": "clear_under_load"}, "costs": {"guest_access": "2ns"}}))
    >>> len(job.entry), [str(stamp) for stamp in job.stamps[2:5]]
    (3, ['enabled', 'rested 1', 'cleared 1'])
    """
    if not scenario.costs.guest_access:
        raise InputError(
            "costs.guest_access", scenario.costs.guest_access, "must be given, and more than 0, for clear_under_load"
        )
    kernel = DirtyLog(scenario)
    vcpu = _vcpu(kernel)
    main = _main(kernel)
    threads = scenario.workload.clear_threads
    helpers = [_helper(kernel)] * threads if threads else []
    return kernel.job(vcpu, main, barriers=3, helpers=helpers, parts=max(1, threads))


def _vcpu(kernel: DirtyLog) -> int:
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


def _main(kernel: DirtyLog) -> int:
    program, workload = kernel.program, kernel.scenario.workload
    threads = workload.clear_threads
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
        kernel.stamp("rested", number)
        kernel.get_log(anew=True)
        if threads:
            program.add(Step.BARRIER, _GO, 1 + threads)
            program.add(Step.BARRIER, _CLEARED, 1 + threads)
        else:
            kernel.clear_log()
        kernel.stamp("cleared", number)
    program.add(Step.SIGNAL, _STOP)
    program.add(Step.END)
    return entry


def _helper(kernel: DirtyLog) -> int:
    """A thread that clears its part of the slot in every round."""
    program, workload = kernel.program, kernel.scenario.workload
    entry = program.add(Step.BARRIER, _GO, 1 + workload.clear_threads)
    kernel.clear_log(kernel.slot_pages // workload.clear_threads)
    program.add(Step.BARRIER, _CLEARED, 1 + workload.clear_threads)
    program.add(Step.REPEAT, entry, workload.iterations)
    program.add(Step.END)
    return entry


METRICS = (
    Metric("clear_dirty_log_time", "s", "Time of GET and CLEAR over all of the slot while the guest writes, summed "
           "over all iterations; unknown without a value for what CLEAR costs a page.", rounds=True),
    Metric("longest_stall", "s", "Longest time that one access of any vCPU took once the first GET began.", "whole"),
    Metric("populate_time", "s", "From the start until every vCPU has touched its memory once; unknown without a value "
           "for what populating costs."),
    *LOCKS,
)  # fmt: skip
"""What CLEAR under load measures. No part of the memory stands for the whole."""

DEFAULT = ("clear_dirty_log_time", "longest_stall")
"""Those that a prediction gives unless told otherwise."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """The values of `METRICS`."""
    unknown, costs, cleared = float("nan"), scenario.costs, phase_seconds(job, raw, "cleared")
    populated = float(raw.stamp_ps[job.stamps.index(Stamp("populated"))]) * PS
    return {
        "clear_dirty_log_time": [unknown] * len(cleared) if costs.clear_page is None else cleared,
        "longest_stall": float(raw.lap_max_ps.max()) * PS,
        "populate_time": unknown if costs.populate_block is None else populated,
        **lock_metrics(scenario, raw),
    }
