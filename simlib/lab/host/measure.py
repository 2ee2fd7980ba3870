# SPDX-License-Identifier: BSD-3-Clause
"""Measures a host: the designed cells, interleaved and repeated, with what else went on beside each.

Every repeat runs all cells in an order of its own, so that a slow change of the host touches all of them alike. Each
run is kept in a file of its own: what was cut off goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib.lab.cache import at_work, system_faults
from simlib.lab.experiment import parse_experiment
from simlib.lab.host import noise
from simlib.lab.host.design import MIB, PAGE, design, memory_per_vcpu
from simlib.lab.host.facts import HostFacts, parse_cpus, read_facts, tracking_of
from simlib.lab.host.program import StressProgram, build_program, find_given
from simlib.lab.native import PARAMETERS, native_target, run_native
from simlib.lab.records import Record, emulated_per_access, load_record, save_record, write_tables

NAME = "host"
"""First part of the names of a host's tables."""

REPEATS = (3, 20)
"""Fewest and most repeats of all cells."""

TRIES = 3
"""How often a noisy run is tried in all."""

BUSY_PERCENT = 10.0
"""A host whose CPUs other programs use more than this is not measured unasked."""

_WITHOUT_PML = "load KVM's module with pml=0, measure, and choose with --dirty-tracking pml"

_PILOT = ("base", "pause_us", "emulated_instructions_per_access")
"""What `_pilot` finds."""


@dataclass(frozen=True)
class MeasurementPlan:
    """How a host is to be measured."""

    source: Path | None = None
    """A kernel tree to build the selftest from. Default: the distribution's source package."""
    program: Path | None = None
    """The built selftest; then nothing is built."""
    cpus: str = ""
    """CPUs to use, as ``0-3,8``. Default: all that this process may use."""
    numa: int | None = None
    """Use the CPUs of this node, and so its memory."""
    hugepages: bool = False
    """Back guests with huge pages that are set aside (hugetlb)."""
    duration_s: float = 300.0
    """About how long to measure in all; at least `REPEATS` [0] repeats are made."""
    seed: int = 1
    """Of the order of the cells."""
    restart: bool = False
    """Begin anew, whatever the folder holds."""
    allow_busy: bool = False
    """Measure also if the host is busy with other things."""

    def chosen(self) -> tuple[int, ...]:
        """Numbers of the CPUs to use.

        Raises `InputError` if this process may not use one of them, or there is no such node.
        """
        allowed = sorted(os.sched_getaffinity(0))
        if self.cpus and self.numa is not None:
            raise InputError("--numa", self.numa, "cannot be given beside --cpus", "give one of them")
        if self.numa is not None:
            nodes = read_facts(allowed).nodes
            if str(self.numa) not in nodes:
                raise InputError("--numa", self.numa, "is no node of this host", f"known: {', '.join(nodes)}")
            return nodes[str(self.numa)]
        chosen = parse_cpus(self.cpus) if self.cpus else tuple(allowed)
        if missing := [str(cpu) for cpu in chosen if cpu not in allowed]:
            raise InputError("--cpus", self.cpus, f"{', '.join(missing)} cannot be used here", f"known: {allowed}")
        if not chosen:
            raise InputError("--cpus", self.cpus, "names none", "write 0-3,8")
        return chosen


@dataclass(frozen=True)
class HostMeasurement:
    """What measuring a host gave."""

    folder: Path
    """Holds ``host.json``, ``runs/`` and the tables."""
    facts: HostFacts
    records: list[Record]
    repeats: int
    """Whole repeats of all cells."""
    noisy: int
    """Runs that were noisy at every try: they are flagged, and not used."""
    tables: list[Path]


def measure_host(
    out: str | Path,
    plan: MeasurementPlan = MeasurementPlan(),
    *,
    name: str = NAME,
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> HostMeasurement:
    """Measure this host's own ``/dev/kvm``: its kernel as it is, no rights beyond those for ``/dev/kvm``.

    Raises `InputError` if this host has no usable ``/dev/kvm``, logs writes by itself or is busy, an option is wrong,
    or the folder holds another measurement. Raises `SimlibError` if a run fails, or another one is under way.

    - `out`: folder for what is measured. One that holds a part of it is continued.
    - `name`: first part of the tables' names.
    - `progress`: told what is being done, and the share of it that is done.
    """
    native_target()
    chosen = plan.chosen()
    with system_faults(), _pinned(chosen), at_work(alone=True):
        facts = read_facts(chosen)
        if tracking_of(facts.modules) == "pml":
            raise InputError("pml", "Y", "hides what a fault costs, as hardware notes writes by itself", _WITHOUT_PML)
        if plan.program:
            program = find_given(plan.program)
        else:
            program = build_program(plan.source, lambda text: progress(text, 0.0))
        if not plan.allow_busy:
            _refuse_busy(chosen)
        session = _Session(Path(out), facts, program, plan, progress)
        records, repeats = session.run()
        tables = write_tables(records, session.folder, name)
    bad = sum(record.content["noise"]["quiet"] != "true" for record in records)
    return HostMeasurement(session.folder, facts, records, repeats, bad, tables)


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Run, with everything that is started, on these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _refuse_busy(cpus: Sequence[int]) -> None:
    """Refuse a host that does other things."""
    before = noise.look(cpus)
    time.sleep(1.0)
    seen = noise.between(before, noise.look(cpus), len(cpus))
    if seen.foreign_percent > BUSY_PERCENT or seen.steal_percent > BUSY_PERCENT:
        raise InputError(
            "this host", f"CPUs {','.join(map(str, cpus))}", seen.words() + ": nothing can be timed beside that",
            "wait, end them, choose other CPUs with --cpus, or measure all the same with --allow-busy",
        )  # fmt: skip


def _pilot(facts: HostFacts, program: Path, hugepages: bool) -> dict[str, Any]:
    """Whether the guest's code has to run in user mode, and how long its vCPUs need to write all pages."""
    base: dict[str, Any] = {"backing": "anonymous_hugetlb"} if hugepages else {}
    emulated = emulated_per_access(_try(program, {**base, "memory_per_vcpu": "2M", "rounds": 1}))
    if emulated > 1:  # instructions an access: then no access goes through page tables
        base["user"] = True
        if emulated_per_access(_try(program, {**base, "memory_per_vcpu": "2M", "rounds": 1})) > 1:
            raise SimlibError(
                "this host's KVM emulates the guest's instructions one by one, in user mode, too: "
                "no fault takes mmu_lock, so there is nothing to measure"
            )
    record = _try(program, {**base, "memory_per_vcpu": "8M", "rounds": 3})
    ioctls = record.imported.tables["ioctls"].frame
    writes = ioctls[(ioctls["name"] == "write") & (ioctls["round"] > 1)]
    fault_us = float(writes["duration_ns"].median()) / (8 * MIB / PAGE) / 1000
    needed = 4 * fault_us * memory_per_vcpu(facts) / PAGE
    return {"base": base, "pause_us": round_up(max(needed, 20_000)), "emulated_instructions_per_access": emulated}


def round_up(value: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …

    >>> round_up(163_840)
    200000
    """
    power = 10 ** math.floor(math.log10(value))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _try(program: Path, test: dict[str, Any]) -> Record:
    """Run the test once, and keep nothing."""
    table = {"name": "pilot", "target": native_target(), "timeout_s": 120, "test": {"parked": True, **test}}
    cell = next(parse_experiment(table).cells())
    outputs = list(run_native(cell, program).outputs)
    return Record({"outputs": outputs, "test_line": 0, "program": cell.experiment.program})


@dataclass
class _Session:
    """The runs of a host."""

    folder: Path
    facts: HostFacts
    program: StressProgram
    plan: MeasurementPlan
    progress: Callable[[str, float], None]
    spent_s: float = 0.0
    """Time that the runs took so far, those of before included."""

    def __post_init__(self) -> None:
        """Lay out the cells."""
        pilot = self._begun()
        switch = PARAMETERS / "dirty_log_clear_batch"
        studies = design(self.facts, pilot["pause_us"], pilot["base"], os.access(switch, os.W_OK))
        self.cells = [cell for study in studies for cell in study.cells()]
        self.provenance = {
            "kernel": self.facts.kernel,
            "machine": self.facts.machine,
            "cpu": self.facts.cpu,
            "cpus": len(self.facts.cpus),
            "patched": self.facts.patched,
            "host": self.facts.as_dict(),
            "program": dict(self.program.provenance),
            "pilot": pilot,
        }

    def _begun(self) -> dict[str, Any]:
        """What the folder says of how this host runs guests; if nothing was begun there, a look at it."""
        listing, fresh = self.folder / "host.json", self.plan.restart
        options = {"hugepages": self.plan.hugepages, "seed": self.plan.seed}
        same = {"facts": self.facts.as_dict(), "program": dict(self.program.provenance), "options": options}
        if listing.is_file() and not fresh:
            try:
                state = json.loads(listing.read_text("utf-8"))
            except ValueError:
                raise SimlibError(
                    f"{listing} is damaged: choose another folder, or begin anew with --restart"
                ) from None
            for what, value in same.items():
                if state.get(what) != value:
                    rule = f"holds a measurement with other {what}"
                    raise InputError("--out", str(self.folder), rule, "choose another folder, or --restart")
            return {key: state[key] for key in _PILOT}
        for old in sorted((self.folder / "runs").glob("*.json")) if fresh else ():
            old.unlink()
        self.progress("looking at how this host runs guests", 0.0)
        pilot = _pilot(self.facts, self.program.path, self.plan.hugepages)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(listing, json.dumps(same | pilot, indent=1) + "\n")
        return pilot

    def run(self) -> tuple[list[Record], int]:
        """Run repeat after repeat until the time is over; the records, and the number of whole repeats."""
        records, lengths = list[Record](), list[float]()
        least, most = REPEATS
        for repeat in range(1, most + 1):
            mine = []
            # in an order of this repeat's own
            order = np.random.default_rng([self.plan.seed, repeat]).permutation(len(self.cells)).tolist()
            for place, number in enumerate(order, 1):
                mine.append(self._cell(repeat, place, number))
                self.spent_s += float(mine[-1].content["noise"]["wall_s"])
            records += mine
            lengths.append(sum(float(record.content["noise"]["wall_s"]) for record in mine))
            if repeat >= least and self.spent_s + float(np.median(lengths)) > self.plan.duration_s:
                return records, repeat
        return records, most

    def _cell(self, repeat: int, place: int, number: int) -> Record:
        """The record of a cell by its place in the design, run unless it was."""
        cell = self.cells[number]
        seeded = replace(cell, test={**cell.test, "seed": repeat})
        path = self.folder / "runs" / f"{repeat:02}-{number:02}-{cell.experiment.name}.json"
        if path.is_file():
            return load_record(path)
        share = min(self.spent_s / max(self.plan.duration_s, 1.0), 0.999)
        left = max(self.plan.duration_s - self.spent_s, 0.0)
        text = f"repeat {repeat}, {cell.label}; {left / 60:.0f} min left"
        self.progress(text, share)
        for _ in range(TRIES):
            before = noise.look(self.facts.cpus)
            outcome = run_native(seeded, self.program.path, progress=lambda seconds: self.progress(text, share))
            seen = noise.between(before, noise.look(self.facts.cpus), len(self.facts.cpus))
            if seen.quiet:
                break
        row = {"repeat": repeat, "place": place, **asdict(seen), "quiet": str(seen.quiet).lower()}
        return save_record(path, seeded, [outcome], self.provenance, row)
