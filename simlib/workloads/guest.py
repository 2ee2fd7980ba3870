# SPDX-License-Identifier: BSD-3-Clause
"""A guest that works on while KVM does something to its memory, as a program."""

from __future__ import annotations

from simlib.model.steps import Step
from simlib.workloads.kernel import Kernel

STOP = 0
"""The flag that stops the guest."""

_ZIPF = 1
_LOOK = 64
"""Accesses of a vCPU between two looks at whether the guest has been stopped."""


def running_vcpu(kernel: Kernel, logging: bool) -> int:
    """A vCPU that touches page after page until the flag `STOP` is raised; returns its first step.

    Its stopwatch runs from a fault's beginning to the next access.
    """
    program, workload = kernel.program, kernel.scenario.workload
    entry = program.add(Step.JUMP)
    faults, ends = kernel.faults(logging)
    for end in ends:
        program.patch(end, a=program.add(Step.LAP, 1))
    fault_end = program.add(Step.JUMP)
    starts = [_timed(kernel, fault) for fault in faults]
    program.patch(entry, a=program.add(Step.SEEK, 1))
    top = program.add(Step.RUN, workload.access_interval)
    program.add(Step.ACCESS, *starts)
    program.patch(fault_end, a=program.here())
    look = program.add(Step.REPEAT, 0, _LOOK, 0)
    program.add(Step.UNLESS, program.here() + 2, STOP)
    leave = program.add(Step.JUMP)
    program.patch(look, a=program.here())
    if workload.slow_fault_every:
        often = program.add(Step.REPEAT, 0, workload.slow_fault_every, 1)
        kernel.slow_fault()
        program.patch(often, a=program.here())
    program.add(Step.NEXT, top if workload.access == "sequential" else program.here() + 1, 1)
    if workload.access != "sequential":
        program.add(Step.SEEK, 1, _ZIPF if workload.access == "zipf" else 0)
        program.add(Step.JUMP, top)
    program.add(Step.MORE, top)
    program.add(Step.JUMP, top)
    program.patch(leave, a=program.add(Step.END))
    return entry


def _timed(kernel: Kernel, fault: int) -> int:
    """A fault with the stopwatch started; returns its first step."""
    start = kernel.program.add(Step.LAP, 0)
    kernel.program.add(Step.JUMP, fault)
    return start
