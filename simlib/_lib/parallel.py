# SPDX-License-Identifier: BSD-3-Clause
"""Independent tasks, as many at a time as there are CPUs; whatever ends the wait ends them too, at once."""

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
"""Raises `RunInterruptedError` once its task is no longer wanted; takes any arguments, so an engine's progress too."""

Progress = Callable[[str, float], None]
"""Told what is done, and the share of it that is."""

PATIENCE_S = 0.3
"""How long tasks that are no longer wanted are waited for, s. A task that does not look meanwhile ends unheard."""

LOOK_S = 0.1
"""A wait is cut into pieces of this length, s: a signal that another thread was given is handled between them."""

MOST_WORKERS = 1024
"""Most processes that a sweep or a command starts on this machine."""

MOST_LOSSES = 5
"""Times that all workers may be lost one after another without any task having ended meanwhile."""


class Executor(Protocol):
    """Where tasks run instead of in threads: `simlib.analysis.sweep.Pool`, `simlib.analysis.sweep.Cluster`."""

    @property
    def workers(self) -> int:
        """Tasks at a time."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """What a task's future raises if its worker is gone; the task is begun again."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Begin a task as soon as a worker is free."""


class _Task(threading.local):
    """What this thread is busy with, if with a task: its `Check`, and whether that may have tasks side by side.

    And where tasks run, if not in threads.
    """

    check: Check | None = None
    wide: bool = True
    executor: Executor | None = None


_task = _Task()


def cpus() -> int:
    """CPUs that this process may use.

    >>> cpus() >= 1
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def concurrency() -> int:
    """Tasks that `run_all` runs at a time in this thread: as many as there are CPUs, or workers in use.

    >>> concurrency() == cpus()
    True
    """
    return cpus() if _task.executor is None else _task.executor.workers


@contextmanager
def use_executor(executor: Executor) -> Iterator[None]:
    """Within the block, what `run_all` is given in this thread runs on an executor: other processes, or a cluster.

    So do predictions, comparisons, calibrations, Sobol indices and choices: all of them use `run_all`. The results are
    the same, as no task's random numbers depend on where or when it runs.

    >>> from simlib.analysis.sweep import Pool
    >>> with Pool(1) as pool, use_executor(pool):
    ...     run_all([lambda check: 3, lambda check: 4])
    [3, 4]
    """
    before, _task.executor = _task.executor, executor
    try:
        yield
    finally:
        _task.executor = before


def completed(
    executor: Executor, draw: Callable[[], tuple[Any, ...] | None], look: Callable[[], None] = lambda: None
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keep an executor's workers busy with tasks that are drawn one by one, and give what they return as they end.

    At most two tasks a worker are under way. A task whose worker is gone is begun again.

    Raises `SimlibError` if the workers are lost again and again. Raises `Exception` what a task raised.

    - `draw`: gives a task and its arguments; None: none at present, though there may be one once another has ended.
    - `look`: called several times a second; what it raises ends the wait.

    Yields each task as it was drawn, and its result.
    """
    under_way: dict[Future[Any], tuple[Any, ...]] = {}
    again: deque[tuple[Any, ...]] = deque()
    losses = 0
    try:
        while True:
            while len(under_way) < 2 * executor.workers:
                task = again.popleft() if again else draw()
                if task is None:
                    break
                under_way[executor.submit(*task)] = task
            if not under_way:
                return
            ended, _ = wait(under_way, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            look()
            for future in ended:
                task = under_way.pop(future)
                try:
                    result = future.result()
                except executor.lost as error:
                    again.append(task)
                    losses += 1
                    if losses > MOST_LOSSES * 2 * executor.workers:
                        raise SimlibError(
                            f"workers are lost again and again ({type(error).__name__})",
                            "see whether they run out of memory, and give fewer workers",
                        ) from None
                else:
                    losses = 0
                    yield task, result
    finally:
        for future in under_way:
            future.cancel()


def run_two(first: Callable[[], Result], second: Callable[[], Other]) -> tuple[Result, Other]:
    """Do two things at once, each of which may have tasks of its own.

    >>> run_two(lambda: 1, lambda: "two")
    (1, 'two')
    """
    one, other = run_all([lambda _: (first(), None), lambda _: (None, second())], wide=True)
    return cast("tuple[Result, Other]", (one[0], other[1]))


def subprogress(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """The progress of a part of some work, which takes it from `begin` to `end`, both shares of all of it.

    >>> told = []
    >>> half = subprogress(lambda what, share: told.append((what, share)), 0.5, 1.0)
    >>> half("drawing", 0.5), told
    (None, [('drawing', 0.75)])
    """
    if progress is None:
        return None
    return lambda what, share: progress(what, begin + (end - begin) * share)


def subprogresses(progress: Progress | None, parts: Sequence[float]) -> list[Progress | None]:
    """The progress of each of the tasks that run side by side, by what part of the work each is, in any unit.

    >>> told = []
    >>> first, second = subprogresses(lambda what, share: told.append((what, share)), [1, 3])
    >>> first("drawing", 0.5), second("writing", 1.0), told
    (None, None, [('drawing', 0.125), ('writing', 0.875)])
    """
    if progress is None:
        return [None] * len(parts)
    shares = [0.0] * len(parts)

    def told(mine: int, what: str, share: float) -> None:
        shares[mine] = share * parts[mine] / sum(parts)
        progress(what, sum(shares))

    return [partial(told, mine) for mine in range(len(parts))]


def run_all(
    tasks: Sequence[Callable[[Check], Result]],
    what: str | Sequence[str] = "",
    progress: Progress | None = None,
    *,
    workers: int = 0,
    wide: bool = False,
) -> list[Result]:
    """Run tasks in threads, or on the executor in use (`use_executor`), and return what they give, in their order.

    Tasks of a task run one after another where it runs, as the CPUs are busy already.

    If the wait ends early (Ctrl-C, an error of `progress`, a task that fails), no further task is begun, and those
    that run end at their next call of the `Check` that each is given. A simulation passes it on as its ``progress``.

    Raises `Exception` what the task that failed first raised.

    - `tasks`: each is called with its `Check`. They are begun in this order: put the longest first.
    - `what`: what `progress` is told: the same for all tasks, or a name for each.
    - `progress`: called in the caller's thread with (what, share done) whenever a task has ended.
    - `workers`: tasks at a time; 0: as many as there are CPUs.
    - `wide`: tasks of a task run side by side nevertheless; they themselves run in threads, whatever is in use.

    >>> run_all([lambda check: 3, lambda check: 4])
    [3, 4]

    >>> from functools import partial
    >>> from simlib import Scenario
    >>> from simlib.analysis.simulate import run_scenario
    >>> def metric(scenario, check):
    ...     return run_scenario(scenario, progress=check).metrics["lock_acquisitions"]
    >>> scenario = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}})
    >>> told = []
    >>> run_all([partial(metric, scenario.with_vcpus(n)) for n in (1, 2)], "simulating", lambda *of: told.append(of))
    [515.0, 1028.0]
    >>> told
    [('simulating', 0.5), ('simulating', 1.0)]
    """
    outer = _task.check
    if outer is not None and not _task.wide:
        ends = _in_turn(tasks, outer)
    elif _task.executor is not None and not wide:
        ends = _elsewhere(_task.executor, tasks, outer or _unheeding)
    else:
        ends = _in_threads(tasks, workers or cpus(), wide, outer or _unheeding)
    found: dict[int, Result] = {}
    with closing(ends):
        for number, result in ends:
            found[number] = result
            if progress is not None:
                progress(what if isinstance(what, str) else what[number], len(found) / len(tasks))
    return [found[number] for number in range(len(tasks))]


def _in_turn(tasks: Sequence[Callable[[Check], Result]], check: Check) -> Generator[tuple[int, Result]]:
    """The tasks of a task, and their numbers, as they end."""
    for number, task in enumerate(tasks):
        check()
        yield number, task(check)


def _elsewhere(
    executor: Executor, tasks: Sequence[Callable[[Check], Result]], outer: Check
) -> Generator[tuple[int, Result]]:
    """The tasks on an executor."""
    numbered = enumerate(tasks)

    def draw() -> tuple[Any, ...] | None:
        following = next(numbered, None)
        return None if following is None else (_alone, *following)

    for _, end in completed(executor, draw, outer):
        yield end


def _alone(number: int, task: Callable[[Check], Result]) -> tuple[int, Result]:
    """A task in another process, whose CPU is its own and no more; nobody asks it to end."""
    before = _task.check, _task.wide
    _task.check, _task.wide = _unheeding, False
    try:
        return number, task(_unheeding)
    finally:
        _task.check, _task.wide = before


def _in_threads(
    tasks: Sequence[Callable[[Check], Result]], workers: int, wide: bool, outer: Check
) -> Generator[tuple[int, Result]]:
    """The tasks in threads, which end early if one of them fails, or nobody waits any more."""
    executor, begun, stopped = _task.executor, threading.Event(), threading.Event()
    ended: queue.SimpleQueue[Future[tuple[int, Result]]] = queue.SimpleQueue()

    def check(*_: object) -> None:
        if stopped.is_set():
            raise RunInterruptedError("interrupted")

    def work(number: int) -> tuple[int, Result]:
        begun.wait()
        check()
        _task.check, _task.wide, _task.executor = check, wide, executor
        return number, tasks[number](check)

    def note(future: Future[tuple[int, Result]]) -> None:
        ended.put(future)  # before others end because of it: the first fault is the one that is raised
        if future.cancelled() or future.exception() is not None:
            stopped.set()

    pool, futures = ThreadPoolExecutor(workers), list[Future[tuple[int, Result]]]()
    try:
        for number in range(len(tasks)):
            futures.append(pool.submit(work, number))
            futures[-1].add_done_callback(note)
        begun.set()  # an interrupt that came before finds nothing to end
        left = len(tasks)
        while left:
            try:
                future = ended.get(timeout=LOOK_S)
            except queue.Empty:
                outer()
            else:
                left -= 1
                yield future.result()
    finally:
        stopped.set()
        begun.set()
        pool.shutdown(wait=False, cancel_futures=True)
        wait([future for future in futures if not future.cancelled()], PATIENCE_S)


def _unheeding(*_: object) -> None:
    """The check of what nobody asks to end."""
