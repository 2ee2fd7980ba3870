# SPDX-License-Identifier: BSD-3-Clause
"""Workers of a Dask cluster, which may come and go, as may its scheduler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distributed import Client
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from simlib.errors import SimlibError
from simlib.parallel import cpus

if TYPE_CHECKING:
    from distributed.cfexecutor import ClientExecutor

PATIENCE_S = 300.0
"""How long a scheduler that is gone is waited for, s."""

TRY_S = 10.0
"""How long one attempt to reach it takes, s."""


class Cluster:
    """A Dask cluster: an executor for `simlib.parallel.using` and `simlib.sweep.run`.

    Parameters
    ----------
    where : str or Client
        The scheduler's address (``tcp://127.0.0.1:8786``) or a client, which stays open.
    patience : float
        Seconds for which a scheduler that is gone is waited for.

    Raises
    ------
    SimlibError
        If no scheduler can be reached.
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
        if self._given is not None or self._client.status == "connecting":
            time.sleep(0.2)
            return
        try:
            client = _connected(self._address, TRY_S)
        except SimlibError:
            return
        self._client, self._executor = client, client.get_executor(pure=False)

    def __enter__(self) -> Cluster:
        """Be ready."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Cancel what is under way, and close the client that was opened here."""
        if self._client.status == "running":
            self._executor.shutdown(wait=False)
        if self._given is None:
            self._client.close(timeout=2)


def _connected(address: str, timeout: float) -> Client:
    try:
        return Client(address, timeout=timeout, set_as_default=False, name="simlib")
    except (OSError, ValueError, TimeoutError) as error:
        raise SimlibError(
            f"no Dask scheduler answers at {address} ({type(error).__name__})", "start one with dask scheduler",
        ) from None  # fmt: skip
