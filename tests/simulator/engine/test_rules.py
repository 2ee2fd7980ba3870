# SPDX-License-Identifier: BSD-3-Clause
"""Rules that random programs seldom distinguish, each in a run of two or three threads."""

from itertools import product
from operator import and_, or_

import numpy as np
import pytest

from simlib._lib.errors import HorizonError, InputError
from simlib.model.job import Image, Job
from simlib.model.locks import Discipline
from simlib.model.program import REGION, Lock, Program, held
from simlib.model.steps import Adapt, Block, LockScope, Map, Mode, Page, Scan, Stamp
from simlib.model.throttle import CLOUD_HYPERVISOR, QEMU
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EVENTS, lap_bin

BOTH = pytest.mark.parametrize("engine", [reference, compiled])
READ, WRITE = Lock(0, Mode.READ), Lock(0, Mode.WRITE)
SPIN = Discipline.QUEUED_SPIN


def run(engine, discipline, *lives, **more):
    """One thread a life, each of which writes what it does; cache lines cost nothing, each walks 1024 pages."""
    program, entry = Program(), []
    for life in lives:
        with program.thread() as thread:
            life(program)
        entry.append(thread.first)
    n = len(lives)
    job = Job(program.steps(), np.array(entry), np.array([[0, 1024]] * n), np.full(n, discipline), 0, 0, 0,
              np.zeros(n, int), pages=1024, lock_names=tuple(f"lock {i}" for i in range(n)), **more)  # fmt: skip
    return engine.run(job)


def holder(lock, begin, time):
    """Asks for the lock at a time, and holds it for so long."""

    def life(program):
        program.run(begin)
        with program.holding(lock):
            program.hold(time)

    return life


@BOTH
def test_behind_the_last_page_the_last_region_s_lock_is_meant(engine):
    program = Program()
    with program.thread():
        with program.loop(until=REGION.done()):
            program.advance(64)
        with program.holding(Lock(0, Mode.WRITE, LockScope.REGION)):
            program.hold(1000)
    none = np.zeros(1, int)
    job = Job(program.steps(), none, np.array([[0, 256]]), np.zeros(4, int), 0, 0, 0, none, pages=256,
              lock_names=tuple("abcd"))  # fmt: skip
    assert np.flatnonzero(engine.run(job).busy_ps).tolist() == [3]


@BOTH
def test_hits_are_counted_page_by_page_up_to_a_whole_word(engine):
    """Pages 0 to 7 are mapped; from page 1 on there are seven hits before the next fault."""

    def touch(program, pages):
        for _ in range(pages):
            program.run(1000)
            program.access(*[lambda: program.map(Map.PAGE, logging=False)] * 4)
            program.advance(1)

    program = Program()
    with program.thread() as first:
        touch(program, 1)
    with program.thread() as second:
        program.run(2000)
        touch(program, 7)
        program.back(REGION)
        with program.loop(until=REGION.done()):
            touch(program, 1)
    none = np.zeros(2, int)
    job = Job(program.steps(), np.array([first.first, second.first]), np.array([[0, 1], [1, 16]]), none, 0, 0, 0, none,
              pages=64, vcpus=2)  # fmt: skip
    assert engine.run(job).faults.sum(axis=1).tolist() == [1, 15]


@BOTH
@pytest.mark.parametrize("vcpus", [0, 1, 2])
def test_waiters_are_all_threads_that_wait_and_vcpus_the_vcpus_among_them(engine, vcpus):
    def asks(program):
        with program.holding(WRITE):
            program.hold(1000)
            for condition, time in ((WRITE.waiters(2), 10), (WRITE.vcpus(1), 100), (WRITE.vcpus(2), 200)):
                with program.when(condition):
                    program.hold(time)

    result = run(engine, SPIN, holder(WRITE, 500, 0), holder(WRITE, 600, 0), asks, vcpus=vcpus)
    assert result.end_ps == 1010 + (0, 100, 300)[vcpus]


@BOTH
def test_held_counts_from_the_acquisition(engine):
    """Not from when it was asked for: this one waited for 9 ns, and still holds it for three rounds of 1 ns."""

    def patient(program):
        program.run(1000)
        with program.holding(WRITE), program.loop(until=held(3000)):
            program.hold(1000)

    result = run(engine, SPIN, holder(WRITE, 0, 10_000), patient)
    assert result.thread_end_ps.tolist() == [10_000, 13_000]


@BOTH
@pytest.mark.parametrize(
    ("first", "second", "end"),
    [pytest.param(WRITE, READ, 3000, id="a reader waits for a writer"),
     pytest.param(READ, WRITE, 3000, id="a writer waits for a reader"),
     pytest.param(WRITE, WRITE, 3000, id="a writer waits for a writer"),
     pytest.param(READ, READ, 2001, id="readers do not wait")],
)  # fmt: skip
def test_an_rwlock_admits_readers_together_and_writers_alone(engine, first, second, end):
    result = run(engine, Discipline.QUEUED_RW, holder(first, 0, 1000), holder(second, 1, 2000))
    assert result.thread_end_ps.tolist() == [1000, end]


@BOTH
def test_a_reader_does_not_overtake_a_writer_that_waits(engine):
    result = run(engine, Discipline.QUEUED_RW, holder(READ, 0, 1000), holder(WRITE, 1, 1000), holder(READ, 2, 1000))
    assert result.thread_end_ps.tolist() == [1000, 2000, 3000]


@BOTH
def test_a_lockless_update_that_lost_its_race_is_retried(engine):
    """The second one began before the first one was published."""
    word = Lock(0, Mode.WRITE, LockScope.ALL)
    result = run(engine, Discipline.LOCKLESS, holder(word, 0, 1000), holder(word, 1, 2000))
    assert result.thread_end_ps.tolist() == [1000, 4001]


@BOTH
@pytest.mark.parametrize(("stalls", "laps"), [(True, [500, 300, 800]), (False, [500, 500])])
def test_a_kick_and_the_fault_that_follows_it_are_one_stall(engine, stalls, laps):
    """The vCPU faults, hits after a kick of 300 ps, and faults after another; nobody is kicked within a fault."""

    def guest(program):
        def fault():
            program.start_stopwatch()
            program.run(500)
            program.map(Map.PAGE)
            program.read_stopwatch()

        for stride in (0, 1, 0):
            program.run(1000)
            program.access(*[fault] * 4)
            if stride:
                program.advance(stride)

    def kicker(program):
        for pause in (1200, 800, 1000):  # at 1.2, 2 and 3 ns; the accesses are at 1, 2.5 and 3.8
            program.run(pause)
            program.kick(300, stalls)

    result = run(engine, SPIN, guest, kicker, vcpus=1)
    assert result.thread_end_ps.tolist() == [4600, 3000]
    assert result.lap_max_ps.tolist() == [max(laps), 0]
    assert np.flatnonzero(result.lap_histogram).tolist() == sorted({lap_bin(lap) for lap in laps})
    assert result.lap_histogram.sum() == len(laps)


@BOTH
@pytest.mark.parametrize(
    ("actions", "words"),
    [([], 1), ([Adapt.DOUBLE], 2), ([Adapt.DOUBLE] * 9, 4), ([Adapt.HALVE] * 3 + [Adapt.DOUBLE], 2),
     ([Adapt.DOUBLE] * 9 + [Adapt.HALVE], 2)],
)  # fmt: skip
def test_an_adaptive_batch_stays_within_its_bounds(engine, actions, words):
    """From 64 pages on, within 64 and 256; each word of 64 takes a nanosecond."""

    def life(program):
        for action in actions:
            program.adapt(action, 64, 256)
        with program.loop(until=REGION.beyond_batch()):
            program.run(1000)
            program.advance(64)

    assert run(engine, SPIN, life).end_ps == 1000 * words


@BOTH
def test_conditions_combine_as_in_logic(engine):
    """Every `x and/or (y and/or z)` and `(x and/or y) and/or z`, each part true or false, negated or not."""
    atoms = {True: ~REGION.done(), False: REGION.done()}
    trees = [lambda x, y, z, f, g: f(x, g(y, z)), lambda x, y, z, f, g: g(f(x, y), z)]
    weights = []

    def life(program):
        for tree, f, g in product(trees, (and_, or_), (and_, or_)):
            for parts in product((True, False), repeat=6):
                values, negated = parts[:3], parts[3:]
                asked = [~atoms[v] if n else atoms[v] for v, n in zip(values, negated, strict=True)]
                truth = tree(*(v != n for v, n in zip(values, negated, strict=True)), f, g)
                condition = tree(*asked, f, g)
                for tested, holds in ((condition, truth), (~condition, not truth)):
                    weight = 1 + len(weights)  # another each time, so that two faults do not cancel out
                    weights.append(weight * holds)
                    with program.when(tested):
                        program.run(weight)

    assert run(engine, SPIN, life).end_ps == sum(weights)


RUNS = {(0, 63): [2], (0, 64): [1, 1], (63, 0): [2], (64, 0): [1, 1], (100, 163, 99): [2, 1], (100, 162, 99): [3],
        (5, 5, 6): [3], (70, 7, 8, 6): [3, 1], (1, 200, 2): [1, 1, 1]}  # fmt: skip
"""Pages in the order in which they are pushed, and how many entries each run of the reset has."""


@BOTH
@pytest.mark.parametrize("pages", RUNS, ids=str)
def test_a_run_of_the_ring_s_reset_lies_within_64_pages(engine, pages):
    """virt/kvm/dirty_ring.c kvm_dirty_ring_reset: it may go back, as long as no page falls out."""
    program = Program()
    with program.thread():
        for page in pages:
            program.advance(page) if page else None
            program.map(Map.PAGE, logging=True)
            program.back(REGION)
        program.harvest(1000)
        with program.for_each_run(10):
            program.scan(Scan.PROTECT_RUN, 1)
    none = np.zeros(1, int)
    job = Job(program.steps(), none, np.array([[0, 256]]), none, 0, 0, 0, none, pages=256, vcpus=1, ring_entries=16,
              ring_full=8)  # fmt: skip
    result = engine.run(job, trace=1000)
    done = {kind: result.trace[result.trace[:, 2] == EVENTS.index(kind), 3].tolist() for kind in ("reset", "scan")}
    assert done["reset"] == RUNS[pages]
    assert sum(done["scan"]) == len(set(pages))
    assert result.end_ps == len(pages) * 1010 + len(set(pages))


@BOTH
def test_a_vcpu_whose_ring_is_full_leaves_before_it_goes_on_with_hits(engine):
    """Its first page is a fault, those behind it are none; with a ring that one page fills."""

    def leave():
        program.stamp(0)
        program.run(500)
        program.harvest(0)
        with program.for_each_run(0):
            program.scan(Scan.PROTECT_RUN)

    program = Program()
    with program.thread() as first, program.loop(until=REGION.done()):
        program.run(1000)
        program.access(*[lambda: program.map(Map.PAGE, logging=True)] * 4, on_full=leave)
        program.advance(1)
    none = np.zeros(1, int)
    image = Image(np.full(64, Page.WRITABLE, np.uint8), np.array([Block.TABLE], np.uint8))
    image.pages[0] = Page.PROTECTED
    job = Job(program.steps(), np.array([first.first]), np.array([[0, 64]]), none, 0, 0, 0, none, pages=64, vcpus=1,
              block_pages=64, image=image, ring_entries=4, ring_full=1,
              stamps=(Stamp("left"),))  # fmt: skip
    result = engine.run(job)
    assert result.faults.sum() == 1
    assert (result.stamp_ps.tolist(), result.end_ps) == ([2000], 64 * 1000 + 500)


@BOTH
def test_a_page_that_finds_no_room_in_a_ring_ends_the_run(engine):
    program = Program()
    with program.thread():
        with program.repeat(9):
            program.map(Map.PAGE, logging=True)
    none = np.zeros(1, int)
    job = Job(
        program.steps(), none, np.array([[0, 64]]), none, 0, 0, 0, none, pages=64, vcpus=1, ring_entries=8, ring_full=2
    )
    with pytest.raises(HorizonError, match="a dirty ring overflows at 0 s"):
        engine.run(job)


def touch(program, times, interval, **more):
    """Touch one page after another."""
    for _ in range(times):
        program.run(interval)
        program.access(*[lambda: program.map(Map.PAGE, logging=True)] * 4, **more)
        program.advance(1)


@BOTH
@pytest.mark.parametrize(
    ("rule", "ends"),
    [pytest.param(QEMU._replace(slice=10_000), 14_000 + 30_000, id="for three slices, after one"),
     pytest.param(CLOUD_HYPERVISOR._replace(window=10_000), 14_000 + 7_500, id="for three quarters of a window")],
)  # fmt: skip
def test_a_throttled_vcpu_sleeps_before_its_next_access(engine, rule, ends):
    """By 75 %. The second vCPU holds a lock when the sleep begins, and sleeps when it is back in the guest."""
    rule = rule._replace(initial=75, times=1, check_period=0, trigger=0)

    def vmm(program):
        program.throttle_check(begins=True)
        program.scan(Scan.ALL)
        program.map(Map.PAGE, logging=True)
        program.scan(Scan.SEND)
        program.scan(Scan.COLLECT)
        program.throttle_check()
        program.throttle()

    def holds(program):
        with program.holding(Lock(1, Mode.WRITE)):
            program.hold(12_000)
        touch(program, 1, 2_000)

    result = run(engine, SPIN, lambda p: touch(p, 14, 1_000), holds, vmm, vcpus=2, populated=True, throttle=rule)
    assert result.throttle == 75
    running = 10_000 if rule.slice else 2_500
    slept = ends - 14_000
    assert result.thread_end_ps.tolist() == [ends, 14_000 + slept, running + slept]
    assert result.lap_max_ps.tolist()[:2] == [slept, slept]
    assert result.thread_ps[:2, 5].tolist() == [slept, slept]


@BOTH
def test_a_guest_is_throttled_if_it_dirties_more_than_is_sent(engine):
    """128 pages are sent each time. 64 dirtied ones are half of these, no more; 65 are, and the second time count."""
    rule = QEMU._replace(check_period=1_000, slice=10)

    def send_and_dirty(program, pages, wait):
        program.back(REGION)
        for page in range(128):
            if page % 64 == 0:
                program.scan(Scan.ALL)
                program.scan(Scan.SEND)
            if page < pages:
                program.map(Map.PAGE, logging=True)
            program.advance(1)
        program.back(REGION)
        for _ in range(2):
            program.scan(Scan.TAKE)
            program.advance(64)
        program.run(wait)
        program.throttle_check()

    def vmm(*rounds):
        def life(program):
            program.throttle_check(begins=True)
            for pages, wait in rounds:
                send_and_dirty(program, pages, wait)

        return run(engine, SPIN, life, populated=True, throttle=rule).throttle

    assert vmm((64, 1_000), (64, 1_000), (64, 1_000)) == 0
    assert vmm((65, 1_000)) == 0
    assert vmm((65, 1_000), (64, 1_000), (65, 1_000)) == 20
    assert vmm((128, 1_000), (1, 1_000)) == 0  # 129 of 256 would be more than half
    assert vmm((65, 999), (65, 1_000)) == 0  # the first look comes too early, and both are judged as one
    assert vmm(*[(65, 1_000)] * 7) == 40


@BOTH
def test_a_vcpu_beyond_its_dirty_limit_sleeps_when_its_ring_is_full(engine):
    """It dirties 512 pages in a look's 1 ms: 2 MiB, which is 2000 MiB/s where 40 are allowed."""
    rule = QEMU._replace(limit=40, slice=10**9, times=1, check_period=0, trigger=0)

    def guest(program):
        def leave():
            program.harvest(0)
            with program.for_each_run(0):
                program.scan(Scan.PROTECT_RUN)
            program.dirty_limit_sleep()

        touch(program, 512, 10**9 // 512 - 1, on_full=leave)
        program.run(10**6)
        touch(program, 600, 0, on_full=leave)

    def vmm(program):
        program.throttle_check(begins=True)
        program.scan(Scan.SET)
        program.scan(Scan.COLLECT)
        program.throttle_check()
        program.run(10**9)
        program.dirty_limit_update()

    result = run(engine, SPIN, guest, vmm, vcpus=1, throttle=rule, ring_entries=1024, ring_full=512)
    fills = 4 * 10**6 // 2000  # of four MiB, in us
    nap = min(99 * fills, int(fills * 98 / (100 - 98)))
    assert result.throttle == 1
    assert result.thread_ps[0, 5] == 2 * nap * 10**6  # after 512 pages, and after 1024


def test_a_dirty_limit_needs_a_period():
    with pytest.raises(InputError, match=r"job.throttle.slice = 0: must be more than 0"):
        run(reference, SPIN, Program.dirty_limit_update, throttle=CLOUD_HYPERVISOR)


@BOTH
def test_a_sleep_requested_on_the_way_back_from_a_kick_comes_before_the_access(engine):
    """Kicked before its access at 2 ns it is back at 7; at 4 a sleep of 4 was requested."""
    rule = QEMU._replace(initial=50, times=1, check_period=0, trigger=0, slice=4_000)

    def vmm(program):
        program.throttle_check(begins=True)
        program.map(Map.PAGE, logging=True)
        program.scan(Scan.COLLECT)
        program.throttle_check()
        program.throttle()

    def kicker(program):
        program.run(1_200)
        program.kick(5_000)

    result = run(engine, SPIN, lambda p: touch(p, 2, 1_000), vmm, kicker, vcpus=1, populated=True, throttle=rule)
    assert result.thread_end_ps.tolist() == [11_000, 8_000, 1_200]
