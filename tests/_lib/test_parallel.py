# SPDX-License-Identifier: BSD-3-Clause
"""Tasks in threads: their order, their errors, and that they end when they are no longer wanted."""

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
    """A task that ends only when it is no longer wanted."""

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


def test_results_stand_in_the_order_of_the_tasks():
    told = []
    tasks = [partial(wait_and_give, 0.05 * (3 - n), n) for n in range(4)]
    assert parallel.run_all(tasks, ["a", "b", "c", "d"], lambda *of: told.append(of), workers=4) == [0, 1, 2, 3]
    assert [name for name, _ in told] == ["d", "c", "b", "a"]
    assert [share for _, share in told] == [0.25, 0.5, 0.75, 1.0]


def test_so_many_at_a_time_and_no_more():
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


def test_an_interrupt_ends_what_runs():
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


def test_an_error_of_progress_ends_what_runs():
    endless = Endless()

    def refuse(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parallel.run_all([endless, partial(wait_and_give, 0.05, 1)], "x", refuse, workers=2)
    assert endless.ended.is_set()


def test_a_task_that_does_not_look_is_not_waited_for():
    let_go = threading.Event()

    def deaf(_check):
        let_go.wait(20)

    def fail(_check):
        raise ValueError("this one")

    started = time.monotonic()
    with pytest.raises(ValueError, match="this one"):
        parallel.run_all([deaf, fail], workers=2)
    assert time.monotonic() - started < parallel.PATIENCE_S + 0.5
    let_go.set()


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_simulation_ends_when_its_pool_does(engine):
    scenario = Scenario.parse({"guest": {"vcpus": 16, "memory_per_vcpu": "1G"}, "costs": {"fault_unlocked": "1us"}})
    run_scenario(scenario.changed({"guest": {"memory_per_vcpu": "2M"}}), engine=engine)  # compiled by now
    began, interrupted = threading.Event(), threading.Event()

    def simulate(check):
        def look(*of):
            began.set()
            check(*of)

        try:
            run_scenario(scenario, engine=engine, progress=look)
        except RunInterruptedError:  # else it came to its end
            interrupted.set()
            raise

    def fail(check):
        began.wait(60)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        parallel.run_all([simulate, fail], workers=2)
    assert interrupted.wait(60)


def test_tasks_of_a_task_take_turns_in_its_thread_and_end_with_it():
    def where(_check):
        return threading.get_ident()

    def outer(_check):
        return threading.get_ident(), set(parallel.run_all([where] * 4, workers=4))

    for own, inner in parallel.run_all([outer, outer], workers=2):
        assert inner == {own}

    endless = Endless()

    def fail(_check):
        endless.began.wait(5)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        parallel.run_two(lambda: parallel.run_all([endless, endless]), lambda: fail(None))
    assert endless.ended.wait(1.0)


def test_the_workers_in_use_are_how_many_run_at_a_time():
    class Many:
        workers = 7

    with parallel.use_executor(Many()):
        assert parallel.concurrency() == 7
    assert parallel.concurrency() == parallel.cpus()
