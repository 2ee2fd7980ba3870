# SPDX-License-Identifier: BSD-3-Clause
"""Prediction of a trial's counts and instructions on hardware: policies, costs, and curves with intervals."""

from __future__ import annotations

import pytest

from simlib.lab import Trial
from simlib.lab.hardware.effect import UNSEEN, effect_of
from simlib.lab.hardware.prediction import WITH, on_hardware
from simlib.lab.trial.differences import assign_verdicts, compare
from simlib.lab.trial.quantities import COUNT, TIME, TrialQuantity
from studies.lab.translation import ratio_table

PAGES = 4096.0


def numbers(**values):
    """Numbers of a cell: ``clear_write=32`` are acquisitions of a call site; ioctls by name and unit."""
    quantities = {TrialQuantity("clear", "calls", COUNT): 2.0, TrialQuantity("clear", "dirty pages", COUNT): PAGES}
    times = {"clear_time": 600_000.0, "write_time": 9e6, **values}
    for name, value in times.items():
        of, _, what = name.rpartition("_")
        if what == "time":
            quantities[TrialQuantity(of, "time", TIME)] = value
        elif what == "holds":
            site, _, mode = of.rpartition("_")
            quantities[TrialQuantity(f"{site} {mode} (rounds)", "holds", TIME)] = value
        else:
            quantities[TrialQuantity(f"{of} {what} (rounds)", "acquisitions", COUNT)] = value
    quantities[TrialQuantity("clear", "time a dirty page", TIME)] = times["clear_time"] / PAGES
    return quantities


def trial(machine, before, after, cells=("parked", "blocks"), noise=0.01):
    """A trial whose `cells` have equal numbers."""
    scattered = [
        [{key: value * (1 + noise * (n - 2.5) / 5 if key.unit == TIME else 1) for key, value in side.items()}
         for n in range(6)]
        for side in (before, after)
    ]  # fmt: skip
    differences = [difference for cell in cells for difference in compare(machine, cell, *scattered)]
    return Trial({}, (machine,), (), {}, tuple(assign_verdicts(differences)))


def test_more_acquisitions_by_clear_imply_a_batch():
    tried = trial("x86_64/shadow", numbers(clear_write=2), numbers(clear_write=32, clear_time=608_000))
    effect = effect_of(tried, "x86_64/shadow")
    assert [policy["clear_drop_when"] for policy in effect.policies] == ["never", "pages >= 128"]
    assert not effect.costs  # these instructions are those of the drops, whose cost the host's calibration has
    assert effect.unseen == ("drop",)
    unmoved = trial("x86_64/shadow", numbers(clear_write=2), numbers(clear_write=64))
    assert not effect_of(unmoved, "x86_64/shadow").costs
    prediction = on_hardware(tried, vcpus=[4])
    frame = prediction.frame.set_index(["policy", "metric"])
    stall, clear = (frame.loc[WITH, name] for name in ("longest_stall", "clear_dirty_log_time"))
    assert stall["change_high"] < 0 < clear["change_low"] < clear["change_percent"] < clear["change_high"]
    assert max(map(len, prediction.summary().splitlines())) <= 72
    text = " ".join(prediction.summary().split())
    assert "clear_drop_when never -> pages >= 128" in text
    assert UNSEEN["drop"] in text
    assert prediction.plot("over_vcpus").data


def test_instructions_become_time_with_an_interval():
    before = numbers(clear_write=2, fault_slow_write=2048, fault_slow_write_holds=2048 * 1000.0)
    after = numbers(clear_write=2, fault_slow_write=2048, fault_slow_write_holds=2048 * 1200.0, write_time=9.41e6)
    tried = trial("x86_64/shadow", before, after)
    effect = effect_of(tried, "x86_64/shadow")
    middle, half = effect.costs["fault_hold"]
    assert (middle, half < middle / 2) == (pytest.approx(200, rel=0.02), True)
    assert effect.policies[0] == effect.policies[1]
    prediction = on_hardware(tried, vcpus=[1])
    [row] = prediction.effects.query("what == 'fault_hold'").to_dict("records")
    ns = ratio_table().query("kind == 'hold' and architecture == 'x86-shadow-paging'")["ns_per_instruction"].iloc[0]
    more = float(row["with"].split()[0]) - float(row["without"].split()[0])
    assert more == pytest.approx(middle * ns, rel=0.02)
    [curve] = prediction.frame.query("policy == 'with' and metric == 'dirty_memory_time'").to_dict("records")
    assert 0 < curve["change_low"] < curve["change_percent"] < curve["change_high"]


def test_changes_of_mode_and_lock_imply_policies():
    read, write = numbers(clear_write=2, fault_fast_read=4096), numbers(clear_write=2, fault_fast_write=4096)
    held = [counts | {TrialQuantity(f"fault_fast {mode} (rounds)", "holds", TIME): 4096e3}
            for counts, mode in ((read, "read"), (write, "write"))]  # fmt: skip
    effect = effect_of(trial("arm64/vhe", *held), "arm64/vhe")
    assert not effect.costs  # the holds change mode, not length
    assert [policy["write_protect_fault"] for policy in effect.policies] == ["read", "write"]
    gone = effect_of(
        trial("x86_64/shadow", numbers(clear_write=2), numbers(clear_write=0, clear_time=400_000)), "x86_64/shadow"
    )
    assert gone.policies[1]["clear_lock"] == "lockless"
    assert gone.lockless_ratio == pytest.approx(2 / 3, rel=0.02)
    assert "clear_page" not in gone.costs


def test_a_lock_that_moves_to_another_function_is_not_gone():
    """The lock of CLEAR, or of faults, is taken in a function of its own; nothing else changes."""
    before = numbers(clear_write=2, fault_slow_write=9)
    before |= numbers(enable_write=1)
    gone = {"clear_write": 0, "in_helper_write": 2}, {"fault_slow_write": 0, "in_helper_write": 9}
    known = {"clear_write": 0, "enable_write": 3}  # a function that has a site for another operation
    for change in (*gone, known):
        moved = numbers(**({"clear_write": 2, "fault_slow_write": 9, "enable_write": 1} | change))
        effect = effect_of(trial("x86_64/shadow", before, moved), "x86_64/shadow")
        assert effect.empty, effect
        assert not effect.refusal
    batch = effect_of(trial("x86_64/shadow", before, numbers(in_masked_write=32, fault_slow_write=9)), "x86_64/shadow")
    assert batch.policies[1]["clear_drop_when"] == "pages >= 128"
    assert batch.policies[1]["clear_lock"] == "write"
    read = effect_of(trial("x86_64/shadow", before, numbers(in_masked_read=2, fault_slow_write=9)), "x86_64/shadow")
    assert read.policies[1]["clear_lock"] == "read"
    split = numbers(clear_write=2, fault_slow_write=5, enable_write=5)  # fewer faults, since blocks are split before
    holds = {"fault_slow_write_holds": 9000.0}
    tried = trial("x86_64/shadow", before | numbers(clear_write=2, fault_slow_write=9, **holds), split)
    effect = effect_of(tried, "x86_64/shadow")
    assert "fault_hold" not in effect.costs
    both = trial("x86_64/shadow", before, numbers(in_helper_write=11))
    assert "clear and fault_slow moved to in_helper (+11)" in effect_of(both, "x86_64/shadow").refusal
    assert "is not counted" in " ".join(on_hardware(both, vcpus=[1]).notes)
    more = trial("x86_64/shadow", before, before | numbers(clear_write=2, fault_slow_write=9, in_age_write=5))
    assert "in_age (+5) takes mmu_lock in addition" in effect_of(more, "x86_64/shadow").refusal


def test_drops_only_under_load_imply_a_condition_on_waiters():
    before, after = numbers(clear_write=2, fault_slow_write=9), numbers(clear_write=40, fault_slow_write=9)
    effect = effect_of(trial("x86_64/shadow", before, after, ["load"]), "x86_64/shadow")
    assert effect.policies[1]["clear_drop_when"] == "waiters >= 1"


def test_two_modes_of_one_host_have_different_labels():
    parts = [
        trial(machine, numbers(clear_write=2), numbers(clear_write=64)) for machine in ("x86_64/npt", "x86_64/shadow")
    ]
    both = Trial({}, ("x86_64/npt", "x86_64/shadow"), (), {}, parts[0].differences + parts[1].differences)
    table = on_hardware(both, vcpus=[1]).readable()
    assert len(table) == len(table.drop_duplicates(["host", "workload", "vcpus", "metric"]))
    assert set(table["host"]) == {"x86-published x86-tdp", "x86-published x86-shadow-paging"}


def test_an_empty_prediction_states_its_reason():
    same = trial("riscv64/h", numbers(clear_write=2), numbers(clear_write=2))
    prediction = on_hardware(same)
    assert prediction.frame.empty
    reason = "nothing in the model changes"
    assert f"riscv64/h: nothing to predict, because {reason}" in " ".join(prediction.summary().split())
    failed = Trial({}, ("arm64/vhe",), (), {"arm64/vhe": "panic"}, ())
    assert "because the kernel with the series FAILS" in " ".join(on_hardware(failed).summary().split())
