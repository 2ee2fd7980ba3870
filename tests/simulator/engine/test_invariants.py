# SPDX-License-Identifier: BSD-3-Clause
"""Invariants of every run, checked from the trace: the times at which each thread requested, got and dropped locks.

In these programs a STAMP is right before each DROP. It takes no time, so the trace also shows when the drop began,
which is when the engines decide which thread is next; the drop's effect may come later, by a cache-line transfer.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from engine_strategies import RUNNING, SEEDS, TRACE, examples, jobs, scenarios
from hypothesis import given

from simlib._lib.errors import DeadlockError, HorizonError
from simlib.model.job import Job
from simlib.model.locks import Discipline
from simlib.model.program import Program
from simlib.model.steps import Block, Mode, Page, Stamp, Step
from simlib.simulator.engine import compiled, limits, reference
from simlib.simulator.engine.result import ACTIVITIES, BINS, EVENTS
from simlib.simulator.engine.timeline import timeline
from simlib.simulator.workloads import build

TRY, ACQUIRED, RELEASED, RETRY, STAMP, LOOK = (
    EVENTS.index(e) for e in ("try", "acquired", "released", "retry", "stamp", "poll")
)
RUN, WAIT, HOLD, LINE, BROADCAST = (ACTIVITIES.index(a) for a in ("run", "wait", "hold", "line", "broadcast"))


@dataclass
class Visit:
    """One thread's passage through one lock (or one attempt at a lockless update)."""

    thread: int
    lock: int
    tried: int
    decided: int | None = None  # when a waiter's turn was decided; None if it did not wait
    acquired: int = -1
    dropping: int = -1
    released: int = -1
    mode: int = -1
    won: bool = True


def visits(result):
    """All visits, from the trace alone."""
    inside, done, stamped, decision = defaultdict(dict), [], {}, {}
    rows = result.trace.tolist()
    for number, (time, thread, kind, arg, _) in enumerate(rows):
        open_visits = inside[thread]
        if kind == TRY:
            assert arg not in open_visits, "a thread requested a lock twice"
            open_visits[arg] = Visit(thread, arg, time)
        elif kind == ACQUIRED:
            open_visits[arg].acquired = time
            if rows[number - 1][1:4] != [thread, TRY, arg]:  # not at once: another thread granted the lock
                open_visits[arg].decided = decision[arg]
        elif kind == LOOK:
            decision[arg] = time
        elif kind == STAMP:
            stamped[thread] = time, arg
        elif kind in (RELEASED, RETRY):
            visit = open_visits.pop(arg)
            visit.released, visit.won = time, kind == RELEASED
            visit.dropping, visit.mode = stamped[thread]
            decision[arg] = visit.dropping
            done.append(visit)
    assert not any(inside.values()), "a waiter was never served"
    return done


def exclusive(holds):
    """Nobody is beside a writer: in order of acquisition, each one comes after all it may not share with."""
    last = {Mode.READ: 0, Mode.WRITE: 0}
    for hold in sorted(holds, key=lambda v: (v.acquired, v.released)):
        barred = max(last.values()) if hold.mode == Mode.WRITE else last[Mode.WRITE]
        assert hold.acquired >= barred, f"{hold} overlaps"
        last[hold.mode] = max(last[hold.mode], hold.released)


def union(holds):
    """Time during which anyone holds the lock."""
    total = end = 0
    for begin, stop in sorted((v.acquired, v.released) for v in holds):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total


def binned(intervals, width):
    """Integral of the number of intervals that cover each time bin."""
    out = np.zeros(BINS, dtype=np.int64)
    for begin, stop in intervals:
        for b in range(begin // width, stop // width + 1):
            out[b] += max(0, min(stop, (b + 1) * width) - max(begin, b * width))
    return out


def histogram(times):
    return np.bincount([t.bit_length() for t in times], minlength=65).tolist()


@given(job=jobs(stamped=True), seed=SEEDS)
@examples(250)
def test_locks_follow_their_discipline_and_their_statistics_agree(job, seed):
    result = compiled.run(job, seed, trace=TRACE)
    done = visits(result)
    hand_off = max(job.near_ps, job.far_ps, job.cluster_ps) + int(job.queue_length_penalty()[-1])
    for lock, kind in enumerate(job.locks):
        of_lock = [v for v in done if v.lock == lock]
        waiters = [v for v in of_lock if v.decided is not None]
        if kind != Discipline.LOCKLESS:
            exclusive(of_lock)
            # A reader that is granted the lock beside another holds it while it passes on the head of the queue, before
            # it may go on: if the other has dropped the lock by then, the lock is busy and no thread is inside.
            granted = sum(v.decided is not None and v.mode == Mode.READ for v in of_lock)
            assert 0 <= result.busy_ps[lock] - union(of_lock) <= granted * hand_off
        # Little's law, bin by bin: the queue's integral is the sum over waiters of the time queued.
        queued = binned([(v.tried, v.decided) for v in waiters], result.bin_ps)
        assert result.queue_ps[lock].tolist() == queued.tolist()
        for mode in Mode:
            of_mode = [v for v in of_lock if v.mode == mode]
            won = [v for v in of_mode if v.won]
            acquisitions, contended, wait, wait_max, hold, hold_max = result.lock_stats[lock, mode].tolist()
            assert acquisitions == len(won)
            if kind == Discipline.LOCKLESS:
                assert contended == len(of_mode) - len(won)  # updates that lost a race
                waits, holds = [], [v.released - v.tried for v in won]
            else:
                assert contended == sum(v.decided is not None for v in of_mode) <= acquisitions
                waits, holds = [v.acquired - v.tried for v in won], [v.released - v.acquired for v in won]
            assert (wait, wait_max) == (sum(waits), max(waits, default=0))
            assert (hold, hold_max) == (sum(holds), max(holds, default=0))
            assert result.wait_histogram[lock, mode].tolist() == histogram(waits)
            assert result.hold_histogram[lock, mode].tolist() == histogram(holds)


@given(job=jobs(stamped=True), seed=SEEDS)
@examples(150)
def test_every_picosecond_of_a_thread_is_accounted_for(job, seed):
    result = compiled.run(job, seed, trace=TRACE)
    if job.turn_ps:  # while others have their turns, a thread spends nothing
        assert (result.thread_ps.sum(axis=1) <= result.thread_end_ps).all()
        assert result.thread_ps[:, [RUN, HOLD]].sum() <= result.end_ps
    else:
        assert result.thread_ps.sum(axis=1).tolist() == result.thread_end_ps.tolist()
    assert result.thread_ps.min() >= 0
    assert result.end_ps == result.thread_end_ps.max()
    spent = np.zeros(len(job.entry), dtype=np.int64)
    queued = np.zeros(2, dtype=np.int64)
    touched = result.trace[result.trace[:, 2] == EVENTS.index("touch")]
    np.add.at(spent, touched[:, 1], touched[:, 3])
    for v in visits(result):
        spent[v.thread] += v.released - v.dropping + (v.acquired - v.tried if v.acquired >= 0 else 0)
        if v.decided is not None:
            queued[int(job.locks[v.lock] == Discipline.SERVER)] += v.decided - v.tried
    assert result.thread_ps[:, [WAIT, LINE, BROADCAST]].sum(axis=1).tolist() == spent.tolist()
    # A waiter also waits while the word of the one before it is on its way, hence "at least".
    waited = result.thread_ps[:, [WAIT, BROADCAST]].sum(axis=0)
    assert (waited >= queued).all()
    if not any((job.local_ps, job.near_ps, job.far_ps, job.cluster_ps, job.queue_length_penalty_ps)):
        assert waited.tolist() == queued.tolist()


@given(scenario=scenarios(kinds=("dirty_log_perf_test",)).filter(lambda case: not case.workload.rings), seed=SEEDS)
@examples(60)
def test_a_scenario_does_all_its_work(scenario, seed):
    job = build(scenario)
    result = compiled.run(job, seed, trace=TRACE)
    rounds, pages = scenario.workload.iterations, scenario.guest.pages_per_vcpu
    vcpus = scenario.guest.vcpus
    assert result.progress[:vcpus].sum(axis=1).tolist() == [pages * (1 + rounds)] * vcpus
    policy = scenario.policy.resolved()
    splits = policy.eager_split and scenario.guest.mapped_as_blocks and not scenario.workload.initially_set
    # Enabling, which splits before it protects; then each GET, which looks for dirty bits first, and CLEAR.
    looks = policy.dirty_tracking == "dbm"
    assert result.progress[vcpus].sum() == pages * vcpus * (1 + splits + (2 + looks) * rounds)
    assert result.thread_ps.sum(axis=1).tolist() == result.thread_end_ps.tolist()
    assert (np.diff(result.stamp_ps) >= 0).all()
    assert (np.diff(result.stamp_locks, axis=0) >= 0).all()
    assert result.stamp_locks[-1].tolist() == result.lock_stats[:, :, :2].tolist()
    locks = [i for i, kind in enumerate(job.locks) if kind != Discipline.LOCKLESS]
    stats = result.lock_stats[locks]
    assert (stats[:, :, 1] <= stats[:, :, 0]).all()
    assert result.wait_histogram[locks].sum(axis=2).tolist() == stats[:, :, 0].tolist()
    assert result.hold_histogram.sum(axis=2).tolist() == result.lock_stats[:, :, 0].tolist()
    assert (result.queue_ps[locks].sum(axis=1) <= stats[:, :, 2].sum(axis=1)).all()
    assert ((stats[:, :, 1].sum(axis=1) > 0) >= (result.queue_ps[locks].sum(axis=1) > 0)).all()
    # Flow balance: each fault passes its lock once a section, and each broadcast passes the interconnect.
    holds_of_main = sum(v[1:3] == [vcpus, ACQUIRED] for v in result.trace.tolist())
    faults, fast = result.faults[:, :4].sum(axis=0), scenario.policy.fault_lock_sections or 1
    passed = result.lock_stats[:, :, 0].sum(axis=1)
    expected = faults[1] * fast + (faults.sum() - faults[1]) * policy.fault_lock_sections
    assert passed.sum() - passed[1] - holds_of_main == expected
    broadcasts = policy.facts.fault_flush == "broadcast" and bool(scenario.costs.tlb_invalidate)
    assert passed[1] == (faults[1] + faults[2]) * broadcasts


@given(scenario=scenarios(kinds=RUNNING), seed=SEEDS)
@examples(150)
def test_a_running_guest_loses_no_write(scenario, seed):
    """Nor do the locks, or the books of time. What can be written without a trace is in the log, a buffer or a ring."""
    job = build(scenario)
    simulation = reference.Simulation(job, seed, TRACE, 0, None)
    result = simulation.run()
    assert result.thread_ps.sum(axis=1).tolist() == result.thread_end_ps.tolist()
    frame = timeline(SimpleNamespace(job=job, raw=result))
    done = Counter(result.trace[:, 2].tolist())
    lockless = [i for i, kind in enumerate(job.locks) if kind == Discipline.LOCKLESS]
    tries = np.isin(result.trace[:, 3], lockless) & (result.trace[:, 2] == TRY)
    assert done[TRY] - tries.sum() == done[ACQUIRED]  # every waiter is served
    assert done[TRY] == done[RELEASED] + done[RETRY]
    for lock, name in enumerate(job.lock_names):
        holds = frame[(frame["lock"] == name) & (frame["what"] == "hold")]
        if lock not in lockless:
            exclusive(
                Visit(0, lock, 0, acquired=begin, released=end, mode=Mode[mode.upper()])
                for begin, end, mode in zip(holds["begin_s"], holds["end_s"], holds["mode"], strict=True)
            )
    if scenario.workload.kind != "zap":
        pages = np.array(simulation.memory.pages[: job.pages])
        blocks = np.repeat(simulation.memory.blocks, job.block_pages)[: job.pages]
        writable = (blocks == Block.WRITABLE) | ((blocks == Block.TABLE) & (pages & 3 == Page.WRITABLE))
        logs = simulation.logs
        later = [page for some in (*logs.buffers, *(ring.pages for ring in logs.rings)) for page in some]
        pages[later] |= Page.DIRTY
        assert (pages[writable] & Page.DIRTY).all() or (job.dirty_bits and not job.buffer_entries)
        assert simulation.threads[scenario.guest.vcpus].bitmap == (pages & Page.COLLECTED > 0).sum()


def job_of(*programs, **fields):
    """A job with one thread a program and one queued spinlock."""
    steps, entry = [], []
    for rows in programs:
        entry.append(len(steps))
        steps += [[int(kind), *arguments, *[0] * (5 - len(arguments))] for kind, *arguments in rows]
    n = len(programs)
    names = tuple(f"thread {i}" for i in range(n))
    return Job(
        np.array(steps), np.array(entry), np.zeros((n, 2), int), np.zeros(1, int), 0, 0, 0, np.zeros(n, int),
        thread_names=names, **fields,
    )  # fmt: skip


TAKE, DROP = (Step.TAKE, 0, Mode.WRITE), (Step.DROP, 0, Mode.WRITE)
TWICE = [(Step.RUN, 1_500_000), TAKE, TAKE, (Step.END,)]
LEAVER = [(Step.RUN, 7), (Step.END,)]
LONELY = [(Step.RUN, 3_000_000), (Step.BARRIER, 0, 3), (Step.END,)]
KEEPER = [TAKE, (Step.RUN, 9), (Step.END,)]
VICTIM = [(Step.RUN, 1), TAKE, DROP, (Step.END,)]


@pytest.mark.parametrize("engine", [reference, compiled])
@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        pytest.param([LEAVER, TWICE], r"deadlock at 1.5e-06 s .* 1 thread\(s\) wait .*\(thread 1\)", id="taken twice"),
        pytest.param([LONELY, LONELY], r"at 3e-06 s .* 2 thread\(s\) .*\(thread 0, thread 1\)", id="barrier of three"),
        pytest.param([KEEPER, VICTIM, VICTIM], r"2 thread\(s\) .*\(thread 1, thread 2\)", id="never dropped"),
        pytest.param([[(Step.END,)], TWICE], r" 1 thread\(s\) .*\(thread 1\)", id="one ended at time zero"),
    ],
)
def test_a_deadlock_is_named(engine, programs, expected):
    with pytest.raises(DeadlockError, match=expected) as caught:
        engine.run(job_of(*programs))
    assert "every TAKE has a DROP, and that every barrier is reached by as many threads as it waits for" in str(
        caught.value
    )


@pytest.mark.parametrize("engine", [reference, compiled])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(Step.RUN, 2**51), (Step.STAMP, 0), (Step.JUMP, 0)], id="for ever"),
        pytest.param([(Step.RUN, limits.HORIZON_PS + 1), (Step.END,)], id="one picosecond too long"),
        pytest.param([(Step.RUN, 10**16), (Step.END,)], id="past what a key can hold"),
        pytest.param([(Step.RUN, 2**62), (Step.END,)], id="2**62 ps"),
        pytest.param([(Step.RUN, 2**50, 1), (Step.STAMP, 0), (Step.JUMP, 0)], id="long and random"),
    ],
)
def test_the_horizon_ends_a_run(engine, rows):
    with pytest.raises(HorizonError, match=r"has not ended after 4504 s|longer than the longest simulated time"):
        engine.run(job_of(rows, stamps=(Stamp("s"),), cvs=(0.0, 1.0)))


@pytest.mark.parametrize("engine", [reference, compiled])
def test_the_last_picosecond_before_the_horizon_is_simulated(engine):
    assert engine.run(job_of([(Step.RUN, limits.HORIZON_PS), (Step.END,)])).end_ps == limits.HORIZON_PS


@pytest.mark.parametrize("engine", [reference, compiled])
def test_a_trace_that_outgrows_its_room_is_an_error(engine):
    job = job_of(VICTIM, VICTIM)
    assert len(engine.run(job, trace=8).trace) == 8
    with pytest.raises(HorizonError, match="has 8 trace events, more than the 7 requested"):
        engine.run(job, trace=7)


@pytest.mark.parametrize("engine", [reference, compiled])
def test_progress_is_reported_and_an_interrupt_ends_the_run(engine):
    def stop(events, now):
        assert events > 0
        raise KeyboardInterrupt

    p = Program()
    with p.thread(), p.repeat(100_000):
        p.run(5)
        p.stamp(0)
    with pytest.raises(KeyboardInterrupt):
        engine.run(job_of(p.steps().tolist(), stamps=(Stamp("s"),)), progress=stop)


@pytest.mark.parametrize("engine", [reference, compiled])
def test_a_loop_in_which_no_time_passes_is_named(engine, monkeypatch):
    if engine is reference:
        monkeypatch.setattr(limits, "MAX_PRIVATE_STEPS", 1000)  # a constant of compiled code, which is quick enough
    with pytest.raises(HorizonError, match=r"more than \d+ steps at 2e-09 s of simulated time .*: an endless loop"):
        engine.run(job_of([(Step.RUN, 2000), (Step.KICK, 0), (Step.JUMP, 1)]))
