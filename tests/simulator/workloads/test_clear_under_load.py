# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes: what a batch does where faults take the lock, and where they do not."""

import pytest

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_scenario as simulate
from simlib.model.scenario import Scenario
from simlib.simulator.engine import compiled, reference
from simlib.simulator.workloads import build

COSTS = {"fault_unlocked": "3us", "fault_hold": "1600ns", "clear_page": "150ns", "guest_access": "100ns",
         "others": "0ns"}  # fmt: skip


def scenario_of(architecture, batch=0, guest=None, **workload):
    return Scenario.parse(
        {
            "guest": {"vcpus": 4, "memory_per_vcpu": "4M", "backing": "4k"} | (guest or {}),
            "policy": {"architecture": architecture, "clear_batch_pages": batch},
            "workload": {"kind": "clear_under_load", "iterations": 2, "pause": "5ms"} | workload,
            "costs": COSTS,
        }
    )


def run(architecture, batch=0, **workload):
    return simulate(scenario_of(architecture, batch, **workload))


def clears(result):
    """Acquisitions of mmu_lock by the main thread: all but those of faults."""
    faults = int(result.raw.faults[:, :3].sum())
    return int(result.metrics["lock_acquisitions"]) - faults


@pytest.mark.parametrize(("batch", "holds"), [(0, 2), (512, 16), (64, 128)])
def test_a_hold_for_each_batch(batch, holds):
    """The pause is long enough for every word to be dirty: only those cost a hold."""
    assert clears(run("x86-shadow-paging", batch, pause="50ms")) == holds


def test_a_batch_bounds_the_stall_where_faults_take_the_lock():
    whole, batched = run("x86-shadow-paging").metrics, run("x86-shadow-paging", 64).metrics
    assert whole["longest_stall"] == pytest.approx(4096 * 150e-9, rel=0.15)
    assert batched["longest_stall"] < 0.1 * whole["longest_stall"]
    assert batched["clear_dirty_log_time"] > 1.2 * whole["clear_dirty_log_time"]


def test_lockless_faults_are_not_delayed():
    whole, batched = run("x86-tdp").metrics, run("x86-tdp", 64).metrics
    assert whole["longest_stall"] == batched["longest_stall"] < 6e-6


def test_the_stall_of_enabling_is_not_the_stall_of_clear():
    early, late = run("x86-shadow-paging", 64).metrics, run("x86-shadow-paging", 64, initially_set=False).metrics
    assert late["longest_stall"] < 3 * early["longest_stall"]


def test_what_does_not_scale_is_not_sampled():
    scenario = Scenario.parse({"workload": {"kind": "clear_under_load"}, "guest": {"memory_per_vcpu": "8M"}})
    assert simulate(scenario.changed({"costs": COSTS}), pages_per_vcpu=64).scale == 1.0


@pytest.mark.parametrize("page_size", ["4K", "16K"])
@pytest.mark.parametrize("threads", [0, 3])
def test_both_engines_run_every_guest_alike(page_size, threads):
    guest = {"page_size": page_size, "vcpus": 3, "memory_per_vcpu": "1M"}
    job = build(scenario_of("x86-shadow-paging", 64, guest, write_percent=40, clear_threads=threads, pause="300us"))
    assert compiled.run(job, 3, trace=100_000) == reference.run(job, 3, trace=100_000)


def test_threads_divide_the_slot_and_hide_each_other_s_time():
    """With lockless faults only they wait for one another; without a lock around it all they work side by side."""
    single, double = (run("x86-tdp", 64, clear_threads=n, pause="50ms") for n in (1, 2))
    assert [int(run.raw.lock_stats[0, 1, 0]) for run in (single, double)] == [128, 128]
    assert single.metrics["clear_dirty_log_time"] == run("x86-tdp", 64, pause="50ms").metrics["clear_dirty_log_time"]
    shared = scenario_of("x86-tdp", 64, clear_threads=2, pause="50ms").changed({"policy": {"clear_lock": "read"}})
    halved = simulate(shared).metrics["clear_dirty_log_time"]
    assert halved == pytest.approx(single.metrics["clear_dirty_log_time"] / 2, rel=0.01)


def test_threads_need_parts_of_whole_words():
    with pytest.raises(InputError, match=r"workload\.clear_threads = 3: must divide the memory .* change memory"):
        scenario_of("x86-tdp", clear_threads=3)


def test_a_guest_whose_accesses_take_no_time_is_refused():
    """It would go round its pages for ever at one instant."""
    with pytest.raises(InputError, match=r"costs\.guest_access = 0: must be more than 0 for clear_under_load"):
        build(scenario_of("x86-tdp").with_costs(guest_access=0))
