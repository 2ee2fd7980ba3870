# SPDX-License-Identifier: BSD-3-Clause
"""Tries kernels on one machine: builds their layouts, boots the cells on each, and keeps what each gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simlib._lib.errors import SimlibError
from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.build import Built
from simlib.lab.collect import Boot, run_boots
from simlib.lab.experiment import Cell, ExperimentRow
from simlib.lab.qemu import Qemu
from simlib.lab.records import Record, split_record
from simlib.lab.source import Source
from simlib.lab.trial.cells import CHECK, TrialDesign, cells, designs, target_of
from simlib.lab.trial.differences import Difference, compare
from simlib.lab.trial.kernels import COUNTED, Kernel, build_kernel, made_with
from simlib.lab.trial.quantities import TrialQuantity, quantities

Runs = dict[str, list[dict[TrialQuantity, float]]]
"""What a kernel's boots gave, by the cell in words: the numbers of each run."""


@dataclass(frozen=True)
class How:
    """How a machine is tried: as in `simlib.lab.try_series`."""

    quick: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    of_both: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = COUNTED
    jobs: int = 0


@dataclass
class BootedKernels:
    """What one machine said.

    - `images`: hashes of the kernel without the series and the one with it.
    - `failed`: what the latter did wrong.
    - `kernel`: what both are made with and booted by: ``configuration_sha256``, ``compiler``, ``qemu``, ``command``.
    """

    images: tuple[str, str] = ("", "")
    failed: str = ""
    found: Sequence[Difference] = ()
    boots: int = 0
    kernel: Mapping[str, str] = field(default_factory=dict)


def steps(progress: Progress | None) -> Callable[[str], None]:
    """Progress of steps whose share nobody knows."""
    return lambda what: progress(what, 0.0) if progress else None


def try_on(
    machine: str, source: Source, both: tuple[Kernel, Kernel], qemu: Qemu, how: How, progress: Progress | None
) -> BootedKernels:
    """Try a series on one machine.

    Raises `SimlibError` if a kernel does not compile, or the one without the series does not run.
    """
    own = list(designs(machine, how.quick))
    building, checking, booting = subprogresses(progress, [0.1, 0.1, 0.8])  # as where the kernels were compiled before
    built = [layouts_of(machine, source, kernel, 1, building) for kernel in both]
    images = [str(one.provenance["image_sha256"]) for [one] in built]
    tried = BootedKernels((images[0], images[1]))
    if images[0] == images[1] and not how.parameters:
        return tried
    tried.kernel = {**made_with(source, target_of(machine), how.kernel), "qemu": qemu.text}
    boot(machine, [CHECK], built, qemu, how, checking, tried)
    if tried.failed:
        return tried
    most = max(design.layouts for design in own)
    built = [layouts_of(machine, source, kernel, most, building) for kernel in both]
    if building:
        building(f"{machine}: built", 1.0)
    runs = boot(machine, own, built, qemu, how, booting, tried)
    labels = dict.fromkeys(label for each in runs for label in each)
    tried.found = [one for label in labels for one in compare(machine, label, *(each.get(label, []) for each in runs))]
    return tried


def layouts_of(machine: str, source: Source, kernel: Kernel, count: int, progress: Progress | None) -> list[Built]:
    """So many layouts of a kernel."""
    target = target_of(machine)
    return [build_kernel(source, replace(kernel, layout=one), target, steps(progress)) for one in range(count)]


def boot(
    machine: str, own: Sequence[TrialDesign], built: Sequence[Sequence[Built]], qemu: Qemu, how: How,
    progress: Progress | None, tried: BootedKernels,
) -> tuple[Runs, Runs]:  # fmt: skip
    """What each kernel's boots gave; counted in `tried`, and what the changed kernel did wrong.

    Raises `SimlibError` if the kernel without the series does not run.

    - `own`: the designs that are run.
    - `built`: the layouts of the kernel without the series, if that is run, and of the one with it.
    """
    todo = list(_rows(machine, own, built, how))
    tried.boots += len(todo)
    steps(progress)(f"{machine}: booting {len(todo)} times")
    records = run_boots([Boot(row, image, qemu) for _, row, image in todo], jobs=how.jobs, progress=progress)
    runs: tuple[Runs, Runs] = ({}, {})
    for (side, row, _), record in zip(todo, records, strict=True):
        if isinstance(record, Record):
            tried.kernel = {"command": str(record.content["command"]), **tried.kernel}
            for one, cell in zip(split_record(record, row), row.cells, strict=True):
                runs[side].setdefault(_label(cell), []).append(quantities(one))
        elif side == 0:
            raise SimlibError(f"the kernel without the series fails on {machine}: {record}")
        else:
            tried.failed = tried.failed or record
    return runs


def _rows(
    machine: str, own: Sequence[TrialDesign], built: Sequence[Sequence[Built]], how: How
) -> Iterator[tuple[int, ExperimentRow, Built]]:
    """Number of the kernel, cells and image of each boot."""
    for side, layouts in enumerate(built):
        parameters = {**how.of_both, **(how.parameters if side else {})}
        for word in dict.fromkeys(design.boot for design in own):
            alike = [design for design in own if design.boot == word]
            for number, image in zip(range(alike[0].layouts), layouts, strict=False):
                found = [cells(machine, design, number, parameters, how.kernel) for design in alike]
                yield side, ExperimentRow.of([cell for each in found for cell in each]), image


def _label(cell: Cell) -> str:
    """A cell of a trial in words: its design, and what varies within it but for the seed."""
    design = cell.experiment.name.rpartition(".")[2]
    varied = [
        f"{key}={cell.test[key]}" for key, values in cell.experiment.test.items() if len(values) > 1 and key != "seed"
    ]
    return " ".join([design, *varied])
