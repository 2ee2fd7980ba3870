# SPDX-License-Identifier: BSD-3-Clause
"""The report's sections on seed 002: what they show, and what they must admit."""

import pytest
from notebook_run import ROOT

from simlib.calibration import get_ways
from simlib.report import lockless
from simlib.report.block import Chart, Table
from simlib.report.page import Report

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def found(ran):
    """What it determines and predicts was computed by the notebook already."""
    run = ran(ROOT / "notebooks" / "07-lockless-write-protect.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockless.lockless, "fit_walk", lambda: run["walk"])
        patch.setattr(lockless.lockless, "lab_comparison", lambda walk: run["lab"])
        patch.setattr(lockless.lockless, "witness", lambda walk: run["witness"])
        patch.setattr(get_ways, "guests", lambda walk: run["guests"])
        patch.setattr(get_ways, "predictions", lambda walk, **_: run["predictions"])
        return lockless.study()


@pytest.fixture(scope="module")
def page(found):
    return " ".join(Report("mmu_lock", sections=lockless.sections(found)).to_html().split())


def test_they_show_three_figures_and_seven_tables(found):
    blocks = [block for section in lockless.sections(found) for block in section.blocks]
    assert sum(isinstance(block, Chart) for block in blocks) == 3
    assert sum(isinstance(block, Table) for block in blocks) == 7


def test_power_is_in_numbers(page):
    assert "with EPT no more than 1.7 % slower, without EPT no more than 0.6 %, both averaged 0.8 %" in page
    assert "A regression of 3.7 % with EPT (0.8 % without) would have been noticed with 80 % power" in page
    assert "85.58, 83.47, 82.95 s" in page


def test_readings_are_judged_and_each_has_what_would_decide(found):
    table = lockless.readings(found).set_index("reading")
    verdicts = table["verdict"].tolist()
    assert verdicts == ["excluded", "excluded", "possible", "possible", "open", "open", "open"]
    assert table["decisive"].str.len().min() > 10
    assert "350 µs" in table["needs"].iloc[0]


def test_parameters_are_counted_beside_observations(page):
    assert "One parameter stands against 6 observations" in page
    assert "Two numbers, no parameter: every reading has at least one unknown of its own" in page


def test_what_is_missed_stands_in_the_page(page):
    assert "Missed: the longest stall without the lock" in page


def test_predictions_cover_what_was_asked(found):
    frame = found.predictions
    assert set(frame["way"]) == set(get_ways.WAYS)
    assert {axis: tuple(part["value"].unique()) for axis, part in frame.groupby("axis", sort=False)} == {
        axis: tuple(str(value) for value in values) for axis, values in get_ways.AXES.items()
    }
    assert (frame["low"] <= frame["estimate"]).all()
    assert (frame["estimate"] <= frame["high"]).all()


def test_batches_are_as_good_to_the_guest_and_get_pays(found):
    """Predicted: at every point some batch is; GET takes longer the more the lock is wanted."""
    verdicts = found.verdicts.set_index(["axis", "value"]).sort_index()
    assert (verdicts["as_good"].str.startswith("every")).all()
    assert (verdicts["get_ratio"] > 1.2).all()
    assert verdicts.loc[("vcpus", "64"), "get_ratio"] > 10 > verdicts.loc[("vcpus", "16"), "get_ratio"]
    assert (verdicts["whole_stall_ratio"] > 15).all()


def test_a_dense_get_is_counted(found, page):
    """256 GiB at 30.4 ns a page."""
    assert found.budget.page[0] * 2**26 == pytest.approx(2.04, abs=0.01)
    assert "2 µs for 64 pages, 16 µs for 512 pages, 125 µs for 4096 pages, and in one hold 2.0 s for 256 GiB" in page


def test_walks_that_would_begin_anew_are_few(found):
    """What docs/model.md says of 3 MiB: of the order of one in a hundred GETs."""
    small = found.rewalks.set_index("memory").loc["3M"]
    assert 0.005 < small["expected"] / small["gets"] < 0.03


def test_where_faults_take_no_lock_get_meets_nobody(found):
    pages = found.guests[found.guests["guest"] == "EPT, pages"].set_index("way")
    assert pages.loc["one hold", "get_time_s"] == pytest.approx(pages.loc[get_ways.DEAR, "get_time_s"], rel=1e-3)
    assert (pages["wait_share"] == 0).all()
