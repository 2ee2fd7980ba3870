# SPDX-License-Identifier: BSD-3-Clause
"""A guest that keeps running while KVM works on its memory, as a program."""

from __future__ import annotations

from simlib.model.program import REGION, Thread, mapped_by_block, raised
from simlib.simulator.workloads.kernel import RANDOM, STOP, KernelProgram


def running_vcpu(kernel: KernelProgram, logging: bool, random_start: bool = False) -> Thread:
    """Program of a vCPU that accesses page after page until the flag `STOP` is raised.

    Its stopwatch runs from the beginning of a fault or a kick to the next access. A vCPU with idle CPU time idles until
    each access is due, unless it is late. `random_start`: begin at a random point of the interval between two accesses,
    not at its beginning; vCPUs with idle CPU time do so always, because their accesses would stay simultaneous.
    """
    program, workload = kernel.program, kernel.scenario.workload
    kernel.kick_is_stall = True
    in_order, idles = workload.access == "sequential", workload.cpu_use < 1
    with program.thread() as vcpu:
        program.seek()
        if random_start or idles:
            program.run(workload.access_interval, RANDOM)
        with program.loop() as life:
            with program.loop(until=REGION.done() if in_order else None):
                if idles:
                    program.pace(workload.access_interval, kernel.drain_cost)
                program.run(workload.access_work)
                if kernel.scenario.guest.mapped_as_blocks and kernel.costs.split_access:
                    with program.when(~mapped_by_block()):
                        program.run(kernel.costs.split_access)
                kernel.access(logging, timed=True)
                with program.every(64):
                    life.leave_if(raised(STOP))
                if workload.slow_fault_every:
                    with program.every(workload.slow_fault_every):
                        kernel.slow_fault()
                program.advance(1)
                if not in_order:
                    kernel.seek_next_page()
            program.back(REGION)
    return vcpu
