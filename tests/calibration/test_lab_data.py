# SPDX-License-Identifier: BSD-3-Clause
"""The lab's committed data beside the model: counts to the unit, costs with intervals, cells under load."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from simlib.calibration import find_fit, lab
from simlib.measurements import load
from simlib.prediction import predict
from simlib.report.lab import directions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=lab.LABS)
def machine(request):
    return request.param


@pytest.fixture(scope="module")
def costs(machine):
    return lab.instruction_costs(machine)


@pytest.fixture(scope="module")
def cells(machine, costs):
    return lab.load_comparison(machine, lab.cost_estimate(costs))


def test_counts_are_the_kernels_own(machine):
    """From the moment the log is enabled, every acquisition that the model has: to the unit, in every cell."""
    counts = lab.count_comparison(lab.rows_of("counts-locks", machine))
    judged = counts[counts["phase"] != "populate"]
    assert len(judged) >= 6
    assert judged[judged["difference"] != 0].empty


def test_populating_touches_the_guests_own_pages_too(machine):
    """Code, stacks, tables, records: some dozens of pages a vCPU, whatever the batch and the protection."""
    counts = lab.count_comparison(lab.rows_of("counts-locks", machine))
    extra = counts[(counts["phase"] == "populate") & (counts["what"] == "fault")]
    assert extra["difference"].between(1, 100).all()


def test_costs_are_known_and_ordered(machine, costs):
    known = {cost.name: cost for cost in costs}
    for cost in costs:
        assert 0 < cost.low <= cost.value <= cost.high, cost
        assert cost.high - cost.low < 0.2 * cost.value, cost
    fault = known["fault_exit"].value + known["fault_hold"].value
    assert known["guest_access"].value < known["clear_page"].value * 5
    # riscv's CLEAR fences every page.
    assert known["clear_page"].value * (3 if machine == "riscv" else 8) < fault


def test_the_shipped_fit_is_what_the_data_give(machine):
    """``simlib lab costs --out data/fits`` writes it; its intervals under load are as wide as the model was off."""
    shipped, now = find_fit(lab.lab_scenario(machine)), lab.lab_fit(machine)
    assert shipped.scenario == now.scenario
    columns = ["name", "value", "low", "high", "at_bound", "determined"]
    pd.testing.assert_frame_equal(shipped.parameters[columns], now.parameters[columns], rtol=1e-9)
    assert shipped.estimate.discrepancy == pytest.approx(now.estimate.discrepancy)
    assert shipped.estimate.spread == pytest.approx(now.estimate.spread)
    assert not shipped.observations["train"].any()
    case = now.scenario.with_vcpus(4)
    found = predict(case, [4], fit=shipped, metrics=["clear_dirty_log_time", "longest_stall"]).frame
    assert ((found["low"] < found["estimate"]) & (found["estimate"] < found["high"])).all()


def test_cells_under_load_are_predicted(cells):
    """No cell under load was used to calibrate anything; a batch moves both metrics the way it does in the lab."""
    clear = cells[cells["metric"] == "clear_dirty_log_time"]
    assert len(clear) == 12
    assert clear["error"].abs().median() < 0.15
    for _, group in cells.groupby("metric"):
        assert directions(group) == 0


LARGEST_MEDIAN = {"x86-shadow": 0.15, "arm64-read": 0.22, "arm64-write": 0.17, "riscv": 0.35}
"""Of the longest stall. riscv's CLEAR also kicks running vCPUs for every page, which the model does not have."""


def test_longest_stall_under_load_is_predicted_where_it_is_a_wait(machine, cells):
    stalls = cells[cells["metric"] == "longest_stall"]
    if machine == "x86-npt":  # faults take no lock: microseconds, whatever the batch
        assert stalls["lab"].max() < 100e-6
    else:
        assert stalls["error"].abs().median() < LARGEST_MEDIAN[machine]


def test_seed_001_a_batch_shortens_stalls_only_where_faults_take_the_lock(machine, cells):
    stalls = cells[(cells["metric"] == "longest_stall") & (cells["vcpus"] == 8)].set_index("batch")["lab"]
    gain = stalls[0] / stalls[64]
    assert gain < 2 if machine == "x86-npt" else gain > 5


def test_seed_000_faults_for_read_do_not_contend():
    def share(name):
        rows = lab.rows_of("load-locks", name)
        faults = rows[(rows["phase"] == "rounds") & (rows["site"] == "fault_fast") & (rows["vcpus"] == 8)]
        return faults["contentions"].sum() / faults["acquisitions"].sum()

    assert share("arm64-read") < 0.15
    assert share("arm64-write") > 0.5


def test_deterministic_runs_repeat_themselves():
    table = lab.repeat_table()
    assert table["repeated"].sum() >= 40
    assert table["identical"].sum() >= 0.95 * table["repeated"].sum()


def test_every_experiment_of_the_switches_is_there():
    experiments = set(load("switches-runs").frame["experiment"])
    assert set(lab.SWITCHES) <= experiments
    for name in lab.SWITCHES:
        frame = lab.switch_effects(name)
        assert (frame["low"] <= frame["value"]).all()
        assert (frame["value"] <= frame["high"]).all()


def test_a_machine_without_a_scenario_is_named():
    with pytest.raises(ValueError, match=r"arm64 nvhe.*has no scenario"):
        lab.lab_name(pd.Series({"architecture": "arm64", "mode": "nvhe", "switches": ""}))


def test_the_docs_say_what_the_statistics_execute():
    before, after = (
        next(cost.value for cost in costs("x86-shadow") if cost.name == "reacquire")
        for costs in (lab.plain_costs, lab.instruction_costs)
    )
    told = f"about {after - before:.0f} for each time that x86 takes the lock ({before:.0f} become {after:.0f};"
    assert told in " ".join((ROOT / "docs" / "lab.md").read_text("utf-8").split()), told
