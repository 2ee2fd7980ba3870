# SPDX-License-Identifier: BSD-3-Clause
"""The kernel source that the lab builds: unpacked once, patched in place by whole files."""

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
from simlib.lab.cache import need_space
from simlib.lab.patches import Series, apply_series, check_version, tree_version
from simlib.lab.process import run

SOURCE_GIB = 2.0
"""Room that the unpacked and the patched tree take, GiB: files are shared by hard links until they differ."""


@dataclass(frozen=True)
class Source:
    """A patched kernel tree."""

    tree: Path
    """The patched tree. Its path never changes, so that rebuilding stays incremental."""
    origin: str
    """File name of the source package's archive, or ``directory``."""
    sha256: str
    """Of the archive, or of a directory's files with their names."""
    version: tuple[int, int, int]
    series_sha256: str

    @property
    def folder(self) -> Path:
        """Where the tree lies, beside the pristine one."""
        return self.tree.parent

    @property
    def pristine(self) -> Path:
        """The tree as it was given."""
        return self.folder / "pristine"

    def provenance(self) -> dict[str, object]:
        """What a data set says about its kernel source."""
        known = asdict(self)
        del known["tree"]
        return {**known, "version": ".".join(map(str, self.version))}


def find_archive(series: Series) -> Path:
    """The source package's archive, as Debian installs it.

    Raises `InputError` if it is not installed.
    """
    archive = series.archive
    if not archive.is_file():
        line = ".".join(map(str, series.version[:2]))
        cure = f"apt-get install {series.package}, or give --source a Linux {line} tree"
        raise InputError("kernel source", str(archive), "is not there", cure)
    return archive


def prepare_source(
    folder: Path, series: Series, given: Path | None = None, progress: Callable[[str], None] = print
) -> Source:
    """Bring the patched tree up to date.

    Raises `InputError`, `SimlibError` if the source is missing, built in or part of the lab, or the series does not
    apply; for the source package also if it is of another version.

    `folder`: the lab's folder. `given`: a kernel tree of one's own; it is only read. Default: the source package.
    `progress`: told what is being done.
    """
    origin, sha256 = bring_pristine(folder, series, given, progress)
    pristine = folder / "pristine"
    version = tree_version(pristine) if given else check_version(pristine, series)
    progress(f"applying {len(series.patches)} patches to Linux {'.'.join(map(str, version))}")
    _patch(folder, series, folder / "source", folder / "patched.files")
    return Source(folder / "source", origin, sha256, version, series.sha256)


def bring_pristine(
    folder: Path,
    series: Series,
    given: Path | None = None,
    progress: Callable[[str], None] = print,
    commit: str = "",
) -> tuple[str, str]:
    """Bring ``pristine`` and ``source`` below a folder to a kernel's source; what stands there already is kept.

    Returns: File name of the source package's archive, ``directory`` or ``commit``; and its hash. Raises as
    `prepare_source`.

    `commit`: hash of a commit of `given`, which is taken instead of the files that lie there.
    """
    pristine, stamp, unpacking = folder / "pristine", folder / "pristine.key", f"copying {given}"
    if given is None:
        archive = find_archive(series)
        sha256 = key = file_sha256(archive)
        origin, unpacking = archive.name, f"unpacking {archive.name}"
    elif commit:
        origin, sha256, key = "commit", commit, commit
    else:
        if (own := tree_version(given))[:2] != series.version[:2]:
            known = ".".join(map(str, series.version[:2]))
            progress(f"the series was written for Linux {known}, this is {'.'.join(map(str, own))}")
        _refuse_unfit(given, folder)
        progress(f"reading {given}")
        origin, sha256 = "directory", _tree_sha256(given, folder)
        key = f"{given.absolute()} {sha256}"
    if stamp.is_file() and stamp.read_text("utf-8") == key:
        return origin, sha256
    need_space(folder, SOURCE_GIB, "the kernel source")
    progress(unpacking)
    stamp.unlink(missing_ok=True)
    for old in ("pristine", "source", "steps", "objects"):  # make would trust objects by their dates
        shutil.rmtree(folder / old, ignore_errors=True)
    if given is None:
        unpack(archive, pristine)
    elif commit:
        _unpack_commit(given, commit, pristine)
    else:
        copy_tree(given, pristine, folder, shutil.copy2)
    copy_tree(pristine, folder / "source", folder)
    write_text(stamp, key)
    return origin, sha256


def _unpack_commit(given: Path, commit: str, pristine: Path) -> None:
    """Take a commit's files out of a git tree, in which nothing is written."""
    packed = pristine.with_suffix(".tar")
    packed.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "-C", str(given), "archive", "--prefix=linux/", "-o", str(packed), commit]
    try:
        done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SimlibError(f"git cannot read commit {commit[:12]} of {given}: {done.stdout.strip()[-200:]}")
        unpack(packed, pristine)
    finally:
        packed.unlink(missing_ok=True)


def prepare_step(folder: Path, series: Series, number: int) -> Path:
    """Bring the tree in which patches are tried one by one to the first patches; only what changes is written.

    Returns: The tree.

    `folder`: the lab's folder, in which `prepare_source` was run. `number`: how many patches of it.
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
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target, follow_symlinks=follow_symlinks)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=follow_symlinks)


def copy_tree(tree: Path, target: Path, lab: Path, copy: Callable[..., object] = link_or_copy) -> None:
    """Copy a tree's files, but neither git's own nor the lab's, if that lies within."""
    for place, names in _walk(tree, lab):
        copied = target / place.relative_to(tree)
        copied.mkdir(parents=True)
        for name in names:
            copy(place / name, copied / name, follow_symlinks=False)


def _refuse_unfit(given: Path, folder: Path) -> None:
    """Refuse a tree that the lab would delete, and one that was built in: kbuild would, and after minutes."""
    if given.resolve().is_relative_to(folder.resolve()):
        rule, cure = "lies in the lab's own folder", "give a tree that lies elsewhere"
        raise InputError("source", str(given), rule, cure, flag="--source")
    for name in (".config", "include/config"):
        if (given / name).exists():
            cure = "run make mrproper there, or give a git worktree"
            raise InputError("source", str(given), f"was built in place: it has {name}", cure, flag="--source")


def _walk(given: Path, folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders of a kernel tree with the names of their files; neither git's own nor the lab's, if that lies within."""
    lab = folder.resolve()
    for place, folders, names in os.walk(given):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if name not in (".git", *links) and (Path(place) / name).resolve() != lab
        )
        yield Path(place), sorted(name for name in (*names, *links) if name != ".git")


def _tree_sha256(given: Path, folder: Path) -> str:
    """Hash of a tree's files: an edit of one's own tree is another source."""
    digest = hashlib.sha256()
    for place, names in _walk(given, folder):
        for path in (place / name for name in names):
            content = os.readlink(path) if path.is_symlink() else file_sha256(path)
            digest.update(f"{path.relative_to(given)}\0{content}\0".encode())
    return digest.hexdigest()


def unpack(archive: Path, pristine: Path, only: tuple[str, ...] = ("",)) -> None:
    """Unpack beside, then rename: an interrupted run leaves nothing that looks whole.

    Raises `SimlibError` if the archive is damaged.

    `archive`: a source package's. `pristine`: where the tree is to lie. `only`: what the paths within the tree begin
    with. Default: all of it.
    """
    # Not before Python 3.11.4, and Debian 12 has 3.11.2.
    safely: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    part = pristine.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive, "r:xz" if archive.suffix == ".xz" else "r:") as packed:
            members = (member for member in packed if member.name.partition("/")[2].startswith(only))
            packed.extractall(part, members, **safely)  # noqa: S202  # the distribution's own package, or a part of it
        roots = list(part.iterdir())
        os.rename(roots[0] if len(roots) == 1 else part, pristine)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise SimlibError(f"{archive} cannot be unpacked ({error}): install the package again") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _patch(folder: Path, series: Series, tree: Path, listing: Path) -> None:
    """Make the tree equal to the pristine one plus the series."""
    stage = folder / "stage"
    touched = apply_series(folder / "pristine", series, stage)
    lay_over(folder / "pristine", stage, touched, tree, listing)
    shutil.rmtree(stage, ignore_errors=True)


def lay_over(pristine: Path, stage: Path, touched: Sequence[str], tree: Path, listing: Path) -> None:
    """Make a tree equal to the pristine one but for some files; only files whose content changes are written.

    `stage`: holds the `touched` files; one that it does not hold is removed. `listing`: file that keeps what was laid
    over the tree.
    """
    before = listing.read_text("utf-8").split() if listing.is_file() else []
    names = sorted({*before, *touched})
    write_text(listing, "\n".join(names))  # first: what an interrupted run has changed is known to the next one
    for name in names:
        wanted = stage / name if name in touched else pristine / name
        present = tree / name
        if not wanted.is_file():
            present.unlink(missing_ok=True)
        elif not present.is_file() or not filecmp.cmp(wanted, present, shallow=False):
            present.parent.mkdir(parents=True, exist_ok=True)
            part = present.with_name(present.name + ".part")
            shutil.copy(wanted, part)
            os.replace(part, present)
    write_text(listing, "\n".join(touched))
