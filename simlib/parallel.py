# SPDX-License-Identifier: BSD-3-Clause
"""Independent tasks, as many at a time as there are CPUs; whatever ends the wait ends them too, at once."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from simlib.errors import RunInterruptedError

Result = TypeVar("Result")
Other = TypeVar("Other")

Check = Callable[..., None]
"""Raises `RunInterruptedError` once its task is no longer wanted; takes any arguments, so an engine's progress too."""

Progress = Callable[[str, float], None]
"""Told what is done, and the share of it that is."""

PATIENCE_S = 0.5
"""How long tasks that are no longer wanted are waited for, s. A task that does not look meanwhile ends unheard."""

LOOK_S = 0.1
"""A wait is cut into pieces of this length, s: a signal that another thread was given is handled between them."""


class _Task(threading.local):
    """The task that this thread is busy with, if any: its `Check`, and whether it may have threads of its own."""

    check: Check | None = None
    wide: bool = True


_task = _Task()


def cpus() -> int:
    """CPUs that this process may use.

    Examples
    --------
    >>> cpus() >= 1
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def both(first: Callable[[], Result], second: Callable[[], Other]) -> tuple[Result, Other]:
    """Do two things at once, each of which may have tasks of its own.

    Examples
    --------
    >>> both(lambda: 1, lambda: "two")
    (1, 'two')
    """
    one, other = each([lambda _: (first(), None), lambda _: (None, second())], wide=True)
    return cast("tuple[Result, Other]", (one[0], other[1]))


def portion(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """The progress of a part of some work, which takes it from `begin` to `end`, both shares of all of it.

    Examples
    --------
    >>> told = []
    >>> half = portion(lambda what, share: told.append((what, share)), 0.5, 1.0)
    >>> half("drawing", 0.5), told
    (None, [('drawing', 0.75)])
    """
    if progress is None:
        return None
    return lambda what, share: progress(what, begin + (end - begin) * share)


def each(
    tasks: Sequence[Callable[[Check], Result]],
    what: str | Sequence[str] = "",
    progress: Progress | None = None,
    *,
    workers: int = 0,
    wide: bool = False,
) -> list[Result]:
    """Run tasks in threads and return what they give, in their order.

    Tasks of a task run one after another in its thread, as the CPUs are busy already.

    If the wait ends early (Ctrl-C, an error of `progress`, a task that fails), no further task is begun, and those
    that run end at their next call of the `Check` that each is given. A simulation passes it on as its ``progress``.

    Parameters
    ----------
    tasks : sequence of callable
        Each is called with its `Check`. They are begun in this order: put the longest first.
    what : str or sequence of str
        What `progress` is told: the same for all tasks, or a name for each.
    progress : callable, optional
        Called in the caller's thread with (what, share done) whenever a task has ended.
    workers : int
        Tasks at a time; 0: as many as there are CPUs.
    wide : bool
        Tasks of a task have threads of their own nevertheless.

    Returns
    -------
    list

    Raises
    ------
    Exception
        What the task that failed first raised.

    Examples
    --------
    >>> each([lambda check: 3, lambda check: 4])
    [3, 4]

    >>> from functools import partial
    >>> from simlib import Scenario
    >>> from simlib.simulation import run_scenario
    >>> def metric(scenario, check):
    ...     return run_scenario(scenario, progress=check).metrics["lock_acquisitions"]
    >>> scenario = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}})
    >>> told = []
    >>> each([partial(metric, scenario.with_vcpus(n)) for n in (1, 2)], "simulating", lambda *of: told.append(of))
    [515.0, 1028.0]
    >>> told
    [('simulating', 0.5), ('simulating', 1.0)]
    """
    outer = _task.check
    if outer is not None and not _task.wide:
        return _in_turn(tasks, what, progress, outer)
    todo = deque(range(len(tasks)))
    ended: queue.SimpleQueue[tuple[int, list[Result], BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def check(*_: object) -> None:
        if stopped.is_set():
            raise RunInterruptedError("interrupted")

    def work() -> None:
        _task.check, _task.wide = check, wide
        while not stopped.is_set():
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                ended.put((number, [tasks[number](check)], None))
            except BaseException as error:  # raised again where it is waited for
                ended.put((number, [], error))
                stopped.set()

    # Daemons, and no executor: Python waits for an executor's threads before it leaves.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers or cpus(), len(tasks)))]
    found: dict[int, Result] = {}
    try:
        for thread in threads:
            thread.start()
        while len(found) < len(tasks):
            try:
                number, given, fault = ended.get(timeout=LOOK_S)
            except queue.Empty:
                if outer is not None:
                    outer()
                continue
            if fault is not None:
                raise fault
            found[number] = given[0]
            _tell(progress, what, number, len(found) / len(tasks))
    finally:
        stopped.set()
        _wait_for(threads)
    return [found[number] for number in range(len(tasks))]


def _wait_for(threads: Sequence[threading.Thread]) -> None:
    """Wait until threads end, but not long."""
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))


def _in_turn(
    tasks: Sequence[Callable[[Check], Result]], what: str | Sequence[str], progress: Progress | None, check: Check
) -> list[Result]:
    """The tasks of a task."""
    found = []
    for number, task in enumerate(tasks):
        check()
        found.append(task(check))
        _tell(progress, what, number, len(found) / len(tasks))
    return found


def _tell(progress: Progress | None, what: str | Sequence[str], number: int, share: float) -> None:
    if progress is not None:
        progress(what if isinstance(what, str) else what[number], share)
