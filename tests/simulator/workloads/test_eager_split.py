# SPDX-License-Identifier: BSD-3-Clause
"""arm64's eager split through the engines: equal to the closed arithmetic when alone, and what it does to a guest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_scenario
from simlib.model.pagetable import SPLIT_WALKS
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build
from studies.split_walk.theory import SplitCounts, total_time

COSTS = {
    "walk_entry": "5ns",
    "protect_entry": "11ns",
    "table_entry": "31ns",
    "split_block": "6us",
    "clear_word": "353ns",
    "others": "0ns",
}


def scenario(backing="thp", memory="8M", walk="all", guest=None, policy=None, costs=None, **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 2, "memory": memory, "backing": backing} | (guest or {}),
            "policy": {"eager_split": True, "split_walk": walk} | (policy or {}),
            "workload": {"kind": "eager_split"} | workload,
            "costs": COSTS | (costs or {}),
        }
    )


@pytest.mark.parametrize("walk", SPLIT_WALKS)
@pytest.mark.parametrize("initially_set", [True, False])
@pytest.mark.parametrize(("backing", "page"), [("4k", "4K"), ("thp", "4K"), ("thp", "16K")])
def test_parked_it_takes_what_the_closed_arithmetic_says(backing, page, walk, initially_set):
    case = scenario(backing, "64M" if page == "16K" else "8M", walk, {"page_size": page}, initially_set=initially_set)
    costs = case.costs.given()
    guest = SplitCounts(case.guest.memory, backing, case.guest.page_size, case.guest.page_size)
    metrics = run_scenario(case).metrics
    if initially_set:
        assert metrics["enable_time"] == 0
        assert round(metrics["clear_dirty_log_time"] * 1e12) == total_time(guest.clear(walk), costs)
    else:
        assert round(metrics["enable_time"] * 1e12) == total_time(guest.enable(walk), costs)


@pytest.mark.parametrize("walk", ["all", "skip_levels"])
@pytest.mark.parametrize("initially_set", [True, False])
def test_blocks_of_1_gib_are_split_at_once(walk, initially_set):
    case = scenario("hugetlb_1gb", "2G", walk, initially_set=initially_set)
    guest, metrics = SplitCounts(2**31, "hugetlb_1gb"), run_scenario(case).metrics
    if initially_set:
        assert round(metrics["clear_dirty_log_time"] * 1e12) == total_time(guest.clear(walk), case.costs.given())
    else:
        assert round(metrics["enable_time"] * 1e12) == total_time(guest.enable(walk), case.costs.given())


@pytest.mark.parametrize("parked", [True, False])
@pytest.mark.parametrize("initially_set", [True, False])
@pytest.mark.parametrize("backing", ["4k", "thp"])
def test_both_engines_run_it_alike(backing, initially_set, parked):
    costs = {"fault_unlocked": "700ns", "fault_hold": "300ns", "line_transfer": "40ns", "flush": "3us",
             "split_alloc": "900ns", "reacquire": "60ns", "kick": "1us"}  # fmt: skip
    phases = {"initially_set": initially_set, "parked": parked, "pause": "100us", "warm_up": "50us"}
    job = build(scenario(backing, "8M", costs=costs, **phases))
    assert compiled.run(job, 3, trace=400_000) == reference.run(job, 3, trace=400_000)


@settings(max_examples=25, deadline=None)
@given(
    case=st.fixed_dictionaries(
        {
            "backing": st.sampled_from(["4k", "thp", "hugetlb_2mb"]),
            "walk": st.sampled_from(SPLIT_WALKS),
            "policy": st.fixed_dictionaries(
                {"eager_split": st.booleans(), "split_chunk": st.sampled_from(["2M", "4M", "1G"])}
            ),
            "costs": st.fixed_dictionaries(
                {name: st.sampled_from(["1ns", "700ns", "40us"])
                 for name in ("fault_unlocked", "fault_hold", "line_transfer", "flush", "split_alloc", "reacquire")}
            ),
            "initially_set": st.booleans(),
            "parked": st.booleans(),
            "write_percent": st.sampled_from([100, 50, 3]),
            "access": st.sampled_from(["sequential", "uniform"]),
            "access_interval": st.sampled_from(["100ns", "3us"]),
            "clear_chunk": st.sampled_from(["256K", "4M", "8M"]),
            "pause": st.sampled_from(["0ps", "300us"]),
            "warm_up": st.sampled_from(["0ps", "100us"]),
        }
    ),
    seed=st.integers(1, 99),
)  # fmt: skip
def test_both_engines_agree_on_random_scenarios(case, seed):
    job = build(scenario(memory="8M", **case))
    assert compiled.run(job, seed, trace=300_000) == reference.run(job, seed, trace=300_000)


def test_after_the_first_clear_everything_is_split_and_a_clear_that_splits_nothing_is_shorter():
    case = scenario("thp", iterations=3)
    run = run_scenario(case)
    first, second, third = (run.value(f"clear_dirty_log_time[{i}]") for i in (1, 2, 3))
    assert first > second == third
    already = SplitCounts(2**23, "4k").clear(iterations=1)
    assert round(second * 1e12) == total_time(already, case.costs.given())


def test_without_initially_set_clear_does_not_split_again():
    case = scenario("4k", initially_set=False)
    words, pages = 2**23 // 4096 // 64, 2**23 // 4096
    visits = words * (64 + 3)  # the write-protecting walk alone
    expected = visits * 5_000 + pages * 11_000 + words * 353_000
    assert round(run_scenario(case).value("clear_dirty_log_time[2]") * 1e12) == expected


def test_a_guest_that_writes_on_waits_for_a_chunk_at_most():
    """No thread gets the lock within a chunk; between two, and at each split's allocation, a waiting one does."""
    costs = {"fault_unlocked": "700ns", "fault_hold": "300ns", "reacquire": "60ns"}
    guest = {"initially_set": False, "parked": False, "warm_up": "1us", "pause": "1us", "iterations": 1,
             "access": "uniform", "shared": True}  # fmt: skip
    small, large = (
        run_scenario(scenario("thp", "64M", policy={"split_chunk": chunk}, costs=costs, **guest)).metrics
        for chunk in ("2M", "64M")
    )
    assert large["longest_stall"] > 4 * small["longest_stall"]
    assert small["enable_time"] > large["enable_time"]
    assert small["contentions"] > large["contentions"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (scenario("hugetlb_1gb", "1G", policy={"split_chunk": "2M"}), r"policy\.split_chunk = 2M: must be a multiple"),
        (scenario("hugetlb_1gb", "512M"), r"guest\.memory = 512M: must be a multiple of the block size, 1G"),
        (scenario("hugetlb_1gb", "2G", clear_chunk="512M"), r"workload\.clear_chunk = 512M: must be a multiple of 1G"),
    ],
)
def test_what_it_does_not_simulate_is_refused(case, message):
    with pytest.raises(InputError, match=message):
        build(case)
