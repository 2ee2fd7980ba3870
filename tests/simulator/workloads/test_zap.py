# SPDX-License-Identifier: BSD-3-Clause
"""All memory unmapped while the guest works on."""

import pytest

from simlib._lib.errors import HorizonError, InputError
from simlib.analysis.simulate import run_scenario as simulate
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build
from simlib.simulator.workloads.horizon import long_run_notice


def scenario(batch=10, guest=None, architecture="x86-shadow", **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 4, "memory": "64M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": architecture,
                       "zap_drop_when": f"blocks >= {batch} and waiters >= 1" if batch else "never"},
            "workload": {"kind": "zap", "warm_up": "1ms", "access": "uniform", "shared": True} | workload,
            "costs": {"fault_unlocked": "1us", "fault_hold": "800ns", "line_transfer": "50ns", "zap_block": "20us",
                      "flush": "5us", "kick": "2us", "reacquire": "100ns", "others": "0ns"},
        }
    )  # fmt: skip


@pytest.mark.parametrize("guest", [{"backing": "4k"}, {"backing": "hugetlb_2mb"}, {"page_size": "16K"}])
@pytest.mark.parametrize("architecture", ["x86-shadow", "arm64", "loongarch"])
def test_both_engines_run_it_alike(guest, architecture):
    job = build(scenario(3, guest, architecture, write_percent=70))
    assert compiled.run(job, 3, trace=100_000) == reference.run(job, 3, trace=100_000)


def test_alone_it_takes_the_sum_of_its_costs():
    result = simulate(scenario(access_interval="60s"))
    assert result.metrics["zap_time"] == pytest.approx(32 * 20e-6 + 5e-6, rel=1e-9)
    assert result.metrics["longest_stall"] < 7e-6  # a vCPU's next access, long after, and the kick before it


@pytest.mark.parametrize(("batch", "holds"), [(0, 1), (1, 32), (10, 4), (32, 1), (40, 1)])
def test_it_drops_the_lock_after_a_batch_if_a_thread_waits(batch, holds):
    """All four vCPUs fault as soon as the memory is unmapped, and wait from then on."""
    result = simulate(scenario(batch), trace=500_000)
    taken = result.raw.trace[(result.raw.trace[:, 1] == 4) & (result.raw.trace[:, 2] == 0)]
    assert len(taken) == holds
    longest = min(batch or 32, 32) * 20e-6
    assert longest < result.metrics["longest_stall"] < longest + 20e-6


def test_an_adaptive_batch_grows_from_its_least_while_nobody_waits():
    """Of 32 blocks of 512 pages, holds do 1, 2, 4, 8, 8, 8 and the last one."""
    alone = scenario(access_interval="60s").changed({"policy": {"zap_drop_when": "pages >= adaptive(512, 4096)"}})
    undisturbed, zapped = simulate(alone).raw.stamp_locks[1:, 0, 1, 0].tolist()
    assert zapped - undisturbed == 7


def test_memory_accessed_again_is_mapped_again():
    """Page by page, or by blocks where the guest has such; several vCPUs may want the same at once."""
    pages, blocks = (simulate(scenario(1, {"backing": backing})).raw.faults for backing in ("4k", "hugetlb_2mb"))
    assert pages[:, 0].sum() > 200
    assert blocks[:, :3].sum() == 0
    assert 0 < blocks[:, 3].sum() <= 4 * 32


@pytest.mark.parametrize(
    "workload",
    [{"kind": "zap"}, {"kind": "migration"}, {"kind": "get_dirty_log"}, {"kind": "teardown", "guest_runs": True}],
)
@pytest.mark.parametrize("clock", ["serial", "serial_yield"])
def test_a_running_guest_has_a_clock_that_all_share(workload, clock):
    """Its accesses are counted over the time that passes, and stamps have the time that such a clock shows."""
    tables = {
        "host": {"clock": clock},
        "workload": workload,
        "policy": {"architecture": "arm64", "teardown_tlb": "range"},
    }
    with pytest.raises(InputError, match=rf"host\.clock = {clock}: {workload['kind']} measures the guest"):
        Scenario.parse(tables)
    Scenario.parse(tables | {"host": {"clock": "wall"}})


def test_a_long_run_is_announced_and_one_of_a_week_is_refused():
    def asked(pause):
        return Scenario.parse({"guest": {"vcpus": 64, "memory_per_vcpu": "2M"}, "costs": {"clear_page": "30ns"},
                               "workload": {"kind": "get_dirty_log", "iterations": 1, "pause": pause,
                                            "access_interval": "1ns"}})  # fmt: skip

    assert not long_run_notice(asked("1ms").changed({"workload": {"warm_up": "1ms"}}))
    assert long_run_notice(asked("4s")).startswith(
        "a long run: the guest accesses its memory at least 2.62e+11 times, which takes at least 5248 s"
    )
    with pytest.raises(HorizonError, match=r"2\.56e\+14 times, more than the 1e\+13 .*; shorten pause"):
        simulate(asked("4000s"))


@pytest.mark.parametrize("host", [{"turn": "200ns"}, {"clock": "serial", "turn": "3ms"}])
def test_turns_are_those_of_one_processor_and_short(host):
    with pytest.raises(InputError, match=r"host\.turn = .*: requires CPUs that take turns on one processor"):
        Scenario.parse({"host": host})
