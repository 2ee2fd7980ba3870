# SPDX-License-Identifier: BSD-3-Clause
"""Writing files so that nobody ever sees half of one, nor some of several that belong together.

What is written stands beside its place, as ``.NAME.part``, until it is whole; then it is renamed. Whoever writes in a
folder holds a lock on it, which the system gives back however the process ends: what a killed one left is replaced by
the next.
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

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says if a disk, or the user's share of it, is full."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system says that knows no locks."""

_PROBE_BYTES = 1 << 16
"""What a disk must have room for, before work whose result goes there; bytes."""

_PATIENCE_S, _LOOK_S = 60.0, 0.02
"""How long another process that writes in the same folder is waited for, and how often it is looked for, s."""

_LONGEST_NAME = 240
"""Most bytes of a name to which ``.part`` is added; the system allows 255 in all."""

PART = ".part"
"""How the name of a file or folder ends that is being written; it begins with a dot, so that readers pass it by."""

_BEGUN, _WHOLE = f".simlib{PART}", ".simlib.whole"
"""Within a folder that is there already: a set that is being written, and one that is only to be moved."""

_STREAMS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file; see `write_bytes`.

    Raises `InputError` if it cannot be written.

    - `path`: folders that do not exist are made.
    - `text`: written as UTF-8; what cannot be (half of a character of a file's name) as a backslash and its number.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a" / "b.txt", "hello").read_text()
    'hello'
    """
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file beside its place, then rename it there; a device, a pipe or ``/dev/stdout`` is written to as it is.

    A link is followed: what it names is replaced, and the link stays. A file keeps its permissions.

    Raises `InputError` if it cannot be written.
    """
    path = Path(path)
    with _naming(path):
        number = _descriptor(path)
        if number is not None:  # what else is written there stands before it or behind it, as it comes
            sys.stdout.flush()
            with open(os.dup(number), "wb") as stream:
                stream.write(content)
        elif _is_special(path):
            path.write_bytes(content)
        else:
            replace(Path(os.path.realpath(path)), content)
    return path


def replace(place: Path, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file beside its place, then rename it there.

    Raises `OSError` if it cannot be written; see `write_bytes` for an error that a user reads.

    - `place`: no link; its folder is made if there is none.
    - `durable`: whether it is on the disk when this returns, and so survives a loss of power.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.parent) as folder, _own(_part(place)) as part:
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
    """Write several text files into a folder, of which whoever looks sees all or none.

    A folder that is new is written beside and renamed. Into one that is there, they are moved once all are written;
    if that is cut off, the next call ends it first.

    Returns: In the order of `texts`. Raises `InputError` if the folder cannot be made or written, or has something else
    than a file of one of these names; no file is changed then.

    - `folder`: made if it does not exist.
    - `texts`: names and contents.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_together(Path(folder) / "new", {"a.csv": "a", "a.json": "{}"})]
    ['a.csv', 'a.json']
    """
    with _naming(folder):
        place = Path(os.path.realpath(folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            with locked(place.parent), _own(_part(place)) as part:
                if not place.exists():  # no other process was faster
                    _fill(part, folder, texts)
                    os.rename(part, place)
                    return [folder / name for name in texts]
        with locked(place), _own(place / _BEGUN) as part:
            _move(place / _WHOLE, place)
            for name in texts:
                _refuse_other(place / name, folder / name)
            _fill(part, folder, texts)
            os.rename(part, place / _WHOLE)
            _move(place / _WHOLE, place)
    return [folder / name for name in texts]


def end_move(folder: Path) -> None:
    """End what a killed run had begun to move into a folder; for who looks at its files before writing there.

    Raises `InputError` if the folder cannot be written.
    """
    with _naming(folder):
        if (folder / _WHOLE).is_dir():
            with locked(folder):
                _move(folder / _WHOLE, folder)


def check_writable(path: str | Path, *, folder: bool = False) -> Path:
    """Refuse a file that could not be written, before the work of which it is to tell. Nothing stays there.

    Raises `InputError` if it is a folder (or, if it is to be one, a file), its folder is a file or may not be written,
    or the disk is full.

    - `folder`: whether it is to be a folder.

    >>> check_writable("/")
    Traceback (most recent call last):
    ...
    simlib.InputError: output = /: cannot be written (Is a directory); choose a folder that you may write to
    """
    path = Path(path)
    with _naming(path):
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
        with tempfile.TemporaryFile(dir=part) as probe:  # it has no name, where the system can do without
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    return path


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Be the only one who works in a folder, where its file system can; wait a while for who does; give its handle."""
    import fcntl  # noqa: PLC0415  # not on Windows, where names can be imported from here

    handle, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, "another process writes in its folder") from None
                time.sleep(_LOOK_S)
                continue
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            break
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _own(part: Path) -> Iterator[Path]:
    """A name of which nothing is there before the block, as a killed process left it, and nothing after."""
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


def _fill(beside: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files of a set; what goes wrong is said of the place where they will be."""
    os.mkdir(beside)
    for name, text in texts.items():
        with _naming(folder / name):
            (beside / name).write_bytes(text.encode("utf-8", "backslashreplace"))


def _move(whole: Path, place: Path) -> None:
    """Move the files of a set that is whole to their place."""
    if whole.is_dir():
        for path in sorted(whole.iterdir()):
            os.replace(path, place / path.name)
        os.rmdir(whole)


def _refuse_other(place: Path, shown: Path) -> None:
    """Refuse what is there and no file, which nobody meant to be replaced."""
    with _naming(shown):
        if os.path.lexists(place) and not stat.S_ISREG(os.lstat(place).st_mode):
            raise OSError(errno.EEXIST, "a link, a folder or a device is there")


def _part(place: Path) -> Path:
    """Where a file or folder is written until it is whole."""
    name = os.fsdecode(os.fsencode(place.name)[:_LONGEST_NAME])
    return place.with_name(f".{name}{PART}")


def _mode(place: Path) -> int | None:
    """What a place is; None if nothing is there."""
    try:
        return os.stat(place).st_mode
    except FileNotFoundError:
        return None


def _is_special(place: Path) -> bool:
    """Whether it is a device, a pipe or a socket: nothing that could be replaced by a file."""
    mode = _mode(place)
    return mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _descriptor(path: Path) -> int | None:
    """The number of this process's descriptor that a path names, as ``/dev/stdout`` does; None if it names none."""
    named = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", _STREAMS.get(str(path), str(path)), re.ASCII)
    return int(named[1]) if named else None


def _system(number: int) -> OSError:
    """An error as the system has it."""
    return OSError(number, os.strerror(number))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say of the user's own path what the system says of wherever it went wrong."""
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        cure = "free some space, or choose another disk" if full else "choose a folder that you may write to"
        why = error.strerror or str(error)
        if str(error.filename).endswith(PART):  # in the way of it, where a run that was killed left it
            why = f"{error.filename}: {why}"
        raise InputError("output", str(path), f"cannot be written ({why})", cure) from None
    except ValueError as error:  # a byte 0 in a name
        if isinstance(error, InputError):
            raise
        raise InputError("output", str(path), f"cannot be written ({error})", "choose another name") from None
