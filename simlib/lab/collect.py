# SPDX-License-Identifier: BSD-3-Clause
"""Runs an experiment's whole matrix: in parallel, resumable, every cell as often as it must repeat itself."""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simlib._lib import parallel
from simlib._lib.errors import InputError, RunInterruptedError, SimlibError
from simlib._lib.parallel import Progress
from simlib.lab.boot import boot
from simlib.lab.build import Built, find_built, find_program
from simlib.lab.cache import at_work, lab_dir, system_faults
from simlib.lab.experiment import Cell, Experiment
from simlib.lab.native import host_provenance, native_target, run_native
from simlib.lab.qemu import Qemu, command_line, find_qemu, shown
from simlib.lab.records import Record, load_record, save_record
from simlib.lab.targets import find_target


@dataclass(frozen=True)
class Collected:
    """What a matrix gave."""

    records: list[Record]
    """In the order of the cells; without those that failed."""
    failures: dict[str, str]
    """Label of each cell that failed, with the reason."""


def collect(
    experiments: Sequence[Experiment],
    *,
    jobs: int = 0,
    restart: bool = False,
    progress: Progress = lambda label, share: None,
) -> Collected:
    """Run every cell that has no result yet.

    Returns: Cells that fail do not stop the others. Raises `InputError` if a kernel is not built or QEMU is missing:
    before anything is run. Raises `SimlibError` if the lab is being built in.

    - `jobs`: boots at a time, each on a core of its own; 0: one for every core.
    - `restart`: run the cells again even if their results are there.
    - `progress`: told the label of the cell that ended last and the share that is done.
    """
    emulators = {spec.target: find_qemu(find_target(spec.target)) for spec in experiments}
    with at_work(alone=False):
        kernels = [(spec, find_built(spec.target, spec.kernel)) for spec in experiments]
        boots = [Boot(cell, built, emulators[spec.target]) for spec, built in kernels for cell in spec.cells()]
        found = run_boots(boots, jobs=jobs, restart=restart, progress=progress)
    labels = [one.cell.label for one in boots]
    failures = {label: one for label, one in zip(labels, found, strict=True) if isinstance(one, str)}
    return Collected([one for one in found if not isinstance(one, str)], failures)


@dataclass(frozen=True)
class Boot:
    """A cell, the kernel that it is run on, and what emulates the machine."""

    cell: Cell
    built: Built
    qemu: Qemu

    @property
    def path(self) -> Path:
        """Where the result lies: named by the hash of all that determines it."""
        target = find_target(self.cell.experiment.target)
        command = shown(command_line(self.qemu, self.cell, target, self.built, "initramfs.cpio"))
        key = self.cell.key({**self.built.provenance, "qemu": self.qemu.text, "command": command})
        return lab_dir() / "results" / self.cell.experiment.name / f"{key}.json"


def run_boots(
    boots: Sequence[Boot], *, jobs: int = 0, restart: bool = False, progress: Progress | None = None
) -> list[Record | str]:
    """Run cells that have no result yet, while the lab is held (`at_work`).

    Returns: For each its record, or why it failed.

    - `jobs`, `restart`, `progress`: as in `collect`.
    """
    cores = sorted(os.sched_getaffinity(0))
    free: queue.Queue[int] = queue.Queue()
    for core in cores[: jobs or len(cores)]:
        free.put(core)

    def work(one: Boot, check: parallel.Check) -> Record | str:
        cell, repeats = one.cell, one.cell.experiment.repeats
        try:
            with system_faults():
                path = one.path
                if path.is_file() and not restart:
                    known = load_record(path)
                    if len(known.content["digests"]) >= repeats:
                        return known
                core = free.get()
                try:
                    target = find_target(one.built.target)
                    outcomes = [boot(cell, target, one.built, one.qemu, core, check) for _ in range(repeats)]
                finally:
                    free.put(core)
                return save_record(path, cell, outcomes, {**one.built.provenance, "qemu": one.qemu.text})
        except RunInterruptedError:
            raise
        except SimlibError as error:
            return str(error)

    tasks = [partial(work, one) for one in boots]
    return parallel.run_all(tasks, [one.cell.label for one in boots], progress, workers=free.qsize())


def collect_native(experiments: Sequence[Experiment], *, progress: Progress = lambda label, share: None) -> Collected:
    """Run every cell on this host's own ``/dev/kvm``, one after the other, and keep nothing from before.

    Raises `InputError` if this host has no usable ``/dev/kvm``, or the selftests are not built for it. Raises
    `SimlibError` if the lab is at work already: two runs would spoil each other's times and switches.

    - `progress`: told the label of the cell and the share that is done.
    """
    target = native_target()
    for spec in experiments:
        if spec.target != target:
            raise InputError(f"{spec.name}: target", spec.target, f"this host is {target}", "leave out --native")
    found = Collected([], {})
    cells = [cell for spec in experiments for cell in spec.cells()]
    with at_work(alone=True):
        host = host_provenance()
        for count, cell in enumerate(cells):
            program = find_program(target, cell.experiment.program)
            folder = lab_dir() / "native" / cell.experiment.name / cell.key(host)
            progress(cell.label, count / len(cells))
            try:
                with system_faults():
                    outcomes = [run_native(cell, program, folder) for _ in range(cell.experiment.repeats)]
                    found.records.append(save_record(folder / "record.json", cell, outcomes, host))
            except InputError:
                raise
            except SimlibError as error:
                found.failures[cell.label] = str(error)
    return found
