# SPDX-License-Identifier: BSD-3-Clause
"""Measure a host: run the designed cells, interleaved and repeated, and record disturbances during each run.

Each repeat runs all cells in a different random order, so that a slow change in the host affects all cells equally.
Each run is saved in its own file, so that an interrupted measurement continues where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib._lib.parallel import Progress
from simlib.lab.cache import lab_lock, translate_os_errors
from simlib.lab.experiment import parse_experiment
from simlib.lab.host import noise
from simlib.lab.host.design import MIB, design, memory_per_vcpu
from simlib.lab.host.facts import HostFacts, dirty_tracking_of, parse_cpus, read_facts
from simlib.lab.host.program import StressProgram, build_program, check_given_program
from simlib.lab.native import PARAMETERS, native_target, run_native
from simlib.lab.process import silent
from simlib.lab.record_tables import emulated_per_access, write_tables
from simlib.lab.records import Record, load_record, save_record
from simlib.vmm.qemu_rules import PAGE

NAME = "host"
"""Default prefix of the names of a host's tables."""

REPEATS = (3, 20)
"""Minimum and maximum number of repeats of all cells."""

BUSY_PERCENT = 10.0
"""Maximum percentage of the CPU time that other programs use; a busier host needs `allow_busy`."""


@dataclass(frozen=True)
class MeasurementPlan:
    """Options of a measurement."""

    source: Path | None = None
    """Kernel tree from which the selftest is built. Default: the distribution's source package."""
    program: Path | None = None
    """A built selftest."""
    cpus: str = ""
    """CPUs to use, such as ``0-3,8``. Default: all CPUs that this process may use."""
    numa: int | None = None
    """Use the CPUs of this NUMA node, so that Linux allocates the guest's memory on it."""
    hugepages: bool = False
    """Back guests with reserved huge pages (hugetlb)."""
    duration_s: float = 300.0
    """Approximate total duration; at least `REPEATS` [0] repeats are run."""
    seed: int = 1
    """Random seed for the order of the cells."""
    restart: bool = False
    """Discard the measurement in the folder and start again."""
    allow_busy: bool = False
    """Measure even if other programs use the CPUs."""

    def selected_cpus(self) -> tuple[int, ...]:
        """Return the numbers of the CPUs to use.

        Raises `InputError` if this process may not use one of them, or the node does not exist.
        """
        allowed = sorted(os.sched_getaffinity(0))
        if self.cpus and self.numa is not None:
            raise InputError("--numa", self.numa, "cannot be combined with --cpus", "give one of the two")
        if self.numa is not None:
            nodes = read_facts(allowed).nodes
            if str(self.numa) not in nodes:
                raise InputError("--numa", self.numa, "is not a node of this host", f"known: {', '.join(nodes)}")
            return nodes[str(self.numa)]
        cpus = parse_cpus(self.cpus) if self.cpus else tuple(allowed)
        if missing := [str(cpu) for cpu in cpus if cpu not in allowed]:
            rule = f"this process may not use CPU {', '.join(missing)}"
            raise InputError("--cpus", self.cpus, rule, f"choose from {', '.join(map(str, allowed))}")
        if not cpus:
            raise InputError("--cpus", self.cpus, "names no CPU", "write 0-3,8")
        return cpus


@dataclass(frozen=True)
class HostMeasurement:
    """Result of measuring a host."""

    folder: Path
    """Folder with ``host.json``, ``runs/`` and the tables."""
    facts: HostFacts
    records: list[Record]
    repeats: int
    """Number of complete repeats of all cells."""
    noisy: int
    """Number of runs that were noisy at every attempt; they are flagged and not used."""
    tables: list[Path]


def measure_host(
    out: str | Path, plan: MeasurementPlan = MeasurementPlan(), *, name: str = NAME, progress: Progress = silent
) -> HostMeasurement:
    """Measure this host's ``/dev/kvm`` with its current kernel and no privileges beyond access to ``/dev/kvm``.

    Raises `InputError` if this host has no usable ``/dev/kvm``, uses PML, or is busy, if an option is wrong, or if the
    folder holds another measurement. Raises `SimlibError` if a run fails, or another measurement is running.

    - `out`: folder for the measurements; an incomplete measurement in it is continued.
    - `name`: prefix of the tables' names.
    """
    native_target()
    cpus = plan.selected_cpus()
    with translate_os_errors(), _pinned(cpus), lab_lock(exclusive=True):
        facts = read_facts(cpus)
        if dirty_tracking_of(facts.modules) == "pml":
            rule = "must be off while measuring, because with PML the hardware logs writes without faults"
            hint = "load KVM's module with pml=0 and measure; then run simlib choose with --dirty-tracking pml"
            raise InputError("pml", "Y", rule, hint)
        if plan.program:
            program = check_given_program(plan.program)
        else:
            program = build_program(plan.source, lambda text: progress(text, 0.0))
        if not plan.allow_busy:
            _refuse_busy(cpus)
        session = _Session(Path(out), facts, program, plan, progress)
        records, repeats = session.run()
        tables = write_tables(records, session.folder, name)
    noisy = sum(record.content["noise"]["quiet"] != "true" for record in records)
    return HostMeasurement(session.folder, facts, records, repeats, noisy, tables)


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Pin this process, and the processes that it starts, to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _refuse_busy(cpus: Sequence[int]) -> None:
    before = noise.take_snapshot(cpus)
    time.sleep(1.0)
    noise_now = noise.noise_between(before, noise.take_snapshot(cpus), len(cpus))
    if noise_now.foreign_percent > BUSY_PERCENT or noise_now.steal_percent > BUSY_PERCENT:
        raise InputError(
            "this host", f"CPUs {','.join(map(str, cpus))}", noise_now.description + ": times would not be reliable",
            "wait, stop these programs, select other CPUs with --cpus, or measure anyway with --allow-busy",
        )  # fmt: skip


def _pilot(facts: HostFacts, program: Path, hugepages: bool) -> dict[str, Any]:
    """Determine whether the guest must run in user mode, and the time that its vCPUs take to write all pages."""
    base: dict[str, Any] = {"backing": "anonymous_hugetlb"} if hugepages else {}
    emulated = emulated_per_access(_run_once(program, {**base, "memory_per_vcpu": "2M", "rounds": 1}))
    if emulated > 1:  # instructions per access: KVM emulates them, and no access uses page tables
        base["user"] = True
        if emulated_per_access(_run_once(program, {**base, "memory_per_vcpu": "2M", "rounds": 1})) > 1:
            raise SimlibError(
                "this host's KVM emulates every instruction of the guest, even in user mode: "
                "no fault takes mmu_lock, so there is nothing to measure"
            )
    record = _run_once(program, {**base, "memory_per_vcpu": "8M", "rounds": 3})
    ioctls = record.imported.tables["ioctls"].frame
    writes = ioctls[(ioctls["name"] == "write") & (ioctls["round"] > 1)]
    fault_us = float(writes["duration_ns"].median()) / (8 * MIB / PAGE) / 1000
    needed = 4 * fault_us * memory_per_vcpu(facts) / PAGE
    return {"base": base, "pause_us": round_up(max(needed, 20_000)), "emulated_instructions_per_access": emulated}


def round_up(value: float) -> int:
    """Round up to 1, 2, 5, 10, 20, 50, …

    >>> round_up(163_840)
    200000
    """
    power = 10 ** math.floor(math.log10(value))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _run_once(program: Path, test: dict[str, Any]) -> Record:
    table = {"name": "pilot", "target": native_target(), "timeout_s": 120, "test": {"parked": True, **test}}
    cell = next(parse_experiment(table).cells())
    outputs = list(run_native(cell, program).outputs)
    return Record({"outputs": outputs, "test_line": 0, "program": cell.experiment.program})


@dataclass
class _Session:
    """Runs of a measurement."""

    folder: Path
    facts: HostFacts
    program: StressProgram
    plan: MeasurementPlan
    progress: Progress
    spent_s: float = 0.0
    """Total duration of the runs, including those of earlier sessions."""

    def __post_init__(self) -> None:
        pilot = self._load_or_start()
        switch = PARAMETERS / "dirty_log_clear_batch"
        studies = design(self.facts, pilot["pause_us"], pilot["base"], os.access(switch, os.W_OK))
        self.cells = [cell for study in studies for cell in study.cells()]
        self.provenance = {
            **{name: getattr(self.facts, name) for name in ("kernel", "machine", "cpu")},
            "cpus": len(self.facts.cpus),
            "patched": self.facts.patched,
            "host": self.facts.as_dict(),
            "program": dict(self.program.provenance),
            "pilot": pilot,
        }

    def _load_or_start(self) -> dict[str, Any]:
        """Load the pilot's result from the folder if it has a measurement; if not, run the pilot and save it."""
        listing, restart = self.folder / "host.json", self.plan.restart
        options = {"hugepages": self.plan.hugepages, "seed": self.plan.seed}
        identity = {"facts": self.facts.as_dict(), "program": dict(self.program.provenance), "options": options}
        if listing.is_file() and not restart:
            try:
                state = json.loads(listing.read_text("utf-8"))
            except ValueError:
                hint = "choose another folder, or start again with --restart"
                raise SimlibError(f"{listing} is damaged: {hint}") from None
            for what, value in identity.items():
                if state.get(what) != value:
                    rule = f"holds a measurement with different {what} (host.json)"
                    raise InputError("--out", str(self.folder), rule, "choose another folder, or use --restart")
            return {key: state[key] for key in ("base", "pause_us", "emulated_instructions_per_access")}
        for path in sorted((self.folder / "runs").glob("*.json")) if restart else ():
            path.unlink()
        self.progress("checking how this host runs guests", 0.0)
        pilot = _pilot(self.facts, self.program.path, self.plan.hugepages)
        write_text(listing, json.dumps(identity | pilot, indent=1) + "\n")
        return pilot

    def run(self) -> tuple[list[Record], int]:
        """Run repeats until the time is up; return the records and the number of complete repeats."""
        records, durations_s = list[Record](), list[float]()
        min_repeats, max_repeats = REPEATS
        for repeat in range(1, max_repeats + 1):
            repeat_records = []
            order = np.random.default_rng([self.plan.seed, repeat]).permutation(len(self.cells)).tolist()
            for place, number in enumerate(order, 1):
                repeat_records.append(self._measure_cell(repeat, place, number))
                self.spent_s += float(repeat_records[-1].content["noise"]["wall_s"])
            records += repeat_records
            durations_s.append(sum(float(record.content["noise"]["wall_s"]) for record in repeat_records))
            if repeat >= min_repeats and self.spent_s + float(np.median(durations_s)) > self.plan.duration_s:
                return records, repeat
        return records, max_repeats

    def _measure_cell(self, repeat: int, place: int, number: int) -> Record:
        """Return the record of a cell, given by its number in the design; run the cell if it has no record."""
        cell = self.cells[number]
        seeded = replace(cell, test={**cell.test, "seed": repeat})
        path = self.folder / "runs" / f"{repeat:02}-{number:02}-{cell.experiment.name}.json"
        if path.is_file():
            return load_record(path)
        share = min(self.spent_s / max(self.plan.duration_s, 1.0), 0.999)
        remaining_s = max(self.plan.duration_s - self.spent_s, 0.0)
        text = f"repeat {repeat}, {cell.label}; {remaining_s / 60:.0f} min left"
        self.progress(text, share)
        for _ in range(3):  # attempts to run a noisy cell
            before = noise.take_snapshot(self.facts.cpus)
            outcome = run_native(seeded, self.program.path, progress=lambda seconds: self.progress(text, share))
            run_noise = noise.noise_between(before, noise.take_snapshot(self.facts.cpus), len(self.facts.cpus))
            if run_noise.quiet:
                break
        row = {"repeat": repeat, "place": place, **asdict(run_noise), "quiet": str(run_noise.quiet).lower()}
        return save_record(path, seeded, [outcome], self.provenance, row)
