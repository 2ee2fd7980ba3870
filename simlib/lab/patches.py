# SPDX-License-Identifier: BSD-3-Clause
"""The bundled patch series: its files, its kernel version, and its application to copies of a tree's files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

from simlib._lib.errors import InputError, SimlibError
from simlib.lab.process import raise_if_disk_full, require_programs, run

_BASE = re.compile(r"#\s*base:\s*(\S+)\s+(\d+)\.(\d+)(?:\.(\d+))?")
_HINT = (
    "the tree differs from the one the series was written for: use the source package and version that "
    "kernel-patches/series names"
)
_PATCH = ("patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "--reject-file=-")
_DIFF = re.compile(rb"^(?=diff --git )", re.MULTILINE)
SELFTESTS = "tools/testing/selftests/kvm/"
_LISTING = f"{SELFTESTS}Makefile.kvm"
_FOLDERS = {"x86_64": "x86", "aarch64": "arm64", "s390x": "s390"}
_DIFF_TEXT = re.compile(r"^(?=diff --git )", re.MULTILINE)
_LISTED = re.compile(r"^\+(TEST_GEN_PROGS\w* \+= \S+)$", re.MULTILINE)
_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Series:
    """The patch series and the kernel that it was written for."""

    folder: Path
    patches: tuple[Path, ...]
    """Paths, in the order of the file ``series``."""
    package: str
    """The distribution's source package."""
    version: tuple[int, int, int]
    """Kernel version that the series was written for."""

    @property
    def archive(self) -> Path:
        """Path at which Debian installs the source package."""
        return Path("/usr/src") / f"{self.package}.tar.xz"

    @property
    def sha256(self) -> str:
        """Hash of the patches' diffs, in order, which identifies the series of a measurement.

        It excludes the patches' messages, because they quote measurements.
        """
        digest = hashlib.sha256()
        for patch in self.patches:
            digest.update(_DIFF.split(patch.read_bytes(), maxsplit=1)[-1] + b"\0")
        return digest.hexdigest()

    def without(self, names: Sequence[str]) -> Series:
        """Return the series without the given patches, each named by its number or its file.

        Raises `InputError` if a name matches no patch.
        """
        remaining = self.patches
        for name in names:
            skipped = [p for p in self.patches if p.name == name or _number(p.name) == _number(name) is not None]
            if not skipped:
                hint = f"give its number, 1 to {len(self.patches)}, or its file's name"
                raise InputError("--skip", name, "is not a patch of the series", hint)
            remaining = tuple(patch for patch in remaining if patch not in skipped)
        return replace(self, patches=remaining)

    def touched(self) -> list[str]:
        """Files that the series changes or adds, relative to the kernel tree."""
        return sorted({name for patch in self.patches for name in _TOUCHED.findall(patch.read_text("utf-8"))})

    def within(self, folder: str) -> Series:
        """Return the series with only the patches that touch no file outside of a folder of the kernel tree.

        >>> [patch.name[:4] for patch in read_series().within("tools/testing/selftests/").patches]
        ['0018', '0019']
        """
        inside = (p for p in self.patches if all(n.startswith(folder) for n in _TOUCHED.findall(p.read_text("utf-8"))))
        return replace(self, patches=tuple(inside))


def _number(name: str) -> int | None:
    """Number at the beginning of a patch's name."""
    match = re.match(r"\d+", name)
    return int(match[0]) if match else None


def patch_dir() -> Path:
    """Find the folder of the patch series, in the checkout or in the installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "kernel-patches", package / "_kernel_patches"):
        if (folder / "series").is_file():
            return folder
    raise InputError("kernel-patches", str(package.parent), "has no file named series", "reinstall simlib")


def read_series(folder: Path | None = None) -> Series:
    """Read a patch series; default: the bundled one.

    Raises `InputError` if the file ``series`` names no base kernel, or a patch that is missing.
    """
    folder = folder or patch_dir()
    listing = folder / "series"
    lines = listing.read_text("utf-8").splitlines()
    base = next((match for line in lines if (match := _BASE.match(line))), None)
    if base is None:
        raise InputError(str(listing), "no base", "must name its kernel", "add '# base: linux-source-6.12 6.12.117'")
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for name in names:
        if not (folder / name).is_file():
            raise InputError(str(listing), name, "is not in the folder", "restore the file, or remove its line")
    version = (int(base[2]), int(base[3]), int(base[4] or 0))
    return Series(folder, tuple(folder / name for name in names), base[1], version)


def tree_version(tree: Path) -> tuple[int, int, int]:
    """Read the version of a kernel source tree from its Makefile.

    Raises `InputError` if the folder is not a kernel source tree.
    """
    try:
        head = (tree / "Makefile").read_text("utf-8", errors="replace")[:2000]
        matches = [re.search(rf"^{key} = (\d+)$", head, re.MULTILINE) for key in ("VERSION", "PATCHLEVEL", "SUBLEVEL")]
        return tuple(int(match[1]) for match in matches)  # type: ignore[return-value,index]  # None is caught below
    except (OSError, TypeError):
        rule, hint = "is not a Linux source tree", "name the folder of the kernel's top-level Makefile"
        raise InputError("source", str(tree), rule, hint, flag="--source") from None


def check_version(tree: Path, series: Series) -> tuple[int, int, int]:
    """Check the version of a source package, and return it.

    Raises `InputError` if the series is for another minor version of Linux.
    """
    version = tree_version(tree)
    if version[:2] != series.version[:2]:
        rule = f"the patch series is for Linux {'.'.join(map(str, series.version[:2]))}"
        hint = f"install the package {series.package}, or try the series on another tree with --source TREE"
        raise InputError("kernel source", ".".join(map(str, version)), rule, hint)
    return version


@dataclass(frozen=True)
class Renames:
    """Names of KVM's selftests in a tree newer than Linux 6.12, to which patches for 6.12 are translated.

    Linux 6.12 has the selftests for x86 in ``x86_64/`` and lists selftests in ``Makefile``. Newer trees have ``x86/``,
    ``arm64/`` and ``s390/``, and list them in ``Makefile.kvm``.
    """

    folders: dict[str, str]
    """New names of renamed selftest folders, by their old names."""
    text: str
    """Contents of `_LISTING`; empty if the tree lists its selftests in ``Makefile``, as Linux 6.12 does."""

    def within(self, stage: Path) -> Renames:
        """Return a copy with the contents of `_LISTING` in a staged tree, which earlier patches may have changed."""
        listing = stage / _LISTING
        return replace(self, text=listing.read_text("utf-8") if listing.is_file() else self.text)

    def patch(self, text: str) -> str:
        """Translate a patch for Linux 6.12 to this tree's names."""
        if not self.folders and not self.text:
            return text
        return "".join(self._part(part) for part in _DIFF_TEXT.split(text))

    def _part(self, part: str) -> str:
        """Translate a patch's diff of one file."""
        if self.text and part.startswith(f"diff --git a/{SELFTESTS}Makefile "):
            return self._list(part)
        for old, new in self.folders.items():
            part = part.replace(f"{SELFTESTS}{old}/", f"{SELFTESTS}{new}/")
        return part

    def _list(self, part: str) -> str:
        """Add the new selftests after the last one of their variable, because the patch's context differs here."""
        lines = self.text.splitlines()
        extended = list(lines)
        for line in _LISTED.findall(part):
            for old, new in self.folders.items():
                line = re.sub(rf"_{old} ", f"_{new} ", line).replace(f" {old}/", f" {new}/")  # noqa: PLW2901  # renamed
            variable = line.partition(" ")[0]
            indices = [i for i, listed in enumerate(extended) if re.match(rf"{variable}\s*\+?=", listed)]
            if line not in extended:
                extended.insert(indices[-1] + 1 if indices else len(extended), line)
        names = f"a/{_LISTING}", f"b/{_LISTING}"
        diff = "\n".join(unified_diff(lines, extended, *names, n=1, lineterm=""))
        return f"diff --git {' '.join(names)}\n{diff}\n" if diff else ""


def find_renames(tree: Path) -> Renames:
    """Detect the renames in a tree's selftests, from its files, not its version."""
    tests = tree / SELFTESTS
    folders = {old: new for old, new in _FOLDERS.items() if (tests / new).is_dir() and not (tests / old).is_dir()}
    return Renames(folders, "").within(tree)


def apply_series(pristine: Path, series: Series, stage: Path) -> list[str]:
    """Apply the series to copies of the files that it touches.

    Only the patched files are written to `stage`. If a patch does not apply, later patches are tried without it. Files
    that newer kernels renamed are patched under their new names (`Renames`).

    Returns: the touched files, relative to the tree. Raises `InputError` if the program ``patch`` is missing. Raises
    `SimlibError`, which names each patch that does not apply, with its files and hunks.
    """
    require_programs("applying the series", ["patch"], "apt-get install patch")
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
            raise_if_disk_full(output)
            failures.append(describe_failure(patch.name, output, _HINT))
    if failures:
        shutil.rmtree(stage, ignore_errors=True)
        raise SimlibError(_report(failures, len(series.patches)))
    return touched


def apply_patch(text: str, stage: Path, fuzz: int = 0, *, reverse: bool = False) -> str:
    """Apply a patch to copies of files, or take it back; up to `fuzz` lines of context may differ.

    Returns: an empty string. If the patch does not apply, no file is changed, and the output of ``patch`` is returned.
    """
    with tempfile.TemporaryDirectory(prefix="simlib-patch-") as folder:
        path = Path(folder) / "given.patch"
        path.write_text(text, "utf-8", errors="surrogateescape")
        command = [*_PATCH, f"--fuzz={fuzz}", f"--input={path}", *["--reverse"] * reverse]
        for options in (["--dry-run"], []):
            done = run([*command, *options], cwd=stage, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       env={**os.environ, "LC_ALL": "C"})  # fmt: skip
            if done.returncode:
                return str(done.stdout) or "patch printed nothing"
    return ""


def _report(failures: list[str], total: int) -> str:
    if len(failures) == 1:
        return failures[0]
    hint = f"; {_HINT}"
    short = "; ".join(failure.removesuffix(hint) for failure in failures)
    return f"{len(failures)} of {total} patches fail: {short}{hint}, or omit the patches that do not apply (--skip)"


def describe_failure(patch: str, output: str, hint: str) -> str:
    """Name the hunks and files at which a patch failed, from the output of ``patch``, followed by a hint."""
    name, hunks = "the tree", list[str]()
    for line in output.splitlines():
        if match := re.match(r"\|\+\+\+ [ab]/(\S+)", line):
            return f"{patch} does not apply: {match[1]} does not exist; {hint}"
        if "previously applied" in line:
            return f"{patch} or a similar change is already applied to {name}: give a tree without the series"
        if match := re.match(r"The next patch would create the file (\S+),", line):
            return f"{patch} does not apply: {match[1]} exists already; {hint}"
        if match := re.match(r"(?:checking|patching) file (\S+)", line):
            name = match[1]
        if match := re.match(r"Hunk #(\d+) FAILED at (\d+)", line):
            hunks.append(f"hunk {match[1]} of {name}, at line {match[2]}")
    if hunks:
        return f"{patch} does not apply: {', '.join(hunks)}; {hint}"
    return f"{patch} does not apply to {name}: {output.strip().splitlines()[-1]}"
