# SPDX-License-Identifier: BSD-3-Clause
"""GET without manual protection while the guest writes: its closed arithmetic, its lock, its guest."""

import pytest

from simlib._lib.errors import HorizonError, InputError
from simlib.analysis.simulate import run_scenario
from simlib.model.scenario import Scenario
from simlib.model.steps import Stamp
from simlib.simulator.engine import compiled, reference
from simlib.simulator.engine.timeline import timeline
from simlib.simulator.workloads import build

COSTS = {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "clear_page": "30ns",
         "reacquire": "100ns", "flush": "5us", "flush_per_vcpu": "1us", "enable_page": "5ns",
         "lockless_page": "30ns", "others": "0ns"}  # fmt: skip
WAYS = {
    "one hold": {},
    "flush held": {"get_flush": "under_lock"},
    "64": {"get_drop_when": "pages >= 64"},
    "512": {"get_drop_when": "pages >= 512", "get_flush": "under_lock"},
    "lockless": {"clear_lock": "lockless"},
    "lockless, flush held": {"clear_lock": "lockless", "get_flush": "under_lock"},
}


def scenario(policy=None, guest=None, costs=COSTS, **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 4, "memory": "8M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": "x86-shadow-paging"} | (policy or {}),
            "workload": {"kind": "get_dirty_log", "iterations": 3, "pause": "2ms", "warm_up": "100us",
                         "access": "uniform", "shared": True, "access_interval": "2us"} | workload,
            "costs": costs,
        }
    )  # fmt: skip


def main_holds(run):
    held = timeline(run)
    return held[(held["lock"] == "mmu_lock") & (held["thread"] == "main") & (held["what"] == "hold")]


@pytest.mark.parametrize("backing", ["4k", "thp"])
@pytest.mark.parametrize("way", WAYS)
def test_both_engines_agree(way, backing):
    job = build(scenario(WAYS[way] | {"enable_blocks": "drop"}, {"backing": backing}, write_percent=60))
    assert compiled.run(job, 3, trace=300_000) == reference.run(job, 3, trace=300_000)


def test_alone_it_takes_its_pages_and_its_flush():
    """A guest that sleeps through all but the warm-up: every page dirty once, none again; to the picosecond."""
    quiet = {"access": "sequential", "shared": False, "access_interval": "1s", "warm_up": "3s"}
    for policy, page in ((WAYS["one hold"], 30), (WAYS["flush held"], 30), (WAYS["lockless"], 12)):
        case = scenario(policy, {"vcpus": 1, "memory": "256K"}, COSTS | {"lockless_page": "12ns"}, **quiet, pause="70s")
        run = run_scenario(case)
        lock = 0 if policy == WAYS["lockless"] else run.value("get_wait_time[2]")
        for number in (1, 2, 3):  # 64 pages, at 1 a second: each pause sees them all
            assert run.value(f"dirty_pages[{number}]") == 64
        expected = 64 * page * 1e-9 + 6e-6 + lock
        assert run.value("get_dirty_log_time[2]") == pytest.approx(expected, abs=1e-12 + 50e-9 * (not lock))


@pytest.mark.parametrize("batch", [64, 512])
def test_in_batches_it_takes_what_its_pages_and_its_holds_take(batch):
    """docs/page-table-walks.md (2.3), to the picosecond: with EPT nobody else takes the lock."""
    case = scenario(
        {"architecture": "x86-shadow", "get_drop_when": f"pages >= {batch}"}, {"memory": "64M"}, iterations=2
    )
    run = run_scenario(case, trace=2_000_000)
    taken = run.raw.stamp_locks[:, 0].sum(axis=1)[:, 0]
    for number in (1, 2):
        begin, end = (run.job.stamps.index(Stamp(phase, number)) for phase in ("rested", "got"))
        holds = int(taken[end] - taken[begin])
        assert 1 < holds <= 16384 // batch
        pages = round(run.value(f"dirty_pages[{number}]"))
        time_ps = int(run.raw.stamp_ps[end] - run.raw.stamp_ps[begin])
        assert time_ps == pages * 30_000 + 5_000_000 + 4 * 1_000_000 + holds * 100_000


def test_batches_end_their_holds_and_only_they_flush_under_the_lock():
    def longest(way):
        holds = main_holds(run_scenario(scenario(WAYS[way]), trace=300_000)).iloc[1:]  # but enabling the log
        return (holds["end_s"] - holds["begin_s"]).max()

    whole, flushed, small = longest("one hold"), longest("flush held"), longest("64")
    assert small < 0.2 * whole
    assert flushed == pytest.approx(whole + 9e-6, rel=0.1)  # 5 µs and four vCPUs


def test_without_the_lock_only_enabling_takes_it():
    run = run_scenario(scenario(WAYS["lockless"]), trace=300_000)
    holds = main_holds(run)
    assert len(holds) == 1  # enabling the log
    assert len(main_holds(run_scenario(scenario(), trace=300_000))) == 1 + 3
    assert run.metrics["get_wait_time"] == 0


def test_under_shadow_paging_a_vcpu_waits_for_the_walk_and_without_the_lock_it_does_not():
    costs = COSTS | {"enable_page": "0ps"}  # else enabling the log is what vCPUs wait for longest
    cases = (scenario(WAYS[way], {"memory": "64M"}, costs) for way in ("one hold", "lockless"))
    whole, lockless = map(run_scenario, cases)
    walk = whole.value("dirty_pages[2]") * 30e-9
    assert whole.metrics["longest_stall"] > 0.8 * walk
    assert lockless.metrics["longest_stall"] < 0.25 * walk
    assert lockless.metrics["guest_throughput"] > whole.metrics["guest_throughput"]


def test_a_fast_page_fault_never_meets_get():
    """EPT, pages: faults take no lock, so that GET without one makes no difference to anybody."""
    architecture = {"architecture": "x86-shadow"}
    runs = [run_scenario(scenario(architecture | WAYS[way])).metrics for way in ("one hold", "lockless")]
    assert runs[0]["contentions"] == 0
    for name in ("get_dirty_log_time", "guest_throughput", "longest_stall", "dirty_pages"):
        assert runs[0][name] == pytest.approx(runs[1][name], rel=2e-3)


def test_blocks_that_are_dropped_make_reads_fault_too():
    """A guest that writes 1 % and reads the rest, over blocks of which few are split by a write meanwhile."""

    def guest(how):
        policy, size = {"architecture": "x86-shadow", "enable_blocks": how}, {"backing": "thp", "memory": "512M"}
        return run_scenario(scenario(policy, size, write_percent=1, iterations=1, pause="500us"))

    protected, dropped = guest("protect"), guest("drop")
    reads = [run.raw.faults[:4, [0, 3]].sum() for run in (protected, dropped)]
    assert reads[1] > 5 * reads[0] > 0
    assert dropped.metrics["guest_throughput"] < protected.metrics["guest_throughput"]


def test_a_dropped_block_comes_back_as_pages():
    """While its slot is logged, no block is mapped."""
    run = run_scenario(scenario({"architecture": "x86-shadow", "enable_blocks": "drop"}, {"backing": "thp"}))
    assert run.raw.faults[:4, 3].sum() <= 4 * 4  # missing blocks: each of the four once, or by vCPUs that race
    assert run.raw.faults[:4, 0].sum() > 1000  # missing pages of their tables


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(InputError, match=r"workload\.access_interval = 0ps: must be more than 0"):
        scenario(access_interval="0ns")
    with pytest.raises(
        InputError, match=r"workload\.clear_threads = 2: get_dirty_log does not support threads that only run CLEAR"
    ):
        scenario(clear_threads=2)
    with pytest.raises(HorizonError, match=r"the rounds could take 60000 s"):
        run_scenario(scenario(iterations=1000, pause="60s"))
