# SPDX-License-Identifier: BSD-3-Clause
"""The report on the eager-split walk: its charts, its counts of parameters, and what it must admit."""

import html

import pytest

from simlib.calibration.split_walk import READINGS
from simlib.report import split_walk
from simlib.report.block import Chart
from simlib.report.page import Report

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def found():
    return split_walk.study(draws=20)


def test_it_shows_fits_and_predictions_and_admits_what_fails(found):
    sections = split_walk.sections(found)
    assert sum(isinstance(block, Chart) for section in sections for block in section.blocks) == 2
    page = " ".join(html.unescape(Report("mmu_lock", sections=sections).to_html()).split())
    assert "4 ratios stand against 6 published changes of each machine" in page
    assert found.missed == []
    assert (found.engine["apart_ps"] == 0).all()
    assert "Out of the published deviation and 2 points: none" in page
    assert "the interval of neither machine" in page
    assert "so that the test as published would not split" in page
    assert all(how.says in page for how in READINGS)


def test_kinds_are_apart(found):
    kinds = found.changes.groupby("kind").size()
    assert kinds.to_dict() == {"published": 12, "fitted": 12, "predicted": 12}
    assert found.changes[found.changes["kind"] == "fitted"]["low"].isna().all()
    ratios = found.parameters
    assert set(ratios["machine"]) == {"AmpereOne", "ThunderX2", "lab, instructions"}
