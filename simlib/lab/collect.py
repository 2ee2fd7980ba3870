# SPDX-License-Identifier: BSD-3-Clause
"""Run all cells of an experiment, with their repeats: in parallel emulators, or one after the other on this host."""

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
from simlib.lab.cache import lab_dir, lab_lock, translate_os_errors
from simlib.lab.experiment import Cell, Experiment
from simlib.lab.native import host_provenance, native_target, run_native
from simlib.lab.process import silent
from simlib.lab.qemu import Qemu, command_line, find_qemu, portable_command
from simlib.lab.records import Record, load_record, save_record
from simlib.lab.targets import find_target


@dataclass(frozen=True)
class Collected:
    """Records of the cells of an experiment."""

    records: list[Record]
    """In the order of the cells, without those that failed."""
    failures: dict[str, str]
    """Reason for each failure, by the cell's label."""


def collect(
    experiments: Sequence[Experiment], *, jobs: int = 0, restart: bool = False, progress: Progress = silent
) -> Collected:
    """Run every cell that has no result yet; a cell that fails does not stop the others.

    Raises `InputError`, before any boot, if a kernel is not built or QEMU is missing. Raises `SimlibError` if another
    process is building in the lab.

    - `jobs`: concurrent boots, each on its own core; 0: one per core.
    - `restart`: run cells again even if they have results.
    """
    emulators = {spec.target: find_qemu(find_target(spec.target)) for spec in experiments}
    with lab_lock(exclusive=False):
        kernels = [(spec, find_built(spec.target, spec.kernel)) for spec in experiments]
        boots = [Boot(cell, built, emulators[spec.target]) for spec, built in kernels for cell in spec.cells()]
        results = run_boots(boots, jobs=jobs, restart=restart, progress=progress)
    failures = {task.cell.label: why for task, why in zip(boots, results, strict=True) if isinstance(why, str)}
    return Collected([result for result in results if not isinstance(result, str)], failures)


@dataclass(frozen=True)
class Boot:
    """A cell with its kernel and its emulator."""

    cell: Cell
    built: Built
    qemu: Qemu

    @property
    def path(self) -> Path:
        """Path of the result, named after the hash of all inputs that determine it."""
        target = find_target(self.cell.experiment.target)
        command = portable_command(command_line(self.qemu, self.cell, target, self.built, "initramfs.cpio"))
        key = self.cell.key({**self.built.provenance, "qemu": self.qemu.text, "command": command})
        return lab_dir() / "results" / self.cell.experiment.name / f"{key}.json"


def run_boots(
    boots: Sequence[Boot], *, jobs: int = 0, restart: bool = False, progress: Progress | None = None
) -> list[Record | str]:
    """Run cells that have no result yet, as `collect` does; the caller must hold `lab_lock`.

    Returns: the record of each boot, or the reason why it failed.
    """
    cores = sorted(os.sched_getaffinity(0))
    idle_cores: queue.Queue[int] = queue.Queue()
    for core in cores[: jobs or len(cores)]:
        idle_cores.put(core)

    def run_boot(task: Boot, check: parallel.Check) -> Record | str:
        cell, repeats = task.cell, task.cell.experiment.repeats
        try:
            with translate_os_errors():
                path = task.path
                if path.is_file() and not restart:
                    record = load_record(path)
                    if len(record.content["digests"]) >= repeats:
                        return record
                core = idle_cores.get()
                try:
                    target = find_target(task.built.target)
                    outcomes = [boot(cell, target, task.built, task.qemu, core, check) for _ in range(repeats)]
                finally:
                    idle_cores.put(core)
                return save_record(path, cell, outcomes, {**task.built.provenance, "qemu": task.qemu.text})
        except RunInterruptedError:
            raise
        except SimlibError as error:
            return str(error)

    tasks = [partial(run_boot, task) for task in boots]
    return parallel.run_all(tasks, [task.cell.label for task in boots], progress, workers=idle_cores.qsize())


def collect_native(experiments: Sequence[Experiment], *, progress: Progress = silent) -> Collected:
    """Run every cell on this host's ``/dev/kvm``, one after the other; earlier results are not reused.

    Raises `InputError` if this host has no usable ``/dev/kvm``, or the selftests are not built for it. Raises
    `SimlibError` if another process uses the lab: two runs would disturb each other's times and parameters.
    """
    target = native_target()
    for spec in experiments:
        if spec.target != target:
            raise InputError(f"{spec.name}: target", spec.target, f"this host is {target}", "omit --native")
    collected = Collected([], {})
    cells = [cell for spec in experiments for cell in spec.cells()]
    with lab_lock(exclusive=True):
        host = host_provenance()
        for count, cell in enumerate(cells):
            program = find_program(target, cell.experiment.program)
            folder = lab_dir() / "native" / cell.experiment.name / cell.key(host)
            progress(cell.label, count / len(cells))
            try:
                with translate_os_errors():
                    outcomes = [run_native(cell, program, folder) for _ in range(cell.experiment.repeats)]
                    collected.records.append(save_record(folder / "record.json", cell, outcomes, host))
            except InputError:
                raise
            except SimlibError as error:
                collected.failures[cell.label] = str(error)
    return collected
