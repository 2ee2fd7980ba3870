# SPDX-License-Identifier: BSD-3-Clause
"""Runs a trial: builds its kernels, boots the cells on each, and compares."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simlib.errors import InputError, SimlibError, nearest
from simlib.lab.build import Built, need_compiler
from simlib.lab.cache import at_work
from simlib.lab.collect import Boot, run_boots
from simlib.lab.experiment import Cell, Row
from simlib.lab.patches import read_series
from simlib.lab.qemu import Qemu, find_qemu
from simlib.lab.records import Record, split_record
from simlib.lab.source import Source
from simlib.lab.trial.cells import CHECK, MACHINES, Design, cells, designs, machines_for, target_of
from simlib.lab.trial.differences import Difference, compare, judge
from simlib.lab.trial.kernels import Kernel, build_kernel, open_source, stage_both, stage_switches
from simlib.lab.trial.quantities import Quantity, quantities
from simlib.lab.trial.result import Trial
from simlib.lab.trial.series import Patch, base_of, hash_of, own_numbers, own_patches, read_patches
from simlib.parallel import Progress, portions


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
    [found] = _trials(str(series), source, machines, _How(quick, parameters or {}, jobs), progress, each=False)
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
    return _trials(str(series), source, machines, _How(quick, {}, jobs), progress, each=True)


@dataclass(frozen=True)
class _How:
    """How a machine is tried: as in `try_series`."""

    quick: bool
    parameters: Mapping[str, Any]
    jobs: int


def _trials(
    series: str, given: str | Path | None, machines: Sequence[str], how: _How, progress: Progress, each: bool
) -> list[Trial]:
    """One trial of a series, or one of `each` of its patches."""
    tree = None if given is None else Path(given)
    numbers = own_numbers(series)
    if numbers and each:
        cure = "leave out --each-patch"
        raise InputError("SERIES", series, "names patches of ours, which are tried as a whole", cure)
    patches = own_patches(read_series(), numbers) if numbers else read_patches(series, tree)
    commit = base_of(series, tree) if tree is not None and ".." in series else ""
    chosen = {name: find_qemu(target_of(name)) for name in _chosen(machines, _machines_for(patches))}
    for machine in chosen:  # before minutes are spent on another one
        need_compiler(target_of(machine))
    steps = [(number, number + 1) for number in range(len(patches))] if each else [(0, len(patches))]
    opening, *shares = portions(progress, [0.1, *[0.9 / max(1, len(steps))] * len(steps)])
    with at_work(alone=True):
        source = open_source(tree, commit, _steps(opening))
        found = []
        for (first, end), share in zip(steps, shares, strict=True):
            mine = patches[first:end]
            both = stage_switches(source, numbers) if numbers else stage_both(source, mine, patches[:first])
            touched = [machine for machine in chosen if machine in _machines_for(mine)]
            each_share = portions(share, [1 / max(1, len(touched))] * len(touched))
            tried = {
                machine: _try_on(machine, source, both, chosen[machine], how, part)
                for machine, part in zip(touched, each_share, strict=True)
            }
            about = {
                "command": _command(series, tree, list(machines), how, each),
                "patches": [patch.name for patch in mine],
                "series_sha256": hash_of(mine),
                "parameters": dict(how.parameters),
                "source": source.provenance(),
                "new_sites": dict(both[1].staged.sites),
            }
            found.append(_trial(about, tried))
    return found


def _command(series: str, tree: Path | None, machines: Sequence[str], how: _How, each: bool) -> str:
    """What repeats a trial, without this machine's folders."""
    words = ["simlib", "lab", "try", series if ".." in series else Path(series).name]
    words += ["--source", tree.absolute().name] if tree is not None else []
    words += [word for machine in machines for word in ("--arch", machine)]
    words += [word for name, value in how.parameters.items() for word in ("--set", f"{name}={value}")]
    return shlex.join([*words, *["--quick"] * how.quick, *["--each-patch"] * each])


def _machines_for(patches: Sequence[Patch]) -> tuple[str, ...]:
    return machines_for([name for patch in patches for name in patch.files], empty=not patches)


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


@dataclass
class _Tried:
    """What one machine said."""

    images: tuple[str, str]
    failed: str = ""
    found: Sequence[Difference] = ()
    boots: int = 0


def _trial(about: Mapping[str, Any], tried: Mapping[str, _Tried]) -> Trial:
    """What all machines said, corrected for how much was compared."""
    images = {machine: list(one.images) for machine, one in tried.items()}
    same = tuple(machine for machine, one in tried.items() if not one.boots)
    failures = {machine: one.failed for machine, one in tried.items() if one.failed}
    found = judge([difference for one in tried.values() for difference in one.found])
    about = {**about, "images": images, "boots": sum(one.boots for one in tried.values())}
    return Trial(about, tuple(tried), same, failures, tuple(found))


def _try_on(
    machine: str, source: Source, both: tuple[Kernel, Kernel], qemu: Qemu, how: _How, progress: Progress | None
) -> _Tried:
    """Try a series on one machine."""
    own = list(designs(machine, how.quick))
    building, checking, booting = portions(progress, [0.3, 0.1, 0.6])

    def build(layouts: range) -> list[list[Built]]:
        target = target_of(machine)
        return [
            [build_kernel(source, replace(kernel, layout=one), target, _steps(building)) for one in layouts]
            for kernel in both
        ]

    built = build(range(1))
    images = [str(one.provenance["image_sha256"]) for [one] in built]
    tried = _Tried((images[0], images[1]))
    if images[0] == images[1] and not how.parameters:
        return tried
    _boot(machine, [CHECK], built, qemu, how, checking, tried)
    if tried.failed:
        return tried
    built = build(range(max(design.layouts for design in own)))
    runs = _boot(machine, own, built, qemu, how, booting, tried)
    labels = dict.fromkeys(label for each in runs for label in each)
    tried.found = [one for label in labels for one in compare(machine, label, *(each.get(label, []) for each in runs))]
    return tried


def _boot(
    machine: str, own: Sequence[Design], built: Sequence[Sequence[Built]], qemu: Qemu, how: _How,
    progress: Progress | None, tried: _Tried,
) -> list[dict[str, list[dict[Quantity, float]]]]:  # fmt: skip
    """What each kernel's boots gave, by cell; counted in `tried`, and what the changed kernel did wrong.

    Raises `SimlibError` if the kernel without the series does not run.
    """
    todo = list(_rows(machine, own, built, how))
    tried.boots += len(todo)
    _steps(progress)(f"{machine}: booting {len(todo)} times")
    records = run_boots([Boot(row, image, qemu) for _, row, image in todo], jobs=how.jobs, progress=progress)
    runs: list[dict[str, list[dict[Quantity, float]]]] = [{}, {}]
    for (side, row, _), record in zip(todo, records, strict=True):
        if isinstance(record, Record):
            for one, cell in zip(split_record(record, row), row.cells, strict=True):
                runs[side].setdefault(_label(cell), []).append(quantities(one))
        elif side == 0:
            raise SimlibError(f"the kernel without the series fails on {machine}: {record}")
        else:
            tried.failed = tried.failed or record
    return runs


def _rows(
    machine: str, own: Sequence[Design], built: Sequence[Sequence[Built]], how: _How
) -> Iterator[tuple[int, Row, Built]]:
    """Number of the kernel, cells and image of each boot."""
    for side, layouts in enumerate(built):
        parameters = how.parameters if side else {}
        for boot in dict.fromkeys(design.boot for design in own):
            alike = [design for design in own if design.boot == boot]
            for number in range(alike[0].layouts):
                found = [cells(machine, design, number, parameters) for design in alike]
                yield side, Row.of([cell for each in found for cell in each]), layouts[number]
