# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the tour: it runs, its text matches its results, and its postings are those of the data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from notebook_run import (
    ROOT,
    Run,
    answer_of,
    assert_ran_without_complaint,
    figures_of,
)

NOTEBOOK = ROOT / "notebooks" / "00-tour.ipynb"


def results(run: Run) -> dict[str, Any]:
    compared, idea, predicted, published = (run["compared"], run["idea"], run["predicted"], run["published"])
    at8 = compared.frame[compared.frame["vcpus"] == 8].set_index(["policy", "metric"])
    return {
        "stall": at8["estimate"].xs("longest_stall", level="metric").to_dict(),
        "change": float(at8.loc[(idea, "longest_stall"), "change_percent"]),
        "curves": int(predicted.frame["variant"].nunique()),
        "published": len(published),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_errors(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 4


def test_the_answer_matches_the_results(run: Run) -> None:
    computed = results(run)
    idea = next(name for name in computed["stall"] if "held" in name)
    assert computed["stall"][idea] < computed["stall"]["whole-ioctl"]
    assert 100 * (computed["stall"][idea] / computed["stall"]["whole-ioctl"] - 1) == pytest.approx(
        computed["change"], abs=1
    )
    assert computed["curves"] == 3
    assert computed["published"] == 21
    answer = answer_of(run)
    assert answer.startswith("**Answer.**")
    assert f"changes the longest stall by {computed['change']:+.0f} %" in answer
    assert idea in answer


def test_the_postings_are_cited_as_the_data_cite_them(run: Run) -> None:
    lines = {line.split("|")[1].strip(): line for cell in run.cells for line in cell.source.splitlines()
             if line.startswith("| ")}  # fmt: skip
    cited = set()
    for path in (ROOT / "data" / "published").glob("*.json"):
        source = json.loads(path.read_text(encoding="utf-8"))["source"]
        if "posting" in source and source["author"] in (line := lines[source["posting"]]):
            cited.add(source["posting"])
            for key in ("date", "message_id"):
                assert source[key] == "not stated" or source[key] in line or source.get("in_reply_to", "-") in line
    assert len(cited) == 5
