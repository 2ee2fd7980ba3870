# SPDX-License-Identifier: BSD-3-Clause
"""Processes on loopback: drivers of sweeps, Dask schedulers and workers, and functions that observe their work."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq

DASK = [str(Path(sys.executable).with_name("dask"))]
DRIVER = [sys.executable, "-m", "simlib", "sweep"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PATIENCE_S = 120.0
OBSERVE_S = 0.5
"""Time during which a busy worker may get no CPU on a loaded machine, s."""


def until(condition: Callable[[], bool], event: str) -> None:
    """Wait until a condition is true; fail after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {event}"
        time.sleep(0.02)


def port() -> int:
    """Return a free port of loopback, which another process may take before its use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a new session, which is killed at the end of the block."""
    with subprocess.Popen(command, start_new_session=True, **(QUIET | options)) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def scheduler(at: int):
    """Start a Dask scheduler on a port of loopback."""
    return started([*DASK, "scheduler", "--host", "127.0.0.1", "--port", str(at), "--no-dashboard", "--no-show"])


def dask_worker(at: int, folder: Path):
    """Start a Dask worker process with one thread, which its nanny restarts if it is killed."""
    return started([*DASK, "worker", f"tcp://127.0.0.1:{at}", "--host", "127.0.0.1", "--nthreads", "1",
                    "--no-dashboard", "--local-directory", str(folder), "--death-timeout", "60"])  # fmt: skip


def descendants(pid: int) -> list[psutil.Process]:
    """List all descendants of a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers_of(pid: int) -> list[psutil.Process]:
    """List the worker processes of a driver, which one of its children forks after importing their modules."""
    workers = []
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            workers += [process] if process.ppid() != pid else []
    return workers


def worker_cpu_time(pid: int) -> float:
    """CPU time of a driver's workers, s."""
    total = 0.0
    for process in workers_of(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rows_on_disk(folder: Path) -> int:
    """Number of finished points, which are in complete parts."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*/architecture=*/part-*.parquet"))


def at_work(driver: subprocess.Popen[bytes], folder: Path, points: int) -> bool:
    """True if a driver runs, has not finished all points, and its workers' CPU time grows."""
    before, deadline = worker_cpu_time(driver.pid), time.monotonic() + OBSERVE_S
    while worker_cpu_time(driver.pid) <= before and time.monotonic() < deadline:
        time.sleep(0.02)
    return driver.poll() is None and rows_on_disk(folder) < points and worker_cpu_time(driver.pid) > before
