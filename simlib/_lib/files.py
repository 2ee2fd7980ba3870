# SPDX-License-Identifier: BSD-3-Clause
"""Atomic writes of single files, and of sets of files that belong together.

A file is written next to its destination, as ``.NAME.part``, and renamed once complete. A writer locks the folder; the
system releases that lock however the process ends, and the next writer removes what a killed process left.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from simlib._lib.errors import InputError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)  # error numbers of a full disk, or of an exceeded quota
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # error numbers of a file system without locks
_PROBE_BYTES = 1 << 16  # free space that a disk must have before work whose result is written there, bytes
_LOCK_TIMEOUT_S, _LOCK_POLL_S = 60.0, 0.02
"""Longest wait for another process that writes to the same folder, and interval at which its lock is polled, s."""

_MAX_NAME_BYTES = 240  # longest name to which ``.part`` is added, bytes; the system allows 255
PART = ".part"  # suffix of a file or folder that is being written; its name begins with a dot, so that readers skip it
_INCOMPLETE, _COMPLETE = f".simlib{PART}", ".simlib.whole"
"""Folders within an existing folder: a set that is being written, and a complete set that remains to be moved."""

_STREAMS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file; see `write_bytes`. Raises `InputError` if it cannot be written.

    - `path`: folders that do not exist are created.
    - `text`: written as UTF-8; characters that cannot be encoded (surrogates of a file's name) as escape sequences.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a" / "b.txt", "hello").read_text()
    'hello'
    """
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file next to its destination, then rename it; write to a device, a pipe or ``/dev/stdout`` directly.

    A link is followed: its target is replaced, and the link stays. A file keeps its permissions. Raises `InputError` if
    it cannot be written.
    """
    path = Path(path)
    with _as_input_error(path):
        number = _descriptor(path)
        if number is not None:
            sys.stdout.flush()  # keeps the order of the output
            with open(os.dup(number), "wb") as stream:
                stream.write(content)
        elif _is_special(path):
            path.write_bytes(content)
        else:
            replace(Path(os.path.realpath(path)), content)
    return path


def replace(place: Path, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file next to its destination, then rename it. Raises `OSError` if it cannot be written.

    - `place`: not a link; its folder is created if it does not exist.
    - `durable`: flush file and folder to the disk, so that the file survives a loss of power.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.parent) as folder, _temporary(_part(place)) as part:
        with open(part, "xb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(place, part)
        os.replace(part, place)
        if durable:
            os.fsync(folder)


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write several text files into a folder, so that a reader sees all of them or none.

    A new folder is written next to its destination and renamed. Into an existing folder the files are moved once all
    are written; if that is interrupted, the next call completes it first.

    Returns: Paths in the order of `texts`. Raises `InputError` if the folder cannot be created or written, or has
    something other than a regular file under one of these names; then no file is changed.

    - `folder`: created if it does not exist.
    - `texts`: contents by name.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_together(Path(folder) / "new", {"a.csv": "a", "a.json": "{}"})]
    ['a.csv', 'a.json']
    """
    with _as_input_error(folder):
        place = Path(os.path.realpath(folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            with locked(place.parent), _temporary(_part(place)) as part:
                if not place.exists():  # no other process was faster
                    _write_set(part, folder, texts)
                    os.rename(part, place)
                    return [folder / name for name in texts]
        with locked(place), _temporary(place / _INCOMPLETE) as part:
            _move_set(place / _COMPLETE, place)
            for name in texts:
                with _as_input_error(folder / name):
                    if os.path.lexists(place / name) and not stat.S_ISREG(os.lstat(place / name).st_mode):
                        raise OSError(errno.EEXIST, "the path is a link, a folder or a device")
            _write_set(part, folder, texts)
            os.rename(part, place / _COMPLETE)
            _move_set(place / _COMPLETE, place)
    return [folder / name for name in texts]


def finish_move(folder: Path) -> None:
    """Complete a move into a folder that a killed run left; raises `InputError` if the folder cannot be written."""
    with _as_input_error(folder):
        if (folder / _COMPLETE).is_dir():
            with locked(folder):
                _move_set(folder / _COMPLETE, folder)


def check_writable(path: str | Path, *, folder: bool = False) -> Path:
    """Check that a file can be written, before the work that computes its content. Leaves nothing behind.

    Raises `InputError` if it is a folder (or a file, with `folder`), its folder is a file or is not writable, or the
    disk is full.

    - `folder`: check for a folder instead of a file.

    >>> check_writable("/")
    Traceback (most recent call last):
    ...
    simlib.InputError: output = /: cannot be written (Is a directory); choose a folder that you may write to
    """
    path = Path(path)
    with _as_input_error(path):
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode) and not folder:
            raise _system(errno.EISDIR)
        if mode is not None and folder and not stat.S_ISDIR(mode):
            raise _system(errno.ENOTDIR)
        if _descriptor(path) is not None or _is_special(path):
            if not os.access(path, os.W_OK):
                raise _system(errno.EACCES)
            return path
        place = Path(os.path.realpath(path))
        for part in (place, *place.parents) if folder else place.parents:
            if _mode(part) is not None:
                break
        with tempfile.TemporaryFile(dir=part) as probe:  # has no name, where the system supports that
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    return path


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock a folder, if its file system supports locks; wait while another process holds the lock; yield a handle."""
    import fcntl  # noqa: PLC0415  # Windows has no fcntl: importing this module must not fail there

    handle, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + _LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "another process is writing to its folder") from None
                time.sleep(_LOCK_POLL_S)
                continue
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            break
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _temporary(part: Path) -> Iterator[Path]:
    """Remove a temporary file or folder after the block, and before it if a killed process has left one."""
    _remove(part)
    try:
        yield part
    finally:
        _remove(part)


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)


def _write_set(part: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files of a set to `part`; an error names the file by its final path in `folder`."""
    os.mkdir(part)
    for name, text in texts.items():
        with _as_input_error(folder / name):
            (part / name).write_bytes(text.encode("utf-8", "backslashreplace"))


def _move_set(complete: Path, place: Path) -> None:
    if complete.is_dir():
        for path in sorted(complete.iterdir()):
            os.replace(path, place / path.name)
        os.rmdir(complete)


def _part(place: Path) -> Path:
    """Path at which a file or folder is written until it is complete."""
    name = os.fsdecode(os.fsencode(place.name)[:_MAX_NAME_BYTES])
    return place.with_name(f".{name}{PART}")


def _mode(place: Path) -> int | None:
    """Mode of a file; None if the file does not exist."""
    try:
        return os.stat(place).st_mode
    except FileNotFoundError:
        return None


def _is_special(place: Path) -> bool:
    """True if the path is a device, a pipe or a socket, which must not be replaced by a file."""
    mode = _mode(place)
    return mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _descriptor(path: Path) -> int | None:
    """Number of the file descriptor of this process that a path such as ``/dev/stdout`` names; None for other paths."""
    named = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", _STREAMS.get(str(path), str(path)), re.ASCII)
    return int(named[1]) if named else None


def _system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextmanager
def _as_input_error(path: Path) -> Iterator[None]:
    """Raise an `InputError` that names the user's path if the block raises a system error, at any path."""
    try:
        yield
    except OSError as error:
        full = error.errno in DISK_FULL_ERRNOS
        hint = "free some space, or choose another disk" if full else "choose a folder that you may write to"
        reason = error.strerror or str(error)
        if str(error.filename).endswith(PART):  # left by a killed run
            reason = f"{error.filename}: {reason}"
        raise InputError("output", str(path), f"cannot be written ({reason})", hint) from None
    except ValueError as error:  # a byte 0 in a name
        if isinstance(error, InputError):
            raise
        raise InputError("output", str(path), f"cannot be written ({error})", "choose another name") from None
