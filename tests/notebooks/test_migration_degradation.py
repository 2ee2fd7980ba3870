# SPDX-License-Identifier: BSD-3-Clause
"""The degradation notebook runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, assert_kept_clean, assert_ran_without_complaint, execute, figures_of, told_by

NOTEBOOK = ROOT / "notebooks" / "04-migration-degradation.ipynb"

TELL = """
import json
json.dumps({
    "seconds": {f"{r.series} {r.level_percent}": r.model_s for r in seconds.itertuples()},
    "missed": [f"{r.series} {r.level_percent}" for r in seconds.itertuples()
               if not r.low_bar_s <= r.model_s <= r.high_bar_s],
    "dips": dips[["chunk", "series", "pass", "lowest_percent", "mean_percent"]].to_numpy().tolist(),
    "envelope": envelope.tolist(),
    "threshold": threshold["above 99 %, s"].tolist(),
})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return execute(NOTEBOOK, TELL, tmp_path_factory.mktemp("notebook"))


def test_it_runs_and_is_kept_clean(run: Any) -> None:
    assert_kept_clean(NOTEBOOK)
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 3


def test_arm64_after_the_fast_path_is_predicted_and_what_is_missed_is_named(run: Any) -> None:
    told = told_by(run)
    assert told["missed"] == ["x86-reference 50", "x86-reference 10"]  # as the prose says
    assert told["seconds"]["arm64-after 99"] == pytest.approx(30, rel=0.3)
    assert told["envelope"] == pytest.approx([31, 48, 18], rel=0.05)
    arm64, x86 = told["threshold"][:3], told["threshold"][3:]
    assert arm64[0] > 1.5 * arm64[2] > 0  # all passes, or the first only
    assert x86[0] > 5
    assert x86[2] == 0


def test_dips_are_in_the_first_pass_and_gone_with_either_change(run: Any) -> None:
    for _, series, number, lowest, mean in told_by(run)["dips"]:
        if series == "before" and number == 1:
            assert lowest < 80
            assert mean < 90
        else:
            assert mean > 95
            assert lowest > (75 if number == 2 else 98)
