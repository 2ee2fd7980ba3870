# SPDX-License-Identifier: BSD-3-Clause
"""Series that were tried in the lab: patches of ours change what they name, and others are told as they are."""

import pytest
from notebook_run import ROOT, answer_of, assert_ran_without_complaint

from simlib.lab.trial.quantities import COUNT, TIME, TrialQuantity
from simlib.measurements import load
from studies.trial import AUTHORS_CLAIMS, SEED_001, SEED_002, read_trials
from studies.trial.comparison import own_patches

PARKED = ("parked", "enable", "blocks")
"""Cells in which nobody meets."""


@pytest.fixture(scope="module")
def trials():
    return read_trials(load("tried"))


def changed(trial, mmu_mode, cells=PARKED):
    return {one.quantity.of for one in trial.changed if one.mmu_mode == mmu_mode and one.cell in cells}


def test_a_batch_changes_clear_alone_where_nobody_meets(trials):
    trial = trials[SEED_001]
    assert set(trial.mmu_modes) == {"x86_64/npt", "x86_64/shadow", "arm64/vhe", "riscv64/h"}
    for mmu_mode in trial.mmu_modes:
        assert changed(trial, mmu_mode) <= {"clear write (rounds)", "clear"}
        counts = trial.frame().query("mmu_mode == @mmu_mode and cell == 'parked' and of == 'clear write (rounds)'")
        [count] = counts.query("what == 'acquisitions'")["changed"]
        pages = trial.frame().query("mmu_mode == @mmu_mode and cell == 'parked' and what == 'dirty pages'")
        assert count == pages["base"].iloc[0] / 64


def test_a_fault_mode_moves_every_fault_and_nothing_of_clear(trials):
    found = changed(trials["fault-mode"], "arm64/vhe")
    assert {"fault_fast read (rounds)", "fault_fast write (rounds)"} <= found
    assert not {of for of in found if of.startswith(("clear", "enable", "get"))}


def test_without_the_lock_clear_takes_it_no_more(trials):
    gone = [one for one in trials[SEED_002].changed if one.quantity.of == "clear write (rounds)"]
    assert all(not any(one.changed) for one in gone)
    assert {one.cell for one in gone} >= {"parked", "enable", "blocks", "load"}


def test_the_walk_that_skips_a_level_splits_faster(trials):
    frame = trials["split-walk"].frame().query("verdict == 'changed' and of == 'enable' and what == 'time'")
    assert set(frame["cell"]) >= {"enable", "blocks"}
    assert (frame["high"] < 1).all()


def test_directions_are_those_that_were_collected(trials):
    table = own_patches(trials)
    assert ((table["tried"] > 1) == (table["collected"] > 1)).all()


def test_a_check_less_changes_no_count_and_the_walk_that_enables_by_little(trials):
    changed = trials["yield-order"].changed
    assert all(one.quantity.unit == TIME and abs(one.ratio - 1) < 0.1 for one in changed)
    [walk] = [one for one in changed if one.quantity.of == "enable read (enable)" and one.cell == "blocks"]
    assert walk.high < 1


def test_every_series_of_others_was_tried(trials):
    assert set(AUTHORS_CLAIMS) <= set(trials)
    assert trials["collapse-flush"].changed[0].quantity == TrialQuantity("TLB", "flush requests", COUNT)
    assert not [one for name in ("ring-resched", "arm64-destroy") for one in trials[name].changed]


@pytest.mark.study
def test_the_notebook_says_what_its_cells_compute(ran):
    run = ran(ROOT / "notebooks" / "16-a-patch-tried.ipynb")
    assert_ran_without_complaint(run)
    tries = run["findings"].tables["tries"]
    none = tries[tries["trial"].isin(AUTHORS_CLAIMS) & (tries["changed"] == 0)]
    assert f"Of {len(AUTHORS_CLAIMS)} series by other authors, {len(none)} changed none" in answer_of(run)
