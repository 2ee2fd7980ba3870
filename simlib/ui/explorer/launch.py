# SPDX-License-Identifier: BSD-3-Clause
"""The process of the explorer's server: JupyterLab, which exits when the process that started it exits."""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import shutil
import signal
import threading
from pathlib import Path

from simlib._lib import lazy_imports


def main(folder: str) -> None:
    """Run JupyterLab with the configuration of a folder until the other end of stdin is closed.

    The folder is removed if JupyterLab does not exit by itself, e.g. because the command that started it was killed.
    """
    signal.signal(signal.SIGTERM, lambda *_: _end_at_once(folder))  # until JupyterLab installs its own handler
    threading.Thread(target=_end_with, args=(os.dup(0), folder), daemon=True).start()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # Jupyter reads neither the user's nor the system's configuration, which could open the server to everybody.
    from jupyter_core import paths  # noqa: PLC0415  # before other modules import this function from it

    paths.jupyter_config_path = lambda: [folder]
    for name in ("ServerApp", "asyncio", "tornado.general", "tornado.application"):  # a child's records pass its parent
        logging.getLogger(name).addFilter(_asks_for_action)
    with lazy_imports.without_module("rfc3987_syntax"):
        runpy.run_module("jupyterlab", run_name="__main__")


def _asks_for_action(record: logging.LogRecord) -> bool:
    """Return False for two messages of an ordinary end: a signal stops the server, a page closes during an answer."""
    error = record.exc_info[0] if record.exc_info else None
    page_closed = error is not None and error.__name__ == "WebSocketClosedError"
    return not page_closed and not str(record.msg).startswith("received signal")


def _end_with(starter: int, folder: str) -> None:
    """Wait until the process that started this one has ended, and then end this one and its descendants."""
    while os.read(starter, 1):
        pass
    _end_at_once(folder)


def _end_at_once(folder: str) -> None:
    """Kill the descendants of this process, remove the folder, and exit."""
    for number in started_by(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def started_by(number: int) -> list[int]:
    """Return the process IDs of the descendants of a process; an empty list if there is no ``/proc``."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    family = [number]
    for parent in family:
        family += parents.get(parent, [])
    return family[1:]
