# SPDX-License-Identifier: BSD-3-Clause
"""The notebook on the eager-split walk runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "09-split-walk.ipynb"


def tell(run: Run) -> dict[str, Any]:
    barrier, cells, counts, fits, lab, ratios, readings, stalls, walks = (
        run["barrier"],
        run["cells"],
        run["counts"],
        run["fits"],
        run["lab"],
        run["ratios"],
        run["readings"],
        run["stalls"],
        run["walks"],
    )
    return {
        "within": [bool(w) for found in fits for w in found.observations["within"]],
        "determined": ratios[ratios["name"] == "table_entry"]["determined"].tolist(),
        "stalls": stalls["longest stall, ms"].tolist(),
        "spread": {
            r.reading: [r.spread_enable_4k, r.published_enable_4k]
            for r in readings.itertuples()
            if r.machine == "AmpereOne"
        },
        "slower": walks[walks["walk"] == "skip_siblings"]["slower_percent"].tolist(),
        "lab": lab[lab["phase"] == "enable"][["lab_percent", "predicted_percent", "inside"]].to_numpy().tolist(),
        "cells": float(cells["error"].abs().max()),
        "visits": int(
            counts.set_index(["ioctl", "backing"]).loc[("enable", "thp"), "walk_entry"]
            - counts.set_index(["ioctl", "backing"]).loc[("enable", "thp"), "visits if skipped"]
        ),
        "barriers": barrier[["before", "after"]].to_numpy().tolist(),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 2


def test_its_prose_says_what_it_computes(run: Run) -> None:
    told = tell(run)
    assert told["within"] == [True] * 12
    assert told["determined"] == [True, True]
    assert told["visits"] == 262144
    small, middle, large = told["stalls"]
    assert large > 5 * middle
    assert middle > 2 * small
    four, published = told["spread"]["four costs"]
    assert four / published == pytest.approx(2, abs=0.3)
    assert told["spread"]["every leaf"][0] < 0.1
    assert -0.1 < min(told["slower"]) < max(told["slower"]) < 0.5
    assert [row[2] for row in told["lab"]] == [False, False]
    assert told["lab"][1][1] < told["lab"][0][0] < told["lab"][0][1]
    assert told["cells"] < 0.01
    assert all(after > before for before, after in told["barriers"])
