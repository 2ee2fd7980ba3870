# SPDX-License-Identifier: BSD-3-Clause
"""Unmapping of all memory while the guest runs, as programs: the cost of deleting a memslot under x86's shadow MMU."""

from __future__ import annotations

from functools import partial

from simlib.model import strategy
from simlib.model.job import Job
from simlib.model.program import REGION, Thread
from simlib.model.scenario import Scenario
from simlib.model.steps import ALL, Map, Stamp
from simlib.simulator.engine.result import EngineResult
from simlib.simulator.workloads.degradation import GUEST, degradation, guest_metrics
from simlib.simulator.workloads.guest import running_vcpu
from simlib.simulator.workloads.kernel import STOP, KernelProgram
from simlib.simulator.workloads.metrics import LOCKS, Metric, Values, WorkloadKind, lock_metrics, phase_seconds


def build(scenario: Scenario) -> Job:
    """Programs of one scenario.

    The memory is mapped when the run begins, and no dirty log is kept. Stamps are ``start``, ``undisturbed`` and
    ``zapped``; then the guest is stopped.
    """
    kernel = KernelProgram(scenario)
    vcpu = running_vcpu(kernel, logging=False)
    return kernel.job(vcpu, _main(kernel), barriers=1, populated=True, shared=scenario.workload.shared)


def _main(kernel: KernelProgram) -> Thread:
    program = kernel.program
    with program.thread() as main:
        kernel.stamp("start")
        program.sleep(kernel.scenario.workload.warm_up)
        kernel.stamp("undisturbed")
        _zap(kernel)
        kernel.stamp("zapped")
        program.signal(STOP)
    return main


def _zap(kernel: KernelProgram) -> None:
    """Give every vCPU an empty root table at once; free the old tables block by block.

    The thread may drop mmu_lock between two blocks. The old tables are no longer in use, so TLBs are flushed only at
    the end, with the lock held.

    Source: arch/x86/kvm/mmu/mmu.c kvm_mmu_zap_all_fast and kvm_zap_obsolete_pages (BATCH_ZAP_PAGES).
    """
    program, costs, size = kernel.program, kernel.costs, kernel.block_pages
    lock, drop_when = kernel.lock("write"), kernel.policy.zap_drop_when
    with program.holding(lock):
        with program.loop(until=REGION.done()):
            program.map(Map.ZAP)
            program.advance(size)
        program.back(REGION)
        kernel.kick(kernel.costs.kick)
        with program.loop(until=REGION.done()), program.extent(ALL) as hold:
            ends = hold.done()
            if not isinstance(drop_when, strategy.NeverDrop):
                ends |= strategy.bind(drop_when, hold, lock, size)
            with program.loop(until=ends):
                program.hold(costs.zap_block)
                program.advance(size, hold)
            kernel.adapt(drop_when, lock)
            if not isinstance(drop_when, strategy.NeverDrop):
                with program.when(~REGION.done()), program.dropping(lock):
                    program.run(costs.reacquire)
        kernel.flush(held=True)


METRICS = (
    Metric("zap_time", "s", "From the end of the warm-up until all memory is unmapped and its tables are freed."),
    *GUEST,
    *LOCKS,
)
"""Metrics of zapping."""

curve = partial(degradation, end=Stamp("zapped"))
"""Throughput of the guest until all memory is zapped."""


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """Values of `METRICS`."""
    return {
        "zap_time": phase_seconds(job, raw, "zapped"),
        **guest_metrics(scenario, raw, curve(scenario, job, raw)),
        **lock_metrics(scenario, raw),
    }


_DEFAULT = ("zap_time", "guest_throughput", "longest_stall")
KIND = WorkloadKind("zap", build, METRICS, _DEFAULT, measure, lambda _: None, curve=curve)
