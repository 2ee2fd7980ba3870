# SPDX-License-Identifier: BSD-3-Clause
"""Rules that random programs seldom tell from their neighbours, each in a run of two or three threads."""

import numpy as np
import pytest

from simlib.engine import compiled, reference
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Lock, Program, held
from simlib.model.steps import Mode, Whose

BOTH = pytest.mark.parametrize("engine", [reference, compiled])
READ, WRITE = Lock(0, Mode.READ), Lock(0, Mode.WRITE)


def run(engine, discipline, *lives):
    """One thread a life, each of which writes what it does; cache lines cost nothing."""
    program, entry = Program(), []
    for life in lives:
        with program.thread() as thread:
            life(program)
        entry.append(thread.first)
    n = len(lives)
    job = Job(program.steps(), np.array(entry), np.zeros((n, 2), int), np.full(n, discipline), 0, 0, 0,
              np.zeros(n, int), lock_names=tuple(f"lock {i}" for i in range(n)))  # fmt: skip
    return engine.run(job)


def holder(lock, begin, time):
    """Asks for the lock at a time, and holds it for so long."""

    def life(program):
        program.run(begin)
        with program.holding(lock):
            program.hold(time)

    return life


@BOTH
def test_held_counts_from_when_the_lock_was_got(engine):
    """Not from when it was asked for: this one waited for 9 ns, and still holds it for three rounds of 1 ns."""

    def patient(program):
        program.run(1000)
        with program.holding(WRITE), program.loop(until=held(3000)):
            program.hold(1000)

    result = run(engine, Discipline.QUEUED_SPIN, holder(WRITE, 0, 10_000), patient)
    assert result.thread_end_ps.tolist() == [10_000, 13_000]


@BOTH
@pytest.mark.parametrize(
    ("first", "second", "end"),
    [pytest.param(WRITE, READ, 3000, id="a reader waits for a writer"),
     pytest.param(READ, WRITE, 3000, id="a writer waits for a reader"),
     pytest.param(WRITE, WRITE, 3000, id="a writer waits for a writer"),
     pytest.param(READ, READ, 2001, id="readers do not wait")],
)  # fmt: skip
def test_who_may_hold_a_rwlock_beside_whom(engine, first, second, end):
    result = run(engine, Discipline.QUEUED_RW, holder(first, 0, 1000), holder(second, 1, 2000))
    assert result.thread_end_ps.tolist() == [1000, end]


@BOTH
def test_a_reader_does_not_overtake_a_writer_that_waits(engine):
    result = run(engine, Discipline.QUEUED_RW, holder(READ, 0, 1000), holder(WRITE, 1, 1000), holder(READ, 2, 1000))
    assert result.thread_end_ps.tolist() == [1000, 2000, 3000]


@BOTH
def test_a_lockless_update_that_lost_its_race_is_done_again(engine):
    """The second one began before the first one was published."""
    word = Lock(0, Mode.WRITE, Whose.ALL)
    result = run(engine, Discipline.LOCKLESS, holder(word, 0, 1000), holder(word, 1, 2000))
    assert result.thread_end_ps.tolist() == [1000, 4001]
