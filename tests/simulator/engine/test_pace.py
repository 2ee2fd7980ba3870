# SPDX-License-Identifier: BSD-3-Clause
"""A thread with idle CPU time: it idles until work is due, and catches up after a delay."""

import numpy as np
import pytest

from simlib._lib.errors import InputError
from simlib.model.job import Job
from simlib.model.program import REGION, Program, in_guest, raised
from simlib.model.scenario import Scenario
from simlib.model.steps import Map, Scan, Stamp
from simlib.model.throttle import CLOUD_HYPERVISOR, QEMU
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import ACTIVITIES, EVENTS
from simlib.simulator.workloads import build
from simlib.vmm.memory import LinkModel, WorkingSet
from simlib.vmm.precopy import LOST, precopy_trajectory
from simlib.vmm.settings import Settings

BOTH = pytest.mark.parametrize("engine", [reference, compiled])
IDLE = ACTIVITIES.index("idle")
MS = 10**9


def run(engine, *lives, vcpus=1, records=0, **more):
    """Run one thread for each function, which writes its program; all memory is mapped."""
    program, entry = Program(), []
    for life in lives:
        with program.thread() as thread:
            life(program)
        entry.append(thread.first)
    n = len(lives)
    job = Job(program.steps(), np.array(entry), np.array([[0, 64]] * n), np.zeros(1, int), 0, 0, 0, np.zeros(n, int),
              populated=True, vcpus=vcpus, **more)  # fmt: skip
    return engine.run(job, trace=records, ledger=records)


def access(program):
    program.access(*[lambda: program.map(Map.PAGE, logging=True)] * 4)


def throttle(program, times=1):
    """Throttle the vCPUs, as after a check that found one page dirty and none sent; let them sleep so many times."""
    program.throttle_check(begins=True)
    program.map(Map.PAGE, logging=True)
    program.scan(Scan.COLLECT)
    program.throttle_check()
    with program.repeat(times):
        program.throttle()


def rule_of(percent, slice_ps, rule=QEMU):
    """A rule that throttles by this percentage at the first check."""
    times = {"window": slice_ps} if rule.window else {"slice": slice_ps}
    return rule._replace(initial=percent, most=percent, times=1, check_period=0, trigger=0, **times)


@BOTH
def test_a_late_thread_does_not_idle_until_it_has_caught_up(engine):
    """A piece of work is due every 10 ps. The second one takes 50, so that those after it are late."""

    def life(program):
        for work in (3, 50, 1, 1, 1, 1, 1, 1):
            program.pace(10)
            program.run(work)
            program.stamp(0)

    result = run(engine, life, stamps=(Stamp("done"),), records=99)
    done = result.trace[result.trace[:, 2] == EVENTS.index("stamp"), 0]
    assert done.tolist() == [3, 60, 61, 62, 63, 64, 65, 71]
    assert result.thread_ps[0, IDLE] == 7 + 5
    assert result.ledger[:, 4].tolist() == [0, 7, 0, 0, 0, 0, 0, 5]


@BOTH
@pytest.mark.parametrize(
    ("begins", "stalls"),
    [pytest.param(300, [], id="within the idle time"), pytest.param(900, [800], id="beyond it"),
     pytest.param(50, [50], id="before it, so that the sleep precedes the access")],
)  # fmt: skip
def test_an_idle_vcpu_sleeps_at_once(engine, begins, stalls):
    """It works for 100 of each 1000 ps, and sleeps once, from `begins` for as long. It has caught up in the end."""

    def guest(program):
        for _ in range(3):
            program.pace(1_000)
            program.run(100)
            access(program)

    result = run(engine, guest, throttle, records=99, throttle=rule_of(50, begins))
    assert result.thread_end_ps[0] == 2_100
    assert result.throttled_ps.tolist() == [begins, 0]
    assert result.thread_ps[0].tolist() == [300, 0, 0, 0, 0, 1_800]
    assert result.trace[result.trace[:, 2] == EVENTS.index("lap"), 3].tolist() == stalls


@BOTH
@pytest.mark.parametrize(("begins", "ends"), [(500, 1_100), (50, 1_100), (1_050, 1_400)])
def test_an_idle_vcpu_is_not_kicked(engine, begins, ends):
    """It works for 100 of each 1000 ps; a kick takes 300, and only one that comes while it works delays it."""

    def guest(program):
        for _ in range(2):
            program.pace(1_000)
            program.run(100)
            access(program)

    def kicker(program):
        program.run(begins)
        with program.when(in_guest(1)):
            program.run(7)
        program.kick(300, stalls=True)

    result = run(engine, guest, kicker)
    in_time = begins % 1_000 < 100
    assert result.thread_end_ps.tolist() == [ends, begins + 7 * in_time]
    assert result.lap_max_ps[0] == 300 * in_time


@BOTH
def test_a_vcpu_empties_its_log_buffer_to_idle(engine):
    """Three pages of 10 ps each; it idles for that much less."""

    def guest(program):
        for _ in range(2):
            program.pace(1_000, 10)
            program.run(100)

    result = run(engine, guest, records=99, dirty_bits=True, buffer_entries=4, logged=np.array([3]))
    assert result.thread_ps[0].tolist() == [230, 0, 0, 0, 0, 870]
    assert result.end_ps == 1_100
    assert result.ledger[:, [0, 4]].tolist() == [[0, 0], [100, 900], [100, 3]]


@pytest.mark.parametrize(
    ("policy", "workload"),
    [({"architecture": "arm64", "teardown_tlb": "entry"}, {"kind": "teardown", "guest_runs": True}),
     ({"architecture": "arm64"}, {"kind": "eager_split", "parked": False}),
     ({"architecture": "x86-shadow"}, {"kind": "zap"}), ({"architecture": "x86-shadow"}, {"kind": "get_dirty_log"})],
    ids=["teardown", "eager_split", "zap", "get_dirty_log"],
)  # fmt: skip
def test_every_guest_that_keeps_running_may_have_idle_time(policy, workload):
    scenario = Scenario.parse(
        {"guest": {"vcpus": 2, "memory_per_vcpu": "2M"}, "policy": policy,
         "workload": workload | {"warm_up": "20us", "pause": "20us", "access_interval": "2us", "cpu_use": 0.2},
         "costs": {"fault_unlocked": "1us", "fault_hold": "800ns", "clear_page": "30ns", "others": "0ns"}}
    )  # fmt: skip
    job = build(scenario)
    slow, fast = reference.run(job), compiled.run(job)
    assert slow == fast, slow.differences(fast)
    assert (fast.thread_ps[:2, IDLE] > 0).all()


def test_a_guest_that_does_not_keep_running_has_no_idle_time():
    with pytest.raises(InputError, match=r"workload\.cpu_use = 0\.5: dirty_log_perf_test models vCPUs without idle"):
        Scenario.parse({"workload": {"cpu_use": 0.5}})
    for wrong in (0, 1.01, -1, "20%", True):
        with pytest.raises(InputError, match=f"workload.cpu_use = {wrong}: must be a number above 0, and at most 1"):
            Scenario.parse({"workload": {"kind": "migration", "cpu_use": wrong}})


def share_done(percent, cpu_use, rule):
    """Share of its accesses that a guest does that sleeps 200 times; an access is due every 100 us."""
    rule = rule_of(percent, 100 * MS if rule.window else 10 * MS, rule)

    def guest(program):
        with program.loop(until=raised(0)):
            program.pace(MS // 10)
            program.run(round(cpu_use * MS / 10))
            access(program)
            program.advance(1)
            program.back(REGION)

    def vmm(program):
        throttle(program, 200)
        program.signal(0)

    result = run(compiled, guest, vmm, throttle=rule)
    return result.progress[0].sum() / (result.thread_end_ps[0] / (MS // 10))


def share_of_the_model(percent, cpu_use):
    """The same share by the pre-copy model, with the throttle at this percentage."""
    pages = WorkingSet(*(np.array([float(value)]) for value in (2**16, 100, 0, 0, 1, 0)))._replace(cpu=cpu_use)
    settings = Settings(max_bandwidth=0, auto_converge=True, cpu_throttle_initial=percent, max_cpu_throttle=percent)
    result = precopy_trajectory(pages, LinkModel(page_s=1e-5), settings, 30.0)
    assert result.throttle == percent
    return 1 - result.passes[-1, LOST] / 100


@pytest.mark.parametrize("rule", [QEMU, CLOUD_HYPERVISOR], ids=["qemu", "cloud-hypervisor"])
@pytest.mark.parametrize("cpu_use", [0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("percent", [20, 50, 80, 99])
def test_a_throttled_guest_catches_up_as_far_as_its_idle_time_permits(percent, cpu_use, rule):
    law = min(1.0, (1 - percent / 100) / cpu_use)
    assert share_done(percent, cpu_use, rule) == pytest.approx(law, rel=0.02)
    assert share_of_the_model(percent, cpu_use) == pytest.approx(law, rel=0.02)
