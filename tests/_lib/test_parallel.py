# SPDX-License-Identifier: BSD-3-Clause
"""Tasks in threads: their order, their errors, and their cancellation."""

from __future__ import annotations

import _thread
import threading
import time
from functools import partial

import pytest

from simlib import Scenario
from simlib._lib import parallel
from simlib._lib.errors import RunInterruptedError
from simlib.analysis.simulate import run_scenario


class Endless:
    """A task that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

    def __call__(self, check: parallel.Check) -> None:
        self.began.set()
        try:
            while True:
                check()
                time.sleep(0.005)
        except RunInterruptedError:
            self.ended.set()
            raise


def wait_and_give(seconds: float, value: int, _check: parallel.Check) -> int:
    time.sleep(seconds)
    return value


def test_results_are_in_the_order_of_the_tasks():
    calls = []
    tasks = [partial(wait_and_give, 0.05 * (3 - n), n) for n in range(4)]
    assert parallel.run_all(tasks, ["a", "b", "c", "d"], lambda *call: calls.append(call), workers=4) == [0, 1, 2, 3]
    assert [name for name, _ in calls] == ["d", "c", "b", "a"]
    assert [share for _, share in calls] == [0.25, 0.5, 0.75, 1.0]


def test_no_more_tasks_than_workers_run_at_a_time():
    running, most, lock = 0, 0, threading.Lock()

    def task(_check):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    parallel.run_all([task] * 7, workers=3)
    assert most == 3
    assert parallel.run_all([]) == []


def test_a_task_that_fails_ends_the_others():
    endless = Endless()
    begun = []

    def fail(check):
        endless.began.wait(5)
        raise ValueError("this one")

    tasks = [endless, fail, *[lambda check: begun.append(1)] * 5]
    started = time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        parallel.run_all(tasks, workers=2)
    assert time.monotonic() - started < 1.0
    assert endless.ended.is_set()
    assert not begun


def test_an_interrupt_cancels_running_tasks():
    tasks = [Endless(), Endless()]

    def interrupt():
        for task in tasks:
            task.began.wait(5)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        parallel.run_all(tasks, workers=2)
    assert time.monotonic() - started < 1.0
    assert all(task.ended.is_set() for task in tasks)


def test_an_error_of_progress_cancels_running_tasks():
    endless = Endless()

    def refuse(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parallel.run_all([endless, partial(wait_and_give, 0.05, 1)], "x", refuse, workers=2)
    assert endless.ended.is_set()


def test_a_task_that_does_not_check_is_abandoned():
    release = threading.Event()

    def deaf(_check):
        release.wait(20)

    def fail(_check):
        raise ValueError("this one")

    started = time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        parallel.run_all([deaf, fail], workers=2)
    assert time.monotonic() - started < parallel.STOP_TIMEOUT_S + 0.5
    release.set()


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_simulation_ends_with_its_pool(engine):
    scenario = Scenario.parse({"guest": {"vcpus": 16, "memory_per_vcpu": "1G"}, "costs": {"fault_unlocked": "1us"}})
    run_scenario(scenario.changed({"guest": {"memory_per_vcpu": "2M"}}), engine=engine)  # compiled by now
    began, interrupted = threading.Event(), threading.Event()

    def simulate(check):
        def progress(*arguments):
            began.set()
            check(*arguments)

        try:
            run_scenario(scenario, engine=engine, progress=progress)
        except RunInterruptedError:  # otherwise it ran to its end
            interrupted.set()
            raise

    def fail(check):
        began.wait(60)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        parallel.run_all([simulate, fail], workers=2)
    assert interrupted.wait(60)


def test_tasks_of_a_task_run_in_its_thread_and_end_with_it():
    def inner(_check):
        return threading.get_ident()

    def outer(_check):
        return threading.get_ident(), set(parallel.run_all([inner] * 4, workers=4))

    for outer_thread, inner_threads in parallel.run_all([outer, outer], workers=2):
        assert inner_threads == {outer_thread}

    endless = Endless()

    def fail(_check):
        endless.began.wait(5)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        parallel.run_two(lambda: parallel.run_all([endless, endless]), lambda: fail(None))
    assert endless.ended.wait(1.0)


def test_concurrency_is_that_of_the_executor_in_use():
    class SevenWorkers:
        workers = 7

    with parallel.use_executor(SevenWorkers()):
        assert parallel.concurrency() == 7
    assert parallel.concurrency() == parallel.cpus()
