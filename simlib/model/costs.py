# SPDX-License-Identifier: BSD-3-Clause
"""What actions cost, and which of it a calibration is to determine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from simlib.errors import InputError, nearest
from simlib.model import rules
from simlib.model.quantities import parse_duration


def _cost(low: str, high: str) -> Any:
    return rules.duration(bounds=(parse_duration(low), parse_duration(high)))


@dataclass(frozen=True)
class Costs(rules.Checked):
    """What each action takes. Times are picoseconds; None: not known (taken as zero, and flagged).

    - `fault_exit`: one fault outside the lock: exit, finding the page, and back into the guest.
    - `fault_hold`: the part of one page fault under the lock.
    - `split_hold`: the part of the first write to a block under the lock; without a value that of a page fault.
    - `populate_block`: what the host spends to allocate and clear one backing page (2 MiB or 4 KiB) at first touch.
    - `tlb_invalidate`: one broadcast TLB invalidation, for which the interconnect serves one CPU at a time; under the
      lock.
    - `line_transfer`: moving a contended cache line from one CPU to another, with the atomic operation on it.
    - `crowding`: what handing over a queued lock takes longer for each doubling of the threads that wait for it.
      Empirical: no mechanism with a source explains it (docs/model.md); without a value it is zero.
    - `line_local`: an atomic operation on a line that this CPU owns.
    - `guest_access`: one access of the guest that needs no fault.
    - `split_access`: what an access of a guest that works on takes longer once the block around the page has been
      split: the TLB holds less of the memory.
    - `clear_page`: CLEAR, for each page (or block) that it write-protects, under the lock.
    - `lockless_page`: the same without mmu_lock (``clear_lock = "lockless"``); without a value `clear_page`.
    - `clear_word`: CLEAR, for each bitmap word (64 pages) in which it write-protects anything, under the lock.
    - `clear_unsplit`: CLEAR, for each page of a block that is not split: what looking for the page's own entry takes,
      under the lock. Enabling the log takes it too where that looks at every page (`Architecture.enable_by_rmap`).
    - `clear_ioctl`: one CLEAR ioctl, outside the lock.
    - `reacquire`: between letting the lock go within a CLEAR and asking for it again.
    - `enable_page`: enabling the log, for each page that it write-protects, under the lock.
    - `flush`: one remote TLB flush, whatever the number of vCPUs.
    - `flush_per_vcpu`: what it takes longer for each vCPU that is interrupted.
    - `interrupt`: what it takes longer if any vCPU is in the guest, where an interrupt has to reach it; without a value
      that is part of `flush`.
    - `kick`: what a vCPU loses that is interrupted by it: out of the guest and in again.
    - `split_block`: splitting one block eagerly, under the lock.
    - `split_alloc`: allocating its table, under the lock or not (`Policy.split_alloc`).
    - `zap_block`: unmapping one block and giving back its table, under the lock.
    - `unmap_entry`: taking one entry out of an arm64 stage 2, of a page, a block or a table: the walk to it, clearing
      it, and giving back what it referred to. Neither cache maintenance nor TLB invalidation.
    - `clean_line`: cleaning and invalidating one data cache line (64 bytes) to the point of coherency.
    - `walk_entry`: `eager_split`: visiting one entry in a walk over the page table, under the lock.
    - `protect_entry`: `eager_split`: what it takes longer to write-protect a writable entry that is visited, under the
      lock.
    - `table_entry`: `eager_split`: making one entry of a new table, with its share of allocating and clearing it, under
      the lock.
    - `fault_jitter`: coefficient of variation of `fault_exit` and of the hold, from fault to fault.
    """

    fault_exit: int | None = _cost("50ns", "50us")
    fault_hold: int | None = _cost("20ns", "20us")
    split_hold: int | None = _cost("20ns", "500us")
    populate_block: int | None = _cost("100ns", "20ms")
    tlb_invalidate: int | None = _cost("10ns", "20us")
    line_transfer: int | None = _cost("1ns", "1us")
    crowding: int | None = _cost("100ps", "2us")
    line_local: int | None = _cost("1ns", "100ns")
    guest_access: int | None = _cost("1ns", "1us")
    split_access: int | None = _cost("100ps", "1us")
    clear_page: int | None = _cost("500ps", "2us")
    lockless_page: int | None = _cost("500ps", "2us")
    clear_word: int | None = _cost("1ns", "20us")
    clear_unsplit: int | None = _cost("100ps", "500ns")
    clear_ioctl: int | None = _cost("10ns", "100us")
    reacquire: int | None = _cost("1ns", "10us")
    enable_page: int | None = _cost("500ps", "2us")
    flush: int | None = _cost("100ns", "10ms")
    flush_per_vcpu: int | None = _cost("10ns", "100us")
    interrupt: int | None = _cost("100ns", "1ms")
    kick: int | None = _cost("100ns", "100us")
    split_block: int | None = _cost("100ns", "1ms")
    split_alloc: int | None = _cost("10ns", "1ms")
    zap_block: int | None = _cost("10ns", "1ms")
    unmap_entry: int | None = _cost("1ns", "100us")
    clean_line: int | None = _cost("100ps", "1us")
    walk_entry: int | None = _cost("100ps", "1us")
    protect_entry: int | None = _cost("100ps", "1us")
    table_entry: int | None = _cost("100ps", "1us")
    fault_jitter: float | None = rules.rule(rules.number(0, 8), None, bounds=(0.05, 1.5))

    def given(self) -> dict[str, float]:
        """Costs that have a value."""
        every = ((f.name, getattr(self, f.name)) for f in rules.fields_of(Costs))
        return {name: value for name, value in every if value is not None}


@dataclass(frozen=True)
class Calibration(rules.Checked):
    """Which costs measurements determine, when the scenario is calibrated.

    - `costs`: costs with one value for all variants.
    - `own_costs`: costs of which each variant has its own value.
    - `metrics`: measured quantities to explain.
    """

    costs: tuple[str, ...] = rules.rule(
        rules.names, ("fault_exit", "fault_hold", "line_transfer", "fault_jitter"), list
    )
    own_costs: tuple[str, ...] = rules.rule(rules.names, (), list)
    metrics: tuple[str, ...] = rules.rule(rules.names, ("dirty_memory_time",), list)

    def __post_init__(self) -> None:
        """Check that the costs exist."""
        super().__post_init__()
        known = [f.name for f in dataclasses.fields(Costs)]
        for key, names in (("costs", self.costs), ("own_costs", self.own_costs)):
            for name in names:
                if name not in known:
                    raise InputError(f"calibration.{key}", name, "unknown cost", nearest(name, known))
