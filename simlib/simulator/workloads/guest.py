# SPDX-License-Identifier: BSD-3-Clause
"""A guest that works on while KVM does something to its memory, as a program."""

from __future__ import annotations

from simlib.model.program import REGION, Thread, mapped_by_block, raised
from simlib.simulator.workloads.kernel import RANDOM, STOP, KernelProgram

_LOOK = 64
"""Accesses of a vCPU between two looks at whether the guest has been stopped."""


def running_vcpu(kernel: KernelProgram, logging: bool, anywhere: bool = False) -> Thread:
    """A vCPU that touches page after page until the flag `STOP` is raised.

    Its stopwatch runs from a fault's beginning, or a kick's, to the next access. `anywhere`: it begins anywhere in its
    interval between two accesses, not at its beginning as all others do.
    """
    program, workload = kernel.program, kernel.scenario.workload
    kernel.kicks_stall = True
    in_order = workload.access == "sequential"
    with program.thread() as vcpu:
        program.seek()
        if anywhere:
            program.run(workload.access_interval, RANDOM)
        with program.loop() as life:
            with program.loop(until=REGION.done() if in_order else None):
                program.run(workload.access_interval)
                if kernel.scenario.guest.mapped_as_blocks and kernel.costs.split_access:
                    with program.when(~mapped_by_block()):
                        program.run(kernel.costs.split_access)
                kernel.access(logging, timed=True)
                with program.every(_LOOK):
                    life.leave_if(raised(STOP))
                if workload.slow_fault_every:
                    with program.every(workload.slow_fault_every):
                        kernel.slow_fault()
                program.advance(1)
                if not in_order:
                    kernel.seek()
            program.back(REGION)
    return vcpu
