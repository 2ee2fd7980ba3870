# SPDX-License-Identifier: BSD-3-Clause
"""The report's sections on teardown: what they show, and what they must admit."""

import pytest

from simlib.report import teardown
from simlib.report.block import Chart, Table
from simlib.report.page import Report


@pytest.fixture(scope="module")
def found():
    return teardown.study()


@pytest.fixture(scope="module")
def page(found):
    return " ".join(Report("mmu_lock", sections=teardown.sections(found)).to_html().split())


def test_they_show_two_figures_and_six_tables(found):
    blocks = [block for section in teardown.sections(found) for block in section.blocks]
    assert sum(isinstance(block, Chart) for block in blocks) == 2
    assert sum(isinstance(block, Table) for block in blocks) == 6


def test_what_is_missed_stands_in_the_page(found, page):
    assert len(found.missed) == 7
    for words in found.missed:
        assert words in page


def test_parameters_are_counted_beside_observations(found, page):
    fitted = ~found.unmap["held_out"]
    assert (fitted.sum(), len(found.held_out)) == (16, 16)
    assert "8 parameters (two costs, a time that does not depend on the memory and a discrepancy" in page
    assert "stand against 16 rows; 16 rows are held out" in page
    assert "Two costs from two statements" in page


def test_the_disagreement_is_in_numbers(found, page):
    pages = found.readings.set_index("mapping").loc["4K pages"]
    assert f"disagree by a factor of {pages['ratio']:.0f}, and of {pages['ratio_low']:.0f} at least" in page
    assert "the mail does not say" in page
    assert page.count("Decisive:") == 4


def test_readings_and_ways_stand_side_by_side(found):
    table = teardown.readings_side_by_side(found.readings).set_index("what")
    assert table.loc["the sources agree"].tolist() == ["no", "yes"]
    wide = teardown.ways_side_by_side(found.predictions)
    assert len(wide) == 12
    first = wide.iloc[0]
    assert first["mapped"] == "4K, pages"
    assert first["both for each entry"].startswith("44 (")


def test_published_bounds_are_the_seeds():
    bounds = teardown.published_bounds()
    assert bounds[["memory", "value_s", "relation"]].to_numpy().tolist() == [["64G", 12, "up-to"], ["64G", 1, "below"]]
