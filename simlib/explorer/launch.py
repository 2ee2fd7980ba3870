# SPDX-License-Identifier: BSD-3-Clause
"""The page's server and, started in the same moment, its kernel: each takes seconds for its imports.

The kernel imports what the page needs and waits (`simlib.explorer.waiting`). Once Voilà asks for one, it is told what
every kernel is told (`simlib.explorer.kernels`). Who opens a second page gets a fresh one. This module runs before all
that takes long, so it imports none of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from simlib.explorer.processes import started_by

_KERNEL = """
from simlib.explorer.launch import leave_out_parsers
leave_out_parsers()
from simlib.explorer.waiting import wait
wait()
"""


@dataclass(frozen=True)
class Waiting:
    """A kernel that waits to be told who it is.

    Attributes
    ----------
    pipe : int
        File descriptor of the end that it is told by; it ends when that is closed, as by a server that has ended.
    """

    process: subprocess.Popen[bytes]
    pipe: int

    @classmethod
    def start(cls) -> Waiting:
        """Start one, in a session of its own as all kernels: what interrupts one goes to all of its session."""
        theirs, mine = os.pipe()
        line = [sys.executable, "-P", "-c", _KERNEL]
        # ipykernel reads whose it is when it is imported: it ends with its parent, and does not print how to connect.
        whose = os.environ | {"JPY_PARENT_PID": str(os.getpid())}
        process = subprocess.Popen(line, stdin=theirs, env=whose, start_new_session=True)  # noqa: S603  # no shell
        os.close(theirs)
        return cls(process, mine)

    def tell(self, connection_file: str, folder: str, environment: Mapping[str, str]) -> None:
        """Say where it is to listen, in which folder it is, and its environment."""
        told = {"connection_file": connection_file, "folder": folder, "environment": dict(environment)}
        with open(self.pipe, "wb") as pipe:
            pipe.write(json.dumps(told).encode())


_kernels: list[Waiting] = []


def main(folder: str, *, page: bool) -> None:
    """Be JupyterLab, with its arguments and the configuration of a folder, until the other end of stdin is closed.

    Parameters
    ----------
    folder : str
        Removed if this ends otherwise than by JupyterLab, as when whoever started it was killed.
    page : bool
        Whether a kernel is started for a page.
    """
    signal.signal(signal.SIGTERM, lambda *_: _end_at_once(folder))  # until JupyterLab, once imported, listens itself
    threading.Thread(target=_end_with, args=(os.dup(0), folder), daemon=True).start()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    if page:
        _kernels.append(Waiting.start())
        leave_out_parsers()
    read_only_from(folder)
    try:
        runpy.run_module("jupyterlab", run_name="__main__")
    finally:
        for kernel in _kernels:  # that nobody took
            kernel.process.kill()


def read_only_from(folder: str) -> None:
    """Let no user's and no system's configuration of Jupyter be read: it could open the server to everybody."""
    from jupyter_core import paths  # noqa: PLC0415  # before those who take this function from it

    paths.jupyter_config_path = lambda: [folder]


def _end_with(starter: int, folder: str) -> None:
    """Wait until the command that started this is gone, however it ended; end all that it would have ended."""
    while os.read(starter, 1):
        pass
    _end_at_once(folder)


def _end_at_once(folder: str) -> None:
    """End this process and all that it has started, and remove the folder."""
    for number in started_by(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def take() -> Waiting | None:
    """The kernel that waits, for the one who takes it; None if there is none, or it has ended."""
    kernel = _kernels.pop() if _kernels else None
    return kernel if kernel is not None and kernel.process.poll() is None else None


def leave_out_parsers() -> None:
    """Do without checks of IRIs: jsonschema has parsers for them made when it is imported, most of a second's work."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # so Python notes what is not to be found
