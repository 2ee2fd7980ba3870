# SPDX-License-Identifier: BSD-3-Clause
"""The decision's notebook runs, and its decisions are what they say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from notebook_run import ROOT, Run, assert_ran_without_complaint, figures_of

pytestmark = pytest.mark.study

NOTEBOOK = ROOT / "notebooks" / "05-choose-a-batch.ipynb"


def tell(run: Run) -> dict[str, Any]:
    choice, decision, grid = (run["choice"], run["decision"], run["grid"])
    return {
        "evidence": choice.evidence,
        "how": choice.how,
        "stalls": choice.table.set_index("strategy")["stall_s"].to_dict(),
        "clears": choice.table.set_index("strategy")["clear_s"].to_dict(),
        "take": choice.answers.set_index("objective")["take"].to_dict(),
        "batch_stalls": decision.table["stall_s"].tolist(),
        "batch_clears": decision.table["clear_s"].tolist(),
        "batch_take": decision.choice.answers.set_index("objective")["take"].to_dict(),
        "cells": len(grid),
    }


@pytest.fixture(scope="module")
def run(ran: Any) -> Run:
    return ran(NOTEBOOK)


def test_it_runs_without_complaint(run: Run) -> None:
    assert_ran_without_complaint(run)
    assert len(figures_of(run)) == 3


def test_arm64_stalls_for_its_whole_chunk_unless_it_lets_go(run: Run) -> None:
    """A CLEAR of 1 GiB goes over 262144 pages; at 5 ns each and more it holds the lock for more than a millisecond."""
    told = tell(run)
    assert (told["evidence"], told["how"]) == ("partly calibrated: faults only", "sampled")
    stalls, clears = told["stalls"], told["clears"]
    assert stalls["whole-ioctl"] > 1e-3 > stalls["bounded-hold"] > stalls["every-64"]
    assert stalls["read-lock-clear"] < stalls["every-4096"]
    assert clears["eager-split-drop"] > clears["every-64"] > clears["whole-ioctl"]
    assert told["take"]["clear"] == "whole-ioctl"
    assert told["cells"] == 9


def test_who_pays_decides(run: Run) -> None:
    told = tell(run)
    stalls = told["batch_stalls"]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(stalls))
    assert stalls[-1] > 5 * stalls[0]
    assert told["batch_clears"][0] == max(told["batch_clears"])
    assert told["batch_take"]["clear"] != "every-64"
    assert told["batch_take"]["stall"] == "every-64"
