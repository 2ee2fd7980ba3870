# SPDX-License-Identifier: BSD-3-Clause
"""Try two kernels in one MMU mode: build their layouts, boot the cells on each, and compare the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simlib._lib.errors import SimlibError
from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.build import Built
from simlib.lab.collect import Boot, run_boots
from simlib.lab.experiment import Cell, CellSequence
from simlib.lab.process import StepReport
from simlib.lab.qemu import Qemu
from simlib.lab.records import Record, split_record
from simlib.lab.source import Source
from simlib.lab.trial.cells import CHECK, TrialDesign, cells, designs, target_of
from simlib.lab.trial.differences import Difference, compare
from simlib.lab.trial.kernels import STATISTICS_KERNEL, Kernel, build_kernel, build_provenance
from simlib.lab.trial.quantities import TrialQuantity, quantities

Runs = dict[str, list[dict[TrialQuantity, float]]]
"""Numbers of each run of a kernel, by the cell's label."""


def report_steps(progress: Progress | None) -> StepReport:
    """Return a function that reports steps whose share of the whole is unknown."""
    return lambda step: progress(step, 0.0) if progress else None


@dataclass(frozen=True)
class TrialOptions:
    """Options of `simlib.lab.try_series`, `try_each_patch` and `bisect_series`.

    - `source`: a kernel tree, which is not modified. Default: the source package.
    - `mmu_modes`: of `simlib.lab.trial.cells.MMU_MODES`, or architectures. Default: those that the series can touch.
    - `quick`: run only the small matrix, which takes minutes on two cores.
    - `parameters`: of the module kvm, for the kernel with the series. `shared_parameters`: for both kernels. Only
      `try_series` accepts them.
    - `kernel`: of `simlib.lab.build.KERNELS`: with the lab's statistics; ``plain``, which has only times; or
      ``lock-stat``, which counts by lock where the statistics do not fit, and has no times except waits.
    - `jobs`: concurrent boots; 0: one for every core.
    """

    source: str | Path | None = None
    mmu_modes: Sequence[str] = ()
    quick: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    shared_parameters: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = STATISTICS_KERNEL
    jobs: int = 0


@dataclass
class ModeTrial:
    """Trial of two kernels in one MMU mode; `run` fills in the fields after `options`.

    - `mmu_mode`: ``target/mode``.
    - `images`: hashes of the kernel without the series and the one with it.
    - `failure`: fault of the kernel with the series; empty if it runs.
    - `kernel`: how both are built and booted: ``configuration_sha256``, ``compiler``, ``qemu``, ``command``.
    """

    mmu_mode: str
    source: Source
    qemu: Qemu
    options: TrialOptions
    images: tuple[str, str] = ("", "")
    failure: str = ""
    differences: list[Difference] = field(default_factory=list)
    boots: int = 0
    kernel: Mapping[str, str] = field(default_factory=dict)

    def run(self, kernels: tuple[Kernel, Kernel], progress: Progress | None) -> None:
        """Build, boot and compare the kernel without the series and the one with it.

        Raises `SimlibError` if a kernel does not compile, or the one without the series does not run.
        """
        # The shares are those of a trial whose kernels were compiled before.
        building, checking, booting = subprogresses(progress, [0.1, 0.1, 0.8])
        built = [self.build_layouts(kernel, 1, building) for kernel in kernels]
        images = [str(layout.provenance["image_sha256"]) for [layout] in built]
        self.images = images[0], images[1]
        if images[0] == images[1] and not self.options.parameters:
            return
        target = target_of(self.mmu_mode)
        self.kernel = {**build_provenance(self.source, target, self.options.kernel), "qemu": self.qemu.text}
        self.boot([CHECK], built, checking)
        if self.failure:
            return
        selected = list(designs(self.mmu_mode, self.options.quick))
        layouts = max(design.layouts for design in selected)
        built = [self.build_layouts(kernel, layouts, building) for kernel in kernels]
        if building:
            building(f"{self.mmu_mode}: built", 1.0)
        base, changed = self.boot(selected, built, booting)
        for label in dict.fromkeys([*base, *changed]):
            self.differences += compare(self.mmu_mode, label, base.get(label, []), changed.get(label, []))

    def build_layouts(self, kernel: Kernel, count: int, progress: Progress | None) -> list[Built]:
        """Build the first `count` layouts of a kernel."""
        target, report = target_of(self.mmu_mode), report_steps(progress)
        return [build_kernel(self.source, replace(kernel, layout=i), target, report) for i in range(count)]

    def boot(
        self, selected: Sequence[TrialDesign], built: Sequence[Sequence[Built]], progress: Progress | None
    ) -> tuple[Runs, Runs]:
        """Boot designs on both kernels, and return the runs of each; count the boots, and note a `failure`.

        Raises `SimlibError` if the kernel without the series does not run.

        - `built`: layouts of the kernel without the series, empty to skip it, and of the one with it.
        """
        boots = list(self._boots(selected, built))
        self.boots += len(boots)
        report_steps(progress)(f"{self.mmu_mode}: booting {len(boots)} times")
        tasks = [Boot(sequence, image, self.qemu) for _, sequence, image in boots]
        results = run_boots(tasks, jobs=self.options.jobs, progress=progress)
        runs: tuple[Runs, Runs] = ({}, {})
        for (side, sequence, _), result in zip(boots, results, strict=True):
            if isinstance(result, Record):
                self.kernel = {"command": str(result.content["command"]), **self.kernel}
                for record, cell in zip(split_record(result, sequence), sequence.cells, strict=True):
                    runs[side].setdefault(_label(cell), []).append(quantities(record))
            elif side == 0:
                raise SimlibError(f"the kernel without the series fails on {self.mmu_mode}: {result}")
            else:
                self.failure = self.failure or result
        return runs

    def _boots(
        self, selected: Sequence[TrialDesign], built: Sequence[Sequence[Built]]
    ) -> Iterator[tuple[int, CellSequence, Built]]:
        """Iterate over the boots: side (0: the kernel without the series), cells and image of each."""
        options = self.options
        for side, images in enumerate(built):
            parameters = {**options.shared_parameters, **(options.parameters if side else {})}
            for name in dict.fromkeys(design.boot for design in selected):
                group = [design for design in selected if design.boot == name]
                for layout, image in zip(range(group[0].layouts), images, strict=False):
                    parts = [cells(self.mmu_mode, design, layout, parameters, options.kernel) for design in group]
                    yield side, CellSequence.of([cell for part in parts for cell in part]), image


def _label(cell: Cell) -> str:
    """Label of a trial's cell: its design, and the options that vary within it, except for the seed."""
    design = cell.experiment.name.rpartition(".")[2]
    varied = (key for key, values in cell.experiment.test.items() if len(values) > 1 and key != "seed")
    return " ".join([design, *(f"{key}={cell.test[key]}" for key in varied)])
