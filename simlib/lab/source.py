# SPDX-License-Identifier: BSD-3-Clause
"""The kernel source that the lab builds: unpacked once, then patched in place by replacing whole files."""

from __future__ import annotations

import filecmp
import hashlib
import lzma
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import write_text
from simlib._lib.reading import file_sha256
from simlib.lab.cache import require_space
from simlib.lab.patches import Series, apply_series, check_version, tree_version
from simlib.lab.process import StepReport, run

SOURCE_GIB = 2.0
"""Disk space of the unpacked and the patched tree, GiB; identical files are hard links."""


@dataclass(frozen=True)
class Source:
    """A patched kernel tree."""

    tree: Path
    """The patched tree. Its path never changes, so that rebuilding stays incremental."""
    origin: str
    """File name of the source package's archive, or ``directory``."""
    sha256: str
    """Hash of the archive, or of a directory's files with their names."""
    version: tuple[int, int, int]
    series_sha256: str

    @property
    def folder(self) -> Path:
        """Folder of this tree and the pristine one."""
        return self.tree.parent

    @property
    def pristine(self) -> Path:
        """The tree without patches."""
        return self.folder / "pristine"

    def provenance(self) -> dict[str, object]:
        """Description of the kernel source for the descriptor of a data set."""
        fields = asdict(self)
        del fields["tree"]
        return {**fields, "version": ".".join(map(str, self.version))}


def find_archive(series: Series) -> Path:
    """Find the archive of Debian's source package. Raises `InputError` if it is not installed."""
    archive = series.archive
    if not archive.is_file():
        version = ".".join(map(str, series.version[:2]))
        hint = f"apt-get install {series.package}, or give --source a Linux {version} tree"
        raise InputError("kernel source", str(archive), "does not exist", hint)
    return archive


def prepare_source(lab: Path, series: Series, kernel_tree: Path | None = None, progress: StepReport = print) -> Source:
    """Bring the patched tree up to date.

    Raises `InputError` if the source is missing, was built in place or is in the lab's folder, or if the source
    package has another version. Raises `SimlibError` if the series does not apply.

    `lab`: the lab's folder. `kernel_tree`: the caller's tree, which is not modified; default: the source package.
    """
    origin, sha256 = prepare_pristine(lab, series, kernel_tree, progress)
    pristine = lab / "pristine"
    version = tree_version(pristine) if kernel_tree else check_version(pristine, series)
    progress(f"applying patches to Linux {'.'.join(map(str, version))}: {len(series.patches)}")
    _patch(lab, series, lab / "source", lab / "patched.files")
    return Source(lab / "source", origin, sha256, version, series.sha256)


def prepare_pristine(
    folder: Path, series: Series, kernel_tree: Path | None = None, progress: StepReport = print, commit: str = ""
) -> tuple[str, str]:
    """Copy a kernel's source to ``pristine`` and ``source`` in a folder, unless they hold this source already.

    Returns: the origin (file name of the source package's archive, ``directory`` or ``commit``) and its hash. Raises
    as `prepare_source`.

    `commit`: hash of a commit of `kernel_tree`, which is used instead of the tree's files.
    """
    pristine, stamp, unpacking = folder / "pristine", folder / "pristine.key", f"copying {kernel_tree}"
    if kernel_tree is None:
        archive = find_archive(series)
        sha256 = key = file_sha256(archive)
        origin, unpacking = archive.name, f"unpacking {archive.name}"
    elif commit:
        origin, sha256, key = "commit", commit, commit
    else:
        if (version := tree_version(kernel_tree))[:2] != series.version[:2]:
            base = ".".join(map(str, series.version[:2]))
            progress(f"the series was written for Linux {base}, but this tree is Linux {'.'.join(map(str, version))}")
        _refuse_unfit(kernel_tree, folder)
        progress(f"reading {kernel_tree}")
        origin, sha256 = "directory", _tree_sha256(kernel_tree, folder)
        key = f"{kernel_tree.absolute()} {sha256}"
    if stamp.is_file() and stamp.read_text("utf-8") == key:
        return origin, sha256
    require_space(folder, SOURCE_GIB, "the kernel source")
    progress(unpacking)
    stamp.unlink(missing_ok=True)
    for stale in ("pristine", "source", "steps", "objects"):  # make compares dates, and would reuse these objects
        shutil.rmtree(folder / stale, ignore_errors=True)
    if kernel_tree is None:
        unpack(archive, pristine)
    elif commit:
        _unpack_commit(kernel_tree, commit, pristine)
    else:
        copy_tree(kernel_tree, pristine, folder, shutil.copy2)
    copy_tree(pristine, folder / "source", folder)
    write_text(stamp, key)
    return origin, sha256


def _unpack_commit(kernel_tree: Path, commit: str, pristine: Path) -> None:
    archive = pristine.with_suffix(".tar")
    archive.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "-C", str(kernel_tree), "archive", "--prefix=linux/", "-o", str(archive), commit]
    try:
        done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SimlibError(f"git cannot read commit {commit[:12]} of {kernel_tree}: {done.stdout.strip()[-200:]}")
        unpack(archive, pristine)
    finally:
        archive.unlink(missing_ok=True)


def prepare_step(folder: Path, series: Series, number: int) -> Path:
    """Apply the first `number` patches to the tree in which patches are checked one by one; return the tree's path.

    `folder`: the lab's folder, in which `prepare_source` was run.
    """
    tree = folder / "steps"
    if not tree.is_dir():
        part = tree.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        copy_tree(folder / "pristine", part, folder)
        os.rename(part, tree)
    _patch(folder, replace(series, patches=series.patches[:number]), tree, folder / "steps.files")
    return tree


def link_or_copy(source: Path, target: Path, *, follow_symlinks: bool) -> None:
    """Hard-link a file to a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target, follow_symlinks=follow_symlinks)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=follow_symlinks)


def copy_tree(tree: Path, target: Path, lab: Path, copy: Callable[..., object] = link_or_copy) -> None:
    """Copy a tree's files, except .git and the lab's folder."""
    for folder, names in _walk(tree, lab):
        copied = target / folder.relative_to(tree)
        copied.mkdir(parents=True)
        for name in names:
            copy(folder / name, copied / name, follow_symlinks=False)


def _refuse_unfit(kernel_tree: Path, lab: Path) -> None:
    """Raise `InputError` for a tree in the lab's folder, or one that was built in place, which kbuild rejects later."""
    if kernel_tree.resolve().is_relative_to(lab.resolve()):
        rule, hint = "is in the lab's folder", "give a tree outside of it"
        raise InputError("source", str(kernel_tree), rule, hint, flag="--source")
    for name in (".config", "include/config"):
        if (kernel_tree / name).exists():
            hint = "run make mrproper there, or give a git worktree"
            raise InputError("source", str(kernel_tree), f"was built in place: it has {name}", hint, flag="--source")


def _walk(kernel_tree: Path, lab: Path) -> Iterator[tuple[Path, list[str]]]:
    """Iterate over the folders of a tree with the names of their files, except .git and the lab's folder."""
    excluded = lab.resolve()
    for path, subfolders, names in os.walk(kernel_tree):
        folder = Path(path)
        links = [name for name in subfolders if (folder / name).is_symlink()]
        kept = (name for name in subfolders if name not in (".git", *links))
        subfolders[:] = sorted(name for name in kept if (folder / name).resolve() != excluded)
        yield folder, sorted(name for name in (*names, *links) if name != ".git")


def _tree_sha256(kernel_tree: Path, lab: Path) -> str:
    digest = hashlib.sha256()
    for folder, names in _walk(kernel_tree, lab):
        for path in (folder / name for name in names):
            content = os.readlink(path) if path.is_symlink() else file_sha256(path)
            digest.update(f"{path.relative_to(kernel_tree)}\0{content}\0".encode())
    return digest.hexdigest()


def unpack(archive: Path, pristine: Path, prefixes: tuple[str, ...] = ("",)) -> None:
    """Unpack a source package into a temporary folder and rename it, so that an interrupted run leaves no partial tree.

    Raises `SimlibError` if the archive is damaged. `prefixes`: of the paths to unpack, in the tree; default: all.
    """
    # The filter exists since Python 3.11.4; Debian 12 has 3.11.2.
    options: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    part = pristine.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive, "r:xz" if archive.suffix == ".xz" else "r:") as stream:
            members = (member for member in stream if member.name.partition("/")[2].startswith(prefixes))
            stream.extractall(part, members, **options)  # noqa: S202  # the distribution's own package, or a part of it
        roots = list(part.iterdir())
        os.rename(roots[0] if len(roots) == 1 else part, pristine)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise SimlibError(f"{archive} cannot be unpacked ({error}): reinstall the package") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _patch(folder: Path, series: Series, tree: Path, listing: Path) -> None:
    stage = folder / "stage"
    touched = apply_series(folder / "pristine", series, stage)
    sync_tree(folder / "pristine", stage, touched, tree, listing)
    shutil.rmtree(stage, ignore_errors=True)


def sync_tree(pristine: Path, stage: Path, touched: Sequence[str], tree: Path, listing: Path) -> None:
    """Make a tree equal to the pristine one except for the `touched` files; only files that change are written.

    `stage`: holds the `touched` files; a touched file that it lacks is removed from the tree. `listing`: file that
    lists the touched files of the last call.
    """
    before = listing.read_text("utf-8").split() if listing.is_file() else []
    names = sorted({*before, *touched})
    write_text(listing, "\n".join(names))  # first: the next run then repairs what an interrupted run has changed
    for name in names:
        origin = stage / name if name in touched else pristine / name
        path = tree / name
        if not origin.is_file():
            path.unlink(missing_ok=True)
        elif not path.is_file() or not filecmp.cmp(origin, path, shallow=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            shutil.copy(origin, part)
            os.replace(part, path)
    write_text(listing, "\n".join(touched))
