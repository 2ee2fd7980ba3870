# SPDX-License-Identifier: BSD-3-Clause
"""CLEAR while the guest writes: what a batch does where faults take the lock, and where they do not."""

import pytest

from simlib.engine.simulate import simulate
from simlib.model.scenario import Scenario

COSTS = {"fault_exit": "3us", "fault_hold": "1600ns", "clear_page": "150ns", "guest_access": "100ns"}


def run(architecture, batch=0, **workload):
    scenario = Scenario.parse(
        {
            "guest": {"vcpus": 4, "memory_per_vcpu": "4M", "backing": "4k"},
            "policy": {"architecture": architecture, "clear_batch_pages": batch},
            "workload": {"kind": "clear_under_load", "iterations": 2, "pause": "5ms"} | workload,
            "costs": COSTS,
        }
    )
    return simulate(scenario)


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


def test_lockless_faults_do_not_notice():
    whole, batched = run("x86-tdp").metrics, run("x86-tdp", 64).metrics
    assert whole["longest_stall"] == batched["longest_stall"] < 6e-6


def test_the_stall_of_enabling_is_not_the_stall_of_clear():
    early, late = run("x86-shadow-paging", 64).metrics, run("x86-shadow-paging", 64, initially_set=False).metrics
    assert late["longest_stall"] < 3 * early["longest_stall"]


def test_what_does_not_scale_is_not_sampled():
    scenario = Scenario.parse({"workload": {"kind": "clear_under_load"}, "guest": {"memory_per_vcpu": "8M"}})
    assert simulate(scenario.changed({"costs": COSTS}), pages_per_vcpu=64).scale == 1.0
