# SPDX-License-Identifier: BSD-3-Clause
"""A QEMU process: which QMP sockets its command line names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from simlib._lib.errors import InputError
from simlib.lab.host.threads import PROC


def command_of(pid: int) -> list[str]:
    """Words of a process's command line.

    Raises `InputError` if there is no such process, or it does not say.

    >>> command_of(2**30)
    Traceback (most recent call last):
    simlib.InputError: PID = 1073741824: is no process; name that of QEMU: pgrep -a qemu
    """
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        raise InputError("PID", pid, "is no process", "name that of QEMU: pgrep -a qemu") from None
    except OSError as error:
        raise InputError("PID", pid, f"cannot be looked at ({error.strerror})", "run as root, or its user") from None
    return words[:-1]


def qmp_sockets(pid: int) -> list[str]:
    """Unix domain sockets at which a QEMU process speaks QMP, as far as its command line says.

    libvirt hands its monitor over as a file descriptor: then there is no path.
    """
    try:
        folder = os.readlink(PROC / str(pid) / "cwd")
    except OSError:
        folder = "/"
    return [str(Path(folder, path)) for path in sockets_in(command_of(pid))]


def sockets_in(command: Sequence[str]) -> list[str]:
    """Paths of the QMP sockets that a command line names."""
    options = [(option.lstrip("-"), *_keys(value)) for option, value in pairwise(command)]
    paths = {
        keys["id"]: keys["path"]
        for option, kind, keys in options
        if (option, kind) == ("chardev", "socket") and {"id", "path"} <= keys.keys()
    }
    found = []
    for option, first, keys in options:
        kind, _, place = first.partition(":")
        if option in ("qmp", "qmp-pretty"):
            found.append(place if kind == "unix" else paths.get(place, "") if kind == "chardev" else "")
        elif option == "mon" and keys.get("mode") == "control":
            found.append(paths.get(keys.get("chardev", first), ""))
    return [path for path in found if path]


def _keys(value: str) -> tuple[str, dict[str, str]]:
    """The first word of an option such as ``socket,id=m,path=/run/b``, and its keys."""
    parts = value.split(",")
    return parts[0], {key: found for key, equals, found in (part.partition("=") for part in parts) if equals}
