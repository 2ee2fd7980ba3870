# SPDX-License-Identifier: BSD-3-Clause
"""Worker processes on this machine, which outlive the loss of one of them and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import connection, forkserver, resource_tracker
from types import ModuleType, TracebackType
from typing import Any

import cloudpickle

from simlib._lib import gc_tuning
from simlib._lib.errors import SimlibError
from simlib._lib.parallel import MOST_WORKERS, cpus
from simlib.model import rules

_PRELOADED = ["simlib.analysis.sweep.batch"]
"""What is imported once for all workers, where the system can fork."""


class Pool(AbstractContextManager["Pool"]):
    """Worker processes: an executor for `simlib._lib.parallel.use_executor` and `simlib.analysis.sweep.run`.

    If a worker is killed, the others are ended too, what was under way is lost (`lost`), and the next task has new
    workers.

    Raises `InputError` if they are more. Raises `SimlibError` if the system has no room for them; when the first task
    is given, too.

    - `workers`: at most `simlib._lib.parallel.MOST_WORKERS`; 0: as many as there are CPUs.

    >>> with Pool(1) as pool:
    ...     pool.submit(divmod, 7, 2).result()
    (3, 1)
    """

    lost = (BrokenProcessPool,)
    """What a task's future raises if its worker is gone."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = rules.whole(0, MOST_WORKERS)(workers, "workers") or cpus()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._processes = self._started()

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a task in a worker, whatever can be pickled by value (functions within functions, too)."""
        pickled = cloudpickle.dumps((task, arguments))
        with _apart(), self._starting():
            try:
                return self._processes.submit(_run, pickled)
            except BrokenProcessPool:
                self._end()
                self._processes = self._started()
                return self._processes.submit(_run, pickled)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the workers, at once if what they do is no longer wanted; then the fork server, too, as it may import."""
        self._end()
        if kind is not None:
            _end_fork_server(forkserver._forkserver)

    def _started(self) -> ProcessPoolExecutor:
        with _apart(), self._starting():
            if self._context.get_start_method() == "forkserver":
                self._context.set_forkserver_preload(_PRELOADED)
                resource_tracker.ensure_running()  # before, as it unblocks SIGINT at its end
                with _unheard():
                    forkserver.ensure_running()
            return ProcessPoolExecutor(self.workers, mp_context=self._context, initializer=_begin)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """What the system says of new processes, as one sentence."""
        try:
            yield
        except OSError as error:
            raise SimlibError(
                f"workers = {self.workers}: the processes cannot be started ({error.strerror or error})",
                "give fewer workers=…, from a folder that exists", "give fewer --workers, from a folder that exists",
            ) from None  # fmt: skip

    def _end(self) -> None:
        processes = list((self._processes._processes or {}).values())  # Python 3.14 has terminate_workers()
        self._processes.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


_ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",  # no module of the current folder, whoever may write there, is taken for one of Python's
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",  # of what it removes after a killed run
}


@contextmanager
def _apart() -> Iterator[None]:
    """Processes that are started meanwhile take nothing from the current folder, nor import the caller's program.

    That would run it again; they need nothing of it, as what it defines is pickled by value.
    """
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _ENVIRONMENT}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that are started meanwhile are deaf to Ctrl-C, which is for the parent alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_fork_server(server: Any) -> None:
    """End it, if there is one; the next pool starts another. multiprocessing has only private names for that."""
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGTERM)
        server._stop()


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end when it ends, however that comes about."""
    gc_tuning.reduce_gc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    connection.wait([parent])
    os._exit(1)


def _run(pickled: bytes) -> Any:
    task, arguments = cloudpickle.loads(pickled)
    return task(*arguments)
