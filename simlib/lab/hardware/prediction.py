# SPDX-License-Identifier: BSD-3-Clause
"""What a trial's differences (`simlib.lab.try_series`) mean on hardware: curves without the series and with it.

The lab says when a changed kernel takes `mmu_lock`, in which mode, for how many pages, and how many instructions it
executes there. When and in which mode become the model's policy. Instructions become time by what one takes of that
kind of action on that hardware (`translation`). What no instruction counter sees is named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from simlib._lib.parallel import Progress, subprogresses
from simlib.analysis.predict import CHANGES, LEVEL, PAGES_PER_VCPU, REPLICATIONS, PredictionOptions, curves_of
from simlib.figures.results import Result
from simlib.lab import Trial
from simlib.lab.hardware.translation import KINDS, instruction_times, translate
from simlib.lab.records import FAULT_SITES
from simlib.lab.trial.differences import CHANGED, RULER, Difference, welch
from simlib.lab.trial.kernels import COUNTED
from simlib.lab.trial.result import wrapped
from simlib.measurements.fits import BOUNDS, AnyFit, UncertainCosts, choose_fit
from simlib.model.pagetable import WORD_PAGES
from simlib.model.quantities import say_seconds
from simlib.model.scenario import Scenario, as_scenario
from simlib.model.strategy import every

VCPUS = (1, 4, 16, 64)
"""Points of a curve."""

MEMORY = "8M"
"""Of each vCPU: with the most of them a curve takes half a minute."""

WITHOUT, WITH = "without", "with"
"""Names of both curves."""

MODES = ("write", "read")
"""In which the lock is taken."""


class More(NamedTuple):
    """Instructions more, and half of their 95 % interval."""

    middle: float
    half: float

    def over(self, count: float) -> More:
        """Of each of so many."""
        return More(self.middle / count, self.half / count)


class LabHost(NamedTuple):
    """Hardware that a machine of the lab stands for.

    - `lab`: the machine, as in `simlib.lab.hardware.machines.LABS`.
    - `name`: the calibrated host; empty: none is published, and costs are drawn from their priors.
    - `architecture`: of the model; `alike`: others whose CLEAR is the same code.
    """

    lab: str
    name: str
    cost_group: str
    architecture: str
    alike: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What it is called in a table: one host may have two architectures of the model."""
        return f"{self.name} {self.architecture}" if self.name else f"{self.architecture}, costs from priors"

    def scenario(self, workload: Mapping[str, Any]) -> Scenario:
        """A guest of one vCPU there, with a workload."""
        host = {"host": {"name": self.name}, "cost_group": self.cost_group} if self.name else {}
        guest = {"memory_per_vcpu": MEMORY, "backing": "4k"}
        return Scenario.parse({**host, "guest": guest, "policy": {"architecture": self.architecture},
                               "workload": dict(workload)})  # fmt: skip


LAB_HOSTS = {
    "x86_64/npt": LabHost("x86-npt", "x86-published", "tdp", "x86-tdp"),
    "x86_64/shadow": LabHost("x86-shadow", "x86-published", "shadow", "x86-shadow-paging", ("x86-shadow",)),
    "arm64/vhe": LabHost("arm64-read", "ampere-altra", "fixed test", "arm64", ("arm64-2022",)),
    "riscv64/h": LabHost("riscv", "", "", "riscv"),
}
"""By the lab's machine."""

WORKLOADS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    f"CLEAR, vCPUs write {MEMORY} each": (
        {"kind": "clear_under_load"},
        ("clear_dirty_log_time", "longest_stall", "gap_p999"),
    ),
    f"dirty_log_perf_test -b {MEMORY}": ({"kind": "dirty_log_perf_test"}, ("dirty_memory_time",)),
}
"""What is predicted unless a scenario is given, and which metrics of it."""

UNSEEN = {
    "letting go": "each time that CLEAR lets go, the lock's cache line moves to a waiter and back: the model has that "
    "as calibrated (line_transfer); an order of waiters that the series changes is as the emulator's",
    "hold": "instructions that miss the cache take longer than those that the path had: the interval has how far "
    "architectures lie apart, not this series' own misses",
    "exit": "an exit from the guest costs hardware time that no instruction shows: only what the host executes is "
    "translated",
    "clear": "write-protecting a page that the cache does not hold takes a miss, here as often as before",
    "flush": "TLB invalidations: their number changes, and what each costs on hardware (interrupts on x86, broadcasts "
    "on arm64) is not in the lab's times",
    "mode": "readers of a rwlock share its line: the model has the host's calibrated transfers, not the emulator's",
}
"""What an emulator cannot see, by what changes."""


@dataclass(frozen=True)
class Effect:
    """What a series changes in terms of the model, on one machine.

    - `policies`: of the scenario without the series and with it, as tables of a scenario file.
    - `costs`: by cost: instructions more.
    - `walk`: instructions a page of a walk without the lock over those with it; 0: it takes the lock.
    - `unseen`: keys of `UNSEEN`.
    """

    policies: tuple[Mapping[str, Any], Mapping[str, Any]]
    costs: Mapping[str, More] = field(default_factory=dict)
    walk: float = 0.0
    unseen: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to carry."""
        return self.policies[0] == self.policies[1] and not self.costs


def effect_of(trial: Trial, machine: str) -> Effect:
    """What a trial's differences say of the model's policy and costs.

    - `machine`: one of `LAB_HOSTS`.

    >>> from simlib.lab.trial.data import read_trials
    >>> from simlib.measurements import load
    >>> effect_of(read_trials(load("tried"))["clear-batch"], "x86_64/shadow").policies[1]["clear_drop_when"]
    'pages >= 64'
    """
    if trial.kernel != COUNTED:
        return Effect(({}, {}))
    parked, loaded, sides = _Cell.of(trial, machine, "parked"), _Cell.of(trial, machine, "load"), (0, 1)
    before, after = ({**_clearing(parked, side), **_faults(parked, side)} for side in sides)
    alone, met = ([cell.sum(["clear"], "acquisitions", side) for side in sides] for cell in (parked, loaded))
    if alone[0] == alone[1] and met[1] > met[0]:  # only where somebody waits
        after["clear_drop_when"] = "waiters >= 1"
    unseen = ["mode"] * any(
        before.get(key) != after.get(key) for key in (before.keys() | after.keys()) - {"clear_drop_when"}
    )
    unseen += ["letting go"] * (
        "clear_drop_when" in after and before.get("clear_drop_when") != after["clear_drop_when"]
    )
    single = _Cell.of(trial, machine, "blocks")  # one vCPU: the clock is that of whoever runs
    costs = _costs(single, machine)
    walk = 0.0
    if after.get("clear_lock") == "lockless" != before.get("clear_lock"):
        pages = [parked.value("clear", "time a dirty page", side) for side in sides]
        walk = pages[1] / pages[0]
        costs.pop("clear_page", None)
    unseen += [kind for kind, cost in KINDS.items() if cost in costs]
    unseen += ["flush"] * any(one.quantity.of == "TLB" for one in trial.changed if one.machine == machine)
    return Effect((before, after), costs, walk, tuple(dict.fromkeys(unseen)))


@dataclass(frozen=True)
class _Cell:
    """The numbers of one cell of a trial, by what they are of; one that is not changed is as without the series."""

    numbers: Mapping[tuple[str, str], Difference]

    @classmethod
    def of(cls, trial: Trial, machine: str, cell: str) -> _Cell:
        """The numbers of a machine's cell."""
        own = (one for one in trial.differences if (one.machine, one.cell) == (machine, cell))
        return cls({(one.quantity.of, one.quantity.what): one for one in own})

    def value(self, of: str, what: str, side: int) -> float:
        """A number of the kernel without the series (side 0) or with it; 0 if no boot has it."""
        one = self.numbers.get((of, what))
        if one is None:
            return 0.0
        return statistics.median(one.changed if side and one.verdict == CHANGED else one.base)

    def sum(self, sites: Sequence[str], what: str, side: int) -> float:
        """Of the rounds, over call sites and modes."""
        return sum(self.value(f"{site} {mode} (rounds)", what, side) for site in sites for mode in MODES)

    def more(self, *numbers: tuple[str, str]) -> More:
        """How much more the kernel with the series has of some numbers together."""
        found = [one for at in numbers if (one := self.numbers.get(at)) is not None and one.verdict == CHANGED]
        middles = (statistics.median(one.changed) - statistics.median(one.base) for one in found)
        halves = (welch(np.array(one.base), np.array(one.changed))[0] for one in found)
        return More(sum(middles), math.hypot(*halves))


def _clearing(cell: _Cell, side: int) -> dict[str, Any]:
    """How CLEAR takes the lock on one side: what differs from a hold of the whole ioctl for write."""
    taken = {mode: cell.value(f"clear {mode} (rounds)", "acquisitions", side) for mode in MODES}
    pages, calls = cell.value("clear", "dirty pages", side), cell.value("clear", "calls", side)
    total = sum(taken.values())
    if not total:
        return {"clear_lock": "lockless"} if pages and cell.sum(["clear"], "acquisitions", 1 - side) else {}
    mode = max(taken, key=lambda one: taken[one])
    clear_drop_when = every(max(1, round(pages / total / WORD_PAGES)) * WORD_PAGES) if total > calls else every(0)
    return {"clear_lock": mode, "clear_drop_when": clear_drop_when}


def _faults(cell: _Cell, side: int) -> dict[str, Any]:
    """In which mode faults take the lock on one side, if that differs between both."""
    found: dict[str, Any] = {}
    fields = {"fault_fast": ("write_protect_fault",), "fault_slow": ("translation_fault", "split_fault")}
    for site, names in fields.items():
        modes = [_mode(cell, site, one) for one in (0, 1)]
        if modes[0] != modes[1]:
            found |= dict.fromkeys(names, modes[side])
    if "translation_fault" in found and not cell.sum(["fault_fast"], "acquisitions", 0):
        found.setdefault("write_protect_fault", found["translation_fault"])  # as every fault does
    return found


def _mode(cell: _Cell, site: str, side: int) -> str:
    """In which a site takes the lock; ``lockless`` if it does not."""
    taken = {
        mode: sum(cell.value(f"{site} {mode} ({when})", "acquisitions", side) for when in ("populate", "rounds"))
        for mode in MODES
    }
    return max(taken, key=lambda one: taken[one]) if any(taken.values()) else "lockless"


def _costs(cell: _Cell, machine: str) -> dict[str, More]:
    """Costs that differ, by as much as a trial tells at all, and by more than their intervals leave open."""
    pages = cell.value("clear", "dirty pages", 1)
    if not pages:
        return {}
    found: dict[str, tuple[float, More]] = {}  # with the whole that each is more of
    taken, held = (cell.sum(FAULT_SITES, what, 0) for what in ("acquisitions", "holds"))
    if taken and taken == cell.sum(FAULT_SITES, "acquisitions", 1):
        sites = [f"{site} {mode} (rounds)" for site in FAULT_SITES for mode in MODES]
        longer, written = cell.more(*((site, "holds") for site in sites)), cell.more(("write", "time"))
        outside = More(written.middle - longer.middle, math.hypot(written.half, longer.half))
        found["fault_hold"] = held / taken, longer.over(taken)
        found["fault_unlocked"] = (cell.value("write", "time", 0) - held) / pages, outside.over(pages)
    cleared = cell.more(("clear", "time"))
    if cleared.middle:  # what letting go takes is no part of a page
        let_go = cell.sum(["clear"], "acquisitions", 1) - cell.sum(["clear"], "acquisitions", 0)
        each = instruction_times().reacquire[LAB_HOSTS[machine].lab]
        left = More(cleared.middle - let_go * each, cleared.half)
        found["clear_page"] = cell.value("clear", "time", 0) / pages, left.over(pages)
    return {name: more for name, (whole, more) in found.items() if abs(more.middle) > max(more.half, RULER * whole)}


@dataclass(frozen=True, repr=False)
class OnHardware(Result):
    """What a series is predicted to change on hardware.

    - `frame`: ``machine`` (the lab's), ``host``, ``workload``, ``policy`` (``without``, ``with``), ``vcpus``,
      ``metric``, ``estimate``, ``low``, ``high``, ``unit``, ``change_percent``, ``change_low``, ``change_high``:
      intervals of `simlib.analysis.predict.LEVEL`, of the costs and of what an instruction takes.
    - `effects`: ``machine``, ``host``, ``what``, ``without``, ``with``, ``how``: what was carried.
    - `notes`: what an emulator cannot see of this series, and where nothing could be carried.
    """

    frame: pd.DataFrame
    effects: pd.DataFrame
    notes: tuple[str, ...]

    FIGURES: ClassVar[Mapping[str, Callable[[Any], pd.DataFrame]]] = {"over_vcpus": lambda found: found.curves()}

    def curves(self) -> pd.DataFrame:
        """The frame as the figure of curves takes it: a policy is a host and a kernel."""
        names = self.frame["host"] + ", " + self.frame["policy"]
        return self.frame.assign(policy=names, variant="")

    def readable(self) -> pd.DataFrame:
        """The frame for people to read: a row a point, both kernels beside each other, and only what changes.

        Returns: ``host``, ``workload``, ``vcpus``, ``metric``, ``without``, ``with``, ``change`` (with its interval).
        """
        key = ["host", "workload", "vcpus", "metric"]
        points = self.frame.to_dict("records")
        before = {tuple(row[name] for name in key): row for row in points if row["policy"] == WITHOUT}
        rows = [
            (*at, _value(before[at]), _value(row), change)
            for row in points
            for at in [tuple(row[name] for name in key)]
            if row["policy"] == WITH and (change := _change(row))
        ]
        return pd.DataFrame(rows, columns=[*key, WITHOUT, WITH, "change"])

    def summary(self) -> str:
        """Text for a mail: 72 columns."""
        lines = [f"On hardware (PREDICTED from what the lab counted, {LEVEL:.0%} intervals):"]
        lines += [
            f"  {row['host']}: {row['what']} {row['without']} -> {row['with']}"
            for row in self.effects.to_dict("records")
        ]
        shown = self.readable()
        for (host, workload), rows in self.frame.groupby(["host", "workload"], sort=False):
            mine = shown[(shown["host"] == host) & (shown["workload"] == workload)]
            same = [name for name in rows["metric"].unique() if name not in set(mine["metric"])]
            lines += wrapped(f"{host}, {workload}" + (f": no change of {', '.join(same)}" if same else ""), "  ")
            lines += [
                f"    {row['vcpus']:3} {row['metric']:20} {row['without']:>9} {row['with']:>9} {row['change']}"
                for row in mine.to_dict("records")
            ]
        return "\n".join([*lines, *(line for note in self.notes for line in wrapped(note, "  "))])


def _value(row: Mapping[Any, Any]) -> str:
    return say_seconds(row["estimate"]) if row["unit"] == "s" else f"{row['estimate']:.4g}"


def _change(row: Mapping[Any, Any]) -> str:
    """A change with its interval; nothing if it is none."""
    value, low, high = (row[name] for name in CHANGES)
    return "" if max(abs(low), abs(high)) < 0.5 else f"{value:+.0f} % ({low:+.0f} to {high:+.0f})"


def on_hardware(
    trial: Trial,
    scenario: Scenario | str | Path | None = None,
    *,
    fit: AnyFit | None = None,
    vcpus: Sequence[int] = VCPUS,
    metrics: Sequence[str] | None = None,
    seed: int = 1,
    progress: Progress | None = None,
) -> OnHardware:
    """Predict what a tried series does on the calibrated hosts: curves without it and with it, by one set of costs.

    Raises `InputError` for what `simlib.predict` refuses.

    - `scenario`: of one's own, or its file, instead of `WORKLOADS`: for the machines whose architecture it has.
    - `fit`: calibrated costs of one's own host. Default: the shipped ones.
    - `vcpus`, `metrics`, `seed`, `progress`: as in `simlib.predict`.
    """
    found = [machine for machine in trial.machines if machine in LAB_HOSTS]
    frames, effects, notes = list[pd.DataFrame](), list[tuple[str, ...]](), list[str]()
    for machine, share in zip(found, subprogresses(progress, [1 / max(1, len(found))] * len(found)), strict=True):
        host, effect = LAB_HOSTS[machine], effect_of(trial, machine)
        asked = list(_asked(host, scenario, metrics))
        if not asked:
            continue
        notes += [f"Not seen: {UNSEEN[kind]}." for kind in effect.unseen]
        if effect.nothing:
            notes.append(f"{machine}: nothing to carry, as {_why(trial, machine)}.")
            continue
        for workload, its, wanted in asked:
            carried, told = _carried(host, effect, its, wanted, (fit, vcpus, seed, share))
            frames.append(carried.assign(machine=machine, host=host.words, workload=workload))
            effects += [(machine, host.words, *row) for row in told]
    columns = ["machine", "host", "workload", "policy", "vcpus", "metric", "estimate", "low", "high", "unit",
               *CHANGES]  # fmt: skip
    frame = pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)
    table = pd.DataFrame(effects, columns=["machine", "host", "what", "without", "with", "how"])
    return OnHardware(frame, table.drop_duplicates(ignore_index=True), tuple(dict.fromkeys(notes)))


def _why(trial: Trial, machine: str) -> str:
    """Why a trial has nothing to carry."""
    if machine in trial.failures:
        return "it FAILS there"
    if trial.kernel != COUNTED:
        return f"a {trial.kernel} kernel does not say who takes mmu_lock"
    return "nothing that the model has differs"


def _asked(
    host: LabHost, scenario: Scenario | str | Path | None, metrics: Sequence[str] | None
) -> Iterator[tuple[str, Scenario, Sequence[str] | None]]:
    """What is predicted on a host: a name, the scenario without a series, and metrics."""
    if scenario is None:
        for name, (workload, usual) in WORKLOADS.items():
            yield name, host.scenario(workload), metrics or usual
        return
    own = as_scenario(scenario)
    for label, case in (dict(own.variants) or {"": own}).items():
        if case.policy.architecture in (host.architecture, *host.alike):
            yield label or case.workload.kind, case, metrics


def _carried(
    host: LabHost, effect: Effect, scenario: Scenario, metrics: Sequence[str] | None,
    how: tuple[AnyFit | None, Sequence[int], int, Progress | None],
) -> tuple[pd.DataFrame, list[tuple[str, str, str, str]]]:  # fmt: skip
    """The curves of one scenario, and what was carried to it."""
    fit, vcpus, seed, progress = how
    estimate, _ = choose_fit(scenario, fit)
    known = UncertainCosts.of(scenario, estimate).central().costs.given()
    before, after = (scenario.changed({"policy": dict(policy)}) if policy else scenario for policy in effect.policies)
    told = [(key, str(effect.policies[0].get(key, "")), str(value), "counted")
            for key, value in effect.policies[1].items() if effect.policies[0].get(key) != value]  # fmt: skip
    if effect.walk:
        page = known["clear_page"] * effect.walk
        after = after.with_costs(lockless_page=page)
        told.append(
            ("a page of the walk", f"{known['clear_page'] / 1000:.3g} ns", f"{page / 1000:.3g} ns", "instructions")
        )
    factors: dict[str, dict[str, float]] = {}
    table = instruction_times().ratios
    for cost, more in effect.costs.items():
        kind = next(kind for kind, name in KINDS.items() if name == cost)
        each, spread = _time_each(kind, host, table)
        middle = more.middle * each
        ends = [(more.middle + side * more.half) * each * by for side in (-1, 1) for by in (1 / spread, spread)]
        for name, longer in ((WITH, middle), ("low", min(ends)), ("high", max(ends))):
            factors.setdefault(name, {})[cost] = max(BOUNDS[cost][0], known[cost] + 1000 * longer) / known[cost]
        before_ns, after_ns = (f"{value / 1000:.4g} ns" for value in (known[cost], known[cost] + 1000 * middle))
        words = f"{more.middle:+.3g} instructions, {each:.2g} ns each (within × {spread:.2g})"
        told.append((cost, before_ns, after_ns, words))
    named = {WITHOUT: before, WITH: after} | ({"low": after, "high": after} if factors else {})
    asked = PredictionOptions(fit, metrics, LEVEL, seed, REPLICATIONS, PAGES_PER_VCPU, "drawn", progress, factors)
    frame, _, _ = curves_of(named, vcpus, asked)
    return _widened(frame), told


def _time_each(kind: str, host: LabHost, table: pd.DataFrame) -> tuple[float, float]:
    """Nanoseconds an instruction of a kind of action on a host, and the factor within which a new one lies."""
    own = table.query("kind == @kind and architecture == @host.architecture")
    translated = translate(kind, 1.0, table)
    return float(own["ns_per_instruction"].iloc[0]) if len(own) else translated.time_ns, translated.factor


def _widened(frame: pd.DataFrame) -> pd.DataFrame:
    """The curves with the doubt of what an instruction takes added, in squares of logarithms."""
    key = ["variant", "vcpus", "metric"]
    parts = {name: rows.set_index(key) for name, rows in frame.groupby("policy", sort=False)}
    if "low" not in parts:
        return frame
    mine = parts[WITH].copy()
    for low, centre, high in (("low", "estimate", "high"), ("change_low", "change_percent", "change_high")):
        base = 100.0 if centre == "change_percent" else 0.0
        at, ends = np.log(base + mine[centre]), [np.log(base + parts[name][centre]) for name in ("low", "high")]
        down = np.hypot(at - np.log(base + mine[low]), np.maximum(0, at - np.minimum(*ends)))
        up = np.hypot(np.log(base + mine[high]) - at, np.maximum(0, np.maximum(*ends) - at))
        mine[low], mine[high] = np.exp(at - down) - base, np.exp(at + up) - base
    rows = pd.concat([parts[WITHOUT].reset_index(), mine.reset_index()], ignore_index=True)
    return rows[list(frame.columns)]
