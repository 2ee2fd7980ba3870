# SPDX-License-Identifier: BSD-3-Clause
"""Selftest that measures a host: built from the kernel's source without building a kernel, or given by its path."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import InputError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.build import build_selftests, compiler_version
from simlib.lab.cache import lab_dir, require_space
from simlib.lab.native import native_target
from simlib.lab.patches import Series, apply_series, read_series
from simlib.lab.process import StepReport, require_programs, silent
from simlib.lab.source import copy_tree, find_archive, unpack
from simlib.lab.targets import Target, find_target

NAME = "mmu_lock_contention_test"
"""Name of the selftest, which ``kernel-patches/`` adds."""

OPTIONS = ("-q", "-u", "-y")
"""Options that a program from an older series lacks."""

SOURCE_PARTS = ("Makefile", "Kbuild", "scripts/", "include/", "tools/", "usr/")
"""Files and folders from which a selftest is built, in addition to the architecture's folder."""


@dataclass(frozen=True)
class StressProgram:
    """A selftest that is ready to run."""

    path: Path
    provenance: dict[str, object]
    """Source, series and compiler of the build, or the hash of the given file."""


def check_given_program(path: Path) -> StressProgram:
    """Check a program that was built elsewhere.

    Raises `InputError` if it cannot be run, is another program, or is too old.
    """
    path = path.absolute()
    try:
        run = subprocess.run([path, "-h"], capture_output=True, text=True, check=False, timeout=20)  # noqa: S603  # the user gave the path; the arguments are fixed
    except (OSError, subprocess.TimeoutExpired) as error:
        rule = f"cannot be run ({getattr(error, 'strerror', None) or 'it does not exit'})"
        raise InputError("program", str(path), rule, f"give a built {NAME}", flag="--program") from None
    if lacks := [option for option in OPTIONS if f"\n {option} " not in run.stdout]:
        rule = f"is not {NAME}, or is too old: it lacks {', '.join(lacks)}"
        hint = "omit --program to have simlib build the selftest, or build it from this version's patches"
        raise InputError("program", str(path), rule, hint, flag="--program")
    return StressProgram(path, {"program": "given", "program_sha256": file_sha256(path)})


def build_program(source: Path | None = None, progress: StepReport = silent) -> StressProgram:
    """Build the selftest for this host, which takes half a minute; later calls reuse it.

    Only `SOURCE_PARTS` of the source package are unpacked, and only the series' selftests are applied.

    Raises `InputError` if a tool or the source is missing (with the command that installs it), or if there is no target
    for this host's machine. Raises `SimlibError` if the patches do not apply or a compilation fails.

    `source`: a kernel tree, which is not modified. Default: the distribution's source package.
    """
    target = replace(find_target(native_target()), compiler="")
    packages = "make patch gcc libc6-dev binutils"
    hint = f"apt-get install {packages}, or give a built selftest with --program"
    require_programs("building the selftest", ("make", "patch", "gcc", "strip"), hint)
    series = read_series().within("tools/testing/selftests/")
    origin = file_sha256(find_archive(series)) if source is None else str(source.absolute())
    folder = lab_dir() / "host"
    provenance: dict[str, object] = {
        "origin": "directory" if source else find_archive(series).name,
        "series_sha256": series.sha256,
        "compiler": compiler_version(target),
    }
    key = hashlib.sha256(json.dumps([origin, provenance, target.name]).encode()).hexdigest()
    stamp, program = folder / "built.key", folder / f"{target.name}-selftests" / f"{NAME}.stripped"
    if source or not (stamp.is_file() and stamp.read_text("utf-8") == key and program.is_file()):
        stamp.unlink(missing_ok=True)
        tree = _selftest_tree(folder, series, target, source, progress)
        progress("compiling the selftest")
        program = build_selftests(target, tree, folder, [NAME], link="-pthread -no-pie")[NAME]
        write_text(stamp, key)
    return StressProgram(program, {**provenance, "program_sha256": file_sha256(program)})


def _selftest_tree(folder: Path, series: Series, target: Target, source: Path | None, progress: StepReport) -> Path:
    """Prepare a partial kernel tree that contains the series' selftests; return its folder."""
    tree, stage = folder / "source", folder / "stage"
    require_space(folder, 0.4, "the kernel's source")
    for stale in (tree, *folder.glob("*-selftests"), *folder.glob("*-headers")):
        shutil.rmtree(stale, ignore_errors=True)
    arch = {"x86_64": "x86"}.get(target.kernel_arch, target.kernel_arch)
    folder.mkdir(parents=True, exist_ok=True)
    if source is None:
        progress("unpacking the selftests' sources")
        unpack(find_archive(series), tree, (*SOURCE_PARTS, f"arch/{arch}/"))
    else:
        progress(f"copying {source}")
        copy_tree(source, tree, folder, shutil.copy2)
    progress("adding the selftest")
    for name in apply_series(tree, series, stage):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / name, tree / name)
    shutil.rmtree(stage, ignore_errors=True)
    return tree
