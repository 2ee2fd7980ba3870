# SPDX-License-Identifier: BSD-3-Clause
"""Predictions: metrics, costs, and intervals of values that can be 0."""

from __future__ import annotations

import numpy as np
import pytest

import simlib
from simlib import InputError, Scenario
from simlib.analysis.curve_points import Values
from simlib.analysis.predict import interval
from simlib.measurements import data_dir
from simlib.measurements.fits import CostEstimate

COSTS = {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns", "others": "0ns"}
SMALL = Scenario.parse({"guest": {"memory_per_vcpu": "2M"}, "costs": COSTS})


@pytest.mark.study
def test_a_shipped_migration_is_predicted_with_its_own_metrics():
    shipped = simlib.load_scenario(data_dir() / "scenarios" / "x86-160-vcpus.toml")
    one_pass = shipped.everywhere({"workload": {"pass_limit": 1}})
    result = simlib.predict(one_pass, [1], variant="before")
    assert result.frame["metric"].unique().tolist() == [
        "logging_cpu_time", "enable_cpu_time", "clear_cpu_time", "fault_cpu_time", "enable_time", "precopy_duration",
        "downtime", "dirty_left", "guest_throughput",
    ]  # fmt: skip
    value = result.frame.set_index("metric")["estimate"]
    assert value["logging_cpu_time"] == pytest.approx(value[["clear_cpu_time", "fault_cpu_time"]].sum())
    assert (result.frame["low"] <= result.frame["estimate"]).all()
    assert (result.frame["estimate"] <= result.frame["high"]).all()
    assert (result.frame.loc[result.frame["unit"] == "share", "high"] <= 1).all()
    assert not any("was simulated" in flag for flag in result.flags)  # slow faults do not scale with the memory
    shipped = simlib.load_scenario(data_dir() / "scenarios" / "x86-three-configurations.toml")
    scaled = simlib.predict(shipped.everywhere({"workload": {"pass_limit": 1}}), [16], variant="config-1")
    assert "one page in 64 was simulated; times and counts are scaled" in scaled.flags


def test_each_variant_gets_the_fit_of_its_host(monkeypatch):
    monkeypatch.setattr("simlib.simulator.workloads.scaled.SAMPLE_PAGES", 2**15)
    scenario = simlib.load_scenario(data_dir() / "scenarios" / "migration-48-vcpus.toml")
    scenario = scenario.everywhere({"guest": {"memory": "96M"}, "workload": {"warm_up": "1ms", "pass_limit": 1}})
    result = simlib.predict(scenario, [48], metrics=["precopy_duration"])
    assert result.frame["variant"].tolist() == list(scenario.variants)
    assert [flag.split(" (")[0] for flag in result.flags if "shipped" in flag] == [
        "costs: the shipped fit for ampere-altra", "costs: the shipped fit for x86-published"
    ]  # fmt: skip


def test_a_single_iteration_can_be_predicted():
    result = simlib.predict(SMALL, [2], metrics=["dirty_memory_time", "dirty_memory_time[2]"]).frame
    assert result["estimate"].nunique() == 1  # the first iteration takes no fault


@pytest.mark.parametrize(
    ("name", "variant", "metric"),
    [("arm64-ampere-altra", "rwlock-fixed-test", "dirty_memory_time"),
     ("x86-three-configurations", "config-3", "clear_cpu_time")],
)  # fmt: skip
def test_fewer_pages_give_the_effect_of_costs_on_a_prediction(monkeypatch, name, variant, metric):
    monkeypatch.setattr("simlib.simulator.workloads.scaled.SAMPLE_PAGES", 2**16)
    scenario = simlib.load_scenario(data_dir() / "scenarios" / f"{name}.toml")
    few = simlib.predict(scenario, [16], variant=variant, metrics=[metric]).frame.iloc[0]
    monkeypatch.setattr("simlib.analysis.curve_points.MOVED_PART", 1)
    every = simlib.predict(scenario, [16], variant=variant, metrics=[metric]).frame.iloc[0]
    assert few["estimate"] == every["estimate"]
    assert few["high"] != every["high"]
    assert np.log(few["high"] / few["low"]) == pytest.approx(np.log(every["high"] / every["low"]), rel=0.1)


def test_a_single_stall_needs_all_memory(monkeypatch):
    monkeypatch.setattr("simlib.simulator.workloads.horizon.LONG_S", 0.0)
    scenario = Scenario.parse(
        {"guest": {"vcpus": 2, "memory": "8M"}, "costs": COSTS, "policy": {"architecture": "x86-shadow-paging"},
         "workload": {"kind": "migration", "pass_limit": 1, "downtime": "1us", "warm_up": "10us"}}
    )  # fmt: skip
    messages: list[str] = []
    result = simlib.predict(scenario, [2], metrics=["longest_stall"], replications=2,
                           progress=lambda what, share: messages.append(what))  # fmt: skip
    assert "or omit longest_stall, which cannot be computed from part of the memory: a guest that" in messages[0]
    assert (result.frame["estimate"] > 0).all()
    assert not any("was simulated" in flag for flag in result.flags)


def test_a_policy_by_name():
    spin = simlib.predict(SMALL, [8], policy="loongarch-two-acquisitions", metrics=["lock_acquisitions"])
    baseline = simlib.predict(SMALL, [8], metrics=["lock_acquisitions"])
    assert spin.frame["estimate"].item() > baseline.frame["estimate"].item()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vcpus": []}, r"must contain at least one vCPU count; write \[16, 32, 48\]"),
        (
            {"metrics": ["precopy_duration"]},
            r"dirty_log_perf_test has no metric of this name; .*known: clear_cpu_time, clear_dirty",
        ),
        ({"metrics": ["dirty_memory_time[7]"]}, r"the workload has iterations 1 to 2"),
        ({"policy": "every-63"}, r"multiple of 64"),
        ({"fit": "nowhere.json"}, r"nowhere.json = missing: a fit file"),
    ],
)
def test_wrong_input_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        simlib.predict(SMALL, **({"vcpus": [1]} | arguments))


def test_values_that_can_be_zero_have_an_interval_without_logarithms():
    known = CostEstimate(("fault_hold",), np.log([600e3]), np.array([[0.01]]), 8, 0.0, {})
    values = Values(np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]), np.empty((0, 2)), ())
    centre, low, high = interval(values, 0, known, 0.9, values.spread(), "dirty_left")
    assert (centre, low) == (1.0, 0.0)
    assert 1 < high < 100
    assert interval(values, 1, known, 0.9, values.spread(), "contentions") == (0.0, 0.0, 0.0)
