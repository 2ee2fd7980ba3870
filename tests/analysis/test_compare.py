# SPDX-License-Identifier: BSD-3-Clause
"""Comparison of policies: paired, so that common effects cancel."""

from __future__ import annotations

import dataclasses

import pytest

import simlib
from simlib import InputError, Scenario
from simlib.measurements import data_dir
from simlib.model.scenario import load_scenario

SMALL = Scenario.parse(
    {"guest": {"vcpus": 2, "memory_per_vcpu": "2M"}, "policy": {"architecture": "arm64"},
     "costs": {"fault_unlocked": "700ns", "fault_hold": "600ns", "line_transfer": "50ns", "fault_jitter": 0.3}}
)  # fmt: skip


def test_policies_are_compared_with_the_first():
    result = simlib.compare(SMALL, ["baseline", "loongarch-two-acquisitions"], [1, 8], metrics=["dirty_memory_time"])
    first, second = (result.frame[result.frame["policy"] == name] for name in result.policies)
    assert (first[["change_percent", "change_low", "change_high"]] == 0).all(axis=None)
    changes = 100 * (second["estimate"].to_numpy() / first["estimate"].to_numpy() - 1)
    assert second["change_percent"].to_numpy() == pytest.approx(changes, abs=0.5)
    assert second["change_percent"].iloc[1] > 50  # faults took no lock before
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.level = 0.5  # type: ignore[misc]


def test_common_effects_cancel():
    """With calibrated costs a change is known better than either side of it.

    Without turns: their lengths are drawn, so that with them each step of a derivative differs by chance, too.
    """
    lab = load_scenario(data_dir() / "scenarios" / "lab-x86-shadow.toml")
    fluid = lab.changed({"host": dict.fromkeys(("turn", "enqueue_cost", "spin_poll_cost", "tick", "tick_work"), 0)})
    result = simlib.compare(fluid, ["whole-ioctl", "every-64"], [8], metrics=["clear_dirty_log_time"])
    row = result.frame.iloc[1]
    assert row["change_low"] < row["change_percent"] < row["change_high"]
    assert row["change_high"] - row["change_low"] < 0.1 * 100 * (row["high"] / row["low"] - 1)


def test_each_variant_is_compared_with_itself():
    scenario = dataclasses.replace(SMALL, variants={"a": SMALL, "b": SMALL})
    result = simlib.compare(scenario, ["baseline", "every-64"], [1], metrics=["dirty_memory_time"])
    assert result.frame["variant"].tolist() == ["a", "b", "a", "b"]
    assert simlib.compare(scenario, ["baseline"], [1], variant="b").frame["variant"].eq("").all()
    assert "variant" in result.readable().columns


@pytest.mark.parametrize(
    ("policies", "message"),
    [([], "must name at least one"), (["baseline", "baseline"], "given more than once"),
     (["evry-64"], "did you mean 'every-64'"),
     (["baseline", "zap-batch-10"], "zap has no metric of this name")],
)  # fmt: skip
def test_wrong_policies_are_refused(policies, message):
    with pytest.raises(InputError, match=message):
        simlib.compare(SMALL, policies, [1])
