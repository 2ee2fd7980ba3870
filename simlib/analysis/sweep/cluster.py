# SPDX-License-Identifier: BSD-3-Clause
"""Executor on a Dask cluster whose workers and scheduler may disappear and come back."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distributed import Client, Security
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError, connect
from distributed.core import send_recv
from distributed.scheduler import KilledWorker
from distributed.utils import silence_logging_cmgr

from simlib._lib.errors import SimlibError, shortened
from simlib._lib.parallel import cpus

if TYPE_CHECKING:
    from distributed.cfexecutor import ClientExecutor

CONNECT_TIMEOUT_S = 10.0
"""Time limit of one attempt to reach a scheduler, s."""


class Cluster(AbstractContextManager["Cluster"]):
    """Dask cluster as an executor for `simlib._lib.parallel.use_executor` and `simlib.analysis.sweep.run`.

    Raises `SimlibError` if no scheduler can be reached.

    - `where`: the scheduler's address (``tcp://127.0.0.1:8786``) or a client, which stays open.
    - `patience`: time in seconds to wait for a scheduler that has disappeared.
    """

    lost = (CancelledError, FutureCancelledError, KilledWorker, CommClosedError)
    """Exceptions of a task's future if its worker or the scheduler has disappeared."""

    def __init__(self, where: str | Client, patience: float = 300.0) -> None:
        self._given = where if isinstance(where, Client) else None
        self._address = where.scheduler.address if isinstance(where, Client) else where
        self._patience = patience
        self._client = self._given or _connect(self._address, CONNECT_TIMEOUT_S)
        self._threads, self._updated = 0, -math.inf
        self._executor: ClientExecutor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        """Number of the workers' threads, updated at most once a second; this machine's CPUs if there are none."""
        if time.monotonic() - self._updated > 1.0 and self._client.status == "running":
            self._updated = time.monotonic()
            with suppress(OSError, TimeoutError):  # the scheduler has disappeared: `submit` waits for it
                self._threads = sum(self._client.nthreads().values())
        return self._threads or cpus()

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a task on the cluster; if its scheduler has disappeared, wait until it is back."""
        deadline = time.monotonic() + self._patience
        while self._client.status != "running":
            if time.monotonic() > deadline:
                raise SimlibError(
                    f"no answer from scheduler {self._address} for {self._patience:.0f} s; finished results are kept",
                    "restart the scheduler, and run with resume=True", "restart the scheduler, and run with --resume",
                )  # fmt: skip
            self._reconnect()
        future: Future[Any] = self._executor.submit(task, *arguments)
        return future

    def _reconnect(self) -> None:
        """Try to reach the scheduler again; a client that was passed in reconnects by itself."""
        if self._given is None and self._client.status != "connecting":
            with suppress(SimlibError):
                self._client = _connect(self._address, CONNECT_TIMEOUT_S)
                self._executor = self._client.get_executor(pure=False)
                return
        time.sleep(0.2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Cancel running tasks, and close the client if it was opened here."""
        if self._client.status == "running":
            self._executor.shutdown(wait=False)
        if self._given is None:
            self._client.close(timeout=2)


def _connect(address: str, timeout: float) -> Client:
    """Open a client of a scheduler, after probing its address: a client that fails cannot be closed cleanly."""
    with silence_logging_cmgr(logging.CRITICAL + 1):
        fault = _probe(address, timeout)
        if not fault:
            try:
                return Client(address, timeout=timeout, set_as_default=False, name="simlib")
            except Exception as error:  # it has disappeared meanwhile, or has another version
                fault = _describe(error)
    raise SimlibError(
        f"no Dask scheduler answers at {shortened(address)} ({fault})",
        "start one with `dask scheduler`, and give the address that it prints, such as tcp://127.0.0.1:8786",
    )


def _probe(address: str, timeout: float) -> str:
    """Return the reason why no scheduler answers; empty if one does.

    The attempt runs in a thread with a separate event loop, because the caller's loop may be running, as in a notebook.
    If the attempt hangs, the thread is abandoned.
    """

    async def answer() -> str:
        try:
            arguments = Security().get_connection_args("client")
            async with asyncio.timeout(timeout):
                comm = await connect(address, timeout, **arguments)
                try:
                    kind = (await send_recv(comm, op="identity"))["type"]
                finally:
                    comm.abort()
        except (OSError, ValueError, TypeError) as error:
            return _describe(error)
        except Exception:  # MemoryError, struct.error or others, depending on what was sent
            return "the peer does not speak Dask's protocol"
        return "" if kind == "Scheduler" else f"a Dask {kind} answers"

    result: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: result.put(asyncio.run(answer())), daemon=True).start()
    try:
        return result.get(timeout=timeout + 1.0)
    except queue.Empty:
        return TimeoutError.__name__


def _describe(error: Exception) -> str:
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "))
