# SPDX-License-Identifier: BSD-3-Clause
"""Effect of a patch series in terms of the model: the changes in policy and costs that a trial implies.

The lab measures when a changed kernel takes `mmu_lock`, in which mode and for how many pages, and how many instructions
it executes. Acquisitions and their modes become the model's policy; instructions become differences in costs.

If CLEAR, or faults, take the lock less often at their own call sites, and one in a new function (``in_FUNCTION``) takes
it, the lock has moved there. An operation is lockless only if its acquisitions are
gone, and no other site has taken them over.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from simlib.lab import Trial
from simlib.lab.hardware.machines import LAB_HOSTS
from simlib.lab.hardware.translation import KINDS, instruction_times
from simlib.lab.records import FAULT_SITES
from simlib.lab.trial.differences import CHANGED, EQUAL, MIN_CHANGE, Difference, welch
from simlib.lab.trial.kernels import STATISTICS_KERNEL
from simlib.model.pagetable import WORD_PAGES
from simlib.model.strategy import every

MODES = ("write", "read")
_PHASES = ("populate", "rounds")
_OWN_SITES = ("clear", *FAULT_SITES)
_NEW_SITE = "in_"
"""Beginning of the name of a call site in a function that the bundled patches do not know."""

UNSEEN = {
    "drop": "each time that CLEAR drops mmu_lock, its cache line moves to a waiter and back, at the calibrated cost "
    "(line_transfer) in the model; the lab shows the emulator's order of the waiters, not the hardware's",
    "hold": "new instructions that miss the cache take longer than the existing ones: the interval covers the spread "
    "between architectures, not the misses of this series",
    "exit": "a VM exit and entry take time in which no instruction is executed: only the host's instructions are "
    "converted to time",
    "clear": "write-protecting a page causes a cache miss if its page-table entry is not cached: the assumed "
    "miss rate is the same with and without the series",
    "flush": "the number of TLB invalidations changes, but the cost of each on hardware (interrupts on x86, broadcasts "
    "on arm64) is not in the lab's times",
    "mode": "readers of an rwlock contend for its cache line, which an emulator does not show: the model uses the "
    "host's calibrated transfers",
}
"""Notes on costs on hardware that an emulator does not show, by kind of change."""


class Increase(NamedTuple):
    """Increase in a number of instructions, and half the width of its 95 % interval."""

    middle: float
    half: float

    def per(self, count: float) -> Increase:
        """Return the increase divided by a number of items."""
        return Increase(self.middle / count, self.half / count)


@dataclass(frozen=True)
class Effect:
    """Changes by a series in terms of the model, in one MMU mode of the lab.

    - `policies`: of the scenario without the series and with it, as tables of a scenario file.
    - `costs`: increases in instructions, by cost.
    - `lockless_ratio`: instructions per page of a walk without mmu_lock over a walk with it; 0: the walk takes it.
    - `unseen`: keys of `UNSEEN`.
    - `refusal`: why the counts cannot be expressed in terms of the model; empty if they can.
    """

    policies: tuple[Mapping[str, Any], Mapping[str, Any]]
    costs: Mapping[str, Increase] = field(default_factory=dict)
    lockless_ratio: float = 0.0
    unseen: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def empty(self) -> bool:
        """True if nothing changes in terms of the model."""
        return self.policies[0] == self.policies[1] and not self.costs


def effect_of(trial: Trial, mmu_mode: str) -> Effect:
    """Derive changes in the model's policy and costs from a trial's differences.

    - `mmu_mode`: one of `LAB_HOSTS`.

    >>> from simlib.lab.trial.result import read_trials
    >>> from simlib.measurements import load
    >>> effect_of(read_trials(load("tried"))["clear-batch"], "x86_64/shadow").policies[1]["clear_drop_when"]
    'pages >= 64'
    """
    if trial.kernel != STATISTICS_KERNEL:
        return Effect(({}, {}))
    cells = [TrialCell.of(trial, mmu_mode, cell) for cell in ("parked", "load", "blocks")]
    parked, loaded, single = (cell.with_moved_sites() for cell in cells)
    refusals = [refusal for cell in cells if (refusal := cell.refusal())]
    if refusals:
        return Effect(({}, {}), refusal=refusals[0])
    before, after = ({**_clear_policy(parked, side), **_fault_policy(parked, side)} for side in (0, 1))
    idle, contended = ([cell.sum(["clear"], "acquisitions", side) for side in (0, 1)] for cell in (parked, loaded))
    if idle[0] == idle[1] and contended[1] > contended[0]:  # more drops only under contention
        after["clear_drop_when"] = "waiters >= 1"
    keys = (before.keys() | after.keys()) - {"clear_drop_when"}
    unseen = ["mode"] * any(before.get(key) != after.get(key) for key in keys)
    unseen += ["drop"] * ("clear_drop_when" in after and before.get("clear_drop_when") != after["clear_drop_when"])
    costs = _changed_costs(single, mmu_mode)  # with one vCPU the clock advances only with the running thread
    lockless_ratio = 0.0
    if after.get("clear_lock") == "lockless" != before.get("clear_lock"):
        pages = [parked.value("clear", "time a dirty page", side) for side in (0, 1)]
        lockless_ratio = pages[1] / pages[0]
        costs.pop("clear_page", None)
    unseen += [kind for kind, cost in KINDS.items() if cost in costs]
    changed = (difference for difference in trial.changed if difference.mmu_mode == mmu_mode)
    unseen += ["flush"] * any(difference.quantity.of == "TLB" for difference in changed)
    return Effect((before, after), costs, lockless_ratio, tuple(dict.fromkeys(unseen)))


@dataclass(frozen=True)
class TrialCell:
    """Numbers of one cell of a trial, by subject and quantity; all but `CHANGED` numbers count as equal."""

    numbers: Mapping[tuple[str, str], Difference]

    @classmethod
    def of(cls, trial: Trial, mmu_mode: str, cell: str) -> TrialCell:
        """Select the numbers of a cell in one MMU mode."""
        differences = (row for row in trial.differences if (row.mmu_mode, row.cell) == (mmu_mode, cell))
        return cls({(row.quantity.of, row.quantity.what): row for row in differences})

    def value(self, of: str, what: str, side: int) -> float:
        """Return a number of the kernel without (side 0) or with the series (side 1); 0 if it was never counted."""
        number = self.numbers.get((of, what))
        if number is None:
            return 0.0
        return statistics.median(number.changed if side and number.verdict == CHANGED else number.base)

    def sum(self, sites: Sequence[str], what: str, side: int) -> float:
        """Sum a quantity in the rounds over call sites and modes."""
        return sum(self.value(f"{site} {mode} (rounds)", what, side) for site in sites for mode in MODES)

    def other_sites(self) -> dict[str, float]:
        """Return how much more often call sites to which a lock can have moved take it.

        They are new sites, and known ones only if CLEAR or faults take the lock at theirs no more.
        """
        gone = any(not self._count(site, 1) for site in self._owners())
        sites: dict[str, float] = {}
        for (of, what), number in self.numbers.items():
            site = of.partition(" ")[0]
            if what != "acquisitions" or number.verdict != CHANGED or site in _OWN_SITES:
                continue
            more = statistics.median(number.changed) - statistics.median(number.base)
            if more > 0 and (gone or site.startswith(_NEW_SITE)):
                sites[site] = sites.get(site, 0.0) + more
        return sites

    def _count(self, site: str, side: int) -> float:
        """Acquisitions at a call site, in both phases and modes."""
        names = (f"{site} {mode} ({phase})" for mode in MODES for phase in _PHASES)
        return sum(self.value(name, "acquisitions", side) for name in names)

    def _owners(self) -> list[str]:
        """Return the call sites of CLEAR and of faults that take the lock less often than before."""
        return [site for site in _OWN_SITES if self._count(site, 1) < self._count(site, 0)]

    def refusal(self) -> str:
        """Return why the call sites of a lock cannot be expressed in terms of the model; empty if they can."""
        sites, owners = self.other_sites(), self._owners()
        shown = ", ".join(f"{site} (+{count:.0f})" for site, count in sites.items())
        if not owners and any(site.startswith(_NEW_SITE) for site in sites):
            return f"{shown} takes mmu_lock in addition, which the model does not have"
        if sites and len(owners) > 1:
            return f"{' and '.join(owners)} moved to {shown}: which of them takes the lock there is not counted"
        return ""

    def with_moved_sites(self) -> TrialCell:
        """Return the cell with what other call sites took on added to the site from which the lock moved to them."""
        sites, owners = self.other_sites(), self._owners()
        if not sites or len(owners) != 1:
            return self
        numbers = dict(self.numbers)
        for (of, what), number in self.numbers.items():
            site, _, mode = of.partition(" ")
            if site not in sites:
                continue
            key = (f"{owners[0]} {mode}", what)
            zeros, quantity = (0.0,) * len(number.base), number.quantity._replace(of=key[0])
            kept = numbers.get(key) or replace(number, quantity=quantity, base=zeros, changed=zeros)
            remaining = statistics.median(kept.changed if kept.verdict == CHANGED else kept.base)
            before = statistics.median(number.base)
            changed = tuple(remaining + max(0.0, value - before) for value in number.changed)
            numbers[key] = replace(kept, changed=changed, verdict=EQUAL if set(kept.base) == set(changed) else CHANGED)
            numbers[of, what] = replace(number, changed=number.base, verdict=EQUAL)
        return TrialCell(numbers)

    def increase(self, *keys: tuple[str, str]) -> Increase:
        """Return the increase in a sum of numbers that the series causes."""
        numbers = [self.numbers[key] for key in keys if key in self.numbers and self.numbers[key].verdict == CHANGED]
        middles = (statistics.median(number.changed) - statistics.median(number.base) for number in numbers)
        halves = (welch(np.array(number.base), np.array(number.changed))[0] for number in numbers)
        return Increase(sum(middles), math.hypot(*halves))


def _clear_policy(cell: TrialCell, side: int) -> dict[str, Any]:
    """Return the policy of CLEAR on one side: mode of the lock, and pages per hold."""
    taken = {mode: cell.value(f"clear {mode} (rounds)", "acquisitions", side) for mode in MODES}
    pages, calls = cell.value("clear", "dirty pages", side), cell.value("clear", "calls", side)
    total = sum(taken.values())
    if not total:
        return {"clear_lock": "lockless"} if pages and cell.sum(["clear"], "acquisitions", 1 - side) else {}
    clear_drop_when = every(max(1, round(pages / total / WORD_PAGES)) * WORD_PAGES) if total > calls else every(0)
    return {"clear_lock": max(taken, key=lambda mode: taken[mode]), "clear_drop_when": clear_drop_when}


def _fault_policy(cell: TrialCell, side: int) -> dict[str, Any]:
    """Return the modes in which faults take the lock on one side, where they differ between the two sides."""
    policy: dict[str, Any] = {}
    fields = {"fault_fast": ("write_protect_fault",), "fault_slow": ("translation_fault", "split_fault")}
    for site, names in fields.items():
        modes = [_lock_mode(cell, site, s) for s in (0, 1)]
        if modes[0] != modes[1]:
            policy |= dict.fromkeys(names, modes[side])
    if "translation_fault" in policy and not cell.sum(["fault_fast"], "acquisitions", 0):
        policy.setdefault("write_protect_fault", policy["translation_fault"])  # all faults are slow faults
    return policy


def _lock_mode(cell: TrialCell, site: str, side: int) -> str:
    """Return the mode in which a call site takes the lock; ``lockless`` if it does not."""
    taken = dict.fromkeys(MODES, 0.0)
    for mode, phase in product(MODES, _PHASES):
        taken[mode] += cell.value(f"{site} {mode} ({phase})", "acquisitions", side)
    return max(taken, key=lambda mode: taken[mode]) if any(taken.values()) else "lockless"


def _changed_costs(cell: TrialCell, mmu_mode: str) -> dict[str, Increase]:
    """Return the costs whose change exceeds both `MIN_CHANGE` times the cost and half the width of its interval."""
    pages = cell.value("clear", "dirty pages", 1)
    if not pages:
        return {}
    changes: dict[str, tuple[float, Increase]] = {}  # the cost without the series, and its increase
    taken, held = (cell.sum(FAULT_SITES, what, 0) for what in ("acquisitions", "holds"))
    if taken and taken == cell.sum(FAULT_SITES, "acquisitions", 1):
        sites = [f"{site} {mode} (rounds)" for site in FAULT_SITES for mode in MODES]
        hold, write = cell.increase(*((site, "holds") for site in sites)), cell.increase(("write", "time"))
        unlocked = Increase(write.middle - hold.middle, math.hypot(write.half, hold.half))
        changes["fault_hold"] = held / taken, hold.per(taken)
        changes["fault_unlocked"] = (cell.value("write", "time", 0) - held) / pages, unlocked.per(pages)
    clear = cell.increase(("clear", "time"))
    if clear.middle:  # the cost of a page excludes that of dropping mmu_lock
        drops = cell.sum(["clear"], "acquisitions", 1) - cell.sum(["clear"], "acquisitions", 0)
        reacquire = instruction_times().reacquire[LAB_HOSTS[mmu_mode].lab]
        page = Increase(clear.middle - drops * reacquire, clear.half).per(pages)
        changes["clear_page"] = cell.value("clear", "time", 0) / pages, page
    limits = {name: max(increase.half, MIN_CHANGE * base) for name, (base, increase) in changes.items()}
    return {name: increase for name, (_, increase) in changes.items() if abs(increase.middle) > limits[name]}
