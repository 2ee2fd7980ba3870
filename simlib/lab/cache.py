# SPDX-License-Identifier: BSD-3-Clause
"""The lab's folder, for kernels, images and raw results, which is safe to delete; and a lock on this folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simlib._lib.errors import SimlibError
from simlib._lib.files import DISK_FULL_ERRNOS

MORE_SPACE = "free some space, or set SIMLIB_LAB (or TMPDIR) to a folder with more space"


def lab_dir() -> Path:
    """Folder of the lab: the value of ``SIMLIB_LAB``, or ``build/lab`` in the current folder if that is not set."""
    return Path(os.environ.get("SIMLIB_LAB") or Path("build") / "lab").absolute()


def free_gib(folder: Path) -> float:
    """Free space on the file system of a folder that need not exist yet, GiB."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free / 2**30


def require_space(folder: Path, gib: float, what: str) -> None:
    """Raise `SimlibError` if fewer than `gib` GiB are free on the file system of `folder`; `what`: what needs them."""
    free = free_gib(folder)
    if free < gib:
        raise SimlibError(f"{what} needs {gib:g} GiB in {folder}, but only {free:.1f} GiB is free: {MORE_SPACE}")


@contextmanager
def translate_os_errors() -> Iterator[None]:
    """Raise a `SimlibError` with a hint in place of an `OSError`, except for a broken pipe.

    >>> with translate_os_errors():
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
        hint = f": {MORE_SPACE}" if error.errno in DISK_FULL_ERRNOS else ""
        raise SimlibError(f"{where}{error.strerror or error}{hint}") from None


def check_ownership(*paths: Path) -> None:
    """Refuse folders and files that another user could have written, because the lab runs programs from them.

    Raises `SimlibError` if an existing path belongs to another user or is world-writable.
    """
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
            reason = "is world-writable" if status.st_uid == os.geteuid() else "belongs to another user"
            hint = "simlib runs programs from it, so set SIMLIB_LAB to a folder of your own"
            raise SimlibError(f"{path} {reason}: {hint}")


@contextmanager
def lab_lock(*, exclusive: bool) -> Iterator[None]:
    """Lock the lab's folder: shared while its files are used, `exclusive` while they are changed.

    Raises `SimlibError` if another process holds a conflicting lock, and in place of an `OSError` in the block.
    """
    import fcntl  # noqa: PLC0415  # Windows has no fcntl: importing this module must not fail there

    folder = lab_dir()
    with translate_os_errors():
        folder.mkdir(parents=True, exist_ok=True)
        check_ownership(folder)
        with (folder / "lock").open("a") as lock:  # the kernel releases the lock when this process ends, for any reason
            try:
                fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait until it ends, or set SIMLIB_LAB to another folder"
                raise SimlibError(f"another simlib process is using {folder}: {hint}") from None
            yield
