# SPDX-License-Identifier: BSD-3-Clause
"""All memory unmapped while the guest works on, as programs: what deleting a memslot costs under the shadow MMU."""

from __future__ import annotations

import pandas as pd

from simlib.engine.result import PS, EngineResult
from simlib.model.scenario import Scenario
from simlib.model.steps import Job, Map, Stamp, Step
from simlib.workloads.degradation import GUEST, UNDISTURBED, degradation, guest_metrics
from simlib.workloads.guest import STOP, running_vcpu
from simlib.workloads.kernel import Kernel
from simlib.workloads.metrics import LOCKS, Metric, Values, lock_metrics


def build(scenario: Scenario) -> Job:
    """The programs of one scenario.

    The memory is mapped when the run begins, and no log is kept of it. Stamps are ``start``, ``undisturbed`` and
    ``zapped``; then the guest is stopped.

    Examples
    --------
    >>> job = build(Scenario.parse({"guest": {"vcpus": 2, "memory_per_vcpu": "4M"}, "workload": {"kind": "zap"}}))
    >>> job.thread_names, [stamp.phase for stamp in job.stamps]
    (('vcpu 0', 'vcpu 1', 'main'), ['start', 'undisturbed', 'zapped'])
    """
    kernel = Kernel(scenario)
    vcpu = running_vcpu(kernel, logging=False)
    main = _main(kernel)
    return kernel.job(vcpu, main, barriers=1, populated=True)


def _main(kernel: Kernel) -> int:
    program = kernel.program
    entry = program.here()
    kernel.stamp("start")
    program.add(Step.SLEEP, kernel.scenario.workload.warm_up)
    program.add(Step.WAKE)
    kernel.stamp("undisturbed")
    _zap(kernel)
    kernel.stamp("zapped")
    program.add(Step.SIGNAL, STOP)
    program.add(Step.END)
    return entry


def _zap(kernel: Kernel) -> None:
    """Every vCPU gets an empty table at once; the old ones are given back block by block.

    When so many are done, it lets go before the next if anybody waits. Nobody uses the old tables, so TLBs are
    flushed only at the end, with the lock held.

    Source: arch/x86/kvm/mmu/mmu.c kvm_mmu_zap_all_fast and kvm_zap_obsolete_pages (BATCH_ZAP_PAGES).
    """
    program, costs, batch, size = kernel.program, kernel.costs, kernel.policy.zap_batch, kernel.block_pages
    lock, mode, _ = kernel.lock("write")
    program.add(Step.TAKE, lock, mode)
    block = program.add(Step.MAP, Map.ZAP)
    program.add(Step.NEXT, block, size)
    program.add(Step.MORE, block)
    if costs.kick:
        program.add(Step.KICK, costs.kick)
    first = program.add(Step.HOLD, costs.zap_block or 0)
    again = program.add(Step.NEXT, first, size)
    if batch:
        over = program.add(Step.JUMP)
        program.patch(again, a=program.add(Step.REPEAT, first, batch))
        look = program.add(Step.QUIET, 0, lock, 1)
        program.add(Step.DROP, lock, mode)
        program.add(Step.RUN, costs.reacquire or 0)
        program.add(Step.TAKE, lock, mode)
        program.add(Step.JUMP, first)
        program.patch(look, a=program.add(Step.HOLD, costs.zap_block or 0))
        program.add(Step.NEXT, look, size)
        program.patch(over, a=program.here())
    kernel.flush(held=True)
    program.add(Step.DROP, lock, mode)
    program.add(Step.MORE, first)


METRICS = (
    Metric("zap_time", "s", "From the end of the warm-up until all memory is unmapped and its tables given back."),
    *GUEST,
    *LOCKS,
)
"""What zapping measures."""

DEFAULT = ("zap_time", "guest_throughput", "longest_stall")
"""Those that a prediction gives unless told otherwise."""

_ZAPPED = Stamp("zapped")


def curve(scenario: Scenario, job: Job, raw: EngineResult) -> pd.DataFrame:
    """The guest's throughput until all is zapped."""
    return degradation(scenario, job, raw, _ZAPPED)


def measure(scenario: Scenario, job: Job, raw: EngineResult) -> Values:
    """The values of `METRICS`."""
    stamps = dict(zip(job.stamps, raw.stamp_ps.tolist(), strict=True))
    return {
        "zap_time": (stamps[_ZAPPED] - stamps[UNDISTURBED]) * PS,
        **guest_metrics(scenario, raw, curve(scenario, job, raw)),
        **lock_metrics(scenario, raw),
    }


def check_horizon(scenario: Scenario) -> None:
    """Nothing to refuse: it takes one walk over the tables."""
