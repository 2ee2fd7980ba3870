# SPDX-License-Identifier: BSD-3-Clause
"""The clock when one processor runs all threads in turns."""

import numpy as np
import pytest

from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.steps import Clock, Mode, Stamp, Step
from simlib.simulator.engine import compiled, reference

ENGINES = pytest.mark.parametrize("engine", [reference, compiled], ids=["reference", "compiled"])


def job_of(programs, clock, stamps=1, barriers=1):
    rows, entries = [], []
    for steps in programs:
        entries.append(len(rows))
        rows += [[*step, *[0] * (6 - len(step))] for step in steps]
    n = len(programs)
    return Job(
        np.array(rows), np.array(entries), np.zeros((n, 2), int), np.array([Discipline.QUEUED_SPIN]), 0, 0, 0,
        np.zeros(n, int), stamps=tuple(Stamp("stamp", i) for i in range(stamps)), barriers=barriers, clock=clock,
    )  # fmt: skip


RUNNER = [(Step.RUN, 1000), (Step.STAMP, 0), (Step.RUN, 9000), (Step.END,)]
IDLER = [(Step.RUN, 10_000), (Step.END,)]
TAKE, DROP = (Step.TAKE, 0, Mode.WRITE), (Step.DROP, 0, Mode.WRITE)


@ENGINES
@pytest.mark.parametrize(("clock", "shown"), [(Clock.WALL, 1000), (Clock.SERIAL, 3000)])
def test_the_clock_is_faster_by_the_number_of_running_threads(engine, clock, shown):
    assert engine.run(job_of([RUNNER, IDLER, IDLER], clock)).stamp_ps.tolist() == [shown]


@ENGINES
def test_an_ended_thread_does_not_count_as_running(engine):
    late = [(Step.RUN, 5000), (Step.STAMP, 0), (Step.END,)]
    assert engine.run(job_of([[(Step.RUN, 2000), (Step.END,)], late], Clock.SERIAL)).stamp_ps.tolist() == [7000]


@ENGINES
@pytest.mark.parametrize(("clock", "lap"), [(Clock.WALL, 4000), (Clock.SERIAL, 8000), (Clock.SERIAL_YIELD, 4000)])
def test_a_wait_is_shown_by_the_clock(engine, clock, lap):
    """One holds the lock for 4 ns, the other waits for it: spinning it takes half of the turns, yielding none."""
    holder = [TAKE, (Step.HOLD, 4000), DROP, (Step.END,)]
    waiter = [(Step.LAP, 0), TAKE, DROP, (Step.LAP, 1), (Step.END,)]
    assert engine.run(job_of([holder, waiter], clock)).lap_max_ps.tolist() == [0, lap]


@ENGINES
@pytest.mark.parametrize("clock", list(Clock))
@pytest.mark.parametrize("others", [1, 5])
def test_a_sleeper_wakes_at_its_alarm(engine, clock, others):
    """However many threads run meanwhile, and although some end before."""
    sleeper = [(Step.SLEEP, 60_000), (Step.WAKE,), (Step.STAMP, 0), (Step.END,)]
    workers = [[(Step.RUN, 7000 + 1000 * i), (Step.END,)] for i in range(others)]
    shown = int(engine.run(job_of([sleeper, *workers], clock)).stamp_ps[0])
    assert 60_000 <= shown <= 60_000 + others + 1


def test_a_sleep_must_be_followed_by_its_wake():
    with pytest.raises(ValueError, match=r"SLEEP.*followed by WAKE"):
        job_of([[(Step.SLEEP, 1), (Step.END,)]], Clock.WALL)
