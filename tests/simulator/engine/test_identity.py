# SPDX-License-Identifier: BSD-3-Clause
"""Two engines, one answer: every number and every trace event is the same, to the picosecond."""

import numpy as np
from engine_strategies import SEEDS, TRACE, busy_scenarios, examples, jobs, scenarios
from hypothesis import given

from simlib.model.job import Job
from simlib.model.program import REGION, Program
from simlib.model.scenario import Scenario
from simlib.model.steps import Map, Scan
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.result import EVENTS
from simlib.simulator.workloads import build

COSTS = {"fault_unlocked": "250ns", "fault_hold": "480ns", "clear_page": "43ns"}


def assert_same(job, seed):
    slow, fast = (engine.run(job, seed, trace=TRACE, ledger=TRACE) for engine in (reference, compiled))
    assert slow == fast, f"the engines differ in {slow.differences(fast)}"
    assert fast.events > 0
    ahead = compiled.run(job, seed)  # without records it runs ahead
    differences = set(ahead.differences(fast)) - {"trace", "ledger"}
    assert not differences, f"running ahead changes {differences}"


def assert_runs_ahead_alike(scenario, seed=1):
    job = build(scenario)
    slow, fast = reference.run(job, seed), compiled.run(job, seed)
    assert slow == fast, f"running ahead changes {slow.differences(fast)}"


@given(scenario=scenarios(), seed=SEEDS)
@examples(150)
def test_every_scenario_runs_alike(scenario, seed):
    assert_same(build(scenario), seed)


def test_interrupts_are_alike():
    """Many small CLEARs, each of which interrupts the vCPUs that are in the guest or leave it, for random times."""
    case = Scenario.parse(
        {"host": {"kick_spread": [1, 1, 5]}, "guest": {"vcpus": 2, "memory_per_vcpu": "2M", "backing": "4k"},
         "policy": {"architecture": "x86-shadow-paging"},
         "workload": {"kind": "clear_under_load", "iterations": 1, "clear_chunk": "256K", "pause": "100us"},
         "costs": {"guest_access": "56ns", "fault_unlocked": "2us", "fault_hold": "400ns", "clear_page": "25ns",
                   "clear_ioctl": "500ns", "flush": "300ns", "interrupt": "8us", "kick": "8us"}}
    )  # fmt: skip
    job = build(case)
    assert_same(job, 1)
    stalls = compiled.run(job, 1).lap_histogram
    constant = build(case.changed({"host": {"kick_spread": []}}))
    assert (compiled.run(constant, 1).lap_histogram != stalls).any()


@given(scenario=busy_scenarios(), seed=SEEDS)
@examples(100)
def test_a_busy_guest_runs_ahead_alike(scenario, seed):
    assert_runs_ahead_alike(scenario, seed)


@given(job=jobs(), seed=SEEDS)
@examples(500)
def test_every_program_runs_alike(job, seed):
    assert_same(job, seed)


def test_vcpus_run_ahead_until_clear_reaches_their_memory():
    """CLEAR walks through 8 MiB of every vCPU, 4 KiB after 4 KiB, while each of them writes its own."""
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 3, "memory_per_vcpu": "8M", "backing": "hugetlb_2mb"},
            "policy": {"architecture": "x86-tdp", "eager_split": False},
            "workload": {"kind": "clear_under_load", "iterations": 2, "pause": "500us"},
            "costs": COSTS | {"guest_access": "1us", "clear_unsplit": "40ns"},
        }
    )
    assert_runs_ahead_alike(scenario)


def test_vcpus_run_ahead_until_a_waiting_thread_clears_their_memory():
    """CLEAR waits for a lock that other vCPUs take, and protects half the pages of a guest that has only had hits."""
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 3, "memory_per_vcpu": "1M", "backing": "4k"},
            "policy": {"architecture": "x86-shadow-paging"},
            "workload": {
                "kind": "clear_under_load",
                "iterations": 3,
                "write_percent": 50,
                "pause": "3ms",
                "clear_chunk": "256K",
            },
            "costs": COSTS | {"guest_access": "1us"},
        }
    )
    assert_runs_ahead_alike(scenario)


def test_a_throttled_vcpu_runs_ahead_until_it_sleeps():
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory_per_vcpu": "1M", "backing": "4k"},
            "policy": {"architecture": "x86-shadow-paging"},
            "workload": {
                "kind": "migration",
                "clear_chunk": "512K",
                "access_interval": "1us",
                "link": "10Gbit/s",
                "pass_limit": 5,
                "downtime": "0ps",
                "throttle": "qemu",
                "throttle_initial": 60,
                "throttle_slice": "20us",
                "throttle_check_period": "0ps",
            },
            "costs": COSTS,
        }
    )
    assert_runs_ahead_alike(scenario)


def test_no_pages_are_sent_before_another_thread_has_scanned_for_them():
    """One thread collects a page at 0 and sends it at 1 us; the other finds it at 500 ns, and is busy for 2 us."""
    p = Program()
    with p.thread() as sender:
        p.map(Map.PAGE, logging=True)
        p.scan(Scan.COLLECT)
        p.run(1_000_000)
        p.scan(Scan.SEND)
    with p.thread() as other:
        p.run(500_000)
        with p.when(REGION.collected()):
            p.run(2_000_000)
    none, entry = np.zeros(2, int), np.array([sender.first, other.first])
    job = Job(p.steps(), entry, np.array([[0, 64]] * 2), none, 0, 0, 0, none)
    for engine in (reference, compiled):
        assert engine.run(job).end_ps == 2_500_000, engine.__name__


def test_write_protecting_keeps_the_dirty_bit():
    """A page dirtied before the log's pages are protected is still in the log: CLEAR finds it."""
    p = Program()
    with p.thread():
        p.map(Map.PAGE, logging=True)
        for action in (Scan.PROTECT, Scan.COLLECT, Scan.CLEAR):
            p.scan(action)
    job = Job(p.steps(), np.zeros(1, int), np.array([[0, 64]]), np.zeros(1, int), 0, 0, 0, np.zeros(1, int))
    for engine in (reference, compiled):
        rows = engine.run(job, trace=9).trace
        assert rows[rows[:, 2] == EVENTS.index("scan"), 3].tolist() == [1, 1, 1], engine.__name__
