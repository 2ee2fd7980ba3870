# SPDX-License-Identifier: BSD-3-Clause
"""Cost of moving cache lines: within a socket the near cost, between sockets the far one."""

import dataclasses
import math

import numpy as np
import pytest

from simlib.model.job import Job
from simlib.model.locks import COHORT_PASSES, LOCKS
from simlib.model.program import Lock, Program
from simlib.model.steps import Mode
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EVENTS

ENGINES = pytest.mark.parametrize("engine", [reference, compiled], ids=["reference", "compiled"])
LOCK = pytest.mark.parametrize("lock", list(LOCKS))
NS = 1_000


def contended(lock, sockets, near, far, mode=Mode.WRITE, rounds=20):
    """Threads, each on the socket that the list says, that want the lock again as soon as they have let it go."""
    p = Program()
    with p.thread(), p.repeat(rounds):
        with p.holding(Lock(0, mode)):
            p.hold(800 * NS)
    n = len(sockets)
    return Job(p.steps(), np.zeros(n, int), np.zeros((n, 2), int), np.array([LOCKS[lock]]), 5 * NS, near, far,
               np.array(sockets))  # fmt: skip


@ENGINES
@LOCK
@pytest.mark.parametrize("mode", list(Mode))
def test_with_a_socket_for_every_cpu_nothing_is_near(engine, lock, mode):
    """So the near price changes nothing; the far one does."""
    results = [engine.run(contended(lock, range(6), near, 300 * NS, mode), trace=10_000) for near in (0, 300 * NS)]
    assert results[0] == results[1]
    farther = engine.run(contended(lock, range(6), 0, 400 * NS, mode))
    assert farther.end_ps > results[0].end_ps


@ENGINES
@LOCK
@pytest.mark.parametrize("mode", list(Mode))
def test_on_one_socket_nothing_is_far(engine, lock, mode):
    results = [engine.run(contended(lock, [0] * 6, 100 * NS, far, mode)) for far in (0, 300 * NS)]
    assert results[0] == results[1]


@ENGINES
@pytest.mark.parametrize(("sockets", "hand_off"), [([0, 0, 0], 1100), ([0, 1, 2], 1700)])
def test_a_saturated_spinlock_moves_three_lines_a_round(engine, sockets, hand_off):
    """Hold 800; the release, the successor's read of the word, and the fetch of the queue node behind it."""
    trace = engine.run(contended("spin", sockets, 100 * NS, 300 * NS), trace=10_000).trace
    got = trace[trace[:, 2] == EVENTS.index("acquired"), 0][6:-6]
    assert set(np.diff(got).tolist()) == {hand_off * NS}


@ENGINES
@pytest.mark.parametrize("threads", [2, 3, 4, 6])
def test_a_hand_off_takes_longer_with_more_waiting_threads(engine, threads):
    """By 40 ns for each doubling of them and the one who takes it; with two threads nobody waits on."""
    job = dataclasses.replace(contended("spin", [0] * threads, 100 * NS, 300 * NS), queue_length_penalty_ps=40 * NS)
    plain = engine.run(contended("spin", [0] * threads, 100 * NS, 300 * NS), trace=10_000).trace
    grown = engine.run(job, trace=10_000).trace
    gaps = [
        np.diff(trace[trace[:, 2] == EVENTS.index("acquired"), 0][threads:-threads]).tolist()
        for trace in (plain, grown)
    ]
    more = round(40 * NS * math.log2(threads - 1))
    assert {late - early for early, late in zip(*gaps, strict=True)} == {more}


@ENGINES
def test_a_cohort_lock_stays_on_its_socket_for_its_number_of_hand_offs(engine):
    """Two sockets whose threads always want it: it crosses once in 65 hand-offs, where a FIFO lock always does."""
    rounds, threads = 130, 8
    job = contended("cohort", [i % 2 for i in range(threads)], 100 * NS, 300 * NS, rounds=rounds)
    rows = engine.run(job, trace=40_000).trace
    owners = rows[rows[:, 2] == EVENTS.index("acquired"), 1] % 2
    stays = np.diff(np.flatnonzero(np.diff(owners[: rounds * threads // 2])))
    assert len(stays) > 4
    assert set(stays.tolist()) == {COHORT_PASSES + 1}
    fifo = engine.run(contended("spin", [i % 2 for i in range(threads)], 100 * NS, 300 * NS, rounds=rounds))
    assert engine.run(job).end_ps < fifo.end_ps


@ENGINES
def test_on_one_socket_a_cohort_lock_is_first_come_first_served(engine):
    rows = engine.run(contended("cohort", [0] * 5, 100 * NS, 300 * NS), trace=10_000).trace
    owners = rows[rows[:, 2] == EVENTS.index("acquired"), 1].tolist()
    assert owners[:15] == list(range(5)) * 3
