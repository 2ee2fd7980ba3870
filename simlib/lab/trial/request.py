# SPDX-License-Identifier: BSD-3-Clause
"""What somebody asks to be tried: a series, read, and the machines that it can touch, with all that they need here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simlib._lib.errors import InputError, nearest
from simlib._lib.parallel import Progress, subprogresses
from simlib.lab.build import check_kernel, need_compiler
from simlib.lab.patches import read_series
from simlib.lab.qemu import Qemu, find_qemu
from simlib.lab.source import Source
from simlib.lab.trial.cells import MACHINES, machines_for, target_of
from simlib.lab.trial.differences import judge
from simlib.lab.trial.kernels import COUNTED, Kernel, open_source, stage_both, stage_switches
from simlib.lab.trial.machine import How, steps, try_on
from simlib.lab.trial.result import Trial
from simlib.lab.trial.series import Patch, base_of, hash_of, own_numbers, own_patches, read_patches


@dataclass(frozen=True)
class Request:
    """A series to try.

    - `series`, `tree`, `named`: as they were given: the series, the kernel tree, and the machines.
    - `numbers`: of patches of ours; empty: the series is somebody's.
    - `machines`: those that are tried, each with the emulator for it.
    """

    series: str
    tree: Path | None
    named: tuple[str, ...]
    how: How
    numbers: tuple[int, ...]
    patches: tuple[Patch, ...]
    machines: Mapping[str, Qemu]

    @classmethod
    def read(cls, series: str, source: str | Path | None, machines: Sequence[str], how: How) -> Request:
        """Read a series, and find what its machines need before minutes are spent on one.

        Raises `InputError` for what is no series, no tree or no machine, and `SimlibError` if a compiler or an
        emulator is missing.
        """
        check_kernel(how.kernel)
        tree, numbers = None if source is None else Path(source), own_numbers(series)
        patches = own_patches(read_series(), numbers) if numbers else read_patches(series, tree)
        chosen = {name: find_qemu(target_of(name)) for name in _chosen(machines, _machines_for(patches))}
        for machine in chosen:
            need_compiler(target_of(machine))
        return cls(series, tree, tuple(machines), how, numbers, patches, chosen)

    def piecewise(self, flag: str) -> Request:
        """The same, if its patches can be tried one by one.

        Raises `InputError` if they cannot.

        - `flag`: what asks for it.
        """
        if self.numbers:
            raise InputError(
                "SERIES", self.series, "names patches of ours, which are tried as a whole", f"leave out {flag}"
            )
        return self

    def open(self, progress: Progress | None) -> Source:
        """The source that the series is for."""
        ranged = self.tree is not None and ".." in self.series
        commit = base_of(self.series, self.tree) if self.tree is not None and ranged else ""
        return open_source(self.tree, commit, steps(progress))

    def both(self, source: Source, first: int, end: int) -> tuple[Kernel, Kernel]:
        """The kernel with the patches before number `first`, from 0, and the one with those before `end`."""
        if self.numbers:
            return stage_switches(source, self.numbers, self.how.kernel)
        return stage_both(source, self.patches[first:end], self.patches[:first], self.how.kernel)

    def trial(self, source: Source, first: int, end: int, more: Sequence[str], progress: Progress | None) -> Trial:
        """Try the patches from number `first` to before `end` on every machine that they touch.

        What all machines said is corrected for how much was compared.

        - `more`: options of the command that repeats it, such as ``--each-patch``.
        """
        mine, both = self.patches[first:end], self.both(source, first, end)
        touched = [machine for machine in self.machines if machine in _machines_for(mine)]
        each = subprogresses(progress, [1 / max(1, len(touched))] * len(touched))
        tried = {
            machine: try_on(machine, source, both, self.machines[machine], self.how, part)
            for machine, part in zip(touched, each, strict=True)
        }
        about = {
            "command": self.command(more),
            "patches": [patch.name for patch in mine],
            "series_sha256": hash_of(mine),
            "parameters": dict(self.how.parameters),
            "parameters_of_both": dict(self.how.of_both),
            "kernel": self.how.kernel,
            "source": source.provenance(),
            "new_sites": dict(both[1].staged.sites),
            "images": {machine: list(one.images) for machine, one in tried.items()},
            "kernels": {machine: dict(one.kernel) for machine, one in tried.items()},
            "boots": sum(one.boots for one in tried.values()),
        }
        same = tuple(machine for machine, one in tried.items() if not one.boots)
        failures = {machine: one.failed for machine, one in tried.items() if one.failed}
        found = judge([difference for one in tried.values() for difference in one.found])
        return Trial(about, tuple(tried), same, failures, tuple(found))

    def command(self, more: Sequence[str] = ()) -> str:
        """What repeats it, without this machine's folders."""
        words = ["simlib", "lab", "try", self.series if ".." in self.series else Path(self.series).name]
        words += ["--source", self.tree.absolute().name] if self.tree is not None else []
        words += [word for machine in self.named for word in ("--arch", machine)]
        for option, values in (("--set", self.how.parameters), ("--set-all", self.how.of_both)):
            words += [word for name, value in values.items() for word in (option, f"{name}={value}")]
        words += ["--kernel", self.how.kernel] if self.how.kernel != COUNTED else []
        return shlex.join([*words, *["--quick"] * self.how.quick, *more])


def _machines_for(patches: Sequence[Patch]) -> tuple[str, ...]:
    return machines_for([name for patch in patches for name in patch.files], empty=not patches)


def _chosen(given: Sequence[str], touched: Sequence[str]) -> tuple[str, ...]:
    """The machines of a trial: of those that were asked for, the ones that the series touches."""
    for name in given:
        if not any(machine == name or machine.startswith(f"{name}/") for machine in MACHINES):
            known = [*MACHINES, *dict.fromkeys(machine.partition("/")[0] for machine in MACHINES)]
            raise InputError("machine", name, "is not known", nearest(name, known), flag="--arch")
    return tuple(machine for machine in touched if not given or machine in given or machine.partition("/")[0] in given)
