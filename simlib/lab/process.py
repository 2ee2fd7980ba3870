# SPDX-License-Identifier: BSD-3-Clause
"""Run other programs, and terminate them with all their children, even if the wait or this process is interrupted."""

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

StepReport = Callable[[str], None]
"""Called with a description of each step."""

TimeReport = Callable[[float], None]
"""Called repeatedly with the seconds since a program's start; an exception that it raises terminates the program."""

GRACE_S = 0.4
"""Time between SIGTERM and SIGKILL, s: enough for make to delete incomplete files; simlib still exits within 1 s."""

_FULL = ("No space left on device", "Disk quota exceeded")


def silent(*_: object) -> None:
    """Report nothing."""


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program, and terminate it with all its children at the end of the block.

    Where setpriv is installed, the program also receives SIGTERM, which make passes on to its children, if this process
    is killed or the calling thread ends.

    `**options`: of `subprocess.Popen`.

    >>> with started(["sleep", "60"]) as sleeper:
    ...     sleeper.poll()
    >>> sleeper.poll() is None
    False
    """
    setpriv = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    in_main_thread = threading.current_thread() is threading.main_thread()  # signals interrupt only the main thread
    process = None
    try:
        with DeferSignals() if in_main_thread else nullcontext():
            process = subprocess.Popen(  # noqa: S603  # callers give fixed programs and arguments from checked fields
                [*setpriv, *command], stdin=subprocess.DEVNULL, start_new_session=True, **options
            )
        yield process
    finally:
        if process is not None:
            with process:  # closes its pipes
                _end(process)


def run(
    command: Sequence[str], progress: TimeReport = silent, poll_s: float = 1.0, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program until it exits; an exception during the wait terminates it with all its children (`started`).

    `poll_s`: time between two calls of `progress`, s. `**options`: of `subprocess.Popen`.

    >>> run(["sh", "-c", "echo hello; exit 3"], stdout=subprocess.PIPE, text=True).returncode
    3
    """
    start = time.monotonic()
    with started(command, **options) as process:
        while True:
            try:
                out, err = process.communicate(timeout=poll_s)
            except subprocess.TimeoutExpired:
                progress(time.monotonic() - start)
            else:
                return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(process: subprocess.Popen[Any]) -> None:
    """Terminate a program and its children; kill them after `GRACE_S`."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)


def require_programs(what: str, commands: Sequence[str], hint: str) -> None:
    """Raise `InputError`, which names the missing programs, unless all programs are installed.

    - `what`: activity that needs the programs; `hint`: how to install them.

    >>> require_programs("measuring", ["sh", "no-such-program"], "install it")
    Traceback (most recent call last):
    simlib.InputError: measuring = no-such-program: not found; install it
    """
    if missing := [command for command in commands if shutil.which(command) is None]:
        raise InputError(what, ", ".join(missing), "not found", hint)


def build_once(source: Path, suffix: str, what: str, hint: str, commands: Sequence[Sequence[str]]) -> Path:
    """Compile a source file of simlib into the lab's folder, unless it was compiled before; return the result's path.

    Raises `InputError` if a program is missing. Raises `SimlibError` if the compilation fails.

    - `commands`: run one after the other; ``{source}`` is the source, ``{part}`` becomes the result, and ``{between}``
      is a temporary file.
    """
    result = lab_dir() / f"{source.stem}-{file_sha256(source)[:12]}{suffix}"
    if result.is_file():
        return result
    require_programs(what, [command[0] for command in commands], hint)
    result.parent.mkdir(parents=True, exist_ok=True)
    paths = {"source": str(source), "part": f"{result}.part", "between": f"{result}.o"}
    with locked(result.parent):
        for command in () if result.is_file() else commands:  # another process may have compiled it meanwhile
            done = run([word.format_map(paths) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True)  # fmt: skip
            if done.returncode:
                raise_if_disk_full(done.stdout)
                raise SimlibError(f"{source.name} does not compile: {done.stdout.strip().splitlines()[-1]}")
        if os.path.exists(paths["part"]):
            os.replace(paths["part"], result)
        Path(paths["between"]).unlink(missing_ok=True)
    return result


def raise_if_disk_full(output: str) -> None:
    """Raise `SimlibError` with a hint if a program's output says that the disk is full.

    >>> raise_if_disk_full("cc1: a.s: No space left on device")
    Traceback (most recent call last):
    simlib.SimlibError: cc1: a.s: No space left on device: free some space, or set SIMLIB_LAB (or TMPDIR) to a
    folder with more space
    """
    for line in output.splitlines():
        if any(text in line for text in _FULL):
            raise SimlibError(f"{line.strip()}: {MORE_SPACE}")
