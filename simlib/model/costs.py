# SPDX-License-Identifier: BSD-3-Clause
"""Costs of actions, and the selection of the costs that a calibration fits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from simlib._lib.errors import InputError, nearest
from simlib.model import rules
from simlib.model.quantities import parse_duration


def _cost(low: str, high: str, unused: str) -> Any:
    return rules.duration(bounds=(parse_duration(low), parse_duration(high)), unused=unused)


@dataclass(frozen=True)
class Costs(rules.Checked):
    """Costs of actions. Times are in picoseconds. None: the cost is unknown, and its prior is used.

    - `fault_unlocked`: one page fault outside the lock: VM exit, lookup of the page, and VM entry.
    - `fault_hold`: the part of one page fault under the lock.
    - `split_hold`: the part of the first write to a huge page or block mapping under the lock.
    - `populate_block`: the host's work to allocate and clear one backing page (2 MiB or 4 KiB) on first touch.
    - `tlb_invalidate`: one broadcast TLB invalidation, for which the interconnect serves one CPU at a time; under the
      lock.
    - `fence_vcpu`: requesting one vCPU to drop an entry from its TLB; riscv as of 6.12 does so for every vCPU whenever
      an entry changes (`Architecture.page_fence`). Under the lock, in addition to the cost per page of CLEAR, of
      enabling the log, and of a fault.
    - `line_transfer`: moving a contended cache line from one CPU to another, with the atomic operation on it.
    - `queue_length_penalty`: additional time of a queued lock's hand-off for each doubling of the threads that wait for
      it. Empirical: no mechanism with a source explains it (docs/model.md).
    - `line_local`: an atomic operation on a cache line that this CPU owns.
    - `guest_access`: one access of the guest without a fault.
    - `guest_flush`: a guest's flush of its own TLB (`Workload.flush_accesses`): with shadow paging a VM exit.
    - `split_access`: additional time of an access of a running guest after the huge page or block mapping around the
      page was split, because the TLB then covers less memory.
    - `clear_page`: CLEAR, for each page (or block) that it write-protects, under the lock.
    - `lockless_page`: the same without mmu_lock (``clear_lock = "lockless"``).
    - `clear_word`: CLEAR, for each bitmap word (64 pages) in which it write-protects anything, under the lock.
    - `clear_unsplit`: CLEAR, for each page of an unsplit block: the lookup of the page's own entry, under the lock.
      Enabling the log pays it too where it looks up every page (`Architecture.enable_by_rmap`).
    - `clear_ioctl`: one CLEAR ioctl, outside the lock.
    - `reacquire`: time between dropping the lock within a CLEAR and requesting it again.
    - `enable_page`: enabling the log, for each page that it write-protects, under the lock.
    - `flush`: the part of one remote TLB flush that does not depend on the number of vCPUs.
    - `flush_per_vcpu`: additional time of the flush for each vCPU that is interrupted.
    - `interrupt`: additional time of the flush if any vCPU is in the guest, so that it must be interrupted.
    - `kick`: time that a vCPU loses to such an interrupt: VM exit and entry.
    - `dirty_set`: additional time of a guest's write where hardware sets the dirty bit and logs the page.
    - `log_exit`: VM exit and entry because the log buffer is full.
    - `log_entry`: moving one page of a log buffer into the dirty log, or into the ring.
    - `log_kick`: requesting one vCPU to empty its log buffer: sending an interrupt, without waiting for its effect.
    - `ring_exit`: exit to userspace and return to the guest, because the dirty ring is full or userspace requests it.
    - `ring_entry`: harvesting one entry of a ring in userspace.
    - `reset_entry`: the ring's reset, for each entry, outside the lock.
    - `split_block`: splitting one huge page or block mapping eagerly, under the lock.
    - `split_alloc`: allocating the table for one eager split, under the lock or not (`Policy.split_alloc`).
    - `zap_block`: unmapping one block and freeing its table, under the lock.
    - `unmap_entry`: removing one entry of a page, a block or a table from an arm64 stage 2: walking to the entry,
      clearing it, and freeing its target, but not cache maintenance or TLB invalidation.
    - `clean_line`: cleaning and invalidating one data cache line (64 bytes) to the point of coherency.
    - `walk_entry`: `eager_split`: visiting one entry in a walk over the page table, under the lock.
    - `protect_entry`: `eager_split`: additional time for write-protecting a visited writable entry, under the lock.
    - `table_entry`: `eager_split`: creating one entry of a new table, including its share of allocating and clearing
      the table, under the lock.
    - `fault_jitter`: coefficient of variation of `fault_unlocked` and `fault_hold` between faults.
    """

    fault_unlocked: int | None = _cost("50ns", "50us", "no vCPU faults")
    fault_hold: int | None = _cost("20ns", "20us", "no vCPU faults")
    split_hold: int | None = _cost("20ns", "500us", "no write hits an unsplit block")
    populate_block: int | None = _cost("100ns", "20ms", "the memory is populated when the run begins")
    tlb_invalidate: int | None = _cost("10ns", "20us", "nothing invalidates TLBs by broadcast")
    fence_vcpu: int | None = _cost("10ns", "20us", "changed entries need no request to every vCPU")
    line_transfer: int | None = _cost("1ns", "1us", "the [host] table gives the times of line transfers")
    queue_length_penalty: int | None = _cost("100ps", "2us", "no thread queues for a lock")
    line_local: int | None = _cost("1ns", "100ns", "no thread takes a lock")
    guest_access: int | None = _cost("1ns", "1us", "workload.access_interval is the time between accesses")
    guest_flush: int | None = _cost("1ns", "50us", "workload.flush_accesses is 0")
    split_access: int | None = _cost("100ps", "1us", "no guest keeps accessing memory that was mapped with blocks")
    clear_page: int | None = _cost("500ps", "2us", "nothing is cleared under mmu_lock")
    lockless_page: int | None = _cost("500ps", "2us", "pages are cleared under mmu_lock")
    clear_word: int | None = _cost("1ns", "20us", "nothing is cleared")
    clear_unsplit: int | None = _cost("100ps", "500ns", "no unsplit block is cleared")
    clear_ioctl: int | None = _cost("10ns", "100us", "there is no CLEAR")
    reacquire: int | None = _cost("1ns", "10us", "no thread drops and reacquires the lock")
    enable_page: int | None = _cost("500ps", "2us", "enabling the log write-protects nothing")
    flush: int | None = _cost("100ns", "10ms", "nothing flushes remote TLBs")
    flush_per_vcpu: int | None = _cost("10ns", "100us", "nothing flushes remote TLBs")
    interrupt: int | None = _cost("100ns", "1ms", "nothing flushes remote TLBs")
    kick: int | None = _cost("100ns", "100us", "nothing kicks a vCPU")
    dirty_set: int | None = _cost("5ns", "1us", "hardware sets no dirty bits")
    log_exit: int | None = _cost("300ns", "20us", "there are no log buffers")
    log_entry: int | None = _cost("2ns", "200ns", "there are no log buffers")
    log_kick: int | None = _cost("20ns", "5us", "there are no log buffers")
    ring_exit: int | None = _cost("1us", "100us", "there are no dirty rings")
    ring_entry: int | None = _cost("2ns", "1us", "there are no dirty rings")
    reset_entry: int | None = _cost("2ns", "500ns", "there are no dirty rings")
    split_block: int | None = _cost("100ns", "1ms", "nothing is split eagerly")
    split_alloc: int | None = _cost("10ns", "1ms", "nothing is split eagerly")
    zap_block: int | None = _cost("10ns", "1ms", "nothing is zapped")
    unmap_entry: int | None = _cost("1ns", "100us", "no stage 2 is torn down")
    clean_line: int | None = _cost("100ps", "1us", "there is no cache maintenance")
    walk_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks the table entry by entry")
    protect_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks the table entry by entry")
    table_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks the table entry by entry")
    fault_jitter: float | None = rules.rule(rules.number(0, 8), None, bounds=(0.05, 1.5), unused="no vCPU faults")

    def given(self) -> dict[str, float]:
        """Costs that have a value."""
        return {f.name: value for f in rules.fields_of(Costs) if (value := getattr(self, f.name)) is not None}


MEANINGS: dict[str, str] = {
    name: " ".join(text.split())
    for name, text in re.findall(r"^ {4}- `(\w+)`: (.+?)(?=^ {4}- |\Z)", Costs.__doc__ or "", re.M | re.S)
}
"""Meaning of each cost, from the docstring."""

UNUSED: dict[str, str] = {cost.name: cost.metadata["unused"] for cost in dataclasses.fields(Costs)}
"""Reason why a job may not use a cost, by the cost's name."""


def expand_others(table: Mapping[str, Any], where: str, named_elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """Replace ``others = "0ns"`` in a [costs] table by a value of 0 for each cost that is not named.

    Raises `InputError` for any other time, because no other value is common to all costs.

    - `named_elsewhere`: costs that the base of the table names, or that are to be calibrated.

    >>> len(expand_others({"fault_unlocked": "1us", "others": "0ns"}, "costs")) == len(UNUSED)
    True
    """
    rows = dict(table)
    if "others" in rows:
        others = rows.pop("others")
        if parse_duration(others, f"{where}.others"):
            rule, hint = 'must be "0ns"', "name each cost that is not 0"
            raise InputError(f"{where}.others", others, rule, hint)
        unnamed = (name for name in UNUSED if name not in named_elsewhere)
        rows = {name: 0 if name == "fault_jitter" else others for name in unnamed} | rows
    return rows


_CALIBRATED = ("fault_unlocked", "fault_hold", "line_transfer", "fault_jitter")


@dataclass(frozen=True)
class Calibration(rules.Checked):
    """Costs that are fitted to measurements when the scenario is calibrated.

    - `costs`: costs with one value for all variants.
    - `per_group_costs`: costs with a value for each group of variants.
    - `metrics`: measured quantities to explain.
    - `included_in_others`: costs that the calibrated ones contain because this workload cannot separate them; these are
      0 in calibration and prediction. Any other cost without a value has the median of its prior.
    """

    costs: tuple[str, ...] = rules.rule(rules.names, _CALIBRATED, list)
    per_group_costs: tuple[str, ...] = rules.rule(rules.names, (), list)
    metrics: tuple[str, ...] = rules.rule(rules.names, ("dirty_memory_time",), list)
    included_in_others: tuple[str, ...] = rules.rule(rules.names, (), list)

    def __post_init__(self) -> None:
        """Check that the costs exist."""
        super().__post_init__()
        known = [f.name for f in dataclasses.fields(Costs)]
        for key in ("costs", "per_group_costs", "included_in_others"):
            for name in getattr(self, key):
                if name not in known:
                    raise InputError(f"calibration.{key}", name, "unknown cost", nearest(name, known))
