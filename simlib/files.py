# SPDX-License-Identifier: BSD-3-Clause
"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simlib.errors import InputError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says if a disk, or the user's share of it, is full."""


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file beside its place, then rename it there.

    Parameters
    ----------
    path : str or Path
        Folders that do not exist are made.
    text : str

    Returns
    -------
    Path

    Raises
    ------
    InputError
        If the folder cannot be made or written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a" / "b.txt", "hello").read_text()
    'hello'
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's 0600 is for secrets
        os.replace(temporary, path)
    except OSError as error:
        raise _fault(path, error) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


def check_writable(path: str | Path) -> Path:
    """Refuse a file that could not be written, before the work of which it is to tell. Nothing is made.

    Raises
    ------
    InputError
        If it is a folder, or its folder is a file or may not be written.

    Examples
    --------
    >>> check_writable("/")
    Traceback (most recent call last):
    ...
    simlib.errors.InputError: output = /: cannot be written (Is a directory); choose a folder that you may write to
    """
    path = Path(path)
    if path.is_dir():
        raise _fault(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    folder = next(part for part in path.absolute().parents if part.exists())
    if not folder.is_dir():
        raise _fault(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _fault(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return path


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write several text files into a folder beside, then rename all of them: whoever looks sees whole files.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    texts : mapping of str to str
        Names and contents.

    Returns
    -------
    list of Path
        In the order of `texts`.

    Raises
    ------
    InputError
        If the folder cannot be made or written; no file is changed then, unless a rename fails.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_together(Path(folder), {"a.csv": "a", "a.json": "{}"})]
    ['a.csv', 'a.json']
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as beside:
            for name, text in texts.items():
                write_text(Path(beside) / name, text)
            for name in texts:
                os.replace(Path(beside) / name, folder / name)
    except OSError as error:
        raise _fault(folder, error) from None
    return [folder / name for name in texts]


def _fault(path: Path, error: OSError) -> InputError:
    """What to say of a place that cannot be written."""
    cure = "free some space, or choose another disk" if error.errno in FULL else "choose a folder that you may write to"
    return InputError("output", str(path), f"cannot be written ({error.strerror})", cure)
