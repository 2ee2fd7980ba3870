# SPDX-License-Identifier: BSD-3-Clause
"""Workers of a Dask cluster, which may come and go, as may its scheduler."""

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

PATIENCE_S = 300.0
"""How long a scheduler that is gone is waited for, s."""

TRY_S = 10.0
"""How long one attempt to reach it takes, s."""


class Cluster(AbstractContextManager["Cluster"]):
    """A Dask cluster: an executor for `simlib._lib.parallel.use_executor` and `simlib.analysis.sweep.run`.

    Raises `SimlibError` if no scheduler can be reached.

    - `where`: the scheduler's address (``tcp://127.0.0.1:8786``) or a client, which stays open.
    - `patience`: seconds for which a scheduler that is gone is waited for.
    """

    lost = (CancelledError, FutureCancelledError, KilledWorker, CommClosedError)
    """What a task's future raises if its worker, or the scheduler, is gone."""

    def __init__(self, where: str | Client, patience: float = PATIENCE_S) -> None:
        self._given = where if isinstance(where, Client) else None
        self._address = where.scheduler.address if isinstance(where, Client) else where
        self._patience = patience
        self._client = self._given or _connected(self._address, TRY_S)
        self._threads, self._asked = 0, -math.inf
        self._executor: ClientExecutor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        """Threads that the cluster's workers have, as of a moment ago; while there are none, this machine's CPUs."""
        if time.monotonic() - self._asked > 1.0 and self._client.status == "running":
            self._asked = time.monotonic()
            with suppress(OSError, TimeoutError):  # it is gone: `submit` waits for it
                self._threads = sum(self._client.nthreads().values())
        return self._threads or cpus()

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a task on the cluster; if its scheduler is gone, once it is back."""
        deadline = time.monotonic() + self._patience
        while self._client.status != "running":
            if time.monotonic() > deadline:
                raise SimlibError(
                    f"the scheduler {self._address} is gone for {self._patience:.0f} s; what is finished is kept",
                    "start it, and run again with resume=True", "start it, and run again with --resume",
                )  # fmt: skip
            self._again()
        future: Future[Any] = self._executor.submit(task, *arguments)
        return future

    def _again(self) -> None:
        """Try to reach the scheduler anew; a client that was given does so by itself."""
        if self._given is None and self._client.status != "connecting":
            with suppress(SimlibError):
                self._client = _connected(self._address, TRY_S)
                self._executor = self._client.get_executor(pure=False)
                return
        time.sleep(0.2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Cancel what is under way, and close the client that was opened here."""
        if self._client.status == "running":
            self._executor.shutdown(wait=False)
        if self._given is None:
            self._client.close(timeout=2)


def _connected(address: str, timeout: float) -> Client:
    """A client of the scheduler at an address, which is tried first: a client that fails cannot be given up cleanly."""
    with silence_logging_cmgr(logging.CRITICAL + 1):
        fault = _tried(address, timeout)
        if not fault:
            try:
                return Client(address, timeout=timeout, set_as_default=False, name="simlib")
            except Exception as error:  # it has gone meanwhile, or is of another version
                fault = _named(error)
    raise SimlibError(
        f"no Dask scheduler answers at {shortened(address)} ({fault})",
        "start one with dask scheduler, and give the address that it prints, such as tcp://127.0.0.1:8786",
    )


def _tried(address: str, timeout: float) -> str:
    """Why no scheduler answers; empty if one does.

    In a thread with an event loop of its own: the caller's may be running, as in a notebook, and whatever hangs there
    is left alone.
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
            return _named(error)
        except Exception:  # MemoryError, struct.error: whatever follows from what it sent
            return "what answers there does not speak Dask's protocol"
        return "" if kind == "Scheduler" else f"a Dask {kind} does"

    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: told.put(asyncio.run(answer())), daemon=True).start()
    try:
        return told.get(timeout=timeout + 1.0)
    except queue.Empty:
        return TimeoutError.__name__


def _named(error: Exception) -> str:
    """An exception's kind, and what it says."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "))
