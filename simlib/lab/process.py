# SPDX-License-Identifier: BSD-3-Clause
"""Runs other programs so that nothing of them is left behind, whatever ends the wait, or this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from simlib._lib.errors import InputError, SimlibError
from simlib._lib.files import locked
from simlib._lib.reading import file_sha256
from simlib._lib.signals import DeferSignals
from simlib.lab.cache import MORE_SPACE, lab_dir

GRACE_S = 0.4
"""How long a program may take to tidy up (make deletes what it has half-written) before it is killed, s.

With what else is to be done, a command ends within a second.
"""

_FULL = ("No space left on device", "Disk quota exceeded")


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program that runs for a while: with all its children it ends, at the latest, when the block does.

    If this process is killed, the program is told by SIGTERM, which make passes on to its own children, where there is
    setpriv. The signal comes when the thread that called this ends.

    `**options`: of `subprocess.Popen`.

    >>> with started(["sleep", "60"]) as sleeper:
    ...     sleeper.poll()
    >>> sleeper.poll() is None
    False
    """
    mortal = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    main = threading.current_thread() is threading.main_thread()  # no signal interrupts another one
    process = None
    try:
        with DeferSignals() if main else nullcontext():
            process = subprocess.Popen(  # noqa: S603  # callers give fixed programs and arguments from checked fields
                [*mortal, *command], stdin=subprocess.DEVNULL, start_new_session=True, **options
            )
        yield process
    finally:
        if process is not None:
            with process:  # closes its pipes
                _end(process)


def run(
    command: Sequence[str],
    progress: Callable[[float], None] = lambda seconds: None,
    look_s: float = 1.0,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `started`; if something else ends the wait, end it with all its children.

    `progress`: told the seconds since the start, every `look_s`; what it raises ends the program. `**options`: of
    `subprocess.Popen`.

    >>> run(["sh", "-c", "echo hello; exit 3"], stdout=subprocess.PIPE, text=True).returncode
    3
    """
    begun = time.monotonic()
    with started(command, **options) as process:
        while True:
            try:
                out, err = process.communicate(timeout=look_s)
            except subprocess.TimeoutExpired:
                progress(time.monotonic() - begun)
            else:
                return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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
    simlib.InputError: measuring = no-such-program: not found; install it
    """
    if missing := [command for command in commands if shutil.which(command) is None]:
        raise InputError(what, ", ".join(missing), "not found", cure)


def built_once(source: Path, suffix: str, what: str, cure: str, commands: Sequence[Sequence[str]]) -> Path:
    """A file in the lab's folder that is made of a source of ours, unless that was done.

    Raises `InputError` if a program is missing. Raises `SimlibError` if one refuses the source.

    - `what`, `cure`: what needs the programs, and how they are installed.
    - `commands`: one after the other; ``{source}`` is the source, ``{part}`` what becomes the file, ``{between}`` a
      file that is removed.
    """
    made = lab_dir() / f"{source.stem}-{file_sha256(source)[:12]}{suffix}"
    if made.is_file():
        return made
    need(what, [command[0] for command in commands], cure)
    made.parent.mkdir(parents=True, exist_ok=True)
    places = {"source": str(source), "part": f"{made}.part", "between": f"{made}.o"}
    with locked(made.parent):
        for command in () if made.is_file() else commands:  # another process may have needed it, too
            done = run([word.format_map(places) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True)  # fmt: skip
            if done.returncode:
                refuse_full(done.stdout)
                raise SimlibError(f"{source.name} does not compile: {done.stdout.strip().splitlines()[-1]}")
        if os.path.exists(places["part"]):
            os.replace(places["part"], made)
        Path(places["between"]).unlink(missing_ok=True)
    return made


def refuse_full(output: str) -> None:
    """Say so if a program failed because the disk is full.

    Raises `SimlibError` if its output says that.

    >>> refuse_full("cc1: a.s: No space left on device")
    Traceback (most recent call last):
    simlib.SimlibError: cc1: a.s: No space left on device: free some space, or set SIMLIB_LAB (or TMPDIR) to a
    larger place
    """
    for line in output.splitlines():
        if any(text in line for text in _FULL):
            raise SimlibError(f"{line.strip()}: {MORE_SPACE}")
