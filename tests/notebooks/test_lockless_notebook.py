# SPDX-License-Identifier: BSD-3-Clause
"""The notebook on the dirty log without the lock runs, and its prose says what its cells compute."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "07-lockless-write-protect.ipynb"


def tell(run: Run) -> dict[str, Any]:
    comparison, means, verdicts, walk, witness = (
        run["comparison"],
        run["means"],
        run["verdicts"],
        run["walk"],
        run["witness"],
    )
    shadow = verdicts.set_index(["axis", "value"])
    return {
        "shown": comparison["shown_percent"].tolist(),
        "excluded": comparison["high_percent"].tolist(),
        "sd_ms": 1e3 * means.insignificant_sd,
        "means_ms": [1e3 * means.before, 1e3 * means.after],
        "ratio": walk.ratio,
        "wait_s": float(witness["wait_s"].max()),
        "fewer": sorted(witness[witness["ratio"] < 0.98]["guest"].unique()),
        "as_good": sorted(verdicts["as_good"].unique()),
        "get": {str(key): float(value) for key, value in shadow["get_ratio"].items()},
        "stall": float(shadow.loc[("vcpus", "16"), "whole_stall_ratio"]),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 3


def test_its_prose_says_what_it_computes(run: Run) -> None:
    told = tell(run)
    assert [round(value, 1) for value in told["shown"][:2]] == [3.7, 0.8]
    assert [round(value, 1) for value in told["excluded"][:2]] == [1.7, 0.6]
    assert told["sd_ms"] == pytest.approx(4.5, abs=0.05)
    assert [round(value, 1) for value in told["means_ms"]] == [9.0, 4.8]
    assert told["ratio"][0] == pytest.approx(0.4, abs=0.02)
    assert told["wait_s"] < 1e-5
    assert told["fewer"] == ["EPT, blocks at first"]
    assert told["as_good"] == ["every 4096 pages", "every 512 pages"]
    assert told["stall"] == pytest.approx(200, rel=0.2)
    many = told["get"].pop("('vcpus', '64')")
    assert many == pytest.approx(27, abs=1)
    assert min(told["get"].values()) == pytest.approx(1.3, abs=0.05)
    assert max(told["get"].values()) == pytest.approx(6, abs=0.3)
