# SPDX-License-Identifier: BSD-3-Clause
"""Runs a trial: builds its kernels, boots the cells on each, and compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simlib.errors import InputError, SimlibError, nearest
from simlib.lab.build import Built
from simlib.lab.cache import at_work
from simlib.lab.collect import Boot, run_boots
from simlib.lab.experiment import Cell, Row
from simlib.lab.patches import read_series
from simlib.lab.qemu import Qemu, find_qemu
from simlib.lab.records import Record, split_record
from simlib.lab.trial.cells import MACHINES, Design, cells, designs, machines_for, target_of
from simlib.lab.trial.differences import Difference, compare, judge
from simlib.lab.trial.kernels import Kernel, Source, build_kernel, describe, open_source, stage_both, stage_switches
from simlib.lab.trial.quantities import Quantity, quantities
from simlib.lab.trial.result import Trial
from simlib.lab.trial.series import Patch, base_of, hash_of, own_numbers, own_patches, read_patches
from simlib.parallel import Progress, portions

KERNEL = "statistics"
"""What is built (`simlib.lab.build.KERNELS`): the numbers come from the lab's statistics."""

_FIRST = "check"
"""Design that a changed kernel has to pass before it is measured."""


def try_series(
    series: str | Path,
    *,
    source: str | Path | None = None,
    machines: Sequence[str] = (),
    quick: bool = False,
    parameters: Mapping[str, Any] | None = None,
    jobs: int = 0,
    progress: Progress = lambda what, share: None,
) -> Trial:
    """Try a series of patches: a kernel without it and one with it are built and booted, and what differs is told.

    Raises `InputError` for what is no series, no source or no machine. Raises `SimlibError` if a patch does not apply
    or compile, if it takes mmu_lock where nothing counts it, or if the kernel without the series does not run. What
    the changed kernel does wrong stands in the result.

    - `series`: a folder of patches, a mailbox or a patch, a range of commits of `source` such as ``HEAD~3..HEAD``, or
      patches of ours by number (``7``, ``16-17``), on top of those before them.
    - `source`: a kernel tree, in which nothing is written. Default: the source package.
    - `machines`: of `simlib.lab.trial.cells.MACHINES`, or architectures. Default: those that the series can touch.
    - `quick`: the small matrix: ten minutes on two cores.
    - `parameters`: of the module kvm, set for the changed kernel.
    - `jobs`: boots at a time; 0: one for every core.
    - `progress`: told what is being done, and the share that is done.
    """
    [found] = _trials(str(series), source, machines, quick, parameters or {}, jobs, progress, each=False)
    return found


def try_each_patch(
    series: str | Path,
    *,
    source: str | Path | None = None,
    machines: Sequence[str] = (),
    quick: bool = False,
    jobs: int = 0,
    progress: Progress = lambda what, share: None,
) -> list[Trial]:
    """Try each patch of a series beside the kernel with those before it, so that the one that makes a difference shows.

    Returns: A trial for each patch. Raises as `try_series`.

    - `series`, `source`, `machines`, `quick`, `jobs`, `progress`: as in `try_series`; no patches of ours.
    """
    return _trials(str(series), source, machines, quick, {}, jobs, progress, each=True)


def _trials(
    series: str, source: str | Path | None, given: Sequence[str], quick: bool, parameters: Mapping[str, Any],
    jobs: int, progress: Progress, each: bool,
) -> list[Trial]:  # fmt: skip
    """One trial of a series, or one of `each` of its patches."""
    tree = None if source is None else Path(source)
    numbers = own_numbers(series)
    if numbers and each:
        raise InputError(
            "SERIES", series, "names patches of ours, which are tried as a whole", "leave out --each-patch"
        )
    patches = own_patches(read_series(), numbers) if numbers else read_patches(series, tree)
    commit = base_of(series, tree) if tree is not None and ".." in series else ""
    chosen = _chosen(given, machines_for([name for patch in patches for name in patch.files]))
    emulators = {machine: find_qemu(target_of(machine)) for machine in chosen}
    steps = [(number, number + 1) for number in range(len(patches))] if each else [(0, len(patches))]
    opening, *shares = portions(progress, [0.1, *(0.9 / max(1, len(steps)) for _ in steps)])
    found = []
    with at_work(alone=True):
        origin = open_source(tree, commit, _steps(opening))
        for (first, end), share in zip(steps, shares, strict=True):
            before, mine = patches[:first], patches[first:end]
            both = stage_switches(origin, numbers) if numbers else stage_both(origin, mine, before)
            tried = _Tried(origin, both, mine, quick, parameters, jobs)
            machines = [one for one in chosen if one in machines_for([name for patch in mine for name in patch.files])]
            for machine, part in zip(
                machines, portions(share, [1 / max(1, len(machines))] * len(machines)), strict=True
            ):
                tried.run(machine, emulators[machine], part)
            found.append(tried.result())
    return found


def _chosen(given: Sequence[str], touched: Sequence[str]) -> tuple[str, ...]:
    """The machines of a trial: of those that were asked for, the ones that the series touches."""
    for name in given:
        if not any(machine == name or machine.startswith(f"{name}/") for machine in MACHINES):
            known = [*MACHINES, *dict.fromkeys(machine.partition("/")[0] for machine in MACHINES)]
            raise InputError("machine", name, "is not known", nearest(name, known), flag="--arch")
    return tuple(machine for machine in touched if not given or machine in given or machine.partition("/")[0] in given)


def _steps(progress: Progress | None) -> Callable[[str], None]:
    """Progress of steps whose share nobody knows."""
    return lambda what: progress(what, 0.0) if progress else None


def _label(cell: Cell) -> str:
    """A cell of a trial in words: its design, and what varies within it but for the seed."""
    design = cell.experiment.name.rpartition(".")[2]
    varied = [
        f"{key}={cell.test[key]}" for key, values in cell.experiment.test.items() if len(values) > 1 and key != "seed"
    ]
    return " ".join([design, *varied])


class _Tried:
    """A trial while it runs."""

    def __init__(
        self, source: Source, both: tuple[Kernel, Kernel], patches: Sequence[Patch], quick: bool,
        parameters: Mapping[str, Any], jobs: int,
    ) -> None:  # fmt: skip
        self.source, self.patches, self.quick, self.parameters, self.jobs = source, patches, quick, parameters, jobs
        self.base, self.changed = both
        self.same: list[str] = []
        self.machines: list[str] = []
        self.failures: dict[str, str] = {}
        self.found: list[Difference] = []
        self.boots = 0
        self.images: dict[str, str] = {}

    def run(self, machine: str, qemu: Qemu, progress: Progress | None) -> None:
        """Try it on one machine."""
        self.machines.append(machine)
        own = list(designs(machine, self.quick))
        layouts = max(design.layouts for design in own)
        building, checking, booting = portions(progress, [0.3, 0.1, 0.6])
        base = self._build(self.base, machine, range(1), building)
        changed = self._build(self.changed, machine, range(1), building)
        self.images |= {f"{machine} {side}": str(built[0].provenance["image_sha256"])
                        for side, built in (("base", base), ("changed", changed))}  # fmt: skip
        if self.images[f"{machine} base"] == self.images[f"{machine} changed"] and not self.parameters:
            self.same.append(machine)
            return
        first = [design for design in own if design.name == _FIRST]
        if failed := self._boot(machine, first, {"changed": changed}, qemu, checking)[1]:
            self.failures[machine] = failed
            return
        base |= self._build(self.base, machine, range(1, layouts), building)
        changed |= self._build(self.changed, machine, range(1, layouts), building)
        runs, failed = self._boot(machine, own, {"base": base, "changed": changed}, qemu, booting)
        if failed:
            self.failures[machine] = failed
        for label in dict.fromkeys(label for _, label in runs):
            both = (runs.get(("base", label), []), runs.get(("changed", label), []))
            if min(len(runs) for runs in both) > 1:  # one boot does not tell what is decided
                self.found += compare(machine, label, *both)

    def _build(self, kernel: Kernel, machine: str, layouts: range, progress: Progress | None) -> dict[int, Built]:
        target = target_of(machine)
        return {
            number: build_kernel(self.source, replace(kernel, layout=number), target, KERNEL, _steps(progress))
            for number in layouts
        }

    def _boot(
        self, machine: str, own: Sequence[Design], kernels: Mapping[str, Mapping[int, Built]], qemu: Qemu,
        progress: Progress | None,
    ) -> tuple[dict[tuple[str, str], list[dict[Quantity, float]]], str]:  # fmt: skip
        """What each kernel's boots gave, by kernel and cell; and what the changed one did wrong, or nothing.

        Raises `SimlibError` if the kernel without the series does not run.
        """
        todo = list(self._rows(machine, own, kernels))
        _steps(progress)(f"{machine}: booting {len(todo)} times")
        records = run_boots([Boot(row, built, qemu) for _, row, built in todo], jobs=self.jobs, progress=progress)
        self.boots += len(todo)
        runs: dict[tuple[str, str], list[dict[Quantity, float]]] = {}
        failed = ""
        for (side, row, _), record in zip(todo, records, strict=True):
            if isinstance(record, Record):
                for one, cell in zip(split_record(record, row), row.cells, strict=True):
                    runs.setdefault((side, _label(cell)), []).append(quantities(one))
            elif side == "base":
                raise SimlibError(f"the kernel without the series fails on {machine}: {record}")
            else:
                failed = failed or record
        return runs, failed

    def _rows(
        self, machine: str, own: Sequence[Design], kernels: Mapping[str, Mapping[int, Built]]
    ) -> Iterator[tuple[str, Row, Built]]:
        """Kernel, cells and image of each boot."""
        for side, layouts in kernels.items():
            parameters = self.parameters if side == "changed" else {}
            for boot in dict.fromkeys(design.boot for design in own):
                alike = [design for design in own if design.boot == boot]
                for number in range(min(alike[0].layouts, len(layouts))):
                    found = [cells(machine, design, number, KERNEL, parameters) for design in alike]
                    yield side, Row.of([cell for each in found for cell in each]), layouts[number]

    def result(self) -> Trial:
        """What it found."""
        about = {
            "patches": [patch.name for patch in self.patches],
            "series_sha256": hash_of(self.patches),
            "parameters": dict(self.parameters),
            "quick": self.quick,
            "source": dict(describe(self.source)),
            "images": self.images,
            "new_sites": dict(self.changed.staged.sites),
            "boots": self.boots,
        }
        return Trial(about, tuple(self.machines), tuple(self.same), dict(self.failures), tuple(judge(self.found)))
