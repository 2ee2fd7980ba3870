# SPDX-License-Identifier: BSD-3-Clause
"""Runs other programs so that nothing of them is left behind, whatever ends the wait, or this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from simlib.errors import InputError, SimlibError
from simlib.interruption import Held
from simlib.lab.cache import MORE_SPACE

GRACE_S = 0.4
"""How long a program may take to tidy up (make deletes what it has half-written) before it is killed, s.

With what else is to be done, a command ends within a second.
"""

_FULL = ("No space left on device", "Disk quota exceeded")


def run(
    command: Sequence[str],
    progress: Callable[[float], None] = lambda seconds: None,
    look_s: float = 1.0,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end; if something else ends the wait, end it with all its children.

    If this process is killed, the program is told by SIGTERM, which make passes on to its own children, where there is
    setpriv. The signal comes when the thread that called this ends.

    `progress`: told the seconds since the start, every `look_s`; what it raises ends the program. `**options`: of
    `subprocess.Popen`.

    >>> run(["sh", "-c", "echo hello; exit 3"], stdout=subprocess.PIPE, text=True).returncode
    3
    """
    begun = time.monotonic()
    process = None
    mortal = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    main = threading.current_thread() is threading.main_thread()  # no signal interrupts another one
    try:
        with Held() if main else nullcontext():
            process = subprocess.Popen(  # noqa: S603  # callers give fixed programs and arguments from checked fields
                [*mortal, *command], stdin=subprocess.DEVNULL, start_new_session=True, **options
            )
        while True:
            try:
                out, err = process.communicate(timeout=look_s)
            except subprocess.TimeoutExpired:
                progress(time.monotonic() - begun)
            else:
                return subprocess.CompletedProcess(process.args, process.returncode, out, err)
    finally:
        if process is not None:
            with process:  # closes its pipes
                _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    """End a program and its children: by force if they do not within `GRACE_S`."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)


def need(what: str, commands: Sequence[str], cure: str) -> None:
    """Refuse to begin without some programs.

    Raises `InputError` if one is not there; it names all that are missing.

    >>> need("measuring", ["sh", "no-such-program"], "install it")
    Traceback (most recent call last):
    simlib.errors.InputError: measuring = no-such-program: not found; install it
    """
    if missing := [command for command in commands if shutil.which(command) is None]:
        raise InputError(what, ", ".join(missing), "not found", cure)


def refuse_full(output: str) -> None:
    """Say so if a program failed because the disk is full.

    Raises `SimlibError` if its output says that.

    >>> refuse_full("cc1: a.s: No space left on device")
    Traceback (most recent call last):
    simlib.errors.SimlibError: cc1: a.s: No space left on device: free some space, or set SIMLIB_LAB (or TMPDIR) to a
    larger place
    """
    for line in output.splitlines():
        if any(text in line for text in _FULL):
            raise SimlibError(f"{line.strip()}: {MORE_SPACE}")
