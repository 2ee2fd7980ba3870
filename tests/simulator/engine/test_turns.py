# SPDX-License-Identifier: BSD-3-Clause
"""Order of qrwlock acquisitions on one processor that runs CPU after CPU, against a witness that shares no code.

The witness has a generator for each CPU, which does what the kernel's functions do to the lock word, line by line, and
says when it runs and when it spins. It knows nothing of queues with heads that come to the word: that follows.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from simlib._lib.errors import DeadlockError
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Lock, Program
from simlib.model.steps import Clock, Mode
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.random import draw, first_tick, thread_keys
from simlib.simulator.engine.result import EVENTS

BOTH = pytest.mark.parametrize("engine", [reference, compiled])
TURN, TICK, WORK, QUEUE, LOOK = 1000, 15_000, 700, 60, 7
SPIN = 0
"""Yielded by a CPU in place of a duration."""


@dataclass
class Word:
    """The lock word of include/asm-generic/qrwlock.h, and the spinlock below it, which serves as it is asked."""

    readers: int = 0
    waiting: bool = False
    locked: bool = False
    queue: list = field(default_factory=list)


def read_lock(word, cpu):
    """queued_read_lock, and its slow path outside of interrupts."""
    if not (word.waiting or word.locked):
        word.readers += 1
        return
    word.queue.append(cpu)
    yield QUEUE
    while word.queue[0] != cpu:
        yield SPIN
    word.readers += 1
    while word.locked:
        yield SPIN
    word.queue.pop(0)


def write_lock(word, cpu):
    """queued_write_lock, and its slow path."""
    if not (word.readers or word.waiting or word.locked):
        word.locked = True
        return
    word.queue.append(cpu)
    yield QUEUE
    while word.queue[0] != cpu:
        yield SPIN
    if word.readers or word.locked:
        word.waiting = True
        while word.readers or word.locked:
            yield SPIN
        word.waiting = False
    word.locked = True
    word.queue.pop(0)


def life(word, cpu, sections, now, taken):
    for think, mode, hold in sections:
        yield think
        yield from (read_lock if mode == Mode.READ else write_lock)(word, cpu)
        taken.append((now[0], cpu))
        yield hold
        if mode == Mode.READ:
            word.readers -= 1
        else:
            word.locked = False


def witness(lives, seed, yields, ticking):
    """Acquisitions of the lock by CPU, and the time at which each CPU ended."""
    word, now, taken, ended = Word(), [0], [], {}
    cpus = [life(word, cpu, sections, now, taken) for cpu, sections in enumerate(lives)]
    left = [0] * len(lives)
    key, draws, turn_end, cpu = int(thread_keys(seed, len(lives) + 1)[-1]), 0, 0, len(lives) - 1
    ticks = [first_tick(key, TICK)] * len(lives)
    while len(ended) < len(lives):
        cpu = (cpu + 1) % len(lives)
        if cpu in ended:
            continue
        if now[0] >= turn_end:
            turn_end = now[0] + TURN // 2 + (draw(key, draws) >> 32) * TURN // 2**32
            draws += 1
        if ticking and ticks[cpu] <= now[0]:
            left[cpu] += WORK
        while ticks[cpu] <= now[0]:  # those that it missed are one
            ticks[cpu] += TICK
        while now[0] + left[cpu] <= turn_end:
            now[0] += left[cpu]
            asked = next(cpus[cpu], None)
            left[cpu] = asked or 0
            if asked is None:
                ended[cpu] = now[0]
                break
            if asked == SPIN:
                now[0] = min(now[0] + LOOK, turn_end) if yields else turn_end
                break
        else:
            left[cpu] -= turn_end - now[0]
            now[0] = turn_end
    return taken, [ended[cpu] for cpu in range(len(lives))]


def job_of(lives, clock, discipline, ticking=False):
    program, entry = Program(), []
    for sections in lives:
        with program.thread() as thread:
            for think, mode, hold in sections:
                program.run(think)
                with program.holding(Lock(0, mode)):
                    program.hold(hold)
        entry.append(thread.first)
    n = len(lives)
    return Job(program.steps(), np.array(entry), np.zeros((n, 2), int), np.array([discipline]), 0, 0, 0,
               np.zeros(n, int), clock=clock, turn_ps=TURN, tick_ps=ticking and TICK, tick_work_ps=WORK,
               enqueue_ps=QUEUE, poll_ps=LOOK)  # fmt: skip


def some_lives(seed):
    """Two to five CPUs, holds that are shorter than a turn or longer, and one CPU that asks at once again."""
    rng = np.random.default_rng(seed)
    times = [1, 90, 300, 1100, 4000]
    return [
        [(int(rng.choice(times)) if cpu else 1, Mode(rng.integers(2)), int(rng.choice(times))) for _ in range(40)]
        for cpu in range(rng.integers(2, 6))
    ]


@pytest.mark.parametrize("ticking", [False, True])
@pytest.mark.parametrize("clock", [Clock.SERIAL, Clock.SERIAL_YIELD])
def test_qrwlock_admits_the_same_cpus_as_the_kernel_s_functions(clock, ticking):
    passed = 0
    for seed in range(60):
        lives = some_lives(seed)
        taken, ends = witness(lives, seed, clock == Clock.SERIAL_YIELD, ticking)
        result = compiled.run(job_of(lives, clock, Discipline.QUEUED_RW, ticking), seed, trace=10_000)
        rows = result.trace[result.trace[:, 2] == EVENTS.index("acquired")]
        assert [tuple(row) for row in rows[:, :2].tolist()] == taken
        assert result.thread_end_ps.tolist() == ends
        passed += compiled.run(job_of(lives, clock, Discipline.FAIR_RW, ticking), seed).thread_end_ps.tolist() != ends
    assert passed > 30  # first come, first served is something else


@BOTH
def test_a_processor_runs_one_thread_at_a_time(engine):
    lives = [[(10_000, Mode.READ, 1)], [(3_000, Mode.READ, 1)]]
    result = engine.run(job_of(lives, Clock.SERIAL, Discipline.QUEUED_RW))
    assert result.end_ps == 13_002
    assert 3_001 <= result.thread_end_ps[1] <= 7_500


@BOTH
@pytest.mark.parametrize(
    ("discipline", "order"), [(Discipline.QUEUED_RW, [0, 1, 3, 2]), (Discipline.FAIR_RW, [0, 1, 2, 3])]
)
def test_a_reader_bypasses_a_writer_that_has_not_reached_the_word(engine, discipline, order):
    """With a processor per thread: a reader is admitted at 1300 ps, and the next writer's line takes 100 ps."""
    asks = [(0, Mode.WRITE, 1000), (1, Mode.READ, 9000), (2, Mode.WRITE, 10), (1250, Mode.READ, 10)]
    program, entry = Program(), []
    for think, mode, hold in asks:
        with program.thread() as thread:
            program.run(think)
            with program.holding(Lock(0, mode)):
                program.hold(hold)
        entry.append(thread.first)
    job = Job(program.steps(), np.array(entry), np.zeros((4, 2), int), np.array([discipline]), 0, 100, 100,
              np.zeros(4, int))  # fmt: skip
    trace = engine.run(job, trace=100).trace
    assert trace[trace[:, 2] == EVENTS.index("acquired"), 1].tolist() == order


def test_waiting_for_a_lock_that_is_never_dropped_is_a_deadlock():
    program = Program()
    with program.thread() as keeper:
        program.run(5)
    with program.thread() as twice, program.holding(Lock(0, Mode.WRITE)), program.holding(Lock(0, Mode.WRITE)):
        program.hold(1)
    none = np.zeros(2, int)
    job = Job(program.steps(), np.array([keeper.first, twice.first]), np.zeros((2, 2), int), none[:1], 0, 0, 0, none,
              clock=Clock.SERIAL_YIELD, turn_ps=TURN)  # fmt: skip
    for engine in (reference, compiled):
        with pytest.raises(DeadlockError):
            engine.run(job)
