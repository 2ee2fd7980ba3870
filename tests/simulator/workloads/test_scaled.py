# SPDX-License-Identifier: BSD-3-Clause
"""A migration of a part of the memory represents the whole."""

import pytest

from simlib._lib.errors import InputError
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


def test_memory_that_does_not_divide_is_refused():
    whole = Scenario.parse({"guest": {"vcpus": 4, "memory": "48M"}, "workload": {"kind": "migration"}})
    with pytest.raises(InputError, match=r"factor = 4: each vCPU's part must stay a multiple of 2M.*divisor of 6"):
        scaled(whole, 4)
    with pytest.raises(InputError, match=r"factor = 2: does not divide a chunk of 256K"):
        scaled(whole.changed({"workload": {"clear_chunk": "256K"}}), 2)
