# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the notebook on choosing a strategy, and of its decisions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from notebook_run import ROOT, assert_ran_without_complaint

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def run(ran):
    run = ran(ROOT / "notebooks" / "05-choose-a-batch.ipynb")
    assert_ran_without_complaint(run)
    return run


def test_arm64_stalls_for_a_whole_chunk_unless_clear_drops_the_lock(run):
    """A CLEAR of 1 GiB covers 262144 pages; at 5 ns or more per page it holds the lock for more than a millisecond."""
    choice = run["findings"].choices["arm64"]
    assert (choice.evidence, choice.how) == ("partly calibrated: faults only", "sampled")
    table = choice.table.set_index("strategy")
    stalls, clears = table["stall_s"], table["clear_s"]
    assert stalls["whole-ioctl"] > 1e-3 > stalls["bounded-hold"] > stalls["every-64"]
    assert clears["eager-split-drop"] > clears["every-64"] > clears["whole-ioctl"]
    assert choice.recommended("clear") == "whole-ioctl"
    assert len(run["findings"].tables["map"]) == 9


def test_splitting_under_the_lock_has_the_longest_stall_of_the_mysql_guest(run):
    stalls = run["findings"].mysql_choice.table.set_index("strategy")["stall_s"]
    assert stalls["eager-split-under-lock"] > 0.05  # CLEARs of 8 GiB: 4096 splits in one hold
    assert stalls["every-64+eager-split-under-lock"] < 1e-3
    assert stalls["eager-split-drop"] < 1e-3


def test_the_selected_batch_depends_on_the_objective(run):
    batches = run["batches"]
    stalls, clears = batches.table["stall_s"].tolist(), batches.table["clear_s"].tolist()
    recommended = batches.choice.answers.set_index("objective")["recommended"]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(stalls))
    assert stalls[-1] > 5 * stalls[0]
    assert clears[0] == max(clears)
    assert recommended["clear"] != "every-64"
    assert recommended["stall"] == "every-64"
