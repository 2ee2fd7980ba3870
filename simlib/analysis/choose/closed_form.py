# SPDX-License-Identifier: BSD-3-Clause
"""Batch that the batching law recommends for a scenario; the simulation confirms or refutes it.

The law (`simlib.analysis.theory.batching`) models one CLEAR of many pages, vCPUs that fault at a constant rate, and one
lock. A scenario is mapped to such a case for the passes in which no huge page remains to be split:

- pages: those of one CLEAR ioctl; work: ``clear_page`` + ``clear_word`` / 64;
- reacquire: ``reacquire`` and two transfers of the lock's cache line;
- a waiter adds ``fault_hold``, and two transfers for each time that its fault takes the lock, and the broadcast
  invalidation if the architecture has one. The fault of a write-protected page takes the lock once unless the policy
  sets another number, even on architectures whose other faults take it twice. A slow fault also takes it once, and
  invalidates nothing. Faults that take the lock for read enter together: each adds two transfers, all add one hold;
- think: ``fault_unlocked`` plus the mean time between two faults of a vCPU: slow faults, and writes to pages that are
  write-protected while CLEAR runs. A cleared page is still protected after time t with probability exp(-t / refill),
  where refill = pages of the guest × interval / vCPUs. While a chunk, a share c of the guest, is cleared in time T, the
  mean share of protected pages is c × (1 - (1 - exp(-x)) / x) / x with x = T / refill, plus the pages that earlier
  chunks of the pass left protected.

If no fault takes the lock, no vCPU waits, and the whole ioctl is best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simlib.analysis.theory import Batching, best_batch, square_root_batch
from simlib.model.pagetable import WORD_PAGES
from simlib.model.scenario import Scenario
from simlib.simulator.engine.result import PS
from simlib.simulator.workloads.migration import page_time


@dataclass(frozen=True)
class ClosedForm:
    """Recommendation of the batching law.

    - `case`: the scenario as a case of the law; None if no fault takes the lock.
    - `batch`: pages per hold.
    - `square_root`: batch of the square-root law, pages, which minimises `cost` only; NaN without a case, or if the
      weight of guest time is 0.
    """

    case: Batching | None
    batch: int
    square_root: float


def closed_form(scenario: Scenario, objective: str = "cost", weight: float = 1.0) -> ClosedForm:
    """Apply the batching law to a scenario whose costs all have values.

    - `objective`, `weight`: see `simlib.choose_batch`.
    """
    pages = chunk_pages(scenario)
    case = batching(scenario)
    if case is None:
        return ClosedForm(None, pages, float("nan"))
    batch, costs = best_batch(case, weight)
    if objective != "cost":
        values = costs.stall if objective == "stall" else costs.clear_time
        batch = int(costs.batch[np.argmin(values)])
    return ClosedForm(case, batch, square_root_batch(case, weight) if weight > 0 else float("nan"))


def chunk_pages(scenario: Scenario) -> int:
    """Pages of one CLEAR ioctl."""
    guest, chunk = scenario.guest, scenario.workload.clear_chunk
    return min(guest.pages, chunk // guest.page_size) if chunk else guest.pages


QEMU_CHUNK = 2**30
"""Bytes of one CLEAR with QEMU's default: 2^18 pages of 4 KiB (property x-clear-bitmap-shift; table
qemu-clear-chunk-defaults)."""


def at_qemu_chunk(scenario: Scenario) -> Scenario:
    """Return the scenario with CLEARs of QEMU's default size, or of all memory, if its CLEARs are smaller."""
    guest, chunk = scenario.guest, scenario.workload.clear_chunk
    default = min(QEMU_CHUNK, guest.pages * guest.page_size)
    return scenario if chunk is None or chunk >= default else scenario.changed({"workload": {"clear_chunk": default}})


def batching(scenario: Scenario) -> Batching | None:
    """Map a scenario to a case of the batching law, by the rules of this module; None if no fault takes the lock."""
    policy, costs, workload = scenario.policy.resolved(), scenario.costs, scenario.workload
    local = scenario.host.line_transfer_local
    transfer = (local if local is not None else costs.line_transfer or 0) * PS
    hold, unlocked = (costs.fault_hold or 0) * PS, (costs.fault_unlocked or 0) * PS
    work = ((costs.clear_page or 0) + (costs.clear_word or 0) / WORD_PAGES) * PS
    interval = max(1, workload.access_interval) * PS
    protected, slow, mode = 0.0, 0.0, policy.write_protect_fault  # fault rates of one vCPU, 1/s, and their lock mode
    if mode != "lockless":
        protected = _protected(scenario, work, interval) * workload.write_percent / 100 / interval
    if workload.slow_fault_every and policy.translation_fault != "lockless":
        slow = 1 / (workload.slow_fault_every * interval)
        mode = policy.translation_fault if mode == "lockless" else mode
    rate = protected + slow
    if rate == 0 or work == 0:
        return None
    shared = mode == "read" and policy.lock == "rwlock"
    invalidate = (costs.tlb_invalidate or 0) * PS if policy.facts.fault_flush == "broadcast" else 0.0
    sections = scenario.policy.fault_lock_sections or 1  # for a write-protected page, as in `KernelProgram.faults`
    crossing = (protected * (2 * transfer * sections + invalidate) + slow * 2 * transfer) / rate
    return Batching(
        pages=chunk_pages(scenario), work=work, reacquire=(costs.reacquire or 0) * PS + 2 * transfer,
        vcpus=scenario.guest.vcpus, think=1 / rate + unlocked, service=crossing + (0.0 if shared else hold),
        drain=hold if shared else 0.0,
    )  # fmt: skip


def _protected(scenario: Scenario, work: float, interval: float) -> float:
    """Mean share of the guest's pages that are write-protected while CLEAR runs."""
    guest = scenario.guest
    pages, chunk = guest.pages, chunk_pages(scenario)
    refill = pages * interval / guest.vcpus
    x = work * chunk / refill
    current_chunk = (1 + np.expm1(-x) / x) / x if x > 1e-6 else 0.5
    send = chunk * page_time(scenario) * PS
    earlier_chunks = np.exp(-send / refill * np.arange(1, -(-pages // chunk))).sum()
    return min(1.0, chunk / pages * float(current_chunk + earlier_chunks))
