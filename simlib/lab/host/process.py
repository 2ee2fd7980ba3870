# SPDX-License-Identifier: BSD-3-Clause
"""QMP sockets of a QEMU process, from its command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.lab.host.threads import PROC


def command_of(pid: int) -> list[str]:
    """Return the words of a process's command line.

    Raises `InputError` if there is no such process, or its command line cannot be read.

    >>> command_of(2**30)
    Traceback (most recent call last):
    simlib.InputError: PID = 1073741824: is no process; name that of QEMU: pgrep -a qemu
    """
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        raise InputError("PID", pid, "is no process", "name that of QEMU: pgrep -a qemu") from None
    except OSError as error:
        raise InputError("PID", pid, f"cannot be read ({error.strerror})", "run as root, or as its user") from None
    return words[:-1]


def qmp_sockets(pid: int) -> list[str]:
    """Return the Unix domain sockets at which a QEMU process serves QMP, according to its command line.

    libvirt passes its monitor as a file descriptor, which has no path.
    """
    try:
        folder = os.readlink(PROC / str(pid) / "cwd")
    except OSError:
        folder = "/"
    return [str(Path(folder, path)) for path in sockets_in(command_of(pid))]


def sockets_in(command: Sequence[str]) -> list[str]:
    """Return the paths of the QMP sockets in a command line."""
    options = [(option.lstrip("-"), *_keys(value)) for option, value in pairwise(command)]
    paths = {
        keys["id"]: keys["path"]
        for option, kind, keys in options
        if (option, kind) == ("chardev", "socket") and {"id", "path"} <= keys.keys()
    }
    sockets = []
    for option, first, keys in options:
        kind, _, place = first.partition(":")
        if option in ("qmp", "qmp-pretty"):
            sockets.append(place if kind == "unix" else paths.get(place, "") if kind == "chardev" else "")
        elif option == "mon" and keys.get("mode") == "control":
            sockets.append(paths.get(keys.get("chardev", first), ""))
    return [path for path in sockets if path]


def _keys(value: str) -> tuple[str, dict[str, str]]:
    """Split an option such as ``socket,id=m,path=/run/b`` into its first word and its keys."""
    parts = value.split(",")
    return parts[0], {key: text for key, equals, text in (part.partition("=") for part in parts) if equals}
