# SPDX-License-Identifier: BSD-3-Clause
"""The kernels that a trial compares: one without the series and one with it, each in several layouts.

A layout is the same kernel with KVM's code and data at other addresses, so that effects of the addresses are not
attributed to the series. All kernels of a target are compiled in one tree, so all but the first take only seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.build import Built, compile_image, compiler_version, config_fragment, config_sha256, pack_programs
from simlib.lab.cache import lab_dir
from simlib.lab.patches import read_series, tree_version
from simlib.lab.process import StepReport
from simlib.lab.source import Source, prepare_pristine, sync_tree
from simlib.lab.targets import Target
from simlib.lab.trial.series import MEASURING_PATCHES, SELFTEST_PATCHES, Patch
from simlib.lab.trial.tree import LOCK_STAT_HINT, Staged, select_patches, stage, stage_bundled

WITHOUT_SERIES, WITH_SERIES = "the kernel without the series", "the kernel with the series"
"""Names of the two kernels in messages."""

STATISTICS_KERNEL = "statistics"
"""Default kind of kernel (`simlib.lab.build.KERNELS`), whose numbers come from the lab's statistics."""

_PADDED = "virt/kvm/kvm_main.c"
"""Source of KVM's first object on every architecture: padding at its start moves all later code and data."""

_STEP, _STEPS, _PRIMES = 16, 251, {".text": 37, ".data": 101}
"""Unit of the paddings, bytes; modulus of their number of units; and number of units by section in layout 1."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a trial.

    - `staged`: its source files that differ from the pristine tree.
    - `layout`: 0: without padding; others: padded.
    - `kind`: of `simlib.lab.build.KERNELS`.
    """

    name: str
    staged: Staged
    layout: int = 0
    kind: str = STATISTICS_KERNEL

    def padding(self) -> str:
        """Assembly that pads the sections, for the line after the includes of `_PADDED`; empty for layout 0.

        >>> Kernel("base", Staged(Path(), (), {}, {}), 2).padding()
        'asm(".pushsection .text; .skip 1184; .popsection; .pushsection .data; .skip 3232; .popsection");'
        """
        if not self.layout:
            return ""
        sizes = {name: _STEP * (self.layout * prime % _STEPS) for name, prime in _PRIMES.items()}
        sections = (f".pushsection {name}; .skip {size}; .popsection" for name, size in sizes.items())
        return f'asm("{"; ".join(sections)}");'


def open_source(tree: Path | None = None, commit: str = "", progress: StepReport = print) -> Source:
    """Unpack a kernel tree, the `commit` of a git tree, or the source package, unless it was unpacked before.

    Raises as `simlib.lab.source.prepare_source`.
    """
    series = select_patches(read_series(), MEASURING_PATCHES)
    name = hashlib.sha256(f"{tree.absolute() if tree else ''} {commit}".encode()).hexdigest()[:12]
    folder = lab_dir() / "trial" / name
    origin, sha256 = prepare_pristine(folder, series, tree, progress, commit)
    return Source(folder / "source", origin, sha256, tree_version(folder / "pristine"), series.sha256)


def stage_kernels(
    source: Source, patches: Sequence[Patch], before: Sequence[Patch] = (), kind: str = STATISTICS_KERNEL
) -> tuple[Kernel, Kernel]:
    """Stage the source without a series and with it, in the same way; both have the patches `before` it.

    Raises `SimlibError` if the series does not apply, or takes the lock where the statistics do not count it.

    - `kind`: of both kernels; only `STATISTICS_KERNEL` has the statistics.
    """
    bundled = select_patches(read_series(), MEASURING_PATCHES if kind == STATISTICS_KERNEL else SELFTEST_PATCHES)
    all_patches, folder = [*before, *patches], source.folder / "stage"
    names = [name for patch in all_patches for name in patch.files]
    base = stage(source.pristine, before, bundled, folder / "base", names)
    staged = stage(source.pristine, all_patches, bundled, folder / "changed")
    if staged.uncounted:
        name, [first, *others] = next(iter(staged.uncounted.items()))
        more = f" and {len(others)} more" if others else ""
        raise SimlibError(
            f"{name}, line {first.number}, {first.function}(): '{first.text}'{more} takes mmu_lock where the statistics"
            f" do not count it: use a call with an accessor in kernel-patches/0001, or {LOCK_STAT_HINT}"
        )
    return Kernel(WITHOUT_SERIES, base, kind=kind), Kernel(WITH_SERIES, staged, kind=kind)


def stage_switches(source: Source, numbers: Sequence[int], kind: str = STATISTICS_KERNEL) -> tuple[Kernel, Kernel]:
    """Stage the source with the bundled patches before `numbers`, and with those of `numbers` as well.

    The patches change nothing while their switches have the defaults: a trial sets parameters of the second kernel.
    """
    series = read_series()
    before = {*MEASURING_PATCHES, *range(1, numbers[0])}
    folder = source.folder / "stage"
    base = stage_bundled(source.pristine, series, sorted(before), folder / "base")
    changed = stage_bundled(source.pristine, series, sorted({*before, *numbers}), folder / "changed")
    return Kernel(WITHOUT_SERIES, base, kind=kind), Kernel(WITH_SERIES, changed, kind=kind)


def build_kernel(source: Source, kernel: Kernel, target: Target, progress: StepReport) -> Built:
    """Compile a kernel, unless the same source was compiled before.

    Raises `SimlibError`, with the compiler's first error, if the compilation fails.
    """
    fragment, compiler = config_fragment(target, kernel.kind), compiler_version(target)
    programs = _programs(source, target, kernel, progress)
    folder = source.folder / "built" / f"{target.name}-{_key(source, kernel, [fragment, compiler])}"
    record = folder / "build.json"
    if not record.is_file():
        _update_tree(source, kernel)
        objects = _objects(source, target, kernel.kind)
        label = f"{target.name}, {kernel.name}, layout {kernel.layout}"
        try:
            compile_image(target, source.tree, objects, fragment, label, progress)
        except SimlibError as error:
            raise SimlibError(f"{kernel.name} does not compile: {_first_error(objects) or error}") from None
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(objects / target.image, folder / "image")
        shutil.copyfile(objects / "System.map", folder / "System.map")
        provenance = {"image_sha256": file_sha256(folder / "image"), "compiler": compiler, "kernel": kernel.kind}
        write_text(record, json.dumps(provenance) + "\n")
    known = json.loads(record.read_text("utf-8"))
    known["initramfs_sha256"] = file_sha256(programs)
    return Built(target.name, kernel.kind, folder / "image", programs, known)


def build_provenance(source: Source, target: Target, kind: str) -> dict[str, str]:
    """Hash of the configuration and version of the compiler; all kernels of a source and target share them."""
    configuration = config_sha256(_objects(source, target, kind) / ".config")
    return {"configuration_sha256": configuration, "compiler": compiler_version(target)}


def _objects(source: Source, target: Target, kind: str) -> Path:
    return source.folder / "objects" / f"{target.name}-{kind}"


def _programs(source: Source, target: Target, kernel: Kernel, progress: StepReport) -> Path:
    """Initramfs with the tests of all kernels of a source, built from the first one: the kernel without the series."""
    initramfs = source.folder / "built" / f"{target.name}-initramfs.cpio"
    if not initramfs.is_file():
        progress(f"{target.name}: compiling the selftests")
        _update_tree(source, replace(kernel, layout=0))
        packed = pack_programs(target, source.tree, source.folder / "objects")
        initramfs.parent.mkdir(parents=True, exist_ok=True)
        part = initramfs.with_suffix(".part")
        part.write_bytes(packed)
        os.replace(part, initramfs)
    return initramfs


def _update_tree(source: Source, kernel: Kernel) -> None:
    """Write a kernel's source to the tree that is compiled; only files that differ are written."""
    folder, touched = kernel.staged.folder, list(kernel.staged.touched)
    if kernel.layout:
        folder = source.folder / "stage" / "padded"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kernel.staged.folder, folder)
        padded = folder / _PADDED
        origin = padded if padded.is_file() else source.pristine / _PADDED
        lines = origin.read_text("utf-8", errors="surrogateescape").splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if line.startswith("#include"))
        lines.insert(last + 1, f"{kernel.padding()}\n")
        padded.parent.mkdir(parents=True, exist_ok=True)
        padded.write_text("".join(lines), "utf-8", errors="surrogateescape")
        touched = sorted({*touched, _PADDED})
    sync_tree(source.pristine, folder, touched, source.tree, source.folder / "laid.files")


def _key(source: Source, kernel: Kernel, inputs: Sequence[str]) -> str:
    digest = hashlib.sha256(f"{source.sha256}\0{kernel.padding()}".encode())
    for name in kernel.staged.touched:
        path = kernel.staged.folder / name
        digest.update(f"{name}\0{file_sha256(path) if path.is_file() else ''}\0".encode())
    digest.update("\0".join(inputs).encode())
    return digest.hexdigest()[:16]


def _first_error(objects: Path) -> str:
    """First error of the compiler, with the file's path relative to the tree; empty if there is none."""
    log = objects / "build.log"
    text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if ": error: " in line or ": undefined reference" in line]
    return lines[0].rpartition("/source/")[2] if lines else ""
