# SPDX-License-Identifier: BSD-3-Clause
"""Worker processes on this machine, which are replaced after the loss of one and end with their parent."""

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
from multiprocessing import connection, forkserver, resource_tracker, util
from types import ModuleType, TracebackType
from typing import Any

import cloudpickle

from simlib._lib import gc_tuning
from simlib._lib.errors import SimlibError
from simlib._lib.parallel import MAX_WORKERS, cpus
from simlib.model import rules


class Pool(AbstractContextManager["Pool"]):
    """Worker processes as an executor for `simlib._lib.parallel.use_executor` and `simlib.analysis.sweep.run`.

    If a worker is killed, the others are terminated, running tasks fail with an exception in `lost`, and the next task
    starts new workers.

    Raises `InputError` if there are too many workers. Raises `SimlibError`, possibly only with the first task, if the
    system cannot start them.

    - `workers`: number of processes, at most `simlib._lib.parallel.MAX_WORKERS`; 0: the number of CPUs.

    >>> with Pool(1) as pool:
    ...     pool.submit(divmod, 7, 2).result()
    (3, 1)
    """

    lost = (BrokenProcessPool,)
    """Exceptions of a task's future if its worker was lost."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = rules.whole(0, MAX_WORKERS)(workers, "workers") or cpus()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._processes = self._start()

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Run a task in a worker; the task is pickled by value, so that nested functions are possible."""
        pickled = cloudpickle.dumps((task, arguments))
        with self._starting():
            try:
                return self._processes.submit(_run, pickled)
            except BrokenProcessPool:
                self._end()
                self._processes = self._start()
                return self._processes.submit(_run, pickled)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the workers; after an exception end the fork server, too, which may still be importing."""
        self._end()
        server: Any = forkserver._forkserver  # the interface for ending it is private; the next pool starts another
        cleanup: Any = util  # so is that for its folder
        if kind is not None and server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGTERM)
            server._stop()
            for finalizer in [*cleanup._finalizer_registry.values()]:  # a forced exit does not run them
                if finalizer._callback is cleanup._remove_temp_dir and not os.listdir(finalizer._args[1]):
                    finalizer()

    def _start(self) -> ProcessPoolExecutor:
        with self._starting():
            if self._context.get_start_method() == "forkserver":
                self._context.set_forkserver_preload(["simlib.analysis.sweep.batch"])  # import it once for all workers
                resource_tracker.ensure_running()  # before the mask: it unblocks SIGINT at its end
                previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # only the parent handles Ctrl-C
                try:
                    forkserver.ensure_running()
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            return ProcessPoolExecutor(self.workers, mp_context=self._context, initializer=_init_worker)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Start processes in isolation; an error of the system becomes a `SimlibError`."""
        try:
            with _isolated():
                yield
        except OSError as error:
            raise SimlibError(
                f"workers = {self.workers}: the processes cannot be started ({error.strerror or error})",
                "use fewer workers (workers=…), or start from a folder that exists",
                "use fewer workers (--workers), or start from a folder that exists",
            ) from None  # fmt: skip

    def _end(self) -> None:
        processes = list((self._processes._processes or {}).values())  # Python 3.14 has terminate_workers()
        self._processes.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


_ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",  # do not import modules from the current folder, which may shadow Python's
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",  # about its cleanup after a killed run
}


@contextmanager
def _isolated() -> Iterator[None]:
    """Keep processes that are started in this context from importing the caller's program, or from the current folder.

    Importing the program would run it again; it is not needed, because its functions are pickled by value.
    """
    main, previous = sys.modules["__main__"], {name: os.environ.get(name) for name in _ENVIRONMENT}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in previous.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _init_worker() -> None:
    """Initialise a worker: leave Ctrl-C to the parent, and exit when the parent exits for any reason."""
    gc_tuning.reduce_gc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def exit_with_parent(sentinel: int = parent.sentinel) -> None:
            connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=exit_with_parent, daemon=True).start()


def _run(pickled: bytes) -> Any:
    task, arguments = cloudpickle.loads(pickled)
    return task(*arguments)
