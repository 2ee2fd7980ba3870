# SPDX-License-Identifier: BSD-3-Clause
"""The bundled patch series: where it is, what it is for, and applying it without spoiling a tree."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.process import need, refuse_full, run
from simlib.lab.renames import find_renames

_BASE = re.compile(r"#\s*base:\s*(\S+)\s+(\d+)\.(\d+)(?:\.(\d+))?")
_CURE = (
    "the tree differs from the one the series was written for: use the source package and version that "
    "kernel-patches/series names"
)
_PATCH = ("patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "--reject-file=-")
_DIFF = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Series:
    """The patch series and the kernel that it is for."""

    folder: Path
    patches: tuple[Path, ...]
    """In the order of the file ``series``."""
    package: str
    """The distribution's source package."""
    version: tuple[int, int, int]
    """Kernel version that the series was written for."""

    @property
    def archive(self) -> Path:
        """Where Debian installs the source package."""
        return Path("/usr/src") / f"{self.package}.tar.xz"

    @property
    def sha256(self) -> str:
        """Hash of what the patches change, in order: what a measurement names as its series.

        Their messages are not in it: they quote the measurements.
        """
        digest = hashlib.sha256()
        for patch in self.patches:
            digest.update(_DIFF.split(patch.read_bytes(), maxsplit=1)[-1] + b"\0")
        return digest.hexdigest()

    def without(self, names: Sequence[str]) -> Series:
        """The series without some of its patches, each named by its number or by its file.

        Raises `InputError` if there is no such patch.
        """
        left = list(self.patches)
        for name in names:
            found = [one for one in self.patches if one.name == name or _number(one.name) == _number(name) is not None]
            if not found:
                cure = f"give its number, 1 to {len(self.patches)}, or its file's name"
                raise InputError("--skip", name, "is no patch of the series", cure)
            left = [one for one in left if one not in found]
        return replace(self, patches=tuple(left))

    def touched(self) -> list[str]:
        """Files that the series changes or adds, relative to the kernel tree."""
        return sorted({name for patch in self.patches for name in _TOUCHED.findall(patch.read_text("utf-8"))})

    def within(self, folder: str) -> Series:
        """The patches that touch nothing outside of a folder of the kernel tree.

        >>> [patch.name[:4] for patch in read_series().within("tools/testing/selftests/").patches]
        ['0018', '0019']
        """
        ours = (p for p in self.patches if all(n.startswith(folder) for n in _TOUCHED.findall(p.read_text("utf-8"))))
        return replace(self, patches=tuple(ours))


def _number(name: str) -> int | None:
    """The number that a patch's name begins with."""
    found = re.match(r"\d+", name)
    return int(found[0]) if found else None


def patch_dir() -> Path:
    """Find the folder of the patch series: of the source tree, else of the installed package."""
    package = Path(__file__).resolve().parents[1]
    for place in (package.parent / "kernel-patches", package / "_kernel_patches"):
        if (place / "series").is_file():
            return place
    raise InputError("kernel-patches", str(package.parent), "holds no file named series", "install simlib again")


def read_series(folder: Path | None = None) -> Series:
    """Read a patch series.

    Raises `InputError` if the file ``series`` names no base or a patch that is not there.

    `folder`: by default the bundled one.
    """
    folder = folder or patch_dir()
    listing = folder / "series"
    lines = listing.read_text("utf-8").splitlines()
    base = next((found for line in lines if (found := _BASE.match(line))), None)
    if base is None:
        raise InputError(str(listing), "no base", "must name its kernel", "add '# base: linux-source-6.12 6.12.117'")
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for name in names:
        if not (folder / name).is_file():
            raise InputError(str(listing), name, "is not in the folder", "restore the file, or take out its line")
    version = (int(base[2]), int(base[3]), int(base[4] or 0))
    return Series(folder, tuple(folder / name for name in names), base[1], version)


def tree_version(tree: Path) -> tuple[int, int, int]:
    """Version of a kernel source tree, as its Makefile says.

    Raises `InputError` if the folder is no kernel source tree.
    """
    try:
        head = (tree / "Makefile").read_text("utf-8", errors="replace")[:2000]
        found = [re.search(rf"^{key} = (\d+)$", head, re.MULTILINE) for key in ("VERSION", "PATCHLEVEL", "SUBLEVEL")]
        return tuple(int(match[1]) for match in found)  # type: ignore[return-value,index]  # None is caught below
    except (OSError, TypeError):
        rule, cure = "is no Linux source tree", "name the folder that holds the kernel's top Makefile"
        raise InputError("source", str(tree), rule, cure, flag="--source") from None


def check_version(tree: Path, series: Series) -> tuple[int, int, int]:
    """Refuse a source package of another kernel line than the series is for; return its version."""
    version = tree_version(tree)
    if version[:2] != series.version[:2]:
        rule = f"the patch series is for Linux {'.'.join(map(str, series.version[:2]))}"
        cure = f"install the package {series.package}, or give the tree with --source to try it there"
        raise InputError("kernel source", ".".join(map(str, version)), rule, cure)
    return version


def apply_series(pristine: Path, series: Series, stage: Path) -> list[str]:
    """Apply the series to copies of the files it touches.

    The tree itself is not changed: `stage` receives the patched files and nothing else, so that a patch that fails
    leaves no half-patched tree behind. A patch that does not apply is left out, and those after it are tried without
    it, so that the error names all that have to be looked at. Files that newer kernels renamed are patched under
    their new names (`simlib.lab.renames`).

    Returns: The touched files, relative to the tree. Raises `InputError` if the program ``patch`` is missing. Raises
    `SimlibError`, which names each patch that does not apply, with its files and hunks.
    """
    need("applying the series", ["patch"], "apt-get install patch")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    renames = find_renames(pristine)
    texts = (renames.patch(patch.read_text("utf-8")) for patch in series.patches)
    touched = sorted({name for text in texts for name in _TOUCHED.findall(text)})
    for name in touched:
        if (pristine / name).is_file():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(pristine / name, stage / name)
    failures = []
    for patch in series.patches:
        text = renames.within(stage).patch(patch.read_text("utf-8"))
        if output := apply_patch(text, stage):
            refuse_full(output)
            failures.append(failure_of(patch.name, output, _CURE))
    if failures:
        shutil.rmtree(stage, ignore_errors=True)
        raise SimlibError(_report(failures, len(series.patches)))
    return touched


def apply_patch(text: str, stage: Path, fuzz: int = 0) -> str:
    """Apply a patch to copies of files, or change none; returns what ``patch`` printed if it does not apply, else "".

    - `fuzz`: lines of context that may differ.
    """
    with tempfile.TemporaryDirectory(prefix="simlib-patch-") as folder:
        given = Path(folder) / "given.patch"
        given.write_text(text, "utf-8", errors="surrogateescape")
        command = [*_PATCH, f"--fuzz={fuzz}", f"--input={given}"]
        for options in (["--dry-run"], []):
            done = run([*command, *options], cwd=stage, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       env={**os.environ, "LC_ALL": "C"})  # fmt: skip
            if done.returncode:
                return str(done.stdout) or "patch said nothing"
    return ""


def _report(failures: list[str], of: int) -> str:
    """All that does not apply, in one sentence."""
    if len(failures) == 1:
        return failures[0]
    known = f"; {_CURE}"
    short = [failure.removesuffix(known) for failure in failures]
    return f"{len(failures)} of {of} patches fail: {'; '.join(short)}{known}, or leave out what does not apply (--skip)"


def failure_of(patch: str, output: str, cure: str) -> str:
    """Say which hunks of which files failed, from what ``patch`` printed; `cure`: what to do then."""
    name, hunks = "the tree", list[str]()
    for line in output.splitlines():
        if found := re.match(r"\|\+\+\+ [ab]/(\S+)", line):
            return f"{patch} does not apply: {found[1]} is not there; {cure}"
        if "previously applied" in line:
            return f"{patch} is applied to {name} already, or something like it: give a tree without the series"
        if found := re.match(r"The next patch would create the file (\S+),", line):
            return f"{patch} does not apply: {found[1]} is there already; {cure}"
        if found := re.match(r"(?:checking|patching) file (\S+)", line):
            name = found[1]
        if found := re.match(r"Hunk #(\d+) FAILED at (\d+)", line):
            hunks.append(f"hunk {found[1]} of {name}, at line {found[2]}")
    if hunks:
        return f"{patch} does not apply: {', '.join(hunks)}; {cure}"
    return f"{patch} does not apply to {name}: {output.strip().splitlines()[-1]}"
