# SPDX-License-Identifier: BSD-3-Clause
"""The decision's notebook runs, and its decisions are what they say."""

from __future__ import annotations

from typing import Any

import pytest
from notebook_run import ROOT, assert_kept_clean, assert_ran_without_complaint, execute, figures_of, told_by

NOTEBOOK = ROOT / "notebooks" / "05-choose-a-batch.ipynb"

TELL = """
import json
json.dumps({
    "recommended": choice.recommended, "as_good": list(choice.as_good), "exhausted": choice.exhausted,
    "evidence": choice.evidence,
    "table": choice.table[["objective_s", "longest_stall_s", "clear_cpu_time_s"]].to_numpy().tolist(),
    "regret_of_64": choice.regrets.set_index("rule").loc["every 64 pages", ["share_low", "share"]].tolist(),
    "answers": answers.astype(str).to_numpy().tolist(),
    "cells": len(grid),
})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return execute(NOTEBOOK, TELL, tmp_path_factory.mktemp("notebook"))


def test_it_runs_and_is_kept_clean(run: Any) -> None:
    assert_kept_clean(NOTEBOOK)
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 3


def test_arm64_loses_by_letting_go_at_every_word(run: Any) -> None:
    told = told_by(run)
    assert told["evidence"] == "partly calibrated: faults only"
    assert not told["exhausted"]
    assert told["as_good"][0] > 64
    assert told["regret_of_64"][0] > 0.02  # the low end of the interval
    costs, stalls, clears = zip(*told["table"], strict=True)
    assert list(stalls) == sorted(stalls)
    assert list(clears) == sorted(clears, reverse=True)
    assert costs[0] == max(costs)


def test_who_pays_decides(run: Any) -> None:
    answers = {row[0]: row[1] for row in told_by(run)["answers"]}
    assert answers["clear"] == "whole"
    assert answers["stall"] == "64"
