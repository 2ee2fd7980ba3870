# SPDX-License-Identifier: BSD-3-Clause
"""Where the lab keeps kernels, images and raw results: one folder, safe to delete."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib._lib.files import FULL

MORE_SPACE = "free some space, or set SIMLIB_LAB (or TMPDIR) to a larger place"
"""What to do about a full disk."""


def lab_dir() -> Path:
    """Folder of the lab: what ``SIMLIB_LAB`` names, else ``build/lab`` under the current folder."""
    return Path(os.environ.get("SIMLIB_LAB") or Path("build") / "lab").absolute()


def free_gib(folder: Path) -> float:
    """Room where a folder is, or will be, GiB."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(place).free / 2**30


def need_space(folder: Path, gib: float, what: str) -> None:
    """Refuse to begin something that the disk cannot hold.

    Raises `SimlibError` if fewer than `gib` GiB are free where `folder` will be.
    """
    free = free_gib(folder)
    if free < gib:
        raise SimlibError(f"{what} needs {gib:g} GiB below {folder}, {free:.1f} GiB are free: {MORE_SPACE}")


@contextmanager
def system_faults() -> Iterator[None]:
    """Turn what the operating system refuses into one sentence with its cure.

    Raises `SimlibError` in place of an `OSError`, except for a reader that has gone away.

    >>> with system_faults():
    ...     open("/no/such/file")
    Traceback (most recent call last):
    simlib.SimlibError: /no/such/file: No such file or directory
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        cure = f": {MORE_SPACE}" if error.errno in FULL else ""
        raise SimlibError(f"{where}{error.strerror or error}{cure}") from None


def check_own(*places: Path) -> None:
    """Refuse folders and files that another user could have put there: what lies in the lab is run.

    Raises `SimlibError` if one of them is there, and belongs to another user or may be written by all.
    """
    for place in places:
        try:
            found = place.stat()
        except FileNotFoundError:
            continue
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            why = "may be written by everybody" if found.st_uid == os.geteuid() else "belongs to another user"
            raise SimlibError(f"{place} {why}, and programs in it are run: set SIMLIB_LAB to a folder of your own")


@contextmanager
def at_work(*, alone: bool) -> Iterator[None]:
    """Hold the lab while something in it is used or, `alone`, changed; `system_faults` within.

    Raises `SimlibError` if another process holds it in a way that forbids this.
    """
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest of simlib runs

    folder = lab_dir()
    with system_faults():
        folder.mkdir(parents=True, exist_ok=True)
        check_own(folder)
        with (folder / "lock").open("a") as lock:  # the system gives it back, however this process ends
            try:
                fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SimlibError(
                    f"another simlib lab is at work in {folder}: wait for it, or set SIMLIB_LAB to another folder"
                ) from None
            yield
