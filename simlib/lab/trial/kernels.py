# SPDX-License-Identifier: BSD-3-Clause
"""The kernels that a trial compares: one without the series and one with it, each in several layouts.

A layout is the same kernel with KVM's code and data at other addresses: what only comes from where they lie is no
difference that a series makes. All kernels of a target are compiled in one tree, so that the next one takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.build import Built, compile_image, compiler_version, fragment_of, pack_programs, settings_sha256
from simlib.lab.cache import lab_dir
from simlib.lab.patches import read_series, tree_version
from simlib.lab.source import Source, bring_pristine, lay_over
from simlib.lab.targets import Target
from simlib.lab.trial.series import MEASURES, TESTS, Patch
from simlib.lab.trial.tree import OTHERWISE, Staged, stage, stage_own, taken

WITHOUT, WITH = "the kernel without the series", "the kernel with the series"
"""What the two are called."""

COUNTED = "statistics"
"""The kind of kernel (`simlib.lab.build.KERNELS`) whose numbers come from the lab's statistics: what is usual."""

_PADDED = "virt/kvm/kvm_main.c"
"""First object of KVM on every architecture: what it begins with moves all the rest."""

_STEP, _STEPS, _PRIMES = 16, 251, (37, 101)
"""Paddings are multiples of the step, B, below so many; layout n has n times a prime of them, for code and for data."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a trial.

    - `staged`: its source files that differ from the given tree's.
    - `layout`: 0: as it is compiled; others: padded.
    - `kind`: as in `simlib.lab.build.KERNELS`.
    """

    name: str
    staged: Staged
    layout: int = 0
    kind: str = COUNTED

    def padding(self) -> str:
        """What is put behind the includes of KVM's first file.

        >>> Kernel("base", Staged(Path(), (), {}, {}), 2).padding()
        'asm(".pushsection .text; .skip 1184; .popsection; .pushsection .data; .skip 3232; .popsection");'
        """
        if not self.layout:
            return ""
        code, data = (_STEP * (self.layout * prime % _STEPS) for prime in _PRIMES)
        sections = (
            f".pushsection {name}; .skip {size}; .popsection" for name, size in ((".text", code), (".data", data))
        )
        return f'asm("{"; ".join(sections)}");'


def open_source(given: Path | None = None, commit: str = "", progress: Callable[[str], None] = print) -> Source:
    """Unpack the source of a trial, or find it unpacked; each source has a folder of its own.

    Raises as `simlib.lab.source.prepare_source`.

    - `given`: a kernel tree, or a git tree of which `commit` is taken. Default: the source package.
    """
    series = taken(read_series(), MEASURES)
    name = hashlib.sha256(f"{given.absolute() if given else ''} {commit}".encode()).hexdigest()[:12]
    folder = lab_dir() / "trial" / name
    origin, sha256 = bring_pristine(folder, series, given, progress, commit)
    return Source(folder / "source", origin, sha256, tree_version(folder / "pristine"), series.sha256)


def stage_both(
    source: Source, patches: Sequence[Patch], before: Sequence[Patch] = (), kind: str = COUNTED
) -> tuple[Kernel, Kernel]:
    """Stage the source without a series and with it, both made alike; both with the patches `before` it.

    Raises `SimlibError` if the series does not apply, or takes the lock where the statistics would not count it.

    - `kind`: of both kernels; only `COUNTED` has the statistics.
    """
    ours = taken(read_series(), MEASURES if kind == COUNTED else TESTS)
    every, places = [*before, *patches], source.folder / "stage"
    names = [name for patch in every for name in patch.files]
    base = stage(source.pristine, before, ours, places / "base", names)
    staged = stage(source.pristine, every, ours, places / "changed")
    if staged.past:
        name, [first, *others] = next(iter(staged.past.items()))
        more = f" and {len(others)} more" if others else ""
        raise SimlibError(
            f"{name}, line {first.number}, {first.function}(): '{first.text}'{more} takes mmu_lock where the statistics"
            f" would not count it: use a call that kernel-patches/0001 has an accessor for, or {OTHERWISE}"
        )
    return Kernel(WITHOUT, base, kind=kind), Kernel(WITH, staged, kind=kind)


def stage_switches(source: Source, numbers: Sequence[int], kind: str = COUNTED) -> tuple[Kernel, Kernel]:
    """Stage the source with patches of ours: all before the first of some numbers, and these, too.

    With its switches at their defaults each patch changes nothing: what is tried is a parameter of the changed kernel.
    """
    ours = read_series()
    before = {*MEASURES, *range(1, numbers[0])}
    places = source.folder / "stage"
    base = stage_own(source.pristine, ours, sorted(before), places / "base")
    changed = stage_own(source.pristine, ours, sorted({*before, *numbers}), places / "changed")
    return Kernel(WITHOUT, base, kind=kind), Kernel(WITH, changed, kind=kind)


def build_kernel(source: Source, kernel: Kernel, target: Target, progress: Callable[[str], None]) -> Built:
    """Compile a kernel, unless the same source was compiled already.

    Raises `SimlibError` if the compilation fails: with the compiler's first error.
    """
    fragment, compiler = fragment_of(target, kernel.kind), compiler_version(target)
    programs = _programs(source, target, kernel, progress)
    folder = source.folder / "built" / f"{target.name}-{_key(source, kernel, [fragment, compiler])}"
    record = folder / "build.json"
    if not record.is_file():
        _lay(source, kernel)
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


def made_with(source: Source, target: Target, kind: str) -> dict[str, str]:
    """What all kernels of a source have on a target, once one was compiled: the configuration's hash, the compiler."""
    configuration = settings_sha256(_objects(source, target, kind) / ".config")
    return {"configuration_sha256": configuration, "compiler": compiler_version(target)}


def _objects(source: Source, target: Target, kind: str) -> Path:
    return source.folder / "objects" / f"{target.name}-{kind}"


def _programs(source: Source, target: Target, kernel: Kernel, progress: Callable[[str], None]) -> Path:
    """The tests that all kernels of a source run: built from the first one, which is the one without the series."""
    made = source.folder / "built" / f"{target.name}-initramfs.cpio"
    if not made.is_file():
        progress(f"{target.name}: compiling the selftests")
        _lay(source, replace(kernel, layout=0))
        packed = pack_programs(target, source.tree, source.folder / "objects")
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part")
        part.write_bytes(packed)
        os.replace(part, made)
    return made


def _lay(source: Source, kernel: Kernel) -> None:
    """Bring the tree that is compiled to a kernel's source; only what differs is written."""
    stage_of, touched = kernel.staged.folder, list(kernel.staged.touched)
    if kernel.layout:
        stage_of = source.folder / "stage" / "padded"
        shutil.rmtree(stage_of, ignore_errors=True)
        shutil.copytree(kernel.staged.folder, stage_of)
        padded = stage_of / _PADDED
        plain = padded if padded.is_file() else source.pristine / _PADDED
        lines = plain.read_text("utf-8", errors="surrogateescape").splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if line.startswith("#include"))
        lines.insert(last + 1, f"{kernel.padding()}\n")
        padded.parent.mkdir(parents=True, exist_ok=True)
        padded.write_text("".join(lines), "utf-8", errors="surrogateescape")
        touched = sorted({*touched, _PADDED})
    lay_over(source.pristine, stage_of, touched, source.tree, source.folder / "laid.files")


def _key(source: Source, kernel: Kernel, more: Sequence[str]) -> str:
    """Hash of all that an image is made of."""
    digest = hashlib.sha256(f"{source.sha256}\0{kernel.padding()}".encode())
    for name in kernel.staged.touched:
        path = kernel.staged.folder / name
        digest.update(f"{name}\0{file_sha256(path) if path.is_file() else ''}\0".encode())
    digest.update("\0".join(more).encode())
    return digest.hexdigest()[:16]


def _first_error(objects: Path) -> str:
    """The compiler's first error, with the file and line that it names relative to the tree."""
    log = objects / "build.log"
    text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if ": error: " in line or ": undefined reference" in line]
    return lines[0].rpartition("/source/")[2] if lines else ""
