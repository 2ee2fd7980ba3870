# SPDX-License-Identifier: BSD-3-Clause
"""Independent tasks, run concurrently, one per CPU. An error or a signal that ends the wait also stops the tasks."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from simlib._lib.errors import RunInterruptedError, SimlibError

Result = TypeVar("Result")
Other = TypeVar("Other")

Check = Callable[..., None]
"""Raises `RunInterruptedError` once its task is cancelled; takes any arguments, as an engine's ``progress`` does."""

Progress = Callable[[str, float], None]
"""Called with the name of the work and its completed share."""

STOP_TIMEOUT_S = 0.3  # longest wait for cancelled tasks, s; a task that does not call its `Check` by then is abandoned
POLL_S = 0.1  # interval of polling during a wait, s: a signal that another thread received is handled between two polls
MAX_WORKERS = 1024  # largest number of processes that a sweep or a command starts on this host
MAX_LOSSES = 5  # number of times that all workers may be lost before any task completes


class Executor(Protocol):
    """Runs tasks outside this process: `simlib.analysis.sweep.Pool`, `simlib.analysis.sweep.Cluster`."""

    @property
    def workers(self) -> int:
        """Number of concurrent tasks."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """Exceptions that a task's future raises if its worker is lost; the task is then submitted again."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Start a task as soon as a worker is free."""


class _ThreadState(threading.local):
    """State of this thread: the `Check` of its task, if it runs one, and the executor in use."""

    check: Check | None = None
    nested: bool = True  # whether tasks of its task may run in parallel
    executor: Executor | None = None


_thread = _ThreadState()


def cpus() -> int:
    """Number of CPUs that this process may use.

    >>> cpus() >= 1
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def concurrency() -> int:
    """Number of concurrent tasks of `run_all` in this thread: the number of CPUs, or of the executor's workers.

    >>> concurrency() == cpus()
    True
    """
    return cpus() if _thread.executor is None else _thread.executor.workers


@contextmanager
def use_executor(executor: Executor) -> Iterator[None]:
    """Within the block, run the tasks of this thread's `run_all` on an executor: other processes, or a cluster.

    This applies to predictions, comparisons, calibrations, Sobol indices and choices, which all use `run_all`. The
    results are the same: no task's random numbers depend on where or when it runs.

    >>> from simlib.analysis.sweep import Pool
    >>> with Pool(1) as pool, use_executor(pool):
    ...     run_all([lambda check: 3, lambda check: 4])
    [3, 4]
    """
    before, _thread.executor = _thread.executor, executor
    try:
        yield
    finally:
        _thread.executor = before


def completed(
    executor: Executor, next_task: Callable[[], tuple[Any, ...] | None], poll: Callable[[], None] = lambda: None
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keep an executor's workers busy with tasks, and yield each task and its result as it completes.

    At most two tasks per worker are submitted. A task whose worker is lost is submitted again.

    Raises `SimlibError` if the workers are lost repeatedly, and the exception of the first task that failed.

    - `next_task`: returns a task and its arguments; None: none at present, but possibly after another has completed.
    - `poll`: called several times a second; an exception that it raises ends the wait.
    """
    submitted: dict[Future[Any], tuple[Any, ...]] = {}
    lost_tasks: deque[tuple[Any, ...]] = deque()
    losses = 0
    try:
        while True:
            while len(submitted) < 2 * executor.workers:
                task = lost_tasks.popleft() if lost_tasks else next_task()
                if task is None:
                    break
                submitted[executor.submit(*task)] = task
            if not submitted:
                return
            ended, _ = wait(submitted, timeout=POLL_S, return_when=FIRST_COMPLETED)
            poll()
            for future in ended:
                task = submitted.pop(future)
                try:
                    result = future.result()
                except executor.lost as error:
                    lost_tasks.append(task)
                    losses += 1
                    if losses > MAX_LOSSES * 2 * executor.workers:
                        raise SimlibError(
                            f"workers are lost repeatedly ({type(error).__name__})",
                            "check whether they run out of memory, and use fewer workers",
                        ) from None
                else:
                    losses = 0
                    yield task, result
    finally:
        for future in submitted:
            future.cancel()


def run_two(first: Callable[[], Result], second: Callable[[], Other]) -> tuple[Result, Other]:
    """Run two functions in parallel; each may itself run tasks in parallel.

    >>> run_two(lambda: 1, lambda: "two")
    (1, 'two')
    """
    left, right = run_all([lambda _: (first(), None), lambda _: (None, second())], nested=True)
    return cast("tuple[Result, Other]", (left[0], right[1]))


def subprogress(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """Return a progress function for the part of the work that spans the shares `begin` to `end`.

    >>> calls = []
    >>> half = subprogress(lambda what, share: calls.append((what, share)), 0.5, 1.0)
    >>> half("drawing", 0.5), calls
    (None, [('drawing', 0.75)])
    """
    if progress is None:
        return None
    return lambda what, share: progress(what, begin + (end - begin) * share)


def subprogresses(progress: Progress | None, parts: Sequence[float]) -> list[Progress | None]:
    """Return progress functions for tasks that run in parallel, given the size of each task in any unit.

    >>> calls = []
    >>> first, second = subprogresses(lambda what, share: calls.append((what, share)), [1, 3])
    >>> first("drawing", 0.5), second("writing", 1.0), calls
    (None, None, [('drawing', 0.125), ('writing', 0.875)])
    """
    if progress is None:
        return [None] * len(parts)
    shares = [0.0] * len(parts)

    def report(part: int, what: str, share: float) -> None:
        shares[part] = share * parts[part] / sum(parts)
        progress(what, sum(shares))

    return [partial(report, part) for part in range(len(parts))]


def run_all(
    tasks: Sequence[Callable[[Check], Result]],
    what: str | Sequence[str] = "",
    progress: Progress | None = None,
    *,
    workers: int = 0,
    nested: bool = False,
) -> list[Result]:
    """Run tasks in threads, or on the executor in use (`use_executor`), and return their results in order.

    Tasks of a task run one after another in its thread, because the CPUs are busy already.

    If the wait ends early (Ctrl-C, an error of `progress`, a task that fails), no other task is started, and the
    running ones end at the next call of their `Check`. A simulation takes the `Check` as its ``progress``.

    Raises the exception of the first task that failed.

    - `tasks`: each is called with its `Check`. They are started in this order: put the longest first.
    - `what`: name of the work that `progress` reports: one for all tasks, or one for each.
    - `progress`: called in the caller's thread with (what, share done) whenever a task has completed.
    - `workers`: number of concurrent tasks; 0: the number of CPUs.
    - `nested`: run tasks of a task in parallel too; the tasks themselves then run in threads, not on the executor.

    >>> calls = []
    >>> run_all([lambda check: 3, lambda check: 4], "adding", lambda *call: calls.append(call))
    [3, 4]
    >>> calls
    [('adding', 0.5), ('adding', 1.0)]
    """
    outer = _thread.check
    if outer is not None and not _thread.nested:
        completions = _in_sequence(tasks, outer)
    elif _thread.executor is not None and not nested:
        completions = _on_executor(_thread.executor, tasks, outer or _never_cancelled)
    else:
        completions = _in_threads(tasks, workers or cpus(), nested, outer or _never_cancelled)
    results: dict[int, Result] = {}
    with closing(completions):
        for number, result in completions:
            results[number] = result
            if progress is not None:
                progress(what if isinstance(what, str) else what[number], len(results) / len(tasks))
    return [results[number] for number in range(len(tasks))]


def _in_sequence(tasks: Sequence[Callable[[Check], Result]], check: Check) -> Generator[tuple[int, Result]]:
    for number, task in enumerate(tasks):
        check()
        yield number, task(check)


def _on_executor(
    executor: Executor, tasks: Sequence[Callable[[Check], Result]], outer: Check
) -> Generator[tuple[int, Result]]:
    calls = ((_run_in_worker, number, task) for number, task in enumerate(tasks))
    for _, completion in completed(executor, lambda: next(calls, None), outer):
        yield completion


def _run_in_worker(number: int, task: Callable[[Check], Result]) -> tuple[int, Result]:
    """Run a task in a worker process, which has one CPU; the task is never cancelled."""
    before = _thread.check, _thread.nested
    _thread.check, _thread.nested = _never_cancelled, False
    try:
        return number, task(_never_cancelled)
    finally:
        _thread.check, _thread.nested = before


def _in_threads(
    tasks: Sequence[Callable[[Check], Result]], workers: int, nested: bool, outer: Check
) -> Generator[tuple[int, Result]]:
    """Run the tasks in threads; yield their numbers and results. An error, or the end of the wait, cancels them."""
    executor, started, cancelled = _thread.executor, threading.Event(), threading.Event()
    ended: queue.SimpleQueue[Future[tuple[int, Result]]] = queue.SimpleQueue()

    def check(*_: object) -> None:
        if cancelled.is_set():
            raise RunInterruptedError("interrupted")

    def run(number: int) -> tuple[int, Result]:
        started.wait()
        check()
        _thread.check, _thread.nested, _thread.executor = check, nested, executor
        return number, tasks[number](check)

    def on_end(future: Future[tuple[int, Result]]) -> None:
        ended.put(future)  # before it cancels the others, so that the first error is the one that is raised
        if future.cancelled() or future.exception() is not None:
            cancelled.set()

    pool, futures = ThreadPoolExecutor(workers), list[Future[tuple[int, Result]]]()
    try:
        for number in range(len(tasks)):
            futures.append(pool.submit(run, number))
            futures[-1].add_done_callback(on_end)
        started.set()  # before this no task runs, so an interrupt has nothing to stop
        remaining = len(tasks)
        while remaining:
            try:
                future = ended.get(timeout=POLL_S)
            except queue.Empty:
                outer()
            else:
                remaining -= 1
                yield future.result()
    finally:
        cancelled.set()
        started.set()
        pool.shutdown(wait=False, cancel_futures=True)
        wait([future for future in futures if not future.cancelled()], STOP_TIMEOUT_S)


def _never_cancelled(*_: object) -> None:
    """Check of a task that cannot be cancelled."""
