# SPDX-License-Identifier: BSD-3-Clause
"""What the batching law recommends for a scenario, to be confirmed or corrected by simulation.

The law (`simlib.analysis.theory.batching`) knows one CLEAR of many pages, vCPUs that fault at a steady rate, and one
lock. A scenario becomes such a case for the passes in which no block is left to split:

- pages: of one CLEAR ioctl; work: ``clear_page`` + ``clear_word`` / 64;
- reacquire: ``reacquire`` and two transfers of the lock's cache line;
- a waiter adds ``fault_hold`` and two transfers for each time that its fault takes the lock, and the broadcast
  invalidation where there is one. The fault of a page that was only write-protected takes the lock once unless the
  policy says otherwise, on architectures too whose other faults take it twice; so does a slow fault, which invalidates
  nothing. Faults that read-lock enter together: each adds two transfers, and all together one hold, once;
- think: ``fault_unlocked`` and the time between two accesses over the share of the pages that are write-protected while
  CLEAR runs. A page that was cleared stays protected until somebody writes it, exp(-t / refill) on average with
  refill = pages of the guest × interval / vCPUs; so, while a chunk of a share c is cleared in T, the mean share is
  c × (1 - (1 - exp(-x)) / x) / x with x = T / refill, and what earlier chunks of the pass left protected.

Where no fault takes the lock nobody waits, and the whole ioctl is best.
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
    """What the law recommends.

    - `case`: what the scenario became; None if no fault takes the lock.
    - `batch`: pages of a hold.
    - `square_root`: the batch of the square-root law, pages, which only weighs cost; NaN without a case, or if the
      guest's time is worth nothing.
    """

    case: Batching | None
    batch: int
    square_root: float


def closed_form(scenario: Scenario, objective: str = "cost", weight: float = 1.0) -> ClosedForm:
    """What the batching law recommends for a scenario all of whose costs have values.

    - `objective`, `weight`: see `simlib.choose_batch`.
    """
    pages = chunk_pages(scenario)
    case = batching(scenario)
    if case is None:
        return ClosedForm(None, pages, float("nan"))
    batch, costs = best_batch(case, weight)
    if objective != "cost":
        least = costs.stall if objective == "stall" else costs.clear_time
        batch = int(costs.batch[np.argmin(least)])
    square_root = square_root_batch(case, weight) if weight > 0 else float("nan")
    return ClosedForm(case, batch, square_root)


def chunk_pages(scenario: Scenario) -> int:
    """Pages of one CLEAR ioctl."""
    guest, chunk = scenario.guest, scenario.workload.clear_chunk
    return min(guest.pages, chunk // guest.page_size) if chunk else guest.pages


QEMU_CHUNK = 2**30
"""Bytes of one CLEAR unless QEMU is told otherwise: 2^18 pages of 4 KiB (its property x-clear-bitmap-shift; the table
qemu-clear-chunk-defaults)."""


def at_qemu_chunk(scenario: Scenario) -> Scenario:
    """The scenario with CLEARs of QEMU's size, if its own are smaller and it has the memory for larger ones."""
    guest, chunk = scenario.guest, scenario.workload.clear_chunk
    most = min(QEMU_CHUNK, guest.pages * guest.page_size)
    return scenario if chunk is None or chunk >= most else scenario.changed({"workload": {"clear_chunk": most}})


def batching(scenario: Scenario) -> Batching | None:
    """A scenario as a case of the batching law, by the module's rules; None if no fault takes the lock."""
    policy, costs, workload = scenario.policy.resolved(), scenario.costs, scenario.workload
    near = scenario.host.line_transfer_local
    transfer = (near if near is not None else costs.line_transfer or 0) * PS
    hold, leave = (costs.fault_hold or 0) * PS, (costs.fault_unlocked or 0) * PS
    work = ((costs.clear_page or 0) + (costs.clear_word or 0) / WORD_PAGES) * PS
    interval = max(1, workload.access_interval) * PS
    protected, slow, mode = 0.0, 0.0, policy.write_protect_fault  # faults of one vCPU, 1/s
    if mode != "lockless":
        protected = _protected(scenario, work, interval) * workload.write_percent / 100 / interval
    if workload.slow_fault_every and policy.translation_fault != "lockless":
        slow = 1 / (workload.slow_fault_every * interval)
        mode = policy.translation_fault if mode == "lockless" else mode
    rate = protected + slow
    if rate == 0 or work == 0:
        return None
    together = mode == "read" and policy.lock == "rwlock"
    invalidate = (costs.tlb_invalidate or 0) * PS if policy.facts.fault_flush == "broadcast" else 0.0
    sections = scenario.policy.fault_lock_sections or 1  # of a write-protected page, as `Kernel.faults` has it
    crossing = (protected * (2 * transfer * sections + invalidate) + slow * 2 * transfer) / rate
    return Batching(
        pages=chunk_pages(scenario), work=work, reacquire=(costs.reacquire or 0) * PS + 2 * transfer,
        vcpus=scenario.guest.vcpus, think=1 / rate + leave, service=crossing + (0.0 if together else hold),
        drain=hold if together else 0.0,
    )  # fmt: skip


def _protected(scenario: Scenario, work: float, interval: float) -> float:
    """Mean share of the guest's pages that are write-protected while CLEAR runs."""
    guest = scenario.guest
    pages, chunk = guest.pages, chunk_pages(scenario)
    refill = pages * interval / guest.vcpus
    x = work * chunk / refill
    own = (1 + np.expm1(-x) / x) / x if x > 1e-6 else 0.5
    send = chunk * page_time(scenario) * PS
    left = np.exp(-send / refill * np.arange(1, -(-pages // chunk))).sum()
    return min(1.0, chunk / pages * float(own + left))
