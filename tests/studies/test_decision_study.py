# SPDX-License-Identifier: BSD-3-Clause
"""The decision's notebook runs, and its decisions are what they say."""

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


def test_arm64_stalls_for_its_whole_chunk_unless_it_lets_go(run):
    """A CLEAR of 1 GiB goes over 262144 pages; at 5 ns each and more it holds the lock for more than a millisecond."""
    choice = run["found"].choices["arm64"]
    assert (choice.evidence, choice.how) == ("partly calibrated: faults only", "sampled")
    table = choice.table.set_index("strategy")
    stalls, clears = table["stall_s"], table["clear_s"]
    assert stalls["whole-ioctl"] > 1e-3 > stalls["bounded-hold"] > stalls["every-64"]
    assert clears["eager-split-drop"] > clears["every-64"] > clears["whole-ioctl"]
    assert choice.take("clear") == "whole-ioctl"
    assert len(run["found"].tables["map"]) == 9


def test_splitting_under_the_lock_stops_the_mysql_guest_for_longest(run):
    stalls = run["found"].seed_guest.table.set_index("strategy")["stall_s"]
    assert stalls["eager-split-under-lock"] > 0.05  # CLEARs of 8 GiB: 4096 splits in one hold
    assert stalls["every-64+eager-split-under-lock"] < 1e-3
    assert stalls["eager-split-drop"] < 1e-3


def test_who_pays_decides(run):
    batches = run["batches"]
    stalls, clears = batches.table["stall_s"].tolist(), batches.table["clear_s"].tolist()
    take = batches.choice.answers.set_index("objective")["take"]
    assert all(later > 0.95 * earlier for earlier, later in pairwise(stalls))
    assert stalls[-1] > 5 * stalls[0]
    assert clears[0] == max(clears)
    assert take["clear"] != "every-64"
    assert take["stall"] == "every-64"
