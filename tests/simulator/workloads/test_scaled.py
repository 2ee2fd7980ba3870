# SPDX-License-Identifier: BSD-3-Clause
"""A migration of a part of the memory represents the whole."""

import pytest

from simlib._lib.errors import InputError
from simlib.analysis.simulate import run_scenario
from simlib.measurements.fits import find_fit
from simlib.model.scenario import Scenario
from simlib.simulator.workloads.migration import unscaled
from simlib.simulator.workloads.scaled import scaled
from studies.x86 import hosts


def test_a_sixteenth_of_the_memory_gives_the_same_after_scaling():
    """The April 2024 mail's second configuration, 16 vCPUs with 2 GiB, and with 128 MiB, in all."""
    estimate = find_fit(hosts.configurations()).estimate
    part, whole = (unscaled(hosts.configuration_metrics(estimate, "config-2", 64, f), f) for f in (512, 32))
    for metric in ("precopy_duration", "dirty_left", "clear_cpu_time", "guest_throughput"):
        assert part[metric] == pytest.approx(whole[metric], rel=0.03), metric
    assert "longest_stall" not in part


def test_a_part_of_a_guest_that_catches_up_gives_the_same_after_scaling():
    """Faults that wait for CLEAR of a chunk of 128 MiB delay each vCPU by several ms; it is idle for 70 % otherwise."""
    whole = Scenario.parse(
        {
            "guest": {"vcpus": 8, "memory": "512M"},
            "policy": {"architecture": "x86-shadow", "eager_split": True},
            "workload": {"kind": "migration", "pass_limit": 4, "warm_up": "20ms", "downtime": "0ps",
                         "clear_chunk": "128M", "access": "uniform", "shared": True, "access_interval": "4us",
                         "cpu_use": 0.3},
            "costs": {"fault_unlocked": "1us", "fault_hold": "600ns", "line_transfer": "50ns", "clear_page": "100ns",
                      "kick": "2us", "others": "0ns"},
        }
    )  # fmt: skip
    expected, part = (unscaled(run_scenario(scaled(whole, factor)).metrics, factor) for factor in (1, 8))
    for metric in ("precopy_duration", "dirty_left", "clear_cpu_time", "guest_throughput"):
        assert part[metric] == pytest.approx(expected[metric], rel=0.03), metric


def test_memory_that_does_not_divide_is_refused():
    whole = Scenario.parse({"guest": {"vcpus": 4, "memory": "48M"}, "workload": {"kind": "migration"}})
    with pytest.raises(InputError, match=r"factor = 4: each vCPU's part must stay a multiple of 2M.*divisor of 6"):
        scaled(whole, 4)
    with pytest.raises(InputError, match=r"factor = 2: does not divide a chunk of 256K"):
        scaled(whole.changed({"workload": {"clear_chunk": "256K"}}), 2)
