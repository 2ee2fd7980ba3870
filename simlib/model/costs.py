# SPDX-License-Identifier: BSD-3-Clause
"""What actions cost, and which of it a calibration is to determine."""

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
    """What each action takes. Times are picoseconds; None: not known, so that a prior says it.

    - `fault_unlocked`: one fault outside the lock: exit, finding the page, and back into the guest.
    - `fault_hold`: the part of one page fault under the lock.
    - `split_hold`: the part of the first write to a block under the lock.
    - `populate_block`: what the host spends to allocate and clear one backing page (2 MiB or 4 KiB) at first touch.
    - `tlb_invalidate`: one broadcast TLB invalidation, for which the interconnect serves one CPU at a time; under the
      lock.
    - `fence_vcpu`: asking one vCPU to drop an entry from its TLB, of which riscv asks every vCPU whenever an entry
      changes (`Architecture.page_fence`); under the lock, beside what CLEAR, enabling and a fault take for a page.
    - `line_transfer`: moving a contended cache line from one CPU to another, with the atomic operation on it.
    - `queue_length_penalty`: what handing over a queued lock takes longer for each doubling of the threads that wait
      for it. Empirical: no mechanism with a source explains it (docs/model.md).
    - `line_local`: an atomic operation on a line that this CPU owns.
    - `guest_access`: one access of the guest that needs no fault.
    - `guest_flush`: a guest's flush of its own TLB (`Workload.flush_accesses`): with shadow paging it leaves the guest.
    - `split_access`: what an access of a guest that works on takes longer once the block around the page has been
      split: the TLB holds less of the memory.
    - `clear_page`: CLEAR, for each page (or block) that it write-protects, under the lock.
    - `lockless_page`: the same without mmu_lock (``clear_lock = "lockless"``).
    - `clear_word`: CLEAR, for each bitmap word (64 pages) in which it write-protects anything, under the lock.
    - `clear_unsplit`: CLEAR, for each page of a block that is not split: what looking for the page's own entry takes,
      under the lock. Enabling the log takes it too where that looks at every page (`Architecture.enable_by_rmap`).
    - `clear_ioctl`: one CLEAR ioctl, outside the lock.
    - `reacquire`: between letting the lock go within a CLEAR and asking for it again.
    - `enable_page`: enabling the log, for each page that it write-protects, under the lock.
    - `flush`: one remote TLB flush, whatever the number of vCPUs.
    - `flush_per_vcpu`: what it takes longer for each vCPU that is interrupted.
    - `interrupt`: what it takes longer if any vCPU is in the guest, where an interrupt has to reach it.
    - `kick`: what a vCPU loses that is interrupted by it: out of the guest and in again.
    - `dirty_set`: what a write of the guest takes longer where hardware sets the dirty bit, and writes the page down.
    - `log_exit`: out of the guest and in again because the log buffer is full.
    - `log_entry`: putting one page of a log buffer into the dirty log, or into the ring.
    - `log_kick`: asking one vCPU for its log buffer: an interrupt is sent, and not waited for.
    - `ring_exit`: out to userspace and into the guest again: because the dirty ring is full, or userspace asks for it.
    - `ring_entry`: harvesting one entry of a ring in userspace.
    - `reset_entry`: the ring's reset, for each entry, outside the lock.
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
    - `fault_jitter`: coefficient of variation of `fault_unlocked` and of the hold, from fault to fault.
    """

    fault_unlocked: int | None = _cost("50ns", "50us", "no vCPU faults")
    fault_hold: int | None = _cost("20ns", "20us", "no vCPU faults")
    split_hold: int | None = _cost("20ns", "500us", "no write meets a block that is not split")
    populate_block: int | None = _cost("100ns", "20ms", "the memory is populated when the run begins")
    tlb_invalidate: int | None = _cost("10ns", "20us", "nothing invalidates TLBs by broadcast")
    fence_vcpu: int | None = _cost("10ns", "20us", "no change of an entry is told to every vCPU by a request")
    line_transfer: int | None = _cost("1ns", "1us", "the machine says what moving a line takes")
    queue_length_penalty: int | None = _cost("100ps", "2us", "nobody queues")
    line_local: int | None = _cost("1ns", "100ns", "nobody takes a lock")
    guest_access: int | None = _cost("1ns", "1us", "workload.access_interval is the time between accesses")
    guest_flush: int | None = _cost("1ns", "50us", "workload.flush_accesses is 0")
    split_access: int | None = _cost("100ps", "1us", "no guest works on in memory that was mapped by blocks")
    clear_page: int | None = _cost("500ps", "2us", "nothing is cleared under mmu_lock")
    lockless_page: int | None = _cost("500ps", "2us", "pages are cleared under mmu_lock")
    clear_word: int | None = _cost("1ns", "20us", "nothing is cleared")
    clear_unsplit: int | None = _cost("100ps", "500ns", "nothing meets a block that is not split")
    clear_ioctl: int | None = _cost("10ns", "100us", "there is no CLEAR")
    reacquire: int | None = _cost("1ns", "10us", "nobody lets go and asks again")
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
    clean_line: int | None = _cost("100ps", "1us", "no cache is maintained")
    walk_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks so")
    protect_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks so")
    table_entry: int | None = _cost("100ps", "1us", "only the workload eager_split walks so")
    fault_jitter: float | None = rules.rule(rules.number(0, 8), None, bounds=(0.05, 1.5), unused="nothing varies")

    def given(self) -> dict[str, float]:
        """Costs that have a value."""
        return {f.name: value for f in rules.fields_of(Costs) if (value := getattr(self, f.name)) is not None}


MEANINGS: dict[str, str] = {
    name: " ".join(text.split())
    for name, text in re.findall(r"^ {4}- `(\w+)`: (.+?)(?=^ {4}- |\Z)", Costs.__doc__ or "", re.M | re.S)
}
"""What each cost is, in words."""

UNUSED: dict[str, str] = {cost.name: cost.metadata["unused"] for cost in dataclasses.fields(Costs)}
"""Why a program may not spend a cost."""


def named(table: Mapping[str, Any], where: str, kept: Collection[str] = ()) -> dict[str, Any]:
    """A [costs] table in which ``others = "0ns"``, if it stands there, is read as that for each cost that is not named.

    Raises `InputError` if it is another time: costs differ.

    - `kept`: costs that are named elsewhere: in what the table changes, or as those to calibrate.

    >>> len(named({"fault_unlocked": "1us", "others": "0ns"}, "costs")) == len(UNUSED)
    True
    """
    rows = dict(table)
    if "others" in rows:
        others = rows.pop("others")
        if parse_duration(others, f"{where}.others"):
            raise InputError(f"{where}.others", others, 'must be "0ns": what is left out is not paid', "name each cost")
        unnamed = (name for name in UNUSED if name not in kept)
        rows = {name: 0 if name == "fault_jitter" else others for name in unnamed} | rows
    return rows


@dataclass(frozen=True)
class Calibration(rules.Checked):
    """Which costs measurements determine, when the scenario is calibrated.

    - `costs`: costs with one value for all variants.
    - `per_group_costs`: costs of which each variant has its own value.
    - `metrics`: measured quantities to explain.
    - `included_in_others`: costs that the others contain in this workload, where nothing tells them apart: 0 in it,
      whether to calibrate or to predict. Any other cost without a value has the median of its prior.
    """

    costs: tuple[str, ...] = rules.rule(
        rules.names, ("fault_unlocked", "fault_hold", "line_transfer", "fault_jitter"), list
    )
    per_group_costs: tuple[str, ...] = rules.rule(rules.names, (), list)
    metrics: tuple[str, ...] = rules.rule(rules.names, ("dirty_memory_time",), list)
    included_in_others: tuple[str, ...] = rules.rule(rules.names, (), list)

    def __post_init__(self) -> None:
        """Check that the costs exist."""
        super().__post_init__()
        known = [f.name for f in dataclasses.fields(Costs)]
        for key, names in (
            ("costs", self.costs),
            ("per_group_costs", self.per_group_costs),
            ("included_in_others", self.included_in_others),
        ):
            for name in names:
                if name not in known:
                    raise InputError(f"calibration.{key}", name, "unknown cost", nearest(name, known))
