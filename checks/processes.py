# SPDX-License-Identifier: BSD-3-Clause
"""Real processes on loopback: drivers, Dask schedulers and workers, and whether they are at work."""

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
LOOK_S = 0.5
"""For so long a worker that is at work may get no CPU, where others want it."""


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true; fail if that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)


def port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, all of which ends with the block."""
    with subprocess.Popen(command, start_new_session=True, **(QUIET | options)) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def scheduler(at: int):
    """A Dask scheduler on a port of loopback."""
    return started([*DASK, "scheduler", "--host", "127.0.0.1", "--port", str(at), "--no-dashboard", "--no-show"])


def dask_worker(at: int, folder: Path):
    """A Dask worker process of one thread, started anew by its nanny if it is killed."""
    return started([*DASK, "worker", f"tcp://127.0.0.1:{at}", "--host", "127.0.0.1", "--nthreads", "1",
                    "--no-dashboard", "--local-directory", str(folder), "--death-timeout", "60"])  # fmt: skip


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers_of(pid: int) -> list[psutil.Process]:
    """Worker processes of a driver, which are forked by a child of it that has imported what they need."""
    found = []
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.ppid() != pid else []
    return found


def spent(pid: int) -> float:
    """CPU time of a driver's workers, s."""
    total = 0.0
    for process in workers_of(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def rows_on_disk(folder: Path) -> int:
    """Points that stand in whole parts: what is finished."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*/architecture=*/part-*.parquet"))


def at_work(driver: subprocess.Popen[bytes], folder: Path, points: int) -> bool:
    """Whether a driver runs, has not finished all points, and its workers' CPU time grows."""
    before, deadline = spent(driver.pid), time.monotonic() + LOOK_S
    while spent(driver.pid) <= before and time.monotonic() < deadline:
        time.sleep(0.02)
    return driver.poll() is None and rows_on_disk(folder) < points and spent(driver.pid) > before
