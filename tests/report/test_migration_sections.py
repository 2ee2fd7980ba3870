# SPDX-License-Identifier: BSD-3-Clause
"""The report's sections on migrations: what they show, and what they must admit."""

import pytest
from notebook_run import ROOT

from simlib.calibration import migrations
from simlib.report import migration
from simlib.report.block import Chart
from simlib.report.page import Report

pytestmark = pytest.mark.study


def charts(sections):
    return [block for section in sections for block in section.blocks if isinstance(block, Chart)]


@pytest.fixture(scope="module")
def found(ran):
    """What takes long was computed by the notebook already."""
    run = ran(ROOT / "notebooks" / "04-migration-degradation.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "dips", lambda *_: (run["throughput"], run["dips"]))
        patch.setattr(migrations, "degradation_table", lambda *_, **__: (run["curves"], run["seconds"]))
        patch.setattr(migrations, "one_guest", lambda *_: run["guests"])
        return migration.study(draws=2)


def test_migrations_are_shown_with_what_they_miss(found):
    sections = migration.sections(found)
    assert len(charts(sections)) == 4
    page = Report("mmu_lock", sections=sections).to_html()
    assert found.missed
    for words in found.missed:
        assert words in page
    assert f"stand against {found.observations} published numbers" in page.replace("\n", " ")
    assert len(found.fit.parameters) + migration.CHOSEN < found.observations / 2


def test_only_what_nobody_fitted_is_called_predicted(found):
    configurations = found.configurations.set_index("configuration")["role"]
    assert set(configurations.loc[[1, 2, 3]]) == {"fitted"}
    assert set(configurations.loc[[4]]) == {"predicted"}
    roles = found.seconds.groupby("series")["role"].unique()
    assert roles["arm64-after"].tolist() == ["predicted"]
    assert roles["arm64-before"].tolist() == roles["x86-reference"].tolist() == ["fitted"]
